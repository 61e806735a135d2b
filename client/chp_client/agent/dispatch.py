"""A thread for the application's own callbacks: listeners of states and lags, and callbacks of tickets.

It starts with the first callback, and it is never the agent's thread. A callback that raises is logged, and is called
again for the next event. A callback that blocks delays only other callbacks. Each of them may set, wait for a set, and
close the Clone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread

from ..core.events import State
from ..locks import Lock

log = logging.getLogger("chp_client")
Listener = Callable[[State], object]


class Dispatcher:
    """A queue of callbacks, and the thread that calls them in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._starting = Lock()
        self.listeners: list[Listener] = []
        # The agent calls this when the Clone lags too much.
        self.lag: Callable[[float], object] = lambda _lag_s: None

    def state(self, state: State) -> None:
        """Tell the listeners a new state. The agent calls this."""
        for listener in self.listeners:
            self.put(partial(listener, state))
        if state is State.CLOSED and self._thread is not None:
            self._queue.put(None)

    def later(self, callback: Callable[[float], object]) -> Callable[[float], object]:
        """Return a function that returns at once, and lets the thread call `callback`."""
        return lambda lag_s: self.put(partial(callback, lag_s))

    def end(self, timeout: float) -> None:
        """Wait until the callbacks that were queued before the Clone closed have run; return at once in a callback."""
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(timeout)

    def put(self, callback: Callable[[], object]) -> None:
        """Queue a callback. The agent calls this, or a thread that adds a callback to a ticket being settled."""
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="chp-dispatch", daemon=True)
                self._thread.start()
        self._queue.put(callback)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            call_logged(callback)


def call_logged(callback: Callable[[], object]) -> None:
    """Call a callback of the application. Log what it raises, even SystemExit."""
    try:
        callback()
    except BaseException:
        log.exception("a listener of a Clone, or a callback of a ticket, raised")
