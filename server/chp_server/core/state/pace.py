"""The pace of one member of a group: what it has in hand, how fast it acknowledges, and how large its pages are.

The member does not report its pace. The active knows it: the active sent the messages, gets a grant for each page that
the member has taken, and sees which positions have moved.

    rate     how many messages the member acknowledges in a second. Slots move between members by this (workload.py).
             The active measures it about once a second, and takes the mean with the rate before. The rate falls only
             while the member has messages in hand: a member without messages may just be idle.
    size     the most messages of a page. The size doubles after a full page, if this took the member little time, or if
             no other page is on its way to it. The size grows eightfold if the page took hardly any time. The size
             halves if a page took the member long: messages in hand can't move to a faster member.

A member may take many messages and acknowledge them all later, so rate and size are measured apart. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .groups import Places

# The most messages of a page.
SIZE_MAX = 1 << 16
# The size of pages is chosen so that a member takes about this time for a page, in seconds.
PAGE_S = 0.5
# If a page took less than PAGE_S / 2 / QUICK, the next page may be QUICK times as large.
QUICK = 8
# If a member has messages in hand and acknowledges nothing for this time, in seconds, its rate falls.
SILENT_S = 1.0


@dataclass(slots=True)
class Pace:
    """What one member has in hand, its rate, and the size of its pages."""

    # The time of the last `look` that found something acknowledged, or nothing in hand.
    since: float
    rate: float | None = None
    # Each page in hand, the oldest first: its slots, the offset below which its messages are, the number of messages.
    pages: list[tuple[int, int, float]] = field(default_factory=list)
    size: int = 32
    # Each page on its way, for which no grant came yet: the number of its messages, and the time when they were sent.
    _coming: deque[tuple[int, float]] = field(default_factory=deque)
    # The number of messages that the member's last grants reported as taken, and the time of these grants.
    _taken: tuple[int, float] | None = None

    @property
    def hand(self) -> float:
        """The number of messages in hand. Of a page that is done in part, it is estimated by the slots left."""
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
        """Begin to send to the member anew; it has messages of the slots `in_hand` in hand."""
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
        """Keep only what is in hand in these slots. The rest was taken from the member without an acknowledgement."""
        pages, self.pages = self.pages, []
        for some, upto, n in pages:
            if left := some & slots:
                self.pages.append((left, upto, n * left.bit_count() / some.bit_count()))

    def take(self, pages: int, now: float) -> None:
        """Note a grant: the member has taken this number of pages."""
        for _ in range(min(pages, len(self._coming))):
            n, given = self._coming.popleft()
            before, since = self._taken or (0, now)
            if now <= since:
                # Two pages were taken in one turn, so they count as one page.
                self._taken = before + n, since
            else:
                self._fit(before, now - since, was_there=given - since <= now - given)
                self._taken = n, now

    def _fit(self, n: int, took_s: float, *, was_there: bool) -> None:
        """Choose the size of the next pages, after the member took `took_s` for a page of `n` messages.

        `was_there` says that the member had its next page soon enough, so that it did not wait for messages.
        """
        if 2 * n >= self.size and (not self._coming or took_s < PAGE_S / 2):
            self.size = min((QUICK if took_s < PAGE_S / 2 / QUICK else 2) * self.size, SIZE_MAX)
        elif was_there and self._coming and took_s > PAGE_S:
            self.size = max(1, self.size // 2)

    def look(self, places: Places, now: float) -> None:
        """Note what the member has acknowledged by now; `places` are the places of its slots."""
        if not self.pages or now <= self.since:
            return
        mine = 0
        for some in places.values():
            mine |= some
        # Messages of slots that the member has lost do not count as acknowledged.
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
