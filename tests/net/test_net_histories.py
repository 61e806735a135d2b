"""covers: sets and conditional sets of four processes are linearizable while links are cut and servers stop."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.faults import served_by
from tests.process.histories import History, Recorders
from tests.process.test_histories import spoiled

from .cutting import Net, NetPair

pytestmark = pytest.mark.slow
MANY = 20


def cut_one_way(net: Net, _pair: NetPair, rng: random.Random) -> None:
    net.cut(*rng.choice(("ab", "ba")))
    time.sleep(rng.choice((0.5, 1.5, 3.0)))


def cut_apart(net: Net, _pair: NetPair, rng: random.Random) -> None:
    net.cut_both("a", "b")
    time.sleep(rng.choice((0.5, 1.5, 3.0)))


def cut_from_clients(net: Net, _pair: NetPair, rng: random.Random) -> None:
    one, other = rng.choice("ab"), rng.choice("cd")
    net.cut_both(one, other)
    time.sleep(rng.choice((0.5, 1.5, 3.0)))


def cut_and_stopped(net: Net, pair: NetPair, rng: random.Random) -> None:
    server = served_by(pair)
    net.cut_both("a", "b")
    time.sleep(rng.choice((0.3, 1.5)))
    server.signal(signal.SIGSTOP)
    time.sleep(2.5)
    net.heal()
    server.signal(signal.SIGCONT)


FAULTS: tuple[Callable[[Net, NetPair, random.Random], None], ...] = (
    cut_one_way, cut_apart, cut_from_clients, cut_and_stopped,
)  # fmt: skip


def recorded(net: Net, directory: Path, rounds: int, seed: int) -> History:
    """Return a history of so many rounds with all faults each, from two processes on each of the clients' hosts."""
    rng, prefixes = random.Random(seed), [net.prefix("c"), net.prefix("d")]
    net.heal()
    with NetPair(net, directory) as pair, Recorders(pair.servers, prefixes=prefixes, seed=seed) as recorders:
        for _ in range(rounds):
            for fault in rng.sample(FAULTS, len(FAULTS)):
                fault(net, pair, rng)
                net.heal()
                recorders.go_on()
                pair.wait_in_sync()
        return recorders.end(lambda work: net.on("c", work))


def test_a_round_of_cuts_is_linearizable(net: Net, tmp_path: Path) -> None:
    # Try seeds until a cut lasted so long that the active went on alone.
    for seed in range(1, 5):
        (tmp_path / str(seed)).mkdir()
        history = recorded(net, tmp_path / str(seed), 1, seed=seed)
        assert not history.wrong(), history.outcomes
        if history.outcomes["journaled"]:
            break
    assert history.outcomes["replicated"] > 100 and history.outcomes["journaled"], history.outcomes
    assert all(each.wrong() for each in spoiled(history)), "a history with an error in it is taken for right"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(MANY))
def test_many_rounds_of_cuts_are_linearizable(net: Net, tmp_path: Path, seed: int) -> None:
    history = recorded(net, tmp_path, 3, seed=200 + seed)
    wrong = history.wrong()
    # A failed run cannot be repeated, so write all its calls to a file.
    if wrong:
        calls = [(call.called, key, call) for key, calls in history.calls.items() for call in calls]
        lines = [f"{key} {call!r}\n" for _, key, call in sorted(calls, key=lambda each: each[0])]
        (tmp_path / "history.txt").write_text("".join(lines))
    assert not wrong, (wrong, history.outcomes)
