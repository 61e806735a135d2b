"""A state sent in chunks is taken over whole or not at all: what END says of it is compared with what came."""

import pytest

from chp.batch import STATE, SYNC, Segment, join
from chp.errors import BadFrame
from chp.limits import DEFAULT
from chp_server.core.pair.follow import Loader
from chp_server.core.state.state import ReplicatedState


def state() -> ReplicatedState:
    made = ReplicatedState(DEFAULT)
    for i, part in enumerate(("0.0", "0.0", "1.0")):
        made.apply(Segment([f"/{i}"], [b"x" * i], {"t": 500, "stage": [b"t" * 16, part]}), 1, 0.0)
    return made


def loaded(chunks: list[bytes], end: bytes) -> ReplicatedState:
    loader = Loader(DEFAULT)
    for i, chunk in enumerate(chunks):
        loader.add(join([SYNC, 0, i], [chunk]), 0.0)
    return loader.finish(end, 0.0)


def test_staged_updates_arrive_with_the_state() -> None:
    sent = state()
    # A receiver does not know the records that staged them.
    sent.staging.forget_numbers()
    got = loaded(list(sent.staging.segments()), list(sent.rest(0.0))[-1])
    assert got.staging.measure() == sent.staging.measure() == (3, sent.staging.bytes)
    assert got.staging.transactions[b"t" * 16].parts == sent.staging.transactions[b"t" * 16].parts


def test_a_state_without_one_of_its_staged_segments_is_not_taken_over() -> None:
    sent = state()
    chunks = list(sent.staging.segments())
    for lost in range(3):
        with pytest.raises(BadFrame, match="chunks of the snapshot"):
            loaded(chunks[:lost] + chunks[lost + 1 :], list(sent.rest(0.0))[-1])


def test_a_state_of_an_older_server_without_staged_counts_is_read() -> None:
    """A journal's snapshot that an older server wrote."""
    sent = ReplicatedState(DEFAULT)
    end = list(sent.rest(0.0))[-1]
    header = join([STATE, 0, 0, 0, 0, 0, 0, 0])
    shorter = join([STATE, 0, 0, 0])
    assert end.count(header[1:]) == 1
    assert loaded([], end.replace(header[1:], shorter[1:])).number == 0


def test_both_servers_drop_a_late_part_of_a_committed_transaction() -> None:
    sent = state()
    sent.apply(Segment([], [], {"done": ["job", 7, b"t" * 16]}), 2, 0.0)
    got = loaded([], list(sent.rest(0.0))[-1])
    for each in (sent, got):
        each.apply(Segment(["/late"], [b"x"], {"stage": [b"t" * 16, "0.1"]}), 3, 0.0)
        assert each.staging.measure() == (0, 0)


def test_an_older_version_does_not_take_the_place_of_a_newer() -> None:
    """A suffix may bring an older version; if it replaced the newer one, a repeated micro-batch would be done again."""
    here = ReplicatedState(DEFAULT)
    for revision, version in enumerate((7, 5), 1):
        here.apply(Segment([], [], {"done": ["job", version, bytes(16)]}), revision, 0.0)
    assert here.staging.done("job", 7) == 1
