"""Tests of a server by a client of RFC 12 that makes frames by hand: all commands, and updates that must not be lost.

G-01 to G-24 are rows of docs/sources.md.
"""

import os
import struct
import time
from typing import Any

import pytest
import zmq

from chp_server.testing import Pair, TestServer
from tests.talk import until
from tests.wire.hand import HUGZ, ICANHAZ, KTHXBAI, RESERVED, ZERO, Hand, number_in, receive, u64

EPOCH_1 = 1 << 48


def held(server: TestServer) -> dict[str, bytes]:
    """Return the contents of the server."""
    assert server.server is not None
    return dict(server.server.core.state.map.values)


def test_a_kvset_is_published_with_its_uuid_and_the_next_number(hand: Hand) -> None:
    feed = hand.listen(b"")
    first = hand.set(b"/a", b"1")
    second = hand.set(b"/b", b"2", b"source=ecb\n")
    one, two = (next_update(feed) for _ in range(2))
    assert one[0] == b"/a" and one[2:] == [first, b"", b"1"]
    assert two[0] == b"/b" and two[2:] == [second, b"source=ecb\n", b"2"]
    assert number_in(one[1]) == EPOCH_1 + 2, "1.1 opened the epoch"
    assert number_in(two[1]) == EPOCH_1 + 3


def next_update(feed: zmq.Socket[bytes]) -> list[bytes]:
    """Return the next KVPUB."""
    while (frames := receive(feed))[0] == HUGZ or frames[0][:1] == b"\x02":
        pass
    assert len(frames) == 5 and len(frames[1]) == 8 and len(frames[2]) in (0, 16)
    return frames


def test_a_snapshot_has_every_key_and_ends_with_the_current_number(hand: Hand) -> None:
    feed = hand.listen(b"")
    for i in range(3):
        hand.set(b"/k%d" % i, b"%d" % i)
    numbers = {frames[0]: frames[1] for frames in (next_update(feed) for _ in range(3))}
    hand.set(b"/gone", b"x")
    hand.set(b"/gone", b"")
    until(lambda: hand.status()["counts"].get("updates") == 5, "five updates")
    dealer = hand.dealer()
    dealer.send_multipart([ICANHAZ, b""])
    sent = [receive(dealer) for _ in range(4)]
    for frames in sent[:3]:
        assert number_in(frames[1]) <= number_in(numbers[frames[0]]), "keys of one record share its first number"
        assert frames[2:4] == [b"", b""]
    assert {frames[0]: frames[4] for frames in sent[:3]} == {b"/k0": b"0", b"/k1": b"1", b"/k2": b"2"}
    assert sent[3] == [KTHXBAI, u64(EPOCH_1 + 6), b"", b"", b""], "the deletes count"


def test_an_empty_snapshot_is_a_kthxbai(hand: Hand) -> None:
    found, end = hand.snapshot(b"/none/")
    assert found == {} and end == [KTHXBAI, u64(EPOCH_1 + 1), b"", b"", b"/none/"]


@pytest.mark.parametrize("subtree", [b"/rates/", b"/ra", b"r"])
def test_a_subtree_is_a_prefix_for_snapshot_and_feed(hand: Hand, subtree: bytes) -> None:
    keys = [b"/rates/EUR", b"/rates/USD", b"/ra", b"/other", b"root"]
    feed = hand.listen(subtree)
    for key in keys:
        hand.set(key, b"v")
    wanted = [key for key in keys if key.startswith(subtree)]
    assert [next_update(feed)[0] for _ in wanted] == wanted
    found, end = hand.snapshot(subtree)
    assert sorted(found) == sorted(wanted) and end[4] == subtree


def test_an_empty_value_deletes(hand: Hand) -> None:
    feed = hand.listen(b"")
    hand.set(b"/a", b"1")
    uuid = hand.set(b"/a", b"")
    next_update(feed)
    deleted = next_update(feed)
    assert deleted[0] == b"/a" and deleted[2:] == [uuid, b"", b""]
    assert hand.snapshot()[0] == {}


