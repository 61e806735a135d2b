"""A wait of a publisher until a group has acknowledged the messages of a ticket, or put them aside.

    topic.publish(b"3 apples", key="alice").consumed("billing").wait(30)

The ticket's acknowledgement has the revision of the record that brought the messages. The client searches the topic for
that revision once, from its end. So it finds the offsets of the messages, and their slots. Then one thread asks the
servers for the positions of the group, for all waits of the Clone for this group (group_watch.py). Acknowledgements of
a slot come in order, so a message is consumed once the position of its slot is above its offset. A server tells a
position only after the passive has it too, so a failover does not undo it.

The search does not find a message that the topic keeps no more, or that got another offset after a split. Then the
group has to consume all messages that the topic has at that time. If the message is known to be among those that the
topic has let go, the group has to consume only these.

The wait ends with an error if the message can't come to the group: the group began behind it, or the topic was made
again without it. For a message that is not found, the error comes only if the topic has all its messages from offset 0
on, and they are of the message's epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from time import monotonic
from typing import Any

from chp.errors import BadInput
from chp.topics import check_group

from ..agent.tickets import Ticket
from ..agent.writer import Writer
from ..checks import wait_s
from ..core.events import Ack
from .group_watch import GroupWait, GroupWatch, watch_group

# The first question to the servers gets at least this long, even if the time of the wait is nearly over.
LOOK_S_MIN = 0.5


class Consumption:
    """The promise that a group has consumed the messages of a ticket, made by `Ticket.consumed`.

    `of_tasks` is True for a ticket of an `AsyncClone`: then `wait`, which blocks, is refused on an event loop.
    """

    def __init__(
        self,
        ticket: Ticket,
        group: str,
        writer: Writer,
        servers: Callable[[], Sequence[str]],
        *,
        of_tasks: bool = False,
    ) -> None:
        assert ticket.published is not None, "a ticket of published messages"
        self._ticket, self._group, self._of_tasks = ticket, check_group(group), of_tasks
        self._published, self._writer, self._servers = ticket.published, writer, servers

    def wait(self, timeout: float | None = None) -> Ack:
        """Wait at most `timeout` seconds until the group has acknowledged each message, or put it aside.

        Returns the acknowledgement of the messages. Raises `TimeoutError`, `NoSuchGroup`, `NoSuchTopic`, `Closed`,
        `Full`, and what `Ticket.wait` raises.
        """
        limit = wait_s(timeout)
        if self._of_tasks and _on_a_loop():
            text = "await asyncio.wait_for(ticket.consumed(group), timeout)"
            raise BadInput(f"`wait` would block the event loop of this AsyncClone; await the promise: {text}")
        until = None if limit is None else monotonic() + limit
        ack = self._ticket.wait(limit)
        waiting, watch = self._begin(ack)
        try:
            if until is not None:
                waiting.asked.wait(max(LOOK_S_MIN, until - monotonic()))
            waiting.reached.result(None if until is None else max(0.0, until - monotonic()))
        except TimeoutError:
            if waiting.reached.done():
                waiting.reached.result()
                return ack
            raise self._overdue(limit, waiting) from None
        finally:
            watch.leave(waiting)
        return ack

    def __await__(self) -> Generator[Any, None, Ack]:
        """Wait in a task: `await asyncio.wait_for(ticket.consumed("billing"), 30)`."""
        return self._awaited().__await__()

    async def _awaited(self) -> Ack:
        ack = await self._ticket
        waiting, watch = self._begin(ack)
        try:
            await asyncio.wrap_future(waiting.reached)
        finally:
            watch.leave(waiting)
        return ack

    def _begin(self, ack: Ack) -> tuple[GroupWait, GroupWatch]:
        waiting = GroupWait(self._published, ack.revision)
        return waiting, watch_group(self._writer, self._servers, self._published.topic, self._group, waiting)

    def _overdue(self, limit: float | None, waiting: GroupWait) -> TimeoutError:
        return TimeoutError(f"within {limit or 0:g} s no acknowledgement of {self} came; {waiting.last}")

    def __str__(self) -> str:
        published = self._published
        messages = "the message" if published.count == 1 else f"the {published.count:,} messages"
        return f"{messages} of this ticket in topic {published.topic!r} for group {self._group!r}"

    def __repr__(self) -> str:
        return f"<Consumption of {self}>"


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
