"""Reading and writing in one step: `pop`, `popitem` and `setdefault`, on conditions that the servers look at.

    the key as it is held    --its revision-->    a delete, or a set, on condition of it    --Conflict-->    once more

So of all programs that take a key exactly one gets it, and of all that put one exactly one does. Each is a generator of
what has to be waited for, and returns what its method returns; `Clone` and `AsyncClone` wait in their own ways:

    a key           whose own set is to be confirmed first: before that, it has no revision to make a condition of
    a callable      makes the conditional set, and returns its ticket; `Conflict` is thrown into the generator
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from .errors import Conflict
from .tickets import Ticket

if TYPE_CHECKING:
    from .writing import Writing

NOTHING: Any = object()
GONE: Any = object()
Steps = Generator[str | Callable[[], Ticket], None, Any]


def pop(clone: Writing, key: str, default: Any) -> Steps:
    """The value of a key that this program, and no other, deleted."""
    while (entry := clone.entry(key)) is not None:
        if entry.pending:
            yield key
            continue
        try:
            yield partial(clone.delete, key, entry.revision)
        except Conflict:
            continue  # somebody else was faster: to take it, or to set it
        return entry.value
    if default is NOTHING:
        raise KeyError(key)
    return default


def popitem(clone: Writing) -> Steps:
    """Some key and its value."""
    while (key := clone.some_key()) is not None:
        value = yield from pop(clone, key, GONE)
        if value is not GONE:
            return key, value
    raise KeyError("popitem(): this Clone holds no keys")


def setdefault(clone: Writing, key: str, default: Any) -> Steps:
    """The value of a key, which is `default` if it had none."""
    while True:
        if (entry := clone.entry(key)) is not None:
            return entry.value
        yield key
        try:
            yield partial(clone.set, key, default, None, 0)
        except Conflict:
            continue
        return default
