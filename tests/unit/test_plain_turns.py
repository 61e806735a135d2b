"""Turns in which only sets of keys and values come: they cost little, and what is due is on time. covers: core.py"""

import pytest

from benchmarks.journeys import WHOLE, Journey, counted, of_cores
from chp.batch import HEARTBEAT, KTHXBAI, SYNC, packb, split
from chp.keys import channel_topic
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_server.core.updates.resource_limits import ResourceUsage
from chp_server.core.updates.turn import Turn
from tests.unit.server_talk import ONE, Talk

STEP_S = 0.001
# (calls of our functions, files that they enter)
CALLS_MAX = {
    "the active's turn, which commits": (75, 22),
    "the active's turn, which hears the confirmation": (60, 24),
    "an idle turn of the active": (30, 14),
    WHOLE: (300, 40),
}


class Busy(Talk):
    """A server where a client sets a key each millisecond, and whose deadline is asked for as the reactor does."""

    def __init__(self) -> None:
        super().__init__()
        self.no = 0
        self.core.measured(ResourceUsage())
        self.core.subscription([b"1", b"\x01" + channel_topic("")])
        self.step()
        for _ in range(3):
            self.core.next_deadline()
            self.step()

    def step(self) -> Turn:
        """Set a key, and take the turn."""
        self.no += 1
        self.set(ONE, self.no, {"/a": b"%d" % self.no})
        turn = self.turn(STEP_S)
        self.core.next_deadline()
        return turn


@pytest.fixture
def busy() -> Busy:
    return Busy()


def test_the_turn_of_one_set_enters_few_functions(busy: Busy) -> None:
    until = busy.core.next_deadline()
    assert until > busy.now + STEP_S, "nothing else is due"
    with counted(journey := Journey()):
        turn = busy.step()
    assert len(turn.acks) == len(turn.publish) == len(turn.journal) == 1
    assert len(journey.calls) <= 100, journey.calls


@pytest.mark.parametrize("quiet", [True, False])
def test_each_step_of_one_set_in_a_pair_enters_few_functions_and_files(quiet: bool) -> None:
    found = of_cores(quiet=quiet)
    for step, (calls, files) in CALLS_MAX.items():
        journey = found[step]
        assert len(journey.calls) <= calls, f"{step}: {journey.calls}"
        assert journey.files <= files, f"{step}: {journey.most}"


def test_heartbeats_are_on_time_while_sets_come(busy: Busy) -> None:
    beats = [frames for _ in range(2000) for frames in busy.step().publish if frames[0] != b"HUGZ"]
    kinds = [split(frames[4])[0][0] for frames in beats]
    assert 7 <= kinds.count(HEARTBEAT) <= 9, "each quarter of a second, for two seconds"


def test_a_ttl_ends_on_time_while_sets_come(busy: Busy) -> None:
    busy.no += 1
    busy.set(ONE, busy.no, {"/short": b"1"}, t=50)
    busy.step()
    end = busy.now + 0.049
    while busy.now < end:
        assert "/short" in busy.map
        busy.step()
    for _ in range(4):
        busy.step()
    assert "/short" not in busy.map


def test_a_reader_gets_its_copy_while_sets_come(busy: Busy) -> None:
    options = packb({"chp": 4, "id": 7, "from": 0, "credit": 8})
    busy.core.request([b"reader", ICANHAZ, b"", options])
    replies = [frames for _ in range(10) for _, each in busy.step().replies for frames in each]
    assert [split(frames[4])[0][0] for frames in replies] == [SYNC, KTHXBAI]
    assert replies[-1][1] != pack(busy.core.state.number), "sets went on"


def test_a_reader_that_has_room_again_goes_on_at_once(busy: Busy) -> None:
    busy.core.request([b"reader", ICANHAZ, b"", packb({"chp": 4, "id": 7, "from": 0, "credit": 8})])
    busy.core.requests.blocked.add(b"reader")
    for _ in range(10):
        assert not busy.step().replies
    busy.core.requests.blocked.clear()
    assert busy.step().replies
