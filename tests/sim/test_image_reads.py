"""covers: undo_log.py, image_numbers.py under random faults: each part of a read is what the map was at its number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chp_server.core.state.state import ReplicatedState
from chp_server.core.state.undo_log import UndoLog

from .imagereader import ImageReader
from .run import Result, run_plan
from .schedule import plan, with_image_reads
from .world import World

SEEDS = range(4)
TRIED = 40


def run(seed: int) -> tuple[Result, list[ImageReader]]:
    worlds: list[World] = []
    result = run_plan(with_image_reads(plan(seed)), prepare=worlds.append)
    return result, [node for node in worlds[0].nodes.values() if isinstance(node, ImageReader)]


@pytest.mark.slow
def test_seeds_with_image_reads_run_clean_also_at_a_successor() -> None:
    done = [run(seed) for seed in SEEDS]
    assert [result.error for result, _ in done] == [""] * len(done)
    readers = [reader for _, readers in done for reader in readers]
    assert sum(reader.parts for reader in readers) > 20 * sum(reader.lost for reader in readers)
    assert sum(reader.of_successors for reader in readers) > 0


def what_comes_is_not_undone(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: an image at an earlier number is the present map."""
    mp.setattr(UndoLog, "since", lambda self, number: [])


def only_the_first_layer_is_undone(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: an image at a kept number still has the changes after the next kept number."""
    mp.setattr(
        UndoLog, "since", lambda self, number: [c for at in self.layers if at.number == number for c in at.columns]
    )


def deferred_commits_are_not_in_the_map_when_a_number_is_kept(mp: pytest.MonkeyPatch) -> None:
    """Plant a bug: the rest of a large commit is taken for a change after the number."""

    def keep(self: ReplicatedState, number: int | None, forgets: list[int], now: float) -> None:
        self.undo.drop(forgets)
        if number is not None:
            self.undo.keep(number, now)

    mp.setattr(ReplicatedState, "_keep_number", keep)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        what_comes_is_not_undone,
        only_the_first_layer_is_undone,
        deferred_commits_are_not_in_the_map_when_a_number_is_kept,
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    said = []
    for seed in range(TRIED):
        said.append(run(seed)[0].error)
        if " read part " in said[-1]:
            return
    raise AssertionError(f"it was not found in {TRIED} seeds, which said {set(said)}")