def test_a_ttl_is_relative_in_kvpub_and_absolute_in_kvsync(hand: Hand) -> None:
    feed = hand.listen(b"")
    uuid = hand.set(b"/long", b"1", b"ttl=1000\n")
    assert next_update(feed)[2:] == [uuid, b"ttl=1000\n", b"1"]
    dealer = hand.dealer()
    dealer.send_multipart([ICANHAZ, b""])
    properties = receive(dealer)[3]
    assert properties.startswith(b"ttl=") and properties.endswith(b"\n")
    moment_s = int(properties[4:-1]) / 1000
    assert 900 < moment_s - time.time() < 1000.5
    hand.set(b"/short", b"2", b"ttl=0.2\n")
    assert next_update(feed)[4] == b"2"
    ended = next_update(feed)
    assert ended[0] == b"/short" and ended[2:] == [b"", b"", b""]
    assert hand.snapshot()[0] == {b"/long": b"1"}


def test_only_keys_with_a_ttl_expire(hand: Hand) -> None:
    """G-01: an uninitialised ttl deleted 28 of 50 permanent keys when 5 others expired."""
    for i in range(50):
        hand.set(b"/permanent/%d" % i, b"v", b"ttl=0\n" if i % 2 else b"")
    for i in range(5):
        hand.set(b"/short/%d" % i, b"v", b"ttl=0.1\n")
    until(lambda: hand.status()["counts"].get("expired") == 5, "five expired")
    assert len(hand.snapshot()[0]) == 50


def test_a_new_set_replaces_the_ttl(hand: Hand) -> None:
    feed = hand.listen(b"")
    for key, properties in ((b"/kept", b""), (b"/longer", b"ttl=1000\n")):
        hand.set(key, b"1", b"ttl=0.3\n")
        hand.set(key, b"2", properties)
    hand.set(b"/mark", b"", b"")
    hand.set(b"/ends", b"1", b"ttl=0.5\n")
    while (frames := next_update(feed))[0] != b"/ends" or frames[4]:
        assert frames[4] or frames[0] == b"/mark", "nothing else ended"
    assert hand.snapshot()[0] == {b"/kept": b"2", b"/longer": b"2"}


def test_the_server_sends_hugz_also_under_traffic(hand: Hand) -> None:
    feed = hand.listen()
    hand.collector()
    began, seen, last = time.monotonic(), 0, 0
    while seen < 3:
        hand.set(b"/busy", os.urandom(8))
        if feed.poll(1):
            frames = feed.recv_multipart()
            assert frames[0] == HUGZ and frames[2:] == [b"", b"chp=2\n", b""], "never a body"
            assert number_in(frames[1]) >= last
            last = number_in(frames[1])
            seen += 1
        assert time.monotonic() - began < 20, "a HUGZ each second"


def test_a_repeated_uuid_is_applied_once_and_a_set_without_uuid_always(hand: Hand) -> None:
    """G-20: a set without a uuid is legal."""
    feed = hand.listen(b"")
    uuid = hand.set(b"/a", b"1")
    hand.set(b"/a", b"2")
    hand.set(b"/a", b"1", uuid=uuid)
    hand.set(b"/b", b"3", uuid=b"")
    hand.set(b"/b", b"3", uuid=b"")
    seen = [next_update(feed) for _ in range(4)]
    assert [(f[0], f[4]) for f in seen] == [(b"/a", b"1"), (b"/a", b"2"), (b"/b", b"3"), (b"/b", b"3")]


def test_a_pausing_reader_gets_all_20000_keys_and_kthxbai(server: TestServer, hand: Hand) -> None:
    """G-02: of 5,000 keys 1,214 arrived, and then KTHXBAI."""
    session = hand.session()
    for start in range(0, 20_000, 5000):
        session.put({f"/k/{i}": b"%0100d" % i for i in range(start, start + 5000)})
    dealer = hand.dealer(RCVHWM=100, RCVBUF=4096)
    dealer.send_multipart([ICANHAZ, b""])
    found: dict[bytes, bytes] = {}
    beats = hand.listen()
    while (frames := receive(dealer))[0] != KTHXBAI:
        found[frames[0]] = frames[4]
        if len(found) in (50, 5000):
            # The server goes on with its heartbeats while this reader pauses.
            receive(beats), receive(beats)
    assert len(found) == 20_000 and found[b"/k/777"] == b"%0100d" % 777
    assert hand.snapshot()[0] == found, "another reader is served meanwhile and afterwards"


