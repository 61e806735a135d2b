"""What a server did alone and nobody else saw: its suffix, when it meets an active of a later epoch.

Two servers whose link was cut may both have been active. On meeting, the higher epoch stays; the other one finds that
its last records are no part of the history. They are not dropped in silence: batch by batch, in their order,

    already    the active did the same batch, which its client sent to both; or it holds the very value
    replayed   nobody but the suffix itself has written the key since the histories parted: it is set again
    conflict   the key was written there too: the active's value stays, this one is written to a file and counted

That the active has *heard* of a batch proves nothing: it may have refused it. A batch that the active did left a
revision there; as long as a key still has it, what the suffix wrote to the key next can be replayed upon it: so a chain
of conditions on one's own values goes through, and a key that somebody else wrote in between breaks it. Conditions are
kept: a conditional batch is replayed whole, on exactly what it stood on, or not at all, and an equal value that
somebody else has set is not its own. What is over by time is no suffix.

A batch that acknowledges messages is in conflict, whole: the other history gives them again from where it is, and what
was made of them is made again with them. So is one that expects something of keys that it does not write.

What is replayed keeps its place and its session's number (`SuffixPart`), so that a client which had no answer and sends
its batch again is told that it was done. A batch that was in conflict, even in part, can be neither done again nor
called done: sent again it is refused, as *parted*. One that the active has refused stays refused and is not replayed,
unless the active said *parted* itself, since the condition named a revision that only the suffix has.

Pure: the records go in, an account of each update and the pieces to replay come out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from chp import columns
from chp.batch import Segment, decode, decode_segment, segment_of, select
from chp.headers import Batch
from chp.parts import Parts

from ..state.record_log import Record
from ..state.state import ReplicatedState
from ..state.verdicts import PARTED, PARTED_TEXT
from ..updates.turn import ALREADY, Update

REPLAYED, CONFLICT = "replayed", "conflict"
CARRIED = frozenset({  # columns that mean the same in a new record
    columns.DELETES, columns.TTLS, columns.UUIDS, columns.PROPERTIES, columns.LEASED, columns.LEASE, columns.UNLEASE,
    columns.REFRESH, columns.REFUSED, columns.DONE, columns.CONDITIONS, columns.PUBLISH, columns.TOPIC,
    columns.GROUP, columns.ONCE,
})  # fmt: skip
NOT_SUFFIX = frozenset({columns.STAGE, columns.ENDED})  # seen by nobody yet; done by time, and not by anybody
ONLY_WHOLE = frozenset({columns.DONE, columns.PUBLISH, columns.ONCE})  # not of a batch that is in conflict in part
RULES = ""  # no key is empty
SET_AGAIN, LOST = -1, -2  # in the place of a revision: what is to be replayed; what is not there

Written = Callable[[str], bool]
Counted = Callable[[str, int], str]


@dataclass(slots=True)
class SuffixPart:
    """A batch of a suffix as it is handed over: what is to be set again, and whose it was."""

    origins: list[list[Any]] | None  # [[session, batch]], none for CHP/1; None: more of the batch follows, and tells
    whole: bool  # nothing of it was in conflict
    segments: list[Segment]
    on: dict[str, int] = field(default_factory=dict)  # revisions that keys have at the active after the batch before
    rules: dict[str, Any] | None = None  # no batch, but the rules of access as they were left

    def to_replay(self) -> list[Any]:
        """As REPLAY carries it."""
        said = [self.origins, self.whole, [segment.encode() for segment in self.segments], self.on]
        return said if self.rules is None else [*said, self.rules]

    @staticmethod
    def of(item: list[Any]) -> SuffixPart:
        """Of a REPLAY."""
        origins, whole, bodies, on, *rules = item
        return SuffixPart(origins, whole, [decode_segment(body) for body in bodies], on, *rules)

    @property
    def bound(self) -> bool:
        """Whether it says that messages were consumed, or stands on keys that it does not write."""
        return any({columns.ACK, columns.EXPECT} & (segment.extras or {}).keys() for segment in self.segments)

    @property
    def version(self) -> tuple[str, int, bool] | None:
        """The application's version that it counts, and whether that has to be the next one."""
        for segment in self.segments:
            extras = segment.extras or {}
            if columns.ONCE in extras:
                application, version, strict = extras[columns.ONCE]
                return application, version, strict
            if columns.DONE in extras and extras[columns.DONE][0]:
                return extras[columns.DONE][0], extras[columns.DONE][1], False
        return None

    @property
    def conditional(self) -> bool:
        """Whether it was done on conditions, so that it is done whole or not at all."""
        return any(columns.CONDITIONS in (segment.extras or {}) for segment in self.segments)


