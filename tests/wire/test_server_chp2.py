"""Tests of a server by a client of CHP/2 that makes frames by hand: greetings, batches, sessions, conditions, leases,
resumes, the pair."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from chp.limits import DEFAULT
from chp.versions import VERSION
from chp_server.testing import Pair, TestServer
from tests.talk import until
from tests.wire.hand import (
    ACTIVE,
    BATCH,
    END,
    GREETING,
    HEARTBEAT,
    HUGZ,
    PASSIVE,
    RECORDS,
    REFUSED,
    RESERVED,
    SYNC,
    ZERO,
    Hand,
    Replica,
    Session,
    arrived,
    number_in,
    parts_of,
    receive,
    topic,
    u64,
)

EPOCH_1 = 1 << 48


def test_every_new_subscription_of_a_channel_is_greeted(hand: Hand) -> None:
    subscribers = [hand.subscriber(topic("/a/")) for _ in range(3)]
    for n, each in enumerate(subscribers):
        header = parts_of(receive(each))[0]
        while header[0] == HEARTBEAT:
            header = parts_of(receive(each))[0]
        kind, version, state, number, heartbeat_ms, server, name, replica, store = header
        assert (kind, version, state, number, heartbeat_ms) == (GREETING, VERSION, ACTIVE, EPOCH_1 + 1, 100), n
        assert (len(server), type(name), replica, len(store)) == (16, str, None, 16)


def test_a_subscription_to_an_invalid_channel_is_not_greeted(hand: Hand) -> None:
    topics = [b"\x02a\x03", b"\x02/a\x03", b"\x02\xff\x03", b"\x02", b"\x02\x02\x03", b"\x02@short\x03", b"\x02/a/"]
    strange = hand.subscriber(*topics)
    replica = hand.follow("")
    replica.until_compared()
    assert not [frames for frames in arrived(strange) if frames[0] in topics]
    assert list(hand.status()["channels"]) == [""]


def test_a_channel_ends_with_its_last_subscriber(hand: Hand) -> None:
    with Hand(hand.address) as other:
        kept = [other.follow("/a/"), other.follow("/a/"), hand.follow("/a/")]
        assert hand.status()["channels"] == {"/a/": 3}
    until(lambda: hand.status()["channels"] == {"/a/": 1}, "those of the other are gone")
    kept[2].updates_socket.close()
    until(lambda: hand.status()["channels"] == {}, "the last one is gone")


def test_each_channel_chains_one_batch_per_turn(hand: Hand) -> None:
    replicas = [hand.follow(subtree) for subtree in ("", "/a/", "/a/b/", "/c/")]
    session = hand.session()
    session.put({"/a/1": b"1", "/a/b/1": b"2", "/c/1": b"3"})
    session.put({"/a/2": b"4"})
    session.put({"/c/2": b"5", "/d": b"6"})
    for replica, n in zip(replicas, (3, 2, 1, 2), strict=True):
        replica.until_compared()
        assert len(replica.batches) == n
        chain = [header[3] for header in replica.batches]
        assert [header[1] for header in replica.batches][1:] == chain[:-1], "prev is the channel's last"
    header = replicas[0].batches[0]
    assert header[:4] == [BATCH, EPOCH_1 + 1, EPOCH_1 + 2, EPOCH_1 + 4]
    assert header[5] == [[session.public, 1]]


def random_batch(rng: random.Random, step: int, lease: bytes) -> tuple[list[str], list[bytes], dict[str, object]]:
    """Return a batch of keys in and around the subtrees, with duplicates, deletes, ttls and a lease."""
    prefixes = ["/", "/a/", "/a/b/", "/a/b/c/", "/b/", "/a", "/z/"]
    keys = [rng.choice(prefixes) + str(rng.randrange(12)) for _ in range(rng.choice([1, 2, 5, 40]))]
    extras: dict[str, object] = {}
    deletes = sorted(rng.sample(range(len(keys)), rng.randrange(len(keys) + 1))) if rng.random() < 0.5 else []
    if deletes:
        extras["d"] = deletes
    chance = rng.random()
    if chance < 0.2:
        extras["t"] = rng.choice([20, 200, 60_000])
    elif chance < 0.4:
        places = sorted(rng.sample(range(len(keys)), rng.randrange(1, len(keys) + 1)))
        extras["t"] = [places, [rng.choice([20, 60_000]) for _ in places]]
    elif chance < 0.5:
        extras |= {"lease": [lease, rng.choice([30, 60_000])], "l": lease}
    values = [b"" if i in deletes else b"%d.%d" % (step, i) for i in range(len(keys))]
    return keys, values, extras


def test_random_operations_leave_every_channel_equal_to_the_server(server: TestServer, hand: Hand) -> None:
    """Random sets use deletes, ttls, duplicates, leases and CHP/1 in nested subtrees. Each heartbeat checks copies."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    subtrees = ["", "/a/", "/a/b/", "/a/b/c/", "/z/"]
    replicas = [hand.follow(subtree) for subtree in subtrees]
    sessions = [hand.session() for _ in range(3)]
    lease = os.urandom(16)
    for step in range(300):
        keys, values, extras = random_batch(rng, step, lease)
        if rng.random() < 0.2:
            hand.set(keys[0].encode(), rng.choice([b"", b"plain"]), rng.choice([b"", b"ttl=0.05\n", b"note=x\n"]))
        else:
            rng.choice(sessions).send(keys, values, extras or None)
        if rng.random() < 0.05:
            late = hand.follow(rng.choice(subtrees))
            replicas.append(late)
        if rng.random() < 0.1:
            for replica in replicas:
                replica.take(receive(replica.updates_socket))
    for session in sessions:
        session.send(["/end"], [b"v"])
        session.acked(session.no)
    assert server.server is not None
    state = server.server.core.state
    until(
        lambda: not any(ends_soon(deadline) for deadline in list(state.map.deadlines.values())), "short ttls are over"
    )
    until(lambda: not any(ends_soon(each.deadline) for each in list(state.leases.values())), "and short leases")
    for replica in replicas:
        replica.until_compared()
    everything = replicas[0].values
    for replica in replicas:
        assert replica.values == {k: v for k, v in everything.items() if k.startswith(replica.subtree)}, f"seed {seed}"
    assert not server.server.core.committer.counts["defects"]


