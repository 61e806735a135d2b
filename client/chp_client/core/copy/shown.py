"""The map that a Clone shows, which the agent changes while the application's threads read it.

    exchange()      delete and set keys in one step
    removal()       return the call that deletes keys in one step
    showing()       return the parts of a step that sets keys; unpack them to take the step

No copy has half of a step, and Ctrl-C comes before or after it.

Where Python has its global lock, one C-level call is one step for all other threads, and the map is a plain dict. On
free-threaded Python there are no such steps, and the map is a `LockedDict`: copies and changes of many keys exclude
each other. A read of one key takes no lock on either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, ValuesView
from functools import partial
from itertools import repeat
from operator import call
from typing import Any


class LockedDict(dict[str, bytes]):
    """A dict whose copies never have half of a change of many keys. `keys`, `values` and `items` show a copy.

    `lock` is a `threading.RLock`, which can tell whether the current thread holds it.
    """

    __slots__ = ("lock",)

    def __init__(self, lock: Any) -> None:
        super().__init__()
        self.lock = lock

    def _at_once(self, act: Callable[[], Any]) -> Any:
        """Call `act` with the lock held, and return its result."""
        try:
            # Unpacking takes all three steps of the iterator at once. Ctrl-C could come between three separate calls.
            _, result, _ = self.steps(act)
        except BaseException:
            # `act` failed, for example because memory ran out.
            if self.lock._is_owned():
                self.lock.release()
            raise
        return result

    def steps(self, act: Callable[[], Any]) -> Iterator[Any]:
        """Return an iterator that acquires the lock, calls `act` and releases the lock, one at each step."""
        return map(call, (self.lock.acquire, act, self.lock.release))

    def update(self, other: Any) -> None:  # type: ignore[override]  # `dict` has more ways to call it
        """Set keys, given as a dict or as pairs."""
        self._at_once(partial(super().update, other))

    def exchange(self, gone: Iterable[str], fresh: dict[str, bytes]) -> None:
        """Delete and set keys."""
        changes: tuple[Callable[[], object], ...] = _removal(self, gone), partial(super().update, fresh)
        self._at_once(partial(deque, map(call, changes), 0))

    def copy(self) -> dict[str, bytes]:
        """Return a plain dict of one moment."""
        found: dict[str, bytes] = self._at_once(super().copy)
        return found

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # a view of a copy
        """Return the keys of one moment."""
        return self.copy().keys()

    def values(self) -> ValuesView[bytes]:  # type: ignore[override]  # a view of a copy
        """Return the values of one moment."""
        return self.copy().values()

    def items(self) -> ItemsView[str, bytes]:  # type: ignore[override]  # a view of a copy
        """Return the items of one moment."""
        return self.copy().items()


def exchange(shown: dict[str, bytes], gone: Collection[str], fresh: dict[str, bytes]) -> None:
    """Delete and set keys in one step, so that no copy has half of it."""
    if isinstance(shown, LockedDict):
        shown.exchange(gone, fresh)
    elif gone:
        steps: tuple[Callable[[], object], ...] = _removal(shown, gone), partial(shown.update, fresh)
        deque(map(call, steps), 0)
    else:
        shown.update(fresh)


def removal(shown: dict[str, bytes], gone: Iterable[str]) -> Callable[[], object]:
    """Return the call that deletes keys in one step; it is a call of C, which Ctrl-C doesn't interrupt."""
    remove = _removal(shown, gone)
    return partial(deque, shown.steps(remove), 0) if isinstance(shown, LockedDict) else remove


def showing(shown: dict[str, bytes], pairs: Iterable[tuple[str, bytes]]) -> Iterator[object]:
    """Return the steps that set keys. They call no function of Python, where Ctrl-C could come."""
    show: Callable[[], object] = partial(dict.update, shown, pairs)
    return shown.steps(show) if isinstance(shown, LockedDict) else map(call, (show,))


def _removal(shown: dict[str, bytes], gone: Iterable[str]) -> Callable[[], object]:
    return partial(deque, map(shown.pop, gone, repeat(None)), 0)
