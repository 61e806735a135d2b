"""Black Box of the Guide (chapter 5): subscribers that take a fast stream with a process for each core.

    python -m examples.black_box [KEYS]

A Clone's agent is one thread, so one process takes about as much as one core can. Beyond that, several processes hold
disjoint subtrees. Here each process records its changes, one line for each change, into a file of its own. The program
sends the same stream to one process and then to two, and prints both rates. Two processes are quicker only if the
machine has free cores for them beside the servers and the writer.
"""

import os
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from chp_client import Clone

from .pair import servers

KEYS, BATCH, WAIT_S = 100_000, 1_000, 120.0
SUBTREES = ("/box/0/", "/box/1/")


def record(pair: list[str], subtrees: list[str], file: str, listens: Event) -> None:
    """Write each change of these subtrees to a file, until the key `end` of each subtree has arrived."""
    ends = {f"{subtree}end" for subtree in subtrees}
    with (
        open(file, "wb", buffering=1 << 20) as out,
        Clone(pair, subtrees=subtrees) as clone,
        clone.watch() as watch,
    ):
        clone.wait_until_synced(WAIT_S)
        listens.set()
        for changes in watch.batches():
            rows = zip(changes.keys, changes.values, strict=True)
            out.writelines(b"%b %b\n" % (key.encode(), value) for key, value in rows)
            ends.difference_update(changes.keys)
            if not ends:
                return


def stream(clone: Clone[bytes], keys: int) -> None:
    """Set the keys in the subtrees in turn, then the key `end` of each subtree."""
    for start in range(0, keys, BATCH):
        subtree = SUBTREES[start // BATCH % len(SUBTREES)]
        clone.set_many({f"{subtree}{i}": b"%d" % i for i in range(start, min(start + BATCH, keys))})
    clone.set_many({f"{subtree}end": b"" for subtree in SUBTREES}).wait(WAIT_S)


def rate(pair: list[str], keys: int, shares: list[list[str]], folder: Path) -> float:
    """Record the stream with a process for each share of the subtrees; return the number of changes per second."""
    context = get_context("spawn")
    boxes = []
    for i, share in enumerate(shares):
        listens = context.Event()
        box = context.Process(target=record, args=(pair, share, str(folder / f"{len(shares)}-{i}"), listens))
        box.start()
        boxes.append(box)
        until = time.monotonic() + WAIT_S
        while not listens.wait(0.1):
            if box.exitcode is not None or time.monotonic() > until:
                raise RuntimeError("a recorder did not begin")
    with Clone(pair, None) as clone:
        begin = time.monotonic()
        stream(clone, keys)
        for box in boxes:
            box.join(WAIT_S)
        took = time.monotonic() - begin
    recorded = sum(len((folder / f"{len(shares)}-{i}").read_bytes().splitlines()) for i in range(len(shares)))
    if recorded != keys + len(SUBTREES):
        raise RuntimeError(f"{recorded} changes were recorded, and {keys + len(SUBTREES)} were made")
    return recorded / took


def main() -> None:
    """Record the stream with one process, then with two."""
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    with servers() as pair, tempfile.TemporaryDirectory() as folder:
        one = rate(pair, keys, [list(SUBTREES)], Path(folder))
        two = rate(pair, keys, [[subtree] for subtree in SUBTREES], Path(folder))
    print(f"on {os.cpu_count()} cores: 1 process {one:,.0f} changes/s, 2 processes {two:,.0f} changes/s")
    print("nothing is missing")


if __name__ == "__main__":
    main()
