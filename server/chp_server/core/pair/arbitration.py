"""The rules with an arbiter: which server may be active, and when an acknowledgement is safe (SPEC.md, section 21).

    the lease       only its holder may be active, and only before `until`
    the set         the servers that have all that was acknowledged; only they may become active, unless one is forced

The arbiter keeps the set, and the active alone writes it, by compare-and-set. Before the active acknowledges something
that its peer lacks, it writes a set of itself alone. It acknowledges nothing until the arbiter confirms that. Before it
relies on its peer again, it writes a set of both, once the peer has all that was acknowledged meanwhile. So a server in
the set has everything, and a server outside it can't take over, whatever links are cut.

Each `Wish` has a serial number. The arbiter writes one wish after the other, upon the version that the wish names, and
confirms a wish by its serial. After that no earlier write can still be under way.

Pure: this module decides, and arbiter.py acts.
"""

from __future__ import annotations

from dataclasses import dataclass

from chp.numbers import describe

# A reason to become active keeps this server asking for the lease for this many seconds.
WANT_LEASE_S = 5.0
BOTH = frozenset({"primary", "backup"})
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Members:
    """The set as the arbiter has it."""

    # Each write has its own version; -1 means that no server has written one yet.
    version: int
    names: frozenset[str]
    # Each server of the set has all that was acknowledged up to this number. A server of it that has less lost data.
    number: int
    # The serial of the last wish of this server that was granted.
    done: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """A set that is to be written upon the version `base`."""

    serial: int
    names: frozenset[str]
    number: int
    base: int


class Arbitration:
    """The last answer of the arbiter, and what to ask it for."""

    def __init__(self, enabled: bool, own: str, now: float) -> None:
        self.enabled, self.own = enabled, own
        # This server may be active before this time.
        self.until = 0.0
        # The set as the arbiter told it last; None if it has not been heard yet.
        self.members: Members | None = None
        self.wish: Wish | None = None
        self._serial = 0
        self._want_until = now
        self._forced_until = NEVER

    def hear(self, until: float, members: Members | None) -> None:
        """Take over what the arbiter says now."""
        self.until, self.members = until, members
        wish = self.wish
        if members is not None and wish is not None and members.version != wish.base and members.done != wish.serial:
            # An earlier write of this server landed late, so the wish must name the version of that write.
            self._ask(wish.names, wish.number)

    # -- the lease

    def leased(self, now: float) -> bool:
        """Return True if this server holds the lease, so that no other can be active; True without an arbiter."""
        return not self.enabled or now < self.until

    def holds(self, now: float, number: int) -> bool:
        """Return whether this server, with everything up to `number`, may be active."""
        return self.leased(now) and not self.excluded(now, number)

    def want(self, now: float) -> None:
        """Note a reason to become active."""
        self._want_until = now + WANT_LEASE_S

    def wants_lease(self, now: float, number: int) -> bool:
        """Return whether a passive should ask for the lease; one that could not use it must leave it to its peer."""
        return now < max(self._want_until, self._forced_until) and not self.excluded(now, number)

    # -- the set

    def excluded(self, now: float, number: int) -> bool:
        """Return whether another server may have acknowledged something that this server lacks."""
        members = self.members
        if not self.enabled or members is None or members.version < 0 or now < self._forced_until:
            return False
        return self.own not in members.names or number < members.number

    def before(self) -> bool | None:
        """Return whether the set has this server alone (True) or its peer alone (False); None in any other case."""
        members = self.members if self.enabled else None
        if members is None or len(members.names) != 1:
            return None
        return self.own in members.names

    def begin(self, now: float) -> None:
        """Write the set again as it is, because this server became active: then no write of its peer can land any more.

        If an operator forced this server, the set is written without its peer.
        """
        if self.enabled and self.members is not None:
            forced = now < self._forced_until
            names = self.members.names - BOTH if forced else self.members.names
            self._ask(names | {self.own}, 0 if forced else self.members.number)

    def end(self) -> None:
        """Drop the wish, because this server is not active any more."""
        self.wish = None

    def agreed(self, confirmed: int | None, told: int, waiting: bool) -> bool:
        """Return whether the answers that wait may be given; if not, ask the arbiter for the set that this needs.

        `confirmed` is the number that a passive in sync has, None without one. `told` is the number
        up to which answers were given before.
        """
        if not self.enabled:
            return True
        if confirmed is not None:
            return confirmed >= told and self._granted(BOTH, told)
        return not waiting or self._granted(frozenset({self.own}), told)

    @property
    def both(self) -> bool:
        """True if the other server could take over now."""
        return not self.enabled or (self.wish is not None and self._granted(BOTH, self.wish.number, ask=False))

    @property
    def alone(self) -> bool:
        """True if no other server can take over, as far as the set says: this server is the only one in it."""
        own = frozenset({self.own})
        return not self.enabled or (self.wish is not None and self._granted(own, self.wish.number, ask=False))

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

    # -- an operator's order

    def force(self, now: float) -> None:
        """Become active as soon as the lease can be had, whatever the set says."""
        self._forced_until = now + 2 * WANT_LEASE_S

    def forced(self, now: float) -> bool:
        """Return True if an operator has just forced this server."""
        return now < self._forced_until

    def lost(self, number: int) -> str:
        """Return a text that says what is lost if a server with everything up to `number` is forced."""
        members = self.members
        if members is None:
            return "the arbiter has not been heard, so it is not known what is lost"
        if members.version < 0 or (self.own in members.names and number >= members.number):
            return "nothing: this server has all that was acknowledged"
        names = " and ".join(sorted(members.names))
        return f"what {names} acknowledged above {describe(number)}, where this server is"

    def status(self) -> dict[str, object] | None:
        """Return the set for `chp status --json`; None without an arbiter."""
        if not self.enabled:
            return None
        members = self.members
        names = sorted(members.names) if members is not None else None
        return {"set": names, "number": describe(members.number) if members is not None else None}