def test_a_reader_that_asks_several_times_gets_each_snapshot_whole(hand: Hand) -> None:
    """SPEC.md: a client may ask again at any time and gets a whole snapshot each time."""
    session = hand.session()
    session.put({f"/{part}/{i}": b"v" for part in "ab" for i in range(1000)})
    dealer = hand.dealer()
    for subtree in (b"/a/", b"/b/", b""):
        dealer.send_multipart([ICANHAZ, subtree])
    for subtree, n in ((b"/a/", 1000), (b"/b/", 1000), (b"", 2000)):
        for _ in range(n):
            assert receive(dealer)[0].startswith(subtree)
        assert receive(dealer)[::4] == [KTHXBAI, subtree]


def test_an_empty_value_of_chp2_is_left_out_of_a_chp1_snapshot(hand: Hand) -> None:
    """SPEC.md, KVSYNC: there an empty value would mean deleted."""
    hand.session().put({"/empty": b"", "/full": b"v"})
    assert hand.snapshot()[0] == {b"/full": b"v"}


def test_reserved_words_as_keys_are_refused(server: TestServer, hand: Hand) -> None:
    """G-21: a key named KTHXBAI cut every later snapshot short; one named HUGZ is ignored."""
    for key in (b"KTHXBAI", b"HUGZ", b"ICANHAZ?", b"\x02x\x03", RESERVED, b""):
        hand.set(key, b"v")
    hand.set(b"KTHXBAI2", b"v")
    until(lambda: held(server) == {"KTHXBAI2": b"v"}, "the legal one")
    assert hand.status()["counts"]["garbage_collector"] == 6


def test_keys_and_values_are_taken_up_to_the_maximum_size(server: TestServer, hand: Hand) -> None:
    big = os.urandom(16 << 20)
    hand.set(b"k" * 1024, b"fits")
    hand.set(b"k" * 1025, b"too long")
    hand.set("é".encode() * 512, b"fits")
    hand.set("é".encode() * 512 + b"x", b"too long")
    hand.set(b"/big", big)
    hand.set(b"/bigger", big + b"x")
    hand.set(b"/last", b"v")
    until(lambda: "/last" in held(server), "the last one")
    assert hand.snapshot()[0] == {b"k" * 1024: b"fits", "é".encode() * 512: b"fits", b"/big": big, b"/last": b"v"}
    assert hand.status()["counts"]["garbage_collector"] == 3


@pytest.mark.parametrize(
    "properties", [b"ttl=-1\n", b"ttl=nan\n", b"ttl=inf\n", b"ttl=1e300\n", b"ttl=abc\n", b"x\n", b"\xff=1\n"]
)
def test_a_set_with_a_bad_ttl_or_property_is_refused(server: TestServer, hand: Hand, properties: bytes) -> None:
    hand.set(b"/bad", b"v", properties)
    hand.set(b"/good", b"v")
    until(lambda: held(server) == {"/good": b"v"}, "the good one only")
    assert hand.status()["counts"]["garbage_collector"] == 1


def test_properties_are_published_whole_despite_a_duplicate_set(hand: Hand) -> None:
    """G-06: a duplicated message lost its properties; a property over 64 bytes stopped the backup."""
    feed = hand.listen(b"")
    long = b"note=" + b"x" * 200 + b"\nttl=1000\n"
    uuid = hand.set(b"/a", b"1", long)
    hand.set(b"/a", b"1", long, uuid=uuid)
    hand.set(b"/b", b"1")
    assert next_update(feed)[3] == long
    assert next_update(feed)[0] == b"/b"


def test_a_set_at_the_moment_its_key_expires_is_kept(hand: Hand) -> None:
    """G-04: an expired ttl deleted the newer value. Set and expiry must meet in one turn, so many rounds are needed."""
    feed = hand.listen(b"")
    for round_ in range(60):
        hand.set(b"/k", b"old", b"ttl=0.01\n")
        next_update(feed)
        deadline = time.monotonic() + 0.01
        while time.monotonic() < deadline:
            pass
        hand.set(b"/k", b"new%d" % round_)
        while (frames := next_update(feed))[4] != b"new%d" % round_:
            pass
        assert frames[0] == b"/k"
        hand.set(b"/mark", b"v")
        assert next_update(feed)[::4] == [b"/mark", b"v"], "nothing deleted the newer value"


