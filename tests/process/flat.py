"""A test that memory stays flat under saturating load, with a reader at a tenth of the speed.

    python -m tests.process.flat --minutes 5        (make test runs half a minute of it)

A server in memory has a writer that waits only for its window, and a `Clone` whose process is stopped nine tenths of
the time. Three things grow while they warm up, and are bounded. libzmq holds up to 1,000 messages for the slow reader,
and drops the rest, so that the reader counts a hole and heals. The others are the retained records and the writer's
window. After that nothing grows.
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

# The share of the time for warming up.
WARM = 0.5
# After the warm-up a process may grow by this many MiB. Without the limit of 1,000 messages a server grows by as much
# in three to ten seconds.
GROWTH_MB_MAX = 48.0
# The window of the writer in bytes. It bounds the size of a message, so that a thousand messages come soon.
WINDOW_BYTES = 50_000
PERIOD_S, RUNS_S = 0.2, 0.02


@dataclass
class Series:
    """The resident memory of one process over time, in MiB."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def growth(self, since: float) -> float:
        """Return how much more memory the process had after `since` than before."""
        before = max(mb for at, mb in self.samples if at <= since)
        return max(mb for at, mb in self.samples if at > since) - before


def run(directory: Path, seconds: float, pad: int = 100) -> dict[str, object]:
    """Run the whole test, and return the growth of server and writer.

    Raise AssertionError if the reader's copy differs.
    """
    address = f"tcp://127.0.0.1:{free_port()}"
    flags = ("--heartbeat-s", "0.1", "--store", "memory:", "--retain-memory-bytes", str(4 << 20))
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
    """Let the reader run a tenth of the time, and sample the others meanwhile."""
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
    """Run the test from the command line, for longer than a test may take."""
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
