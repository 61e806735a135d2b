"""covers: sets, conditional sets and reads after a sync are linearizable, although servers are killed and stopped."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from chp_client.errors import refusal

from .cluster import ProcessPair
from .faults import SERVER_FAULTS
from .histories import History, Recorders, outcome_of
from .linearizable import CAS, READ, SET

pytestmark = pytest.mark.slow
ROUNDS, MANY = 2, 30


def recorded(pair: ProcessPair, rounds: int, seed: int) -> History:
    """Return a history of so many rounds, each with all faults."""
    rng = random.Random(seed)
    with Recorders(pair.servers, seed=seed) as recorders:
        for _ in range(rounds):
            for fault in rng.sample(SERVER_FAULTS, len(SERVER_FAULTS)):
                fault(pair, rng)
                recorders.go_on()
                pair.wait_in_sync()
        return recorders.end()


def spoiled(history: History) -> list[History]:
    """Return wrong copies of a history: a lost set, a set done after a later one, and a read of a replaced value."""
    key, calls = next((key, calls) for key, calls in history.calls.items() if sum(c.kind == CAS for c in calls) > 9)
    counted = [call for call in calls if call.kind == CAS and call.sure]
    lost = [replace(call, value=counted[-5].value) if call.process == "end" else call for call in calls]
    late = [replace(call, expected=counted[-5].value) if call is counted[-1] else call for call in calls]
    reads = [call for call in calls if call.kind == READ and call.process != "end" and call.value]
    old = next(call for call in counted if call.answered < reads[-1].called and call.value != reads[-1].value)
    stale = [replace(call, value=old.value) if call is reads[-1] else call for call in calls]
    return [History({key: lost}), History({key: late}), History({key: stale})]


def test_two_rounds_of_kills_stops_and_switches_are_linearizable(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair:
        history = recorded(pair, ROUNDS, seed=1)
    assert not history.wrong(), history.outcomes
    assert history.outcomes["replicated"] > 100 and history.outcomes["conflict"], history.outcomes
    assert history.outcomes["read"] > 20, history.outcomes
    assert all(each.wrong() for each in spoiled(history)), "a history with an error in it is taken for right"


def test_a_set_refused_as_parted_may_be_done_after_its_answer() -> None:
    sets = [
        ["call", 1.0, SET, "/h/1", "p1.1", 0, None],
        ["answer", 2.0, "replicated", 7],
        ["call", 3.0, CAS, "/h/1", "p1.2", 7, "p1.1"],
    ]
    read = [["call", 5.0, READ, "/h/1", None, 0, None], ["read", 6.0, "p1.2"]]
    for code, wrong in ("parted", False), ("revision", True):
        answer = ["answer", 4.0, outcome_of(refusal(code, {"/h/1": 7})), None]
        assert bool(History.of({"p1": [*sets, answer], "p2": read}).wrong()) == wrong, code


@pytest.mark.long
@pytest.mark.parametrize("seed", range(MANY))
def test_many_rounds_of_faults_are_linearizable(tmp_path: Path, seed: int) -> None:
    with ProcessPair(tmp_path) as pair:
        history = recorded(pair, 3, seed=100 + seed)
    assert not history.wrong(), history.outcomes
