"""Messages to systemd, if it asks for them: datagrams to the socket that NOTIFY_SOCKET names (sd_notify(3)).

    READY=1      once this server serves, or follows and is in sync; STATUS= is the line that /ready has
    WATCHDOG=1   from turns, three times in WATCHDOG_USEC: systemd ends a server that makes no turns
    STOPPING=1   when it ends

These messages never hold up the server or end it: a datagram that does not go out at once is dropped.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping

from .. import logs

log = logs.get_log(__name__)
# This many messages are sent for each one that systemd needs: one may be dropped, one may be late.
IN_TIME = 3


class Supervisor:
    """The messages of one process to systemd; without systemd it sends none."""

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
        """True if systemd listens."""
        return self._socket is not None

    def turned(self, now: float) -> None:
        """Note that a turn was made, or that a turn that waits for room goes on."""
        if now >= self._due:
            self._due = now + self._every_s
            self._say("WATCHDOG=1")

    def stands(self, ready: bool, line: str) -> None:
        """Send the state of the server; `ready` is sent once, as systemd waits for it at the start only."""
        first = ready and not self._ready
        if line != self._line or first:
            self._line, self._ready = line, self._ready or ready
            self._say(f"STATUS={line}" + ("\nREADY=1" if first else ""))

    def stopping(self) -> None:
        """Say that the server ends, and makes no turns any more."""
        self._due = math.inf
        self._say("STOPPING=1")

    def close(self) -> None:
        """Close the socket; later messages are dropped."""
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
    """Return the address in NOTIFY_SOCKET as a socket takes it: a path, or an abstract name; "" for another kind."""
    if named and named[0] not in "/@":
        log.warning("NOTIFY_SOCKET is of a kind that is not spoken", named=named, known="/path, @name")
        return ""
    return f"\0{named[1:]}" if named.startswith("@") else named


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Return the time in which systemd wants to hear of a turn; infinity if it does not ask this process."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    asked = usec.isascii() and usec.isdigit() and int(usec) > 0
    return int(usec) / 1e6 if asked and pid in ("", str(os.getpid())) else math.inf
