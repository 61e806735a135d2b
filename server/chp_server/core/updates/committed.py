"""All that is committed: the state, the latest records and the channels.

    keep, open_epoch    add a record of this server
    follow              adds a record that the active sent, or that the journal has; a replica publishes it too
    holds               returns whether the position of another server is part of this history

Every record extends the digest (history.py). The active's way from updates to records is in commit.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Any
from zlib import crc32

from chp import columns
from chp.batch import Segment, decode, encode, items_of, segment_of
from chp.digest import link
from chp.errors import BadFrame
from chp.headers import Access, Batch, Commit, Epoch, Header, name_of
from chp.keys import CLIENT_BYTES
from chp.limits import Limits
from chp.numbers import epoch_of
from chp.parts import Parts, WholeRecord
from chp.unpacking import WHOLE_STATE

from ..state.commit_record import done
from ..state.history import Position, holds
from ..state.record_log import Record, RecordLog
from ..state.staging import StagedBatch
from ..state.state import ReplicatedState
from .channels import PublishedChannels
from .turn import Append, Frames, Turn

# A commit of many items, more than the map's keys divided by DEFERRED_SHARE, is journaled, published and acknowledged
# before the map gets it (`is_much`). So its client gets the answer earlier, and other sets wait only for a slice.
DEFERRED_SHARE = 8


def writers_of(record: WholeRecord) -> list[bytes]:
    """Return the session that wrote each segment of a record; b"" stands for the server."""
    origins = record.origins
    if record.whose is None:
        return [origins[0][0] if origins else b""] * len(record.segments)
    return [origins[place - 1][0] if place else b"" for place, _, n in record.whose for _ in range(n)]


class Committed:
    """The state, the latest records and the channels, and how records become part of them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = ReplicatedState(limits)
        self.log = RecordLog(limits)
        self.channels = PublishedChannels(limits)
        self.counts: Counter[str] = Counter()
        self._followed_uuids: list[bytes] = []
        # The parts of a record whose last part has not come yet.
        self._parts = Parts()
        # The digest up to the last of these parts.
        self._digest = 0
        # On a replica: the bytes of the segments in these parts, which are to be published.
        self._bodies: list[bytes] = []

    @property
    def busy(self) -> bool:
        """True while the map, or a channel, lacks items of a large commit. Readers that come meanwhile wait."""
        return bool(self.state.deferred) or self.channels.behind

    def keep(self, record: Record, turn: Turn) -> None:
        """Add a record to the log and the journal, with the messages that it has placed."""
        self.log.append(record)
        self.state.staging.passed += len(record.body)
        turn.journal.append(Append(record.first, record.last, record.body, record.messages or ()))

    def is_much(self, segments: Sequence[Segment | StagedBatch]) -> bool:
        """Return whether segments have so many items that the map gets them later."""
        items = sum(segment.items for segment in segments)
        least = min(self.limits.deferred_items_always, len(self.state.map_so_far) // DEFERRED_SHARE)
        return items > max(self.limits.deferred_items_min, least)

    def apply(self, segment: Segment, body: bytes | None, revision: int, now: float, *, deferred: bool = False) -> None:
        """Do all that a segment of a record says, on the active, on the passive and on recovery.

        Channels get their parts of the segment before the map gets it. If `body`, the bytes of the segment, is None,
        nothing is published.
        """
        state = self.state
        if deferred:
            self.channels.gather(segment, body)
        elif body is None:
            self.channels.follow(segment, revision, state.map_so_far)
        else:
            self.channels.note(segment, body, revision, state.map_so_far)
        state.apply(segment, revision, now, deferred=deferred)
        if segment.extras and not columns.OF_TOPICS.isdisjoint(segment.extras):
            state.topics.apply(segment.extras)

    def apply_all(
        self,
        segments: Sequence[Segment | StagedBatch],
        bodies: Sequence[bytes] | None,
        revision: int,
        now: float,
        *,
        deferred: bool,
    ) -> None:
        """Do all that the segments of a commit say, as `apply` does; staged batches are decoded as late as can be."""
        publish = bodies is not None
        for each, body in zip(segments, bodies or repeat(None), strict=False):
            if not isinstance(each, StagedBatch):
                self.apply(each, body, revision, now, deferred=deferred)
            elif deferred and each.plain:
                self.channels.gather_staged(each, publish=publish)
                self.state.apply_staged(each, revision, now)
            else:
                self.apply(each.segment(), body, revision, now, deferred=deferred)

    # -- history

    def open_epoch(self, told: Epoch, turn: Turn) -> None:
        """Add the first record of an epoch of this server."""
        body = encode(told)
        digest = link(self.state.digest, crc32(body))
        self.state.record_epoch(told, digest)
        self.keep(Record(told.prev, told.first, told.last, body, digest), turn)

    def keep_access(self, told: Access, now: float, turn: Turn) -> None:
        """Add a record of rules, or of the owners of sessions; only the journal and the passive get it."""
        body = encode(told)
        digest = link(self.state.digest, crc32(body))
        self._note_access(told, digest, now)
        self.keep(Record(told.prev, told.first, told.last, body, digest), turn)

    def _note_access(self, told: Access, digest: int, now: float) -> None:
        self.state.record_access(told)
        self.state.record_number(told.last, digest, [], told.first, now)
        self.channels.skip(told.last)

    def begin_anew(self, before: ReplicatedState) -> None:
        """Begin with a new state, which has replaced `before` as a whole. The old map is freed a slice a turn."""
        self.state.leaving = before.leaving
        self.state.leaving.add_map(before.map_so_far)
        self.log.clear()
        self.channels.reset(self.state)

    def holds(self, proof: Position) -> bool:
        """Return whether a server at this position has only records that this server has too."""
        if not proof.number:
            return True
        state = self.state
        if proof.number == state.number:
            return proof == state.proof()
        return proof.store == state.store and holds(state.history, proof, self.log.digest_at(proof.number))

    def proves(self, proof: Position) -> bool:
        """Return whether a position is part of this history and has the right digest. Clients are told no digests."""
        tenure = self.state.history.get(epoch_of(proof.number))
        known = tenure is not None and (proof.number == tenure.last or self.log.digest_at(proof.number) is not None)
        return proof.number > 0 and known and self.holds(proof)

    # -- the passive, and recovery

    @property
    def followed(self) -> int:
        """The number of the last record, or of the last part of one. The next record or part has to follow on it."""
        return self._parts.last or self.state.number

    def follow(self, body: bytes, now: float, wall_s: float | None = None) -> Record:
        """Apply a record that the active sent, or that the journal has. The caller has checked that it follows on.

        A record in parts is applied only with its last part. So no reader sees half of a record, and no successor takes
        over half of a record.

        On recovery `wall_s` is given: ttls then count from the moment when the record was made, by this server's wall
        clock. Sessions still count from `now`, because the wall clock may have been set.
        """
        return self.follow_decoded(*decode(body, WHOLE_STATE), body, now, wall_s)

    def follow_decoded(
        self,
        header: Header,
        items: list[Any],
        body: bytes,
        now: float,
        wall_s: float | None = None,
        *,
        publish: list[Frames] | None = None,
    ) -> Record:
        """Apply a record as `follow` does, given its decoded body.

        If `publish` is given, append to it the messages that the active sent to its subscribers for this record.
        """
        digest = self._digest = link(self._digest if self._parts else self.state.digest, crc32(body))
        staged = list[StagedBatch]()
        if isinstance(header, Epoch):
            self._parts.drop()
            self.state.record_epoch(header, digest)
            self.channels.skip(header.last)
            if publish is not None:
                self.channels.begin_epoch(header.first)
        elif isinstance(header, Access):
            self._note_access(header, digest, now)
        elif isinstance(header, Batch):
            segments = [segment_of(item) for item in items]
            if header.more:
                # This computes the bounds now, so that the turn of the last part need not look at each key.
                _ = [segment.bounds for segment in segments if segment.keys]
            if publish is not None and self.channels.by_topic:
                self._bodies += items_of(body)
            whole = self._parts.add(header, segments)
            if whole is not None:
                self._note_openers(whole)
                bodies, self._bodies = self._bodies, []
                made = _made(whole, now, wall_s)
                if publish is not None:
                    bodies = bodies or [b""] * len(whole.segments)
                    self._apply(whole, whole.segments, digest, now, made=made, bodies=bodies)
                    publish += self._published(whole, header, body)
                else:
                    self._apply(whole, whole.segments, digest, now, made=made)
        elif isinstance(header, Commit):
            staged = self.state.staging.named(header.transaction, header.parts)
            parts: list[Segment | StagedBatch] = [*map(segment_of, items), *staged, done(header)]
            self._follow_commit(header, parts, digest, now, made=_made(header, now, wall_s), publish=publish)
        else:
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        more = isinstance(header, Batch) and header.more
        return Record(header.prev, header.first, header.last, body, digest, more=more, staged=staged)

    def _apply(
        self,
        record: WholeRecord | Commit,
        segments: Sequence[Segment | StagedBatch],
        digest: int,
        now: float,
        *,
        made: float,
        bodies: list[bytes] | None = None,
    ) -> None:
        """Apply a whole record; with the `bodies` of its segments the channels gather what is to be published."""
        deferred = self.is_much(segments)
        if bodies is not None and isinstance(record, WholeRecord):
            for writer, segment, body in zip(writers_of(record), record.segments, bodies, strict=True):
                self.channels.writer = writer
                self.apply(segment, body, record.first, made, deferred=deferred)
        else:
            self.apply_all(segments, bodies, record.first, made, deferred=deferred)
        for each in segments:
            self.counts["updates"] += each.items
            if isinstance(each, Segment):
                self._followed_uuids += (each.extras or {}).get(columns.UUIDS, ())
        self.state.record_number(record.last, digest, record.origins, record.first, now)
        if bodies is None:
            self.channels.skip(record.last)

    def _follow_commit(
        self,
        header: Commit,
        segments: Sequence[Segment | StagedBatch],
        digest: int,
        now: float,
        *,
        made: float,
        publish: list[Frames] | None,
    ) -> None:
        if publish is None:
            self._apply(header, segments, digest, now, made=made)
            return
        self.channels.writer = header.origins[0][0] if header.origins else b""
        self._apply(header, segments, digest, now, made=made, bodies=[each.encode() for each in segments])
        publish += self.channels.kvpubs(segments, header.first, header.last)
        self.channels.publish_later(header.first, header.last, header.wall_ms, header.origins)

    def _published(self, record: WholeRecord, last: Batch, body: bytes) -> list[Frames]:
        """Return what the active published of a record that was just applied; `body` is that of its `last` part."""
        # A staged segment has no numbers, and readers may not see it before its commit.
        done = (each for each in record.segments if not (each.extras and columns.STAGE in each.extras))
        out = self.channels.kvpubs(done, record.first, record.last)
        if last.first == record.first:
            return out + self.channels.publish(last, body, crc32(body), len(record.segments))
        return out + self.channels.publish_parts(record.first, record.last, record.wall_ms, record.origins)

    def _note_openers(self, record: WholeRecord) -> None:
        """Note the clients that staged the segments of a record, if the record tells the sessions of the segments."""
        staged = [bool(segment.extras and columns.STAGE in segment.extras) for segment in record.segments]
        if not any(staged) or not record.origins:
            return
        whose, at = record.whose or [[1, 0, len(staged)]], 0
        for place, _, n in whose:
            for segment in compress(record.segments[at : at + n], staged[at : at + n]) if place else ():
                extras = segment.extras or {}
                self.state.staging.opened(extras[columns.STAGE][0], record.origins[place - 1][0][:CLIENT_BYTES])
            at += n

    def followed_uuids(self) -> list[bytes]:
        """Return the UUIDs of the CHP/1 sets that were followed since the last call."""
        uuids, self._followed_uuids = self._followed_uuids, []
        return uuids

    def drop_partial(self) -> bool:
        """Forget the parts of a record that will never be complete; return whether there were any."""
        held = self._parts.drop()
        self._bodies.clear()
        if held:
            self.log.drop_after(self.state.number)
        return held


def _made(record: WholeRecord | Commit, now: float, wall_s: float | None) -> float:
    """Return the time from which the ttls of a record count: now, or on recovery when the record was made."""
    return now if wall_s is None else now - max(0.0, wall_s - record.wall_ms / 1000)
