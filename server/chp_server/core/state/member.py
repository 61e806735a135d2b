"""One member of a group as it reads: what it was given in each slot, and what it may get next (group_coordinator.py).

For each slot two offsets are kept. Messages were sent up to the first, and the topic was searched up to the second. The
second is ahead where the search found no message of the slot. Slots with the same two offsets share an entry. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chp.topics import ALL_SLOTS, pack_slots

from .groups import Group, Places
from .pace import Pace

Key = tuple[bytes, int]
Which = tuple[str, str]  # topic, name
# Chunks that a member may have at a time: one in hand, and the next.
AHEAD = 2
Given = dict[tuple[int, int], int]  # (offset sent up to, offset searched up to) -> slots


@dataclass(slots=True)
class Member:
    """A member that reads, and what it was given."""

    key: Key  # connection and request
    which: Which
    topic: int  # the topic's id
    member: bytes
    credit: int
    # The time when the member had credit last.
    touched: float
    # The `resets` of its group when the member came.
    resets: int
    pace: Pace
    given: Given = field(default_factory=dict)
    # Slots that it gets nothing more of.
    leaving: int = 0
    # The `changes` of its group that `given` takes into account.
    changes: int = -1
    # There is nothing more for the member up to this number.
    seen: int = -1
    # The time when the member was sent anything last.
    said: float = float("-inf")
    # The lowest offset that it has in hand, and the time from which it has that.
    worked: tuple[int, float] = (0, 0.0)
    # The most credit that it had.
    room: int = 0
    user: str = ""
    # True if the member is of an older version, which knows no headers.
    plain: bool = False
    # True if its group has other members, so that it is given no more than it does soon.
    is_paced: bool = False
    # The messages of its slots for each offset of the last page, by which the length of the next one is estimated.
    dense: float = 0.0
    # How many looks of the coordinator in a row found that the member had too much work.
    behind: int = 0
    # Slots of which it gets nothing for now, as their next message failed before.
    barred: int = 0
    # True if it gets nothing before it has acknowledged what it has in hand.
    waits: bool = False

    def grant(self, credit: int, now: float) -> None:
        """Take over the credit that the member has now."""
        self.credit, self.room, self.touched = credit, max(self.room, credit), now

    @property
    def is_ahead(self) -> bool:
        """True if a chunk waits for the member behind the one that it has in hand."""
        return self.room - self.credit >= AHEAD

    @property
    def has_all(self) -> bool:
        """True if the member has all slots, and all at the same offsets."""
        return list(self.given.values()) == [ALL_SLOTS]

    def follow(self, group: Group) -> None:
        """Take over the slots that the group gives to the member now."""
        if self.changes == group.changes:
            return
        self.changes = group.changes
        places = group.places.get(self.member, {})
        held, known = group.slots_of(self.member), 0
        if again := group.anew & held:
            # These slots begin at their places again.
            group.anew &= ~again
            self.pace.keep(~again)
            for where, slots in list(self.given.items()):
                self._put(where, slots & ~again)
        for where, slots in list(self.given.items()):
            self._put(where, slots & held)
            known |= slots & held
        for offset, slots in places.items():
            if new := slots & ~known:
                self._put((offset, offset), self.given.get((offset, offset), 0) | new)
        self.leaving &= held
        self.seen = -1

    def passes(self, places: Places) -> list[list[Any]]:
        """Return steps of slots past messages that are not theirs, and take these steps.

        A slot takes one if nothing of it is in hand, and a search found no message of it.
        """
        moves: list[list[Any]] = []
        for (sent, looked), slots in list(self.given.items()):
            free = slots & places.get(sent, 0)
            if looked > sent and free:
                moves.append([pack_slots(free), sent, looked])
                self._put((sent, looked), slots & ~free)
                self._put((looked, looked), self.given.get((looked, looked), 0) | free)
        return moves

    def _put(self, where: tuple[int, int], slots: int) -> None:
        if slots:
            self.given[where] = slots
        else:
            self.given.pop(where, None)

    def resume(self, have: list[tuple[int, int, int]]) -> None:
        """Go on behind the ranges that the member has in hand, in the slots whose position is in such a range.

        A position is below a range if an acknowledgement was lost here. Then the member is given those messages again.
        """
        for slots, after, upto in have:
            for where, held in [(where, held) for where, held in self.given.items() if after <= where[0] < upto]:
                if some := held & slots:
                    self._put(where, held & ~some)
                    self._put((upto, upto), self.given.get((upto, upto), 0) | some)

    def in_hand(self, places: Places) -> int:
        """Return the slots in which the member has messages that it has not acknowledged."""
        found = 0
        for (sent, _), slots in self.given.items():
            for offset, some in places.items():
                if sent > offset:
                    found |= slots & some
        return found

    def next(self) -> tuple[int, int, int]:
        """Return where to search next: an offset, the slots that are there, and the offset where further slots wait.

        The offset is -1 if there is nothing to search.
        """
        without = self.leaving | self.barred
        ahead = sorted({looked for (_, looked), slots in self.given.items() if slots & ~without})
        if not ahead:
            return -1, 0, 0
        at, stop = ahead[0], ahead[1] if len(ahead) > 1 else 1 << 62
        slots = 0
        for (_, looked), some in self.given.items():
            slots |= some if looked == at else 0
        return at, slots & ~without, stop

    def waiting(self, end: int) -> dict[int, int]:
        """Return the slots in which messages may wait that the member was not sent, by the offset of the first."""
        found: dict[int, int] = {}
        for (_, looked), slots in self.given.items():
            if looked < end:
                found[looked] = found.get(looked, 0) | slots
        return found

    def searched(self, slots: int) -> dict[int, int]:
        """Return these slots by the offset up to which each was searched."""
        found: dict[int, int] = {}
        for (_, looked), some in self.given.items():
            if some & slots:
                found[looked] = found.get(looked, 0) | (some & slots)
        return found

    def ranges_in_hand(self, places: Places) -> dict[int, int]:
        """Return the slots that have messages in hand, by the offset below which these messages are."""
        found: dict[int, int] = {}
        for (sent, _), slots in self.given.items():
            for offset, some in places.items():
                if sent > offset and slots & some:
                    found[sent] = found.get(sent, 0) | (slots & some)
        return found

    def looked(self, at: int, slots: int, upto: int, *, sent: bool) -> list[list[Any]]:
        """Note that these slots were searched from `at` to `upto`, and whether what was found was `sent`.

        Return the slots with the offset up to which each was sent messages before.
        """
        spans = []
        for where, some in list(self.given.items()):
            if where[1] == at and some & slots:
                self._put(where, some & ~slots)
                spans.append([pack_slots(some & slots), where[0]])
                new = (upto if sent else where[0], upto)
                self._put(new, self.given.get(new, 0) | (some & slots))
        return spans
