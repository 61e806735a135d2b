"""covers: topics and groups keep all promises, although servers and programs are killed and stopped."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .cluster import ProcessPair
from .faults import killed
from .topic_histories import Workers, judge, recorded, worker_killed

pytestmark = pytest.mark.slow
SEEDS = range(300, 308)


def active_and_a_program_killed(workers: Workers, pair: ProcessPair, chance: random.Random) -> None:
    killed(pair, chance)
    worker_killed(workers, pair, chance)


def test_topics_keep_their_promises_if_the_active_and_a_program_are_killed(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair:
        told = judge(recorded(pair, 1, 1, (active_and_a_program_killed,), processes=2), tmp_path)
    assert told["replicated"] > 30 and told["effects"] > 30 and told["read"] > 30, told


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
def test_topics_keep_their_promises_in_many_rounds_of_faults(tmp_path: Path, seed: int) -> None:
    with ProcessPair(tmp_path) as pair:
        judge(recorded(pair, 2, seed), tmp_path)
