"""covers: sockets.py and subscribers.py: a flood, or a reader that reads nothing, takes a bounded amount of memory."""

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgpack
import pytest
import zmq

from chp_client import Clone
from chp_server.testing import free_port
from tests.talk import LARGER, WAIT_S, until

from .cluster import ServerProcess
from .puppets import rss_mb

pytestmark = pytest.mark.slow
MIB = 1 << 20
STX, ETX = b"\x02", b"\x03"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Start a lone server without a journal, and with a port for a peer."""
    address, peer = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    flags = ("--store", "memory:", "--solo-wait-s", "0.5", "--retain-memory-bytes", "1MiB", "--bootstrap")
    started = ServerProcess(tmp_path, "primary", address, peer, *flags).start()
    try:
        with Clone(address) as clone:
            clone.set("/first", b"1").wait(WAIT_S)
        yield started
    finally:
        started.kill()


class Growth:
    """The largest growth of a server's resident memory, in MiB."""

    def __init__(self, server: ServerProcess) -> None:
        assert server.process is not None
        self._pid, self.most = server.process.pid, 0.0
        self._base, self._end = rss_mb(self._pid), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            with suppress(OSError):
                self.most = max(self.most, rss_mb(self._pid) - self._base)

    def __enter__(self) -> "Growth":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def port(server: ServerProcess, offset: int) -> str:
    """Return the address of P+offset."""
    host, _, number = server.address.rpartition(":")
    return f"{host}:{int(number) + offset}"


def serves(server: ServerProcess) -> None:
    """Check that a server is there and acknowledges a set."""
    with Clone(server.address) as clone:
        clone.set("/still", b"1").wait(WAIT_S)


def flood(server: ServerProcess, offset: int, kind: int, messages: Iterator[list[bytes]], seconds: float = 4.0) -> None:
    """Send as much as a port takes."""
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 4)
        socket.set(zmq.SNDTIMEO, 200)
        socket.connect(port(server, offset))
        if kind == zmq.XPUB:
            # Messages before the subscription would be dropped.
            socket.recv()
            socket.set(zmq.XPUB_NODROP, 1)
        until = time.monotonic() + seconds
        for frames in messages:
            with suppress(zmq.Again):
                socket.send_multipart(frames, copy=False)
            if time.monotonic() > until:
                return


def large_sets() -> Iterator[list[bytes]]:
    """Yield sets of 4 MiB to one key."""
    value = os.urandom(4 * MIB)
    while True:
        yield [b"/large", bytes(8), b"", b"", value]


def garbage() -> Iterator[list[bytes]]:
    """Yield RECORD and END messages, each with a list of 16 million empty lists."""
    lists = b"\x93\xdd\x00\xff\xff\xff" + b"\x90" * 16 * MIB
    while True:
        yield [b"RECORD", lists]
        yield [b"END", lists]


def test_a_flood_of_large_sets(server: ServerProcess) -> None:
    with Growth(server) as growth:
        flood(server, 2, zmq.XPUB, large_sets())
        serves(server)
    assert growth.most < 400, "1,600 before, and as long as somebody sends"


def test_a_flood_on_the_peers_port(server: ServerProcess) -> None:
    with Growth(server) as growth:
        flood(server, 3, zmq.DEALER, garbage())
        serves(server)
    assert growth.most < 160 * LARGER, "1,900 before"


