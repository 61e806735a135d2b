"""Old against new: the same work on two commits, in one run and in turn, to see what a change costs.

    python -m benchmarks --against COMMIT            make bench ARGS='--against COMMIT'
    python -m benchmarks --against COMMIT sets pair  these groups only: sets, pair, latency, sync

The other commit is taken out of git into a directory that is removed at the end. Servers and clients of both trees run
at the same time, and one tree is idle while the other is measured. This tree's benchmark programs drive both, so only
the product differs. Each figure is the median of 15 rounds (3 with --quick). The ratio is the median of the ratios of
the rounds: a round of the old tree right beside a round of the new one, and each is first in turn. Trust the processor
time for each set most, because a busy machine changes it least.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .latency import Awaited, AwaitedOfPair, Watched
from .pair import durable_writer
from .roles import ROOT, Meter, Role, closing_all, programs_of
from .rounds import Round, in_turn, ratio, summary
from .servers import ChpPair, wait_in_sync
from .sets import Lane
from .sync import Filled

ROUNDS = 15
OLD, NEW = "old", "new"
CPU = ("server_cpu_us", "backup_cpu_us", "writer_cpu_us", "client_cpu_us", "watcher_cpu_us", "server_cpu_s")
FIGURES = ("rate", "p50_us", "seconds", *CPU)


class Durable:
    """A pair with journals, and a writer whose sets are on both disks when they are acknowledged."""

    def __init__(self) -> None:
        self.pair = ChpPair(sync="always")
        wait_in_sync(self.pair)
        self.writer = Role(durable_writer, kind="chp", address=",".join(self.pair.addresses))
        self.writer.hear()

    def round(self, sets: int) -> Round:
        """Return one measurement."""
        meter = Meter(writer=self.writer, server=self.pair.servers[0], backup=self.pair.servers[1])
        answer = self.writer.ask(sets=sets)
        return {"rate": answer["rate"], **meter.read(sets)}

    def close(self) -> None:
        """End all."""
        self.writer.close()
        self.pair.close()


def _sets(how: str, n: int, sets: int) -> Callable[[], Any]:
    return lambda: Lane("chp", how, n, 100, sets)


def _pair(**settings: Any) -> Callable[[], Any]:
    return lambda: AwaitedOfPair(**settings)


# Each case: group, name, how to start it, how to do one round. `share` divides the work; with --quick it is 5.
CASES: list[tuple[str, str, Callable[[], Any], Callable[[Any, int], Round]]] = [
    ("sets", "one key a call, 1 watcher", _sets("keys", 1, 200_000), lambda lane, _: lane.round()),
    ("sets", "set_many of 1,000, 1 watcher", _sets("many", 1, 400_000), lambda lane, _: lane.round()),
    ("sets", "set_many of 1,000, 20 watchers", _sets("many", 20, 50_000), lambda lane, _: lane.round()),
    ("pair", "set_many of 1,000 on both disks", Durable, lambda lane, share: lane.round(200_000 // share)),
    ("latency", "one set awaited", lambda: Awaited("chp"), lambda lane, share: lane.round(1000 // share)),
    ("latency", "one set awaited on a memory pair", _pair(store="memory:"), lambda lane, n: lane.round(1000 // n)),
    ("latency", "one set awaited on a durable pair", _pair(sync="always"), lambda lane, n: lane.round(1000 // n)),
    ("latency", "update to watcher at 1,000/s", lambda: Watched("chp"), lambda lane, share: lane.round(1000 // share)),
    ("latency", "update to 10 watchers at 1,000/s", lambda: Watched("chp", 10), lambda lane, n: lane.round(1000 // n)),
    ("sync", "first sync of 100,000 keys", lambda: Filled("chp", 100_000), lambda lane, _: lane.round()),
]
GROUPS = tuple(dict.fromkeys(group for group, *_ in CASES))


def run(commit: str, groups: list[str], quick: bool = False) -> dict[str, Any]:
    """Measure this tree beside `commit`; raise ValueError if git does not know the commit."""
    cases = {}
    with tempfile.TemporaryDirectory(prefix="chp-bench-old-") as scratch:
        sha = _take_out(commit, Path(scratch))
        for group, name, start, one_round in CASES:
            if not groups or group in groups:
                cases[name] = _side_by_side(Path(scratch), start, one_round, quick)
    return {"title": f"This commit beside {sha}", "against": sha, "unit": "", "cases": cases}


def _take_out(commit: str, into: Path) -> str:
    git = ["git", "rev-parse", "--short", f"{commit}^{{commit}}"]
    named = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if named.returncode:
        raise ValueError(f"--against {commit}: git knows no such commit here")
    packed = subprocess.run(["git", "archive", named.stdout.strip()], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")
    return named.stdout.strip()


def _side_by_side(
    old: Path, start: Callable[[], Any], one_round: Callable[[Any, int], Round], quick: bool
) -> dict[str, Any]:
    share, rounds = (5, 3) if quick else (1, ROUNDS)
    lanes = {}
    with closing_all() as keep:
        for who, tree in ((OLD, old), (NEW, ROOT)):
            with programs_of(tree):
                lanes[who] = keep(start())
        for lane in lanes.values():
            # The first round fills the map and warms everything up.
            one_round(lane, share)
        results = in_turn({who: partial(one_round, lane, share) for who, lane in lanes.items()}, rounds)
    case: dict[str, Any] = {"contenders": {who: summary(rounds) for who, rounds in results.items()}, "raw": results}
    for figure in FIGURES:
        if all(r.get(figure) for rounds in results.values() for r in rounds):
            case[f"ratio_{figure}"] = ratio(results, figure, NEW, OLD)
    return case
