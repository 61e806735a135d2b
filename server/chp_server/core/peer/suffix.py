"""The suffix: the updates that one server did alone, and what becomes of them (SPEC.md, section 21).

While the link between two servers was cut, both may have been active. When they meet, the server of the higher epoch
stays active. The last records of the other one, its suffix, are not part of the history then. Each of their updates
gets an outcome, batch by batch and in order:

    already    the active did the same batch, because its client sent it to both servers; or the active has this value
    replayed   no other batch has written the key since the histories parted, so the active sets it again
    conflict   another batch wrote the key too: the active's value stays, and ours goes to a file and is counted

A batch is not *already* there just because the active knows of it: the active may have refused the batch. If the active
did a batch, the keys have that batch's revision there. While a key still has that revision, the suffix's next update of
the key can be replayed. So a client's chain of conditional batches is replayed, unless another client wrote the key in
between.

A conditional batch is replayed whole, on the same values, or not at all. An equal value that another client has set
does not count as its own. A batch that counts a version is replayed whole or not at all, too: a part of it would be
there twice if its program ran the version again. A batch is in conflict as a whole if it acknowledges messages: the
active's history gives these messages again, with what follows from them. So is a batch with a condition on a key that
it does not write. Deletes by expiry are not part of a suffix.

A replayed batch keeps its place and its number in its session (`SuffixPart`). So a client that had no answer, and sends
the batch again, is told that it was done. A batch with a conflict can't be done again, nor acknowledged. If its client
sends it again, it is refused as *parted*. A batch that the active has refused is not replayed. The exception is a
refusal as *parted*: its condition named a revision that only the suffix has.

Pure: records go in; an outcome for each update comes out, with the pieces to replay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from chp import columns
from chp.batch import Segment, decode, decode_segment, segment_of, select
from chp.headers import Batch, Commit
from chp.parts import Parts

from ..state.commit_record import segments_of
from ..state.record_log import Record
from ..state.staging import NO_VERSION
from ..state.state import ReplicatedState
from ..state.verdicts import PARTED, PARTED_TEXT
from ..updates.turn import ALREADY, Update

REPLAYED, CONFLICT = "replayed", "conflict"
# The columns that mean the same in a new record.
CARRIED = frozenset({
    columns.DELETES, columns.TTLS, columns.UUIDS, columns.PROPERTIES, columns.LEASED, columns.LEASE, columns.UNLEASE,
    columns.REFRESH, columns.REFUSED, columns.DONE, columns.CONDITIONS, columns.PUBLISH, columns.TOPIC,
    columns.GROUP, columns.ONCE, columns.SCHEDULED, columns.CANCEL,
})  # fmt: skip
# Segments with these columns are not replayed: staged updates, which are not visible yet, deletes by expiry, and
# messages that this server put aside, which the active's group gives again.
NOT_SUFFIX = frozenset({columns.STAGE, columns.ENDED, columns.ASIDE})
# Columns by which a batch depends on what the other history may not have.
BOUND = frozenset({columns.ACK, columns.NACK, columns.EXPECT})
# Columns that are replayed only if no part of their batch is in conflict.
ONLY_WHOLE = frozenset({columns.DONE, columns.PUBLISH, columns.ONCE, columns.SCHEDULED, columns.CANCEL})
# An update with this key stands for the rules of access; a real key is never empty.
RULES = ""
# In the place of a revision, SET_AGAIN means that the update is to be replayed, and LOST that the active lacks it.
SET_AGAIN, LOST = -1, -2

Written = Callable[[str], bool]
Counted = Callable[[str, int], str]


@dataclass(slots=True)
class SuffixPart:
    """A piece of a suffix: a batch, or a part of one, as it is handed over."""

    # [[session, batch]], or [] for CHP/1. None if more of the batch follows: its last piece has the origins.
    origins: list[list[Any]] | None
    # True if no update of the piece is in conflict.
    whole: bool
    segments: list[Segment]
    # The revisions that the suffix's batch before this one has left on the keys at the active.
    on: dict[str, int] = field(default_factory=dict)
    # If given, the piece is no batch, but the last rules of access.
    rules: dict[str, Any] | None = None
    # The user of the application whose version the piece counts; "" if the user is not known.
    user: str = ""

    def to_replay(self) -> list[Any]:
        """Return the piece as REPLAY carries it."""
        said = [self.origins, self.whole, [segment.encode() for segment in self.segments], self.on]
        if self.user:
            return [*said, self.rules, self.user]
        return said if self.rules is None else [*said, self.rules]

    @staticmethod
    def of(item: list[Any]) -> SuffixPart:
        """Return the piece that an item of REPLAY carries."""
        origins, whole, bodies, on, *rest = item
        return SuffixPart(origins, whole, [decode_segment(body) for body in bodies], on, *rest)

    @property
    def bound(self) -> bool:
        """True if it acknowledges messages or gives them back, or has a condition on keys that it does not write."""
        return any(BOUND & (segment.extras or {}).keys() for segment in self.segments)

    @property
    def version(self) -> tuple[str, int, bool] | None:
        """The application's version that it counts, and True if that has to be the next one; None if it counts none."""
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
        """True if it has conditions, so that it is done whole or not at all."""
        return any(columns.CONDITIONS in (segment.extras or {}) for segment in self.segments)