def ends_soon(deadline: float) -> bool:
    """Return True if a key may still expire while replicas are compared."""
    return deadline - time.monotonic() < 20


def test_snapshot_chunks_never_exceed_the_credit(hand: Hand) -> None:
    session = hand.session()
    for start in range(0, 100_000, 50_000):
        session.put({f"/{i}": b"x" * 20 for i in range(start, start + 50_000)})
    dealer = hand.dealer()
    request = hand.ask(dealer, "", credit=2)
    beats = hand.listen()
    got = 0
    for granted in (2, 3, 1):
        for _ in range(granted):
            header = parts_of(receive(dealer))[0]
            assert header == [SYNC, request, got]
            got += 1
        receive(beats)
        while receive(beats)[0] != HUGZ:
            pass
        assert not dealer.poll(0), "no more than was granted"
        if granted != 1:
            more = {"chp": 3, "id": request, "more": {2: 3, 3: 1}[granted]}
            dealer.send_multipart([b"ICANHAZ?", b"", msgpack.packb(more)])
    dealer.send_multipart([b"ICANHAZ?", b"", msgpack.packb({"chp": 3, "id": request, "more": 1000})])
    while (header := parts_of(receive(dealer))[0])[0] == SYNC:
        assert header[2] == got
        got += 1
    assert header[0] == END and header[3] == 100_000