@pytest.mark.parametrize("topic", [STX + ETX, b"/"], ids=["chp2", "chp1"])
def test_a_reader_that_stops_reading_is_cut_off_and_comes_back(server: ServerProcess, topic: bytes) -> None:
    with ExitStack() as ending:
        context = ending.enter_context(zmq.Context())
        reader = ending.enter_context(context.socket(zmq.SUB))
        reader.set(zmq.RCVHWM, 1)
        reader.set(zmq.LINGER, 0)
        reader.subscribe(topic)
        reader.connect(port(server, 1))
        clone = ending.enter_context(Clone(server.address, subtree="/read/"))
        clone.set("/read/1", b"1").wait(WAIT_S)
        reader.recv_multipart()
        growth = ending.enter_context(Growth(server))
        size, times = (100, 150) if topic == b"/" else (1000, 150)
        for _ in range(times):
            clone.set_many({f"/read/{n}": os.urandom(size) for n in range(1000)}).wait(WAIT_S)
        clone.flush(WAIT_S)
        until(lambda: (server.status() or {"counts": {}})["counts"].get("subscribers_cut"), "a cut")
        clone.set("/read/last", b"1").wait(WAIT_S)
        assert len(clone) == 1001
        reader.set(zmq.RCVTIMEO, 200)

        def comes() -> bool:
            clone.set("/read/last", b"1").wait(WAIT_S)
            with suppress(zmq.Again):
                while b"/read/last" not in b"".join(reader.recv_multipart()):
                    pass
                return True
            return False

        until(comes, "what is new")
    assert growth.most < (220 if topic == b"/" else 150), "1,000 and 527 before"


def raw_connection(address: str, kind: bytes) -> socket.socket:
    """Return a connection that speaks ZMTP by hand, after its handshake, since libzmq sends only whole messages."""
    host, _, number = address.removeprefix("tcp://").rpartition(":")
    raw = socket.create_connection((host, int(number)), timeout=WAIT_S)
    raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    greeting = b""
    while len(greeting) < 64:
        greeting += raw.recv(64 - len(greeting))
    ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    raw.sendall(b"\x04" + bytes([len(ready)]) + ready)
    raw.recv(1000)
    return raw


