"""What is committed: the state, the latest records and the channels, and records of others that become part of them.

    keep, open_epoch        a record of ours              follow      one of the active's, or of the journal
    holds                   whether what somebody else has is part of this history

Every record lengthens the digest (history.py). What the active does beside
that, from updates to records, is in commit.py.
"""

from __future__ import annotations

from collections import Counter
from itertools import compress
from typing import Any
from zlib import crc32

from chp import columns
from chp.batch import Segment, decode, encode, segment_of
from chp.digest import link
from chp.errors import BadFrame
from chp.headers import Access, Batch, Epoch, Header, name_of
from chp.keys import CLIENT_BYTES
from chp.limits import Limits
from chp.numbers import epoch_of
from chp.parts import Parts, WholeRecord
from chp.unpacking import WHOLE_STATE

from ..state.history import Position, holds
from ..state.record_log import Record, RecordLog
from ..state.state import ReplicatedState
from .channels import PublishedChannels
from .turn import Append, Turn

# A staged commit of so many items, and not of a small share of the map, is journaled, published and acknowledged first
# and put into the map then: nobody can look in between, and who waits for it need not wait for that too.
DEFERRED_ITEMS, DEFERRED_SHARE = 10_000, 8


class Committed:
    """See the module."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = ReplicatedState(limits)
        self.log = RecordLog(limits)
        self.channels = PublishedChannels(limits)
        self.counts: Counter[str] = Counter()
        self._followed_uuids: list[bytes] = []
        self._parts = Parts()  # of a record whose last one is not here yet
        self._digest = 0  # of all up to the last of those

    def keep(self, record: Record, turn: Turn) -> None:
        """A record becomes part of the log and of the journal, with the messages that it has placed."""
        self.log.append(record)
        turn.journal.append(Append(record.first, record.last, record.body, record.messages or ()))

    def is_much(self, segments: list[Segment]) -> bool:
        """Whether segments have so many items that putting them into the map is deferred."""
        items = sum(len(segment.keys) for segment in segments)
        return items > DEFERRED_ITEMS and items > len(self.state.map) // DEFERRED_SHARE

    def apply(self, segment: Segment, body: bytes | None, revision: int, now: float, *, deferred: bool = False) -> None:
        """All that a segment of a record does, on the active, on the passive and on recovery.

        Channels get their part of it before the map has it; without its bytes nothing is published.
        """
        state = self.state
        if deferred:
            self.channels.gather(segment, body or b"")
        elif body is None:
            self.channels.follow(segment, revision, state.map)
        else:
            self.channels.note(segment, body, revision, state.map)
        state.apply(segment, revision, now, deferred=deferred)
        if segment.extras and not columns.OF_TOPICS.isdisjoint(segment.extras):
            state.topics.apply(segment.extras)

    # -- history

    def open_epoch(self, told: Epoch, turn: Turn) -> None:
        """The first record of an epoch of ours."""
        body = encode(told)
        digest = link(self.state.digest, crc32(body))
        self.state.record_epoch(told, digest)
        self.keep(Record(told.prev, told.first, told.last, body, digest), turn)

    def keep_access(self, told: Access, now: float, turn: Turn) -> None:
        """A record of rules, or of whose sessions are; nobody but the journal and the passive gets it."""
        body = encode(told)
        digest = link(self.state.digest, crc32(body))
        self._note_access(told, digest, now)
        self.keep(Record(told.prev, told.first, told.last, body, digest), turn)

    def _note_access(self, told: Access, digest: int, now: float) -> None:
        self.state.record_access(told)
        self.state.record_number(told.last, digest, [], told.first, now)
        self.channels.skip(told.last)

    def begin_anew(self, before: ReplicatedState) -> None:
        """A whole state of the active's is ours; what we held before it goes a slice a turn."""
        self.state.leaving = before.leaving
        self.state.leaving.add_map(before.map)
        self.log.clear()
        self.channels.reset(self.state)

    def holds(self, proof: Position) -> bool:
        """Whether a replica that is so far holds nothing that we do not."""
        if not proof.number:
            return True
        state = self.state
        return proof.store == state.store and holds(state.history, proof, self.log.digest_at(proof.number))

    def proves(self, proof: Position) -> bool:
        """Whether it names a place of this history, with the digest there, which clients are not told."""
        tenure = self.state.history.get(epoch_of(proof.number))
        known = tenure is not None and (proof.number == tenure.last or self.log.digest_at(proof.number) is not None)
        return proof.number > 0 and known and self.holds(proof)

    # -- the passive, and recovery

    @property
    def followed(self) -> int:
        """The number that the next record or part has to follow on."""
        return self._parts.last or self.state.number

    def follow(self, body: bytes, now: float, wall_s: float | None = None) -> Record:
        """Apply a record of the active's, or of the journal; the caller has seen that it follows on ours.

        A record in parts is applied when its last part is here, so that nobody sees, or takes over, a half of it. With
        `wall_s`, on recovery, its ttls count from when it was made, as our own clock had it; sessions are not forgotten
        by a clock that may have been set.
        """
        return self.follow_decoded(*decode(body, WHOLE_STATE), body, now, wall_s)

    def follow_decoded(
        self, header: Header, items: list[Any], body: bytes, now: float, wall_s: float | None = None
    ) -> Record:
        """As `follow`, of a body that was decoded already."""
        digest = self._digest = link(self._digest if self._parts else self.state.digest, crc32(body))
        if isinstance(header, Epoch):
            self._parts.drop()
            self.state.record_epoch(header, digest)
            self.channels.skip(header.last)
        elif isinstance(header, Access):
            self._note_access(header, digest, now)
        elif isinstance(header, Batch):
            whole = self._parts.add(header, [segment_of(item) for item in items])
            if whole is not None:
                made = now if wall_s is None else now - max(0.0, wall_s - whole.wall_ms / 1000)
                self._apply(whole, digest, now, made)
        else:
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        more = isinstance(header, Batch) and header.more
        return Record(header.prev, header.first, header.last, body, digest, more=more)

    def _apply(self, record: WholeRecord, digest: int, now: float, made: float) -> None:
        deferred = self.is_much(record.segments)
        self._note_openers(record)
        for segment in record.segments:
            self.apply(segment, None, record.first, made, deferred=deferred)
            self.counts["updates"] += len(segment.keys)
            self._followed_uuids += (segment.extras or {}).get(columns.UUIDS, ())
        self.state.record_number(record.last, digest, record.origins, record.first, now)
        self.channels.skip(record.last)

    def _note_openers(self, record: WholeRecord) -> None:
        """Tell which clients have staged what the record has, as far as it says whose its segments are."""
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
        """The UUIDs of CHP/1 sets in what was followed since the last call."""
        uuids, self._followed_uuids = self._followed_uuids, []
        return uuids

    def drop_partial(self) -> bool:
        """Forget the parts of a record that will never be complete; whether there were any."""
        held = self._parts.drop()
        if held:
            self.log.drop_after(self.state.number)
        return held
