"""The caller: the user that a request is made for, and the rights of that user.

A gateway has rights of its own at the pair, which cover those of all its users. So every path asks here, by the rules
and the functions of the servers. A user may do nothing here that the servers would refuse. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.types import Scope

from chp.access import NOTHING, TOPICS, Rights, Rules

from ..problems import Problem


@dataclass(frozen=True, slots=True)
class Caller:
    """A user, or without rules any caller; `hashed` is the hash of its token, "" if it showed none."""

    user: str = ""
    rules: Rules | None = None
    hashed: str = ""

    @property
    def rights(self) -> Rights | None:
        """The rights of the user; None if there are no rules."""
        return None if self.rules is None else self.rules.rights(self.user)

    def may_read(self, key: str) -> bool:
        """Return True if one key may be read."""
        return self.rules is None or self.rules.rights(self.user).read.has(key)

    def read(self, key: str) -> None:
        """Raise `Problem` unless one key may be read, whether it exists or not."""
        if not self.may_read(key):
            raise self._denied(f"read {key!r:.120}")

    def read_all(self, prefix: str) -> None:
        """Raise `Problem` unless all keys of a prefix may be read."""
        if self.rules is not None and not self.rules.rights(self.user).read.covers(prefix):
            raise self._denied(f"read all of {prefix!r:.120}; name a prefix that it may read")

    def write(self, keys: Sequence[str], conditions: Iterable[int]) -> None:
        """Raise `Problem` unless keys may be set, and those with conditions read: the answer tells their revisions."""
        if self.rules is None:
            return
        rights = self.rules.rights(self.user)
        if (key := rights.write.first_not(keys)) is not None:
            raise self._denied(f"write {key!r:.120}")
        if (key := rights.read.first_not([keys[i] for i in conditions])) is not None:
            raise self._denied(f"read {key!r:.120}, which there is a condition on")

    def write_anything(self) -> None:
        """Raise `Problem` if the user may write no key at all. The body is then not read."""
        if (rights := self.rights) is None:
            return
        if all(prefix.startswith(rights.write.deny) for prefix in rights.write.allow):
            raise self._denied("write any key")

    def sees_topic(self, name: str) -> bool:
        """Return True if a topic may be read."""
        return self.rules is None or self.rules.rights(self.user).read.covers(f"{TOPICS}{name}/")

    def topic(self, verb: str, name: str) -> None:
        """Raise `Problem` unless a topic may be read, or written."""
        if self.rules is not None and not self.rules.may(self.user, verb, f"{TOPICS}{name}/"):
            raise self._denied(f"{verb} topic {name!r:.120}")

    def group(self, topic: str, group: str, *, loses: bool) -> None:
        """Raise `Problem` unless a group may be consumed by, or with `loses` removed, by the rule of the servers."""
        if self.rules is not None and (what := self.rules.unconsumed(self.user, topic, group, loses=loses)):
            raise self._denied(what)

    def may_command(self, name: str) -> bool:
        """Return True if an operator's command may be used, or its facts be seen."""
        return self.rules is None or self.rules.may(self.user, "admin", name)

    def command(self, name: str) -> None:
        """Raise `Problem` unless an operator's command may be used."""
        if not self.may_command(name):
            raise self._denied(f"use the admin command {name!r}")

    def _denied(self, what: str) -> Problem:
        ask = self.rules.to_ask() if self.rules is not None else ""
        return Problem(403, "access", f"user {self.user!r} may not {what}; ask {ask or 'the operator of the servers'}")


# Every caller of a gateway that tells no user from another.
ANYBODY = Caller()
# A caller without any right, for paths that tell nothing of the pair.
NOBODY = Caller("", Rules({"users": {}, "roles": {}}))
assert NOBODY.rights == NOTHING


def caller_of(scope: Scope) -> Caller:
    """Return the caller that the middleware found for a request."""
    caller = scope["caller"]
    assert isinstance(caller, Caller), "the middleware has admitted it"
    return caller
