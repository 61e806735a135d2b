"""A client's sockets and frames, by hand. It uses bytes, struct and msgpack, and shares no mistake with our codec.

    with Hand(address) as hand:
        hand.collector().send_multipart([b"/a", ZERO, os.urandom(16), b"", b"1"])     # a KVSET of CHP/1
        session = hand.session(); session.send(["/a"], [b"1"])                          # one of CHP/2
        replica = hand.follow("/a/")                                                    # joined as SPEC.md says
        replica.until(lambda: replica.values == {...})

A `Replica` applies the messages of its channel, and checks what each client relies on. Each BATCH follows the one
before and has consistent numbers. The fingerprint of each HEARTBEAT is that of the copy. Waits are generous and end
with TimeoutError.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgpack
import zmq

GENEROUS_S = 30.0
ZERO = b"\0" * 8
RESERVED = b"\x02\x03"
ICANHAZ, KTHXBAI, HUGZ = b"ICANHAZ?", b"KTHXBAI", b"HUGZ"
GREETING, BATCH, HEARTBEAT, SYNC, RECORDS, END, ACK, REFUSED, REPLY = range(9)
ACTIVE, PASSIVE = 3, 4
Frames = list[bytes]
Socket = zmq.Socket[bytes]


def at(address: str, offset: int) -> str:
    """Return the address tcp://host:P with an offset added to the port."""
    base, _, port = address.rpartition(":")
    return f"{base}:{int(port) + offset}"


def topic(subtree: str) -> bytes:
    """Return the topic of a subtree's channel."""
    return b"\x02" + subtree.encode() + b"\x03"


def public(session: bytes) -> bytes:
    """Return the public id of a session: the id that other clients see."""
    return hashlib.sha256(b"chp session" + session[:12]).digest()[:12] + session[12:]


def own_topic(session: bytes) -> bytes:
    """Return the topic of a session's acknowledgements."""
    return b"\x02@" + public(session).hex().encode() + b"\x03"


def u64(number: int) -> bytes:
    """Return a number as a frame."""
    return struct.pack(">Q", number)


def number_in(frame: bytes) -> int:
    """Return the number in a frame."""
    return int(struct.unpack(">Q", frame)[0])


def parts_of(frames: Frames) -> list[Any]:
    """Return the header and items of a CHP/2 message, and check its five frames."""
    assert len(frames) == 5 and len(frames[1]) == 8 and frames[2] == frames[3] == b"", frames
    parts: list[Any] = msgpack.unpackb(frames[4])
    return parts


def receive(socket: Socket, timeout_s: float = GENEROUS_S) -> Frames:
    """Return the next message, or raise TimeoutError."""
    if not socket.poll(int(timeout_s * 1000)):
        raise TimeoutError(f"nothing came within {timeout_s} s")
    return socket.recv_multipart()


def arrived(socket: Socket) -> Iterator[Frames]:
    """Yield the messages that have arrived by now."""
    while socket.poll(0):
        yield socket.recv_multipart()


