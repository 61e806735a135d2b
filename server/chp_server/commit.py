"""From updates to records: what the active does with KVSETs (SPEC.md, sections 11 and 14).

    add_batch, add_plain  ->  open segments, applied to the map at once  ->  commit: one record a turn
                                                                               number, journal, log, channels, acks

Every update of a record gets a number, and all keys it wrote the record's first as their revision. Segments go into the
record as the bytes they came in. An acknowledgement waits until the passive has confirmed the record, while one is in
sync; otherwise it goes out with the turn, and says what it is worth.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from chp import columns, headers
from chp.batch import COLUMNS, Segment, decode_segment, encode, packb, select
from chp.digest import link
from chp.errors import BadFrame, BadInput
from chp.headers import APPLIED, JOURNALED
from chp.keys import CLIENT_BYTES, check_decoded
from chp.limits import Limits
from chp.messages import parse_kvset
from chp.numbers import unpack
from chp.properties import ttl_ms_of
from chp.versions import COLUMN_SINCE, OLDEST, VERSION

from . import leases
from .answers import Answers
from .committed import Committed
from .plain import PlainSets
from .recordlog import Record, grouped, numbered
from .room import Room
from .staging import StagedCommit
from .state import deletes
from .turn import Turn
from .unwritten import FOR_EVER, Unwritten
from .verdicts import PARTED, KeyInOpenRecord, Refusal

HEADER_BYTES_MAX = 1 << 16  # what a record has beside its segments: the origins of one turn ...
ORIGINS_MAX = 1500  # ... which are at most so many, as are its batches; they take up to 28 and 13 bytes
REFUSAL_BYTES_MAX = 4096  # of a refusal's detail, as far as it is remembered
SERVERS_OWN = frozenset(  # sparse columns that only a server may write
    {columns.REVISIONS, columns.UUIDS, columns.PROPERTIES, columns.DONE, columns.REFUSED, columns.ENDED}
)


NOBODYS = (b"", 0)  # no session's batch: of CHP/1, or our own


class Committer(Committed):
    """The open turn's updates, and what is known of records, channels and acknowledgements."""

    def __init__(self, limits: Limits, durability: int) -> None:
        super().__init__(limits)
        self.suffix_due = 0.0  # until then another server may hand over what a session did there
        self.answers = Answers(JOURNALED if durability else APPLIED, self.counts)
        self.room = Room()
        self.ends_left = limits.ending_keys_max  # keys that may still be deleted in this turn as what held them ended
        self.unwritten = Unwritten(limits.refusals_max)
        self.version = VERSION  # of the pair: the lower one of its two
        self._small = min(limits.value_bytes_max, limits.frame_bytes_max - HEADER_BYTES_MAX)  # bytes that nobody minds
        self._plain = PlainSets()
        self._clear()

    def _clear(self) -> None:
        self._segments: list[Segment] = []
        self._bodies: list[bytes] = []
        self._origins: dict[bytes, int] = {}
        self._whose: list[tuple[bytes, int, int]] = []  # session, batch, how many of the segments; no session: our own
        self._items = 0
        self._bytes = 0

    # -- updates

    def full(self, size: int) -> bool:
        """Whether the open record is to be committed before `size` more bytes: it has to fit a frame."""
        if not self._bytes:
            return False
        limits = self.limits
        items = self._items + len(self._plain.keys) >= limits.record_items_max
        crowd = len(self._whose) >= ORIGINS_MAX or len(self._bodies) >= limits.record_segments_max
        return items or crowd or self._bytes + size > limits.batch_bytes_max

    @property
    def revision(self) -> int:
        """What keys written in the open turn get as their revision."""
        return self.state.number + 1

    def await_suffix(self, until: float) -> None:
        """Another server was active too, and is about to hand over its suffix: what a session lacks here may be in it.

        A client that was told to send again from there, and can't, would open another session and send the rest in it,
        beside what comes with the suffix: so it is told nothing for now, and sends again.
        """
        self.suffix_due = max(self.suffix_due, until)

    def add_batch(self, frames: list[bytes], now: float) -> StagedCommit | None:
        """A CHP/2 KVSET `by_public_id`: applied if it is its session's next, acknowledged again if it was before.

        A commit of staged updates is handed back to the caller: it is a record of its own (`commit_staged`).
        """
        no, session_id = unpack(frames[1]), frames[2]
        if no == 0:
            raise BadFrame("batch 0 of a session; the first has the number 1")
        last = self._last_no(session_id)
        if self.state.replaced(session_id):
            self.answers.tell_expected(session_id, no, "session", 1, self.state.number)
        elif no <= last:
            self.counts["duplicates"] += 1
            self._answer_again(session_id, no)
        elif no > last + 1:
            if now >= self.suffix_due:
                self.answers.tell_expected(
                    session_id, no, "session" if last == 0 else "expected", last + 1, self.state.number
                )
        else:
            return self._take(session_id, no, frames[4], now)
        return None

    def _answer_again(self, session_id: bytes, no: int) -> None:
        refusal = self.state.refusals.get((session_id, no)) or self.unwritten.get(session_id, no)
        session = self.state.sessions.get(session_id)
        if refusal is not None:
            self.answers.refuse(session_id, no, *refusal, self.state.number)
        elif session is not None and no <= session.no:
            self.answers.acknowledge(session_id, no, session.revision_of(no))
        else:
            self.answers.acknowledge(session_id, no, self.revision)

    def _last_no(self, session_id: bytes) -> int:
        no = self._origins.get(session_id)
        if no is None:
            session = self.state.sessions.get(session_id)
            no = session.no if session else 0
        return max(no, self.unwritten.last(session_id)) if self.unwritten else no

    def _take(self, session_id: bytes, no: int, body: bytes, now: float) -> StagedCommit | None:
        staged = None
        if self._plain.keys:
            self.flush_plain(now)  # conditions look at what came before
        try:
            segment = decode_segment(body)
            check_decoded(segment.keys)
            if len(body) > self._small:
                self._check_size(segment, len(body))
            self.room.check(segment, len(body), self.state)
            if segment.extras:
                segment, body = self._check(segment, segment.extras, body, session_id[:CLIENT_BYTES])
            if segment.extras and columns.COMMIT in segment.extras:
                staged = self._staged(session_id, no, segment.extras[columns.COMMIT])
        except (Refusal, BadInput) as error:
            code, detail = (error.code, error.detail) if isinstance(error, Refusal) else ("bad", str(error))
            self.answers.refuse(session_id, no, code, detail, self.state.number)
            if self._leaves_no_row(session_id, code):
                self.unwritten.note(session_id, no, code, detail)
                return None
            self._write_refusals(session_id, now)
            self._write_refusal(session_id, no, code, detail, now)
        else:
            self._write_refusals(session_id, now)
            if staged is not None:
                return staged
            if self._origins and self._crowds(session_id, segment):
                raise KeyInOpenRecord
            if segment.extras and columns.UNLEASE in segment.extras:
                self._delete_leased(segment.extras[columns.UNLEASE], now)
            self._add(segment, body, now, (session_id, no))
            self.answers.acknowledge(session_id, no, self.revision)
        self._origins[session_id] = no  # one entry a client a turn: its batches are in order
        return None

    def _leaves_no_row(self, session_id: bytes, code: str) -> bool:
        if code == "full":
            return self.room.spares_disk
        return code in FOR_EVER and session_id not in self.state.sessions and session_id not in self._origins

    def _write_refusal(self, session_id: bytes, no: int, code: str, detail: Any, now: float) -> None:
        kept = detail if len(packb(detail)) <= REFUSAL_BYTES_MAX else {}
        told = Segment([], [], {columns.REFUSED: [session_id, no, code, kept]})
        self._add(told, told.encode(), now, (session_id, no))
        self._origins[session_id] = no

    def _write_refusals(self, session_id: bytes, now: float) -> None:
        """What was refused without a row gets one, with the next thing that its session does."""
        for no, code, detail in self.unwritten.take(session_id) if self.unwritten else ():
            self._write_refusal(session_id, no, code, detail, now)

    def write_refusals(self, now: float) -> None:
        """The other server is to serve: it is to know what was refused for want of room, in case it has some."""
        for session_id in self.unwritten.for_want_of_room():
            if self.full(0):
                return
            self._write_refusals(session_id, now)

    def _crowds(self, session_id: bytes, segment: Segment) -> bool:
        """Whether another session may have written one of the segment's keys in the open record."""
        others = len(self._origins) > (session_id in self._origins)
        return others and self.revision in map(self.state.map.revisions.get, segment.keys)

    def _check_size(self, segment: Segment, size: int) -> None:
        values_max, body_max = self.limits.value_bytes_max, self.limits.frame_bytes_max - HEADER_BYTES_MAX
        if size > body_max:
            raise Refusal("size", f"a batch has at most {body_max} bytes as it is sent, not {size}; split it")
        if size > values_max and max(map(len, segment.values), default=0) > values_max:
            raise Refusal("size", f"a value has at most {values_max} bytes")

    def _check(self, segment: Segment, extras: dict[str, Any], body: bytes, client: bytes) -> tuple[Segment, bytes]:
        if not SERVERS_OWN.isdisjoint(extras):
            raise BadFrame(
                f"the columns {sorted(SERVERS_OWN & extras.keys())} are the server's to write; leave them out"
            )
        self._check_columns(extras)
        if columns.CONDITIONS in extras:
            self._check_conditions(segment)
        if not leases.COLUMNS.isdisjoint(extras):
            self.state.leases.check(extras, client, self.limits)
            if columns.LEASE in extras:
                segment = leases.with_owner(segment, client)
                body = segment.encode()
        if columns.STAGE in extras and (full := self.state.staging.full(extras[columns.STAGE][0], len(body), client)):
            raise Refusal("busy", full)
        if columns.UNLESS_NEWER in extras and columns.STAGE not in extras:
            return self._newer(segment)  # what is staged is compared when it is committed
        return segment, body

    def _check_columns(self, extras: dict[str, Any]) -> None:
        """Nobody acknowledges what it does not understand, or what the other server of the pair would not."""
        if not extras.keys() <= COLUMNS:
            unknown = ", ".join(sorted(map(repr, extras.keys() - COLUMNS)))
            raise BadFrame(f"version {VERSION} knows no column {unknown:.200}; leave it out, or upgrade the servers")
        if later := sorted(name for name in extras if COLUMN_SINCE.get(name, OLDEST) > self.version):
            raise BadFrame(f"the column {later[0]!r} needs version {COLUMN_SINCE[later[0]]} on both servers, and the "
                           f"pair works at {self.version}; upgrade the other one")  # fmt: skip

    def _newer(self, segment: Segment) -> tuple[Segment, bytes]:
        """Leave out the items whose key has a later revision than the one they name."""
        get = self.state.map.revisions.get
        mask = [True] * len(segment.keys)
        extras = segment.extras or {}
        for i, revision in zip(*extras[columns.UNLESS_NEWER], strict=True):
            mask[i] = get(segment.keys[i], 0) <= revision
        self.counts["older_skipped"] += mask.count(False)
        kept = select(segment, mask) or Segment([], [], columns.without(extras, columns.OF_ITEMS))
        kept.extras = columns.without(kept.extras or {}, {columns.UNLESS_NEWER}) or None
        return kept, kept.encode()

    def _staged(self, session_id: bytes, no: int, commit: list[Any]) -> StagedCommit | None:
        transaction_id, application, version, parts, replace = commit
        staging = self.state.staging
        done = staging.done(application, version)
        if done is not None:
            self.counts["commits_repeated"] += 1
        elif missing := staging.missing(transaction_id, parts):
            raise Refusal("staged", missing)
        return StagedCommit(session_id, no, transaction_id, application, version, parts, replace, done)

    def _check_conditions(self, segment: Segment) -> None:
        get = self.state.map.revisions.get
        places, wanted = (segment.extras or {})[columns.CONDITIONS]
        failed = {segment.keys[i]: get(segment.keys[i], 0) for i in places}
        if any(failed[segment.keys[i]] != revision for i, revision in zip(places, wanted, strict=True)):
            raise Refusal(PARTED if any(map(self.state.unseen, wanted)) else "revision", failed)

    def _add(self, segment: Segment, body: bytes, now: float, batch: tuple[bytes, int] = NOBODYS) -> None:
        state = self.state
        revision = state.number + 1
        self.channels.note(segment, body, revision, state.map)
        state.apply(segment, revision, now)
        self._attribute(batch, 1)
        self._bodies.append(body)
        self._bytes += len(body)
        if not (segment.extras and columns.STAGE in segment.extras):
            self._segments.append(segment)
            self._items += len(segment.keys)

    def _attribute(self, batch: tuple[bytes, int], n: int) -> None:
        if self._whose and self._whose[-1][:2] == batch:
            n += self._whose.pop()[2]
        self._whose.append((*batch, n))

    def _told_whose(self, origins: list[list[Any]]) -> list[Any]:
        """The end of a record's header: nothing if all of it is one batch, or the server's own."""
        whose = self._whose
        if len(whose) <= 1 and len(origins) <= 1 and bool(whose and whose[0][0]) == bool(origins):
            return []
        places = {session_id: i for i, (session_id, _) in enumerate(origins, 1)}
        return [[[places.get(session_id, 0), no, n] for session_id, no, n in whose]]

    def add_segment(self, segment: Segment, now: float) -> None:
        """The server's own updates: what has expired."""
        self.flush_plain(now)
        self._add(segment, segment.encode(), now)

    def add_ended(self, keys: list[str], now: float) -> None:
        """Delete keys because their time is over."""
        for segment in deletes(keys, self.limits, ended=True):
            self.add_segment(segment, now)

    def end_lease(self, lease_id: bytes, now: float) -> None:
        """A lease's time is over: its keys go, and then itself."""
        self.delete_ended(lease_id, now)
        self.add_segment(Segment([], [], {columns.UNLEASE: lease_id, columns.ENDED: True}), now)

    def delete_ended(self, lease_id: bytes, now: float) -> None:
        """Delete what this turn may of the keys of a lease that has ended."""
        keys = self.state.leases.some_keys(lease_id, self.ends_left)
        self.ends_left -= len(keys)
        self.add_ended(keys, now)

    def close_lease(self, lease_id: bytes, now: float) -> None:
        """Somebody ends a lease: its keys go, and then itself."""
        self._delete_leased(lease_id, now)
        self.add_segment(Segment([], [], {columns.UNLEASE: lease_id}), now)

    def _delete_leased(self, lease_id: bytes, now: float) -> None:
        """As many of a lease's keys as this turn may; what is left goes with the turns to come (ending.py)."""
        keys = self.state.leases.some_keys(lease_id, self.ends_left)
        self.ends_left -= len(keys)
        for segment in deletes(keys, self.limits):
            self.add_segment(segment, now)

    # -- CHP/1 updates gather into one segment

    def add_plain(self, frames: list[bytes]) -> None:
        """A CHP/1 KVSET; an empty value deletes, and a UUID that was applied before is a duplicate."""
        key, uuid, properties, value = parse_kvset(frames)
        ttl = ttl_ms_of(properties)
        if self._origins and self.state.map.revisions.get(key) == self.revision:
            raise KeyInOpenRecord
        if uuid and (uuid in self._plain or uuid in self.state.uuids):
            self.counts["duplicates"] += 1
            return
        if (value or self.room.read_only) and not self.room.admits(key, len(key) + len(value), self.state):
            self.counts["refused_full"] += 1  # nobody can be told: CHP/1 has no answer to a KVSET
            return
        self._plain.add(key, value, uuid, properties, ttl)
        self._bytes += len(key) + len(value) + len(properties)

    def flush_plain(self, now: float) -> None:
        """The CHP/1 sets that have gathered become a segment."""
        if self._plain.keys:
            segment = self._plain.take()
            self._add(segment, segment.encode(), now)

    # -- commit

    def commit(self, turn: Turn, now: float, wall_s: float, *, hold: bool) -> None:
        """Make one record of what is open; its acknowledgements wait for the passive if `hold`."""
        if self._plain.keys:
            self.flush_plain(now)
        if self._bodies or self._origins:
            self._commit_record(turn, now, wall_s)
        if self._whose:
            self._clear()
        self.answers.commit(turn, self.state.number, hold=hold)

    def _commit_record(self, turn: Turn, now: float, wall_s: float) -> None:
        origins = list(map(list, self._origins.items()))
        whose = self._told_whose(origins)
        large = self._bytes > self.limits.batch_bytes_max or self._items > 2 * self.limits.batch_items_max
        if large and len(self._bodies) > 1:  # deletes of our own have no such bound
            self._record_in_parts(turn, (self._segments, self._bodies), [origins, *whose], now, wall_s)
            return
        state = self.state
        prev, first = state.number, state.number + 1
        last = prev + (self._items or 1)
        header = headers.Batch(prev, first, last, round(wall_s * 1000), origins, False, *whose)
        body = encode(header, self._bodies)
        crc = crc32(body)
        record = Record(prev, first, last, body, link(state.digest, crc))
        state.note_record(last, record.digest, origins, first, now)
        self.keep(record, turn)
        if self.channels.plain:
            turn.publish += self.channels.kvpubs(self._segments, first, last)
        turn.publish += self.channels.publish(header, body, crc, len(self._bodies))
        self.counts["updates"] += self._items
        self.counts["records"] += 1

    def commit_staged(self, turn: Turn, staged: StagedCommit, now: float, wall_s: float, *, hold: bool) -> None:
        """Make staged updates one record, in as many parts as its size asks for; nothing may be open."""
        if staged.done is None:
            revision = self._commit_parts(turn, staged, now, wall_s)
        else:
            revision = staged.done
            done = Segment([], [], {columns.ABORT: staged.transaction_id})
            self._add(done, done.encode(), now, (staged.session_id, staged.no))
            self._origins[staged.session_id] = staged.no
        self.answers.acknowledge(staged.session_id, staged.no, revision)
        self.commit(turn, now, wall_s, hold=hold)

    def _commit_parts(self, turn: Turn, staged: StagedCommit, now: float, wall_s: float) -> int:
        bodies = self.state.staging.bodies(staged.transaction_id, staged.parts)
        segments = self.state.staging.decoded(staged.transaction_id, staged.parts)
        for i, segment in enumerate(segments):
            if segment.extras and columns.UNLESS_NEWER in segment.extras:
                segments[i], bodies[i] = self._newer(segment)
        gone = self._replaced(staged.replace, segments)
        segments[:0] = gone
        bodies[:0] = [segment.encode() for segment in gone]
        done = Segment([], [], {columns.DONE: [staged.application, staged.version, staged.transaction_id]})
        segments.append(done)
        bodies.append(done.encode())
        self.counts["commits"] += 1
        return self._keep_parts(turn, (segments, bodies), [[staged.session_id, staged.no]], now, wall_s)

    def commit_in_parts(self, turn: Turn, segments: list[Segment], now: float, wall_s: float) -> int:
        """Make the server's own segments one record, however large; nothing may be open. Returns its revision."""
        return self._keep_parts(turn, (segments, [segment.encode() for segment in segments]), [], now, wall_s)

    def recommit(
        self, turn: Turn, segments: list[Segment], origins: list[list[Any]], now: float, wall_s: float, *, hold: bool
    ) -> None:
        """Do again what another history has done, as its session's batch, in the open record or where there is room."""
        bodies = [segment.encode() for segment in segments]
        size, session_id = sum(map(len, bodies)), origins[0][0] if origins else b""
        if size > self.limits.part_bytes or self.full(size) or any(self._crowds(session_id, s) for s in segments):
            self.commit(turn, now, wall_s, hold=hold)
        for segment in segments:
            if segment.extras and columns.UNLEASE in segment.extras:
                self._delete_leased(segment.extras[columns.UNLEASE], now)
        new = {session_id: no for session_id, no in origins if no > self._last_no(session_id)}
        if size > self.limits.part_bytes:
            self.commit(turn, now, wall_s, hold=hold)
            self._keep_parts(turn, (segments, bodies), list(map(list, new.items())), now, wall_s)
            return
        batch = (session_id, new.get(session_id, 0)) if new else NOBODYS
        self._attribute(batch, 0)
        for segment, body in zip(segments, bodies, strict=True):
            self._add(segment, body, now, batch)
        self._origins |= new

    def _keep_parts(
        self, turn: Turn, parts: tuple[list[Segment], list[bytes]], origins: list[list[Any]], now: float, wall_s: float
    ) -> int:
        segments, bodies = parts
        revision = self.revision
        late = self._is_much(sum(len(s.keys) for s in segments))
        for segment, body in zip(segments, bodies, strict=True):
            if late:
                self.channels.gather(segment, body)
            else:
                self.channels.note(segment, body, revision, self.state.map)
            self.state.apply(segment, revision, now, late=late)
        self._record_in_parts(turn, parts, [origins], now, wall_s)
        return revision

    def _record_in_parts(
        self, turn: Turn, parts: tuple[list[Segment], list[bytes]], told: list[Any], now: float, wall_s: float
    ) -> None:
        """Make a record of what was applied, in as many parts as its size asks for; the last has what is `told`."""
        segments, bodies = parts
        origins, *whose = told
        revision, wall_ms = self.revision, round(wall_s * 1000)
        items = sum(len(s.keys) for s in segments)
        groups = grouped(bodies, self.limits.part_bytes)
        prev, last = self.state.number, revision + max(items, len(groups)) - 1
        digest = self.state.digest
        for (before, first, end), more, group in numbered(groups, prev, revision, last):
            header = headers.Batch(before, first, end, wall_ms, [] if more else origins, more, *([] if more else whose))
            body = encode(header, group)
            digest = link(digest, crc32(body))
            self.keep(Record(before, first, end, body, digest), turn)
        self.state.note_record(last, digest, origins, revision, now)
        turn.publish += self.channels.kvpubs(segments, revision, last)
        turn.publish += self.channels.publish_parts(revision, last, wall_ms, origins)
        self.counts["updates"] += items
        self.counts["records"] += 1

    def _replaced(self, prefix: str | None, segments: list[Segment]) -> list[Segment]:
        """The deletes that make a commit replace a subtree as a whole."""
        if prefix is None:
            return []
        kept: set[str] = set()
        for segment in segments:
            kept.update(segment.keys)
        return deletes([key for key in self.state.under(prefix) if key not in kept], self.limits)
