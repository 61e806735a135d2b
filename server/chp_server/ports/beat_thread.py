"""The thread that sends BEAT while a turn goes on: this process is alive. beat.py decides when, and with what.

The thread makes a socket of its own to the peer's P+3, as a socket belongs to one thread. A message without room is
dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

import zmq

from .. import logs
from ..core.pair.beat import BeatTimer
from .sockets import send_all

log = logs.get_log(__name__)
# Few messages wait for the peer, as it has to hear now that we live.
QUEUED_MAX = 4
END_S = 5.0


class BeatThread:
    """A thread that runs within the block; the thread of the turns makes it, and the new thread calls `on_stuck`."""

    def __init__(
        self,
        connected: Callable[[], zmq.Socket[bytes]],
        beat_timer: BeatTimer,
        on_stuck: Callable[[], None],
    ) -> None:
        self._connected, self._beat_timer, self._on_stuck = connected, beat_timer, on_stuck
        self._anew = threading.Event()
        self._turns_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chp-beats", daemon=True)

    def anew(self) -> None:
        """Connect to the peer anew, as it has another key."""
        self._anew.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        socket = self._connected()
        stuck = False
        try:
            while not self._ending.wait(self._beat_timer.beat_s / 2):
                if self._anew.is_set():
                    self._anew.clear()
                    socket.close(0)
                    socket = self._connected()
                now = time.monotonic()
                frames = self._beat_timer.due(now, time.clock_gettime(self._turns_clock))
                if frames is not None:
                    send_all(socket, [frames])
                if self._beat_timer.stuck(now) and not stuck:
                    log.warning("stuck in a turn; the other server is to serve")
                    self._on_stuck()
                stuck = self._beat_timer.stuck(now)
        finally:
            socket.close(0)
