"""Whether memory stays flat under saturating load with a reader at a tenth of the speed.

    python -m tests.process.flat --minutes 5        (make test runs half a minute of it)

A server in memory, a writer that never waits but for its window, and a `Clone` whose process is stopped nine tenths of
the time. What may grow while it warms up is bounded: the mark of 1,000 messages held for the slow reader (libzmq drops
beyond it; the reader counts a hole and heals), the records retained, and the writer's window. After that nothing grows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from chp_server.testing import free_port

from .cluster import ServerProcess
from .puppets import BASE, Puppet, digest_of, expected, rss_mb, sleep_until

WARM = 0.5  # of the time
GROWTH_MB_MAX = 48.0  # after that; without the mark the server gains this in three to ten seconds
WINDOW_BYTES = 50_000  # so that a message has at most that, and a thousand of them are there soon
PERIOD_S, RUNS_S = 0.2, 0.02


@dataclass
class Series:
    """Resident memory of one process over time, in MiB."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def growth(self, since: float) -> float:
        """How much more it was after `since` than it had been before."""
        before = max(mb for at, mb in self.samples if at <= since)
        return max(mb for at, mb in self.samples if at > since) - before


def run(directory: Path, seconds: float, pad: int = 100) -> dict[str, object]:
    """The whole test: growth of server and writer after the warm-up; the reader ends equal, or AssertionError."""
    address = f"tcp://127.0.0.1:{free_port()}"
    flags = ("--heartbeat-s", "0.1", "--store", "memory:", "--retain-bytes", str(4 << 20))
    server = ServerProcess(directory, "primary", address, None, *flags).start()
    try:
        with Puppet(address) as reader, Puppet(address, subtree=None, window_bytes=WINDOW_BYTES) as writer:
            base = writer.ask("write", pad=pad)
            assert server.process is not None
            pids = {"server": server.process.pid, "writer": writer.process.pid}
            series = _sample(pids, reader, seconds)
            updates = writer.ask("end")
            said = reader.ask("content", at_least=base + updates)
    finally:
        server.kill()
    assert said["digest"] == digest_of({BASE: b"", **expected(updates, pad)}), "the slow reader ended differing"
    return {
        "seconds": seconds,
        "updates": updates,
        "growth_mb": {name: round(each.growth(seconds * WARM), 1) for name, each in series.items()},
        "last_mb": {name: round(each.samples[-1][1], 1) for name, each in series.items()},
        "reader": {name: said["stats"].get(name, 0) for name in ("holes", "resyncs_resumed", "resyncs_snapshot")},
    }


def _sample(pids: dict[str, int], reader: Puppet, seconds: float) -> dict[str, Series]:
    """Let the reader run a tenth of the time, and look at the others meanwhile."""
    series = {name: Series() for name in pids}
    began = time.monotonic()
    try:
        while (now := time.monotonic()) < began + seconds:
            reader.continue_process()
            sleep_until(now + RUNS_S)
            reader.stop_process()
            for name, pid in pids.items():
                series[name].samples.append((now - began, rss_mb(pid)))
            sleep_until(now + PERIOD_S)
    finally:
        reader.continue_process()
    return series


def main() -> None:
    """For longer than a test may take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = run(Path(directory), options.minutes * 60)
    print(json.dumps({"command": "python -m tests.process.flat", **result}, indent=1))
    growth = result["growth_mb"]
    assert isinstance(growth, dict) and max(growth.values()) < GROWTH_MB_MAX, f"memory grew: {growth} MiB"


if __name__ == "__main__":
    main()