def account(
    suffix: list[Record], common: int, after: ReplicatedState, back: Callable[[Segment], Segment] = lambda each: each
) -> tuple[list[Update], list[SuffixPart]]:
    """What becomes of each key of `suffix`, given the state that replaced ours and the last `common` number.

    `back` gives a segment the messages that it brought (topics/handed.py).
    """
    latest: dict[str, Update] = {}
    pieces: list[SuffixPart] = []
    ledger = Ledger(common)
    for number, piece in _batches(suffix, back):
        taken, updates = ledger.judge(piece, after, lambda _key: False, number)
        latest |= {update.key: update for update in updates}
        if taken is not None:
            pieces.append(taken)
    return list(latest.values()), pieces


def account_of_rules(
    before: ReplicatedState, common: int, after: ReplicatedState
) -> tuple[list[Update], list[SuffixPart]]:
    """As `account`, of the rules of access, which are one value: in the file they are the line without a key."""
    ours, theirs = before.access, after.access
    if ours.rules is None or ours.changed <= common:
        return [], []
    update = Update(RULES, json.dumps(ours.rules.document).encode(), None, ours.changed, CONFLICT)
    if theirs.changed <= common:
        update.outcome = REPLAYED
    elif theirs.rules is not None and theirs.rules.document == ours.rules.document:
        update.outcome = ALREADY
    pieces = [SuffixPart([], True, [], rules=ours.rules.document)] if update.outcome == REPLAYED else []
    return [update], pieces


def _batches(suffix: list[Record], back: Callable[[Segment], Segment]) -> Iterator[tuple[int, SuffixPart]]:
    """Each batch with the first number of its record; the parts of a record together."""
    parts = Parts()
    for record in suffix:
        header, items = decode(record.body)
        if isinstance(header, Batch):
            whole = parts.add(header, [back(segment_of(item)) for item in items])
            if whole is not None:
                yield from ((whole.first, piece) for piece in _by_batch(whole.segments, whole.origins, whole.whose))


def _by_batch(
    segments: list[Segment], origins: list[list[Any]], whose: list[list[int]] | None = None
) -> Iterator[SuffixPart]:
    at = 0
    for origin, no, n in whose or [[int(bool(origins)), origins[0][1] if origins else 0, len(segments)]]:
        some = [s for s in segments[at : at + n] if NOT_SUFFIX.isdisjoint(s.extras or {})]
        at += n
        if origin:
            yield SuffixPart([[origins[origin - 1][0], no]], True, some)
        elif some:
            yield SuffixPart([], True, some)


def _updates(segment: Segment, number: int) -> Iterator[Update]:
    extras = segment.extras or {}
    deleted = frozenset(extras.get(columns.DELETES, ()))
    for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
        yield Update(key, None if i in deleted else value, _ttl(extras, i), number)


def kept(segment: Segment, mask: list[bool]) -> list[Segment]:
    """The items that the mask names with the columns that are carried over: none, or one segment."""
    some = segment if all(mask) else select(segment, mask)
    extras = {name: x for name, x in ((some or segment).extras or {}).items() if name in CARRIED}
    if some is None:
        extras = columns.without(extras, columns.OF_ITEMS)
        return [Segment([], [], extras)] if extras else []
    return [Segment(some.keys, some.values, extras or None)]


def account_by_state(
    before: ReplicatedState, common: int, after: ReplicatedState, now: float, *, seen: set[str], upto: int
) -> tuple[list[Update], list[SuffixPart]]:
    """As `account`, for keys not `seen` there: out of the two states, where records of `common` to `upto` are gone.

    Which batch set what is not to be had then: all of those records' are taken for parted. Nor can it be told whether a
    key was deleted or is over by time, if it had a time, or may have had one in what is gone: then it stays, as a
    conflict. Nor what became of leases: a key with one that does not live there is a conflict, as it would stay for
    ever without.
    """
    ours, theirs = before.map, after.map
    updates = [
        Update(key, ours.values[key], ours.remaining_ms(key, now), revision)
        for key, revision in ours.revisions.items()
        if revision > common and key not in seen
    ]
    updates += [
        Update(key, None, None, before.number)
        for key, revision in theirs.revisions.items()
        if revision <= common and key not in ours.revisions and key not in seen
    ]
    for update in updates:
        had_time = update.key in theirs.deadlines or update.key in after.lease_of
        timed = update.value is None and (had_time or before.ended.may_have(update.key, common))
        lease = before.lease_of.get(update.key)
        ended = lease is not None and not after.leases.lives(lease)
        update.outcome = _outcome(update, common, after)
        if update.outcome == REPLAYED and (timed or ended):
            update.outcome = CONFLICT
    segments = [_set_again(update, before.lease_of.get(update.key)) for update in updates if update.outcome == REPLAYED]
    # The batches go first: one that is pending at the active is refused, and not done beside the keys that it has set.
    return updates, [SuffixPart(_origins(before, common, upto), False, []), SuffixPart([], True, segments)]


