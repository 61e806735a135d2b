"""What is committed: the state, the latest records and the channels, and records of others that become part of them.

    keep, open_epoch        a record of ours              follow      one of the active's, or of the journal
    holds                   whether what somebody else has is part of this history

Every record lengthens the digest (history.py). What the active does beside
that, from updates to records, is in commit.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

from chp.batch import EPOCH, Segment, encode, segment_of, split
from chp.digest import link
from chp.headers import Epoch, expect
from chp.limits import Limits

from .channels import Channels
from .history import Proof, holds
from .recordlog import Record, RecordLog
from .state import ReplicatedState
from .turn import Append, Turn

# A staged commit of so many items, and not of a small share of the map, is journaled, published and acknowledged first
# and put into the map then: nobody can look in between, and who waits for it need not wait for that too.
LATE_ITEMS, LATE_SHARE = 10_000, 8


class Committed:
    """See the module."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state = ReplicatedState(limits)
        self.log = RecordLog(limits)
        self.channels = Channels(limits)
        self.counts: Counter[str] = Counter()
        self._followed_uuids: list[bytes] = []
        self._held: list[tuple[list[Any], list[Segment], int]] = []  # parts, with the digest, of one still unfinished

    def keep(self, record: Record, turn: Turn) -> None:
        """A record becomes part of the log and of the journal."""
        self.log.append(record)
        turn.journal.append(Append(record.first, record.last, record.body))

    def _is_much(self, items: int) -> bool:
        """Whether so many items are put into the map late."""
        return items > LATE_ITEMS and items > len(self.state.map) // LATE_SHARE

    # -- history

    def open_epoch(self, told: Epoch, turn: Turn) -> None:
        """The first record of an epoch of ours."""
        body = encode(told)
        digest = link(self.state.digest, crc32(body))
        self.state.note_epoch(told, digest)
        self.keep(Record(told.prev, told.first, told.last, body, digest), turn)

    def holds(self, proof: Proof) -> bool:
        """Whether a replica that is so far holds nothing that we do not."""
        if not proof.number:
            return True
        state = self.state
        return proof.store == state.store and holds(state.history, proof, self.log.digest_at(proof.number))

    # -- the passive, and recovery

    @property
    def followed(self) -> int:
        """The number that the next record or part has to follow on."""
        return int(self._held[-1][0][3]) if self._held else self.state.number

    def follow(self, body: bytes, now: float, wall_s: float | None = None) -> Record:
        """Apply a record of the active's, or of the journal; the caller has seen that it follows on ours.

        A record in parts is applied when its last part is here, so that nobody sees, or takes over, a half of it. With
        `wall_s`, on recovery, its ttls count from when it was made, as our own clock had it; sessions are not forgotten
        by a clock that may have been set.
        """
        header, *items = split(body)
        made = now if wall_s is None else now - max(0.0, wall_s - header[4] / 1000)
        digest = link(self._held[-1][2] if self._held else self.state.digest, crc32(body))
        self._held.append((header, [segment_of(item) for item in items], digest))
        if header[0] == EPOCH or not header[6]:
            self._apply_held(now, made)
        return Record(header[1], header[2], header[3], body, digest)

    def _apply_held(self, now: float, made: float) -> None:
        held, self._held = self._held, []
        revision, (header, _, digest) = held[0][0][2], held[-1]
        late = self._is_much(sum(len(segment.keys) for _, segments, _ in held for segment in segments))
        for _, segments, _ in held:
            for segment in segments:
                if late:
                    self.channels.gather(segment, b"")
                else:
                    self.channels.follow(segment, revision, self.state.map)
                self.state.apply(segment, revision, made, late=late)
                self.counts["updates"] += len(segment.keys)
                self._followed_uuids += (segment.extras or {}).get("u", ())
        if header[0] == EPOCH:
            self.state.note_epoch(expect(Epoch, header), digest)
        else:
            self.state.note_record(header[3], digest, header[5], revision, now)
        self.channels.skip(header[3])

    def followed_uuids(self) -> list[bytes]:
        """The UUIDs of CHP/1 sets in what was followed since the last call."""
        uuids, self._followed_uuids = self._followed_uuids, []
        return uuids

    def drop_held(self) -> bool:
        """Forget the parts of a record that will never be complete; whether there were any."""
        held, self._held = bool(self._held), []
        if held:
            self.log.drop_after(self.state.number)
        return held
