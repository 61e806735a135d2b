"""CHP/1 sets on their way into a record: what arrives in a turn gathers into one segment (SPEC.md, sections 11 and 13).

A column of uuids beside the keys, and sparse ones of deletes (an empty value), ttls and properties as they came.
"""

from __future__ import annotations

from typing import Any

from chp import columns
from chp.batch import Segment


class Chp1Sets:
    """The open segment."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._segment = Segment([], [], {columns.UUIDS: []})
        self.keys = self._segment.keys
        self._uuids: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._segment.keys)

    def __contains__(self, uuid: bytes) -> bool:
        return uuid in self._uuids

    def add(self, key: str, value: bytes, uuid: bytes, properties: bytes, ttl_ms: int | None) -> None:
        """The next one."""
        segment, place = self._segment, len(self._segment.keys)
        extras: dict[str, Any] = segment.extras or {}
        segment.keys.append(key)
        segment.values.append(value)
        extras[columns.UUIDS].append(uuid)
        if uuid:
            self._uuids.add(uuid)
        if not value:
            extras.setdefault(columns.DELETES, []).append(place)
        if properties:
            _sparse(extras, columns.PROPERTIES, place, properties)
            if ttl_ms is not None:
                _sparse(extras, columns.TTLS, place, ttl_ms)

    def take(self) -> Segment:
        """The segment; another begins."""
        segment = self._segment
        self._begin()
        return segment


def _sparse(extras: dict[str, Any], name: str, place: int, value: object) -> None:
    column = extras.setdefault(name, [[], []])
    column[0].append(place)
    column[1].append(value)