def test_a_resume_brings_exactly_the_missed_records(hand: Hand) -> None:
    session = hand.session()
    session.put({"/a/1": b"1", "/b/1": b"1"})
    replica = hand.follow("/a/")
    everything = hand.follow("")
    left_at = everything.at
    assert left_at == replica.at
    revisions = [
        session.put({"/a/2": b"2"}),
        session.put({"/b/2": b"2"}),
        session.put({"/a/1": b"", "/b/3": b"3", "/a/3": b"3"}, d=[0]),
    ]
    for each, wanted in ((replica, [revisions[0], revisions[2]]), (everything, revisions)):
        *chunks, ((kind, _, number, count, total, _, resumed, *_),) = hand.sync(each.subtree, **{"from": left_at})
        assert (kind, resumed) == (END, True)
        bodies = [body for header, *items in chunks for body in items if header[0] == RECORDS]
        assert [header[2] for header, *_ in bodies] == wanted, "these records and no others"
        prev = left_at
        for header, *segments in bodies:
            assert header[1] == prev, "chained over what is left out"
            each.apply(header, segments)
            prev = header[3]
        assert (count, total) == each.fingerprint()
        assert number >= prev


@pytest.mark.parametrize("after", [5, EPOCH_1 + 10_000, (2 << 48) + 2, (1 << 63) - 1, 1 << 63, -1])
def test_a_resume_from_an_unknown_number_becomes_a_snapshot(hand: Hand, after: int) -> None:
    hand.session().put({"/a": b"1"})
    *chunks, end = hand.sync("", **{"from": after})
    assert end[0][6] is False and [header[0] for header, *_ in chunks] == [SYNC]


def test_the_end_of_a_sync_tells_the_sessions_last_batch(hand: Hand) -> None:
    session = hand.session()
    session.put({"/a": b"1"})
    session.put({"/b": b"1"})
    assert hand.sync("", session=session.public)[-1][0][5] == 2
    assert hand.sync("", session=os.urandom(16))[-1][0][5] is None


# -- sessions


def test_a_duplicate_is_acknowledged_again_and_not_applied(hand: Hand) -> None:
    session = hand.session()
    revision = session.put({"/a": b"1"})
    session.put({"/a": b"2"})
    session.acks.clear()
    session.send(["/a"], [b"1"], no=1)
    session.acked(1)
    assert session.acks[1][0] >= revision
    assert hand.snapshot()[0] == {b"/a": b"2"}


def test_a_batch_after_a_hole_is_refused_with_the_expected_number(hand: Hand) -> None:
    session = hand.session()
    session.put({"/a": b"1"})
    for no in (3, 4, 5):
        session.send(["/a"], [b"%d" % no], no=no)
    assert session.refused(3) == ("expected", 2)
    for no in (2, 3, 4, 5):
        session.send(["/a"], [b"%d" % no], no=no)
    session.acked(5)
    assert {(code, detail) for _, code, detail in session.refusals} == {("expected", 2)}
    assert len(session.refusals) <= 3, "at most once a turn"
    assert hand.snapshot()[0] == {b"/a": b"5"}


def test_a_burst_of_batches_after_a_hole_is_refused_once(server: TestServer, hand: Hand) -> None:
    session = hand.session()
    session.put({"/a": b"1"})
    assert server.server is not None
    core = server.server.core
    collected, core.collect = core.collect, lambda frames: [collected(frames) for _ in range(50)]  # type: ignore[assignment]
    session.send(["/a"], [b"x"], no=9)
    session.refused(9)
    core.collect = collected  # type: ignore[method-assign]
    session.no = 1
    session.put({"/b": b"1"})
    assert session.refusals == [(9, "expected", 2)]


def test_an_unknown_session_must_begin_with_batch_1(hand: Hand) -> None:
    session = hand.session()
    session.send(["/a"], [b"1"], no=7)
    assert session.refused(7) == ("session", 1)


def test_a_batch_with_the_number_0_is_garbage(hand: Hand) -> None:
    session = hand.session()
    session.send(["/a"], [b"1"], no=0)
    session.put({"/b": b"1"})
    assert hand.status()["counts"]["garbage_collector"] == 1 and 0 not in session.acks


