"""The callbacks of changes: `@clone.on("/config/")` is called for each change, on the thread of the Clone's listeners.

    the agent --on_offer--> ring: puts one `_tell` behind other callbacks        once, however much comes meanwhile
    the thread of callbacks --> _tell: a portion of the changes, one by one; then other callbacks; then the next portion

A callback has a watch, which this module reads. A callback that falls further behind than the watch's `queue_max` is
told all held keys again, and a warning says so. It is not told the deletes in between. What a callback raises is
logged the first ten times and then each thousandth time. The next change is told all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chp.errors import ChpError

from ..errors import Closed, Lagging
from ..locks import Lock
from .changes import Change, change_with, changes_of

if TYPE_CHECKING:
    from .watch import Watch

log = logging.getLogger("chp_client")
LOGGED, THEN_EACH = 10, 1000
Open = Callable[[int | str], "Watch"]


class Failures:
    """The failures of a callback. It logs a bounded number of them."""

    def __init__(self, listener: Callable[[Change], object], prefix: str) -> None:
        self._name, self._prefix = getattr(listener, "__qualname__", repr(listener)[:60]), prefix
        self.count = 0

    def log(self, key: str) -> None:
        """Log what the callback raised. It is called while that exception is handled."""
        self.count += 1
        if self.count <= LOGGED or self.count % THEN_EACH == 0:
            log.exception("%s, called for %r under %r, raised (%d so far)", self._name, key, self._prefix, self.count)

    def lagging(self, error: Exception) -> None:
        """Warn that the callback was too slow."""
        log.warning("%s is told all that is held anew: %s", self._name, error)

    def ended(self, error: Exception) -> None:
        """Log that no change will come any more."""
        log.error("%s is told nothing more of %r: %s", self._name, self._prefix, error)


class Listening:
    """The watch of one callback. The thread of callbacks reads it."""

    def __init__(
        self,
        listener: Callable[[Change], object],
        prefix: str,
        opened: Open,
        call: Callable[[Callable[[], object]], Any],
    ) -> None:
        self.listener = listener
        self.failures = Failures(listener, prefix)
        self._opened, self._call = opened, call
        self._lock = Lock()
        self._due = False
        self._watch: Watch | None = None

    def begin(self, start: int | str) -> None:
        """Begin to call the callback. Raises what `watch` raises."""
        watch = self._opened(start)
        watch.queue.on_offer = self._ring
        self._watch = watch
        # Changes may have come before the watch could ring.
        self._ring()

    def close(self) -> None:
        """Stop calling the callback. A call that runs now goes on."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.queue.on_offer = None
            watch.close()

    def _ring(self) -> None:
        with self._lock:
            due, self._due = self._due, True
        if not due:
            self._call(self._tell)

    def _tell(self) -> None:
        # Changes that come from here on ring again.
        self._due = False
        watch = self._watch
        if watch is None:
            return
        try:
            changed = watch.queue.poll()
        except Lagging as error:
            self._begin_anew(error)
            return
        except ChpError as error:
            self.failures.ended(error)
            self.close()
            return
        if changed is not None:
            for change in changes_of(changed, None):
                if self._watch is not watch:
                    return
                self._tell_one(watch, change)
            # This goes behind the callbacks that wait already.
            self._ring()

    def _tell_one(self, watch: Watch, change: Change) -> None:
        try:
            decoded = change if watch.decoding is None else change_with(change, watch.decoding)
            if decoded is not None:
                self.listener(decoded)
        except BaseException:
            # As for other callbacks, even SystemExit is only logged.
            self.failures.log(change.key)

    def _begin_anew(self, error: Exception) -> None:
        self.failures.lagging(error)
        self.close()
        try:
            self.begin("snapshot")
        except Closed:
            pass


class ChangeListeners:
    """The change callbacks of a Clone."""

    def __init__(self) -> None:
        self._all: list[Listening] = []

    def add(self, listening: Listening, start: int | str) -> None:
        """Begin to call a callback."""
        listening.begin(start)
        self._all.append(listening)

    def drop(self, listener: Callable[[Change], object]) -> bool:
        """Stop calling a callback, under any prefix. Return True if it was called."""
        found = [each for each in self._all if each.listener == listener]
        self._all = [each for each in self._all if each.listener != listener]
        for each in found:
            each.close()
        return bool(found)


def decorator(begin: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return a decorator that begins to call a function for changes, and gives the function back."""

    def listen(listener: Any) -> Any:
        begin(listener)
        return listener

    return listen
