#!/usr/bin/python3
"""A small AMQP client for tests and the demo: declares, consumes, purges.

A message is printed as one line: a JSON object, a tab, and the body in base64. The object has

  exchange, routing_key, redelivered
  received      when it came, in seconds since the Unix epoch
  properties    the properties that are set, by their AMQP names
  headers       the header table with plain values
  types         the same tree with the AMQP type of each value: t (boolean), l (64-bit integer), I (32-bit),
                d (double), S (string), V (void), T (timestamp) ...; a table is an object, an array a list
"""

import argparse
import base64
import json
import signal
import struct
import sys
import time

import pika
import pika.data

PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class Typed:
    """A decoded header value that remembers its AMQP type."""

    def __init__(self, kind, value):
        self.kind = kind
        self.value = value


def remember_types():
    """Makes pika keep the type letter of each header value, which it throws away otherwise."""
    decode = pika.data.decode_value

    def decode_typed(encoded, offset):
        kind = bytes(encoded[offset : offset + 1]).decode("latin-1")
        value, end = decode(encoded, offset)
        # pika rounds floating point numbers.
        if kind == "f":
            (value,) = struct.unpack_from(">f", encoded, offset + 1)
        elif kind == "d":
            (value,) = struct.unpack_from(">d", encoded, offset + 1)
        return Typed(kind, value), end

    pika.data.decode_value = decode_typed


def plain(value):
    """The value without its types, fit for JSON."""
    if isinstance(value, Typed):
        return plain(value.value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def types(value):
    """The tree of type letters of a value."""
    if isinstance(value, dict):
        return {name: types(item) for name, item in value.items()}
    if isinstance(value.value, dict):
        return types(value.value)
    if isinstance(value.value, list):
        return [types(item) for item in value.value]
    return value.kind


def describe(method, properties):
    headers = properties.headers or {}
    return {
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "redelivered": method.redelivered,
        "received": time.time(),
        "properties": {
            name: getattr(properties, name) for name in PROPERTIES if getattr(properties, name) is not None
        },
        "headers": plain(headers),
        "types": types(headers),
    }


def declare(channel, options):
    if options.exchange:
        channel.exchange_declare(
            options.exchange, exchange_type=options.type, durable=True, internal=options.internal
        )
    if options.queue:
        arguments = json.loads(options.arguments)
        if options.quorum:
            arguments["x-queue-type"] = "quorum"
        channel.queue_declare(options.queue, durable=True, arguments=arguments)
    if options.exchange and options.queue:
        channel.queue_bind(options.queue, options.exchange, routing_key=options.binding)


def delete(channel, options):
    if options.queue:
        channel.queue_delete(options.queue)
    if options.exchange:
        channel.exchange_delete(options.exchange)


def purge(channel, options):
    channel.queue_purge(options.queue)


def consume(channel, options):
    """Prints messages until `count` have come and then none for `idle` seconds, or until the timeout."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    deadline = time.monotonic() + options.timeout
    last = time.monotonic()
    received = 0
    unacknowledged = None
    channel.basic_qos(prefetch_count=1000)
    if options.follow:
        print("consuming", file=sys.stderr, flush=True)
    for method, properties, body in channel.consume(options.queue, inactivity_timeout=0.1):
        now = time.monotonic()
        if method is not None:
            line = json.dumps(describe(method, properties)) + "\t" + base64.b64encode(body).decode()
            print(line, flush=options.follow)
            received += 1
            last = now
            unacknowledged = method.delivery_tag
        if unacknowledged is not None and (method is None or received % 100 == 0):
            channel.basic_ack(unacknowledged, multiple=True)
            unacknowledged = None
        idle = now - last > options.idle
        done = stopped if options.follow else received >= options.count
        if now > deadline or idle and done:
            break
    if unacknowledged is not None:
        channel.basic_ack(unacknowledged, multiple=True)
    channel.cancel()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--vhost", default="/")
    parser.add_argument("--user", default="guest")
    parser.add_argument("--password", default="guest")
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("declare", help="declare an exchange, a queue and a binding, all durable")
    command.add_argument("--exchange")
    command.add_argument("--type", default="topic")
    command.add_argument("--internal", action="store_true", help="an exchange that takes from exchanges only")
    command.add_argument("--queue")
    command.add_argument("--binding", default="#")
    command.add_argument("--quorum", action="store_true")
    command.add_argument("--arguments", default="{}", help="the queue's arguments, in JSON")
    command.set_defaults(run=declare)

    command = commands.add_parser("delete", help="delete a queue and an exchange")
    command.add_argument("--exchange")
    command.add_argument("--queue")
    command.set_defaults(run=delete)

    command = commands.add_parser("purge", help="empty a queue")
    command.add_argument("--queue", required=True)
    command.set_defaults(run=purge)

    command = commands.add_parser("consume", help="take messages and print them")
    command.add_argument("--queue", required=True)
    command.add_argument("--count", type=int, default=0, help="expect at least so many messages")
    command.add_argument("--idle", type=float, default=1, help="end when none came for so many seconds")
    command.add_argument("--timeout", type=float, default=180, help="end after so many seconds in any case")
    command.add_argument("--follow", action="store_true", help="go on until SIGTERM and then until idle")
    command.set_defaults(run=consume)
    return parser.parse_args()


def main():
    options = parse_arguments()
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            options.port,
            options.vhost,
            pika.PlainCredentials(options.user, options.password),
            heartbeat=0,
        )
    )
    remember_types()
    options.run(connection.channel(), options)
    connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
