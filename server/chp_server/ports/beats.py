"""The thread that lets a server say that it lives while a turn goes on; pulse.py decides when, and what.

It is given a socket of its own to the peer's P+3, as a socket belongs to one thread. What there is no room for is not
sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

import zmq

from chp.addresses import is_ipv6

from ..core.pair.pulse import Pulse
from ..shell import logs
from .sockets import send_all

log = logs.get_log(__name__)
QUEUED_MAX = 4  # a peer that is to hear that we live has to hear it now
END_S = 5.0


class Beats:
    """Runs within its block, made by the thread that takes the turns; `on_stuck` is called in the other one."""

    def __init__(self, socket: zmq.Socket[bytes], peer: str, pulse: Pulse, on_stuck: Callable[[], None]) -> None:
        self._socket, self._peer, self._pulse, self._on_stuck = socket, peer, pulse, on_stuck
        self._turns_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chp-beats", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        socket = self._socket
        socket.ipv6 = is_ipv6(self._peer)
        socket.connect(self._peer)
        stuck = False
        try:
            while not self._ending.wait(self._pulse.beat_s / 2):
                now = time.monotonic()
                frames = self._pulse.due(now, time.clock_gettime(self._turns_clock))
                if frames is not None:
                    send_all(socket, [frames])
                if self._pulse.stuck(now) and not stuck:
                    log.warning("stuck in a turn; the other server is to serve")
                    self._on_stuck()
                stuck = self._pulse.stuck(now)
        finally:
            socket.close(0)
