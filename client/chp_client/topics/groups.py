"""The requests of a client about groups: make, change, move or remove one, and get the facts of all of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from chp import columns
from chp.errors import BadInput
from chp.limits import DEFAULT
from chp.topics import check_group

from .. import checks
from ..errors import AlreadyThere, NoSuchGroup, NoSuchTopic, Refused
from ..port.ask import QuestionPort


def begin(topic: str, group: str, start: int, **settings: Any) -> dict[str, Any]:
    """Return the column that makes a group, or moves it to another start."""
    return {columns.GROUP: [topic, check_group(group), {"start": start, **settings}]}


class Keep(Enum):
    """The type of `KEEP`."""

    KEEP = "as it is"


# Stands for a setting that stays as it is.
KEEP = Keep.KEEP


# The settings that are whole numbers, and the highest number of each.
WHOLE = {
    "max_deliveries": DEFAULT.deliveries_max, "ack_timeout_s": 1 << 31, "lag_alarm_s": 1 << 31,
    "expire_after_s": 1 << 31,
}  # fmt: skip


def counting(**settings: Any) -> dict[str, Any]:
    """Return the settings of a group as they travel; raise `BadInput` for a number that can't be one."""
    for name, most in WHOLE.items():
        given = settings.get(name)
        if given is not None and (type(given) is not int or not 0 < given <= most):
            raise BadInput(f"{name} is a whole number from 1 to {most:,}, or left out, not {given!r:.40}")
    if settings.get("retry_after_s") is not None and settings.get("max_deliveries", 1) is None:
        raise BadInput("retry_after_s is for a group that counts deliveries; take both off, or give max_deliveries")
    if "retry_after_s" in settings:
        after_s = settings.pop("retry_after_s")
        if after_s is not None and (type(after_s) not in (int, float) or not 0.001 <= after_s <= DEFAULT.retry_s_max):
            raise BadInput(f"retry_after_s is 0.001 to {DEFAULT.retry_s_max:g} seconds, not {after_s!r:.40}")
        settings["retry_after_ms"] = None if after_s is None else round(after_s * 1000)
    return settings


def change(topic: str, group: str, **settings: Any) -> dict[str, Any]:
    """Return the column that changes settings of an existing group."""
    return {columns.GROUP: [topic, check_group(group), {"change": True, **settings}]}


def end(topic: str, group: str) -> dict[str, Any]:
    """Return the column that removes a group."""
    return {columns.GROUP: [topic, check_group(group), None]}


def groups_of(servers: Sequence[str], topic: str, timeout: float) -> list[dict[str, Any]]:
    """Return the facts of all groups of a topic, by name."""
    checks.wait_s(timeout)
    found: list[dict[str, Any]] = []
    with naming(topic), QuestionPort(servers, timeout) as port:
        while page := port.ask("", topic=topic, groups=found[-1]["name"] if found else "")["groups"]:
            found += page
    return list(map(_told, found))


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a group. Add the facts that a server leaves out for a group that counts no deliveries."""
    after_ms = facts.pop("retry_after_ms", None)
    counted = {"max_deliveries": None, "lag_alarm_s": None, "failing": 0, "deliveries": 1, "expire_after_s": None}
    return {**counted, **facts, "retry_after_s": None if after_ms is None else after_ms / 1000}


# The name has no capital, because callers use it as they use a function.
class naming:
    """A context manager that turns refusals about a topic or a group into errors such as `NoSuchGroup`."""

    def __init__(self, topic: str, group: str = "") -> None:
        self._topic, self._group = topic, group

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Refused):
            return
        what = f"group {self._group!r} of topic {self._topic!r}" if self._group else f"topic {self._topic!r}"
        if error.code == "topic":
            remedy, why = "its first message makes it, or `create` with settings", f"there is no topic {self._topic!r}"
            raise _explained(NoSuchTopic, why, remedy, error, self._topic) from None
        if error.code == "group":
            raise _explained(NoSuchGroup, f"there is no {what}", "`subscribe` makes it", error, self._group) from None
        if error.code == "there":
            remedy = "`configure` changes its settings" if self._group else "remove it first, or use it as it is"
            whose = self._group or self._topic
            raise _explained(AlreadyThere, f"{what} is there already", remedy, error, whose) from None


def _explained(kind: type[Refused], why: str, remedy: str, error: Refused, detail: str) -> Refused:
    """Return an error that names a remedy of this library. Its `text` has none, so that `chp` can add its own."""
    found = kind(f"{why}; {remedy}", error.code, detail, error.server)
    found.text = why
    return found
