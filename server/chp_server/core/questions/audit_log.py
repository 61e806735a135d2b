"""The admin commands that wait for an answer, so that the audit can tell each command with its answer.

A backup, or a change of rules, is answered some turns later. At most `ASKED_MAX` commands are remembered. If there are
more, the oldest one is given up, and the audit tells it as a command without an answer. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

# The number of commands that may wait for an answer.
ASKED_MAX = 1024
# The options that say what a command is for.
NAMED = ("name", "end", "force")
WORD_MAX = 200


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command that waits for its answer: its sender, and its text."""

    who: dict[str, str]
    what: str


def named(command: str, options: dict[str, Any]) -> str:
    """Return the text of a command and the options that say what it is for."""
    said = (options[name] for name in NAMED if options.get(name))
    words = (word.hex() if isinstance(word, bytes) else "force" if word is True else str(word) for word in said)
    return " ".join([command, *words])[:WORD_MAX]


class AuditLog:
    """The commands that wait, by the connection and the id of the request."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[bytes, int], PendingCommand] = OrderedDict()

    def asks(self, identity: bytes, request_id: int, asked: PendingCommand) -> PendingCommand | None:
        """Remember a command; return the oldest one if it has to make room."""
        self._asked[identity, request_id] = asked
        return self._asked.popitem(last=False)[1] if len(self._asked) > ASKED_MAX else None

    def answered(self, identity: bytes, request_id: int) -> PendingCommand | None:
        """Forget the command that is answered, and return it; None if the request was no admin command."""
        return self._asked.pop((identity, request_id), None) if self._asked else None
