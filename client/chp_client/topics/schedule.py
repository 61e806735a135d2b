"""Messages that a topic publishes later, or again, unless a key changes before (docs/topics.md).

    reminder = orders.schedule(b"pay", delay_s=1800, unless_changed="/orders/7")
    reminder.name                  the name for `cancel`; known at once
    reminder.wait(5)               wait until the pair has the message

The servers keep the time: the server that is active at that time publishes the message.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from chp.errors import BadInput
from chp.keys import check_key
from chp.limits import DEFAULT
from chp.topics import Headers, check_name, check_topic, pack_messages

from .. import checks
from ..agent.tickets import Ticket
from ..agent.writer import Writer
from ..core.events import Ack
from ..port.ask import QuestionPort

# The shortest interval of a repeated message, in seconds. A program should publish more frequent messages itself.
EVERY_S_MIN = 1.0
NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A message that waits for its time, as `Topic.scheduled` tells it.

    `every_s` is None for a message that is published once. `unless_changed` is the key whose change drops the message,
    or None. `size` is the size of the value in bytes.
    """

    name: str
    due: datetime
    every_s: float | None
    unless_changed: str | None
    key: str | None
    size: int


class Scheduled:
    """The result of `Topic.schedule`: the name of a message that waits for its time, and the ticket of its batch."""

    def __init__(self, topic: str, name: str, ticket: Ticket) -> None:
        self.topic, self.name, self.ticket = topic, name, ticket

    def wait(self, timeout: float | None = None) -> Ack:
        """Wait until the pair has the message. Raises `AlreadyThere` if the topic has one of that name already."""
        return self.ticket.wait(timeout)

    def __repr__(self) -> str:
        return f"<Scheduled {self.name!r} of topic {self.topic!r}>"


def entry(
    writer: Writer, topic: str, value: Any, key: str | None, *, name: str | None, delay_s: float | timedelta | None,
    at: datetime | None, every_s: float | timedelta | None, unless_changed: str | None, headers: Headers | None,
) -> list[Any]:  # fmt: skip
    """Return a checked entry of the column "schedule"; its second item is the name."""
    carried = writer.carried(headers)
    keys = None if key is None else [check_key(key)]
    body = pack_messages(keys, [writer.encoded(value)], [carried] if carried else None)
    chosen = secrets.token_hex(NAME_BYTES) if name is None else check_name(name)
    unless = None if unless_changed is None else check_key(unless_changed)
    return [check_topic(topic), chosen, _when(delay_s, at), _every(every_s), unless, body]


def _when(delay_s: float | timedelta | None, at: datetime | None) -> int:
    """Return the time in milliseconds since 1970, or a delay in milliseconds as a negative number."""
    if (delay_s is None) == (at is None):
        raise BadInput("give delay_s or at: when the message is to be published")
    if at is None:
        ms = round(1000 * _seconds("delay_s", delay_s, 0.0))
        # A delay of 0 becomes the time 1 ms after 1970, which is over, so the message is published at once.
        return -ms or 1
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise BadInput(
            f"at={at!r:.60} is not a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"
        )
    ms = round(at.timestamp() * 1000)
    late_s = datetime.now(UTC).timestamp() - ms / 1000
    if late_s > 0:
        raise BadInput(f"at={at.isoformat()} was {late_s:.1f} s ago; publish the message, or give a time to come")
    if -late_s > DEFAULT.delay_s_max:
        raise BadInput(f"at={at.isoformat()} is more than a hundred years away; give an earlier time")
    return ms


def _every(every_s: float | timedelta | None) -> int:
    return 0 if every_s is None else round(1000 * _seconds("every_s", every_s, EVERY_S_MIN))


def _seconds(name: str, given: object, least: float) -> float:
    value = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= DEFAULT.delay_s_max:
        raise BadInput(f"{name}={given!r:.60} is not a number of seconds from {least:g} to a hundred years")
    return float(value)


def cancellation(topic: str, name: str) -> list[str]:
    """Return a checked entry of the column "cancel"."""
    return [check_topic(topic), check_name(name)]


def scheduled_of(
    servers: Sequence[str], topic: str, limit: int, after: str | None, timeout: float
) -> list[ScheduledMessage]:
    """Return the next `limit` scheduled messages of a topic by name."""
    checks.wait_s(timeout)
    checks.page(limit, after)
    found: list[ScheduledMessage] = []
    with QuestionPort(servers, timeout) as port:
        while len(found) < limit:
            page = port.ask("", topic=topic, scheduled=found[-1].name if found else after or "")["scheduled"]
            if not page:
                break
            found += map(_told, page)
    return found[:limit]


def _told(row: list[Any]) -> ScheduledMessage:
    name, due_ms, every_ms, unless, key, size = row
    due = datetime.fromtimestamp(due_ms / 1000, UTC)
    return ScheduledMessage(name, due, every_ms / 1000 or None, unless, key or None, size)
