"""Run many seeds: `python -m tests.sim --seeds 500 [--from N] [--shrink] [--show SEED]`.

The first failing seed is printed as a transcript in the notation of tests/scenarios, so that it becomes a scenario by
copying it; with --shrink it is made short first.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

from .run import run_plan, shrink
from .schedule import Plan, plan, with_arbiter, with_consumers, with_deaths, with_splits


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--from", type=int, default=0, dest="start")
    parser.add_argument("--show", type=int, help="run one seed and print its transcript, whether it fails or not")
    parser.add_argument("--shrink", action="store_true", help="make the failing seed's commands few")
    parser.add_argument("--keep-going", action="store_true", help="list every failing seed, print no transcript")
    parser.add_argument("--arbiter", action="store_true", help="give every seed an arbiter")
    parser.add_argument("--consumers", action="store_true", help="programs share a topic in groups")
    parser.add_argument("--deaths", action="store_true", help="programs die of messages of a topic")
    parser.add_argument("--splits", action="store_true", help="clients hear one server each while the pair is cut")
    args = parser.parse_args()
    if args.show is not None:
        return show(planned(args.show, args), args.shrink)
    return sweep(args)


def sweep(args: argparse.Namespace) -> int:
    """Run consecutive seeds, and show the first one that fails unless `--keep-going` is given."""
    began, failed, acks, compared, virtual = time.perf_counter(), [], 0, 0, 0.0
    # A world becomes garbage as a whole when its seed ends, so a collection before that finds nothing.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    for seed in range(args.start, args.start + args.seeds):
        result = run_plan(planned(seed, args))
        acks, compared, virtual = acks + result.acks, compared + result.compared, virtual + result.seconds
        if result.error:
            failed.append(seed)
            print(f"seed {seed} ({result.temper}): {result.error.strip().splitlines()[-1]}", flush=True)
            if not args.keep_going:
                return show(planned(seed, args), args.shrink)
    took = time.perf_counter() - began
    print(
        f"{args.seeds} seeds from {args.start}: {len(failed)} failed; {virtual:,.0f} s of virtual time,"
        f" {acks:,} acknowledgements and {compared:,} maps checked in {took:.1f} s ({args.seeds / took:.1f} seeds/s)"
    )
    return 1 if failed else 0


def planned(seed: int, args: argparse.Namespace) -> Plan:
    """Return the plan of a seed, with the additions that the command line asks for."""
    a_plan = plan(seed)
    a_plan = with_consumers(a_plan) if args.consumers else a_plan
    a_plan = with_deaths(a_plan) if args.deaths else a_plan
    a_plan = with_splits(a_plan) if args.splits else a_plan
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