def _outcome(update: Update, common: int, after: ReplicatedState) -> str:
    if after.map.revisions.get(update.key, 0) <= common:
        return REPLAYED  # even if the value is the same: an update before this one may have been another
    return ALREADY if after.map.values.get(update.key) == update.value else CONFLICT


def _set_again(update: Update, lease: bytes | None) -> Segment:
    extras: dict[str, Any] = {columns.TTLS: update.ttl_ms} if update.ttl_ms else {}
    if lease is not None:
        extras[columns.LEASED] = lease
    if update.value is None:
        extras = {columns.DELETES: [0]}
    return Segment([update.key], [update.value or b""], extras or None)


def _origins(before: ReplicatedState, common: int, upto: int) -> list[list[Any]]:
    """The last batch of each session with a revision after `common` and before `upto`."""
    found = []
    for session_id, session in before.sessions.items():
        last = max((last for _, last, revision in session.runs if common < revision <= upto), default=0)
        if last:
            found.append([session_id, last])
    return found


def _ttl(extras: dict[str, Any], i: int) -> int | None:
    ttl = extras.get(columns.TTLS)
    if ttl is None or type(ttl) is int:
        return ttl
    places, times = ttl
    return int(times[places.index(i)]) if i in places else None


def uuids_of(before: ReplicatedState, after: ReplicatedState, pieces: list[SuffixPart]) -> SuffixPart:
    """A segment without keys of the CHP/1 sets that only we know of, but those that are handed over by themselves: the
    active may still have them pending, and would do them again."""
    columns_of = (segment.extras.get(columns.UUIDS, ()) for p in pieces for segment in p.segments if segment.extras)
    known = {uuid for column in columns_of for uuid in column}
    lost = [uuid for uuid in before.uuids if uuid not in after.uuids and uuid not in known]
    return SuffixPart([], True, [Segment([], [], {columns.UUIDS: lost})] if lost else [])


def heard(origins: list[list[Any]], state: ReplicatedState) -> bool:
    """Return True if a server has had all these batches from their clients, and done or refused them."""
    return bool(origins) and all(state.did(i, no) and not state.skipped(i, no) for i, no in origins)


