"""The log of the latest records: by boundary, bounded, without a gap."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chp.limits import DEFAULT
from chp_server.core.state.record_log import Record, RecordLog
from chp_server.testing import Cores

sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), max_size=30)


def filled(steps: list[tuple[int, int]], log: RecordLog) -> list[Record]:
    made, at = [], 0
    for count, size in steps:
        made.append(Record(at, at + 1, at + count, b"x" * size))
        at += count
        log.append(made[-1])
    return made


@given(sizes, st.integers(1, 200), st.integers(1, 10))
def test_the_log_keeps_the_newest_records_within_the_bounds(
    steps: list[tuple[int, int]], bytes_max: int, records_max: int
) -> None:
    log = RecordLog(replace(DEFAULT, log_bytes_max=bytes_max, log_records_max=records_max))
    made = filled(steps, log)
    kept = made[len(made) - len(log) :]
    assert log.bytes == sum(len(r.body) for r in kept)
    assert len(log) <= records_max and (log.bytes <= bytes_max or len(log) == 1)
    assert kept or not made, "the newest is kept however large"
    if len(kept) < len(made):
        one_more = made[-len(kept) - 1 :]
        assert len(one_more) > records_max or sum(len(r.body) for r in one_more) > bytes_max, "as much as they allow"
    boundaries = {r.prev for r in kept} | {r.last for r in kept}
    for number in range(-1, (made[-1].last if made else 0) + 2):
        assert log.reaches(number) == (number in boundaries)
        assert log.after(number, 1 << 60) == ([r for r in kept if r.prev >= number] if number in boundaries else [])


def test_a_reader_may_begin_after_a_whole_record_only() -> None:
    """A record whose first part is gone cannot be sent, since its keys would have the number of a part (seed 250)."""
    log = RecordLog(replace(DEFAULT, log_records_max=3))
    found = []
    for at, more in enumerate([False, True, True, False, False, True, True, True, True, False]):
        log.append(Record(at, at + 1, at + 1, b"", more=more))
        found.append((log.start, log.oldest))
    assert found[:7] == [(0, 0), (0, 0), (0, 0), (1, 1), (2, 4), (3, 4), (4, 4)]
    assert found[7:] == [(5, 5), (6, None), (7, 10)]
    log.clear()
    assert log.start is None and log.oldest is None


@given(sizes, st.integers(0, 60))
def test_a_log_portion_is_a_single_record_or_within_the_bytes(steps: list[tuple[int, int]], bytes_max: int) -> None:
    log = RecordLog(DEFAULT)
    made = filled(steps, log)
    at, seen = 0, []
    while part := log.after(at, bytes_max):
        assert len(part) == 1 or sum(len(r.body) for r in part) <= bytes_max
        seen += part
        at = part[-1].last
    assert seen == made


@given(sizes, st.integers(0, 100))
def test_drop_after_returns_all_records_after_a_number(steps: list[tuple[int, int]], number: int) -> None:
    log = RecordLog(DEFAULT)
    made = filled(steps, log)
    assert log.drop_after(number) == [r for r in made if r.last > number]
    assert log.bytes == sum(len(r.body) for r in made if r.last <= number)


def test_a_record_that_does_not_follow_restarts_the_log() -> None:
    log = RecordLog(DEFAULT)
    filled([(1, 1)] * 3, log)
    log.append(Record(9, 10, 10, b"xx"))
    assert len(log) == 1 and log.bytes == 2 and log.start == 9 and not log.reaches(2)


def test_the_log_shrinks_when_no_passive_needs_the_records() -> None:
    """covers: PeerLink shrinks the log when its passive is gone, when no peer is in sync, or when it hands over."""
    limits = replace(DEFAULT, log_bytes_max=4000, replica_bytes_max=400_000)
    pair = Cores(limits)

    def fill(name: str, first: int) -> int:
        for no in range(first, first + 40):
            pair.put(name, name.encode() * 16, no, {"/k": b"v" * 1000})
            pair.run(0.05)
        return pair.cores[name].committer.committed.log.bytes

    assert fill("P", 1) < 5500
    pair.p.begin_turn(pair.now, pair.now)
    pair.p.link.switch()
    pair.run(0.5)
    assert pair.b.active and not pair.p.active
    assert fill("B", 1) < 5500 and pair.p.committer.committed.log.bytes < 5500, "both are flat after a hand-over"
    pair.linked = False
    assert fill("B", 41) < 5500, "and the active is without a passive"
