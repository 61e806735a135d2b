"""How the slots of a group are divided: evenly at first, and then by how fast each member works (SPEC.md, section 35).

    shares      how many slots each member is due
    moves       which slots go from a member with too much work to the member that is free first

The time of a member is how long its messages take at its pace: those in hand, and those that wait in its slots. A slot
moves if its messages would be done in less than half of that time elsewhere. So a slot with one hot key stays, since it
would take as long elsewhere, and the other slots of its member go. A slot without messages stays too.

Each member has a weight, in proportion to the slots that it is due; a new member has the mean of the others. A move
changes the weights of two members, and other members keep their proportion when one joins or leaves. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chp.topics import SLOTS

# A slot moves if another member would be done with its messages in less than the giver's time divided by this.
TIMES = 2.0
# A member with less work than this keeps its slots, in seconds.
WORK_S_MIN = 2.0


@dataclass(slots=True)
class Workload:
    """The work of one member."""

    member: bytes
    # The messages that it acknowledges in a second; None if that is not known yet.
    rate: float | None
    # The messages that it has in hand, or that wait for it.
    messages: float
    # The number of its slots.
    slots: int
    # The slots that may move, each as a bit set of one slot, with the number of messages that wait in it.
    movable: dict[int, float] = field(default_factory=dict)
    # True if the member may be given slots.
    takes: bool = True

    @property
    def movable_s(self) -> float:
        """The time, in seconds, that the messages waiting in movable slots take."""
        waits = sum(self.movable.values())
        return waits / self.rate if self.rate else (float("inf") if waits else 0.0)

    def time_s(self, more: float = 0.0, *, rate: float | None = None) -> float:
        """Return how many seconds the work takes with `more` messages; `rate` is used if the own rate is not known."""
        known = rate if self.rate is None else self.rate
        work = self.messages + more
        return work / known if known else (float("inf") if work else 0.0)


def moves(members: list[Workload]) -> list[tuple[int, bytes, bytes]]:
    """Return the slots that move, each as (bit set of one slot, member before, member after).

    The slot with the fewest messages goes first. No member gives its last slot.
    """
    found: list[tuple[int, bytes, bytes]] = []
    # Messages in hand do not move. So a member with little else to do keeps its slots.
    givers = [each for each in members if each.rate is not None and each.movable_s > WORK_S_MIN / 2]
    for each in givers:
        each.movable = dict(sorted(each.movable.items(), key=lambda slot: -slot[1]))
    takers = [each for each in members if each.takes]
    while givers:
        giver = max(givers, key=Workload.time_s)
        time_s = giver.time_s()
        if time_s <= WORK_S_MIN:
            break
        others = [each for each in takers if each is not giver]
        if giver.slots <= 1 or not giver.movable or not others:
            givers.remove(giver)
            continue
        slot, waiting = giver.movable.popitem()
        taker = min(others, key=lambda each: each.time_s(waiting, rate=giver.rate))
        # A slot with most of the work is that of a hot key, and goes only to a member that is much faster.
        times = TIMES if 2 * waiting < giver.messages else TIMES * TIMES
        if times * taker.time_s(waiting, rate=giver.rate) >= time_s:
            # The giver's other slots have more messages, so none of them would move either.
            givers.remove(giver)
            continue
        found.append((slot, giver.member, taker.member))
        giver.messages, giver.slots = giver.messages - waiting, giver.slots - 1
        taker.messages, taker.slots = taker.messages + waiting, taker.slots + 1
    return found


def shares(held: dict[bytes, int], weights: dict[bytes, float]) -> dict[bytes, int]:
    """Return how many slots each member is due: at least one, and all in proportion to the weights.

    `held` has the number of slots that each member has. Slots that are left over by rounding down go to the largest
    fractions; among equal fractions, to the members that have most slots now.
    """
    known = [weights[member] for member in held if member in weights]
    # The weights of members that left do not count for the mean, which new members get.
    mean = sum(known) / len(known) if known else 1.0
    parts = {member: weights.get(member, mean) for member in held}
    total = sum(parts.values())
    # Rounded, because a share that should be a whole number may miss it by a little.
    exact = {member: round(SLOTS * part / total, 6) for member, part in parts.items()}
    due = {member: max(1, int(share)) for member, share in exact.items()}
    by_rest = sorted(held, key=lambda member: (int(exact[member]) - exact[member], -held[member]))
    for member in by_rest[: max(0, SLOTS - sum(due.values()))]:
        due[member] += 1
    while sum(due.values()) > SLOTS:
        due[max(due, key=due.__getitem__)] -= 1
    return due


def weights_of(due: dict[bytes, int]) -> dict[bytes, float]:
    """Return weights that give these shares; {}, so that all weigh the same, if no two differ by more than one."""
    if max(due.values()) - min(due.values()) <= 1:
        return {}
    return {member: n * len(due) / SLOTS for member, n in due.items()}