def test_conditions_are_all_or_nothing(hand: Hand) -> None:
    session = hand.session()
    revision = session.put({"/a": b"1", "/b": b"1"})
    no = session.send(["/a", "/b", "/c"], [b"2"] * 3, {"c": [[0, 1, 2], [revision, revision, 0]]})
    second, _ = session.acked(no)
    no = session.send(["/a", "/b"], [b"3"] * 2, {"c": [[0, 1], [second, revision]]})
    assert session.refused(no) == ("revision", {"/a": second, "/b": second})
    no = session.send(["/c"], [b"4"], {"c": [[0], [0]]})
    assert session.refused(no) == ("revision", {"/c": second})
    assert hand.snapshot()[0] == {b"/a": b"2", b"/b": b"2", b"/c": b"2"}
    no = session.send(["/c"], [b""], {"c": [[0], [second]], "d": [0]})
    session.acked(no)
    no = session.send(["/c"], [b"5"], {"c": [[0], [0]]})
    session.acked(no)


def test_a_condition_sees_the_chp1_set_of_the_same_turn(server: TestServer, hand: Hand) -> None:
    session = hand.session()
    revision = session.put({"/a": b"1"})
    assert server.server is not None
    core = server.server.core
    collect = core.collect

    def after_a_plain_one(frames: list[bytes]) -> None:
        collect([b"/a", ZERO, os.urandom(16), b"", b"plain"])
        collect(frames)

    core.collect = after_a_plain_one  # type: ignore[method-assign]
    no = session.send(["/a"], [b"2"], {"c": [[0], [revision]]})
    assert session.refused(no)[0] == "revision"
    core.collect = collect  # type: ignore[method-assign]
    assert hand.snapshot()[0] == {b"/a": b"plain"}


def test_a_refused_batch_that_comes_again_is_refused_again(hand: Hand) -> None:
    session = hand.session()
    session.put({"/a": b"1"})
    no = session.send(["/a"], [b"2"], {"c": [[0], [0]]})
    refusal = session.refused(no)
    session.put({"/b": b"1"})
    session.refusals.clear()
    session.send(["/a"], [b"2"], {"c": [[0], [0]]}, no=no)
    assert session.refused(no) == refusal and no not in session.acks


# -- leases


def test_the_keys_of_a_lease_stay_while_refreshed_and_expire_together(hand: Hand) -> None:
    session, lease = hand.session(), os.urandom(16)
    replica = hand.follow("")
    session.put({f"/l/{i}": b"v" for i in range(1000)}, l=lease, lease=[lease, 600])
    session.put({"/l/0": b"mine"})
    for _ in range(6):
        session.put({}, lease=[lease, 600])
        replica.until_compared()
        assert len(replica.values) == 1000, "refreshed"
    replica.until(lambda: len(replica.values) == 1)
    assert replica.values == {"/l/0": b"mine"}, "a plain set takes a key out of its lease"
    assert replica.updates.count(("/l/1", None)) == 1
    no = session.send(["/l/1"], [b"v"], {"l": lease})
    assert session.refused(no)[0] == "lease"


def test_an_unlease_deletes_the_keys(hand: Hand) -> None:
    session, lease = hand.session(), os.urandom(16)
    replica = hand.follow("/l/")
    session.put({f"/l/{i}": b"v" for i in range(10)}, l=lease, lease=[lease, 60_000])
    session.put({"/l/other": b"v"})
    session.put({}, unlease=lease)
    replica.until(lambda: len(replica.values) == 1)
    replica.until_compared()
    assert hand.status()["leases"] == 0 and hand.snapshot()[0] == {b"/l/other": b"v"}


def test_the_deletes_of_a_large_lease_fit_into_segments_of_legal_size(hand: Hand) -> None:
    session, lease = hand.session(), os.urandom(16)
    replica = hand.follow("")
    for start in (0, 60_000):
        session.put({f"/{i}": b"" for i in range(start, start + 60_000)}, l=lease, lease=[lease, 60_000])
    left = replica.at
    session.put({}, unlease=lease)
    replica.until(lambda: not replica.values)
    for _, *bodies in hand.sync("", **{"from": left})[:-1]:
        for _, *segments in bodies:
            assert all(len(keys) <= DEFAULT.batch_items_max for keys, _, _ in segments)


# -- limits


