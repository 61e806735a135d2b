"""Run many seeds: `python -m tests.sim --seeds 500 [--from N] [--jobs N] [--shrink] [--show SEED]`.

Seeds run in several processes, without a transcript. The first failing seed then runs again with a transcript, in the
notation of tests/scenarios: a copy of it is a scenario. With --shrink the list of its commands is made short first.
With --done FILE each seed that ran is noted in a file. A later run with that file leaves it out (tests/long/state.py).
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.long.state import OK, note, noted

from .run import Result, run_plan, shrink
from .schedule import (
    BURSTS,
    LATER_BURSTS,
    Plan,
    plan,
    with_arbiter,
    with_bursts,
    with_consumers,
    with_copies,
    with_deaths,
    with_replicas,
    with_schedules,
    with_splits,
)

# name -> the burst, and the tempers of the seeds that may have it
NAMED = {burst.__name__: (burst, tempers) for burst, tempers, *_ in (*BURSTS, *LATER_BURSTS)}
# A process collects garbage after each seed that is a multiple of this. A finished world leaves some megabytes.
COLLECT_EVERY = 8


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that run seeds; all cores")
    parser.add_argument("--done", type=Path, help="a file of the seeds that ran; they are not run again")
    parser.add_argument("--show", type=int, help="run one seed and print its transcript, whether it fails or not")
    parser.add_argument("--shrink", action="store_true", help="make the failing seed's commands few")
    parser.add_argument("--keep-going", action="store_true", help="list every failing seed, print no transcript")
    parser.add_argument("--arbiter", action="store_true", help="give every seed an arbiter")
    parser.add_argument("--consumers", action="store_true", help="programs share a topic in groups")
    parser.add_argument("--deaths", action="store_true", help="programs die of messages of a topic")
    parser.add_argument("--schedules", action="store_true", help="programs schedule messages, and cancel some")
    parser.add_argument("--replicas", action="store_true", help="some clients are at replicas, which have faults too")
    parser.add_argument(
        "--copies", action="store_true", help="some replicas are copies, and two of three disks are lost"
    )
    parser.add_argument("--splits", action="store_true", help="clients hear one server each while the pair is cut")
    parser.add_argument("--burst", choices=sorted(NAMED), help="give each seed that may have it this burst (bursts.py)")
    args = parser.parse_args()
    if args.show is not None:
        return show(planned(args.show, args), args.shrink)
    return sweep(args)


def sweep(args: argparse.Namespace) -> int:
    """Run consecutive seeds, and show the first one that fails unless `--keep-going` is given."""
    began, acks, compared, virtual, cpu = time.perf_counter(), 0, 0, 0.0, 0.0
    before = noted(args.done) if args.done else {}
    todo = [seed for seed in range(args.start, args.start + args.seeds) if str(seed) not in before]
    failed = [int(seed) for seed, said in before.items() if said != OK]
    with _runs(todo, args) as results:
        for result, took in results:
            acks, compared, virtual = acks + result.acks, compared + result.compared, virtual + result.seconds
            cpu += took
            said = result.error.strip().splitlines()[-1] if result.error else OK
            if args.done:
                note(args.done, str(result.seed), said)
            if result.error:
                failed.append(result.seed)
                print(f"seed {result.seed} ({result.temper}): {said}", flush=True)
                if not args.keep_going:
                    break
    if failed and not args.keep_going:
        return show(planned(failed[0], args), args.shrink)
    wall = max(time.perf_counter() - began, 1e-9)
    print(
        f"{args.seeds} seeds from {args.start}: {len(failed)} failed; {virtual:,.0f} s of virtual time,"
        f" {acks:,} acknowledgements and {compared:,} maps checked in {wall:.1f} s ({len(todo) / wall:.1f} seeds/s,"
        f" {cpu / max(len(todo), 1):.3f} s of a core each)"
    )
    return 1 if failed else 0


@contextmanager
def _runs(seeds: list[int], args: argparse.Namespace) -> Iterator[Iterator[tuple[Result, float]]]:
    """Give the results of seeds in their order, from as many processes as there are jobs.

    A process that is killed ends the run with BrokenProcessPool.
    """
    run = partial(_run, args=args)
    if args.jobs <= 1 or len(seeds) <= 1:
        _collect_little()
        yield map(run, seeds)
        return
    forking = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(min(args.jobs, len(seeds)), forking, _collect_little)
    try:
        yield pool.map(run, seeds)
    finally:
        pool.shutdown(cancel_futures=True)


def _collect_little() -> None:
    """Turn off the automatic collection of garbage, because nearly all garbage of a seed appears when the seed ends."""
    gc.freeze()
    gc.disable()


def _run(seed: int, args: argparse.Namespace) -> tuple[Result, float]:
    """Return the result of a seed without its commands, and the processor time that it took."""
    began = time.process_time()
    result = run_plan(planned(seed, args))
    result.commands.clear()
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    return result, time.process_time() - began


def planned(seed: int, args: argparse.Namespace) -> Plan:
    """Return the plan of a seed, with the additions that the command line asks for."""
    a_plan = plan(seed)
    a_plan = with_consumers(a_plan) if args.consumers else a_plan
    a_plan = with_deaths(a_plan) if args.deaths else a_plan
    a_plan = with_schedules(a_plan) if args.schedules else a_plan
    a_plan = with_splits(a_plan) if args.splits else a_plan
    a_plan = with_copies(a_plan) if args.copies else with_replicas(a_plan) if args.replicas else a_plan
    if args.burst and a_plan.temper in NAMED[args.burst][1]:
        a_plan = with_bursts(a_plan, NAMED[args.burst][0])
    return with_arbiter(a_plan) if args.arbiter else a_plan


def show(a_plan: Plan, short: bool) -> int:
    """Print the transcript of one plan."""
    if short:
        a_plan = shrink(a_plan)
    result = run_plan(a_plan, tracing=True)
    print(a_plan.line)
    print("\n".join(result.lines))
    print(f"\nseed {a_plan.seed} ({result.temper}): {result.error or 'no error'}")
    return 1 if result.error else 0


if __name__ == "__main__":
    sys.exit(main())
