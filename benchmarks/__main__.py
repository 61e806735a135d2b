"""`python -m benchmarks [names] [--quick] [--against COMMIT]`; the docstring of the package explains it."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import against, machine, plots, report

# At a higher load of the machine, a figure tells more of the machine than of the program.
LOAD_MAX = 1.0
RESULTS = Path(__file__).resolve().parent / "results"
NAMES = (
    "chp1",
    "sets",
    "loops",
    "latency",
    "values",
    "reads",
    "sync",
    "memory",
    "growth",
    "pair",
    "stalls",
    "idle",
    "fairness",
    "mounts",
    "replicas",
    "readers",
    "gateway",
    "topics",
    "recording",
    "security",
    "spark",
)


def main() -> int:
    """Run the benchmarks that were asked for; return 0 if all of them could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Side by side with peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look; not for quoting")
    parser.add_argument("--list", action="store_true", help="show the names and what they measure")
    parser.add_argument("--against", metavar="COMMIT", help="this tree beside another commit, instead of beside peers")
    parser.add_argument(
        "--busy", action="store_true", help=f"measure at a load above {LOAD_MAX:g} too, and mark the results so"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for results (default: %(default)s)")
    arguments = parser.parse_args()
    # SIGTERM raises SystemExit, so that every `close` runs and no process is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not arguments.list and not arguments.busy and (why := too_busy(machine.load())):
        parser.error(why)
    # The benchmarks make a load themselves, so only the load before them counts.
    arguments.busy = bool(too_busy(machine.load()))
    if arguments.against:
        return _against(parser, arguments)
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    names = [name for name in arguments.names or NAMES if _is_there(name)]
    if arguments.list:
        for name in names:
            print(f"{name:10}{(importlib.import_module(f'benchmarks.{name}').__doc__ or '').splitlines()[0]}")
        return 0
    return max([_run(name, importlib.import_module(f"benchmarks.{name}").run, arguments) for name in names], default=0)


def too_busy(load: float) -> str:
    """Return why nothing is measured at a load, with the remedy; "" if the machine is quiet."""
    if load <= LOAD_MAX:
        return ""
    return (
        f"the load of this machine is {load:.1f}, and figures of a busy machine mislead: end what runs beside, "
        f"wait for a load of at most {LOAD_MAX:g}, or give --busy, which marks the results"
    )


def _against(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if unknown := set(arguments.names) - set(against.GROUPS):
        parser.error(f"--against has no group {', '.join(sorted(unknown))}; there are {', '.join(against.GROUPS)}")
    return _run("against", functools.partial(against.run, arguments.against, arguments.names), arguments)


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(f"benchmarks.{name}") is not None


def _run(name: str, benchmark: Callable[..., dict[str, Any]], arguments: argparse.Namespace) -> int:
    quick, out = arguments.quick, arguments.out
    print(f"{name} ...", file=sys.stderr, flush=True)
    begin, cpu_s = time.monotonic(), machine.children_cpu_s()
    about = machine.describe(sys.argv[1:])
    try:
        result = benchmark(quick=quick)
    except Exception as error:
        print(f"{name} FAILED: {error}", file=sys.stderr, flush=True)
        return 1
    took = {"took_s": round(time.monotonic() - begin, 1), "cpu_s": round(machine.children_cpu_s() - cpu_s, 1)}
    result = {"name": name, "quick": quick, "busy": arguments.busy, **took, **about, **result}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    plots.plot(result, out / f"{name}.png")
    print(report.table(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