def test_values_and_batches_are_taken_up_to_the_maximum_size(hand: Hand) -> None:
    session = hand.session()
    big = os.urandom(16 << 20)
    replica = hand.follow("/")
    no = session.send(["/big"], [big])
    replica.until(lambda: replica.values == {"/big": big})
    session.acked(no)
    assert session.refused(session.send(["/big"], [big + b"x"]))[0] == "size"
    session.acked(session.send([str(i) for i in range(65_536)], [b""] * 65_536))
    assert session.refused(session.send([str(i) for i in range(65_537)], [b""] * 65_537))[0] == "bad"
    parts = [b"x" * ((17 << 20) // 4 - 9000)] * 4
    assert session.refused(session.send(list("abcd"), parts))[0] == "size"
    session.put({"/end": b"v"})
    assert hand.sync("/")[-1][0][3] == 2


def test_large_batches_of_one_turn_stay_within_a_frame(server: TestServer, hand: Hand) -> None:
    """No message may exceed a client's limit on message size. Otherwise the client would never get past it."""
    reader = hand.socket(2, 1, RCVHWM=0, MAXMSGSIZE=DEFAULT.frame_bytes_max)  # zmq.SUB
    reader.subscribe(topic(""))
    assert parts_of(receive(reader))[0][0] == GREETING
    session = hand.session()
    left = hand.sync("")[-1][0][2]
    sizes = [7 << 20, 15 << 20, 1 << 20, 16 << 20, 10]
    for i, size in enumerate(sizes):
        session.send([f"/{i}"], [bytes(size)])
    session.acked(len(sizes))
    seen = 0
    while seen < len(sizes):
        header, *segments = parts_of(receive(reader))
        seen += len(segments) if header[0] == BATCH else 0
    dealer = hand.dealer(MAXMSGSIZE=DEFAULT.frame_bytes_max)
    hand.ask(dealer, "", credit=64, **{"from": left})
    records = 0
    while (parts := parts_of(receive(dealer)))[0][0] == RECORDS:
        records += sum(len(body) - 1 for body in parts[1:])
    assert parts[0][0] == END and records == len(sizes)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x93",
        msgpack.packb([]),
        msgpack.packb({"a": 1}),
        msgpack.packb([["/a"], [], None]),
        msgpack.packb([["/a"], ["text"], None]),
        msgpack.packb([[1], [b"v"], None]),
        msgpack.packb([["/a", None], [b"v", b"v"], None]),
        msgpack.packb([[""], [b"v"], None]),
        msgpack.packb([["HUGZ"], [b"v"], None]),
        msgpack.packb([["\x02/\x03"], [b"v"], None]),
        msgpack.packb([["k" * 1025], [b"v"], None]),
        msgpack.packb([["é" * 513], [b"v"], None]),
        msgpack.packb([[b"/a"], [b"v"], None]),
        b"\x93\x91\xa2\xff\xfe\x91\xc4\x01v\xc0",
        msgpack.packb([["/a"], [b"v"], 7]),
        msgpack.packb([["/a"], [b"v"], {"d": [1]}]),
        msgpack.packb([["/a", "/b"], [b"", b""], {"d": [0, 0]}]),
        msgpack.packb([["/a"], [b"v"], {"t": 0}]),
        msgpack.packb([["/a"], [b"v"], {"t": -1}]),
        msgpack.packb([["/a"], [b"v"], {"t": [[0], [1.5]]}]),
        msgpack.packb([["/a"], [b"v"], {"t": float("nan")}]),
        msgpack.packb([["/a"], [b"v"], {"c": [[0], [-1]]}]),
        msgpack.packb([["/a"], [b"v"], {"l": b"short"}]),
        msgpack.packb([["/a"], [b"v"], {"lease": [b"x" * 16, 0]}]),
        msgpack.packb([["/a"], [b"v"], {"unlease": 1}]),
        msgpack.packb([["/a"], [b"v"], {"u": [b"x"]}]),
        msgpack.packb([["/a"], [b"v"], {"p": [[0], [b"ttl=abc\n"]]}]),
        msgpack.packb([["/a"], [b"v"], {"r": [[1, 1]]}]),
        msgpack.packb([["/a"], [b"v"], {"done": [[], {}, 1]}]),
        msgpack.packb([["/a"], [b"v"], {"refused": [b"x", 1, "bad", ""]}]),
        msgpack.packb([["/a"], [b"v"], {"stage": 1}]),
        msgpack.packb([["/a"], [b"v"], {"commit": []}]),
        msgpack.packb([["/a"], [b"v"], {"abort": "x"}]),
        msgpack.packb([["/a"], [b"v"], {1: 2}]),
        b"\x91" * 2000,
    ],
)
def test_a_bad_batch_is_refused_and_the_session_goes_on(server: TestServer, hand: Hand, body: bytes) -> None:
    session = hand.session()
    replica = hand.follow("")
    no = session.send_body(body)
    code, detail = session.refused(no)
    assert code == "bad" and type(detail) is str and detail
    session.put({"/good": b"v"})
    replica.until(lambda: replica.values == {"/good": b"v"})
    replica.until_compared()
    assert server.server is not None and not server.server.core.committer.counts["defects"]


