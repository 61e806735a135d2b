"""The channel of one subtree in a client: how far the copy is complete, and how it becomes so (SPEC.md, section 16).

    at      the number up to which this channel is complete
    live    nothing is missing, so batches are applied as they come
    sync    the request for a snapshot, or for what changed since `at`, that is under way

        BATCH   last <= at            it was seen already: drop it
                epoch older           a stale server sent it: drop it
                epoch newer           history may have changed: resync
                prev <= at            it follows: apply it, at = last
                prev >  at            there is a hole: count it, resync

Batches that come while a sync is under way are held back, up to a limit, and handled after it. A channel decides
nothing about servers: its caller says which server to ask. It has no clock and no socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import compress
from typing import Any, cast

from chp import columns, headers
from chp.batch import Segment, narrow, record_of, runs_of, segment_of, select
from chp.digest import NOTHING, link
from chp.errors import BadFrame
from chp.hashmap import Hashmap
from chp.keys import channel_topic
from chp.limits import Limits
from chp.numbers import EPOCH_SHIFT, epoch_of
from chp.parts import Parts

from ..events import Changed, revision_of
from ..outbox import SentBatch, size_of
from ..timing import NEVER
from .key_order import KeyOrder
from .replica import Replica

CREDIT = 16


class BatchVerdict(Enum):
    """The verdict of a channel on a message from the active."""

    FINE = "fine"
    # The client must ask for what changed since `at`.
    RESUME = "resume"
    # The copy differs, so the client must ask for all of it.
    REFETCH = "refetch"


@dataclass(slots=True)
class ChannelSync:
    """The request of a channel that is under way."""

    id: int
    server: int
    # The number from which changes are asked for; 0 asks for everything.
    start: int
    progress_at: float
    # The request is made again after this many seconds without a chunk.
    wait_s: float = NEVER
    # The session whose last batch number KTHXBAI will tell.
    session: bytes = b""
    # The keys of own sets that are shown and answered, but are not in the copy yet.
    answered: set[str] = field(default_factory=set)
    # The part of the snapshot that has come.
    fresh: Hashmap = field(default_factory=partial(Hashmap, ordered=False))
    next_index: int = -1
    granted: int = CREDIT
    # The size of the snapshot's keys and values, in bytes.
    size: int = 0


NOBODY = [b"", b""]


class CopyChannel:
    """The copy of one subtree, its position, and the handling of its messages."""

    def __init__(
        self,
        subtree: str,
        shown: dict[str, bytes],
        stats: Counter[str],
        limits: Limits,
        own_batches: Callable[[int, int], list[SentBatch]],
        *,
        order: KeyOrder | None = None,
        unanswered: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self.subtree = subtree
        self.topic = channel_topic(subtree)
        self.replica = Replica(shown, subtree, order)
        self.at = 0
        # The history that `at` belongs to: the store, and the opener of the epoch.
        self.whose = NOBODY
        self.live = False
        self.synced_once = False
        # The number at which the channel was complete for the first time.
        self.first_at = 0
        # True if the copy is from a history that has ended. Its revisions can't be compared with those of a snapshot.
        self.anew = False
        self.sync: ChannelSync | None = None
        self.watching = False
        self.changes: list[Changed] = []
        # The number, the key count and the revision sum of the last equal fingerprint.
        self.compared: tuple[int, int, int] | None = None
        self._stats = stats
        # A function that returns the own batches between two numbers, or none if one is not shown.
        self._own_batches = own_batches
        # A function that returns the numbers of the unanswered own batches, ascending.
        self._unanswered = unanswered
        # The reason for the last verdict.
        self.why = ""
        # A start number, and a digest of all that was published after it, up to `at` or to the parts held.
        self.digest = NOTHING
        self._buffer: list[tuple[headers.Batch, list[Any], int]] = []
        self._buffered = 0
        self._limits = limits
        # The time of the last message of the active on this channel.
        self.heard_at = float("-inf")
        # The time to subscribe to the channel again if nothing is heard.
        self.again_at = float("-inf")
        # The number of refusals of its subscription in a row.
        self.refusals = 0
        # True if the copy is known to differ from the server's. Only a snapshot repairs that.
        self.differs = False
        # The number of repairs since the copy was last seen to be equal.
        self.troubles = 0
        # The highest number of keys that a HEARTBEAT of the active told.
        self.told_keys = 0
        # The parts of a record whose last part is not here yet.
        self._parts = Parts()
        self._parts_bytes = 0

    # -- from P+1

    def on_batch(
        self, header: headers.Batch, items: list[Any], *, size: int, crc: int, session: bytes, now: float
    ) -> BatchVerdict:
        """Handle a BATCH of the active, with the size and the CRC-32 of its body."""
        last, epoch = header.last, self.at >> EPOCH_SHIFT
        if last <= self.at or last >> EPOCH_SHIFT < epoch:
            return BatchVerdict.FINE
        if self.sync is not None or not self.live:
            return self._hold_back(header, items, size, crc)
        if last >> EPOCH_SHIFT > epoch:
            self.why = "a new epoch"
            return BatchVerdict.RESUME
        reached = self._parts.last or self.at
        if header.prev > reached:
            self._stats["holes"] += 1
            self.why = "a hole"
            return BatchVerdict.RESUME
        if last > reached:
            self._record(header, list(map(segment_of, items)), session, now)
            self._carried(crc)
        return BatchVerdict.FINE

    def _carried(self, crc: int) -> None:
        since, digest = self.digest
        if since:
            self.digest = since, link(digest, crc)

    @property
    def reached(self) -> int:
        """The number that the next batch must follow: the last part of an unfinished record, else `at`."""
        return self._parts.last or self.at

    def on_echo(self, header: headers.Batch, segments: list[Segment], crc: int, now: float) -> bool:
        """Confirm a BATCH of own batches that are shown already.

        Returns False if the batch must be handled as any other.
        """
        follows = header.prev <= self.at < header.last and self.sync is None and not self._parts
        if not follows or header.more or header.last >> EPOCH_SHIFT != self.at >> EPOCH_SHIFT:
            return False
        self.replica.apply(segments, header.first, header.origins[-1][1], True, now)
        self.at = header.last
        self._carried(crc)
        self._stats["records_applied"] += 1
        for segment in segments:
            self._stats["updates_applied"] += len(segment.keys)
        return True

    def _hold_back(self, header: headers.Batch, items: list[Any], size: int, crc: int) -> BatchVerdict:
        self._buffered += size
        if self._buffered > self._limits.join_buffer_bytes:
            self._stats["join_overflows"] += 1
            # The dropped batches show as a hole once the snapshot is here.
            self._forget_buffer()
            return BatchVerdict.FINE
        self._buffer.append((header, items, crc))
        return BatchVerdict.FINE

    def _forget_buffer(self) -> None:
        self._buffer, self._buffered = [], 0

    def on_heartbeat(self, header: headers.Heartbeat, now: float) -> BatchVerdict:
        """Handle a HEARTBEAT of the active: check if something is missing, and if the copy is equal."""
        number, fingerprint = header.number, (header.keys, header.revsum)
        self.told_keys = max(self.told_keys, header.keys)
        if self.sync is not None or not self.live or epoch_of(number) < epoch_of(self.at):
            return BatchVerdict.FINE
        if header.channel_last > self.at:
            self._stats["holes"] += 1
            self.why = "a hole"
            return BatchVerdict.RESUME
        if number < self.at or self._parts:
            return BatchVerdict.FINE
        if why := self._difference(header, fingerprint):
            self.why = why
            return BatchVerdict.REFETCH
        if epoch_of(number) > epoch_of(self.at):
            self.why = "a new epoch"
            return BatchVerdict.RESUME
        self.at = number
        self.troubles = 0
        self.compared = (number, *fingerprint)
        return BatchVerdict.FINE

    def _difference(self, header: headers.Heartbeat, fingerprint: tuple[int, int]) -> str:
        """Return how this HEARTBEAT shows that the copy differs, or "".

        Digests with different start numbers can't be compared. The channel then takes over the digest of the server.
        """
        if fingerprint != self.replica.map.fingerprint():
            self._stats["mismatches"] += 1
            return "the fingerprint differs"
        theirs = header.since, header.digest
        if theirs[0] != self.digest[0]:
            self.digest = theirs
        if theirs != self.digest:
            self._stats["digest_mismatches"] += 1
            return "what was received is not what was published"
        return ""

    def _record(self, header: headers.Batch, segments: list[Segment], session: bytes, now: float) -> None:
        """Apply a record that follows on `at`, or gather one part of it."""
        if header.more or self._parts:
            self._bound(segments)
        record = self._parts.add(header, segments)
        if record is None:
            return
        segments, first = record.segments, record.first
        own, others = own_origin(record.origins, session)
        echo_only = own > 0 and not others and self._shown_already(segments, own)
        came = taken = 0
        for segment in segments:
            came += len(segment.keys)
        segments = self.replica.apply(segments, first, own, echo_only, now)
        self.at = record.last
        self._stats["records_applied"] += 1
        for segment in segments:
            taken += len(segment.keys)
            if self.watching and (changed := changed_by(segment, first)) is not None:
                self.changes.append(changed)
        self._stats["updates_applied"] += taken
        if came != taken:
            self._stats["outside_subtree"] += came - taken

    def _bound(self, segments: list[Segment]) -> None:
        """Count another part of a record. Raise `BadFrame` if the record exceeds the limit."""
        self._parts_bytes = (self._parts_bytes if self._parts else 0) + sum(map(size_of, segments))
        if self._parts_bytes > self._limits.join_buffer_bytes:
            self._parts.drop()
            self.differs = True
            self._stats["endless_records"] += 1
            raise BadFrame(f"a record has more than {self._limits.join_buffer_bytes} bytes: taking a snapshot for it")

    def _shown_already(self, segments: list[Segment], own: int) -> bool:
        """Return True if a record is exactly the own batches up to `own`, which are shown already."""
        batches = self._own_batches(self.replica.pending.confirmed, own)
        if len(segments) != len(batches):
            return False
        for segment, batch in zip(segments, batches, strict=True):  # noqa: SIM110 (each look of a generator is a call)
            if segment.keys != batch.keys:
                return False
        return True

    # -- asking, and what comes from P

    def ask(self, request_id: int, server: int, start: int, now: float) -> ChannelSync:
        """Begin a request to `server`, and forget the one that was under way."""
        self.sync = ChannelSync(request_id, server, start, now)
        self.sync.answered = self.replica.pending.without(self._unanswered())
        self._parts.drop()
        return self.sync

    def on_chunk(self, header: headers.Sync | headers.Records, items: list[Any], session: bytes, now: float) -> int:
        """Take a SYNC or RECORDS chunk. Return how many more chunks to grant now."""
        sync = self.sync
        assert sync is not None, "the core looked the request up"
        if sync.next_index not in (-1, header.chunk):
            raise BadFrame(f"chunk {header.chunk} came where {sync.next_index} was due")
        sync.next_index = header.chunk + 1
        sync.progress_at = now
        if isinstance(header, headers.Sync):
            for segment in list(map(segment_of, items)):
                self._load(sync, segment, now)
        else:
            for item in items:
                self._replay(item, session, now)
        sync.granted -= 1
        if sync.granted > CREDIT // 2:
            return 0
        more = CREDIT - sync.granted
        sync.granted = CREDIT
        return more

    def _load(self, sync: ChannelSync, segment: Segment, now: float) -> None:
        """Add a part of a snapshot. Raise `BadFrame` if it exceeds a limit or has a key twice."""
        if self.subtree and narrow(segment, self.subtree) is not segment and segment.keys:
            segment = self._without_strangers(segment)
        known, limits = len(sync.fresh), self._limits
        sync.size += size_of(segment)
        sync.fresh.load(segment, now)
        if len(sync.fresh) != known + len(segment.keys):
            raise BadFrame("a snapshot has a key twice")
        if self.told_keys and len(sync.fresh) > 2 * self.told_keys + limits.batch_items_max:
            raise BadFrame(f"a snapshot has {len(sync.fresh)} keys and goes on; the server told of {self.told_keys}")
        if sync.size > limits.copy_bytes_max:
            raise BadFrame(
                f"a snapshot of {self.subtree!r} has more than {limits.copy_bytes_max} bytes; hold less of it"
            )

    def _without_strangers(self, segment: Segment) -> Segment:
        inside = [key.startswith(self.subtree) for key in segment.keys]
        self._stats["outside_subtree"] += inside.count(False)
        extras = dict(segment.extras or {})
        revisions = [r for r, n in extras.pop(columns.REVISIONS, []) for _ in range(n)]
        kept = select(Segment(segment.keys, segment.values, extras), inside) or Segment([], [], {})
        runs = runs_of(compress(revisions, inside))
        return Segment(kept.keys, kept.values, {**(kept.extras or {}), columns.REVISIONS: runs})

    def _replay(self, item: Any, session: bytes, now: float) -> None:
        header, segments = record_of(item)
        if header.last > self.reached:
            self._record(header, segments, session, now)

    def is_behind(self, header: headers.Kthxbai) -> bool:
        """Return True if an answer is of the history of the copy, but older than the copy.

        A replica may answer before it has the records that this client got from another server.
        """
        known = header.number < self.at and epoch_of(header.number) == epoch_of(self.at)
        return known and not self.anew and _whose(header) == self.whose

    def on_kthxbai(self, header: headers.Kthxbai, session: bytes, now: float) -> BatchVerdict:
        """Show the snapshot or resume that ends here, then handle the batches that were held back."""
        sync = self.sync
        assert sync is not None, "the core looked the request up"
        number, whose = header.number, _whose(header)
        own = header.session_no if header.session_no is not None and sync.session == session else 0
        doubted = sync.answered if epoch_of(number) > epoch_of(sync.start if header.resumed else self.at) else set()
        self.replica.doubt(doubted, self._unanswered())
        if epoch_of(number) > epoch_of(self.at) and sync.session == session:
            first_open = next(iter(self._unanswered()), self.replica.pending.last + 1)
            # A batch that an earlier epoch answered is in the snapshot, or it is lost.
            own = max(own, first_open - 1)
        if header.resumed:
            self.replica.pending.confirm(own)
        else:
            fresh, self.differs = sync.fresh, False
            self._stats["updates_synced"] += len(fresh)
            # Revisions of another store can't be compared.
            anew = self.anew or (self.at > 0 and whose[0] != self.whose[0])
            changed = self.replica.replace(fresh, own, number if self.watching else 0, anew=anew)
            self.anew = False
            if changed is not None and changed.keys:
                self.changes.append(changed._replace(first=not self.synced_once))
        self.sync = None
        self._parts.drop()
        self._stats["resyncs_resumed" if header.resumed else "resyncs_snapshot"] += 1
        self.at, self.whose = number, whose
        self.digest = header.since, header.digest
        if not self.synced_once:
            self.first_at = number
        self.live = self.synced_once = True
        if (header.keys, header.revsum) != self.replica.map.fingerprint():
            self._stats["mismatches"] += 1
            self.why = "the fingerprint differs"
            return BatchVerdict.REFETCH
        if header.resumed and doubted:
            self.why = "it shows own sets that an earlier epoch answered and may have lost"
            return BatchVerdict.REFETCH
        return self._release(session, now)

    def _release(self, session: bytes, now: float) -> BatchVerdict:
        waiting, self._buffer, self._buffered = self._buffer, [], 0
        for header, items, crc in waiting:
            verdict = self.on_batch(header, items, size=0, crc=crc, session=session, now=now)
            if verdict is not BatchVerdict.FINE:
                return verdict
        return BatchVerdict.FINE

    def stop(self) -> None:
        """Stop asking, as no server is followed. The copy is kept."""
        self.live = False
        self.sync = None
        self._parts.drop()
        self._forget_buffer()

    def check(self) -> None:
        """Assert the invariants of the channel."""
        self.replica.check()
        assert not (self.live and not self.synced_once), "a live channel was synced"


def _whose(header: headers.Kthxbai) -> list[bytes]:
    """Return the proof in a KTHXBAI. A later request sends it beside the number of that KTHXBAI as its `from`."""
    whose = header.proof
    if whose is None or list(map(type, whose)) != [bytes, bytes]:
        raise BadFrame("a KTHXBAI has the store and the opener of the epoch, two times bytes")
    return whose


def own_origin(origins: list[Any], session: bytes) -> tuple[int, bool]:
    """Return the highest own batch number among the origins (0: none), and whether there are other origins."""
    own, others = 0, False
    for origin in origins:
        if type(origin) is not list or len(origin) < 2 or type(origin[1]) is not int:
            raise BadFrame("an origin is [session, batch number]")
        if origin[0] == session:
            own = max(own, origin[1])
        else:
            others = True
    return own, others


def own_number(origins: list[Any], session: bytes) -> int:
    """Return the own batch number of a record, or 0 if it has batches of other sessions."""
    own, others = own_origin(origins, session)
    return 0 if others else own


def changed_by(segment: Segment, revision: int) -> Changed | None:
    """Return the changes of a segment for watches, or None if it changes no key."""
    if not segment.keys:
        return None
    extras = segment.extras or {}
    deletes = extras.get(columns.DELETES)
    if not deletes:
        return Changed(segment.keys, cast(list[bytes | None], segment.values), revision_of(revision))
    values: list[bytes | None] = list(segment.values)
    for i in deletes:
        values[i] = None
    expiries = sorted(deletes) if columns.ENDED in extras else ()
    return Changed(segment.keys, values, revision_of(revision), expiries=expiries)