class Hand:
    """A client's sockets at one server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context: zmq.Context[Socket] = zmq.Context()
        self._collector: Socket | None = None
        self._request = 0
        # The proof that a question with a `from` has to send, as the last KTHXBAI told it.
        self.whose = [b"", b""]

    def socket(self, kind: int, offset: int, **options: int) -> Socket:
        """Return a socket of any kind, connected to P+offset. Options have their ZeroMQ names."""
        made = self._context.socket(kind)
        made.set(zmq.LINGER, 0)
        for name, value in options.items():
            made.set(getattr(zmq, name), value)
        made.connect(at(self.address, offset))
        return made

    def dealer(self, **options: int) -> Socket:
        """Return a DEALER at the snapshot port, without high-water marks unless they are given."""
        return self.socket(zmq.DEALER, 0, **{"RCVHWM": 0, "SNDHWM": 0, **options})

    def subscriber(self, *topics: bytes, **options: int) -> Socket:
        """Return a SUB at the update port."""
        made = self.socket(zmq.SUB, 1, **{"RCVHWM": 0, **options})
        for each in topics:
            made.set(zmq.SUBSCRIBE, each)
        return made

    def collector(self) -> Socket:
        """Return an XPUB at the collector, once its subscription has arrived, so that no set can be lost."""
        if self._collector is None:
            self._collector = self.socket(zmq.XPUB, 2, SNDHWM=0)
            assert receive(self._collector) == [b"\x01"]
        return self._collector

    # -- CHP/1

    def set(self, key: bytes, value: bytes, properties: bytes = b"", uuid: bytes | None = None) -> bytes:
        """Send a KVSET of CHP/1, and return its uuid."""
        uuid = os.urandom(16) if uuid is None else uuid
        self.collector().send_multipart([key, ZERO, uuid, properties, value])
        return uuid

    def listen(self, *prefixes: bytes, **options: int) -> Socket:
        """Return a CHP/1 subscriber that has received a HUGZ, so its subscription works."""
        made = self.subscriber(*prefixes, HUGZ, **options)
        while receive(made)[0] != HUGZ:
            pass
        return made

    def snapshot(self, subtree: bytes = b"") -> tuple[dict[bytes, bytes], Frames]:
        """Ask for a CHP/1 snapshot, and return its keys and its KTHXBAI."""
        dealer = self.dealer()
        dealer.send_multipart([ICANHAZ, subtree])
        found: dict[bytes, bytes] = {}
        while (frames := receive(dealer))[0] != KTHXBAI:
            assert frames[0] not in found, "each key comes once"
            found[frames[0]] = frames[4]
        dealer.close()
        return found, frames

    # -- CHP/2

    def session(self, session: bytes | None = None) -> Session:
        """Return a session that can set keys and that hears its own channel."""
        return Session(self, os.urandom(16) if session is None else session)

    def ask(self, dealer: Socket, subtree: str | bytes, **options: Any) -> int:
        """Send an ICANHAZ? of CHP/2, and return the id of the request."""
        self._request += 1
        frame = subtree if isinstance(subtree, bytes) else subtree.encode()
        proof = {"proof": self.whose} if self.whose[0] else {}
        said = {"chp": 3, "id": self._request, **proof, **options}
        dealer.send_multipart([ICANHAZ, frame, msgpack.packb(said)])
        return int(said["id"])

    def sync(self, subtree: str = "", **options: Any) -> list[list[Any]]:
        """Return all parts of a snapshot or resume, with the KTHXBAI last. Grant credit as chunks come."""
        dealer = self.dealer()
        request = self.ask(dealer, subtree, **{"from": 0, "session": b"\0" * 16, "credit": 8, **options})
        got: list[list[Any]] = []
        while not got or got[-1][0][0] not in (END, REFUSED):
            frames = receive(dealer)
            assert frames[0] == RESERVED
            got.append(parts_of(frames))
            assert got[-1][0][1] == request
            if got[-1][0][0] == END:
                self.whose = got[-1][0][9]
            if got[-1][0][0] in (SYNC, RECORDS):
                dealer.send_multipart([ICANHAZ, subtree.encode(), msgpack.packb({"chp": 3, "id": request, "more": 1})])
        dealer.close()
        return got

    def status(self) -> dict[str, Any]:
        """Return the status of the server."""
        dealer = self.dealer()
        self.ask(dealer, b"\x02status\x03")
        header = parts_of(receive(dealer))[0]
        assert header[0] == REPLY, header
        dealer.close()
        said: dict[str, Any] = header[2]
        return said

    def follow(self, subtree: str = "") -> Replica:
        """Return a replica that has joined a channel."""
        replica = Replica(self, subtree)
        replica.join()
        return replica

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """A CHP/2 client that sets keys, numbers its batches, and hears acknowledgements and refusals."""

    def __init__(self, hand: Hand, session: bytes) -> None:
        self.id = session
        self.no = 0
        # batch number -> (revision, durability)
        self.acks: dict[int, tuple[int, int]] = {}
        self.refusals: list[tuple[int, str, Any]] = []
        # The number of messages on the own channel, with the greeting.
        self.told = 0
        self._collector = hand.collector()
        self.public = public(session)
        self._own = hand.subscriber(own_topic(session))
        self.until(lambda: self.told)

    def send(self, keys: Sequence[str], values: Sequence[bytes], extras: Any = None, no: int | None = None) -> int:
        """Send a KVSET, and return its number."""
        return self.send_body(msgpack.packb([list(keys), list(values), extras]), no)

    def send_body(self, body: bytes, no: int | None = None) -> int:
        """Send a KVSET with any body, and return its number."""
        if no is None:
            self.no += 1
            no = self.no
        self._collector.send_multipart([RESERVED, u64(no), self.id, b"", body])
        return no

    def put(self, items: dict[str, bytes], **extras: Any) -> int:
        """Send a batch, wait for its acknowledgement, and return the revision."""
        no = self.send(list(items), list(items.values()), extras or None)
        return self.acked(no)[0]

    def acked(self, no: int) -> tuple[int, int]:
        """Wait for the acknowledgement of a batch: revision and durability."""
        self.until(lambda: no in self.acks)
        return self.acks[no]

    def refused(self, no: int) -> tuple[str, Any]:
        """Wait for the refusal of a batch: code and detail."""
        self.until(lambda: any(n == no for n, _, _ in self.refusals))
        return next((code, detail) for n, code, detail in self.refusals if n == no)

    def until(self, condition: Callable[[], object], timeout_s: float = GENEROUS_S) -> None:
        """Hear the own channel until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"not within {timeout_s} s: acks {self.acks}, refusals {self.refusals}")
            self._hear(receive(self._own, left))

    def hear(self) -> None:
        """Take the messages that have arrived."""
        for frames in arrived(self._own):
            self._hear(frames)

    def _hear(self, frames: Frames) -> None:
        (header,) = parts_of(frames)
        self.told += 1
        if header[0] == ACK:
            for first, last, revision in header[1]:
                for no in range(first, last + 1):
                    self.acks[no] = revision, header[2]
        elif header[0] == REFUSED:
            self.refusals.append((header[1], header[2], header[3]))
        else:
            assert header[0] == GREETING


