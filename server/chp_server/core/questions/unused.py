"""Topics and groups that are removed because no client uses them: those whose settings have `expire_after_s`.

A topic is in use while messages come, and while it has groups, scheduled messages or readers. The active counts the
time, which begins anew after a failover. So a topic may live longer than its settings say, and never shorter. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..state.topics import TopicLog, Topics


class UnusedTopics:
    """The time since which each of these topics has not been used."""

    def __init__(self) -> None:
        # topic id -> its next offset when it was looked at, and the time since which nothing has changed.
        self._since: dict[int, tuple[int, float]] = {}

    def over(self, topics: Topics, now: float, reads: Callable[[TopicLog], bool]) -> Iterator[str]:
        """Yield the names of the topics whose time is over; `reads` returns True if a topic has a reader."""
        before, self._since = self._since, {}
        for topic in topics.by_name.values():
            after_s = topic.settings.expire_after_s
            if after_s is None:
                continue
            next_offset, since = before.get(topic.id, (-1, now))
            used = topic.next != next_offset or topic.groups or topic.name in topics.schedule.by_topic or reads(topic)
            if used:
                since = now
            self._since[topic.id] = topic.next, since
            if now - since >= after_s:
                yield topic.name
