"""covers: tests/process/linearizable.py: a search that never says no proves nothing."""

from __future__ import annotations

import random

import pytest

from tests.process.linearizable import CAS, READ, SET, Call, wrong


def a_set(value: str, called: float, answered: float = float("inf"), process: str = "p") -> Call:
    return Call(process, SET, value, called, answered)


def a_cas(expected: str | None, value: str, called: float, answered: float = float("inf"), process: str = "p") -> Call:
    return Call(process, CAS, value, called, answered, expected)


def a_read(value: str | None, called: float, answered: float) -> Call:
    return Call("r", READ, value, called, answered)


@pytest.mark.parametrize(
    "calls",
    [
        [],
        [a_set("1", 0, 1), a_read("1", 2, 3)],
        [a_set("1", 0, 3), a_set("2", 1, 2), a_read("1", 4, 5)],
        [a_cas(None, "1", 0, 1), a_cas("1", "2", 2, 3), a_read("2", 4, 5)],
        [a_set("1", 0, 1), a_cas("1", "2", 2), a_read("1", 3, 4), a_read("2", 5, 6)],
        [a_set("1", 0, 1), a_set("lost", 2), a_read("1", 3, 4)],
        [a_set("1", 0), a_cas("1", "2", 1), a_cas("2", "3", 2, 4), a_read("3", 5, 6)],
    ],
    ids=["nothing", "one", "at once", "chain", "late", "not known, not done", "not known, seen"],
)
def test_linearizable_histories_are_accepted(calls: list[Call]) -> None:
    assert not wrong(calls)


@pytest.mark.parametrize(
    "calls",
    [
        [a_set("1", 0, 1), a_set("2", 2, 3), a_read("1", 4, 5)],
        [a_set("1", 0, 1), a_set("2", 2, 3), a_cas("1", "3", 4, 5)],
        [a_set("1", 0, 1), a_cas("1", "2", 2, 3), a_cas("1", "3", 2, 3, "q")],
        [a_set("1", 0, 1), a_read("refused", 2, 3)],
        [a_set("1", 2, 3), a_read("1", 0, 1)],
        [a_set("1", 0, 1), a_set("2", 2), a_read("2", 3, 4), a_read("1", 5, 6), a_read("2", 7, 8)],
    ],
    ids=["lost", "stale", "both won", "refused and done", "seen before it was called", "done twice"],
)
def test_non_linearizable_histories_are_found(calls: list[Call]) -> None:
    assert wrong(calls)


def history(rng: random.Random, length: int) -> list[Call]:
    """Return the calls of four processes at a real register, where each call has its effect between its two times."""
    calls: list[Call] = []
    state, free = None, [0.0] * 4
    for n in range(length):
        i = rng.randrange(4)
        called, answered = max(free[i], n - rng.random() * 3), n + rng.random() * 3
        # The process is still busy with its last call.
        if called > n:
            continue
        free[i] = answered
        cas = rng.random() < 0.6
        calls.append(Call(f"p{i}", CAS if cas else SET, str(n), called, answered, state if cas else None))
        state = str(n)
    return calls


def test_one_missing_call_among_hundreds_is_found() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        calls = history(rng, 300)
        assert not wrong(calls), f"seed {seed}"
        seen = {call.expected for call in calls if call.kind == CAS}
        lost = rng.choice([call for call in calls if call.value in seen])
        assert wrong([call for call in calls if call is not lost]), f"seed {seed}: {lost} is not missed"


def test_a_history_of_thousands_of_calls_can_be_checked() -> None:
    assert not wrong(history(random.Random(1), 4000))
