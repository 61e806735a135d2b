"""One question to a server's port P, from its ICANHAZ to the last message of the answer (SPEC.md, section 17).

    frames      the frames to send first
    hear        takes a message of P and returns it, or None if it answers another question; raises `Refused`
    granted     returns the frames that ask for more, or None while the server still has room to send

This module is pure. port/connection.py has the sockets.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from chp.batch import decode, packb
from chp.errors import BadFrame
from chp.headers import Header, Kthxbai, Messages, Refused, Reply, name_of, request_of
from chp.messages import ICANHAZ
from chp.numbers import describe
from chp.versions import VERSION

from .. import errors


class Told(NamedTuple):
    """One message of an answer; `number` is the frame that holds its number."""

    number: bytes
    header: Header
    items: list[Any]


class Question:
    """One question: a subtree or a command, and its options.

    Each time that `grant` messages were taken, it grants room for as many more.
    """

    def __init__(self, request_id: int, subject: bytes, options: dict[str, Any], *, grant: int = 1) -> None:
        self.id = request_id
        # True once the last message of the answer was heard.
        self.over = False
        self._subject, self._grant = subject, grant
        self._taken = self._granted_for = 0
        self.frames = [ICANHAZ, subject, packb({"chp": VERSION, "id": request_id, **options})]

    def hear(self, server: str, frames: list[bytes]) -> Told | None:
        """Return the message from `server`, or None if it answers another question.

        Raises `BadFrame` for a message that is not CHP/2, and `Refused` for a refusal.
        """
        if len(frames) != 5:
            raise BadFrame(f"{server} answered with {len(frames)} frames; CHP/2 has 5: is it a CHP/1 server?")
        header, items = read(server, frames[4])
        request = request_of(header)
        if request is None:
            raise BadFrame(f"{server} sent {name_of(header)}, which answers nothing, where an answer was due")
        if request != self.id:
            return None
        if isinstance(header, Refused):
            raise refused(server, header)
        # MESSAGES without messages costs no credit.
        self._taken += not isinstance(header, Messages) or bool(items)
        self.over = isinstance(header, Kthxbai | Reply)
        return Told(frames[1], header, items)

    def granted(self) -> list[bytes] | None:
        """Return the frames that grant more room, each time that enough messages were taken."""
        if self.over or self._taken - self._granted_for < self._grant:
            return None
        self._granted_for += self._grant
        return [ICANHAZ, self._subject, packb({"chp": VERSION, "id": self.id, "more": self._grant})]


def read(server: str, body: bytes) -> tuple[Header, list[Any]]:
    """Return the header and the items of a message. `BadFrame` names the server that sent an unreadable one."""
    try:
        return decode(body)
    except BadFrame as error:
        text = f"{server} sent what can't be read: {error}; is one of the two of an older version?"
        raise BadFrame(text) from None


def refused(server: str, header: Refused) -> errors.Refused:
    """Return the error for a REFUSED.

    The detail of "bad" is a whole text. The detail of "retained" is a revision.
    """
    detail = header.detail
    shown = describe(detail) if header.code == "retained" and type(detail) is int else detail
    why = str(detail) if header.code == "bad" else f"({header.code}) {shown}"
    return errors.Refused(f"refused: {why}", header.code, header.detail, server)


def reply_of(server: str, told: Told) -> Reply:
    """Return the single message that answers a question for facts."""
    if not isinstance(told.header, Reply):
        raise BadFrame(
            f"{server} answered with {name_of(told.header)} where a REPLY was due; is it of an older version?"
        )
    return told.header
