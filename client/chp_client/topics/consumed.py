"""A wait of a publisher for a group: until it has acknowledged the messages of a ticket, or put them aside.

    topic.publish(b"3 apples", key="alice").consumed("billing").wait(30)

The ticket's acknowledgement has the revision of the record that brought the messages. The topic is searched for that
revision once, from its end, which gives the offsets of the messages and so their slots. Then the servers are asked for
the places of the group: after 20 ms, and ever less often, until once a second. Acknowledgements of a slot come in
order, so a message is consumed once the place of its slot is above its offset. A place is told only after the passive
has it too, so what was consumed stays so over a failover.

A message that the topic keeps no more, and one that got another offset after a split, is not found. Then all that the
topic has at that time has to be consumed; or all that it has let go, if the message is known to be among it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from math import inf
from threading import Event
from time import monotonic
from typing import Any

from chp.numbers import UNKNOWN, Revision, epoch_of
from chp.topics import ALL_SLOTS, check_topic, pack_slots, slots_of, unpack_slots

from ..agent.tickets import Ticket
from ..checks import wait_s
from ..core.events import Ack
from ..errors import Closed, NoSuchGroup, Unanswered
from ..port.ask import QuestionPort
from .groups import groups_of, naming
from .reader import MessageBatch, ReadPosition, batches

# The pauses between two questions: the first, by how much each is longer, and the longest.
PAUSE_S, GROWTH, PAUSE_S_MAX = 0.02, 1.5, 1.0
# A question looks for a server that serves for so long; at the end of the wait it has at least the shorter time.
LOOK_S, LOOK_S_MIN = 5.0, 0.5
# The search goes back from the topic's end by this factor more messages each time.
GALLOP = 8
# Slots that have to reach an offset.
Target = tuple[int, int]


class Consumption:
    """The promise that a group has consumed the messages of a ticket, made by `Ticket.consumed`."""

    def __init__(
        self, ticket: Ticket, group: str, servers: Callable[[], Sequence[str]], closed: Callable[[], bool]
    ) -> None:
        assert ticket.published is not None, "a ticket of published messages"
        self._ticket, self._group = ticket, check_topic(group)
        self._published, self._servers, self._closed = ticket.published, servers, closed
        self._targets: list[Target] | None = None
        self._last = ""

    def wait(self, timeout: float | None = None) -> Ack:
        """Wait at most `timeout` seconds until the group has acknowledged each message, or put it aside.

        Returns the acknowledgement of the messages. Raises `TimeoutError`, `NoSuchGroup`, `NoSuchTopic`, `Closed`, and
        what `Ticket.wait` raises.
        """
        limit = wait_s(timeout)
        until = inf if limit is None else monotonic() + limit
        ack = self._ticket.wait(limit)
        for pause_s in _pauses():
            left = until - monotonic()
            if self._look(ack, left):
                return ack
            self._check(until, limit)
            Event().wait(max(0.0, min(pause_s, until - monotonic())))
        raise AssertionError("the pauses have no end")

    def __await__(self) -> Generator[Any, None, Ack]:
        """Wait in a task: `await asyncio.wait_for(ticket.consumed("billing"), 30)`."""
        return self._awaited().__await__()

    async def _awaited(self) -> Ack:
        ack = await self._ticket
        for pause_s in _pauses():
            # A cancelled task leaves one question behind, which ends by itself.
            if await asyncio.to_thread(self._look, ack, LOOK_S):
                return ack
            self._check(inf, None)
            await asyncio.sleep(pause_s)
        raise AssertionError("the pauses have no end")

    def _check(self, until: float, limit: float | None) -> None:
        """Raise `Closed` if the Clone was closed, and `TimeoutError` if the time is over."""
        if self._closed():
            raise Closed(f"the Clone was closed while {self} was awaited; ask by another Clone's `groups()`")
        if monotonic() >= until:
            raise TimeoutError(f"{self} were not acknowledged within {limit:g} s; {self._last}")

    def _look(self, ack: Ack, left: float) -> bool:
        """Ask once whether the messages are consumed."""
        timeout_s = min(LOOK_S, max(LOOK_S_MIN, left))
        try:
            with naming(self._published.topic, self._group):
                return self._reached(ack, timeout_s)
        except Unanswered as error:
            # A failover takes some seconds, and the next question may find the new active.
            self._last = str(error)
            return False

    def _reached(self, ack: Ack, timeout_s: float) -> bool:
        facts = self._facts(timeout_s)
        if self._targets is None:
            self._targets = self._find(ack.revision, facts, timeout_s)
        reached = [(unpack_slots(slots), at) for slots, at in facts["places"]]
        low = [at for slots, at in reached for some, upto in self._targets if slots & some and at < upto]
        self._last = f"the group is at offset {min(low, default=0)}, see `groups()`"
        return not low

    def _facts(self, timeout_s: float) -> dict[str, Any]:
        """Return the facts of the topic with the places of the group."""
        with QuestionPort(self._servers(), timeout_s) as port:
            facts = port.ask("", topic=self._published.topic, facts=True, group=self._group)
            if "places" in facts:
                return facts
        # A server of an older version tells only the lowest place.
        for group in groups_of(self._servers(), self._published.topic, timeout_s):
            if group["name"] == self._group:
                return {**facts, "places": [[pack_slots(ALL_SLOTS), group["position"]]]}
        text = f"there is no group {self._group!r} of topic {self._published.topic!r}"
        raise NoSuchGroup(text, "group", self._group)

    # -- the search for the offsets

    def _find(self, revision: Revision, facts: dict[str, Any], timeout_s: float) -> list[Target]:
        """Return which slots have to reach which offsets."""
        first, end = facts["first"], facts["next"]
        at = end if revision == UNKNOWN else self._first_from(revision, first, end, timeout_s)
        targets: list[Target] = []
        with closing(self._read(at, timeout_s)) as found:
            for batch in filter(None, found) if at < end else ():
                if batch.revision != revision:
                    # No split can have moved a message of the epoch that is there, so the topic has let the message go.
                    if not targets and at == first and epoch_of(batch.revision) == epoch_of(revision):
                        return [(ALL_SLOTS, first)]
                    break
                if self._is_ours(batch, cut=batch.offset == first):
                    targets += _targets(batch)
        return targets or [(ALL_SLOTS, end)]

    def _first_from(self, revision: Revision, first: int, end: int, timeout_s: float) -> int:
        """Return the offset of the first message of this revision or a later one; `end` if there is none."""
        low, high, step = first, end, self._published.count
        galloping = True
        while low < high:
            middle = max(low, high - step) if galloping else (low + high) // 2
            step *= GALLOP
            with closing(self._read(middle, timeout_s)) as found:
                batch = next(filter(None, found), None)
            if batch is None or batch.offset >= high or batch.revision >= revision:
                high = middle
            else:
                low, galloping = batch.offset + len(batch), False
        return low

    def _read(self, offset: int, timeout_s: float) -> Generator[MessageBatch | None, None, None]:
        place = ReadPosition(offset, inf)
        servers, topic = self._servers(), self._published.topic
        return batches(servers, topic, place, None, wait=False, patience_s=timeout_s, credit=1)

    def _is_ours(self, batch: MessageBatch, *, cut: bool) -> bool:
        """Return True if the batch may be the ticket's: it has the same keys. `cut`: its first messages may be gone."""
        published = self._published
        keys = [key or None for key in published.keys or [""] * published.count]
        return batch.keys == (keys[-len(batch) :] if cut else keys)

    def __str__(self) -> str:
        published = self._published
        messages = "the message" if published.count == 1 else f"the {published.count:,} messages"
        return f"{messages} of this ticket in topic {published.topic!r} for group {self._group!r}"

    def __repr__(self) -> str:
        return f"<Consumption of {self}>"


def _pauses() -> Iterator[float]:
    pause_s = PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * GROWTH, PAUSE_S_MAX)


def _targets(batch: MessageBatch) -> list[Target]:
    """Return each slot with the offset behind its last message."""
    keys = [key or "" for key in batch.keys] if any(batch.keys) else None
    behind = dict(zip(slots_of(keys, batch.offset, len(batch)), (at + 1 for at in batch.offsets), strict=True))
    return [(1 << slot, upto) for slot, upto in behind.items()]
