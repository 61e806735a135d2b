"""Tests that garbage on every port is counted, and that the server then serves, publishes and sends heartbeats.

G-19 is a row of docs/sources.md.
"""

import os
import random
import socket
from collections.abc import Iterator

import msgpack
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chp_server.testing import Pair, TestServer
from tests.talk import until
from tests.wire.hand import (
    HEARTBEAT,
    HUGZ,
    ICANHAZ,
    RESERVED,
    ZERO,
    Frames,
    Hand,
    at,
    parts_of,
    receive,
    topic,
    u64,
)

# The seed is fixed, so that a failure can be repeated and all processes of pytest collect the same tests.
NOISE = random.Random(4)


def still_serves(hand: Hand) -> None:
    """Check that a set is published and is in the snapshot, and that heartbeats come."""
    feed = hand.subscriber(topic("/check/"))
    key, value = f"/check/{os.urandom(4).hex()}", os.urandom(4)
    until_heartbeat(feed)
    hand.set(key.encode(), value)
    while parts_of(frames := receive(feed))[0][0] != 1 or parts_of(frames)[1][:2] != [[key], [value]]:
        pass
    until_heartbeat(feed)
    assert hand.snapshot(key.encode())[0] == {key.encode(): value}
    feed.close()


def until_heartbeat(feed: zmq.Socket[bytes]) -> None:
    """Wait for the next heartbeat of a channel."""
    while parts_of(receive(feed))[0][0] != HEARTBEAT:
        pass


def garbage(server: TestServer, port: str) -> int:
    """Return the garbage that a server has counted on a port."""
    assert server.server is not None
    core = server.server.core
    assert not core.committer.counts["defects"], "nothing is a defect of ours"
    return core.committer.counts[f"garbage_{port}"]


UUID = b"u" * 16


def peer_state(**fields: object) -> bytes:
    """Return the body of a peer's STATE."""
    return msgpack.packb(fields)  # type: ignore[no-any-return]


