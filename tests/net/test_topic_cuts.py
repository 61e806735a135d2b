"""covers: topics and groups while links are cut: all rules hold with an arbiter, and `AFTER_SPLIT` holds without one.

Without an arbiter both servers may be active for a while. tests/process/topic_rules.py has the rules and `AFTER_SPLIT`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.cluster import ProcessPair
from tests.process.faults import equal
from tests.process.topic_histories import Fault, Workers, hit, judge, worker_killed, worker_stopped
from tests.process.topic_rules import History

from .cutting import Net, NetPair
from .test_net_histories import FAULTS

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
SEEDS = range(400, 404)
# A cut from the arbiter lasts this many seconds, which is longer than a session of the servers.
SESSION_CUT_S = 5.0


def healed(net: Net, fault: Callable[[Net, NetPair, random.Random], None]) -> Fault:
    """Return a fault that cuts links, and heals them at its end."""

    def cut(_workers: Workers, pair: ProcessPair, chance: random.Random) -> None:
        assert isinstance(pair, NetPair)
        fault(net, pair, chance)
        net.heal()

    return cut


def cut_from_arbiter(net: Net, _pair: NetPair, chance: random.Random) -> None:
    for ends in chance.choice((("az",), ("bz",), ("az", "ab"), ("bz", "ab"))):
        net.cut_both(*ends)
    time.sleep(SESSION_CUT_S)


def recorded(net: Net, pair: NetPair, faults: list[Fault], seed: int, *, split: bool) -> History:
    prefixes = [net.prefix("c"), net.prefix("d")]
    with Workers(pair.servers, prefixes=prefixes, seed=seed) as workers:
        hit(workers, pair, [*faults, worker_killed, worker_stopped], 1, random.Random(seed))
        history = workers.end(split=split, on=lambda work: net.on("c", work))
    equal(pair.both)
    return history


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_without_an_arbiter(net: Net, tmp_path: Path, seed: int) -> None:
    net.heal()
    with NetPair(net, tmp_path) as pair:
        history = recorded(net, pair, [healed(net, fault) for fault in FAULTS], seed, split=True)
    judge(history, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_cuts_with_an_arbiter(net: Net, arbitrated: NetPair, tmp_path: Path, seed: int) -> None:
    faults = [healed(net, fault) for fault in (*FAULTS, cut_from_arbiter)]
    history = recorded(net, arbitrated, faults, seed, split=False)
    judge(history, tmp_path)