def test_keys_of_1024_bytes_and_any_text_are_taken(hand: Hand) -> None:
    session = hand.session()
    keys = ["k" * 1024, "é" * 512, "\U0001f600" * 256, " ", "a\x00b", "/" * 1024, "~", "\x7f", "HUGZ2"]
    session.put({key: key.encode() for key in keys})
    replica = hand.follow("")
    assert set(replica.values) == set(keys)
    assert hand.snapshot()[0] == {key.encode(): key.encode() for key in keys}


# -- the pair


@pytest.fixture
def hands(pair: Pair) -> Iterator[tuple[Hand, Hand]]:
    with Hand(pair.primary.address) as one, Hand(pair.backup.address) as two:
        until(lambda: one.status()["in_sync"], "a pair in sync")
        yield one, two


def test_acknowledgements_tell_the_durability_of_a_batch(pair: Pair, hands: tuple[Hand, Hand], tmp_path: Path) -> None:
    one, _ = hands
    session = one.session()
    assert session.acked(session.send(["/a"], [b"1"]))[1] == 2, "replicated"
    pair.backup.kill()
    assert session.acked(session.send(["/b"], [b"1"]))[1] == 0, "nobody else has it"
    with TestServer(store=f"sqlite:{tmp_path}/journal") as alone, Hand(alone.address) as hand:
        session = hand.session()
        assert session.acked(session.send(["/a"], [b"1"]))[1] == 1, "journaled"


def test_a_passive_greets_as_passive_refuses_syncs_and_sends_no_heartbeats(hands: tuple[Hand, Hand]) -> None:
    one, two = hands
    passive = two.subscriber(topic(""))
    assert parts_of(receive(passive))[0][:3] == [GREETING, VERSION, PASSIVE]
    (((kind, _, code, state),),) = two.sync("")
    assert (kind, code, state) == (REFUSED, "passive", PASSIVE)
    replica = one.follow("")
    one.session().put({"/a": b"1"})
    replica.until_compared()
    replica.until_compared()
    assert not list(arrived(passive))


def test_pending_sets_are_matched_to_published_ones_by_session_and_uuid(pair: Pair, hands: tuple[Hand, Hand]) -> None:
    one, two = hands
    session = one.session()
    uuid = os.urandom(16)
    frames = [
        [RESERVED, u64(1), session.id, b"", msgpack.packb([["/a"], [b"1"], None])],
        [RESERVED, u64(2), session.id, b"", msgpack.packb([["/b"], [b"1"], None])],
        [b"/c", ZERO, uuid, b"", b"1"],
        [b"/no-uuid", ZERO, b"", b"", b"1"],
    ]
    collector = two.collector()
    for each in frames:
        collector.send_multipart(each)
    until(lambda: two.status()["pending"] == 3, "one has no uuid")
    one.collector().send_multipart(frames[0])
    until(lambda: two.status()["pending"] == 2, "the first was published")
    one.collector().send_multipart(frames[2])
    until(lambda: two.status()["pending"] == 1, "and the third")
    collector.send_multipart(frames[0])
    collector.send_multipart(frames[2])
    collector.send_multipart([RESERVED, u64(3), session.id, b"", frames[1][4]])
    until(lambda: two.status()["pending"] == 2, "what was published is not pending again")


