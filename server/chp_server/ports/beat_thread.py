"""The thread that sends BEAT to the peer during a long turn, to show that this process is alive.

beat.py decides when BEAT is sent and what it says. The thread makes a socket of its own to the peer's P+3, because a
socket belongs to one thread. A BEAT for which the socket has no room is dropped.
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
# At most this many BEATs wait for the peer: an old BEAT does not show that this process is alive now.
QUEUED_MAX = 4
END_S = 5.0


class BeatThread:
    """The thread that sends BEAT; it runs within the `with` block.

    The thread of the turns has to create this object. The BEAT thread calls `on_stuck` when a turn is stuck.
    """

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
        """Let the thread replace its socket to the peer by a new one."""
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
