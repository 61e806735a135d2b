"""Topics and groups that are removed because no client uses them: those whose settings have `expire_after_s`.

A topic is in use while messages come, and while it has groups, scheduled messages or readers. A group is in use while
it has members, and when it is begun anew or changed. The active counts the time, which begins anew after a failover. So
a topic or a group may live longer than its settings say, and never shorter. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..state.groups import Group
from ..state.topics import TopicLog, Topics


class UnusedTopics:
    """The topics with `expire_after_s`, and the time since which each of them has not been used."""

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


class UnusedGroups:
    """The groups with `expire_after_s`, and the time since which each of them has not been used."""

    def __init__(self) -> None:
        # (topic, name) -> the group and its changes at the last look, and the time since which nothing has changed.
        self._since: dict[tuple[str, str], tuple[Group, int, float]] = {}

    def over(self, topics: Topics, now: float) -> Iterator[tuple[str, str]]:
        """Yield the topic and the name of each group whose time is over."""
        before, self._since = self._since, {}
        for which, group in topics.groups.expiring.items():
            known, changes, since = before.get(which, (None, 0, now))
            if known is not group or group.members or group.changes != changes:
                since = now
            self._since[which] = group, group.changes, since
            if group.expire_after_s is not None and now - since >= group.expire_after_s:
                yield which