@pytest.mark.parametrize(
    ("offset", "kind", "size", "most"),
    [(0, b"DEALER", 60_000, 160), (1, b"SUB", 1_000, 160), (2, b"PUB", MIB, 200), (3, b"DEALER", MIB, 200)],
    ids=["P", "P+1", "P+2", "P+3"],
)
def test_a_message_that_never_ends(server: ServerProcess, offset: int, kind: bytes, size: int, most: int) -> None:
    """libzmq keeps the frames of a message until the last one has come, without a bound."""
    # The flag says that more frames will come.
    frame = b"\x03" + size.to_bytes(8, "big") + bytes(size)
    with Growth(server) as growth, raw_connection(port(server, offset), kind) as raw, suppress(ConnectionError):
        for _ in range(400 * MIB // size):
            raw.sendall(frame)
            # Send at 200 MiB/s: the pace of a fast network, not of a loopback.
            time.sleep(size / (200 * MIB))
    until(lambda: (server.status() or {"counts": {}})["counts"].get("messages_without_an_end"), "the cut")
    serves(server)
    assert growth.most < most, "whatever was sent: 400 here"


@pytest.mark.parametrize("endless", [True, False], ids=["frames", "frame"])
def test_a_hostile_peer_whose_message_never_ends_takes_little_memory(server: ServerProcess, endless: bool) -> None:
    """On P+3 a frame may have 256 MiB, but a server cuts a stranger off once it sees 1 MiB. Here 40 MiB/s are sent."""
    first = b"\x03" + MIB.to_bytes(8, "big") if endless else b"\x02" + (250 * MIB).to_bytes(8, "big")
    later = first if endless else b""
    with Growth(server) as growth, raw_connection(port(server, 3), b"DEALER") as raw, suppress(ConnectionError):
        for i in range(200):
            raw.sendall((later if i else first) + bytes(MIB))
            time.sleep(1 / 40)
    until(lambda: (server.status() or {"counts": {}})["counts"].get("messages_without_an_end"), "the cut")
    serves(server)
    assert growth.most < 64, "whatever is sent, without the cut"


def test_eight_hostile_peers_take_little_memory(server: ServerProcess) -> None:
    """Each of eight connections sends 20 MiB of a frame that has no end."""
    with Growth(server) as growth, ExitStack() as ending:
        raws = [ending.enter_context(raw_connection(port(server, 3), b"DEALER")) for _ in range(8)]
        for i in range(20):
            for raw in raws:
                with suppress(ConnectionError):
                    raw.sendall((b"" if i else b"\x02" + (250 * MIB).to_bytes(8, "big")) + bytes(MIB))
            time.sleep(1 / 40)
    until(lambda: (server.status() or {"counts": {}})["counts"].get("messages_without_an_end"), "the cut")
    serves(server)
    assert growth.most < 100, "all 160 were kept, if each may send two usual frames"


def test_more_connections_than_descriptors(server: ServerProcess) -> None:
    """A server without free descriptors once ended with exit 70. A shell allows 1,024, and a client needs three."""
    assert server.process is not None
    pid = server.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == hard, "it takes as many as it may have"
    with Clone(server.address) as clone, ExitStack() as ending:
        clone.wait_until_synced(WAIT_S)
        most = len(os.listdir(f"/proc/{pid}/fd")) + 20
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
        for i in range(40):
            ending.enter_context(socket.create_connection(("127.0.0.1", int(port(server, i % 3).rpartition(":")[2]))))
        until(lambda: "no file can be opened" in server.log.read_text(), "the last descriptor")
        for i in range(20):
            clone.set("/still", b"%d" % i).wait(WAIT_S)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    serves(server)


def test_a_subscriber_with_many_long_subscriptions_is_cut_off(server: ServerProcess) -> None:
    with Growth(server) as growth, zmq.Context() as context, context.socket(zmq.SUB) as reader:
        reader.set(zmq.LINGER, 0)
        reader.set(zmq.RECONNECT_IVL, -1)
        reader.connect(port(server, 1))
        for i in range(12_000):
            reader.subscribe(b"/%d/" % i + os.urandom(500).hex().encode())
        until(lambda: (server.status() or {"counts": {}})["counts"].get("subscribers_cut"), "the cut")
        serves(server)
    assert growth.most < 64, "603 before; 11 to 37 now"


def test_snapshots_for_readers_that_read_nothing_take_bounded_memory(server: ServerProcess) -> None:
    """The map of 64 MiB changes before each reader asks, so that each snapshot is an image of its own."""
    with Clone(server.address) as clone:
        for i in range(64):
            clone.set(f"/{i}", os.urandom(MIB)).wait(WAIT_S)
        with Growth(server) as growth, zmq.Context() as context, ExitStack() as ending:
            for i in range(16):
                reader = ending.enter_context(context.socket(zmq.DEALER))
                reader.setsockopt(zmq.LINGER, 0)
                reader.setsockopt(zmq.RCVHWM, 1)
                reader.setsockopt(zmq.RCVBUF, 4096)
                reader.connect(server.address)
                for n in range(20):
                    options = {"chp": 3, "id": n, "credit": 64}
                    reader.send_multipart([b"ICANHAZ?", b"", msgpack.packb(options)])
                clone.set(f"/{i}", os.urandom(MIB)).wait(WAIT_S)
            time.sleep(3)
            serves(server)
    assert growth.most < 400, "1,000 before"


def test_a_flood_of_empty_lists_does_not_stop_the_server(server: ServerProcess) -> None:
    body = b"\x93\xdd\x00\xff\xff\xff" + b"\x90" * 16 * MIB
    options = msgpack.packb({"chp": 2, "id": 1})
    sets = iter([[STX + ETX, bytes(7) + b"\x01", b"s" * 16, b"", body]] * 20)
    with Growth(server) as growth:
        flood(server, 2, zmq.XPUB, sets, 30.0)
        flood(server, 0, zmq.DEALER, iter([[b"ICANHAZ?", b"", options + body]] * 5), 30.0)
        serves(server)
    assert growth.most < 400, "1,300 before, for each"
