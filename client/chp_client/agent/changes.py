"""The changes that a watch yields: one by one, or as the columns of those that came together.

    Changed    the agent's columns as they arrived, undecoded; cut to a prefix, queued and joined
    Changes    the application's columns of keys, values, revisions, and the places of deletes
    Change     one change

No Python code runs for each key between the channel and `Changes`: C-level loops join, cut and number the columns. Only
sparse columns, and codecs that are written in Python, are the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress, count, repeat
from operator import is_
from typing import Any, Generic, NamedTuple

from chp.limits import DEFAULT
from chp.numbers import Revision

from ..codecs import SKIPPED, Decoding, V
from ..core.events import Changed

SET, DELETE = "set", "delete"


class Change(NamedTuple, Generic[V]):
    """The change of one key.

    `operation` is "set", or "delete" with a `value` of None. `revision` is that of the record. `expired` marks a delete
    by a ttl or a lease; `Changes.expiries` says when that is known.
    """

    key: str
    value: V  # None of a delete
    operation: str
    revision: Revision
    expired: bool = False

    @property
    def mount(self) -> str:
        """The mount that has the key, which is that of the revision too; "" for a Clone of one pair."""
        return ""


@lru_cache(maxsize=DEFAULT.mounts_max)
def change_of_mount(mount: str) -> Callable[[Iterable[Any]], Change]:
    """Return a function that makes the changes of a mount. Their class has the mount, so a change needs no field."""
    kind = type("Change", (Change,), {"__slots__": (), "mount": mount, "__reduce__": _reduced})
    return partial(tuple.__new__, kind)


def _reduced(change: Change) -> tuple[Any, ...]:
    return _again, (change.mount, tuple(change))


def _again(mount: str, fields: tuple[Any, ...]) -> Change:
    return change_of_mount(mount)(fields)


# This runs no Python code for each change.
_change: Callable[[Iterable[Any]], Change] = partial(tuple.__new__, Change)


@dataclass(slots=True)
class Changes(Generic[V]):
    """The changes that came together, in the order of the servers, as columns of equal length.

    keys        the keys that changed; a key that changed twice is there twice
    values      the values, decoded by the Clone's codec; None for a deleted key
    revisions   the revision of the record of each change; a record is never split between two batches
    deletes     the places of deletes (0 is the first), ascending
    expiries    the places of deletes by a ttl or a lease; a snapshot after a gap can't tell them from other deletes;
                if a closed lease had more than 4,096 keys, the keys beyond that number count as expired
    mount       the mount that has these keys; "" for a Clone of one pair

    Iterating yields each `Change`. The columns belong to the reader, which may keep and change them.
    """

    keys: list[str]
    values: list[V]
    revisions: list[Revision]
    deletes: list[int]
    expiries: list[int]
    mount: str = ""

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Change[V]]:
        operations = [SET] * len(self.keys)
        for i in self.deletes:
            operations[i] = DELETE
        expired = [False] * len(self.keys)
        for i in self.expiries:
            expired[i] = True
        made = change_of_mount(self.mount) if self.mount else _change
        return map(made, zip(self.keys, self.values, operations, self.revisions, expired, strict=True))


def changes_of(changed: Changed, decoding: Decoding | None) -> Changes:
    """Return the application's own columns, without values that are left out.

    `BadValue` names the key of a value that can't be decoded.
    """
    deletes, mount = list(compress(count(), map(is_, changed.values, repeat(None)))), changed.mount
    if decoding is None:
        values: list[Any] = list(changed.values)
    else:
        values = decoding.column(changed.keys, changed.values, deletes)
        if decoding.on_bad == "skip" and not all(mask := [value is not SKIPPED for value in values]):
            changed, values = pick(changed, mask), list(compress(values, mask))
            deletes = list(compress(count(), map(is_, changed.values, repeat(None))))
    return Changes(list(changed.keys), values, changed.revision_column(), deletes, list(changed.expiries), mount)


def change_with(change: Change, decoding: Decoding) -> Change | None:
    """Return a change with its value decoded, or None if it is left out."""
    if change.operation == DELETE:
        return change
    value = decoding.value(change.key, change.value)
    return None if value is SKIPPED else change._replace(value=value)


def changes_from(rest: Sequence[Change], decoding: Decoding | None) -> Changes:
    """Return single changes as columns again."""
    keys, values, _, revisions, expired = map(list, zip(*rest, strict=True))
    changed = Changed(keys, values, revisions, expiries=list(compress(count(), expired)))
    return changes_of(of_mount(changed, rest[0].mount), decoding)


class MountedChanged(Changed):
    """Confirmed changes of one mount."""

    # A class attribute hides the property of `Changed`, which can't be set.
    mount: str = ""


def of_mount(changed: Changed, mount: str) -> Changed:
    """Return changes with the mount that has their keys."""
    if not mount:
        return changed
    found = MountedChanged(*changed)
    found.mount = mount
    return found


def joined(found: Sequence[Changed]) -> Changed:
    """Return several column sets as one."""
    if len(found) == 1:
        return found[0]
    keys: list[str] = []
    values: list[bytes | None] = []
    revisions: list[int] = []
    expiries: list[int] = []
    for each in found:
        expiries += [len(keys) + i for i in each.expiries]
        keys += each.keys
        values += each.values
        revisions += each.revision_column()
    return Changed(keys, values, revisions, expiries=expiries)


def narrow(changed: Changed, prefix: str) -> Changed:
    """Return only the changes under `prefix`. Two comparisons are enough if all keys lie under it."""
    keys = changed.keys
    if min(keys).startswith(prefix) and max(keys).startswith(prefix):
        return changed
    return pick(changed, list(map(str.startswith, keys, repeat(prefix))))


def pick(changed: Changed, mask: list[bool]) -> Changed:
    """Return only the items that the mask selects."""
    keys, values, revisions, first, expiries = changed
    if type(revisions) is list:
        revisions = list(compress(revisions, mask))
    if expiries:
        places = dict(zip(compress(count(), mask), count()))
        expiries = [places[i] for i in expiries if mask[i]]
    return Changed(list(compress(keys, mask)), list(compress(values, mask)), revisions, first, expiries)
