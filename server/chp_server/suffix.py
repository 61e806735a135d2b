"""What a server did alone and nobody else saw: its suffix, when it meets an active of a later epoch.

Two servers whose link was cut may both have been active. On meeting, the higher epoch stays; the other one finds that
its last records are no part of the history. They are not dropped in silence:

    already    the client that sent it has sent it to the other server too, which is known from its session
    replayed   nobody has written the key since the histories parted: it is set again, through the active
    conflict   the key was written there too: the active's value stays, this one is written to a file and counted

Pure: the records go in, an account of each update comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chp.batch import EPOCH, segment_of, split

from .recordlog import Record
from .state import ReplicatedState

ALREADY, REPLAYED, CONFLICT = "already", "replayed", "conflict"


@dataclass(slots=True)
class Update:
    """The last update of a key in a suffix, and what becomes of it; `value` is None for a delete."""

    key: str
    value: bytes | None
    ttl_ms: int | None
    number: int
    expected: int  # the key's revision on the active as far as we know: replayed only if it still is
    outcome: str = ALREADY

    def to_replay(self) -> list[Any]:
        """As REPLAY carries it."""
        return [self.key, self.value, self.ttl_ms, self.expected]


def account(suffix: list[Record], common: int, after: ReplicatedState) -> list[Update]:
    """What becomes of each key of `suffix`, given the state that replaced ours and the last `common` number."""
    latest: dict[str, Update] = {}
    for record in suffix:
        header, *items = split(record.body)
        known = header[0] != EPOCH and _known(header[5], after)
        for item in items:
            segment = segment_of(item)
            extras = segment.extras or {}
            if "stage" in extras:
                continue
            for i, (key, value) in enumerate(zip(segment.keys, segment.values, strict=True)):
                update = Update(key, value, _ttl(extras, i), record.first, after.map.revisions.get(key, 0))
                if i in extras.get("d", ()):
                    update.value = None
                uuid = extras["u"][i] if "u" in extras else b""
                if not known and uuid not in after.uuids:
                    update.outcome = _outcome(update, common, after)
                latest[key] = update
    return list(latest.values())


def account_by_state(
    before: ReplicatedState, common: int, after: ReplicatedState, now: float, seen: set[str]
) -> list[Update]:
    """As `account`, for keys not `seen` there: out of the two states, where records back to `common` are gone."""
    ours, theirs = before.map, after.map
    updates = [
        Update(key, ours.values[key], ours.remaining_ms(key, now), revision, theirs.revisions.get(key, 0))
        for key, revision in ours.revisions.items()
        if revision > common and key not in seen
    ]
    updates += [
        Update(key, None, None, before.number, revision)
        for key, revision in theirs.revisions.items()
        if revision <= common and key not in ours.revisions and key not in seen
    ]
    for update in updates:
        update.outcome = _outcome(update, common, after)
    return updates


def _known(origins: list[list[Any]], after: ReplicatedState) -> bool:
    """Whether the other server has had all batches of a record from their clients."""
    sessions = after.sessions
    return bool(origins) and all(i in sessions and sessions[i].no >= no for i, no in origins)


def _outcome(update: Update, common: int, after: ReplicatedState) -> str:
    if after.map.values.get(update.key) == update.value:
        return ALREADY
    return REPLAYED if update.expected <= common else CONFLICT


def _ttl(extras: dict[str, Any], i: int) -> int | None:
    ttl = extras.get("t")
    if ttl is None or type(ttl) is int:
        return ttl
    places, times = ttl
    return int(times[places.index(i)]) if i in places else None
