"""covers: chp/unpacking.py, Load: what servers pack into one body, every reader of ours unpacks."""

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chp.batch import Segment, decode, encode, packb, record_of
from chp.headers import Batch, Kthxbai, Messages, Records
from chp.keys import channel_topic
from chp.limits import DEFAULT
from chp.topics import pack_messages, unpack_messages
from chp.unpacking import BODY, CONTAINER, LIGHT, SEGMENT, TooMuch, unpack, weight_of
from chp_server.core.questions.message_pages import MessagePages
from chp_server.core.questions.syncs import resume_parts
from chp_server.core.state.record_log import SEGMENTS_WEIGHT_MAX, Record
from chp_server.core.state.record_log import LoggedMessages as Row
from chp_server.cores import Cores

from .group_talk import GroupTalk
from .server_talk import ONE, TWO, Talk

things: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 9) | st.binary(max_size=3) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=4),
    max_leaves=40,
)
# A body of this many bytes is weighed.
LONG = bytes(LIGHT)


@given(things)
@settings(deadline=None)
def test_an_object_is_taken_if_and_only_if_its_weight_is_allowed(thing: Any) -> None:
    thing = [LONG, thing]
    weight, body = weight_of(thing), packb(thing)
    assert unpack(body, weight) == thing
    with pytest.raises(TooMuch):
        unpack(body, weight - 1)


EXTRAS: list[dict[str, Any] | None] = [
    None,
    {},
    {"d": [0, 2]},
    {"t": 500},
    {"t": [[0], [500]], "c": [[1], [0]], "n": [[1], [7]], "p": [[0], [b"x"]]},
    {"u": [b"1" * 16, b"", b""], "r": [[7, 1], [8, 2]], "l": b"l" * 16, "lease": [b"l" * 16, 500]},
    {
        "placed": [7, [["t", 1, 2, 3, 4], ["u", 1, 2, 3, 4]]],
        "once": ["app", 3, False],
        "expect": [["/x", 1], ["/y", 2]],
        "publish": [["t", 1, b"xyz"], ["u", 2, b"xyz"]],
    },
    {"ack": [["t", "g", b"m" * 16, [[bytes(32), 0, 5], [bytes(32), 3, 5]]]], "topic": ["t", {"keep": "all"}]},
]


@pytest.mark.parametrize("extras", EXTRAS)
def test_the_weight_of_a_segment_equals_the_weight_that_a_reader_counts(extras: dict[str, Any] | None) -> None:
    segment = Segment(["/a", "/b", "/c"], [b"1", b"", b"3"], extras)
    assert segment.weight == weight_of(msgpack.unpackb(segment.encode()))


# -- what a server makes


def is_read(body: bytes) -> tuple[Any, list[Any]]:
    """Return a body as our own client and peer read it; it fails if they refuse it."""
    return decode(body)


# These conditions on keys have four bytes and a weight of 19 each.
HEAVY = [[f"/{i % 10}", 0] for i in range(45_000)]


def test_passive_and_subscribers_read_a_record_of_heavy_batches() -> None:
    pair = Cores()
    pair.p.subscription([b"reader", b"\1" + channel_topic("")])
    pair.p.subscription([b"reader", b"\1" + channel_topic("/k/")])
    pair.run(0.2)
    before = len(pair.turns["P"])
    for session in (ONE, TWO):
        for no in range(1, 4):
            pair.put("P", session, no, {f"/k/{session[:1]!r}{no}": b"v"}, expect=HEAVY)
    pair.run(0.5)
    bodies = [f[4] for t in pair.turns["P"][before:] for f in t.publish if f[0][:1] == b"\2"]
    assert [h for h, _ in map(is_read, bodies) if isinstance(h, Batch) and h.more], "it came in parts"
    assert pair.b.state.map.values == pair.p.state.map.values and len(pair.p.state.map.values) == 6
    assert pair.b.state.number == pair.p.state.number and pair.p.pair.in_sync(), "the passive follows"
    assert sorted(kind for _, kind, *_ in pair.answers(ONE)) == ["ack"] * 3


