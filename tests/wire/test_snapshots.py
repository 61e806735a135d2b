"""Tests of large, many, slow or abandoned snapshots: they are complete, fit the updates, and delay no other client."""

import os
import threading
import time
from dataclasses import replace
from itertools import pairwise

import msgpack
import pytest
import zmq

from chp.limits import DEFAULT
from chp_server.testing import TestServer
from tests.talk import until
from tests.wire.hand import BATCH, END, ICANHAZ, KTHXBAI, SYNC, Hand, Replica, parts_of, receive, topic


def fill(hand: Hand, keys: int, value: bytes) -> None:
    """Set so many keys, in batches."""
    session = hand.session()
    for start in range(0, keys, 50_000):
        session.send([f"/{i}" for i in range(start, min(keys, start + 50_000))], [value] * min(50_000, keys - start))
    session.acked(session.no)


def test_heartbeats_go_on_while_15_readers_get_100000_keys(server: TestServer, hand: Hand) -> None:
    """G-23 of docs/sources.md: the classic server sent no HUGZ for 3.8 s."""
    fill(hand, 100_000, b"x" * 100)
    beats = Replica(hand, "/none/")
    beats.join()
    readers = [hand.dealer() for _ in range(15)]
    for i, reader in enumerate(readers):
        if i % 5:
            hand.ask(reader, "", credit=64)
        else:
            reader.send_multipart([ICANHAZ, b""])
    counts, open_ = [0] * 15, set(range(15))
    times: list[float] = []
    poller = zmq.Poller()
    for each in (*readers, beats.updates_socket):
        poller.register(each, zmq.POLLIN)
    while open_:
        ready = dict(poller.poll(30_000))
        assert ready, f"readers {open_} stand still at {counts}"
        if beats.updates_socket in ready:
            beats.take(receive(beats.updates_socket))
            times.append(time.monotonic())
        for i in [i for i in open_ if readers[i] in ready]:
            for _ in range(200):
                if not readers[i].poll(0):
                    break
                frames = readers[i].recv_multipart()
                if i % 5 == 0:
                    counts[i] += frames[0] != KTHXBAI
                    over = frames[0] == KTHXBAI
                else:
                    header, *segments = parts_of(frames)
                    counts[i] += sum(len(keys) for keys, _, _ in segments)
                    over = header[0] == END
                if over:
                    open_.discard(i)
                    break
    assert counts == [100_000] * 15
    assert len(times) > 3 and max(b - a for a, b in pairwise(times)) < 10


def test_a_snapshot_taken_under_load_agrees_with_the_feed(hand: Hand) -> None:
    """G-09 of docs/sources.md: updates between subscription and snapshot were lost. Here clients join during sets."""
    fill(hand, 20_000, b"v")
    stop = threading.Event()
    with Hand(hand.address) as other:
        session = other.session()

        def write() -> None:
            i = 0
            while not stop.is_set():
                session.send([f"/{i % 30_000}", f"/n/{i % 100}"], [b"%d" % i] * 2, {"d": [0]} if i % 3 else None)
                i += 1
                if i % 200 == 0:
                    session.acked(session.no)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            replicas = [hand.follow(subtree) for subtree in ("", "/n/") * 6]
            for replica in replicas:
                replica.until(lambda r=replica: len(r.batches) > 5)  # type: ignore[misc]
        finally:
            stop.set()
            writer.join()
        session.acked(session.no)
    for replica in replicas:
        replica.until_compared()
    assert len({(r.subtree, r.at) for r in replicas}) == 2
    assert all(r.values == replicas[0].values for r in replicas if not r.subtree)


def test_the_server_forgets_a_reader_that_leaves_during_a_snapshot(server: TestServer, hand: Hand) -> None:
    fill(hand, 100_000, b"x" * 100)
    with Hand(server.address) as other:
        slow = [other.dealer(RCVHWM=1, RCVBUF=4096) for _ in range(3)]
        slow[0].send_multipart([ICANHAZ, b""])
        slow[1].send_multipart([ICANHAZ, b"/1"])
        other.ask(slow[2], "", credit=64)
        for each in slow:
            receive(each)
        assert hand.status()["syncs"] >= 2
    until(lambda: hand.status()["syncs"] == 0, "all are gone")
    assert server.server is not None and not server.server.replies.has_waiting
    assert len(hand.snapshot()[0]) == 100_000


