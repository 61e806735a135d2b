"""The audit: one JSON line for each event that an auditor may ask about later (SPEC.md, section 36).

    {"time": "...", "server": "primary-5556", "audit": "access", "user": "root", "key": "rq9T=.x2",
     "address": "10.0.0.7", "number": "3.41", "what": ["+ user bob read /pub/"], "verdict": "done"}

    admin     a command of an operator, when it is answered           access    new rules, line by line
    denied    what the rules denied, or an unknown key               key       a key that is admitted for the first time

Clients can cause denials and questions for the status at will. These are written a few times in ten seconds for each
user, and then counted (`more`). To rotate the file, move it away: the audit then opens a new file of that name. If a
line can't be written, the log says so, and serving goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from chp.numbers import describe

from .. import logs
from ..core.updates.turn import Fact
from ..exits import CannotStart, Exit
from ..logs import RateLimiter

log = logs.get_log(__name__)
ADMIN, ACCESS, DENIED, KEY = "admin", "access", "denied", "key"
STREAM = "-"
# A write checks after this time whether the file was moved away.
LOOK_S = 1.0
# Programs send this admin command again and again, so its lines are limited.
_OFTEN = "status"
_KINDS = {"admin": ADMIN, "access changed": ACCESS, "denied": DENIED}
_WHO = ("user", "key", "address")


class Audit:
    """The file of the audit, or standard error. Lines are only added."""

    def __init__(self, path: str, server: str) -> None:
        self._path, self._server = path, server
        self._limiter = RateLimiter()
        self._fd = -1
        self._look_at = 0.0
        if path != STREAM:
            try:
                self._open()
            except OSError as error:
                why = f"audit {path} can't be written: {error.strerror or error}"
                raise CannotStart(Exit.USAGE, f"{why}; give a file in a directory that is there") from error

    def note(self, fact: Fact, number: int) -> None:
        """Write a fact of the core if it belongs to the audit; `number` is the core's present number."""
        if (kind := _KINDS.get(fact.event)) is not None:
            said = fact.fields
            verdict = said.get("verdict", "denied" if kind == DENIED else "done")
            who = {name: said[name] for name in _WHO if name in said}
            at = describe(said.get("number", number))
            self.tell(kind, what=said.get("changes", said.get("what")), verdict=verdict, number=at, **who)

    def tell(self, kind: str, *, what: Any, verdict: str, **fields: Any) -> None:
        """Write what a user did or was denied."""
        line = {name: fields.pop(name, None) or None for name in _WHO}
        often = kind == DENIED or what == _OFTEN
        held = self._limiter.admit(f"{kind} {line['user']}", time.monotonic()) if often else 0
        if held is not None:
            more = {"more": held} if held else {}
            self._write({"audit": kind, **line, **fields, "what": what, "verdict": verdict, **more})

    def flush(self, *, everything: bool = False) -> None:
        """Write how many lines were held back."""
        for kind, held in self._limiter.overdue(time.monotonic(), everything=everything):
            name, _, user = kind.partition(" ")
            self._write(
                {"audit": name, "user": None if user == "None" else user, "what": "the same again", "more": held}
            )

    def close(self) -> None:
        """Write what was held back, and close the file."""
        self.flush(everything=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, fields: Mapping[str, Any]) -> None:
        line = {"time": logs.stamp(time.time()), "server": self._server, **fields}
        text = json.dumps({name: said for name, said in line.items() if said is not None}) + "\n"
        try:
            if self._path == STREAM:
                sys.stderr.write(text)
                sys.stderr.flush()
            else:
                self._reopen(time.monotonic())
                os.write(self._fd, text.encode())
        except OSError as error:
            log.limited("the audit can't be written", "error", file=self._path, why=error.strerror or str(error))

    def _reopen(self, now: float) -> None:
        """Open a new file if the present one was moved away."""
        if now < self._look_at and self._fd >= 0:
            return
        self._look_at = now + LOOK_S
        ours = os.fstat(self._fd) if self._fd >= 0 else None
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            named = None
        if ours is None or named is None or (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino):
            self._open()

    def _open(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
