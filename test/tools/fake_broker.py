#!/usr/bin/python3
"""A broker that does what a test tells it. See OutboxDrainer::FakeBroker for the commands.

Left alone it behaves: it lets everybody in, opens channels, says that each exchange exists, and takes messages without
ever confirming one.
"""

import argparse
import asyncio
import json
import re

import pika.exceptions
import pika.frame
import pika.spec as spec

import control

GREETING = {
    "product": "Fake",
    "version": "1.0",
    "capabilities": {"publisher_confirms": True, "basic.nack": True, "connection.blocked": True},
}


def method(name, **fields):
    """A method by its name in the specification, "basic.ack", with its fields by theirs."""
    group, _, verb = name.partition(".")
    class_ = getattr(getattr(spec, group.capitalize()), "".join(part.capitalize() for part in verb.split("-")))
    return class_(**fields)


def name_of(method_):
    """The reverse: "Channel.OpenOk" is "channel.open-ok"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", method_.NAME).lower()


class Peer:
    """One connection."""

    def __init__(self, broker, writer):
        self.broker = broker
        self.writer = writer
        self.published = []
        self.said = []  # names of the methods that came
        self.data = b""
        self.greeted = False

    def send(self, channel, what):
        self.writer.write(pika.frame.Method(channel, what).marshal())

    def take(self, data):
        if self.broker.deaf:
            return
        self.data += data
        while self.data:
            if not self.greeted and len(self.data) >= 8:
                self.greeted = self.data.startswith(b"AMQP")
                self.data = self.data[8:]
                self.send(0, spec.Connection.Start(server_properties=GREETING, mechanisms="PLAIN", locales="en_US"))
                continue
            consumed, frame = pika.frame.decode_frame(self.data)
            if not consumed:
                return
            self.data = self.data[consumed:]
            if isinstance(frame, pika.frame.Method):
                self.answer(frame.channel_number, frame.method)

    def answer(self, channel, said):
        name = name_of(said)
        self.said.append(name)
        if name == "basic.publish":
            self.published.append(channel)
        for reply in self.broker.replies.get(name, [self.good_reply(said)]):
            if reply is not None:
                self.send(0 if name.startswith("connection.") else channel, reply)

    def good_reply(self, said):
        if isinstance(said, spec.Connection.StartOk):
            return self.broker.tune
        reply = {
            spec.Connection.Open: spec.Connection.OpenOk,
            spec.Connection.Close: spec.Connection.CloseOk,
            spec.Channel.Open: spec.Channel.OpenOk,
            spec.Channel.Close: spec.Channel.CloseOk,
            spec.Confirm.Select: spec.Confirm.SelectOk,
            spec.Exchange.Declare: spec.Exchange.DeclareOk,
        }.get(type(said))
        return reply and reply()


class Broker:
    def __init__(self):
        self.peers = []
        self.deaf = False  # reads and never answers
        self.replies = {}  # method name: what is answered instead of what is good
        self.tune = spec.Connection.Tune(channel_max=2047, frame_max=131072, heartbeat=60)

    async def accept(self, reader, writer):
        peer = Peer(self, writer)
        self.peers.append(peer)
        try:
            while data := await reader.read(65536):
                peer.take(data)
        except (ConnectionError, pika.exceptions.AMQPError):
            pass
        writer.close()

    @property
    def last(self):
        return self.peers[-1]

    # The commands.

    def status(self):
        said = self.last.said if self.peers else []
        published = self.last.published if self.peers else []
        return json.dumps({"connections": len(self.peers), "said": said, "published": len(published)})

    def send(self, channel, name, fields="{}"):
        self.last.send(int(channel), method(name, **json.loads(fields)))

    def send_bytes(self, hexadecimal):
        self.last.writer.write(bytes.fromhex(hexadecimal))

    def reply(self, to, *replies):
        """Each reply is a method's name and its fields in JSON; none: no answer."""
        self.replies[to] = [
            method(name, **json.loads(fields)) for name, fields in zip(replies[::2], replies[1::2])
        ]

    def set_tune(self, channel_max, frame_max, heartbeat):
        self.tune = spec.Connection.Tune(int(channel_max), int(frame_max), int(heartbeat))

    def be_deaf(self):
        self.deaf = True

    def close(self):
        self.last.writer.close()

    def reset(self):
        control.reset(self.last.writer)

    def behave(self):
        self.__init__()


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="where to listen on 127.0.0.1; 0: a free port")
    options = parser.parse_args()
    broker = Broker()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", options.port)
    await control.serve(
        server.sockets[0].getsockname()[1],
        {
            "status": broker.status,
            "send": broker.send,
            "send_bytes": broker.send_bytes,
            "reply": broker.reply,
            "tune": broker.set_tune,
            "deaf": broker.be_deaf,
            "close": broker.close,
            "reset": broker.reset,
            "behave": broker.behave,
        },
    )


asyncio.run(main())
