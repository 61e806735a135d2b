"""What a client says and asks of groups: making one, moving it, removing it, what is known of all of a topic's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chp import columns
from chp.topics import check_topic

from .. import checks
from ..errors import AlreadyThere, NoSuchGroup, NoSuchTopic, Refused
from ..port.ask import QuestionPort


def begin(topic: str, group: str, start: int, **settings: Any) -> dict[str, Any]:
    """The column that makes a group, or moves it."""
    return {columns.GROUP: [topic, check_topic(group), {"start": start, **settings}]}


def end(topic: str, group: str) -> dict[str, Any]:
    """The column that removes it."""
    return {columns.GROUP: [topic, check_topic(group), None]}


def groups_of(servers: Sequence[str], topic: str, timeout: float) -> list[dict[str, Any]]:
    """Return the facts of all groups of a topic, by name."""
    checks.wait_s(timeout)
    found: list[dict[str, Any]] = []
    with naming(topic), QuestionPort(servers, timeout) as port:
        while page := port.ask("", topic=topic, groups=found[-1]["name"] if found else "")["groups"]:
            found += page
    return found


class naming:  # used as a function is
    """Turns the codes of refusals that name a topic, or a group, into errors of their own."""

    def __init__(self, topic: str, group: str = "") -> None:
        self._topic, self._group = topic, group

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Refused):
            return
        what = f"group {self._group!r} of topic {self._topic!r}" if self._group else f"topic {self._topic!r}"
        if error.code == "topic":
            text = f"there is no topic {self._topic!r}"
            raise NoSuchTopic(text, "topic", self._topic, error.server) from None
        if error.code == "group":
            raise NoSuchGroup(f"there is no {what}", "group", self._group, error.server) from None
        if error.code == "there":
            raise AlreadyThere(f"{what} is there already", "there", self._group or self._topic, error.server) from None
