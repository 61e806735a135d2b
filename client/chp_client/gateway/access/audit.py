"""The audit of a gateway: a JSON line for the first admission of each token, and lines for denials.

    {"time": "...", "audit": "denied", "user": "alice", "token": "1a2b3c4d", "address": "10.0.0.7", "via": "rq9T=.x2",
     "what": "PUT /v1/keys/secret", "verdict": "user 'alice' may not write '/secret'; ask root"}

`token` is the beginning of its hash, as `chp access show` has it. `via` is the beginning of the gateway's own key, by
which the audit of the servers names the gateway. In ten seconds only a few denials of one user are written, and the
others are counted (`more`). The file is opened again after it was moved away, as log rotation does.
"""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import TypeVar

from chp.access import TOKEN_SHOWN

from .caller import Caller

log = logging.getLogger("chp_client")
STREAM = "-"
# At most this many tokens, and as many users, are remembered.
SEEN_MAX = 10_000
# At most this many denials of one user are written within a window.
FEW, WINDOW_S = 5, 10.0
WHAT_MAX = 200
Value = TypeVar("Value")


class _PrivateFile(WatchedFileHandler):
    """A file that only our own user reads. The gateway goes on if it can't be written."""

    def _open(self) -> TextIOWrapper:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return open(fd, "a", encoding="utf-8")

    # The logging module calls this method by this name.
    def handleError(self, record: logging.LogRecord) -> None:
        """Log that a line can't be written."""
        log.error("the audit %s can't be written", self.baseFilename, exc_info=True)


class GatewayAudit:
    """The audit of one gateway. `place` is a file, or "-" for stderr; with "" nothing is written."""

    def __init__(self, place: str = "", via: str = "") -> None:
        """Open the file; raise `OSError` if it can't be written."""
        self._via = via
        self._handler: logging.Handler | None = None
        if place:
            self._handler = logging.StreamHandler() if place == STREAM else _PrivateFile(place)
        self._known: dict[str, None] = {}
        # For each user, the begin of its window and the count of its denials.
        self._denied: dict[str, tuple[float, int]] = {}

    def knows(self, caller: Caller) -> bool:
        """Return True if the admission of a caller needs no line."""
        return self._handler is None or not caller.hashed or caller.hashed in self._known

    def admitted(self, caller: Caller, address: str) -> None:
        """Write that a token was admitted, once for each token."""
        if self.knows(caller):
            return
        _remember(self._known, caller.hashed, None)
        self._write("token", caller, address, what="connects", verdict="let in")

    def denied(self, caller: Caller, address: str, what: str, why: str) -> None:
        """Write that a caller was denied something."""
        if self._handler is None:
            return
        now = time.monotonic()
        since, count = self._denied.get(caller.user, (now, 0))
        more = max(0, count - FEW)
        if now - since > WINDOW_S:
            since, count = now, 0
        _remember(self._denied, caller.user, (since, count + 1))
        if count < FEW:
            held = more if count == 0 and more else None
            self._write("denied", caller, address, what=what[:WHAT_MAX], verdict=why, more=held)

    def _write(self, kind: str, caller: Caller, address: str, **more: str | int | None) -> None:
        said = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "audit": kind, "user": caller.user or None,
            "token": caller.hashed[:TOKEN_SHOWN] or None, "address": address or None, "via": self._via or None, **more,
        }  # fmt: skip
        line = json.dumps({name: value for name, value in said.items() if value is not None})
        assert self._handler is not None, "asked for"
        self._handler.handle(logging.LogRecord("chp_client.audit", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        """Stop writing."""
        if self._handler is not None:
            self._handler.close()


def _remember(kept: dict[str, Value], key: str, value: Value) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > SEEN_MAX:
        del kept[next(iter(kept))]
