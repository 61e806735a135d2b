"""Who asked for what of an operator's commands, until it is answered: what an audit is told then.

A backup or new rules are answered turns later. Bounded: of what is never answered, the oldest is told as that. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

ASKED_MAX = 1024  # that wait for their answers
NAMED = ("name", "end", "force")  # the options that say of what
WORD_MAX = 200


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """Who, and what."""

    who: dict[str, str]
    what: str


def named(command: str, options: dict[str, Any]) -> str:
    """A command with what it is for."""
    said = (options[name] for name in NAMED if options.get(name))
    words = (word.hex() if isinstance(word, bytes) else "force" if word is True else str(word) for word in said)
    return " ".join([command, *words])[:WORD_MAX]


class AuditLog:
    """What is under way."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[bytes, int], PendingCommand] = OrderedDict()

    def asks(self, identity: bytes, request_id: int, asked: PendingCommand) -> PendingCommand | None:
        """A command; another one that is given up for it, if there is no room for both."""
        self._asked[identity, request_id] = asked
        return self._asked.popitem(last=False)[1] if len(self._asked) > ASKED_MAX else None

    def answered(self, identity: bytes, request_id: int) -> PendingCommand | None:
        """The command that an answer is to, if it is to one."""
        return self._asked.pop((identity, request_id), None) if self._asked else None
