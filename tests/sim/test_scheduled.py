"""covers: state/schedule.py, expiry.py under random faults: each scheduled message is published once, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chp_server.core.state.schedule import Schedule, ScheduledMessage

from .run import run_plan
from .schedule import plan, with_schedules

SEEDS = range(6)
TRIED = 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_with_scheduled_messages_run_clean(seed: int) -> None:
    assert run_plan(with_schedules(plan(seed))).error == ""


def not_sent(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a whole state has no scheduled messages."""
    mp.setattr(Schedule, "segments", lambda self, now_ms: iter(()))
    mp.setattr(Schedule, "measure", lambda self: (0, 0))


def published_again(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: each message is published once more."""
    seen = set[bytes]()

    def again(self: ScheduledMessage, now_ms: int) -> int:
        if self.body in seen:
            return 0
        seen.add(self.body)
        return now_ms + 50

    mp.setattr(ScheduledMessage, "next_due", again)


def cancelled_and_published(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: a cancelled message stays."""
    apply = Schedule.apply
    mp.setattr(Schedule, "apply", lambda self, extras: apply(self, {k: x for k, x in extras.items() if k != "cancel"}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (not_sent, "wait with different messages"),
        (published_again, "is there more than once"),
        (cancelled_and_published, "was cancelled, and was published"),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], words: str
) -> None:
    plant(monkeypatch)
    said = []
    for seed in range(TRIED):
        said.append(run_plan(with_schedules(plan(seed))).error)
        if words in said[-1]:
            return
    raise AssertionError(f"it was not found in {TRIED} seeds, which said {set(said)}")
