"""`chp backup` and `chp restore` on a server that goes on serving.

A backup is one SQLite file that holds the state at one number. The server writes one chunk of the file each turn, and
goes on with its other work. Whatever store the server has, `chp check` reads the file and a server can start from it.

A restore replaces the whole map by that of a backup, in one record. It deletes the keys that the backup does not have,
and every client follows as with any other change. Sessions, leases and staged updates belong to the present of the
server, and stay. Before a restore, the server writes a backup of the present map.

Any program that reaches the server may ask for these. So backups lie in one directory and have names without a path: no
other file of the host is written, read or told of.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from chp import columns
from chp.batch import Segment
from chp.errors import BadInput
from chp.limits import Limits
from chp.numbers import describe

from ..core.core import ServerCore
from ..core.snapshots import COPY, Snapshotter, recovering
from ..core.state.journal import JournalError, Options
from ..core.state.state import deletes
from ..core.updates.committed import Committed
from ..core.updates.turn import Copy
from ..store.sql.sql_journal import SqlJournal
from ..store.sql.sqlite import SqliteDatabase
from ..store.sql.sqlite_files import sync_directory
from ..store.store_url import sqlite_journal

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,140}\.(db|sqlite)")


class Copies:
    """The backup and the restore that are under way, at most one of each."""

    def __init__(self, directory: str, core: ServerCore, limits: Limits) -> None:
        self._directory, self._core, self._limits = directory, core, limits
        # Commands since the last turn.
        self._new: list[Copy] = []
        self._store: SqlJournal[SqliteDatabase] | None = None
        self._snapshotter: Snapshotter | None = None
        self._asked: tuple[bytes, int, str] = (b"", 0, "")
        self._reading: Generator[None, None, Committed] | None = None
        # The map to restore, once a backup of the present one is kept.
        self._read_already: Committed | None = None
        self._wanted: tuple[bytes, int, str] = (b"", 0, "")

    @property
    def busy(self) -> bool:
        """True while there is more to write or to read, or a command to begin."""
        return bool(self._snapshotter is not None or self._reading is not None or self._new)

    def ask(self, copy: Copy) -> None:
        """Take a command of an operator, which begins with the next step."""
        self._new.append(copy)

    def _begin_what_is_asked(self) -> None:
        new, self._new = self._new, []
        for copy in new:
            begin = self.backup if copy.command == "backup" else self.restore
            try:
                begin(copy.identity, copy.options)
            except BadInput as error:
                self._core.requests.refuse(copy.identity, copy.options["id"], str(error))

    def backup(self, identity: bytes, options: dict[str, Any]) -> None:
        """Begin a backup; the answer comes when it is whole."""
        core = self._core
        if not core.active:
            raise BadInput("this server is not active; back up from the one that is")
        # Clients of 0.1 send a path. A path that is a plain name is taken as the name, and any other is refused.
        name = options.get("path", options.get("name", f"backup-{_when(core)}.db"))
        self._begin(identity, options["id"], self._place(name))

    def _place(self, name: object) -> str:
        """Return the path of a backup by its name, which can't lead out of the directory."""
        if type(name) is not str or not NAME.fullmatch(name):
            raise BadInput(
                "a backup has a name and no path: letters, digits, '_', '-' and '.', ending in .db, such as "
                "before-upgrade.db, at most 140 characters; it lies in the server's --backup-dir"
            )
        return os.path.join(os.path.abspath(self._directory), name)

    def _begin(self, identity: bytes, request_id: int, path: str) -> None:
        core = self._core
        if self._snapshotter is not None:
            raise BadInput(f"a backup to {os.path.basename(self._asked[2])} is under way; wait for it")
        if os.path.lexists(path):
            raise BadInput(f"{os.path.basename(path)} exists; a backup never overwrites: give another name")
        core.committer.commit(core.turn)
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            _remove(_part(path))
            self._store = sqlite_journal(f"sqlite:{_part(path)}", Options(mark=False))
            self._store.load()
            self._store.set_meta(COPY, b"1")
            self._asked = (identity, request_id, path)
            self._snapshotter = Snapshotter(self._store, self._limits)
            self._snapshotter.begin(core)
        except (JournalError, OSError) as error:
            self._give_up(path)
            raise BadInput(f"{path} can't be written: {error}") from None

    def step(self) -> None:
        """Begin what was asked for, and write or read the next chunk; answer when that was the last."""
        self._begin_what_is_asked()
        if self._reading is not None:
            self._read(self._reading)
        if self._snapshotter is None or self._store is None:
            return
        identity, request_id, path = self._asked
        try:
            if not self._snapshotter.step(self._core):
                return
            number = self._snapshotter.number
            self._store.database.make_one_file()
            self._end()
            os.replace(_part(path), path)
            sync_directory(Path(path))
            _remove(_part(path))
        except (JournalError, OSError) as error:
            self._give_up(path)
            self._read_already = None
            self._core.requests.refuse(identity, request_id, f"{path} could not be written: {error}")
            return
        size, at = os.path.getsize(path), describe(number)
        self._core.turn.effects.fact("backup", path=path, number=at, bytes=size)
        if self._read_already is not None:
            wanted, self._read_already = self._read_already, None
            self._restored(wanted, {"kept": os.path.basename(path), "kept_number": at})
            return
        said = {"name": os.path.basename(path), "path": path, "number": at, "bytes": size}
        self._core.requests.answer(identity, request_id, said)

    def _give_up(self, path: str) -> None:
        """Remove the unfinished backup: the disk may be full, and the journal is on it too."""
        self._end()
        with suppress(OSError, ValueError):
            _remove(_part(path))

    def close(self) -> None:
        """Stop what is under way, as the server ends."""
        if self._reading is not None:
            self._reading.close()
        if self._snapshotter is not None:
            self._give_up(self._asked[2])

    def _end(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = self._snapshotter = None

    def restore(self, identity: bytes, options: dict[str, Any]) -> None:
        """Begin to replace the map by that of a backup; the answer comes when the restore is done."""
        core = self._core
        if not core.pair.serving:
            raise BadInput("this server is not active; restore through the one that is")
        if self._reading is not None or self._read_already is not None:
            raise BadInput(f"a restore of {os.path.basename(self._wanted[2])} is under way; wait for it")
        path = self._place(options.get("name"))
        if os.path.islink(path) or not os.path.isfile(path):
            raise BadInput("this server has no backup of that name; give one that `chp backup` said of the same server")
        self._wanted = (identity, options["id"], path)
        self._reading = reading(path, self._limits, core.turn.now)

    def _read(self, steps: Generator[None, None, Committed]) -> None:
        identity, request_id, path = self._wanted
        try:
            next(steps)
        except StopIteration as done:
            self._reading = None
            self._keep(done.value)
        except (JournalError, BadInput) as error:
            self._reading = None
            self._core.requests.refuse(identity, request_id, f"{path} can't be restored: {error}")

    def _keep(self, wanted: Committed) -> None:
        """Begin a backup of the present map, now that the one to restore is read."""
        identity, request_id, _ = self._wanted
        try:
            self._begin(identity, request_id, self._place(f"before-restore-{_when(self._core)}.db"))
        except BadInput as error:
            text = f"nothing was restored, as what is there can't be kept first: {error}"
            self._core.requests.refuse(identity, request_id, text)
        else:
            self._read_already = wanted

    def _restored(self, wanted: Committed, kept: dict[str, str]) -> None:
        """Commit one record that turns our map into the wanted one; the next turns apply it to the map."""
        core, (identity, request_id, path) = self._core, self._wanted
        if not core.pair.serving:
            core.requests.refuse(identity, request_id, "this server is not active any more; restore through the other")
            return
        core.committer.commit(core.turn)
        segments = list(difference(core.committer.committed, wanted, core.turn.now))
        if segments:
            core.committer.commit_in_parts(core.turn, segments)
        number, keys = describe(core.state.number), len(wanted.state.map)
        core.turn.effects.fact("restored", "warning", path=path, number=number, keys=keys, **kept)
        said = {"name": os.path.basename(path), "number": number, "keys": keys, **kept}
        core.requests.answer(identity, request_id, said)


def _part(path: str) -> str:
    return f"{path}.part.db"


def _remove(part: str) -> None:
    """Remove what an unfinished backup left, and the files beside a finished one."""
    for name in (part, f"{part}.lock", f"{part}-wal", f"{part}-shm"):
        with suppress(FileNotFoundError):
            os.remove(name)


def _when(core: ServerCore) -> str:
    return f"{core.pair.config.name}-{describe(core.state.number)}-{int(core.turn.wall_s)}"


def reading(path: str, limits: Limits, now: float) -> Generator[None, None, Committed]:
    """Read the state in a backup in steps, and return it; raise `JournalError` if it is damaged."""
    store = sqlite_journal(f"sqlite:{path}", Options(), writable=False)
    try:
        commits, wall_s = Committed(limits), time.time()
        loaded = store.load()
        yield from recovering(commits, loaded.snapshot, limits, now, wall_s)
        for row in loaded.rows:
            commits.follow(row.body, now, wall_s)
            yield
        commits.drop_partial()
    finally:
        store.close()
    return commits


def difference(ours: Committed, wanted: Committed, now: float) -> Iterator[Segment]:
    """Yield segments that turn our map into the wanted one.

    Keys that belong to a lease in the backup are left out, because the lease's holder is not there now. Without its
    lease such a key would be a lock for ever. Our own leases that have keys end, so that their holders are told.
    """
    have, want, deadlines = ours.state.map, wanted.state.map, wanted.state.map.deadlines
    leased = {key for lease in wanted.state.leases.values() for key in lease.keys}
    held = [lease_id for lease_id, lease in ours.state.leases.items() if lease.keys]
    ended = {key for lease_id in held for key in ours.state.leases[lease_id].keys}
    gone = [key for key in have.values if key not in want.values or key in leased or key in ended]
    yield from deletes(gone, ours.limits)
    for lease_id in held:
        yield Segment([], [], {columns.UNLEASE: lease_id})
    timed, get = deadlines.keys() | have.deadlines.keys() | ended, have.values.get
    changed = [
        (key, value) for key, value in want.values.items() if key not in leased and (get(key) != value or key in timed)
    ]
    for keys, values in _sized(changed, ours.limits):
        places = [i for i, key in enumerate(keys) if key in deadlines] if deadlines else []
        extras = {columns.TTLS: [places, [want.remaining_ms(keys[i], now) or 1 for i in places]]} if places else None
        yield Segment(keys, values, extras)


def _sized(items: list[tuple[str, bytes]], limits: Limits) -> Iterator[tuple[list[str], list[bytes]]]:
    """Yield keys and their values in groups: each has at most `part_bytes`, or is one key with a larger value."""
    start = 0
    while start < len(items):
        group = items[start : start + limits.sync_chunk_items]
        sizes = [len(key) + len(value) for key, value in group]
        if sum(sizes) > limits.part_bytes:
            group = group[: max(1, bisect_right(list(accumulate(sizes)), limits.part_bytes))]
        yield [key for key, _ in group], [value for _, value in group]
        start += len(group)
