"""Tests of the table of runs: it remembers what a queue of runs for each session would, in 28 bytes a run.

covers: core/state/runs.py, and the runs of core/state/sessions.py
"""

import sys
import tracemalloc
from collections import deque
from random import Random

import pytest

from chp.batch import split
from chp.limits import DEFAULT
from chp_server.core.state.runs import NO_RUN, RunTable
from chp_server.core.state.sessions import FORGOTTEN, SessionRecord
from chp_server.core.state.state import ReplicatedState


class Queues:
    """The model: one queue of the latest runs of all sessions, as objects."""

    def __init__(self, most: int) -> None:
        self._queue = deque[tuple[int, tuple[int, int, int]]](maxlen=most)

    def add(self, session: int, first: int, last: int, revision: int) -> None:
        self._queue.append((session, (first, last, revision)))

    def of(self, session: int) -> list[tuple[int, int, int]]:
        return [run for whose, run in self._queue if whose == session]


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_the_run_table_agrees_with_a_model_of_queues(most: int) -> None:
    table, queues, dice = RunTable(most), Queues(most), Random(most)
    latest, last_no = [NO_RUN] * 5, [0] * 5
    for revision in range(1, 1000):
        # One session comes very seldom, so that the runs before its latest one are forgotten.
        whose = dice.choices(range(5), [1, 20, 20, 5, 40])[0]
        first = last_no[whose] + dice.choice([1, 1, 1, 3])
        last_no[whose] = first + dice.choice([0, 0, 9])
        latest[whose] = table.add(latest[whose], first, last_no[whose], revision)
        queues.add(whose, first, last_no[whose], revision)
        assert [table.of(place) for place in latest] == [queues.of(session) for session in range(5)]
        assert len(table) == min(most, revision)
    for session, place in enumerate(latest):
        model = {no: revision for first, last, revision in queues.of(session) for no in range(first, last + 1)}
        for no in range(last_no[session] + 2):
            assert table.revision_of(place, no) == model.get(no)


def test_a_session_knows_its_revisions_as_long_as_the_table_has_them() -> None:
    table = RunTable(3)
    one, other = SessionRecord(0, 0.0, table), SessionRecord(4, 0.0, table)
    one.record(2, 10, 1.0)
    one.record(3, 11, 2.0)
    other.record(7, 12, 2.0)
    assert (one.runs, other.runs, one.no, one.seen) == ([(1, 2, 10), (3, 3, 11)], [(5, 7, 12)], 3, 2.0)
    other.record(8, 13, 3.0)
    assert (one.revision_of(1), one.revision_of(3), other.revision_of(6)) == (FORGOTTEN, 11, 12)


def test_a_copied_run_table_does_not_change_with_the_original() -> None:
    table = RunTable(2)
    place = table.add(NO_RUN, 1, 1, 5)
    copied = table.copy()
    table.add(table.add(place, 2, 2, 6), 3, 3, 7)
    assert (table.of(place), copied.of(place)) == ([], [(1, 1, 5)])


def test_the_largest_numbers_fit() -> None:
    table = RunTable(2)
    most = (1 << 64) - 1
    assert table.of(table.add(NO_RUN, most, most, (1 << 63) - 1)) == [(most, most, (1 << 63) - 1)]


def test_a_full_run_table_takes_less_than_two_mebibytes() -> None:
    """Runs as lists of tuples took 9 MiB for the 50,000 that a server keeps."""
    tracemalloc.start()
    try:
        state, blocks = ReplicatedState(DEFAULT), sys.getallocatedblocks()
        for no in range(1, DEFAULT.runs_max + 10):
            state.record_batch(b"%016d" % (no % 10), no, no, 0.0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 << 20 and sys.getallocatedblocks() - blocks < 1000


def test_a_state_carries_the_runs_to_another_server() -> None:
    state = ReplicatedState(DEFAULT)
    for no in range(1, 40):
        state.record_batch(b"%016d" % (no % 3), no, 100 + no, 0.5)
    state.sessions[b"%016d" % 1].skip(60, 61, 8)
    whole = list(state.rest(1.0))[-1]
    loaded = ReplicatedState(DEFAULT)
    loaded.load_rest(split(whole)[1], 1.0)
    assert {i: s.runs for i, s in loaded.sessions.items()} == {i: s.runs for i, s in state.sessions.items()}
    assert loaded.sessions[b"%016d" % 1].skipped == ((60, 61),)
    assert list(loaded.rest(1.0))[-1] == whole
