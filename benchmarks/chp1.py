"""The plain CHP/1 path, frames by hand, beside a bare pyzmq relay: writer -> server -> one subscriber.

The writer sends KVSETs of RFC 12. The subscriber keeps a dict, and tells the writer how many messages have arrived. So
at most `WINDOW` messages are on their way, and nothing is lost. These programs take the server's place in turn:

    chp      chp-server, which parses, numbers, keeps a map and a log, and publishes
    helpers  a relay with recv_multipart and send_multipart, which does nothing else
    frames   a relay that moves frame by frame, up to 1,000 messages a poll
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import zmq

from .roles import Meter, Pipe, Process, Role, closing_all
from .rounds import Round, in_turn, ratio, summary
from .servers import ChpServer, free_port

WINDOW = 1500
TELL_EVERY = 250
KEYS = 10_000
NOBLOCK, SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
PROBE = b"/probe"
ZEROS = b"\0" * 8


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    messages, rounds = (30_000, 2) if quick else (120_000, 5)
    cases = {}
    for size in (10, 100):
        with closing_all() as keep:
            contenders = {name: keep(Lane(name)) for name in ("chp", "helpers", "frames")}
            results = in_turn(
                {name: partial(lane.round, messages, size) for name, lane in contenders.items()},
                rounds,
            )
        cases[f"{size} bytes"] = {
            "contenders": {name: summary(rounds) for name, rounds in results.items()},
            "ratio_to_helpers": ratio(results, "rate", "chp", "helpers"),
            "ratio_to_frames": ratio(results, "rate", "chp", "frames"),
            "raw": results,
        }
    return {"title": "CHP/1: KVSETs seen by one subscriber", "unit": "messages/s", "cases": cases}


class Lane:
    """A writer, a server or relay in the middle, and a subscriber, which run over all rounds."""

    def __init__(self, middle: str) -> None:
        self.middle: Process
        if middle == "chp":
            server = self.middle = ChpServer()
            base = server.port
        else:
            base = free_port()
            relay = self.middle = Role(relay_helpers if middle == "helpers" else relay_frames, port=base)
            relay.hear()
        told = free_port(1)
        self.writer = Role(writer, port=base, told=told)
        self.writer.hear()
        self.reader = Role(reader, port=base, told=told)
        self.reader.hear()
        self.writer.ask(probe=True)

    def round(self, messages: int, size: int) -> Round:
        """Return one measurement."""
        meter = Meter(writer=self.writer, server=self.middle, reader=self.reader)
        self.reader.say(messages=messages, size=size)
        self.writer.say(messages=messages, size=size)
        wrote, read = self.writer.hear(), self.reader.hear()
        if not read["right"]:
            raise RuntimeError(f"the subscriber's copy is not what was written: {read}")
        seconds = read["end"] - wrote["begin"]
        return {"rate": messages / seconds, "seconds": seconds, **meter.read(messages)}

    def close(self) -> None:
        """End all three."""
        for process in (self.reader, self.writer, self.middle):
            process.close()


def key_of(i: int) -> bytes:
    """Return the i-th key."""
    return b"/bench/%06d" % (i % KEYS)


def value_of(i: int, size: int) -> bytes:
    """Return the i-th value: its number, padded to `size` bytes."""
    return (b"%d" % i).ljust(size, b".")


def writer(pipe: Pipe, port: int, told: int) -> None:
    """Send KVSETs, never more than WINDOW ahead of the subscriber."""
    context = zmq.Context()
    out, back = context.socket(zmq.XPUB), context.socket(zmq.PULL)
    out.sndhwm = 0
    back.bind(f"tcp://127.0.0.1:{told}")
    out.connect(f"tcp://127.0.0.1:{port + 2}")
    # Wait for the subscription of the collector: then the link is up.
    out.recv()
    pipe.say(up=True)
    pipe.hear()
    while not back.poll(50):
        out.send_multipart([PROBE, ZEROS, b"", b"", b"x"])
    while back.recv() != b"quiet":
        pass
    pipe.say(ready=True)
    while True:
        todo = pipe.hear()
        _write(out, back, todo["messages"], todo["size"], pipe)


def _write(out: Any, back: Any, messages: int, size: int, pipe: Pipe) -> None:
    # Send without pyzmq's wrapper, as the servers do. The type stubs of pyzmq lack this class.
    send = zmq.backend.Socket.send.__get__(out)
    keys = [key_of(i) for i in range(KEYS)]
    values = [value_of(i, size) for i in range(messages)]
    uuid = os.urandom(8)
    uuids = [uuid + i.to_bytes(8, "big") for i in range(messages)]
    seen = 0
    begin = time.monotonic()
    for i in range(messages):
        while i - seen >= WINDOW:
            seen = int(back.recv())
        send(keys[i % KEYS], SNDMORE)
        send(ZEROS, SNDMORE)
        send(uuids[i], SNDMORE)
        send(b"", SNDMORE)
        send(values[i], 0)
    while seen < messages:
        seen = int(back.recv())
    pipe.say(begin=begin)


def reader(pipe: Pipe, port: int, told: int) -> None:
    """Keep what is published, count it, and compare in the end."""
    context = zmq.Context()
    sub, tell = context.socket(zmq.SUB), context.socket(zmq.PUSH)
    sub.rcvhwm = 0
    sub.subscribe(b"/")
    tell.connect(f"tcp://127.0.0.1:{told}")
    sub.connect(f"tcp://127.0.0.1:{port + 1}")
    pipe.say(up=True)
    sub.recv_multipart()
    tell.send(b"probe")
    while sub.poll(300):
        # Drop the rest of the probes.
        sub.recv_multipart()
    tell.send(b"quiet")
    held: dict[bytes, bytes] = {}
    while True:
        todo = pipe.hear()
        messages, size = todo["messages"], todo["size"]
        end = _read(sub, tell, messages, held)
        first = max(0, messages - KEYS)
        right = all(held[key_of(i)] == value_of(i, size) for i in range(first, messages))
        pipe.say(end=end, right=right)


def _read(sub: Any, tell: Any, messages: int, held: dict[bytes, bytes]) -> float:
    recv = sub.recv
    last = 0
    for n in range(1, messages + 1):
        key = recv()
        sequence = recv()
        recv()
        recv()
        held[key] = recv()
        number = int.from_bytes(sequence, "big")
        if number and number <= last:
            raise RuntimeError(f"the sequence went from {last} to {number}")
        last = number
        if n % TELL_EVERY == 0 or n == messages:
            tell.send(b"%d" % n)
    return time.monotonic()


def _relay_sockets(port: int) -> tuple[Any, Any]:
    context = zmq.Context()
    collector, updates = context.socket(zmq.SUB), context.socket(zmq.PUB)
    for socket in (collector, updates):
        socket.sndhwm = socket.rcvhwm = 0
    collector.subscribe(b"")
    updates.bind(f"tcp://127.0.0.1:{port + 1}")
    collector.bind(f"tcp://127.0.0.1:{port + 2}")
    return collector, updates


def relay_helpers(pipe: Pipe, port: int) -> None:
    """Relay sets as a first, simple program does: one message at a time."""
    collector, updates = _relay_sockets(port)
    pipe.say(up=True)
    while True:
        updates.send_multipart(collector.recv_multipart())


def relay_frames(pipe: Pipe, port: int) -> None:
    """Relay sets as a faster program does: frame by frame, without waiting between messages."""
    collector, updates = _relay_sockets(port)
    recv, send, more = collector.recv, updates.send, collector.getsockopt
    pipe.say(up=True)
    while True:
        collector.poll()
        try:
            for _ in range(1000):
                frame = recv(NOBLOCK)
                while more(zmq.RCVMORE):
                    send(frame, SNDMORE)
                    frame = recv(NOBLOCK)
                send(frame)
        except zmq.Again:
            pass
