"""What systemd is told, if it asks: sd_notify(3), which is a datagram to the socket that NOTIFY_SOCKET names.

    READY=1      once this server serves, or follows and is in sync; STATUS= is the line that /ready has
    WATCHDOG=1   out of turns, three times in the time that WATCHDOG_USEC has: a server that makes none is ended
    STOPPING=1   when it ends

Nothing of it holds up the server or ends it: a datagram that does not go out at once is dropped.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping

from .. import logs

log = logs.get_log(__name__)
IN_TIME = 3  # of them may come for each that has to: one may be dropped, one may be late


class Supervisor:
    """The line to systemd of one process; one that nobody listens to says nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._every_s = _watchdog_s(environ) / IN_TIME
        self._due = -math.inf if self._every_s < math.inf else math.inf
        self._ready, self._line = False, ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        if self._socket is not None:
            self._socket.setblocking(False)

    @property
    def listens(self) -> bool:
        """Whether somebody does."""
        return self._socket is not None

    def turned(self, now: float) -> None:
        """A turn was made, or one that waits for room goes on."""
        if now >= self._due:
            self._due = now + self._every_s
            self._say("WATCHDOG=1")

    def stands(self, ready: bool, line: str) -> None:
        """How the server stands; `ready` is said once, as systemd waits for it at the start only."""
        first = ready and not self._ready
        if line != self._line or first:
            self._line, self._ready = line, self._ready or ready
            self._say(f"STATUS={line}" + ("\nREADY=1" if first else ""))

    def stopping(self) -> None:
        """It ends, and makes no turns any more."""
        self._due = math.inf
        self._say("STOPPING=1")

    def close(self) -> None:
        """Say no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, text: str) -> None:
        if self._socket is not None:
            try:
                self._socket.sendto(text.encode(), self._address)
            except OSError as error:
                log.limited("systemd did not hear it", said=text, why=str(error))


def _address(named: str) -> str:
    """A path, or a name of the abstract namespace, as a socket takes it; of another kind nobody speaks to us."""
    if named and named[0] not in "/@":
        log.warning("NOTIFY_SOCKET is of a kind that is not spoken", named=named, known="/path, @name")
        return ""
    return f"\0{named[1:]}" if named.startswith("@") else named


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """In what time systemd wants to hear of a turn; for ever if it does not ask this process."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    asked = usec.isascii() and usec.isdigit() and int(usec) > 0
    return int(usec) / 1e6 if asked and pid in ("", str(os.getpid())) else math.inf
