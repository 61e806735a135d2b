"""Stand-ins for the Guide's last clone programs, in the dialects of C and Python, written from their wire format.

They are written by hand from bytes and share no mistake with our codec. They keep the quirks of the Guide's programs
that show on the wire or in the map. HUGZ is numbered and stored like an update, the map is not cleared before a new
snapshot, and a local set shows at once. They do not copy defects that only stop the programs themselves.

    ClassicClient   A SUB and a DEALER for each server and one publisher to all; the test pumps it:
                    `client.until(condition)`.
    ClassicServer   A ROUTER, PUB and SUB in a thread, with snapshots, updates, ttl, and HUGZ each second. It answers
                    and applies sets only while `active` is true.
"""

import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import zmq

from chp_server.testing import free_port

DIALECTS = ("c", "python")
HUGZ, KTHXBAI, ICANHAZ = b"HUGZ", b"KTHXBAI", b"ICANHAZ?"
ZEROS = b"\0" * 8
GENEROUS_S = 30.0


def at(endpoint: str, offset: int) -> str:
    """Return the address tcp://host:P with an offset added to the port."""
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + offset}"


def ttl_in(properties: bytes, dialect: str) -> float:
    """Return the ttl as a classic program reads it, or 0 if there is none. C reads an integer, Python a float."""
    for line in properties.split(b"\n"):
        name, _, text = line.partition(b"=")
        if name == b"ttl":
            return float(int(text.split(b".")[0] or b"0")) if dialect == "c" else float(text)
    return 0.0


def ttl_out(ttl: float, dialect: str) -> bytes:
    """Return the properties of a KVSET. C always sends a whole number, and Python sends no ttl of 0."""
    if dialect == "c":
        return b"ttl=%d\n" % int(ttl)
    return f"ttl={ttl}\n".encode() if ttl else b""


