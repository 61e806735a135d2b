"""One member of a group that reads: what it was given in each slot, and what it may get next (group_coordinator.py).

For each slot the server keeps two offsets: it has sent messages up to the first, and has searched the topic up to the
second. The second offset is ahead if the search found no further message of the slot. Slots with the same two offsets
share an entry. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chp.topics import ALL_SLOTS, pack_slots

from .groups import Group, Places
from .pace import Pace

Key = tuple[bytes, int]
Which = tuple[str, str]  # topic, name
# A member may have this many chunks at a time: one in hand, and the next.
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
    # The value of `Group.resets` when the member came.
    resets: int
    pace: Pace
    given: Given = field(default_factory=dict)
    # Slots of which the member gets no more messages, because they are to move to another member.
    leaving: int = 0
    # The value of `Group.changes` up to which `given` is up to date.
    changes: int = -1
    # Records up to this number have no more messages for the member.
    seen: int = -1
    # The time when the server last sent the member anything.
    said: float = float("-inf")
    # The lowest offset that the member has in hand, and the time since when this is the lowest.
    worked: tuple[int, float] = (0, 0.0)
    # The most credit that the member has had.
    room: int = 0
    user: str = ""
    # True if the member's client is of an older version, which knows no headers of messages.
    plain: bool = False
    # True if the group has other members. Then the member is given no more messages than it handles soon.
    is_paced: bool = False
    # The share of offsets in the last page that had messages of the member's slots. The length of the next page is
    # estimated by this.
    dense: float = 0.0
    # The number of the coordinator's latest checks, in a row, that found too much work for the member.
    behind: int = 0
    # Slots of which the member gets nothing for now, because their next message failed before.
    barred: int = 0
    # True if the member gets nothing before it has acknowledged what it has in hand.
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
            # The member is given the messages of these slots again, from the acknowledged offsets on.
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
        """Move slots past messages of other slots, and return these moves as steps of an acknowledgement.

        A slot moves if the member has no message of it in hand, and a search found no message of it.
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
        """Go on behind the ranges that the member says it has in hand, in the slots whose position is in such a range.

        A position is below its range if this server has lost an acknowledgement. Then the member gets the messages from
        the position on again.
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
        """Return where to search next: an offset, the slots to search from there, and the offset of the next slots.

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
        """Return the slots that may have messages which the member was not sent, by the offset from which to search."""
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
        """Note that these slots were searched from `at` to `upto`, and whether the messages found were `sent`.

        Return the slots, with the offset up to which messages of them had been sent before.
        """
        spans = []
        for where, some in list(self.given.items()):
            if where[1] == at and some & slots:
                self._put(where, some & ~slots)
                spans.append([pack_slots(some & slots), where[0]])
                new = (upto if sent else where[0], upto)
                self._put(new, self.given.get(new, 0) | (some & slots))
        return spans
