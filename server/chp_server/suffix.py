"""What a server did alone and nobody else saw: its suffix, when it meets an active of a later epoch.

Two servers whose link was cut may both have been active. On meeting, the higher epoch stays; the other one finds that
its last records are no part of the history. They are not dropped in silence:

    already    the client that sent it has sent it to the other server too, which is known from its session
    replayed   nobody has written the key since the histories parted: it is set again, through the active
    conflict   the key was written there too: the active's value stays, this one is written to a file and counted

What is replayed keeps its place among the records and its sessions' numbers (`Piece`), so that a client which had no
answer and sends its batch again is told that it was done. A batch that was in conflict, even in part, can be neither
done again nor called done: sent again it is refused, as *parted*.

Pure: the records go in, an account of each update and the pieces to replay come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from chp.batch import EPOCH, Segment, decode_segment, segment_of, select, split

from .recordlog import Record
from .state import ReplicatedState

ALREADY, REPLAYED, CONFLICT = "already", "replayed", "conflict"
PARTED = "done in part: two servers were active, and keys written on both sides keep the other's value; read them first"
CARRIED = frozenset("dtupl") | {"lease", "unlease", "refused", "done"}  # columns that mean the same in a new record


@dataclass(slots=True)
class Update:
    """The last update of a key in a suffix, and what becomes of it; `value` is None for a delete."""

    key: str
    value: bytes | None
    ttl_ms: int | None
    number: int
    outcome: str = ALREADY


@dataclass(slots=True)
class Piece:
    """A record of a suffix as it is handed over: what nobody else has written since, and whose batches it held."""

    origins: list[list[Any]] | None  # None: more of the record follows, and tells
    whole: bool  # nothing of it was in conflict
    segments: list[Segment]

    def to_replay(self) -> list[Any]:
        """As REPLAY carries it."""
        return [self.origins, self.whole, [segment.encode() for segment in self.segments]]

    @staticmethod
    def of(item: list[Any]) -> Piece:
        """Of a REPLAY."""
        origins, whole, bodies = item
        return Piece(origins, whole, [decode_segment(body) for body in bodies])


def account(suffix: list[Record], common: int, after: ReplicatedState) -> tuple[list[Update], list[Piece]]:
    """What becomes of each key of `suffix`, given the state that replaced ours and the last `common` number."""
    latest: dict[str, Update] = {}
    pieces: list[Piece] = []
    for first, origins, segments in _records(suffix):
        done, piece = known(origins, after), Piece(origins, True, [])
        for segment in segments:
            updates = list(_updates(segment, first))
            if not done:
                uuids = (segment.extras or {}).get("u") or [b""] * len(updates)
                for update, uuid in zip(updates, uuids, strict=True):
                    update.outcome = ALREADY if uuid in after.uuids else _outcome(update, common, after)
                piece.segments += kept(segment, [update.outcome == REPLAYED for update in updates])
                piece.whole &= all(update.outcome != CONFLICT for update in updates)
            latest |= {update.key: update for update in updates}
        if not done:
            pieces.append(piece)
    return list(latest.values()), pieces


def _records(suffix: list[Record]) -> Iterator[tuple[int, list[list[Any]], list[Segment]]]:
    """Each record with its first number, its origins and its segments; the parts of one together."""
    segments: list[Segment] = []
    first = 0
    for record in suffix:
        header, *items = split(record.body)
        if header[0] == EPOCH:
            continue
        first = first or record.first
        segments += [segment_of(item) for item in items]
        if not header[6]:
            yield first, header[5], [s for s in segments if not {"stage", "ended"} & (s.extras or {}).keys()]
            segments, first = [], 0


def _updates(segment: Segment, number: int) -> Iterator[Update]:
    extras = segment.extras or {}
    deleted = frozenset(extras.get("d", ()))
    for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
        yield Update(key, None if i in deleted else value, _ttl(extras, i), number)


def kept(segment: Segment, mask: list[bool]) -> list[Segment]:
    """The items that the mask names with the columns that are carried over: none, or one segment."""
    some = segment if all(mask) else select(segment, mask)
    extras = {name: x for name, x in ((some or segment).extras or {}).items() if name in CARRIED}
    if some is None:
        extras = {name: x for name, x in extras.items() if len(name) > 1}  # those that are not of its items
        return [Segment([], [], extras)] if extras else []
    return [Segment(some.keys, some.values, extras or None)]


def account_by_state(
    before: ReplicatedState, common: int, after: ReplicatedState, now: float, *, seen: set[str], upto: int
) -> tuple[list[Update], list[Piece]]:
    """As `account`, for keys not `seen` there: out of the two states, where records of `common` to `upto` are gone.

    Which batch set what is not to be had then: all of those records' are taken for parted.
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
        update.outcome = _outcome(update, common, after)
    segments = [_set_again(update) for update in updates if update.outcome == REPLAYED]
    return updates, [Piece(_origins(before, common, upto), False, segments)]