def take_over(hand: Hand) -> None:
    """Ask until the passive serves. Each question is a vote of Binary Star."""
    until(lambda: hand.sync("")[-1][0][0] == END, "a takeover")


def test_a_takeover_publishes_each_pending_set_once(pair: Pair, hands: tuple[Hand, Hand]) -> None:
    """A takeover once repeated, lost or expired pending sets (G-05, G-07 and G-08 of docs/sources.md)."""
    one, two = hands
    session = Session(two, os.urandom(16))
    both = [one.collector(), two.collector()]

    def send(no: int, keys: list[str], values: list[bytes], extras: object = None) -> None:
        for collector in both:
            collector.send_multipart([RESERVED, u64(no), session.id, b"", msgpack.packb([keys, values, extras])])

    replica = Replica(two, "")
    plain = two.subscriber(b"/")
    replica.until(lambda: replica.greetings)
    send(1, ["/a", "/lost"], [b"old", b""], None)
    until(lambda: two.status()["keys"] == 2 and two.status()["pending"] == 0, "replicated")
    pair.primary.kill()
    send(2, ["/a", "/b"], [b"new", b"new"], {"t": [[1], [60_000]]})
    uuid = os.urandom(16)
    for _ in range(2):
        both[1].send_multipart([b"/c", ZERO, uuid, b"ttl=60\n", b"new"])
    send(3, ["/lost"], [b""], {"d": [0]})
    until(lambda: two.status()["pending"] == 3, "pending")
    take_over(two)
    session.until(lambda: 3 in session.acks)
    assert set(session.acks) == {2, 3}, "and those of the past were told by the other"
    published: list[tuple[bytes, bytes]] = []
    while len(published) < 4:
        frames = receive(plain)
        published.append((frames[0], frames[4]))
        assert number_in(frames[1]) >> 48 == 2
    assert published == [(b"/a", b"new"), (b"/b", b"new"), (b"/c", b"new"), (b"/lost", b"")]
    replica.join()
    assert replica.values == {"/a": b"new", "/b": b"new", "/c": b"new"}
    send(1, ["/a", "/lost"], [b"old", b"old"])
    send(3, ["/lost"], [b""], {"d": [0]})
    session.acks.clear()
    session.until(lambda: {1, 3} <= set(session.acks))
    replica.until_compared()
    assert replica.values == {"/a": b"new", "/b": b"new", "/c": b"new"}, "nothing was applied twice"
    assert [header[2] for header in replica.greetings] == [PASSIVE, ACTIVE]


def test_a_refused_batch_is_refused_by_the_successor_too(pair: Pair, hands: tuple[Hand, Hand]) -> None:
    one, two = hands
    session = one.session()
    session.put({"/a": b"1"})
    body = msgpack.packb([["/a"], [b"2"], {"c": [[0], [0]]}])
    assert session.refused(session.send_body(body))[0] == "revision"
    session.put({"/b": b"1"})
    pair.primary.kill()
    again = Session(two, session.id)
    take_over(two)
    again.send_body(body, no=2)
    assert again.refused(2)[0] == "revision" and again.acks == {}


def test_ttls_and_leases_survive_a_takeover(pair: Pair, hands: tuple[Hand, Hand]) -> None:
    """G-03 of docs/sources.md: of 18 keys 1 survived on the backup."""
    one, two = hands
    session, lease = one.session(), os.urandom(16)
    session.put({f"/p/{i}": b"v" for i in range(18)})
    session.put({"/t": b"v"}, t=500)
    session.put({"/l": b"v"}, l=lease, lease=[lease, 500])
    until(lambda: two.status()["keys"] == 20, "replicated")
    pair.primary.kill()
    take_over(two)
    replica = two.follow("")
    replica.until(lambda: len(replica.values) == 18)
    replica.until_compared()
    assert all(key.startswith("/p/") for key in replica.values)