PEER_STATE = {"version": 3, "follows": 0, "store": b"", "opener": b"", "digest": 0, "settings": {}, "room": True}
REQUESTS: list[Frames] = [
    [b""],
    [b"", ICANHAZ, b""],
    [b"HELO"],
    [ICANHAZ],
    [ICANHAZ, b"\xff"],
    [ICANHAZ, b"x" * 1025],
    [b"ICANHAZ!", b""],
    [b"icanhaz?", b""],
    [ICANHAZ, b"", b""],
    [ICANHAZ, b"", b"", b""],
    [ICANHAZ, b"", b"\xc1"],
    [ICANHAZ, b"", msgpack.packb([1])],
    [ICANHAZ, b"", msgpack.packb({"chp": 3})],
    [ICANHAZ, b"", msgpack.packb({"id": "one"})],
    [ICANHAZ, b"", msgpack.packb({"chp": 3, "id": 1, "from": "x"})],
    [ICANHAZ, b"", msgpack.packb({"chp": 3, "id": 1, "credit": 0})],
    [ICANHAZ, b"", msgpack.packb({"chp": 3, "id": 1, "credit": None})],
    [ICANHAZ, b"", msgpack.packb({"chp": 3, "id": 1, "session": [1, {}]})],
    [ICANHAZ, b"", msgpack.packb({"chp": 3, "id": 1, "session": {"a": 1}})],
    [ICANHAZ, b"", b"\x81\x90\x01"],
    [ICANHAZ, b"no-slashes", msgpack.packb({"chp": 3, "id": 1})],
    [ICANHAZ, b"/\xff/", msgpack.packb({"chp": 3, "id": 1})],
    [ICANHAZ, b"/a\x01/", msgpack.packb({"chp": 3, "id": 1})],
    [b"/a", ZERO, UUID, b"", b"a KVSET on the wrong port"],
    [NOISE.randbytes(64)] * 100,
]
SETS: list[Frames] = [
    [b""],
    [b"/a"],
    [b"/a", ZERO, UUID, b""],
    [b"/a", ZERO, UUID, b"", b"v", b"more"],
    [b"/a", b"abc", UUID, b"", b"v"],
    [b"/a", ZERO, b"short", b"", b"v"],
    [b"/a", ZERO, UUID, b"ttl=abc\n", b"v"],
    [b"/a", ZERO, UUID, b"ttl=\n", b"v"],
    [b"/a", ZERO, UUID, b"ttl=1\nttl=2\n", b"v"],
    [b"/a", ZERO, UUID, b"noequals", b"v"],
    [b"/a", ZERO, UUID, b"=x\n", b"v"],
    [b"/a", ZERO, UUID, b"n=" + b"x" * 5000, b"v"],
    [b"", ZERO, UUID, b"", b"v"],
    [b"\xff\xfe", ZERO, UUID, b"", b"v"],
    [b"\xed\xa0\x80", ZERO, UUID, b"", b"a lone surrogate"],
    [b"k" * 1025, ZERO, UUID, b"", b"v"],
    [HUGZ, ZERO, UUID, b"", b"v"],
    [b"\x00", ZERO, UUID, b"", b"v"],
    [RESERVED],
    [RESERVED, u64(1), UUID, b""],
    [RESERVED, u64(1), b"short", b"", b"x"],
    [RESERVED, b"1", UUID, b"", b"x"],
    [RESERVED, u64(0), UUID, b"", msgpack.packb([[], [], None])],
    [ICANHAZ, b""],
    [NOISE.randbytes(64)] * 100,
]
SUBSCRIPTIONS: list[Frames] = [[b""], [b"\x02"], [b"hello"], [b"\x05topic"], [b"\xff" * 1000]]
PEER: list[Frames] = [
    [b""],
    [b"STATE"],
    [b"STATE", b""],
    [b"STATE", b"", b""],
    [b"STATE", b"\xc1"],
    [b"STATE", msgpack.packb([])],
    [b"STATE", msgpack.packb({"state": 3, "version": 3})],
    [
        b"STATE",
        peer_state(state=9, number=0, epoch=0, server=UUID, name="", primary=False, in_sync=False, **PEER_STATE),
    ],
    [
        b"STATE",
        peer_state(state=4, number="x", epoch=0, server=UUID, name="", primary=False, in_sync=False, **PEER_STATE),
    ],
    [
        b"STATE",
        peer_state(state=4, number=0, epoch=None, server=UUID, name="", primary=False, in_sync=False, **PEER_STATE),
    ],
    [b"STATE", peer_state(state=4, number=0, epoch=0, server=[], name="", primary=False, in_sync=False, **PEER_STATE)],
    [b"STATE", peer_state(state=4, number=0, epoch=0, server=UUID, name="", primary=True, in_sync=1, **PEER_STATE)],
    [b"WANT", b"\xc1"],
    [b"WANT", msgpack.packb({"at": [b"", "x", b"", 0], "history": []})],
    [b"WANT", msgpack.packb({"at": [b"", 1, b"", 0], "history": [7]})],
    [b"WANT", msgpack.packb({})],
    [b"HANDOVER", b"x"],
    [b"REPLAY", msgpack.packb([1])],
    [b"NONSENSE", b"x"],
    [NOISE.randbytes(64)] * 100,
]


@pytest.mark.parametrize("frames", REQUESTS, ids=lambda f: repr(f)[:60])
def test_a_malformed_request_is_counted(server: TestServer, hand: Hand, frames: Frames) -> None:
    """G-19: one bad ICANHAZ hung the C server and stopped the Python one."""
    dealer = hand.dealer()
    dealer.send_multipart(frames)
    until(lambda: garbage(server, "snapshot") == 1, "counted")
    still_serves(hand)


@pytest.mark.parametrize("frames", SETS, ids=lambda f: repr(f)[:60])
def test_a_malformed_set_is_counted_and_later_sets_are_published(
    server: TestServer, hand: Hand, frames: Frames
) -> None:
    """G-19: one bad KVSET left the Python server deaf while HUGZ went on."""
    hand.collector().send_multipart(frames)
    until(lambda: garbage(server, "collector") == 1, "counted")
    still_serves(hand)


@pytest.mark.parametrize("frames", SUBSCRIPTIONS, ids=lambda f: repr(f)[:60])
def test_a_malformed_subscription_is_counted(server: TestServer, hand: Hand, frames: Frames) -> None:
    strange = hand.socket(zmq.XSUB, 1)
    strange.send_multipart(frames)
    until(lambda: garbage(server, "updates") == 1, "counted")
    still_serves(hand)


@pytest.mark.parametrize("frames", PEER, ids=lambda f: repr(f)[:60])
def test_a_malformed_peer_message_is_counted(peered: TestServer, frames: Frames) -> None:
    """A malformed message counts as garbage or as a stranger's message."""

    def counted() -> int:
        assert peered.server is not None
        return garbage(peered, "peer") + peered.server.core.committer.counts["strangers"]

    with Hand(peered.address) as hand:
        before = counted()
        dealer = hand.socket(zmq.DEALER, 3)
        dealer.send_multipart(frames)
        until(lambda: counted() == before + 1, "counted")
        hand.status()
        still_serves(hand)


