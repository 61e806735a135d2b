"""One who asks: the user that a request is made for, and what the rules let it do.

A gateway has rights of its own at the pair, which are those of all who use it together. So every path asks here, with
the rules and the functions of the servers: what a user may not do there is not done here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from chp.access import NOTHING, TOPICS, Rights, Rules

from ..problems import Problem


@dataclass(frozen=True, slots=True)
class Caller:
    """A user, or with no rules whoever is let in; `hashed`: of the token that says so, "" if something else does."""

    user: str = ""
    rules: Rules | None = None
    hashed: str = ""

    @property
    def rights(self) -> Rights | None:
        """What it may; None if there are no rules."""
        return None if self.rules is None else self.rules.rights(self.user)

    def may_read(self, key: str) -> bool:
        """Whether one key may be read."""
        return self.rules is None or self.rules.rights(self.user).read.has(key)

    def read(self, key: str) -> None:
        """That one key may be read; it is refused whether it is there or not."""
        if not self.may_read(key):
            raise self._denied(f"read {key!r:.120}")

    def read_all(self, prefix: str) -> None:
        """That all that begins with a prefix may be read."""
        if self.rules is not None and not self.rules.rights(self.user).read.covers(prefix):
            raise self._denied(f"read all of {prefix!r:.120}; name a prefix that it may read")

    def write(self, keys: Sequence[str], conditions: Iterable[int]) -> None:
        """That keys may be set, and read those that there are conditions on: the answer tells their revisions."""
        if (rights := self.rights) is None:
            return
        if (key := rights.write.first_not(keys)) is not None:
            raise self._denied(f"write {key!r:.120}")
        if (key := rights.read.first_not([keys[i] for i in conditions])) is not None:
            raise self._denied(f"read {key!r:.120}, which there is a condition on")

    def write_anything(self) -> None:
        """Raise `Problem` if the rules let the user write no key at all: then no body is read."""
        if (rights := self.rights) is None:
            return
        if all(prefix.startswith(rights.write.deny) for prefix in rights.write.allow):
            raise self._denied("write any key")

    def sees_topic(self, name: str) -> bool:
        """Whether a topic may be read."""
        return self.rules is None or self.rules.rights(self.user).read.covers(f"{TOPICS}{name}/")

    def topic(self, verb: str, name: str) -> None:
        """That a topic may be read, or written."""
        if self.rules is not None and not self.rules.may(self.user, verb, f"{TOPICS}{name}/"):
            raise self._denied(f"{verb} topic {name!r:.120}")

    def group(self, topic: str, group: str, *, loses: bool) -> None:
        """Raise `Problem` unless a group may be consumed by, or with `loses` removed, as the servers have it."""
        if self.rules is not None and (what := self.rules.unconsumed(self.user, topic, group, loses=loses)):
            raise self._denied(what)

    def may_command(self, name: str) -> bool:
        """Whether an operator's command may be used, or what it tells be seen."""
        return self.rules is None or self.rules.may(self.user, "admin", name)

    def command(self, name: str) -> None:
        """That it may."""
        if not self.may_command(name):
            raise self._denied(f"use the admin command {name!r}")

    def _denied(self, what: str) -> Problem:
        ask = self.rules.to_ask() if self.rules is not None else ""
        return Problem(403, "access", f"user {self.user!r} may not {what}; ask {ask or 'who runs the servers'}")


ANYBODY = Caller()  # where nobody is told from anybody
NOBODY = Caller("", Rules({"users": {}, "roles": {}}))  # who may do nothing: of paths that tell nothing of the pair
assert NOBODY.rights == NOTHING


def caller_of(request: Request) -> Caller:
    """Who the door said that a request is of."""
    return in_scope(request.scope)


def in_scope(scope: Scope) -> Caller:
    """The same, where there is no request yet."""
    caller = scope["caller"]
    assert isinstance(caller, Caller), "the door has let it in"
    return caller
