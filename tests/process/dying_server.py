"""A `chp-server` that sends itself SIGKILL when it comes to the point that the file $DIE_WHEN names.

    before-append    A turn's records have left for the peer, and are about to be written.
    before-sync      The records are written, and not committed.
    before-publish   The records are committed, and not published. A passive has not confirmed them.
    before-ack       The records are published, and not acknowledged.
    snapshot-chunk   A snapshot of the journal is half written. It is due at once if the file names a snapshot point.
    snapshot-commit  All chunks of the snapshot are written, and it is not valid yet.
    snapshot-done    The snapshot has just become valid, and the old one is still there.
    replace-chunk    A passive takes over a whole state, and has written a part of it.
    replace-commit   A passive has written the whole state, and it is not valid yet.

`stop` before a point sends SIGSTOP instead, and `busy 3` makes the server compute in Python for 3 seconds. The file may
come and go while the server runs. $FILE_BYTES_MAX, if set, limits the size of each file, as a full disk does.
Nothing else differs from the real server.
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
# The number of a snapshot's chunks that are written before a death in the middle.
CHUNKS = 2


def wanted() -> str:
    """Return the point that the file names now, or ""."""
    try:
        with open(WHEN, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def at(point: str) -> None:
    """Die, stop or be busy if the file names this point."""
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
    """Add the points of a turn, before the steps of chp_server.core.performing that have something to do."""
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
            # This point comes before the next step, whichever it is, since there may be no publication.
            if synced:
                at("before-publish")
            if point := points.get(step):
                at(str(point))
            yield step
            synced = step is Step.SYNC and bool(turn.journal)
        if synced:
            at("before-publish")

    # Replace the name in the reactor too, because the reactor has imported `steps` already.
    module: Any = reactor
    module.steps = dying_steps


def patch_snapshots() -> None:
    """Add the points of a snapshot and of a replacement."""
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
