"""What a watch gives: changes one by one, or the columns of those that came together.

    Changed    the agent's: columns as they arrived, undecoded; cut to a prefix, put into a queue, joined
    Changes    the application's: columns of keys, values, revisions, and the places of deletes
    Change     one of them

From the channel to `Changes` no line runs for each key: columns are joined, cut and numbered by C-level loops. Only a
codec written in Python does, and what is sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, count, repeat
from operator import is_
from typing import Any, Generic, NamedTuple

from chp.numbers import Revision

from ..codecs import SKIPPED, Decoding, V
from ..core.events import Changed

SET, DELETE = "set", "delete"


class Change(NamedTuple, Generic[V]):
    """One key's change; `operation` is "set" or "delete", with a `value` of None; `revision` is that of its record.

    `expired`: it is a delete that nobody made, as a ttl or a lease had run out (`Changes.expiries` says when that is
    known).
    """

    key: str
    value: V  # None of a delete
    operation: str
    revision: Revision
    expired: bool = False


_change: Callable[[Iterable[Any]], Change] = partial(tuple.__new__, Change)  # runs no Python for each


@dataclass(slots=True)
class Changes(Generic[V]):
    """Changes that came together, in the servers' order, as columns of equal length; iterating gives each `Change`.

    keys        which changed; one that changed twice is there twice
    values      as the Clone's codec has them; None where the key was deleted
    revisions   of the record that each change was in; a record is never split between two batches
    deletes     the places (0 is the first) of deletes, ascending
    expiries    of these, the ones that nobody made: a ttl or a lease had run out. After a gap that was closed by a
                snapshot nobody can tell; of a closed lease with more than 4,096 keys, those beyond count as expired

    The columns are the reader's own, to keep and to change.
    """

    keys: list[str]
    values: list[V]
    revisions: list[Revision]
    deletes: list[int]
    expiries: list[int]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Change[V]]:
        operations = [SET] * len(self.keys)
        for i in self.deletes:
            operations[i] = DELETE
        expired = [False] * len(self.keys)
        for i in self.expiries:
            expired[i] = True
        return map(_change, zip(self.keys, self.values, operations, self.revisions, expired, strict=True))


def changes_of(changed: Changed, decoding: Decoding | None) -> Changes:
    """The application's own columns, without what is left out; `BadValue` names the key of a value."""
    deletes = list(compress(count(), map(is_, changed.values, repeat(None))))
    if decoding is None:
        values: list[Any] = list(changed.values)
    else:
        values = decoding.column(changed.keys, changed.values, deletes)
        if decoding.on_bad == "skip" and not all(mask := [value is not SKIPPED for value in values]):
            changed, values = pick(changed, mask), list(compress(values, mask))
            deletes = list(compress(count(), map(is_, changed.values, repeat(None))))
    return Changes(list(changed.keys), values, changed.revision_column(), deletes, list(changed.expiries))


def change_with(change: Change, decoding: Decoding) -> Change | None:
    """A change with its value decoded; None if it is left out."""
    if change.operation == DELETE:
        return change
    value = decoding.value(change.key, change.value)
    return None if value is SKIPPED else change._replace(value=value)


def changes_from(rest: Sequence[Change], decoding: Decoding | None) -> Changes:
    """Changes that were taken apart already, as columns again."""
    keys, values, _, revisions, expired = map(list, zip(*rest, strict=True))
    return changes_of(Changed(keys, values, revisions, expiries=list(compress(count(), expired))), decoding)


def joined(found: Sequence[Changed]) -> Changed:
    """Several one after the other, as one."""
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
    """Only what lies under `prefix`: two comparisons decide for a column that does as a whole."""
    keys = changed.keys
    if min(keys).startswith(prefix) and max(keys).startswith(prefix):
        return changed
    return pick(changed, list(map(str.startswith, keys, repeat(prefix))))


def pick(changed: Changed, mask: list[bool]) -> Changed:
    """Only the items that the mask names."""
    keys, values, revisions, first, expiries = changed
    if type(revisions) is list:
        revisions = list(compress(revisions, mask))
    if expiries:
        places = dict(zip(compress(count(), mask), count()))
        expiries = [places[i] for i in expiries if mask[i]]
    return Changed(list(compress(keys, mask)), list(compress(values, mask)), revisions, first, expiries)