class Replica:
    """A CHP/2 client's copy of one channel, written by the letter of the specification and without our code."""

    def __init__(self, hand: Hand, subtree: str) -> None:
        self.hand, self.subtree = hand, subtree
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}
        self.at = 0
        # True once a snapshot is loaded. A HEARTBEAT before the first snapshot says nothing about this copy.
        self.loaded = False
        self.greetings: list[list[Any]] = []
        # The headers of the BATCH and HEARTBEAT messages.
        self.batches: list[list[Any]] = []
        self.heartbeats: list[list[Any]] = []
        self.updates: list[tuple[str, bytes | None]] = []
        self.updates_socket = hand.subscriber(topic(subtree))

    def join(self) -> None:
        """Wait for the greeting, and load a snapshot."""
        self.until(lambda: self.greetings)
        *chunks, end = self.hand.sync(self.subtree)
        self.load(chunks, end)

    def load(self, chunks: list[list[Any]], end: list[Any]) -> None:
        """Take over a snapshot."""
        self.values, self.revisions = {}, {}
        for index, (header, *segments) in enumerate(chunks):
            assert header[0] == SYNC and header[2] == index
            for keys, values, extras in segments:
                assert sum(n for _, n in extras["r"]) == len(keys) == len(values)
                self.values.update(zip(keys, values, strict=True))
                revisions = [revision for revision, n in extras["r"] for _ in range(n)]
                self.revisions.update(zip(keys, revisions, strict=True))
        (header,) = end
        assert header[0] == END and not header[6]
        self.at, self.loaded = header[2], True
        assert (header[3], header[4]) == self.fingerprint()

    def fingerprint(self) -> tuple[int, int]:
        """Return the number of keys, and the sum of their revisions modulo 2^64."""
        return len(self.revisions), sum(self.revisions.values()) % 2**64

    def until(self, condition: Callable[[], object], timeout_s: float = GENEROUS_S) -> None:
        """Follow the channel until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.subtree!r} not within {timeout_s} s: at {self.at}, {len(self.values)} keys")
            self.take(receive(self.updates_socket, left))

    def until_compared(self) -> None:
        """Follow the channel until a heartbeat has found this copy equal to the server's present map."""
        status = self.hand.status()
        number, seen = status["epoch"] << 48 | status["sequence"], len(self.heartbeats)
        self.until(lambda: len(self.heartbeats) > seen and self.heartbeats[-1][2] >= number)

    def take(self, frames: Frames) -> None:
        """Take a message of the channel."""
        header, *items = parts_of(frames)
        assert frames[0] == topic(self.subtree)
        if header[0] == GREETING:
            self.greetings.append(header)
        elif header[0] == BATCH:
            assert number_in(frames[1]) == header[3], "a BATCH carries the number of its last update"
            self.apply(header, items)
        else:
            assert header[0] == HEARTBEAT
            self._compare(header)

    def _compare(self, header: list[Any]) -> None:
        _, _, number, channel_last, count, revision_sum, *_ = header
        self.heartbeats.append(header)
        if self.loaded and number >= self.at:
            assert channel_last <= self.at, "nothing is missing"
            assert (count, revision_sum) == self.fingerprint(), "the copy is the server's"

    def apply(self, header: list[Any], items: list[Any]) -> None:
        """Apply a BATCH from the channel or from RECORDS."""
        _, prev, first, last, _, origins, more, *_ = header
        assert prev < first <= last and not more
        if last <= self.at:
            return
        if self.batches:
            assert prev <= self.at, "a hole"
        self.batches.append(header)
        assert all(len(session) == 16 for session, _ in origins)
        for keys, values, extras in items:
            deletes = set((extras or {}).get("d", ()))
            for i, (key, value) in enumerate(zip(keys, values, strict=True)):
                assert key.startswith(self.subtree)
                self.updates.append((key, None if i in deletes else value))
                if i in deletes:
                    self.values.pop(key, None)
                    self.revisions.pop(key, None)
                else:
                    self.values[key] = value
                    self.revisions[key] = first
        self.at = last
