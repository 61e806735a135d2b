"""Watches: each confirmed change once, in the servers' order, handed over off the agent's thread.

The agent puts whole columns into a watcher's queue and goes on; the watcher's own thread takes them apart. After a
resync the difference is delivered, so no net change is missed. A queue is bounded: a watcher that falls behind by more
than `queue_max` changes is told so by `Lagging`, unless it asked for `conflate`, where only the latest change of each
key is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress, count, repeat
from operator import gt
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic
from typing import Generic

from ..checks import wait_s
from ..codecs import Decoding, V
from ..core.events import Changed
from ..errors import Forked, Lagging
from ..starts import BEGIN, END, SNAPSHOT, KeyStart
from .changes import Change, Changes, change_with, changes_from, changes_of, joined, narrow, pick

TOGETHER = 1000  # changes that are joined; joining more costs more, in memory that is cold, than it saves


class WatchQueue:
    """Between the agent and one watcher; `whole`: all that is held lies under the prefix."""

    def __init__(
        self, prefix: str, conflate: bool, queue_max: int, start: KeyStart = END, *, whole: bool = False
    ) -> None:
        self.prefix = prefix
        self._inside = "" if whole else prefix  # what is to be looked for
        self._from_first = start == SNAPSHOT  # also what there was before the copy was complete for the first time
        self._after = start if isinstance(start, int) else 0
        # for what it missed: what comes is kept until that is here
        self._waits = start == BEGIN or isinstance(start, int)
        self.conflate = conflate
        self.queue_max = queue_max
        self.closed = False
        self.error: Exception | None = None
        self.columns: deque[Changed] = deque()
        self.latest: dict[str, tuple[bytes | None, int, bool]] = {}
        self.waiting = 0
        self.on_offer: Callable[[], None] | None = None  # for AsyncClone
        self._lock = Lock()
        self._sleepers = 0  # who waits at the bell and has not been rung for: one ring each
        self._bell: SimpleQueue[None] = SimpleQueue()

    def offer(self, *found: Changed) -> None:
        """Take what touches the prefix, as one: whoever waits is woken once; by the agent."""
        taken = [changed for each in found if (changed := self._wanted(each)).keys]
        if not taken:
            return
        with self._lock:
            if self.error is not None or self.closed:
                return
            for changed in taken:
                if changed.first:
                    self.preload(changed)
                elif self.conflate:
                    self._conflate(changed)
                elif self.error is None:
                    self._append(changed)
            self._ring()
        if self.on_offer is not None:
            self.on_offer()

    def _wanted(self, changed: Changed) -> Changed:
        if changed.first or self._after:
            changed = self._newer(changed)
        return narrow(changed, self._inside) if self._inside and changed.keys else changed

    def preload(self, changed: Changed) -> None:
        """Begin with what is held, however much it is; before anybody else knows this queue, or with the lock."""
        if not changed.keys:
            return
        if self.conflate:
            self._conflate(changed)
        else:
            self.columns.append(changed)
            self.waiting += len(changed.keys)
            self.queue_max += len(changed.keys)

    def _newer(self, changed: Changed) -> Changed:
        """What is not older than where this watch begins."""
        if changed.first:
            return changed if self._from_first else Changed([], [], 0)
        if type(changed.revisions) is int:
            return changed if changed.revisions > self._after else Changed([], [], 0)
        return pick(changed, list(map(gt, changed.revision_column(), repeat(self._after))))

    def begin(self, missed: list[Changed] | Exception) -> None:
        """What was missed since the revision at which this watch begins, or why that can't be had; by the agent."""
        with self._lock:
            self._waits = False
            came, self.columns = self.columns, deque()
            latest, self.latest = self.latest, {}
            if isinstance(missed, Exception):
                self.error, self.waiting = missed, 0
            elif self.error is None:
                for changed in missed:
                    self.preload(changed)
                self.columns += came
                self.latest = {**{k: v for k, v in self.latest.items() if k not in latest}, **latest}
            self._ring()
        if self.on_offer is not None:
            self.on_offer()

    def _conflate(self, changed: Changed) -> None:
        deque(map(self.latest.pop, changed.keys, repeat(None)), 0)  # a key's place is that of its latest record
        expired = list(map(set(changed.expiries).__contains__, range(len(changed.keys))))
        rows = zip(changed.values, changed.revision_column(), expired, strict=True)
        self.latest.update(zip(changed.keys, rows, strict=True))

    def _append(self, changed: Changed) -> None:
        self.waiting += len(changed.keys)
        if self.waiting > self.queue_max:
            self.error = Lagging(
                f"this watch of {self.prefix!r} fell {self.waiting} changes behind (queue_max is {self.queue_max}); "
                "watch again with start='snapshot', read faster, or use conflate=True"
            )
            self.columns.clear()
            self.waiting = 0
        else:
            self.columns.append(changed)

    def poll(self) -> Changed | None:
        """What there is, without waiting; raises what ended the watch."""
        with self._lock:
            return self._take()

    def _take(self) -> Changed | None:
        if self._waits and self.error is None:
            return None
        if self.latest:
            latest, self.latest = self.latest, {}
            values, revisions, expired = map(list, zip(*latest.values(), strict=True))
            return Changed(list(latest), values, revisions, expiries=list(compress(count(), expired)))
        if self.columns:
            found, n = [], 0
            while self.columns and n < TOGETHER:
                found.append(self.columns.popleft())
                n += len(found[-1].keys)
            self.waiting -= n
            return joined(found)
        if self.error is not None:
            raise self.error
        return None

    def take(self, timeout: float | None) -> Changed | None:
        """The next columns; None at the end, `TimeoutError` if nothing came."""
        timeout = wait_s(timeout)
        until = None if timeout is None else monotonic() + timeout
        while True:
            with self._lock:
                came = (self.columns or self.latest) and not self._waits
                if came or self.error is not None or self.closed:
                    return self._take()
                self._sleepers += 1
            try:
                self._bell.get(timeout=None if until is None else max(0.0, until - monotonic()))
            except Empty:
                self._leave()
                raise TimeoutError(f"no change under {self.prefix!r} within {timeout} s") from None

    def _ring(self) -> None:
        """Wake everybody who waits; a ring too many only makes somebody look again."""
        while self._sleepers:
            self._sleepers -= 1
            self._bell.put(None)

    def _leave(self) -> None:
        """Somebody waits no longer; if the ring is on its way, the next to wait gets it."""
        with self._lock:
            self._sleepers -= self._sleepers > 0

    @property
    def waits(self) -> bool:
        """Whether it is not known yet what was missed since the revision at which this begins."""
        return self._waits and self.error is None

    def close(self) -> None:
        """The end: what is queued can still be read."""
        with self._lock:
            self.closed = True
            self._ring()
        if self.on_offer is not None:
            self.on_offer()

    def forked(self) -> None:
        """This is a child process; nothing will come."""
        self._lock, self._bell = Lock(), SimpleQueue()
        self.error = Forked("this watch belongs to the parent process; make a Clone in the child")