class ClassicClient:
    """The Guide's client. It follows one server, and changes to the next one when that is silent."""

    def __init__(
        self, servers: Sequence[str], dialect: str = "c", subtree: bytes = b"", *, silent_s: float = 5.0,
        snapshot_mark: int = 1000, context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:  # fmt: skip
        assert dialect in DIALECTS
        self.dialect, self.subtree, self._silent_s = dialect, subtree, silent_s
        self.map: dict[bytes, bytes] = {}
        self.sequence = 0
        self.synced = False
        # Every message that was applied or stored, in order.
        self.log: list[list[bytes]] = []
        # The number of updates whose sequence was not strictly greater.
        self.discarded = 0
        self.hugz: list[list[bytes]] = []
        # The number of collectors whose subscription has arrived.
        self.links_up = 0
        self._context = context or zmq.Context.instance()
        self._snapshots = [self._socket(zmq.DEALER, at(s, 0), snapshot_mark) for s in servers]
        self._subscribers = [self._socket(zmq.SUB, at(s, 1), 0) for s in servers]
        for subscriber in self._subscribers:
            subscriber.setsockopt(zmq.SUBSCRIBE, subtree)
            subscriber.setsockopt(zmq.SUBSCRIBE, HUGZ)
        # An XPUB, unlike a PUB, tells when it may be used.
        self._publisher = self._socket(zmq.XPUB, at(servers[0], 2), 0)
        for server in servers[1:]:
            self._publisher.connect(at(server, 2))
        self.current = 0
        self._asked_at = self._heard_at = -math.inf

    def _socket(self, kind: int, endpoint: str, mark: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.set_hwm(mark)
        made.linger = 0
        if kind == zmq.XPUB:
            made.setsockopt(zmq.XPUB_VERBOSE, 1)
        made.connect(endpoint)
        return made

    # -- calls of an application

    def set(self, key: bytes, value: bytes, ttl: float = 0, uuid: bytes | None = None) -> bytes:
        """Send a KVSET to all servers, store it in the own map, and return its uuid."""
        uuid = os.urandom(16) if uuid is None else uuid
        self._publisher.send_multipart([key, ZEROS, uuid, ttl_out(ttl, self.dialect), value])
        self._store(key, value)
        return uuid

    def delete(self, key: bytes) -> bytes:
        """Send a KVSET with an empty value, and return its uuid."""
        return self.set(key, b"")

    def send_raw(self, frames: Sequence[bytes]) -> None:
        """Send the given frames, unchecked, to the collector sockets (P+2) of the servers."""
        self._publisher.send_multipart(list(frames))

    def _store(self, key: bytes, value: bytes) -> None:
        if value:
            self.map[key] = value
        else:
            self.map.pop(key, None)

    # -- the loop of the client

    def until(self, condition: Callable[[], object], timeout_s: float = GENEROUS_S) -> None:
        """Go on until the condition holds, or raise TimeoutError with the state of the client."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"not within {timeout_s} s: {self.describe()}")
            self.turn(min(0.1, left))

    def until_ready(self, timeout_s: float = GENEROUS_S) -> None:
        """Go on until no message can be lost: updates are heard, and each collector is linked.

        A snapshot may arrive before the subscription works, because the SUB handshake may be slower. A classic client
        never sees the updates between, so a test waits for the first HUGZ.
        """
        self.until(lambda: self.synced and self.hugz and self.links_up >= len(self._snapshots), timeout_s)

    def turn(self, wait_s: float) -> None:
        """Ask, change the server, or take the messages that have arrived."""
        now = time.monotonic()
        if self._asked_at == -math.inf:
            self._ask(now)
        elif now - max(self._heard_at, self._asked_at) > self._silent_s:
            self.current = (self.current + 1) % len(self._snapshots)
            self.synced = False
            self._ask(now)
        poller = zmq.Poller()
        source = self._subscribers if self.synced else self._snapshots
        for made in (source[self.current], self._publisher):
            poller.register(made, zmq.POLLIN)
        ready = dict(poller.poll(int(wait_s * 1000)))
        if self._publisher in ready:
            for word in _drain(self._publisher):
                self.links_up += 1 if word[0][:1] == b"\1" else -1
        if source[self.current] in ready:
            self._heard_at = time.monotonic()
            take = self._take_update if self.synced else self._take_snapshot
            for frames in _drain(source[self.current], 1000):
                take(frames)
                if take == self._take_snapshot and self.synced:
                    break

    def _ask(self, now: float) -> None:
        self._snapshots[self.current].send_multipart([ICANHAZ, self.subtree])
        self._asked_at = now

    def _take_snapshot(self, frames: list[bytes]) -> None:
        key, sequence, value = self._checked(frames)
        if key == KTHXBAI:
            self.sequence = sequence
            self.synced = True
        else:
            self.log.append(frames)
            self._store(key, value)

    def _take_update(self, frames: list[bytes]) -> None:
        key, sequence, value = self._checked(frames)
        if key == HUGZ:
            self.hugz.append(frames)
        if sequence <= self.sequence:
            self.discarded += key != HUGZ
            return
        self.sequence = sequence
        if key != HUGZ:
            self.log.append(frames)
        # A HUGZ with a body would become a key.
        self._store(key, value)

    def _checked(self, frames: list[bytes]) -> tuple[bytes, int, bytes]:
        assert len(frames) == 5, f"a classic client takes five frames, not {frames!r:.200}"
        assert len(frames[1]) == 8, f"a classic client takes a sequence of 8 bytes, not {frames!r:.200}"
        assert len(frames[2]) in (0, 16), f"a classic client takes a uuid of 16 bytes or none, not {frames!r:.200}"
        return frames[0], int(struct.unpack(">Q", frames[1])[0]), frames[4]

    def describe(self) -> str:
        """Return the state of the client, for a failing test."""
        return (
            f"classic {self.dialect} client of {self.subtree!r}: server {self.current}, synced {self.synced}, "
            f"sequence {self.sequence}, {len(self.map)} keys, {self.links_up} links, {len(self.hugz)} HUGZ"
        )

    def close(self) -> None:
        """Close the sockets."""
        for made in (*self._snapshots, *self._subscribers, self._publisher):
            made.close()

    def __enter__(self) -> "ClassicClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _drain(made: "zmq.Socket[bytes]", most: int = 1000) -> Iterator[list[bytes]]:
    for _ in range(most):
        try:
            yield made.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


@dataclass
class Item:
    """A key of a classic server, with its last message."""

    sequence: int
    uuid: bytes
    properties: bytes
    value: bytes
    # 0 means that the key never expires.
    until_s: float


class ClassicServer:
    """A CHP/1 server of the Guide's kind, in a thread, between `start` and `stop` or in a `with` block.

    `active` may change at any time. While it is false, the server ignores requests and sets. `hugging` false stops
    HUGZ.
    """

    def __init__(self, port: int | None = None, dialect: str = "c", *, hugz_s: float = 1.0) -> None:
        assert dialect in DIALECTS
        self.port = free_port() if port is None else port
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.dialect, self._hugz_s = dialect, hugz_s
        self.active, self.hugging = True, True
        self.sequence = 0
        self.items: dict[bytes, Item] = {}
        # The requests at the snapshot port, without identities.
        self.requests: list[list[bytes]] = []
        # The messages at the collector.
        self.sets: list[list[bytes]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = f"inproc://classic-{id(self)}"
        self._thread: threading.Thread | None = None

    # -- from the test's thread

    def start(self) -> "ClassicServer":
        """Bind the ports and begin to serve, with the map and sequence of the last run."""
        self._ours = self._socket(zmq.PAIR)
        self._ours.bind(self._control)
        theirs = self._socket(zmq.PAIR)
        theirs.connect(self._control)
        self._sockets = [self._socket(kind) for kind in (zmq.ROUTER, zmq.PUB, zmq.SUB)]
        for offset, made in enumerate(self._sockets):
            made.bind(at(self.endpoint, offset))
        self._sockets[2].setsockopt(zmq.SUBSCRIBE, b"")
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True, name="classic-server")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and free the ports. A second call does nothing."""
        if self._thread is not None:
            self._ours.send_multipart([b"STOP"])
            self._thread.join()
            self._ours.close()
            self._thread = None

    def publish_raw(self, frames: Sequence[bytes]) -> None:
        """Send any frames on the update port."""
        self._ours.send_multipart([b"RAW", *frames])

    def put(self, key: bytes, value: bytes, ttl: float = 0) -> None:
        """Set a key as if a client had done it."""
        self._ours.send_multipart([b"SET", key, ZEROS, os.urandom(16), ttl_out(ttl, self.dialect), value])

    def __enter__(self) -> "ClassicServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._context.destroy(linger=0)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.set_hwm(0)
        made.linger = 0
        return made

    # -- in its own thread

    def _serve(self, control: "zmq.Socket[bytes]") -> None:
        router, publisher, collector = self._sockets
        poller = zmq.Poller()
        for made in (control, router, collector):
            poller.register(made, zmq.POLLIN)
        next_hugz = time.monotonic() + self._hugz_s
        going = True
        while going:
            wait_s = max(0.0, min(next_hugz - time.monotonic(), 0.1))
            ready = dict(poller.poll(math.ceil(wait_s * 1000)))
            if router in ready:
                for identity, *frames in _drain(router):
                    self._on_request(identity, frames)
            if collector in ready:
                for frames in _drain(collector):
                    self._on_set(frames)
            if control in ready:
                for word, *frames in _drain(control):
                    going = going and word != b"STOP"
                    self._on_control(word, frames)
            if time.monotonic() >= next_hugz:
                next_hugz += self._hugz_s
                self._on_second(publisher)
        for made in (control, *self._sockets):
            made.close()

    def _on_control(self, word: bytes, frames: list[bytes]) -> None:
        if word == b"RAW":
            self._sockets[1].send_multipart(frames)
        elif word == b"SET":
            self._apply(frames)

    def _on_request(self, identity: bytes, frames: list[bytes]) -> None:
        self.requests.append(frames)
        if not self.active or len(frames) != 2 or frames[0] != ICANHAZ:
            return
        router, subtree = self._sockets[0], frames[1]
        for key, item in list(self.items.items()):
            if key.startswith(subtree):
                sequence = struct.pack(">Q", item.sequence)
                router.send_multipart([identity, key, sequence, item.uuid, item.properties, item.value])
        uuid, body = (b"", b"") if self.dialect == "c" else (os.urandom(16), subtree)
        router.send_multipart([identity, KTHXBAI, struct.pack(">Q", self.sequence), uuid, b"", body])

    def _on_set(self, frames: list[bytes]) -> None:
        self.sets.append(frames)
        if self.active and len(frames) == 5 and len(frames[1]) == 8:
            self._apply(frames)

    def _apply(self, frames: list[bytes]) -> None:
        key, _, uuid, properties, value = frames
        self.sequence += 1
        self._sockets[1].send_multipart([key, struct.pack(">Q", self.sequence), uuid, properties, value])
        ttl = ttl_in(properties, self.dialect)
        until_s = time.time() + ttl if ttl else 0.0
        if ttl:
            moment = str(round(until_s * 1000)) if self.dialect == "c" else str(until_s)
            properties = f"ttl={moment}\n".encode()
        if value:
            self.items[key] = Item(self.sequence, uuid, properties, value, until_s)
        else:
            self.items.pop(key, None)

    def _on_second(self, publisher: "zmq.Socket[bytes]") -> None:
        for key, item in list(self.items.items()):
            if self.active and item.until_s and item.until_s <= time.time():
                del self.items[key]
                self.sequence += 1
                sequence = struct.pack(">Q", self.sequence)
                publisher.send_multipart([key, sequence, item.uuid, item.properties, b""])
        if self.hugging:
            uuid = b"" if self.dialect == "c" else os.urandom(16)
            publisher.send_multipart([HUGZ, struct.pack(">Q", self.sequence), uuid, b"", b""])