class Ledger:
    """One suffix, batch by batch in its order: what each leaves behind at the active, and what is to be set again.

    The server that gives way judges by the snapshot it got, the active by its state: the same rules, so that the second
    only finds more in conflict: what was written in between.
    """

    def __init__(self, common: int) -> None:
        self.common = common
        self._left: dict[str, int] = {}  # the revision that the suffix's last update of a key has at the active
        self._torn = False  # a part of the batch that goes on with the next piece was not whole

    def judge(
        self,
        piece: SuffixPart,
        state: ReplicatedState,
        written: Written,
        number: int = 0,
        counted: Counted | None = None,
    ) -> tuple[SuffixPart | None, list[Update]]:
        """What is to be set again, None if all is said of the batch; and what becomes of each update.

        `written` tells of a key that is not there whether it was since `common`. `counted` tells of an application's
        version that is not its last one what became of it here since `common`: ALREADY, CONFLICT, or nothing.
        """
        torn, self._torn = self._torn, False
        updates = [list(_updates(segment, number)) for segment in piece.segments]
        flat = [update for column in updates for update in column]
        self._left |= piece.on
        if heard(piece.origins or [], state):
            refused = self._refused(piece.origins or [], state)
            if refused != PARTED:
                self._answered(piece, flat, refused, state)
                return None, flat
        told = self._counted(piece, state, counted)
        if told == ALREADY:
            revision = state.staging.versions[piece.version[0]][1] if piece.version else LOST
            self._left |= {update.key: revision for update in flat}
            return None, flat
        self._decide(piece, updates, state, written, lost=told == CONFLICT)
        on = {u.key: self._left[u.key] for u in flat if u.outcome == REPLAYED and self._left.get(u.key, -1) >= 0}
        whole = piece.whole and not torn and not piece.bound and told != CONFLICT
        taken = SuffixPart(piece.origins, whole, [], on)
        for segment, column in zip(piece.segments, updates, strict=True):
            taken.segments += kept(segment, [update.outcome == REPLAYED for update in column])
            taken.whole &= all(update.outcome != CONFLICT for update in column)
        if not taken.whole:
            self._torn = piece.origins is None
            taken.segments = [some for segment in taken.segments for some in _of_a_part(segment)]
        self._left |= {u.key: SET_AGAIN if u.outcome == REPLAYED else LOST for u in flat}
        return taken, flat

    @staticmethod
    def _refused(origins: list[list[Any]], state: ReplicatedState) -> str:
        """The code with which the active has refused it; empty if it was done."""
        return next((state.refusals[i, no][0] for i, no in origins if (i, no) in state.refusals), "")

    def _answered(self, piece: SuffixPart, updates: list[Update], refused: str, state: ReplicatedState) -> None:
        session_id, no = (piece.origins or [])[0]
        revision = LOST if refused else state.sessions[session_id].revision_of(no)
        for update in updates:
            update.outcome = CONFLICT if refused else ALREADY
            self._left[update.key] = 0 if update.value is None and not refused else revision

    def _counted(self, piece: SuffixPart, state: ReplicatedState, counted: Counted | None) -> str:
        """Return what became of the version that a batch counts: ALREADY, CONFLICT, or nothing if it is to be done.

        A program that had no answer, and was started again, has sent it in another session.
        """
        if piece.version is None:
            return ""
        application, version, strict = piece.version
        last, revision = state.staging.versions.get(application, (0, 0))
        if version == last and revision > self.common:
            return ALREADY
        if counted is None:  # only the server that does it again knows more
            return ""
        if version <= last:
            return counted(application, version)
        return CONFLICT if strict and version != last + 1 else ""

    def _decide(
        self, piece: SuffixPart, updates: list[list[Update]], state: ReplicatedState, written: Written, *, lost: bool
    ) -> None:
        opened: set[bytes] = set()
        whole = True
        for segment, column in zip(piece.segments, updates, strict=True):
            extras = segment.extras or {}
            opened |= {extras[columns.LEASE][0]} if columns.LEASE in extras else set()
            lease = extras.get(columns.LEASED)
            held = lease is None or lease in opened or state.leases.lives(lease)
            for update, uuid in zip(column, extras.get(columns.UUIDS) or repeat(b""), strict=False):
                update.outcome = REPLAYED if held and self._free(update.key, state, written) else CONFLICT
                whole &= update.outcome == REPLAYED
                if uuid in state.uuids:
                    update.outcome = ALREADY
                elif update.outcome == CONFLICT and not piece.conditional:
                    same = state.map.values.get(update.key) == update.value
                    update.outcome = ALREADY if same else CONFLICT
        if (piece.conditional and not whole) or piece.bound or lost:
            for update in (update for column in updates for update in column):
                update.outcome = CONFLICT

    def _free(self, key: str, state: ReplicatedState, written: Written) -> bool:
        """Whether the key is at the active as it was before this batch: nobody else has written it."""
        revision, left = state.map.revisions.get(key, 0), self._left.get(key)
        if left is not None:
            return left in (SET_AGAIN, revision)
        return revision <= self.common and (revision > 0 or not written(key))

    def note(self, piece: SuffixPart, state: ReplicatedState) -> None:
        """A piece has been made a record: here is what its keys have now."""
        for segment in piece.segments:
            for key in segment.keys:
                self._left[key] = state.map.revisions.get(key, 0)


def _of_a_part(segment: Segment) -> list[Segment]:
    """What may be done of a segment whose batch is not done whole: its keys."""
    extras = segment.extras or {}
    if ONLY_WHOLE.isdisjoint(extras):
        return [segment]
    rest = columns.without(extras, ONLY_WHOLE)
    return [Segment(segment.keys, segment.values, rest or None)] if segment.keys else []


def parted(piece: SuffixPart, state: ReplicatedState) -> list[Segment]:
    """Refusals of all batches of a piece that are not known here: as many as are remembered."""
    out = []
    for session_id, no in piece.origins or []:
        session = state.sessions.get(session_id)
        first = max(session.no if session else 0, no - state.limits.refusals_max) + 1
        refused = ([session_id, n, PARTED, PARTED_TEXT] for n in range(first, no + 1))
        out += [Segment([], [], {columns.REFUSED: refusal}) for refusal in refused]
    return out
