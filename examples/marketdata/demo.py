"""The whole market-data example on one machine, in less than a minute.

    python -m examples.marketdata.demo [--minutes 30] [--speed 120] [--servers tcp://a:5556,tcp://b:5566]

1. Half an hour of ticks is derived from the daily rates and written as a recording.
2. The recording is replayed into a pair of servers, many times faster than the ticks' own clock. Spark makes bars of
   the ticks as they come, and publishes the bars. An application prints each new bar of EUR/USD when it first comes.
3. Ticks that come far too late are replayed. They change nothing.
4. Every bar that the application holds is compared with the plain computation.

Without --servers the program runs a pair of servers of its own.
"""

import argparse
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

from chp_client import Clone
from chp_client.recording.replayer import replay
from chp_client.spark import session, stop
from chp_server.testing import Pair

from . import bars, ticks

WATCHED = "/bars/EUR/USD/"
PATIENCE_S = 120.0


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 if every bar is right, else 1."""
    options = _options().parse_args(argv)
    made = ticks.derive(minutes=options.minutes)
    late = ticks.too_late(made)
    with tempfile.TemporaryDirectory() as folder, _servers(options.servers) as servers:
        work = Path(folder)
        last = ticks.write_recording(work / "ticks", made)
        ticks.write_recording(work / "late", late, last)
        print(
            f"{len(made)} ticks of {len(ticks.PAIRS)} pairs recorded, {len(late)} more that come too late", flush=True
        )
        return _run(servers, work, options.speed, made)


def _run(servers: list[str], work: Path, speed: float, made: list[ticks.Tick]) -> int:
    spark = session("marketdata", cores=2, quick_start=True, **{"spark.ui.showConsoleProgress": False})
    try:
        with Clone(servers, "/bars/") as application, Clone(servers, None) as player:
            application.wait_until_synced(PATIENCE_S)
            Thread(target=_watch, args=(application,), daemon=True).start()
            query = bars.start(spark, servers, work)
            # The stream has begun: it reads what comes from now on.
            query.processAllAvailable()
            began = time.monotonic()
            replay(work / "ticks", player, speed=speed)
            query.processAllAvailable()
            print(f"replayed and computed in {time.monotonic() - began:.1f} s", flush=True)
            replay(work / "late", player, speed=None)
            query.processAllAvailable()
            query.stop()
            return _compare(application, bars.reference(made))
    finally:
        stop(spark)


def _watch(application: Clone) -> None:
    """Print each new EUR/USD bar when the application's Clone first receives it."""
    shown = ""
    for change in application.watch(WATCHED):
        minute = change.key.removeprefix(WATCHED)
        if change.value is not None and minute > shown:
            shown = minute
            [bar] = bars.parse([(change.key, change.value)]).values()
            print(f"EUR/USD {minute}  vwap {bar['vwap']:.5f}  {bar['ticks']} ticks so far", flush=True)


def _compare(application: Clone, wanted: dict[str, bars.Bar]) -> int:
    until = time.monotonic() + 10
    with application.watch(WATCHED) as watch:
        while bars.parse(application.items()) != wanted and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                watch.get(timeout=0.5)
    found = bars.parse(application.items())
    wrong = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    for key in wrong[:5]:
        print(f"{key}: {found.get(key)} instead of {wanted.get(key)}", file=sys.stderr)
    if wrong:
        print(f"{len(wrong)} of {len(wanted)} bars are wrong", flush=True)
        return 1
    print(f"{len(found)} bars, each equal to the plain computation; what came too late changed none", flush=True)
    return 0


@contextlib.contextmanager
def _servers(given: str | None) -> Iterator[list[str]]:
    if given:
        yield given.split(",")
        return
    # Hide the warnings that a pair inside one process logs on a busy machine.
    logging.getLogger("chp_server").setLevel(logging.ERROR)
    with Pair(heartbeat_s=0.25, peer_timeout_s=5.0) as pair:
        yield pair.servers


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="marketdata", description="Replay ticks, compute bars, watch them.")
    parser.add_argument("--minutes", type=int, default=30, help="of ticks; default 30")
    parser.add_argument("--speed", type=float, default=120.0, help="relative to the ticks' clock; default 120")
    parser.add_argument("--servers", help="tcp://host:port,tcp://host:port; default: a pair of its own")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
