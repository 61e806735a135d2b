"""A thread for the application's own callbacks, started when there is the first one: never the agent's.

Listeners of states and lags run there, and callbacks of tickets. One that raises is logged and goes on being called;
one that blocks delays only other callbacks. Any of them may set, wait for a set, and close the Clone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread

from ..core.events import State

log = logging.getLogger("chp_client")
Listener = Callable[[State], object]


class Dispatcher:
    """Calls listeners in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._starting = Lock()
        self.listeners: list[Listener] = []
        self.lag: Callable[[float], object] = lambda _lag_s: None  # the Clone is too far behind; by the agent

    def state(self, state: State) -> None:
        """The state changed; by the agent."""
        for listener in self.listeners:
            self.put(partial(listener, state))
        if state is State.CLOSED and self._thread is not None:
            self._queue.put(None)

    def later(self, callback: Callable[[float], object]) -> Callable[[float], object]:
        """What is called at once, and has the thread call the application's."""
        return lambda lag_s: self.put(partial(callback, lag_s))

    def end(self, timeout: float) -> None:
        """Wait until what was called for before the Clone closed has been called, unless a callback asks."""
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join(timeout)

    def put(self, callback: Callable[[], object]) -> None:
        """Call it, after what was put before; by the agent, or whose callback came when its ticket was just settled."""
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="chp-dispatch", daemon=True)
                self._thread.start()
        self._queue.put(callback)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            call_logged(callback)


def call_logged(callback: Callable[[], object]) -> None:
    """Call something of the application's; what it raises, even to end the program, is only logged."""
    try:
        callback()
    except BaseException:
        log.exception("a listener of a Clone, or a callback of a ticket, raised")