def account(
    suffix: list[Record],
    common: int,
    after: ReplicatedState,
    back: Callable[[Segment], Segment] = lambda each: each,
    user_of: Callable[[str], str | None] = lambda _application: None,
) -> tuple[list[Update], list[SuffixPart]]:
    """Return what becomes of each key of a suffix, and the pieces to replay.

    `common` is the last number that both histories share, and `after` is the state that replaced ours. `back` returns a
    segment with the messages that its client sent (`ReplayedMessages.back`), and `user_of` the user of an application.
    """
    latest: dict[str, Update] = {}
    pieces: list[SuffixPart] = []
    ledger = Ledger(common)
    for number, piece in _batches(suffix, back):
        if piece.version is not None:
            piece.user = user_of(piece.version[0]) or ""
        taken, updates = ledger.judge(piece, after, lambda _key: False, number)
        latest |= {update.key: update for update in updates}
        if taken is not None:
            pieces.append(taken)
    return list(latest.values()), pieces


def account_of_rules(
    before: ReplicatedState, common: int, after: ReplicatedState
) -> tuple[list[Update], list[SuffixPart]]:
    """Return the outcome of the rules of access, and the piece to replay; in the file their key is empty."""
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
    """Yield each batch of a suffix with the first number of its record; the parts of a record are joined first."""
    parts = Parts()
    for record in suffix:
        header, items = decode(record.body)
        if isinstance(header, Commit):
            pieces = _by_batch([back(segment) for segment in segments_of(record)], header.origins)
            yield from ((header.first, piece) for piece in pieces)
        elif isinstance(header, Batch):
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
    """Return a list with one segment, or with none: the items that `mask` selects, and the columns to be replayed."""
    some = segment if all(mask) else select(segment, mask)
    extras = {name: x for name, x in ((some or segment).extras or {}).items() if name in CARRIED}
    if some is None:
        extras = columns.without(extras, columns.OF_ITEMS)
        return [Segment([], [], extras)] if extras else []
    return [Segment(some.keys, some.values, extras or None)]


