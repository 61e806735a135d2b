"""`chp-server` with a death wish: it sends itself SIGKILL when it comes to the point named in the file $DIE_WHEN.

    before-append    a turn's records are about to be written (they are on their way to the peer)
    before-sync      written, not committed
    before-publish   committed; nobody was told. On a passive: not confirmed
    before-ack       published, not acknowledged
    snapshot-chunk   in the middle of a snapshot of the journal (which is due at once when a snapshot point is named)
    snapshot-commit  all its chunks are put, and it is not valid yet
    snapshot-done    it has just become valid; what it replaces is still there
    replace-chunk    a passive takes over a whole state, and has written a part of it
    replace-commit   all of it, and it is not valid yet

`stop` before a point makes that a SIGSTOP, and `busy 3` before it so many seconds of work in Python. The file may come
and go while the server runs. $FILE_BYTES_MAX, if set, limits the size of every file it writes: a disk that is full.
Nothing else differs from the real one.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from chp_server import main
from chp_server.core.core import ServerCore
from chp_server.core.performing import Step, steps
from chp_server.core.snapshots import Snapshotter
from chp_server.core.updates.turn import Append, JournalOp, Replace, Turn
from chp_server.shell import reactor
from chp_server.store.sql.sql_journal import SqlJournal

WHEN = os.environ["DIE_WHEN"]
CHUNKS = 2  # of a snapshot, before a death in its middle


def wanted() -> str:
    """The point named now, or nothing."""
    try:
        with open(WHEN, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def at(point: str) -> None:
    """Die if this is the point, or stop, once."""
    if wanted() == point:
        os.kill(os.getpid(), signal.SIGKILL)
    elif wanted() == f"stop {point}":
        os.unlink(WHEN)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif wanted().startswith("busy") and wanted().endswith(point):
        seconds = float(wanted().split()[1])
        os.unlink(WHEN)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass


def patch_turn() -> None:
    """The points of a turn: before the steps of chp_server.core.performing, where they have something to do."""
    perform = steps

    def dying_steps(core: ServerCore, turn: Turn, ports: Any) -> Iterator[Step]:
        appends = any(isinstance(op, Append) for op in turn.journal)
        points = {
            Step.JOURNAL: appends and "before-append",
            Step.SYNC: appends and "before-sync",
            Step.ACKS: turn.acks and "before-ack",
        }
        synced = False
        for step in perform(core, turn, ports):
            if synced:  # whatever comes next: there may be nobody to publish to
                at("before-publish")
            if point := points.get(step):
                at(str(point))
            yield step
            synced = step is Step.SYNC and bool(turn.journal)
        if synced:
            at("before-publish")

    module: Any = reactor  # as it is imported there
    module.steps = dying_steps


def patch_snapshots() -> None:
    """The points of a snapshot and of a replacement."""
    due, put, commit, write = (
        SqlJournal.snapshot_due, SqlJournal.put_snapshot, SqlJournal.commit_snapshot, Snapshotter.write,
    )  # fmt: skip
    what: dict[str, Any] = {"kind": "snapshot", "chunks": 0}

    def begin(kind: str) -> None:
        what.update(kind=kind, chunks=0)

    def eager_due(self: SqlJournal[Any]) -> bool:
        begin("snapshot")
        return due(self) or (self._building is None and wanted().startswith("snapshot"))

    def dying_put(self: SqlJournal[Any], body: bytes) -> None:
        put(self, body)
        what["chunks"] += 1
        if what["chunks"] == CHUNKS:
            self.sync()
            at(f"{what['kind']}-chunk")

    def dying_commit(self: SqlJournal[Any], keep_after: int, **how: Any) -> None:
        at(f"{what['kind']}-commit")
        commit(self, keep_after, **how)
        at(f"{what['kind']}-done")

    def dying_write(self: Snapshotter, ops: Sequence[JournalOp], core: ServerCore, *, again: bool = False) -> None:
        if any(isinstance(op, Replace) for op in ops):
            begin("replace")
        write(self, ops, core, again=again)

    journal: Any = SqlJournal
    snapshotter: Any = Snapshotter
    journal.snapshot_due, journal.put_snapshot = eager_due, dying_put
    journal.commit_snapshot, snapshotter.write = dying_commit, dying_write


if __name__ == "__main__":
    if "FILE_BYTES_MAX" in os.environ:
        limit = int(os.environ["FILE_BYTES_MAX"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    patch_turn()
    patch_snapshots()
    sys.exit(main.main())
