"""The snapshots of the journal, written a chunk a turn while the server goes on serving.

When the journal says that its rows have grown enough, the server begins an image of the state. It writes the chunks of
the image between turns. After a turn without records, it writes one chunk. A turn with records owes as many bytes of
chunks as the records have, and at most `PUT_OFF_BYTES` of this debt are put off. So under constant writes a turn does
at most about twice its work. The complete image becomes the journal's snapshot, and the rows that it covers are
deleted.

The server begins no snapshot for which the disk has no room, and abandons a snapshot if the disk becomes short. On a
short disk, it also begins a snapshot if the journal is much larger than the state: only then can deletes free space.

A passive that has taken over a whole state writes the state in the same way (`Replace`). Until that is done, its
journal still has the earlier state. So the passive confirms nothing and hands over nothing (`PairState.replacing`), and
the records that come meanwhile wait for the journal. The active bounds their number, because they are not confirmed. If
the passive becomes active meanwhile, it writes the rest at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from chp.batch import decode, encode
from chp.hashmap import Hashmap
from chp.headers import StateHead, Sync
from chp.limits import Limits
from chp.unpacking import WHOLE_STATE

from .core import ServerCore
from .pair.follow import Loader
from .state.image import NOT_YET, Image
from .state.journal import Journal
from .updates.committed import Committed
from .updates.turn import Append, DropAfter, Fill, JournalOp, Remember, Replace, Trim

# The turn that begins a replacement does at most this many steps of it: a chunk, the rest, the end. So a small state is
# replaced in one turn.
SMALL = 3
# The bytes of a chunk: a turn makes and writes it in half a millisecond.
CHUNK_BYTES = 1 << 17
# If there is no room for a snapshot that is due, the server looks again after this time, in seconds.
LOOK_S = 5.0
# On a short disk, a snapshot is begun if the journal is larger than SHORT_TIMES the state plus LITTLE_BYTES.
SHORT_TIMES, LITTLE_BYTES = 2, 4 << 20
# The size of a map is estimated from at most this many items. To add up their sizes takes 50 ms.
WEIGHED = 1_000_000
# Turns with records put off at most this many bytes of chunks. Turns without records write them.
PUT_OFF_BYTES = 1 << 24
# The name of a meta value in the journal. If the value is set, this journal is a copy of a store that may go on.
COPY = "copy"


class Snapshotter:
    """The snapshot under way; there is at most one."""

    def __init__(self, journal: Journal, limits: Limits) -> None:
        self._journal = journal
        self._limits = replace(limits, sync_chunk_bytes=min(limits.sync_chunk_bytes, CHUNK_BYTES))
        self._bodies: Iterator[bytes] | None = None
        # The bytes of records that this turn wrote.
        self._written = 0
        # The bytes of chunks that turns with records have put off.
        self._owed = 0
        self._not_before = float("-inf")
        self.number = 0
        # The `shared` of the `Replace` order that is not done yet; None if there is none.
        self._shared: int | None = None
        # The journal operations that wait for the replacement.
        self._waiting: list[JournalOp] = []
        self._is_copy = bool(journal.get_meta(COPY))

    @property
    def busy(self) -> bool:
        """True if a snapshot is under way."""
        return self._bodies is not None

    def step(self, core: ServerCore) -> bool:
        """Begin a snapshot if one is due, or put the next chunks; return True if a snapshot has just become valid."""
        written, self._written = self._written, 0
        if self._bodies is None:
            if core.turn.now >= self._not_before and (self._shared is not None or self._is_due(core)):
                self.begin(core)
            return False
        if self._shared is None and core.committer.room.spares_disk:
            self.give_up(core.turn.now + LOOK_S)
            return False
        if not written:
            return self._put_next(core)
        self._owed += written
        while self._owed > PUT_OFF_BYTES and self._bodies is not None:
            before = self._owed
            if self._put_next(core):
                return True
            if self._owed == before:
                # The image is not complete.
                break
        return False

    def _put_next(self, core: ServerCore) -> bool:
        """Put the next chunk, or make the snapshot valid and return True."""
        if self._bodies is None:
            return False
        body = next(self._bodies, None)
        if body is not None:
            if body is not NOT_YET:
                self._journal.put_snapshot(body)
                self._owed -= len(body)
            return False
        self._bodies = None
        if self._shared is None:
            # Older rows stay for as long as they are retained.
            self._journal.commit_snapshot(keep_after=0)
        else:
            self._replaced(core, self._shared)
        return True

    def _is_due(self, core: ServerCore) -> bool:
        """Return True if a snapshot is due, and the disk has room for it."""
        room, due = core.committer.room, self._journal.snapshot_due()
        if not (due or room.short_of_disk):
            return False
        stats, number = self._journal.stats(), core.state.number
        # The new snapshot is at most as large as the last one and the rows since then together.
        most = int(stats.get("snapshot_bytes", 0)) + int(stats.get("since_snapshot_bytes", 0))
        if due and room.has_disk_for(most):
            return True
        self._not_before = core.turn.now + LOOK_S
        size = weight_of(core.state.map_so_far)
        return number > 0 and (due or most > SHORT_TIMES * size + LITTLE_BYTES) and room.has_disk_for(size)

    def give_up(self, until: float) -> None:
        """Abandon the snapshot, and begin no other before `until`. The journal keeps its last complete snapshot."""
        self._journal.abort_snapshot()
        self._bodies, self._not_before = None, until

    def write(self, ops: Sequence[JournalOp], core: ServerCore, *, again: bool = False) -> None:
        """Do a turn's journal operations, without the sync. `again` says that some of them may be synced already.

        A replacement takes the state at its begin, so it contains the complete records that came before that.
        """
        if self._is_copy and not all(isinstance(op, Remember) for op in ops):
            # The first operation makes the copy a store of its own, in the same transaction.
            self._journal.set_meta(COPY, b"")
            self._is_copy = False
        replaced, begun = 0, False
        if again:
            # The error of the journal has abandoned the snapshot that was under way.
            self.give_up(core.turn.now)
            replaced = int(self._journal.stats()["number"])
            self._waiting = [op for op in self._waiting if not any(op is now for now in ops)]
        for op in ops:
            if isinstance(op, Replace):
                self._shared = core.pair.replacing = op.shared
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
            any(self._put_next(core) for _ in range(SMALL))

    def _do(self, op: JournalOp, replaced: int) -> None:
        if isinstance(op, Append):
            if op.messages:
                self._journal.keep_messages(op.messages)
            if op.last > replaced:
                self._journal.append([op.row()])
                self._written += len(op.body)
        elif isinstance(op, DropAfter):
            self._journal.sync()
            self._journal.drop_after(op.number)
        elif isinstance(op, Remember):
            self._journal.set_meta(op.key, op.value)
        elif isinstance(op, Trim):
            self._journal.trim_messages(op.floors)
        elif isinstance(op, Fill) and op.messages:
            self._journal.keep_messages(op.messages)

    def replace(self, core: ServerCore, shared: int = 0) -> None:
        """Replace what the journal has by the whole present state, at once. A replacement under way is completed."""
        self._shared = shared
        if self._bodies is None:
            self.begin(core)
        while not self._put_next(core):
            core.state.gather()

    def _replaced(self, core: ServerCore, shared: int) -> None:
        """Make the written state the journal's only snapshot, then do the operations that waited; sync all."""
        self._journal.commit_snapshot(keep_after=self.number, alone=True, shared=shared)
        for op in self._waiting:
            self._do(op, self.number)
        self._journal.sync()
        self._shared = core.pair.replacing = None
        self._waiting.clear()

    def begin(self, core: ServerCore) -> None:
        """Begin a snapshot of the state as it is now."""
        self.number, self._owed = core.state.number, 0
        self._journal.begin_snapshot(self.number)
        self._bodies = self._chunks(core, core.state.image(""))

    def _chunks(self, core: ServerCore, image: Image) -> Iterator[bytes]:
        # The deadlines are copied, because a snapshot has no later updates that would correct a changed deadline.
        image.deadlines = dict(image.deadlines)
        rest = core.state.rest(core.turn.now)
        staged = core.state.staging.segments()
        scheduled = core.state.topics.schedule.segments(round(core.turn.wall_s * 1000))
        chunks = image.chunks(self._limits, lambda: core.turn.now)

        def bodies() -> Iterator[bytes]:
            yield from image.waiting()
            for i, segment in enumerate(chain((chunk.encode() for chunk in chunks), staged, scheduled)):
                # The ttls of the chunk count from this time.
                yield encode(Sync(0, i, round(core.turn.wall_s * 1000)), [segment])
            yield from rest

        return bodies()


def weight_of(hashmap: Hashmap) -> int:
    """Return about how many bytes the keys and values of a map take in a snapshot."""
    some, n = islice(hashmap.values.items(), WEIGHED), len(hashmap.values)
    weight = sum(len(key) + len(value) + 8 for key, value in some)
    return weight * n // min(n, WEIGHED) if n else 0


def recover_snapshot(commits: Committed, bodies: Iterable[bytes], limits: Limits, now: float, wall_s: float) -> None:
    """Take over the journal's snapshot, and shorten its ttls by its age. The age is by this server's wall clock."""
    for _ in recovering(commits, bodies, limits, now, wall_s):
        pass


def recovering(
    commits: Committed, bodies: Iterable[bytes], limits: Limits, now: float, wall_s: float
) -> Iterator[None]:
    """Take over the journal's snapshot, and yield after each chunk."""
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