def test_passive_and_subscribers_read_a_staged_commit_of_many_small_batches() -> None:
    talk = Talk()
    talk.core.subscription([b"reader", b"\1" + channel_topic("/")])
    talk.turn()
    rows, transaction = 30_000, b"t" * 16
    for no in range(1, rows + 1):
        talk.set(ONE, no, {f"/{no}": b"v"}, stage=[transaction, "s"])
    talk.turn()
    talk.set(ONE, rows + 1, {}, commit=[transaction, "app", 1, [["s", rows]], None])
    turn = talk.turn()
    bodies = [frames[4] for frames in turn.publish if frames[0] == channel_topic("/")]
    read = [(header, items) for header, items in map(is_read, bodies) if isinstance(header, Batch)]
    assert sum(len(items) for _, items in read) == rows
    for record in talk.core.committer.committed.log.after(0, 1 << 62):
        is_read(record.body)


@pytest.mark.parametrize("subtree", ["", "/k/"])
def test_a_reader_takes_the_resume_chunks_of_many_small_records(subtree: str) -> None:
    dice, records, at = random.Random(5), [], 0
    for _ in range(6_000):
        segments = [
            Segment(["/k/a", "/k/b"], [b"1", b"2"], {"once": ["app", at, False], "placed": [1, [["t", at, 4, 9, 1]]]}),
            Segment([], [], {"ack": [["t", "g", b"m" * 16, [[bytes(32), at, at + 4]]]]}),
        ] * dice.choice([1, 3, 9])
        origins = [[ONE, at + 1], [TWO, at + 1]]
        header = Batch(at, at + 1, at + len(segments), 5, origins, False, [[1, at, 1], [2, at, 1]])
        body = packb([[1, *header], *[msgpack.unpackb(segment.encode()) for segment in segments]])
        records.append(Record(at, at + 1, at + len(segments), body))
        at += len(segments)
    end = Kthxbai(1, at, 0, 0, None, True)
    chunks = [frames[4] for [frames] in resume_parts(iter(records), 0, subtree, end, DEFAULT, opener=lambda _: b"")]
    read = [record_of(item) for header, items in map(is_read, chunks) if isinstance(header, Records) for item in items]
    assert [header.last for header, _ in read] == [record.last for record in records]
    assert len(chunks) > 1


def test_a_member_of_a_group_gets_rows_of_more_messages_than_a_batch_may_have() -> None:
    pages = MessagePages()
    batches = [pack_messages([str(i)] * 40_000, [b""] * 40_000) for i in range(3)]
    row = Row(1, 0, 120_000, 7, 5, packb(batches))
    pages.keep([row])
    [found] = pages.find(1, 0, 120_000, 9, 1 << 20) or []
    item, n = pages.item(found, ((1 << 256) - 1) ^ 1, 0, 120_000)
    _, [[_, _, _, _, bodies, _]] = is_read(encode(Messages(1, 120_000, 0, 120_000, [], []), [item]))
    assert sum(len(unpack_messages(body)[1]) for body in bodies) == n == 120_000


def test_a_page_of_a_group_stays_within_the_bounds_of_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = GroupTalk()
    one = talk.member("g")
    rows = [Row(1, i, 1, 1, 5, packb([pack_messages(None, [b""])])) for i in range(60_000)]
    monkeypatch.setattr(talk.shelf, "read", lambda topic, at, number, size: rows[at:])
    talk.core.requests.readers.coordinator._scarce = lambda *_: False  # type: ignore[method-assign]
    talk.publish("t", [b""] * 60_000)
    for _ in range(9):
        talk.turn(0.1)
        while one.chunks:
            assert one.ack() == ""
    assert len(one.got) == 60_000


def test_answers_that_list_groups_stay_within_the_bounds_of_a_reader() -> None:
    talk = GroupTalk()
    talk.publish("t", [b"1"])
    topic_of = talk.core.state.topics.by_name
    talk.turn()
    for i in range(40):
        assert talk.group("t", f"g{i:02}") == ""
        group = topic_of["t"].groups[f"g{i:02}"]
        group.members |= {b"%016d" % n: "n" * 250 for n in range(256)}
    told, names = topic_of["t"].groups_after("", 500), []
    while told:
        assert len(packb(told)) < 2 << 20
        names += [each["name"] for each in told]
        told = topic_of["t"].groups_after(names[-1], 500)
    assert names == [f"g{i:02}" for i in range(40)]


def test_the_bounds_leave_room_for_the_heaviest_batch() -> None:
    assert SEGMENT * 11 // 10 < SEGMENTS_WEIGHT_MAX < BODY - 3 * CONTAINER
