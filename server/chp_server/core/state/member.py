"""One member of a group as it reads: what it was given of each slot, and what it may get next (group_coordinator.py).

Of each slot two offsets are kept: what was sent reaches up to the one, and what was looked at to the other, which is
ahead where nothing was found for the member. Slots that are at the same offsets are one entry. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chp.topics import ALL_SLOTS, pack_slots

from .groups import Group, Places

Key = tuple[bytes, int]
Which = tuple[str, str]  # a group: topic, name
AHEAD = 2  # chunks: one in hand, and the next
Given = dict[tuple[int, int], int]  # offsets: what was sent reaches to, and what was looked at; which slots


@dataclass(slots=True)
class Member:
    """One member, as it reads."""

    key: Key  # connection and request
    which: Which
    topic: int  # its id
    member: bytes
    credit: int
    touched: float  # when there was credit last
    resets: int  # of its group, when it came
    given: Given = field(default_factory=dict)
    leaving: int = 0  # slots of which it gets no more
    changes: int = -1  # of its group, as far as `given` knows
    seen: int = -1  # up to this number there is nothing more for it
    said: float = float("-inf")  # when it was told anything last
    worked: tuple[int, float] = (0, 0.0)  # the lowest offset of what it has in hand, and since when
    room: int = 0  # the most credit that it had
    user: str = ""

    def grant(self, credit: int, now: float) -> None:
        """It has room for so much now."""
        self.credit, self.room, self.touched = credit, max(self.room, credit), now

    @property
    def is_ahead(self) -> bool:
        """Whether one chunk waits for it behind the one that it has in hand."""
        return self.room - self.credit >= AHEAD

    @property
    def has_all(self) -> bool:
        """Whether what it gets is the same for all its slots, and these are all."""
        return list(self.given.values()) == [ALL_SLOTS]

    def follow(self, group: Group) -> None:
        """Slots came or went."""
        if self.changes == group.changes:
            return
        self.changes = group.changes
        places = group.places.get(self.member, {})
        held, known = group.slots_of(self.member), 0
        for where, slots in list(self.given.items()):
            self._put(where, slots & held)
            known |= slots & held
        for offset, slots in places.items():
            if new := slots & ~known:
                self._put((offset, offset), self.given.get((offset, offset), 0) | new)
        self.leaving &= held
        self.seen = -1

    def passes(self, places: Places) -> list[list[Any]]:
        """Slots of which nothing is in hand, and nothing was found, step on to where they were looked at."""
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

        A position is below a range if an acknowledgement was lost here. Then the member is given that again.
        """
        for slots, after, upto in have:
            for where, held in [(where, held) for where, held in self.given.items() if after <= where[0] < upto]:
                if some := held & slots:
                    self._put(where, held & ~some)
                    self._put((upto, upto), self.given.get((upto, upto), 0) | some)

    def in_hand(self, places: Places) -> int:
        """The slots of which it was given messages that it has not acknowledged."""
        found = 0
        for (sent, _), slots in self.given.items():
            for offset, some in places.items():
                if sent > offset:
                    found |= slots & some
        return found

    def next(self) -> tuple[int, int, int]:
        """From which offset on something may come next, for which slots, and where others are ahead; -1: nothing."""
        ahead = sorted({looked for (_, looked), slots in self.given.items() if slots & ~self.leaving})
        if not ahead:
            return -1, 0, 0
        at, stop = ahead[0], ahead[1] if len(ahead) > 1 else 1 << 62
        slots = 0
        for (_, looked), some in self.given.items():
            slots |= some if looked == at else 0
        return at, slots & ~self.leaving, stop

    def looked(self, at: int, slots: int, upto: int, *, sent: bool) -> list[list[Any]]:
        """These slots were looked at up to an offset; if it was `sent`, from where on each."""
        spans = []
        for where, some in list(self.given.items()):
            if where[1] == at and some & slots:
                self._put(where, some & ~slots)
                spans.append([pack_slots(some & slots), where[0]])
                new = (upto if sent else where[0], upto)
                self._put(new, self.given.get(new, 0) | (some & slots))
        return spans