def test_snapshot_chunks_stay_within_the_byte_limit_unless_one_value_is_larger(hand: Hand) -> None:
    session = hand.session()
    big = os.urandom(16 << 20)
    session.put({f"/a/{i:04}": b"x" * 1000 for i in range(3000)})
    session.put({"/b/big": big})
    session.put({f"/c/{i}" + "é" * 500: b"" for i in range(3000)})
    *chunks, end = hand.sync("")
    sizes = []
    for header, (keys, values, _) in chunks:
        assert header[0] == SYNC
        sizes.append(sum(len(key.encode()) for key in keys) + sum(map(len, values)))
        assert sizes[-1] <= DEFAULT.sync_chunk_bytes or len(keys) == 1
    assert end[0][3] == 6001
    assert all(a + b > DEFAULT.sync_chunk_bytes for a, b in pairwise(sizes)), "none is too small"


def test_snapshot_chunks_have_the_remaining_ttl(hand: Hand) -> None:
    session = hand.session()
    session.put({"/a": b"1", "/b": b"2"}, t=[[1], [60_000]])
    ((_, (keys, _, extras)), _) = hand.sync("")
    places, left = extras["t"]
    assert [keys[i] for i in places] == ["/b"] and 50_000 < left[0] <= 60_000


def test_requests_beyond_the_limits_are_refused() -> None:
    with TestServer(replace(DEFAULT, syncs_max=3, requests_max=2)) as server, Hand(server.address) as hand:
        fill(hand, 30_000, b"x")
        dealer = hand.dealer()
        for _ in range(5):
            hand.ask(dealer, "", credit=1)
        refused: list[str] = []
        while len(refused) < 2:
            header = parts_of(receive(dealer))[0]
            refused += [header[2]] if header[0] == 7 else []
        assert refused == ["busy", "busy"]


@pytest.mark.parametrize("kind", ["classic", "chp2"])
def test_a_slow_snapshot_does_not_show_later_changes(hand: Hand, kind: str) -> None:
    """The snapshot shows one number. Later changes come only in the feed."""
    fill(hand, 30_000, b"old")
    dealer = hand.dealer(RCVHWM=10, RCVBUF=4096)
    feed = hand.subscriber(topic(""))
    while parts_of(receive(feed))[0][0] != 0:
        pass
    if kind == "classic":
        dealer.send_multipart([ICANHAZ, b""])
    else:
        hand.ask(dealer, "", credit=1)
    first = receive(dealer)
    session = hand.session()
    session.put({"/new": b"", **{f"/{i}": b"" for i in range(20_000, 30_000)}}, d=list(range(1, 10_001)))
    found = {first[0]: first[4]}
    if kind == "classic":
        while (frames := receive(dealer))[0] != KTHXBAI:
            found[frames[0]] = frames[4]
        assert found == {b"/%d" % i: b"old" for i in range(30_000)}
        assert int.from_bytes(frames[1]) < next_batch(feed)
    else:
        header, (keys, _, _) = parts_of(first)
        dealer.send_multipart([ICANHAZ, b"", msgpack.packb({"chp": 3, "id": header[1], "more": 64})])
        while (parts := parts_of(receive(dealer)))[0][0] == SYNC:
            keys += parts[1][0]
        assert keys == [f"/{i}" for i in range(30_000)]
        assert parts[0][2] == next_batch(feed) - 10_001


def next_batch(feed: zmq.Socket[bytes]) -> int:
    """Return the last number of the next BATCH."""
    while (header := parts_of(receive(feed))[0])[0] != BATCH:
        pass
    return int(header[3])


def test_a_reader_that_asks_and_takes_nothing_is_given_up() -> None:
    """The memory for such a reader is bounded, and all other clients are served."""
    with TestServer(replace(DEFAULT, router_queue_max=100), heartbeat_s=0.1) as server, Hand(server.address) as hand:
        fill(hand, 20_000, b"x" * 500)
        deaf = hand.dealer(RCVHWM=1, RCVBUF=4096)
        deaf.send_multipart([ICANHAZ, b""])
        receive(deaf)
        assert server.server is not None
        core = server.server.core
        until(lambda: core.requests.blocked, "it is full")
        while not core.committer.counts["readers_given_up"]:
            hand.ask(deaf, b"\x02status\x03")
        assert len(hand.snapshot()[0]) == 20_000
