"""A watch over several mounts: the watches of their Clones, read in turn by one reader.

Changes of one mount come in the order of its servers. Between two mounts there is no order. A portion of changes, as
`Watch.batches` yields it, is of one mount.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import not_
from threading import Condition
from time import monotonic
from typing import Any, NamedTuple

from ..agent.changes import of_mount, pick
from ..agent.watch import Watch
from ..checks import wait_s
from ..core.events import Changed


class Source(NamedTuple):
    """The watch of one mount."""

    mount: str
    watch: Watch[Any]
    # The mounts inside this one, whose keys are not shown.
    hidden: tuple[str, ...]


class _Bell:
    """A bell that the agents ring when changes came. It refers to no watch, so Python can free a dropped watch."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.rings = 0
        self.on_offer: Callable[[], None] | None = None

    def rang_since(self, rings: int) -> bool:
        """Return True if the bell has rung since its count was `rings`."""
        return self.rings != rings

    def ring(self) -> None:
        """Wake the readers. The agents call this."""
        with self.changed:
            self.rings += 1
            self.changed.notify_all()
        if (ring := self.on_offer) is not None:
            ring()


class MountedQueue:
    """The queues of several watches, which a `Watch` can read as one queue."""

    def __init__(self, prefix: str, sources: Sequence[Source]) -> None:
        self.prefix = prefix
        # The source that was read last stands at the end.
        self._sources = deque(sources)
        self._bell = _Bell()
        self.latest: dict[str, Any] = {}
        for source in sources:
            source.watch.queue.on_offer = self._bell.ring

    @property
    def on_offer(self) -> Callable[[], None] | None:
        """The function that is called when changes have come."""
        return self._bell.on_offer

    @on_offer.setter
    def on_offer(self, ring: Callable[[], None] | None) -> None:
        self._bell.on_offer = ring

    @property
    def closed(self) -> bool:
        """True if no changes come any more."""
        return all(source.watch.queue.closed for source in self._sources)

    @property
    def waiting(self) -> int:
        """The number of changes that wait to be read."""
        return sum(each.watch.queue.waiting + len(each.watch.queue.latest) for each in self._sources)

    def poll(self) -> Changed | None:
        """Return changes that came from one mount, or None. Raise the error that ended a mount's watch."""
        for _ in range(len(self._sources)):
            source = self._sources[0]
            self._sources.rotate(-1)
            while (changed := source.watch.queue.poll()) is not None:
                if source.hidden:
                    changed = pick(changed, list(map(not_, map(str.startswith, changed.keys, repeat(source.hidden)))))
                if changed.keys:
                    return of_mount(changed, source.mount)
        return None

    def take(self, timeout: float | None) -> Changed | None:
        """Wait for changes, and return them; None once all watches ended. Raise `TimeoutError` if no change came."""
        timeout = wait_s(timeout)
        until = None if timeout is None else monotonic() + timeout
        bell = self._bell
        while True:
            rings, closed = bell.rings, self.closed
            if (changed := self.poll()) is not None or closed:
                return changed
            with bell.changed:
                left = None if until is None else max(0.0, until - monotonic())
                if not bell.changed.wait_for(partial(bell.rang_since, rings), left):
                    raise TimeoutError(f"no change under {self.prefix!r} within {timeout} s")

    def close(self) -> None:
        """End the queues. Changes that wait can still be read."""
        for source in list(self._sources):
            source.watch.close()
