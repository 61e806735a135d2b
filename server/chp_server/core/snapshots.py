"""The journal's snapshots, written a chunk a turn while the server goes on serving.

When the rows have grown enough (the journal says so), the state at one number is imaged, its chunks are put between
turns, and then it becomes the journal's snapshot; the rows it replaces are deleted.

A passive that has taken over a whole state writes it the same way (`Replace`). Until that is done its journal tells of
what it had before, so it confirms nothing and hands over nothing (`Standing.replacing`), and what else is for the
journal waits: records that came in the meantime, which the active bounds, as nothing is confirmed. If it has to serve
meanwhile, the rest is written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from chp.batch import decode, encode
from chp.headers import StateHead, Sync
from chp.limits import Limits
from chp.unpacking import WHOLE_STATE

from .core import ServerCore
from .pair.follow import Loader
from .state.image import NOT_YET, Image
from .state.journal import Journal
from .updates.committed import Committed
from .updates.turn import Append, DropAfter, Fill, JournalOp, Remember, Replace, Trim

SMALL = 3  # steps: a chunk, the rest, the end; so a small state is replaced in one turn
COPY = "copy"  # a meta value, not empty: this journal is a copy of a store that may live on


class Snapshotter:
    """At most one snapshot under way."""

    def __init__(self, journal: Journal, limits: Limits) -> None:
        self._journal, self._limits = journal, limits
        self._bodies: Iterator[bytes] | None = None
        self._not_before = float("-inf")
        self.number = 0
        self._shared: int | None = None  # of a replacement that is not done
        self._waiting: list[JournalOp] = []  # until it is
        self._is_copy = bool(journal.get_meta(COPY))

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._bodies is not None

    def step(self, core: ServerCore) -> bool:
        """Begin one if it is due, or put the next chunk; True when a snapshot has just become valid."""
        if self._bodies is None:
            if core.now >= self._not_before and (self._shared is not None or self._is_due(core)):
                self.begin(core)
            return False
        body = next(self._bodies, None)
        if body is not None:
            if body is not NOT_YET:
                self._journal.put_snapshot(body)
            return False
        self._bodies = None
        if self._shared is None:
            self._journal.commit_snapshot(keep_after=0)  # older rows stay for as long as they are retained
        else:
            self._replaced(core, self._shared)
        return True

    def _is_due(self, core: ServerCore) -> bool:
        return self._journal.snapshot_due() and not core.room.tight

    def give_up(self, until: float) -> None:
        """There was no room for it: the one before stays, and none is begun for a while."""
        self._journal.abort_snapshot()
        self._bodies, self._not_before = None, until

    def write(self, ops: Sequence[JournalOp], core: ServerCore, *, again: bool = False) -> None:
        """Do a turn's journal operations, all but the sync; `again`, if a part of them may have been synced.

        A replacement is the state as it is when it begins, so it holds the complete records that came before that.
        """
        if self._is_copy and not all(isinstance(op, Remember) for op in ops):
            # with its first record, in one transaction, it becomes a store of its own
            self._journal.set_meta(COPY, b"")
            self._is_copy = False
        replaced, begun = 0, False
        if again:
            self.give_up(core.now)  # the error abandoned one that was under way
            replaced = int(self._journal.stats()["number"])
            self._waiting = [op for op in self._waiting if not any(op is now for now in ops)]
        for op in ops:
            if isinstance(op, Replace):
                self._shared = core.ctx.replacing = op.shared
                self._waiting.clear()
                self.begin(core)
                begun = True
            elif self._shared is not None and not isinstance(op, Remember):
                self._waiting.append(op)
            else:
                self._do(op, replaced)
        if self._shared is not None and core.active:
            self.replace(core, self._shared)
        elif begun:
            any(self.step(core) for _ in range(SMALL))

    def _do(self, op: JournalOp, replaced: int) -> None:
        if isinstance(op, DropAfter):
            self._journal.sync()
            self._journal.drop_after(op.number)
        elif isinstance(op, Remember):
            self._journal.set_meta(op.key, op.value)
        elif isinstance(op, Trim):
            self._journal.trim_messages(op.floors)
        elif isinstance(op, Append | Fill):
            if op.messages:
                self._journal.keep_messages(op.messages)
            if isinstance(op, Append) and op.last > replaced:
                self._journal.append([op.row()])

    def replace(self, core: ServerCore, shared: int = 0) -> None:
        """Write the state as it is now, all of it, in place of whatever the journal holds; or the rest of it."""
        self._shared = shared
        if self._bodies is None:
            self.begin(core)
        while not self.step(core):
            core.state.gather()

    def _replaced(self, core: ServerCore, shared: int) -> None:
        """The journal has the state that was taken over: what waited follows, all of it durable from now on."""
        self._journal.commit_snapshot(keep_after=self.number, alone=True, shared=shared)
        for op in self._waiting:
            self._do(op, self.number)
        self._journal.sync()
        self._shared = core.ctx.replacing = None
        self._waiting.clear()

    def begin(self, core: ServerCore) -> None:
        """Begin one of the state as it is now."""
        self.number = core.state.number
        self._journal.begin_snapshot(self.number)
        self._bodies = self._chunks(core, core.state.image(""))

    def _chunks(self, core: ServerCore, image: Image) -> Iterator[bytes]:
        image.deadlines = dict(image.deadlines)  # nothing follows in a backup that would put a later ttl right
        rest = core.state.rest(core.now)
        staged = core.state.staging.segments()
        chunks = image.chunks(self._limits, lambda: core.now)

        def bodies() -> Iterator[bytes]:
            yield from image.waiting()
            for i, segment in enumerate(chain((chunk.encode() for chunk in chunks), staged)):
                yield encode(Sync(0, i, round(core.ctx.wall * 1000)), [segment])  # its ttls count from here
            yield from rest

        return bodies()


def recover_snapshot(commits: Committed, bodies: Iterable[bytes], limits: Limits, now: float, wall_s: float) -> None:
    """Take over the journal's snapshot; what is left of its ttls is less by its age, as our own clock has it."""
    for _ in recovering(commits, bodies, limits, now, wall_s):
        pass


def recovering(
    commits: Committed, bodies: Iterable[bytes], limits: Limits, now: float, wall_s: float
) -> Iterator[None]:
    """As `recover_snapshot`, a chunk at a time."""
    loader = Loader(limits)
    for body in bodies:
        header, _ = decode(body, WHOLE_STATE)
        if isinstance(header, StateHead):
            commits.state = loader.finish(body, now)
        else:
            made = header.wall_ms if isinstance(header, Sync) else None
            age = 0.0 if made is None else max(0.0, wall_s - made / 1000)
            loader.add(body, now - age)
        yield
