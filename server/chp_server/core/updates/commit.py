"""The way of the active from updates to records (SPEC.md, sections 11 and 14).

    collect    judges a KVSET (intake.py), applies it (here) and answers it (acks.py)
    commit     makes one record of the open updates: numbers it, adds it to journal, log and channels, and lets its
               answers wait

Every update of a record gets a number. All keys that a record writes get its first number as their revision. Segments
go into the record as the bytes in which they came. The server's own updates, such as expiry, become records likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any
from zlib import crc32

from chp import columns, headers
from chp.batch import Segment, encode, packb
from chp.digest import link
from chp.headers import APPLIED, JOURNALED
from chp.keys import CLIENT_BYTES, RESERVED_KEY
from chp.versions import COMMIT_SINCE

from ..state.access_state import GROUP
from ..state.commit_record import done as done_by
from ..state.groups import GIVEN_BACK
from ..state.record_log import Record, grouped, numbered
from ..state.schedule import Place, ScheduledMessage, timed
from ..state.staging import StagedBatch, StagedCommit
from ..state.state import deletes
from ..state.verdicts import (
    KEY_IN_OPEN_RECORD,
    Accept,
    AcceptChp1,
    BatchId,
    Commit,
    Duplicate,
    Refuse,
    Unrecorded,
    Verdict,
)
from .acks import Acks
from .authorizer import signer
from .committed import Committed
from .intake import StateView, judge, newer
from .open_record import HEADER_BYTES_MAX, NOBODYS, OpenRecord
from .refusals import NO_ROW, UnloggedRefusals
from .resource_limits import ResourceLimits
from .turn import CurrentTurn

# The count of skipped batches grows by at most this at a time, because a client can name any numbers of 64 bits.
SKIPPED_MAX = 1 << 16


def in_parts(
    groups: list[list[bytes]], items: int, told: list[Any], *, after: Record, wall_ms: int
) -> Iterator[Record]:
    """Yield the parts of a record that follows on `after`.

    The last part has the lists in `told`: the origins of the record, and the batch of each segment.
    """
    origins, *whose = told
    first, digest = after.last + 1, after.digest
    last = after.last + max(items, len(groups))
    for (before, start, end), more, group in numbered(groups, after.last, first, last):
        header = headers.Batch(before, start, end, wall_ms, [] if more else origins, more, *([] if more else whose))
        body = encode(header, group)
        digest = link(digest, crc32(body))
        yield Record(before, start, end, body, digest, more=more)


def placed_by(segments: Sequence[Segment | StagedBatch], bodies: list[bytes]) -> list[list[int]]:
    """Return, for each body, the sizes of the batches of messages that it placed.

    Return empty lists if `segments` lacks the segments of some bodies, because these are staged.
    """
    if len(segments) != len(bodies):
        return [[]] * len(bodies)
    extras = ({} if isinstance(each, StagedBatch) else each.extras or {} for each in segments)
    placed = (each.get(columns.PLACED) for each in extras)
    return [[] if column is None else [each[3] for each in column[1]] for column in placed]


# Segments, their bytes as the record has them, and the weights of the segments.
Weighed = tuple[Sequence[Segment | StagedBatch], list[bytes], list[int]]

# The reason that is noted for messages that a member had in hand when it ended.
MEMBER_ENDED = "the member that had it ended"
# The detail of a refusal is remembered only if it has at most this many bytes.
REFUSAL_BYTES_MAX = 4096


class Committer:
    """The open record and the answers, and how both become part of what is committed."""

    def __init__(self, committed: Committed, room: ResourceLimits, durability: int) -> None:
        limits = self.limits = committed.limits
        self.committed, self.counts, self.room = committed, committed.counts, room
        self.unwritten = UnloggedRefusals(limits.refusals_max)
        small = min(limits.value_bytes_max, limits.frame_bytes_max - HEADER_BYTES_MAX)
        self.view = StateView(committed, room, self.unwritten, small)
        self.open = OpenRecord(limits)
        self.acks = Acks(JOURNALED if durability else APPLIED, self.counts)
        # The owners of clients, applications and groups that got their first owner in the open record.
        self.new_owners: dict[bytes, str] = {}
        # The bytes of records that the journals retain, and the seconds for which they retain them (`_names`).
        self.retains: tuple[float, float] = (inf, inf)
        # Returns the messages that a lease has in hand in groups that count deliveries, as a column of a record. The
        # group coordinator sets this function.
        self.in_hand: Callable[[bytes, str], list[list[Any]]] = lambda lease_id, why: []
        # The number of keys of ended leases that this turn may still delete.
        self.ends_left = limits.ending_keys_max

    @property
    def revision(self) -> int:
        """The revision of the keys that are written in the open record."""
        return self.committed.state.number + 1

    def await_suffix(self, until: float) -> None:
        """Expect the suffix of another server until a time: it may have batches that a session lacks here.

        If such a session were told to send these batches again, its client might no longer have them. Then the client
        would open another session, and send again what also comes with the suffix. So the client gets no answer for
        now, and sends its batch again.
        """
        self.view.suffix_due = max(self.view.suffix_due, until)

    # -- sets of clients

    def collect(self, frames: list[bytes], turn: CurrentTurn) -> bool:
        """Take a KVSET, of CHP/2 `by_public_id` or of CHP/1; raise `BadInput` if it is malformed.

        Return True if the KVSET has only keys and values, and is done in the open record.
        """
        open_record, now = self.open, turn.arrival
        if open_record.bytes and open_record.full(len(frames[-1])):
            self.commit(turn)
        if open_record.chp1.keys and frames[0] == RESERVED_KEY:
            self.flush_chp1(now)
        verdict = judge(frames, self.view, open_record, now)
        if verdict is KEY_IN_OPEN_RECORD:
            self.commit(turn)
            verdict = judge(frames, self.view, open_record, now)
        if type(verdict) is Accept:
            if frames[3]:
                self._skip_to(verdict.batch, now)
            self._accept(verdict, now, turn.wall_s)
            return verdict.segment.extras is None
        if isinstance(verdict, Commit):
            if frames[3]:
                self._skip_to(verdict.batch, now)
            self._commit_staged(verdict, turn)
        else:
            if isinstance(verdict, Refuse) and verdict.code == "access":
                turn.effects.fact("denied", "warning", user=signer(frames), what=verdict.detail)
            self._apply(verdict, now)
            self.acks.answer(verdict, self.committed.state.number)
        return False

    def _accept(self, verdict: Accept, now: float, wall_s: float) -> None:
        """Do an accepted batch in the open record."""
        batch, segment, body = verdict.batch, verdict.segment, verdict.body
        session_id, no = batch
        state = self.committed.state
        for ended in verdict.makes_room:
            self._end_for_another(ended, now)
        if self.unwritten.kept:
            self._write_refusals(session_id, now)
        if extras := segment.extras:
            self.room.take(segment, len(body), state)
            self.counts["older_skipped"] += verdict.older
            if columns.STAGE in extras:
                state.staging.opened(extras[columns.STAGE][0], session_id[:CLIENT_BYTES])
            if columns.UNLEASE in extras:
                self._delete_leased(extras[columns.UNLEASE], now)
            if columns.SCHEDULE in extras:
                segment = timed(segment, round(wall_s * 1000))
                body = segment.encode()
            if columns.PUBLISH in extras and columns.STAGE not in extras:
                segment, body = self._placed(segment, wall_s)
            if columns.NACK in extras and (failed := self._given_back(extras[columns.NACK])):
                segment = Segment(segment.keys, segment.values, {**(segment.extras or {}), columns.FAILED: failed})
                body = segment.encode()
        else:
            self.room.taken += len(body)
        revision = state.number + 1
        self.committed.channels.writer = session_id
        self.committed.apply(segment, body, revision, now)
        self.open.add(segment, body, batch)
        # A session has one entry in a record: its last batch, because its batches come in order.
        self.open.origins[session_id] = no
        if verdict.owners:
            self.new_owners = verdict.owners | self.new_owners
            # A turn may make many groups, so their owners are noted at once.
            for name, user in verdict.owners.items():
                if name[:1] == GROUP:
                    state.topics.groups.own(name[1:].decode(errors="replace"), user)
        self.acks.acknowledge(session_id, no, revision)

    def _given_back(self, nacks: list[list[Any]]) -> list[list[Any]]:
        """Return, as a column, what those members have in hand that give back everything (a NACK without ranges)."""
        every = ((told, self.in_hand(member, GIVEN_BACK)) for *told, member, back in nacks if not back)
        return [each for told, found in every for each in found if each[:2] == told]

    def _end_for_another(self, ended: Segment, now: float) -> None:
        """End a lease or a transaction of the user that has most of them, to make room for another user's."""
        self.counts["ended_for_others"] += 1
        if columns.UNLEASE in (ended.extras or {}):
            self._delete_leased((ended.extras or {})[columns.UNLEASE], now)
        self.add_segment(ended, now)

    def _apply(self, verdict: Verdict, now: float) -> None:
        """Act on a verdict other than `Accept` and `Commit`: add a CHP/1 set, count a duplicate, remember a refusal."""
        if isinstance(verdict, AcceptChp1):
            self.open.chp1.add(verdict.key, verdict.value, verdict.uuid, verdict.properties, verdict.ttl_ms)
            self.open.bytes += len(verdict.key) + len(verdict.value) + len(verdict.properties)
            if verdict.value or self.room.read_only:
                self.room.taken += len(verdict.key) + len(verdict.value)
        elif isinstance(verdict, Duplicate):
            self.counts["duplicates"] += 1
        elif isinstance(verdict, Unrecorded):
            self.unwritten.note_done(*verdict.batch)
        elif isinstance(verdict, Refuse):
            if verdict.code == "full":
                self.room.turned_away(verdict.size)
            if verdict.batch is None:
                # CHP/1 has no answer to a KVSET, so its client can't be told.
                self.counts[f"refused_{verdict.code}"] += 1
            else:
                self._refuse(verdict.batch, verdict.code, verdict.detail, now)

    # -- batches that are not done here

    def _skip_to(self, batch: BatchId, now: float) -> None:
        """Note that batches before this one are skipped, as the client no longer has them; write refusals first."""
        if self.unwritten.kept:
            self._write_refusals(batch[0], now)
        self._note_skip(batch, now)

    def _note_skip(self, batch: BatchId, now: float) -> None:
        """Record that the missing batches before this one are skipped. A suffix may still bring them."""
        session_id, no = batch
        last = self.open.origins.get(session_id)
        if last is None:
            session = self.committed.state.sessions.get(session_id)
            last = session.no if session else 0
        if no > last + 1:
            told = Segment([], [], {columns.SKIPPED: [session_id, last + 1, no - 1]})
            self._add(told, told.encode(), now)
            # The count is bounded, because a client may name any number.
            self.counts["batches_skipped"] += min(no - 1 - last, SKIPPED_MAX)

    def _note_done(self, batches: dict[bytes, int], now: float) -> None:
        """Record that skipped batches are done now, because the suffix of another server brought them."""
        for session_id, no in batches.items():
            if self.committed.state.skipped(session_id, no):
                told = Segment([], [], {columns.SKIPPED: [session_id, no]})
                self._add(told, told.encode(), now)

    # -- refusals

    def _refuse(self, batch: BatchId, code: str, detail: Any, now: float) -> None:
        session_id, no = batch
        if self._leaves_no_row(session_id, code):
            self.unwritten.note(session_id, no, code, detail)
            return
        self._skip_to(batch, now)
        self._write_refusal(batch, code, detail, now)

    def _leaves_no_row(self, session_id: bytes, code: str) -> bool:
        if code == "full":
            return self.room.spares_disk
        known = session_id in self.committed.state.sessions or session_id in self.open.origins
        return code in NO_ROW and not known

    def _write_refusal(self, batch: BatchId, code: str, detail: Any, now: float) -> None:
        session_id, no = batch
        kept = detail if len(packb(detail)) <= REFUSAL_BYTES_MAX else {}
        told = Segment([], [], {columns.REFUSED: [session_id, no, code, kept]})
        self._add(told, told.encode(), now, batch)
        self.open.origins[session_id] = no

    def _write_refusals(self, session_id: bytes, now: float) -> None:
        """Write the refusals of a session that have no row yet, before a later batch of the session gets a row."""
        if first := self.unwritten.first(session_id):
            self._note_skip((session_id, first), now)
        for no, code, detail in self.unwritten.take(session_id):
            self._write_refusal((session_id, no), code, detail, now)

    def write_refusals(self, now: float) -> None:
        """Write refusals that have no row yet, because another server, or new rules, might accept these batches."""
        for session_id in self.unwritten.that_may_be_done():
            if self.open.full(0):
                return
            self._write_refusals(session_id, now)

    # -- updates of the server itself

    def add_segment(self, segment: Segment, now: float) -> None:
        """Add the server's own updates, such as the end of keys that have expired."""
        self.flush_chp1(now)
        self._add(segment, segment.encode(), now)

    def add_published(self, extras: dict[str, Any], now: float, wall_s: float) -> None:
        """Add messages of the server's own, such as dead letters, with the columns that belong to them."""
        self.flush_chp1(now)
        segment, body = self._placed(Segment([], [], extras), wall_s)
        self._add(segment, body, now)

    def add_ended(self, keys: list[str], now: float) -> None:
        """Delete keys that have expired."""
        for segment in deletes(keys, self.limits, ended=True):
            self.add_segment(segment, now)

    def fire(self, due: list[tuple[Place, ScheduledMessage]], dropped: list[Place], turn: CurrentTurn) -> None:
        """Publish scheduled messages that are due, and drop others; each is scheduled again if it is repeated."""
        now_ms = round(turn.wall_s * 1000)
        fired = [[*place, message.next_due(now_ms)] for place, message in due]
        fired += [[*place, 0] for place in dropped]
        # `ENDED` marks the effects of time. Another server leaves these out when it replays a suffix.
        extras: dict[str, Any] = {columns.FIRED: fired, columns.ENDED: True}
        if due:
            extras[columns.PUBLISH] = [[topic, 1, message.body] for (topic, _), message in due]
            segment, body = self._placed(Segment([], [], extras), turn.wall_s)
        else:
            segment = Segment([], [], extras)
            body = segment.encode()
        self.flush_chp1(turn.arrival)
        self._add(segment, body, turn.now)

    def end_lease(self, lease_id: bytes, now: float) -> None:
        """End a lease that has expired: delete its keys, then the lease."""
        self.delete_ended(lease_id, now)
        extras: dict[str, Any] = {columns.UNLEASE: lease_id, columns.ENDED: True}
        if failed := self.in_hand(lease_id, MEMBER_ENDED):
            extras[columns.FAILED] = failed
        self.add_segment(Segment([], [], extras), now)

    def delete_ended(self, lease_id: bytes, now: float) -> None:
        """Delete as many keys of an ended lease as this turn may."""
        self.add_ended(self._some_leased(lease_id), now)

    def close_lease(self, lease_id: bytes, now: float) -> None:
        """End a lease because a client or an operator asks for it: delete its keys, then the lease."""
        self._delete_leased(lease_id, now)
        self.add_segment(Segment([], [], {columns.UNLEASE: lease_id}), now)

    def _delete_leased(self, lease_id: bytes, now: float) -> None:
        for segment in deletes(self._some_leased(lease_id), self.limits):
            self.add_segment(segment, now)

    def _some_leased(self, lease_id: bytes) -> list[str]:
        """Return as many of a lease's keys as this turn may delete; the rest goes in the turns to come (expiry.py)."""
        keys = self.committed.state.leases.some_keys(lease_id, self.ends_left)
        self.ends_left -= len(keys)
        return keys

    # -- into the open record

    def _placed(self, segment: Segment, wall_s: float) -> tuple[Segment, bytes]:
        """Give the messages of a segment their offsets; return the segment as the record has it, and its bytes.

        The segment of the record has the offsets in place of the messages.
        """
        placed = self.open.place(segment, self.committed.state.topics, round(wall_s * 1000))
        return placed, placed.encode()

    def _add(self, segment: Segment, body: bytes, now: float, batch: BatchId = NOBODYS) -> None:
        self.committed.channels.writer = batch[0]
        self.committed.apply(segment, body, self.committed.state.number + 1, now)
        self.open.add(segment, body, batch)

    def flush_chp1(self, now: float) -> None:
        """Turn the CHP/1 sets that have gathered into a segment."""
        if self.open.chp1.keys:
            segment = self.open.chp1.take()
            self._add(segment, segment.encode(), now)

    def recommit(self, turn: CurrentTurn, segments: list[Segment], origins: list[list[Any]]) -> None:
        """Do a batch of another history here: in the open record, or, if it is large, in a record of its own."""
        segments, now, wall_s = list(segments), turn.arrival, turn.wall_s
        bodies, state = [segment.encode() for segment in segments], self.committed.state
        size, session_id = sum(map(len, bodies)), origins[0][0] if origins else b""
        large = size > self.limits.part_bytes
        if large or self.open.full(size) or any(self.open.crowds(session_id, s, state) for s in segments):
            self.commit(turn)
        for segment in segments:
            if segment.extras and columns.UNLEASE in segment.extras:
                self._delete_leased(segment.extras[columns.UNLEASE], now)
        # Messages are placed only after the commit above, so that the earlier record does not get them.
        for i, segment in enumerate(segments):
            if segment.extras and columns.PUBLISH in segment.extras:
                segments[i], bodies[i] = self._placed(segment, wall_s)
        last_no = self.view.last_no
        new = {i: no for i, no in origins if no > last_no(i, self.open) or state.skipped(i, no)}
        if not large:
            self._note_done(new, now)
        if large:
            self.commit(turn)
            self._keep_in_parts(turn, segments, list(map(list, new.items())), now)
            return
        batch = (session_id, new.get(session_id, 0)) if new else NOBODYS
        self.open.attribute(batch, 0)
        for segment, body in zip(segments, bodies, strict=True):
            self._add(segment, body, now, batch)
        for session_id, no in new.items():
            self.open.origins[session_id] = max(no, last_no(session_id, self.open))

    # -- records

    def commit(self, turn: CurrentTurn) -> None:
        """Make one record of the open updates; its answers wait from then on."""
        open_record = self.open
        if open_record.chp1.keys:
            self.flush_chp1(turn.arrival)
        if open_record.bodies or open_record.origins:
            self._commit_open(turn)
        if open_record.whose:
            open_record.begin()
        if self.new_owners:
            self.keep_access(turn)
        self.acks.commit(turn.effects, self.committed.state.number)

    def keep_access(
        self, turn: CurrentTurn, *, user: str = "", rules: dict[str, Any] | None = None, secret: bytes = b""
    ) -> None:
        """Make a record of new rules or a new secret, if any, and of new owners; no record may be open."""
        owners = [[client, whose] for client, whose in self.new_owners.items()]
        self.new_owners = {}
        first = self.revision
        told = headers.Access(first - 1, first, first, round(turn.wall_s * 1000), user, owners, rules, secret)
        self.committed.keep_access(told, turn.arrival, turn.effects)

    def _commit_open(self, turn: CurrentTurn) -> None:
        open_record, state, channels = self.open, self.committed.state, self.committed.channels
        origins, whose = open_record.told_whose()
        if len(open_record.bodies) > 1 and open_record.large:
            done = open_record.segments, open_record.bodies, open_record.weights
            self._record_in_parts(turn, done, [origins, *whose], turn.arrival)
            return
        prev, first = state.number, state.number + 1
        last = prev + (open_record.items or 1)
        header = headers.Batch(prev, first, last, round(turn.wall_s * 1000), origins, False, *whose)
        body = encode(header, open_record.bodies)
        crc = crc32(body)
        record = Record(prev, first, last, body, link(state.digest, crc))
        record.messages = open_record.take_messages(last, header.wall_ms)
        state.record_number(last, record.digest, origins, first, turn.arrival)
        effects = turn.effects
        self.committed.keep(record, effects)
        if channels.chp1:
            effects.publish += channels.kvpubs(open_record.segments, first, last)
        effects.publish += channels.publish(header, body, crc, len(open_record.bodies))
        self.counts["updates"] += open_record.items
        self.counts["records"] += 1

    def _commit_staged(self, verdict: Commit, turn: CurrentTurn) -> None:
        """Make staged updates one record, in as many parts as its size needs."""
        staged, (session_id, no), now = verdict.staged, verdict.batch, turn.arrival
        self._write_refusals(session_id, now)
        self.commit(turn)
        revision = staged.done
        if revision is None:
            revision = self._commit_parts(turn, staged, verdict.batch)
            self.counts["commits"] += 1
        else:
            self.counts["commits_repeated"] += 1
            done = Segment([], [], {columns.ABORT: staged.transaction_id})
            self._add(done, done.encode(), now, verdict.batch)
            self.open.origins[session_id] = no
        if verdict.owners:
            # The user of an application is recorded after the commit, because the application is known only then.
            self.new_owners = verdict.owners | self.new_owners
        self.acks.acknowledge(session_id, no, revision)
        self.commit(turn)

    def _commit_parts(self, turn: CurrentTurn, staged: StagedCommit, batch: BatchId) -> int:
        batches = self.committed.state.staging.batches(staged.transaction_id, staged.parts)
        names = self._names(staged, batches, turn.now)
        segments = [each if each.plain else self._as_of_now(each.segment(), turn) for each in batches]
        gone = self._replaced(staged.replace, segments)
        if names is not None and sum(len(key) for segment in gone for key in segment.keys) <= self.limits.part_bytes:
            return self._commit_by_name(turn, staged, batch, names, (gone, batches))
        done = Segment([], [], {columns.DONE: [staged.application, staged.version, staged.transaction_id]})
        return self._keep_in_parts(turn, [*gone, *segments, done], [list(batch)], turn.arrival)

    def _names(self, staged: StagedCommit, batches: list[StagedBatch], now: float) -> list[list[Any]] | None:
        """Return the parts of a commit as a COMMIT names them; None if the record has to contain the batches.

        The record has to contain them if the commit is small, if the peer is of an older version, or if a journal may
        lack the staged batches, which a reader of a feed needs. So a COMMIT is used only while the records since the
        begin of the transaction are at most half of what the journals retain, in bytes and in time.
        """
        staging, (retain_bytes, retain_s) = self.committed.state.staging, self.retains
        large = sum(len(batch.body) for batch in batches) > self.limits.part_bytes
        if not large or self.view.version < COMMIT_SINCE:
            return None
        began = staging.transactions[staged.transaction_id].began
        if staging.others(staged.transaction_id) > retain_bytes / 2 or now - began > retain_s / 2:
            return None
        return staging.names(staged.transaction_id, staged.parts)

    def _commit_by_name(
        self,
        turn: CurrentTurn,
        staged: StagedCommit,
        batch: BatchId,
        names: list[list[Any]],
        made_of: tuple[list[Segment], list[StagedBatch]],
    ) -> int:
        """Make a record that names the staged batches, and publish them in pieces."""
        committed, state, now = self.committed, self.committed.state, turn.arrival
        (gone, batches), prev, first, origins = made_of, state.number, self.revision, [list(batch)]
        bodies = [segment.encode() for segment in gone]
        items = sum(segment.items for segment in gone) + sum(each.items for each in batches)
        # Readers get the record in parts, and each part needs a number of its own.
        last = prev + max(items, len(gone) + len(batches) + 1)
        wall_ms = round(turn.wall_s * 1000)
        header = headers.Commit(
            prev, first, last, wall_ms, origins, staged.transaction_id, staged.application, staged.version, names
        )
        body, done = encode(header, bodies), done_by(header)
        segments: list[Segment | StagedBatch] = [*gone, *batches, done]
        committed.channels.writer = batch[0]
        published = [*bodies, *(each.body for each in batches), done.encode()]
        committed.apply_all(segments, published, first, now, deferred=committed.is_much(segments))
        record = Record(prev, first, last, body, link(state.digest, crc32(body)), staged=batches)
        state.record_number(last, record.digest, origins, first, now)
        committed.keep(record, turn.effects)
        turn.effects.publish += committed.channels.kvpubs(segments, first, last)
        committed.channels.publish_later(first, last, wall_ms, origins)
        self.counts["updates"] += items
        self.counts["records"] += 1
        return first

    def _as_of_now(self, segment: Segment, turn: CurrentTurn) -> Segment:
        """Return a staged segment as its commit makes it: without items that are older, its messages placed."""
        if segment.extras and columns.UNLESS_NEWER in segment.extras:
            segment, older = newer(segment, self.committed.state)
            self.counts["older_skipped"] += older
        if segment.extras and columns.PUBLISH in segment.extras:
            segment, _ = self._placed(segment, turn.wall_s)
        return segment

    def _replaced(self, prefix: str | None, segments: Sequence[Segment | StagedBatch]) -> list[Segment]:
        """Return the deletes with which a commit replaces a subtree as a whole."""
        if prefix is None:
            return []
        under = self.committed.state.under
        gone = set(under(prefix))
        for each in segments if gone else ():
            gone.difference_update(each.keys() if isinstance(each, StagedBatch) else each.keys)
        return deletes([key for key in under(prefix) if key in gone] if gone else [], self.limits)

    def commit_in_parts(self, turn: CurrentTurn, segments: Sequence[Segment]) -> int:
        """Make the server's own segments one record, however large, and return its revision; no record may be open."""
        return self._keep_in_parts(turn, segments, [], turn.now)

    def _keep_in_parts(
        self, turn: CurrentTurn, segments: Sequence[Segment | StagedBatch], origins: list[Any], now: float
    ) -> int:
        revision, deferred = self.revision, self.committed.is_much(segments)
        self.committed.channels.writer = origins[0][0] if origins else b""
        bodies = [each.encode() for each in segments]
        self.committed.apply_all(segments, bodies, revision, now, deferred=deferred)
        self._record_in_parts(turn, (segments, bodies, [each.weight for each in segments]), [origins], now)
        return revision

    def _record_in_parts(self, turn: CurrentTurn, done: Weighed, told: list[Any], now: float) -> None:
        """Make a record of what was applied, in as many parts as its size and weight need.

        The last part has the lists in `told`: the origins of the record, and the batch of each segment.
        """
        committed, state, wall_ms = self.committed, self.committed.state, round(turn.wall_s * 1000)
        segments, bodies, weights = done
        items, revision = sum(segment.items for segment in segments), self.revision
        at = Record(0, 0, state.number, b"", state.digest)
        placed = placed_by(segments, bodies)
        sizes = [len(b) + sum(p) for b, p in zip(bodies, placed, strict=True)]
        groups = grouped(bodies, weights, self.limits.part_bytes, sizes)
        parts = list(in_parts(groups, items, told, after=at, wall_ms=wall_ms))
        last, batches = parts[-1], iter(map(len, placed))
        for part, group in zip(parts, groups, strict=True):
            most = None if part is last else sum(islice(batches, len(group)))
            part.messages = self.open.take_messages(last.last, wall_ms, most)
            committed.keep(part, turn.effects)
        state.record_number(last.last, last.digest, told[0], revision, now)
        effects = turn.effects
        effects.publish += committed.channels.kvpubs(segments, revision, last.last)
        effects.publish += committed.channels.publish_parts(revision, last.last, wall_ms, told[0])
        self.counts["updates"] += items
        self.counts["records"] += 1
