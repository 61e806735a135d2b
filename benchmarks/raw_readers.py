"""Raw readers: thousands of connections in one process that speak ZMTP by hand and hear the channel of everything.

A SUB socket of libzmq has threads and queues of its own, so thousands of them would cost more than the servers. Readers
of one server get the same bytes, so each chunk of bytes is parsed once. A reader counts messages and records, follows
the numbers of the records, and sums up their bodies.
"""

from __future__ import annotations

import select
import socket
import time
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from chp.batch import peek
from chp.headers import Batch, Commit, Epoch, Greeting
from chp.keys import channel_topic
from chp.numbers import unpack

from .roles import Pipe

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
MORE, LONG, COMMAND = 1, 2, 4
FRAMES = 5
TURN_S = 0.02
CHUNKS_MAX = 2000
# Readers get the same bodies in different chunks, so parsed bodies are cached.
known_peek = lru_cache(1000)(peek)


class RawReader:
    """A connection that speaks as a SUB socket does."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        # libzmq takes the rest of the handshake only after it has sent its own greeting.
        self.socket.sendall(GREETING)
        greeting = b""
        while len(greeting) < len(GREETING):
            greeting += self.socket.recv(len(GREETING) - len(greeting))
        self.socket.sendall(READY)
        self.rest = b""
        self.joined = False
        self.begin()

    def subscribe(self) -> None:
        """Subscribe to the channel of everything."""
        topic = b"\x01" + channel_topic("")
        self.socket.sendall(bytes([0, len(topic)]) + topic)

    def begin(self) -> None:
        """Count from here."""
        self.messages, self.greetings = 0, 0
        self.records, self.holes, self.last, self.sum = 0, 0, 0, 0


class Came(NamedTuple):
    """The contents of some messages of a channel: for each record its previous number, its last number and its body."""

    messages: int
    greetings: int
    records: list[tuple[int, int, bytes]]


class Parser:
    """A parser of chunks of bytes that remembers what it has parsed."""

    def __init__(self) -> None:
        self._known: dict[bytes, Came] = {}

    def take(self, reader: RawReader, chunk: bytes) -> None:
        """Let a reader take what its connection brought."""
        if reader.rest:
            self._slowly(reader, chunk)
            return
        known = self._known.get(chunk)
        if known is None:
            used, messages, _ = parsed(chunk)
            if used < len(chunk):
                self._slowly(reader, chunk)
                return
            if len(self._known) > CHUNKS_MAX:
                self._known.clear()
            known = self._known[chunk] = came(messages)
        _note(reader, known)

    def _slowly(self, reader: RawReader, chunk: bytes) -> None:
        got = reader.rest + chunk
        used, messages, pongs = parsed(got)
        reader.rest = got[used:]
        for pong in pongs:
            reader.socket.sendall(pong)
        _note(reader, came(messages))


def parsed(got: bytes) -> tuple[int, list[list[bytes]], list[bytes]]:
    """Return the length of the whole messages, the messages, and the answers to pings."""
    at, whole = 0, 0
    messages: list[list[bytes]] = []
    pongs: list[bytes] = []
    frames: list[bytes] = []
    while at + 2 <= len(got):
        flags = got[at]
        if flags & LONG and at + 9 > len(got):
            break
        size, body = (int.from_bytes(got[at + 1 : at + 9], "big"), at + 9) if flags & LONG else (got[at + 1], at + 2)
        if body + size > len(got):
            break
        frame, at = got[body : body + size], body + size
        if flags & COMMAND:
            if frame.startswith(b"\x04PING"):
                pong = b"\x04PONG" + frame[7:]
                pongs.append(bytes([COMMAND, len(pong)]) + pong)
        else:
            frames.append(frame)
            if not flags & MORE:
                messages.append(frames)
                frames = []
        if not frames:
            whole = at
    return whole, messages, pongs


def came(messages: list[list[bytes]]) -> Came:
    """Return the contents of messages of a channel."""
    records, greetings = [], 0
    for frames in messages:
        peeked = known_peek(frames[4]) if len(frames) == FRAMES else None
        header = None if peeked is None else peeked[0]
        if isinstance(header, Batch | Commit | Epoch):
            records.append((header.prev if isinstance(header, Batch) else 0, unpack(frames[1]), frames[4]))
        greetings += isinstance(header, Greeting)
    return Came(len(messages), greetings, records)


def _note(reader: RawReader, found: Came) -> None:
    reader.joined |= found.messages > 0
    reader.messages += found.messages
    reader.greetings += found.greetings
    for prev, last, body in found.records:
        reader.holes += bool(reader.last and prev and prev != reader.last)
        reader.records += 1
        reader.last, reader.sum = last, crc32(body, reader.sum)


def raw_readers(pipe: Pipe, ports: list[int], each: int) -> None:
    """Hear everything with `each` readers at each port of updates; tell what came since the last `begin`."""
    readers = {}
    poll, parser = select.epoll(), Parser()
    for port in ports:
        for _ in range(each):
            reader = RawReader(port)
            readers[reader.socket.fileno()] = reader
            poll.register(reader.socket.fileno(), select.EPOLLIN)
    # Subscribe all readers at once, as each subscription may bring a greeting to all readers of its server.
    for reader in readers.values():
        reader.subscribe()
    up = False
    while True:
        for fd, _ in poll.poll(TURN_S, 4096):
            chunk = readers[fd].socket.recv(1 << 18)
            if not chunk:
                raise RuntimeError("a server cut a reader off")
            parser.take(readers[fd], chunk)
        if not up and all(reader.joined for reader in readers.values()):
            up = True
            pipe.say(up=len(readers))
        # Sleep, so that data is read in large pieces, as by a program that has other work too.
        time.sleep(TURN_S)
        if pipe.waiting():
            asked = pipe.hear()
            if "begin" in asked:
                for reader in readers.values():
                    reader.begin()
            pipe.say(
                messages=sum(reader.messages for reader in readers.values()),
                greetings=sum(reader.greetings for reader in readers.values()),
                records=min(reader.records for reader in readers.values()),
                most=max(reader.records for reader in readers.values()),
                holes=sum(reader.holes for reader in readers.values()),
                contents=len({reader.sum for reader in readers.values()}),
                number=min(reader.last for reader in readers.values()),
            )