class Watch(Generic[V]):
    """An iterator over changes; a context manager; `close()` ends it, from any thread.

    Several threads may iterate: each change goes to one of them.
    """

    def __init__(self, queue: WatchQueue, decoding: Decoding | None, end: Callable[[], None], owner: object) -> None:
        self.queue = queue
        self.decoding = decoding
        self._end = end
        self._owner = owner  # a watch keeps its Clone alive
        self._rest: deque[Change[V]] = deque()  # taken from the queue, and neither read nor decoded yet

    def __iter__(self) -> Watch[V]:
        return self

    def __next__(self) -> Change[V]:
        return self.get()

    def get(self, timeout: float | None = None) -> Change[V]:
        """The next change, waited for at most `timeout` seconds; `TimeoutError` else, StopIteration after close.

        Raises `Lagging` if it was read too slowly (make another watch), `BadValue` if the codec can't take a value
        (see `on_bad`).
        """
        while True:
            while (change := self._next()) is None:  # not in a handler: what is raised would seem to come of it
                changed = self.queue.take(timeout)
                if changed is None:
                    raise StopIteration
                self._rest.extend(changes_of(changed, None))
            if self.decoding is None:
                return change
            if (decoded := change_with(change, self.decoding)) is not None:
                return decoded

    def _next(self) -> Change[V] | None:
        try:
            return self._rest.popleft()
        except IndexError:  # looked at and taken in one step, as several threads may iterate
            return None

    def batches(self, timeout: float | None = None) -> Iterator[Changes[V]]:
        """Changes as columns: what came together, and if that was little, what came after it (up to 1,000 in all).

        For each change it costs about half of what one by one costs. `timeout` is for each; raises as `get` does. A
        batch with a value that the codec can't take is not given; another call goes on after it.
        """
        rest, self._rest = self._rest, deque()
        if rest:
            yield changes_from(rest, self.decoding)
        while (changed := self.queue.take(timeout)) is not None:
            yield changes_of(changed, self.decoding)

    def close(self) -> None:
        """No more changes; whoever waits for one is woken."""
        self.queue.close()
        self._end()

    def __enter__(self) -> Watch[V]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        queue = self.queue
        waiting = len(self._rest) + queue.waiting + len(queue.latest)
        return f"<Watch {queue.prefix!r}: {waiting} changes to be read{', closed' if queue.closed else ''}>"