def account_by_state(
    before: ReplicatedState, common: int, after: ReplicatedState, now: float, *, seen: set[str], upto: int
) -> tuple[list[Update], list[SuffixPart]]:
    """Return what becomes of keys whose records, from `common` to `upto`, are gone, by a comparison of both states.

    Keys that `account` has `seen` are left out. Without the records three things are not known:

        which batch set a key               all batches of these records are taken as parted
        if a key was deleted, or expired    it is a conflict, if it had a ttl or may have had one
        what became of a lease              its keys are conflicts if it has ended at the active, as they would never
                                            expire there
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
    # The batches go first: so the active refuses a batch that it has pending, before it sets the keys of that batch.
    return updates, [SuffixPart(_origins(before, common, upto), False, []), SuffixPart([], True, segments)]


def _outcome(update: Update, common: int, after: ReplicatedState) -> str:
    if after.map.revisions.get(update.key, 0) <= common:
        # The update is replayed even if the value is equal: an earlier update of the suffix may have set another value.
        return REPLAYED
    return ALREADY if after.map.values.get(update.key) == update.value else CONFLICT


def _set_again(update: Update, lease: bytes | None) -> Segment:
    extras: dict[str, Any] = {columns.TTLS: update.ttl_ms} if update.ttl_ms else {}
    if lease is not None:
        extras[columns.LEASED] = lease
    if update.value is None:
        extras = {columns.DELETES: [0]}
    return Segment([update.key], [update.value or b""], extras or None)


def _origins(before: ReplicatedState, common: int, upto: int) -> list[list[Any]]:
    """Return the last batch of each session that has a revision after `common`, up to `upto`."""
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
    """Return a piece with the UUIDs of CHP/1 sets that only our state knows, and that `pieces` do not have.

    The active may still have such sets pending, and would do them again.
    """
    columns_of = (segment.extras.get(columns.UUIDS, ()) for p in pieces for segment in p.segments if segment.extras)
    known = {uuid for column in columns_of for uuid in column}
    lost = [uuid for uuid in before.uuids if uuid not in after.uuids and uuid not in known]
    return SuffixPart([], True, [Segment([], [], {columns.UUIDS: lost})] if lost else [])


def heard(origins: list[list[Any]], state: ReplicatedState) -> bool:
    """Return True if a server got all these batches from their clients, and did or refused them."""
    return bool(origins) and all(state.did(i, no) and not state.skipped(i, no) for i, no in origins)


class Ledger:
    """The decisions about one suffix, batch by batch in order, and the revision that each key then has at the active.

    The passive decides by the snapshot that it got, and the active decides again by its own state. Both use the same
    rules. So the active can only find more conflicts, with keys that were written in between.
    """

    def __init__(self, common: int) -> None:
        self.common = common
        # The revision at the active of the suffix's last update of each key, or SET_AGAIN, or LOST.
        self._left: dict[str, int] = {}
        # True if the batch goes on with the next piece, and a piece before had a conflict.
        self._torn = False

    def judge(
        self,
        piece: SuffixPart,
        state: ReplicatedState,
        written: Written,
        number: int = 0,
        counted: Counted | None = None,
    ) -> tuple[SuffixPart | None, list[Update]]:
        """Return the piece to replay, None if there is nothing to do; and the updates with their outcomes.

        `written` returns True if an absent key may have been written since `common`. `counted` returns the outcome of
        an application's version that is not above its last one: ALREADY, CONFLICT, or "".
        """
        torn, self._torn = self._torn, False
        updates = [list(_updates(segment, number)) for segment in piece.segments]
        flat = [update for column in updates for update in column]
        self._left |= piece.on
        stands = self._stands(piece, state, counted)
        if stands:
            self._answered(piece, flat, state)
            return None, flat
        if stands is None:
            for update in flat:
                update.outcome = REPLAYED
            on = self._on(flat)
            self._left |= {update.key: SET_AGAIN for update in flat}
            segments = [some for each in piece.segments for some in kept(each, [True] * len(each.keys))]
            return SuffixPart(piece.origins, piece.whole, segments, on, user=piece.user), flat
        told = self._counted(piece, state, counted)
        if told == ALREADY:
            revision = state.staging.versions[piece.version[0]].revision if piece.version else LOST
            self._left |= {update.key: revision for update in flat}
            return None, flat
        self._decide(piece, updates, state, written, lost=told == CONFLICT)
        whole = piece.whole and not torn and not piece.bound and told != CONFLICT
        taken = SuffixPart(piece.origins, whole, [], self._on(flat), user=piece.user)
        for segment, column in zip(piece.segments, updates, strict=True):
            taken.segments += kept(segment, [update.outcome == REPLAYED for update in column])
            taken.whole &= all(update.outcome != CONFLICT for update in column)
        if not taken.whole:
            self._torn = piece.origins is None
            taken.segments = [some for segment in taken.segments for some in _of_a_part(segment)]
        self._left |= {u.key: SET_AGAIN if u.outcome == REPLAYED else LOST for u in flat}
        return taken, flat

    def _on(self, updates: list[Update]) -> dict[str, int]:
        """Return the revisions that the suffix has left at the active on the keys that are to be replayed."""
        left = self._left
        return {u.key: left[u.key] for u in updates if u.outcome == REPLAYED and left.get(u.key, SET_AGAIN) >= 0}

    @staticmethod
    def _refused(origins: list[list[Any]], state: ReplicatedState) -> str:
        """Return the code with which the active has refused the batches; "" if it did them."""
        return next((found[0] for i, no in origins if (found := state.refusals.get(i, no)) is not None), "")

    def _stands(self, piece: SuffixPart, state: ReplicatedState, counted: Counted | None) -> bool | None:
        """Return True if the active's answer to a piece stands, False if the piece is to be judged, None if unknown.

        The active answers an earlier version without doing it if it has counted a later one. Only the active knows
        whether it did so.
        """
        if not heard(piece.origins or [], state):
            return False
        refused = self._refused(piece.origins or [], state)
        if refused or piece.version is None:
            return refused != PARTED
        application, version, _ = piece.version
        if version >= state.staging.versions.get(application, NO_VERSION)[0]:
            return True
        return None if counted is None else bool(counted(application, version))

    def _answered(self, piece: SuffixPart, updates: list[Update], state: ReplicatedState) -> None:
        refused = self._refused(piece.origins or [], state)
        session_id, no = (piece.origins or [])[0]
        revision = LOST if refused else state.sessions[session_id].revision_of(no)
        for update in updates:
            update.outcome = CONFLICT if refused else ALREADY
            self._left[update.key] = 0 if update.value is None and not refused else revision

    def _counted(self, piece: SuffixPart, state: ReplicatedState, counted: Counted | None) -> str:
        """Return what became of the version that a batch counts: ALREADY, CONFLICT, or "" if it is to be done.

        A program that had no answer, and was started again, may have sent the version in another session. If another
        user has the application by now, the version is a conflict: it would count the other user's versions up.
        """
        if piece.version is None:
            return ""
        application, version, strict = piece.version
        if piece.user and state.staging.owner_of(application) not in (None, piece.user):
            return CONFLICT
        last, revision, _ = state.staging.versions.get(application, NO_VERSION)
        if version == last and revision > self.common:
            return ALREADY
        # Only the server that does the batch again knows more.
        if counted is None:
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
                free = self._free(update.key, state, written, blind=not piece.conditional)
                update.outcome = REPLAYED if held and free else CONFLICT
                whole &= update.outcome == REPLAYED
                if uuid in state.uuids:
                    update.outcome = ALREADY
                elif update.outcome == CONFLICT and not piece.conditional:
                    same = state.map.values.get(update.key) == update.value
                    update.outcome = ALREADY if same else CONFLICT
        flat = [update for column in updates for update in column]
        # A version is done whole or not at all: its program may run it again.
        lost |= piece.version is not None and any(update.outcome == CONFLICT for update in flat)
        if (piece.conditional and not whole) or piece.bound or lost:
            for update in flat:
                update.outcome = CONFLICT

    def _free(self, key: str, state: ReplicatedState, written: Written, *, blind: bool) -> bool:
        """Return True if the active has the key as it was before this batch, so that no other batch has written it.

        A batch without conditions is `blind`: it may follow on an update of the suffix that the active lacks.
        """
        revision, left = state.map.revisions.get(key, 0), self._left.get(key)
        if left is not None and not (blind and left == LOST):
            return left in (SET_AGAIN, revision)
        return revision <= self.common and (revision > 0 or not written(key))

    def note(self, piece: SuffixPart, state: ReplicatedState) -> None:
        """Note the revisions of a piece's keys, after it was done again."""
        for segment in piece.segments:
            for key in segment.keys:
                self._left[key] = state.map.revisions.get(key, 0)


def _of_a_part(segment: Segment) -> list[Segment]:
    """Return what may be done of a segment whose batch is not done whole: all but the columns `ONLY_WHOLE`."""
    extras = segment.extras or {}
    if ONLY_WHOLE.isdisjoint(extras):
        return [segment]
    rest = columns.without(extras, ONLY_WHOLE)
    return [Segment(segment.keys, segment.values, rest or None)] if segment.keys else []


def parted(piece: SuffixPart, state: ReplicatedState) -> list[Segment]:
    """Return refusals for the batches up to the piece's that this server does not know: the latest `refusals_max`."""
    out = []
    for session_id, no in piece.origins or []:
        session = state.sessions.get(session_id)
        first = max(session.no if session else 0, no - state.limits.refusals_max) + 1
        refused = ([session_id, n, PARTED, PARTED_TEXT] for n in range(first, no + 1))
        out += [Segment([], [], {columns.REFUSED: refusal}) for refusal in refused]
    return out
