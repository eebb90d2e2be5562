"""What fault_proxy.py and fake_broker.py have in common: they obey one command a line and answer with one
line, "ok" and perhaps more, or "error" and why. The first line that they print names the port they listen on.
They end when their standard input does."""

import asyncio
import shlex
import socket
import struct
import sys


def reset(writer):
    """Ends a connection with a RST instead of a FIN."""
    peer = writer.get_extra_info("socket")
    try:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass  # it is gone already
    writer.transport.abort()


async def serve(port, commands):
    """Prints the port, then runs commands until the end of the input. `commands` maps the first word of a
    line to a function of the other words, which may be a coroutine."""
    print(port, flush=True)
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        try:
            name, *arguments = shlex.split(line.decode())
            answer = commands[name](*arguments)
            if asyncio.iscoroutine(answer):
                answer = await answer
            print("ok" if answer is None else f"ok {answer}", flush=True)
        except Exception as problem:  # whatever it is, the test has to know
            print(f"error {line.decode().strip()}: {problem!r}".replace("\n", " "), flush=True)
