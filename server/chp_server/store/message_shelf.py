"""Messages in memory, as a journal that keeps nothing has them: found by topic and offset."""

from bisect import bisect_right
from collections.abc import Sequence

from ..core.state.recordlog import Messages
from ..core.topics.filling import Spans, spans_of


class MessageShelf:
    """Rows by topic, in the order of their offsets."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Messages]] = {}

    def keep(self, messages: Sequence[Messages]) -> None:
        """Add rows; nearly always at the end of their topic."""
        for row in messages:
            rows = self._rows.setdefault(row.topic, [])
            at = len(rows) if not rows or rows[-1].first < row.first else bisect_right(rows, row.first, key=_first)
            rows.insert(at, row)

    def read(self, topic: int, offset: int, number: int, bytes_max: int) -> list[Messages]:
        """As `Journal.read_messages`."""
        rows = self._rows.get(topic, [])
        found: list[Messages] = []
        size = 0
        for row in rows[max(0, bisect_right(rows, offset, key=_first) - 1) :]:
            if row.end <= offset:
                continue
            if row.number > number or (found and size + len(row.body) > bytes_max):
                break
            found.append(row)
            size += len(row.body)
            offset = row.end
        return found

    def spans(self, number: int) -> Spans:
        """As `Journal.message_spans`."""
        topics = sorted(self._rows.items())
        return spans_of((r.topic, r.first, r.n) for _, rows in topics for r in rows if r.number <= number)

    def trim(self, floors: dict[int, int]) -> None:
        """At once."""
        for topic, floor in floors.items():
            kept = [row for row in self._rows.pop(topic, []) if row.end > floor]
            if kept:
                self._rows[topic] = kept

    def drop_after(self, number: int) -> None:
        """Of records after a number."""
        for topic, rows in list(self._rows.items()):
            self._rows[topic] = [row for row in rows if row.number <= number]


def _first(row: Messages) -> int:
    return row.first
