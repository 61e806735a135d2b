"""The pace of one member of a group: what it has in hand, how fast it acknowledges, and how large its pages are.

The active knows all of this without being told. It gave the messages, hears a grant for each page that the member has
taken, and sees which positions have moved.

    rate     how many messages the member acknowledges in a second, by which slots move (workload.py). It is measured
             about once a second, and is the mean of that and of the rate before. It falls only while the member has
             messages in hand: otherwise the member was idle for a while.
    size     how many messages a page has at most. It doubles when the member took a full page in little time, or waits
             for the next page, and grows more after a page that took hardly any time. It halves when a page took the
             member long: what is in hand cannot move to a faster one.

A member may take much and acknowledge it all later, so the two differ. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .groups import Places

# The messages of a page at most.
SIZE_MAX = 1 << 16
# A page has about the work of this time, in seconds.
PAGE_S = 0.5
# A page that a member did in so small a part of half of that time lets the next one be so many times as large.
QUICK = 8
# A member that acknowledged nothing for this long is slower than it was, in seconds.
SILENT_S = 1.0


@dataclass(slots=True)
class Pace:
    """What one member has in hand, its rate, and the size of its pages."""

    # The time of the last look at which something was acknowledged, or nothing was in hand.
    since: float
    rate: float | None = None
    # (slots, the offset below which their messages are, the number of messages) of each page in hand, the oldest first.
    pages: list[tuple[int, int, float]] = field(default_factory=list)
    size: int = 32
    # (the number of messages, the time when they were given) of each page on its way, for which no grant came yet.
    _coming: deque[tuple[int, float]] = field(default_factory=deque)
    # The messages that were taken last, and the time of that.
    _taken: tuple[int, float] | None = None

    @property
    def hand(self) -> float:
        """The number of messages in hand; of a page that is done in part, it is in proportion to the slots."""
        return sum(n for _, _, n in self.pages)

    @property
    def is_full(self) -> bool:
        """True if more than a page of full size is on its way."""
        return sum(n for n, _ in self._coming) > self.size

    @property
    def grants(self) -> bool:
        """True if the member has granted credit for a page."""
        return self._taken is not None

    def begin(self, in_hand: int) -> None:
        """Begin to send to the member anew, which has messages of these slots in hand."""
        self.keep(in_hand)
        self._coming.clear()
        self._taken = None

    def give(self, slots: int, upto: int, n: int, now: float) -> None:
        """Note a page that the member was given."""
        if not self.pages:
            self.since = now
        self.pages.append((slots, upto, n))
        self._coming.append((n, now))

    def keep(self, slots: int) -> None:
        """Forget what is in hand but in these slots; it was not acknowledged."""
        pages, self.pages = self.pages, []
        for some, upto, n in pages:
            if left := some & slots:
                self.pages.append((left, upto, n * left.bit_count() / some.bit_count()))

    def take(self, pages: int, now: float) -> None:
        """Note a grant: the member has taken so many pages."""
        for _ in range(min(pages, len(self._coming))):
            n, given = self._coming.popleft()
            before, since = self._taken or (0, now)
            if now <= since:
                # Both were taken before this turn.
                self._taken = before + n, since
            else:
                self._fit(before, now - since, was_there=given - since <= now - given)
                self._taken = n, now

    def _fit(self, n: int, took_s: float, *, was_there: bool) -> None:
        """Size the next pages by one of so many messages; the member had another page meanwhile if it `was_there`."""
        if 2 * n >= self.size and (not self._coming or took_s < PAGE_S / 2):
            self.size = min((QUICK if took_s < PAGE_S / 2 / QUICK else 2) * self.size, SIZE_MAX)
        elif was_there and self._coming and took_s > PAGE_S:
            self.size = max(1, self.size // 2)

    def look(self, places: Places, now: float) -> None:
        """Note what is acknowledged by now; `places` are those of the member."""
        if not self.pages or now <= self.since:
            return
        mine = 0
        for some in places.values():
            mine |= some
        # What the member lost is not acknowledged.
        self.keep(mine)
        before, self.pages, done = self.pages, [], 0.0
        for slots, upto, n in before:
            behind = 0
            for offset, some in places.items():
                behind |= some & slots if offset < upto else 0
            left = n * behind.bit_count() / slots.bit_count()
            done += n - left
            if behind:
                self.pages.append((behind, upto, left))
        self._measure(done, now - self.since)
        if done or not self.pages:
            self.since = now

    def _measure(self, done: float, took_s: float) -> None:
        known = self.rate or 0.0
        if done:
            mean = done / took_s if self.rate is None else (known + done / took_s) / 2
            self.rate = mean if self.pages else max(known, mean)
        elif self.pages and took_s >= SILENT_S:
            most = self.hand / took_s
            self.rate = most if self.rate is None else min(known, most)
