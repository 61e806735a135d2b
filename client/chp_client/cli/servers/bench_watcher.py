"""The watcher of `chp bench`, a process of its own: `python -m ...bench_watcher SERVERS TIMEOUT PREFIX`.

Prints `ready` once it holds the prefix; notes for each change how long ago the first 8 bytes of its value (monotonic
nanoseconds) were written; at the key `end` prints all of it as one JSON array, and ends.
"""

from __future__ import annotations

import json
import sys
import time

from ...clientfile import ClientFile
from ..settings import AS, CliSettings, read_servers
from ..store import reading
from .bench import STAMP_BYTES


def watch(servers: str, timeout_s: float, prefix: str) -> list[int]:
    """The nanoseconds from each stamped set to its arrival here."""
    took: list[int] = []
    client = servers.removeprefix(AS) if servers.startswith(AS) else None
    named = ClientFile.read(client) if client else read_servers(servers)
    with reading(CliSettings(named, named=True, timeout_s=timeout_s), [prefix]) as store:
        watch = store.clone.watch(prefix, start="end")
        print("ready", flush=True)
        for change in watch:
            now = time.monotonic_ns()
            if change.key == f"{prefix}end":
                return took
            if change.value:
                took.append(now - int.from_bytes(change.value[:STAMP_BYTES]))
    return took


if __name__ == "__main__":
    print(json.dumps(watch(sys.argv[1], float(sys.argv[2]), sys.argv[3])), flush=True)
