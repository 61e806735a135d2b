"""The groups that are late: their oldest message is older than their `lag_alarm_s`.

The active looks once a second, and only at groups with this setting. The log says when a group becomes late, and when
it is not late any more. The time is that of the active's wall clock, as messages have it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..state.topics import Topics

LOOK_EVERY_S = 1.0


class LagAlarms:
    """The groups that were late at the last look."""

    def __init__(self) -> None:
        self._late: set[tuple[str, str]] = set()
        self._looked_at = float("-inf")

    def changes(self, topics: Topics, now: float, wall_s: float) -> Iterator[dict[str, Any]]:
        """Yield the facts of each group that has become late since the last look, or is not late any more."""
        if now - self._looked_at < LOOK_EVERY_S or not (topics.groups.alarmed or self._late):
            return
        self._looked_at, before, self._late = now, self._late, set()
        for name, group_name in topics.groups.alarmed:
            topic = topics.by_name[name]
            group = topic.groups[group_name]
            facts = topic.shown(group, round(wall_s * 1000))
            if facts["late"]:
                self._late.add((name, group_name))
            if facts["late"] is not ((name, group_name) in before):
                yield {**facts, "lag_alarm_s": group.lag_alarm_s}
