"""Tests that seeds run clean, and that a seed gives the same run each time, whatever the order of Python's sets."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256

import pytest

from tests.sim.__main__ import show
from tests.sim.run import run_plan, run_seed
from tests.sim.schedule import plan, with_copies, with_replicas

SEEDS = int(os.environ.get("CHP_SIM_SEEDS", "150"))
PER_TEST = 50


@pytest.mark.parametrize("start", range(0, SEEDS, PER_TEST))
def test_seeds_run_clean(start: int) -> None:
    for seed in range(start, min(start + PER_TEST, SEEDS)):
        result = run_seed(seed)
        if result.error:
            show(plan(seed), short=True)
        assert not result.error, f"seed {seed} ({result.temper}): {result.error}; see the transcript above"


def test_seed_382_drops_a_partial_record_during_a_snapshot() -> None:
    """The snapshot goes on, as in a real journal (`Journal.drop_after`)."""
    result = run_seed(382)
    assert not result.error, result.error


# The last two seeds have keys and rules.
@pytest.mark.parametrize("seed", [2, 13, 17, 105, 131, 319])
def test_seeds_with_replicas_run_clean(seed: int) -> None:
    result = run_plan(with_replicas(plan(seed)))
    assert not result.error, f"python -m tests.sim --replicas --from {seed} --seeds 1: {result.error}"
    assert result.compared > 100, "copies were compared"


@pytest.mark.parametrize("seed", [9, 97])
def test_seeds_that_lose_two_of_three_disks_run_clean(seed: int) -> None:
    made = with_copies(plan(seed))
    assert sum(command.startswith("lose ") for command in made.commands) == 2
    result = run_plan(made)
    assert not result.error, f"python -m tests.sim --copies --from {seed} --seeds 1: {result.error}"


def _digest(seed: int) -> str:
    return sha256("\n".join(run_seed(seed, tracing=True).lines).encode()).hexdigest()


def test_a_seed_gives_the_same_transcript_every_time() -> None:
    assert _digest(7) == _digest(7)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_does_not_depend_on_the_order_of_sets(hash_seed: str) -> None:
    code = "from tests.sim.test_simulator import _digest; print(_digest(11))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == _digest(11), done.stderr


def test_the_first_forty_seeds_reach_all_wanted_events() -> None:
    """The 40 seeds together have failovers, suffixes, replicated and journaled acknowledgements, refusals and reads."""
    wanted = {
        "is now ACTIVE (vote_peer_silent)", "is now ACTIVE (alone)", "is now ACTIVE (handover)", "says suffix",
        " replicated", " journaled", "REFUSED", "expected", "resumed", " -x ", "journal replaced", "says degraded",
        "deleted", "unlease=", " read /lin/", "says paused",
    }  # fmt: skip
    for seed in range(40):
        text = "\n".join(run_seed(seed, tracing=True).lines)
        wanted = {words for words in wanted if words not in text}
        if not wanted:
            return
    raise AssertionError(f"no run had {wanted}")
