"""A server that counts its objects: `python -m tests.process.counted DIRECTORY chp-server's options ...`.

For each SIGUSR1 it writes one file of JSON into DIRECTORY, and goes on. A child process counts, so the count costs the
server the time of a fork, and none of its memory.

    by_type       number and bytes of the live objects of each type
    by_holder     number of the objects of a type in each holder, which is named by class and attribute, or by its type
    tables        number of entries of each large table
    blocks        blocks of Python's allocator
    malloc_mb     memory that malloc has given out, in MiB
    rss_mb        resident memory in MiB
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter, deque
from pathlib import Path
from typing import Any

from chp_server.main import main
from tests.talk import until

from .puppets import rss_mb

# A count leaves out types, holders and tables with fewer objects or entries than this.
LARGE = 1000
# `difference` returns at most this many types and tables.
TOLD = 12
TABLES = (dict, list, set, deque, frozenset, bytearray, tuple)


class MallInfo(ctypes.Structure):
    """The result of glibc's `mallinfo2`, over all arenas."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def malloc_mb() -> float:
    """Return the memory that malloc has given out, in MiB."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo
    said = mallinfo2()
    return float(said.uordblks + said.hblkhd) / (1 << 20)


def count() -> dict[str, Any]:
    """Return the live objects by type and by holder, and the large tables."""
    blocks = sys.getallocatedblocks()
    gc.unfreeze()
    numbers, sizes, holders, tables = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    seen, names = set[int](), dict[int, str]()
    left: list[tuple[object, str]] = [(one, "") for one in gc.get_objects()]
    # Leave out the tables that this function makes itself.
    seen.update(map(id, (seen, names, left, numbers, sizes, holders, tables)))
    for one, _ in left:
        for attribute, value in _attributes(one):
            if isinstance(value, TABLES):
                names[id(value)] = f"{type(one).__qualname__}.{attribute}"
                if len(value) >= LARGE:
                    tables[names[id(value)]] += len(value)
    while left:
        one, holder = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        name = type(one).__qualname__
        numbers[name] += 1
        sizes[name] += sys.getsizeof(one)
        holders[f"{name} in {holder}"] += 1
        own = names.get(id(one)) or (f"{name} in {holder}" if isinstance(one, TABLES) else name)
        left += [(other, own[:80]) for other in gc.get_referents(one) if id(other) not in seen]
    by_type = {name: [n, sizes[name]] for name, n in numbers.most_common() if n >= LARGE}
    by_holder = {name: n for name, n in holders.most_common() if n >= LARGE}
    return {"by_type": by_type, "by_holder": by_holder, "tables": dict(tables), "blocks": blocks}


def _attributes(one: object) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    if isinstance(one, type):
        return found
    for each in type(one).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            try:
                found.append((name, object.__getattribute__(one, name)))
            except AttributeError:
                continue
    own = getattr(one, "__dict__", None)
    return found + list(own.items()) if isinstance(own, dict) else found


def ask(directory: Path, pid: int, n: int) -> dict[str, Any]:
    """Return the `n`th count of the server with this process id."""
    path = directory / f"objects-{pid}-{n}.json"
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until(path.exists, "a server's count of its objects")
    counted: dict[str, Any] = json.loads(path.read_text())
    return counted


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return [before, after] of the numbers in two counts. The types and tables that grew most come first."""
    found: dict[str, Any] = {name: [before[name], after[name]] for name in ("rss_mb", "malloc_mb", "blocks")}
    for kind in ("by_type", "tables"):
        one, two = ({name: n if type(n) is int else n[0] for name, n in each[kind].items()} for each in (before, after))
        names = sorted(one.keys() | two.keys(), key=lambda name: one.get(name, 0) - two.get(name, 0))
        found[kind] = {name: [one.get(name, 0), two.get(name, 0)] for name in names[:TOLD]}
    return found


def _answer(directory: Path) -> None:
    n = 0
    while True:
        signal.sigwait({signal.SIGUSR1})
        n += 1
        facts = {"rss_mb": round(rss_mb(os.getpid()), 2), "malloc_mb": round(malloc_mb(), 2)}
        child = os.fork()
        if not child:
            try:
                path = directory / f"objects-{os.getppid()}-{n}.json"
                new = path.with_suffix(".new")
                new.write_text(json.dumps({**facts, **count()}))
                new.rename(path)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    # New threads inherit this mask, so the signal waits for the `sigwait` of the answering thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    threading.Thread(target=_answer, args=(Path(sys.argv[1]),), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
