#!/usr/bin/python3
"""Stands between a client and a broker and does to their connection what networks do. See
OutboxDrainer::FaultProxy for the commands.

Nothing that a black hole holds back is lost: as with packets that are sent again until they are acknowledged, it
arrives when the hole is closed, unless the connection was reset meanwhile.
"""

import argparse
import asyncio
import json

import control

PIECE = 65536


class Direction:
    """What happens to the bytes of one direction, on all connections."""

    def __init__(self):
        self.open = asyncio.Event()  # not set: a black hole
        self.delivered = 0  # bytes, since the start
        self.held = 0  # bytes that were read and are not delivered
        self.trap = None  # (how many bytes are still let through, what happens then)
        self.be_good()

    def be_good(self):
        self.delay = 0
        self.rate = None  # bytes a second
        self.trap = None
        self.open.set()

    def piece_size(self):
        return PIECE if self.rate is None else max(1, min(PIECE, self.rate // 20))

    async def pace(self, size):
        """Waits as long as a piece of this size takes, and while there is a black hole."""
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.rate is not None:
            await asyncio.sleep(size / self.rate)
        await self.open.wait()


class Link:
    """One client's connection and the one to the broker that goes with it."""

    def __init__(self, proxy, client, broker):
        self.proxy = proxy
        self.streams = {"to_broker": (client[0], broker[1]), "to_client": (broker[0], client[1])}

    async def carry(self, name):
        """Carries one direction until its end."""
        direction = self.proxy.directions[name]
        source, sink = self.streams[name]
        try:
            while data := await self.read(direction, source):
                direction.held += len(data)
                try:
                    await direction.pace(len(data))
                    if not await self.deliver(direction, sink, data):
                        return
                finally:
                    direction.held -= len(data)
            await direction.open.wait()
            if sink.can_write_eof():
                sink.write_eof()
        except ConnectionError:
            self.reset()

    @staticmethod
    async def read(direction, source):
        try:
            return await source.read(direction.piece_size())
        except ConnectionError:
            await direction.open.wait()  # a RST does not come through a black hole either
            raise

    async def deliver(self, direction, sink, data):
        """Hands the bytes on, or springs the trap that lies among them."""
        if direction.trap is not None:
            distance, spring = direction.trap
            if len(data) <= distance:
                direction.trap = (distance - len(data), spring)
            else:
                direction.trap = None
                data, goes_on = spring(self, data, distance)
                if not goes_on:
                    if data:
                        sink.write(data)
                    direction.delivered += len(data)
                    self.close()
                    return False
        sink.write(data)
        await sink.drain()
        direction.delivered += len(data)
        return True

    def half_close(self, name):
        """Tells one side that no more comes from the other; what does come after that is dropped."""
        source, sink = self.streams[name]
        if sink.can_write_eof():
            sink.write_eof()
        self.tasks[name].cancel()
        self.tasks[name] = asyncio.ensure_future(self.drop(source))

    async def drop(self, source):
        try:
            while await source.read(PIECE):
                pass
        except ConnectionError:
            pass

    def close(self):
        for _, sink in self.streams.values():
            sink.close()

    def reset(self):
        for _, sink in self.streams.values():
            control.reset(sink)

    async def run(self):
        self.tasks = {name: asyncio.ensure_future(self.carry(name)) for name in self.streams}
        # half_close() puts another task in the place of one.
        while running := [task for task in self.tasks.values() if not task.done()]:
            await asyncio.wait(running)
        self.close()


def cut(_link, data, distance):
    return data[:distance], False


def corrupt(_link, data, distance):
    return data[:distance] + bytes([data[distance] ^ 0xFF]) + data[distance + 1 :], True


class Proxy:
    def __init__(self, port, broker_port):
        self.port = port
        self.broker_port = broker_port
        self.directions = {"to_broker": Direction(), "to_client": Direction()}
        self.links = set()
        self.silent = False
        self.silenced = []  # connections that are not served
        self.accepted = 0
        self.server = None

    async def listen(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def accept(self, reader, writer):
        self.accepted += 1
        if self.silent:
            self.silenced.append(writer)
            return
        try:
            broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
        except OSError:
            writer.close()
            return
        link = Link(self, (reader, writer), broker)
        self.links.add(link)
        try:
            await link.run()
        finally:
            self.links.discard(link)

    def chosen(self, which):
        names = ("to_broker", "to_client") if which == "both" else (which,)
        return [self.directions[name] for name in names]

    # The commands.

    async def pass_(self):
        for direction in self.directions.values():
            direction.be_good()
        self.silent = False
        for writer in self.silenced:
            writer.close()
        self.silenced.clear()
        if self.server is None:
            await self.listen()

    def delay(self, milliseconds, which="both"):
        for direction in self.chosen(which):
            direction.delay = int(milliseconds) / 1000

    def throttle(self, bytes_per_second, which="both"):
        for direction in self.chosen(which):
            direction.rate = int(bytes_per_second)

    def blackhole(self, which="both"):
        for direction in self.chosen(which):
            direction.open.clear()

    def reset(self):
        for link in list(self.links):
            link.reset()

    def half_close(self, which):
        for link in list(self.links):
            link.half_close(which)

    def cut(self, distance, which):
        self.directions[which].trap = (int(distance), cut)

    def corrupt(self, distance, which):
        self.directions[which].trap = (int(distance), corrupt)

    async def refuse(self):
        if self.server is not None:
            self.server.close()
            self.server = None

    def be_silent(self):
        self.silent = True

    def status(self):
        return json.dumps(
            {
                "connections": len(self.links),
                "silenced": len(self.silenced),
                "accepted": self.accepted,
                "delivered": {name: direction.delivered for name, direction in self.directions.items()},
                "held": {name: direction.held for name, direction in self.directions.items()},
                "trap": {name: direction.trap is not None for name, direction in self.directions.items()},
            }
        )


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="where to listen on 127.0.0.1; 0: a free port")
    parser.add_argument("--broker-port", type=int, required=True)
    options = parser.parse_args()
    proxy = Proxy(options.port, options.broker_port)
    await proxy.listen()
    await control.serve(
        proxy.port,
        {
            "pass": proxy.pass_,
            "delay": proxy.delay,
            "throttle": proxy.throttle,
            "blackhole": proxy.blackhole,
            "reset": proxy.reset,
            "half_close": proxy.half_close,
            "cut": proxy.cut,
            "corrupt": proxy.corrupt,
            "refuse": proxy.refuse,
            "silent": proxy.be_silent,
            "status": proxy.status,
        },
    )


asyncio.run(main())
