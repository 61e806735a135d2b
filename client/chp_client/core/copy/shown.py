"""The map that a Clone shows, which the agent changes while the application's threads read it.

    new_shown()     make one
    exchange()      delete and set keys so that no copy has half of it
    removal()       return the call that deletes keys so

Where Python has its global lock, one C-level call is one step for all other threads, and the map is a plain dict. On
free-threaded Python there are no such steps, and the map is a `LockedDict`: copies and changes of many keys exclude
each other. A read of one key takes no lock on either.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, ItemsView, Iterable, KeysView, ValuesView
from functools import partial
from itertools import repeat
from operator import call
from typing import Any

from ...locks import Lock

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


class LockedDict(dict[str, bytes]):
    """A dict of which no copy has half of a change of many keys; `keys`, `values` and `items` are of a copy."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()

    def update(self, other: Any) -> None:  # type: ignore[override]  # `dict` has more ways to call it
        """Set keys, given as a dict or as pairs."""
        with self.lock:
            super().update(other)

    def __ior__(self, other: Any) -> LockedDict:  # type: ignore[override, misc]  # as above
        self.update(other)
        return self

    def exchange(self, gone: Iterable[str], fresh: dict[str, bytes]) -> None:
        """Delete and set keys."""
        with self.lock:
            deque(map(self.pop, gone, repeat(None)), 0)
            super().update(fresh)

    def copy(self) -> dict[str, bytes]:
        """Return a plain dict of one moment."""
        with self.lock:
            return super().copy()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a view of a copy
        """Return the keys of one moment."""
        return self.copy().keys()

    def values(self) -> ValuesView[bytes]:  # type: ignore[override]  # a view of a copy
        """Return the values of one moment."""
        return self.copy().values()

    def items(self) -> ItemsView[str, bytes]:  # type: ignore[override]  # a view of a copy
        """Return the items of one moment."""
        return self.copy().items()


def new_shown() -> dict[str, bytes]:
    """Return an empty map for this interpreter."""
    return LockedDict() if FREE_THREADED else {}


def exchange(shown: dict[str, bytes], gone: Collection[str], fresh: dict[str, bytes]) -> None:
    """Delete and set keys in one step, so that no copy has half of it."""
    if isinstance(shown, LockedDict):
        shown.exchange(gone, fresh)
    elif gone:
        steps: tuple[Callable[[], object], ...] = removal(shown, gone), partial(shown.update, fresh)
        deque(map(call, steps), 0)
    else:
        shown.update(fresh)


def removal(shown: dict[str, bytes], gone: Iterable[str]) -> Callable[[], object]:
    """Return the call that deletes keys in one step."""
    if isinstance(shown, LockedDict):
        return partial(shown.exchange, gone, {})
    return partial(deque, map(shown.pop, gone, repeat(None)), 0)