def test_a_chp1_subscriber_to_everything_can_drop_chp2_messages_by_number(hand: Hand) -> None:
    """RFC 12 makes a subscriber drop messages whose number is not higher. So reserved keys never reach its map."""
    feed = hand.listen(b"")
    at = number_in(hand.snapshot()[1][1])
    session = hand.session()
    lease = os.urandom(16)
    session.put({"/a": b"1"})
    session.put({}, lease=[lease, 60_000])
    session.put({"/b": b"2", "/c": b"3"})
    session.refused(session.send(["/a"], [b"x"], {"c": [[0], [1]]}))
    session.put({"/c": b""}, d=[0])
    other = hand.follow("")
    other.until_compared()
    hand.set(b"/end", b"v")
    mapped, reserved = {}, 0
    while b"/end" not in mapped:
        frames = receive(feed)
        number = number_in(frames[1])
        if frames[0] == HUGZ:
            at = max(at, number)
        elif number > at:
            at = number
            assert frames[0][:1] != b"\x02", f"a classic client would keep {frames[0]!r}"
            mapped[frames[0]] = frames[4]
        else:
            reserved += frames[0][:1] == b"\x02"
            assert frames[0][:1] == b"\x02", "every plain update counts"
    assert {k: v for k, v in mapped.items() if v} == {b"/a": b"1", b"/b": b"2", b"/end": b"v"}
    assert reserved > 3


def test_chp1_and_chp2_subscribers_see_all_updates_in_one_order(hand: Hand) -> None:
    feed = hand.listen(b"/")
    replica = hand.follow("")
    session = hand.session()
    wanted: list[tuple[str, bytes]] = []
    for i in range(200):
        if i % 3:
            hand.set(b"/p/%d" % (i % 7), b"%d" % i)
        else:
            session.send([f"/p/{i % 5}", f"/q/{i}", f"/p/{i % 5}"], [b"x", b"%d" % i, b"y"], {"t": 60_000})
    hand.set(b"/end", b"v")
    replica.until(lambda: "/end" in replica.values)
    plain: list[tuple[str, bytes | None]] = []
    last = 0
    while not plain or plain[-1][0] != "/end":
        frames = next_update(feed)
        assert number_in(frames[1]) > last, "strictly increasing"
        last = number_in(frames[1])
        plain.append((frames[0].decode(), frames[4] or None))
    assert plain == replica.updates
    assert len(plain) == 67 * 3 + 133 + 1, wanted


def test_a_large_batch_reaches_a_chp1_subscriber_whole(hand: Hand) -> None:
    """A CHP/1 client cannot detect a hole, so a batch of any legal size must reach a client that reads."""
    feed = hand.listen(b"/")
    session = hand.session()
    no = session.send([f"/{i}" for i in range(65_536)], [b"v"] * 65_536)
    keys = [next_update(feed)[0] for _ in range(65_536)]
    assert keys == [b"/%d" % i for i in range(65_536)]
    session.acked(no)


def test_a_passive_sends_chp1_clients_nothing_until_it_takes_over(pair: Pair) -> None:
    """G-15 and G-16: a passive sends no HUGZ, so that its clients leave it."""
    with Hand(pair.primary.address) as one, Hand(pair.backup.address) as two:
        until(lambda: one.status()["in_sync"], "a pair in sync")
        feed = two.subscriber(b"")
        ours, theirs = one.collector(), two.collector()
        for i in range(20):
            frames = [b"/k%d" % i, ZERO, os.urandom(16), b"ttl=1000\n" if i % 2 else b"", b"v"]
            ours.send_multipart(frames)
            theirs.send_multipart(frames)
        until(lambda: len(held(pair.backup)) == 20, "replicated")
        until(lambda: two.status()["pending"] == 0, "nothing pending any more")
        assert not feed.poll(1500), "no HUGZ, no updates"
        lost = [b"/late", ZERO, os.urandom(16), b"", b"on its way"]
        pair.primary.kill()
        theirs.send_multipart(lost)
        until(lambda: two.status()["pending"] == 1, "pending")
        dealer = two.dealer()
        found: dict[bytes, Any] = {}
        while not found:
            dealer.send_multipart([ICANHAZ, b""])
            while dealer.poll(500):
                frames = dealer.recv_multipart()
                found[frames[0]] = frames
        assert found[b"/late"][4] == b"on its way", "the first snapshot has it"
        assert len(found) == 22
        published = receive(feed)
        assert published[0] == b"/late" and number_in(published[1]) > 2 << 48
        assert struct.unpack(">Q", found[KTHXBAI][1])[0] >= number_in(published[1])