@pytest.fixture(scope="module")
def peered() -> Iterator[TestServer]:
    """Start a primary that serves alone and has a peer link."""
    both = Pair(heartbeat_s=0.05, solo_wait_s=0.1, bootstrap=True)
    with both.primary as server:
        with Hand(server.address) as hand:
            until(lambda: hand.status()["state"] == "active", "active alone")
        yield server


def test_garbage_is_not_taken_for_a_peer(peered: TestServer) -> None:
    assert peered.server is not None and peered.server.core.active
    assert peered.server.core.pair.peer is None, "none of it was taken for a peer"


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("kind", ["random", "http", "zmtp-1", "nothing", "huge-frame"])
def test_raw_bytes_on_a_port_do_not_stop_the_server(peered: TestServer, offset: int, kind: str) -> None:
    host, port = at(peered.address, offset).removeprefix("tcp://").split(":")
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48
    data = {
        "random": NOISE.randbytes(4096),
        "http": b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd",
        "zmtp-1": b"\x01\x00\x05\x00" + NOISE.randbytes(64),
        "nothing": b"",
        "huge-frame": greeting + b"\x06" + b"\xff" * 8 + NOISE.randbytes(100),
    }[kind]
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(data)
        with Hand(peered.address) as hand:
            still_serves(hand)
    assert peered.server is not None and not peered.server.core.committer.counts["defects"]


# -- at random

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
indices = st.lists(st.integers(-1, 4), max_size=4)
names = st.sampled_from(
    ["d", "t", "c", "n", "l", "lease", "unlease", "r", "u", "p", "stage", "commit", "abort", "done", "m"]
)
columns = (
    plain | indices | st.tuples(indices, indices) | st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 99))
)
segments = st.tuples(
    st.lists(st.sampled_from(["/a", "/b", "/check/c", "", "HUGZ"]) | plain, max_size=4),
    st.lists(st.binary(max_size=5), max_size=4) | plain,
    st.none() | st.dictionaries(names, columns, max_size=3) | plain,
)
bodies = st.binary(max_size=60) | plain.map(msgpack.packb) | segments.map(msgpack.packb)
frame = (
    st.binary(max_size=40) | bodies | st.sampled_from([ICANHAZ, RESERVED, HUGZ, ZERO, u64(1), UUID, b"", b"ttl=1\n"])
)
messages = st.one_of(
    st.lists(frame, min_size=1, max_size=7),
    st.tuples(st.just(RESERVED), st.integers(0, 5).map(u64), st.just(UUID), st.just(b""), bodies).map(list),
    st.tuples(st.just(ICANHAZ), frame, bodies).map(list),
    st.tuples(
        st.just(ICANHAZ),
        st.sampled_from([b"", b"/a/", b"\x02status\x03", b"\x02x\x03"]),
        st.dictionaries(st.sampled_from(["chp", "id", "from", "session", "credit", "more", "feed"]), plain).map(
            msgpack.packb
        ),
    ).map(list),
    st.tuples(
        st.sampled_from([b"STATE", b"WANT", b"RECORD", b"SYNC", b"END", b"MORE", b"CONFIRM", b"REPLAY"]), bodies
    ).map(list),
)


@pytest.fixture(scope="module")
def fuzzed(peered: TestServer) -> Iterator[tuple[TestServer, Hand, list[zmq.Socket[bytes]]]]:
    with Hand(peered.address) as hand:
        ports = [hand.dealer(), hand.socket(zmq.XSUB, 1), hand.collector(), hand.socket(zmq.DEALER, 3)]
        yield peered, hand, ports


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, 3), messages), min_size=1, max_size=20))
def test_random_frames_on_any_port_cause_no_defects(
    fuzzed: tuple[TestServer, Hand, list[zmq.Socket[bytes]]], said: list[tuple[int, Frames]]
) -> None:
    server, hand, ports = fuzzed
    for port, frames in said:
        ports[port].send_multipart(frames)
    hand.status()
    for socket_ in ports:
        while socket_.poll(0):
            socket_.recv_multipart()
    assert server.server is not None
    assert not server.server.core.committer.counts["defects"]


def test_the_server_is_active_and_consistent_after_random_frames(
    fuzzed: tuple[TestServer, Hand, list[zmq.Socket[bytes]]],
) -> None:
    server, hand, _ = fuzzed
    still_serves(hand)
    assert server.server is not None
    server.server.core.state.check()
    assert hand.status()["state"] == "active"