def _set_again(update: Update) -> Segment:
    extras: dict[str, Any] = {"d": [0]} if update.value is None else {"t": update.ttl_ms} if update.ttl_ms else {}
    return Segment([update.key], [update.value or b""], extras or None)


def _origins(before: ReplicatedState, common: int, upto: int) -> list[list[Any]]:
    """The last batch of each session with a revision after `common` and before `upto`."""
    found = []
    for session_id, session in before.sessions.items():
        last = max((last for _, last, revision in session.runs if common < revision <= upto), default=0)
        if last:
            found.append([session_id, last])
    return found


def known(origins: list[list[Any]], state: ReplicatedState) -> bool:
    """Whether a server has had all batches of a record from their clients."""
    sessions = state.sessions
    return bool(origins) and all(i in sessions and sessions[i].no >= no for i, no in origins)


def _outcome(update: Update, common: int, after: ReplicatedState) -> str:
    if after.map.revisions.get(update.key, 0) <= common:
        return REPLAYED  # even if the value is the same: an update before this one may have been another
    return ALREADY if after.map.values.get(update.key) == update.value else CONFLICT


def _ttl(extras: dict[str, Any], i: int) -> int | None:
    ttl = extras.get("t")
    if ttl is None or type(ttl) is int:
        return ttl
    places, times = ttl
    return int(times[places.index(i)]) if i in places else None


class Takeover:
    """The active's side of one suffix: takes its pieces in order, and knows what it set, which a later one may too."""

    def __init__(self, common: int) -> None:
        self.common = common
        self._own: dict[str, int] = {}
        self._torn = False  # a part of the record that goes on with the next piece was not whole

    def take(
        self, piece: Piece, state: ReplicatedState, written: Callable[[str], bool]
    ) -> tuple[Piece | None, list[str]]:
        """What is to be a record here, None if all is done, and the keys that were written here and are not taken.

        `written` tells of a key that is not there whether it was since `common`.
        """
        torn, self._torn = self._torn, False
        if known(piece.origins or [], state):
            return None, []
        taken, refused = Piece(piece.origins, piece.whole and not torn, []), []
        opened: set[bytes] = set()
        for segment in piece.segments:
            extras = segment.extras or {}
            opened |= {extras["lease"][0]} if "lease" in extras else set()
            held = "l" not in extras or extras["l"] in opened or extras["l"] in state.leases
            mask = [held and self._free(key, state, written) for key in segment.keys]
            refused += [
                update.key
                for update, free in zip(_updates(segment, 0), mask, strict=True)
                if not free and state.map.values.get(update.key) != update.value
            ]
            taken.segments += kept(segment, mask)
        if refused or not taken.whole:
            taken.whole, self._torn = False, piece.origins is None
            taken.segments = [s for s in taken.segments if "done" not in (s.extras or {})]
            taken.segments += _parted(taken.origins or [], state)
        return taken, refused

    def _free(self, key: str, state: ReplicatedState, written: Callable[[str], bool]) -> bool:
        revision = state.map.revisions.get(key, 0)
        if key in self._own:
            return revision == self._own[key]
        return revision <= self.common and (revision > 0 or not written(key))

    def note(self, piece: Piece, state: ReplicatedState) -> None:
        """A piece has been made a record."""
        for segment in piece.segments:
            for key in segment.keys:
                self._own[key] = state.map.revisions.get(key, 0)


def _parted(origins: list[list[Any]], state: ReplicatedState) -> list[Segment]:
    """Refusals of all batches of a piece that are not known here: as many as are remembered."""
    out = []
    for session_id, no in origins:
        session = state.sessions.get(session_id)
        first = max(session.no if session else 0, no - state.limits.refusals_max) + 1
        out += [Segment([], [], {"refused": [session_id, n, "parted", PARTED]}) for n in range(first, no + 1)]
    return out
