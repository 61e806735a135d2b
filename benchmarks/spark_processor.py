"""The processor time of a Spark job, by the processes that do it.

    driver    this process
    java      the JVM, which is a child of it
    workers   the Python processes that the JVM starts: planners and tasks
    server    the server of the store

The times come from /proc, in ticks of ten milliseconds. A process that has ended counts with its last reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .roles import TICKS
from .rounds import Round

KINDS = ("driver", "java", "workers", "server")


class Processor:
    """The processor seconds of this process, of those below it, and of one server."""

    def __init__(self, server: int) -> None:
        self._server = server
        # The seconds of each process at its last reading, by process id and kind.
        self._seen: dict[tuple[int, str], float] = {}

    def read(self) -> dict[str, float]:
        """Return the seconds so far, by kind."""
        stats = dict(_stats())
        parents = {pid: stat.parent for pid, stat in stats.items()}
        java = {pid for pid in _below({os.getpid()}, parents) if stats[pid].name == "java"}
        workers = {pid for pid in _below(java, parents) if stats[pid].name.startswith("python")}
        for kind, pids in [("java", java), ("workers", workers)]:
            self._seen |= {(pid, kind): stats[pid].seconds for pid in pids}
        for pid, kind in [(os.getpid(), "driver"), (self._server, "server")]:
            if pid in stats:
                self._seen[pid, kind] = stats[pid].seconds
        return {kind: sum(seconds for (_, of), seconds in self._seen.items() if of == kind) for kind in KINDS}

    def since(self, before: dict[str, float]) -> Round:
        """Return the seconds since an earlier reading, as figures of a round."""
        return {f"{kind}_cpu_s": seconds - before[kind] for kind, seconds in self.read().items()}


class _Stat:
    def __init__(self, text: str) -> None:
        self.name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        self.parent = int(fields[1])
        self.seconds = (int(fields[11]) + int(fields[12])) / TICKS


def _stats() -> Iterator[tuple[int, _Stat]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), _Stat(path.read_text())
        except OSError:
            # The process has ended.
            continue


def _below(above: set[int], parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    more = above
    while more:
        more = {child for child, parent in parents.items() if parent in more} - found
        found |= more
    return found
