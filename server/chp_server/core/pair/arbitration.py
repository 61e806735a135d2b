"""With an arbiter: who may be active, and when what is acknowledged is safe (SPEC.md, section 21).

    the lease       one server at a time is active, and only before `until`
    the set         the servers that have all that was acknowledged: only they become active, but by a person's word

The set is kept by the arbiter, and written by the active alone, as a compare-and-set. Before its first acknowledgement
that the other one does not have, the active writes "I alone", and acknowledges nothing until that is confirmed. Before
its first acknowledgement that counts on the other one again, it writes "both", once that one has all that was
acknowledged meanwhile. So whoever is in the set has everything, and whoever is not can't take over, cut links or not.

A `Wish` has a serial number: the arbiter writes one after the other, upon the version that the wish stands on, and
confirms a wish by its serial; what it was told before can then no longer be under way.

Pure: it decides, arbiter.py acts.
"""

from __future__ import annotations

from dataclasses import dataclass

from chp.numbers import describe

WANT_LEASE_S = 5.0  # how long a reason to become active keeps us asking the arbiter
BOTH = frozenset({"primary", "backup"})
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Members:
    """The set as the arbiter has it."""

    version: int  # of each write; -1: nobody has written one yet
    names: frozenset[str]
    number: int  # what was acknowledged up to here is with each of them: one that has less has lost it
    done: int = 0  # the serial of the last wish that was granted to this server


@dataclass(frozen=True, slots=True)
class Wish:
    """A set to be written upon the version `base`."""

    serial: int
    names: frozenset[str]
    number: int
    base: int


class Arbitration:
    """What the arbiter has said, and what it is to be asked."""

    def __init__(self, enabled: bool, own: str, now: float) -> None:
        self.enabled, self.own = enabled, own
        self.until = 0.0  # to be active is allowed before this time
        self.members: Members | None = None  # None: not heard yet
        self.wish: Wish | None = None
        self._serial = 0
        self._want_until = now
        self._forced_until = NEVER

    def hear(self, until: float, members: Members | None) -> None:
        """What the arbiter says now."""
        self.until, self.members = until, members
        wish = self.wish
        if members is not None and wish is not None and members.version != wish.base and members.done != wish.serial:
            self._ask(wish.names, wish.number)  # an earlier write of ours landed late: upon that, then

    # -- the lease

    def leased(self, now: float) -> bool:
        """Whether nobody else can be active, as far as there is an arbiter to say so."""
        return not self.enabled or now < self.until

    def holds(self, now: float, number: int) -> bool:
        """Whether this server, with everything up to `number`, may be active."""
        return self.leased(now) and not self.excluded(now, number)

    def want(self, now: float) -> None:
        """There is a reason to become active."""
        self._want_until = now + WANT_LEASE_S

    def wants_lease(self, now: float, number: int) -> bool:
        """Whether a passive is to ask for the lease: one that could not use it keeps nobody from it."""
        return now < max(self._want_until, self._forced_until) and not self.excluded(now, number)

    # -- the set

    def excluded(self, now: float, number: int) -> bool:
        """Whether somebody else may have acknowledged what this server has not."""
        members = self.members
        if not self.enabled or members is None or members.version < 0 or now < self._forced_until:
            return False
        return self.own not in members.names or number < members.number

    def before(self) -> bool | None:
        """Whether this server goes before its peer because the set has only one of them; None: it does not say."""
        members = self.members if self.enabled else None
        if members is None or len(members.names) != 1:
            return None
        return self.own in members.names

    def begin(self, now: float) -> None:
        """This server is active: nobody else's write may land from now on, so the set is written anew as it is."""
        if self.enabled and self.members is not None:
            forced = now < self._forced_until
            names = self.members.names - BOTH if forced else self.members.names
            self._ask(names | {self.own}, 0 if forced else self.members.number)

    def end(self) -> None:
        """This server is active no more."""
        self.wish = None

    def agreed(self, confirmed: int | None, told: int, waiting: bool) -> bool:
        """Whether what waits may be acknowledged; else the arbiter is asked for what that takes.

        `confirmed` is what a passive that is in sync has, None without one; `told` what was acknowledged before.
        """
        if not self.enabled:
            return True
        if confirmed is not None:
            return confirmed >= told and self._granted(BOTH, told)
        return not waiting or self._granted(frozenset({self.own}), told)

    @property
    def both(self) -> bool:
        """Whether the other server could take over now."""
        return not self.enabled or (self.wish is not None and self._granted(BOTH, self.wish.number, ask=False))

    def _granted(self, names: frozenset[str], number: int, *, ask: bool = True) -> bool:
        if self.wish is None or self.members is None or self.wish.names != names:
            if ask:
                self._ask(names, number)
            return False
        if self.members.done != self.wish.serial:
            return False
        self._forced_until = NEVER
        return True

    def _ask(self, names: frozenset[str], number: int) -> None:
        if self.members is not None:
            self._serial += 1
            self.wish = Wish(self._serial, names, number, self.members.version)

    # -- a person's word

    def force(self, now: float) -> None:
        """Whatever the set says: become active as soon as the lease is to be had."""
        self._forced_until = now + 2 * WANT_LEASE_S

    def forced(self, now: float) -> bool:
        """Whether a person has said so just now."""
        return now < self._forced_until

    def lost(self, number: int) -> str:
        """What is lost if a server with everything up to `number` is forced, in words."""
        members = self.members
        if members is None:
            return "the arbiter has not been heard, so nobody can say what is lost"
        if members.version < 0 or (self.own in members.names and number >= members.number):
            return "nothing: this server has all that was acknowledged"
        names = " and ".join(sorted(members.names))
        return f"what {names} acknowledged above {describe(number)}, where this server is"

    def status(self) -> dict[str, object] | None:
        """For `chp status --json`."""
        if not self.enabled:
            return None
        members = self.members
        names = sorted(members.names) if members is not None else None
        return {"set": names, "number": describe(members.number) if members is not None else None}
