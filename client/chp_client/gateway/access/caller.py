"""The caller: the user that a request is made for, and the rights of that user.

A gateway has rights of its own at the pair, which cover those of all its users. So the gateway checks each request
here, with the rules and the functions of the servers. A user may do nothing here that the servers would refuse.

    Caller          a user by the rules of one pair
    MountedCaller   a user at a gateway of several pairs: a caller for each pair, as each has its own rules and tokens

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from chp.access import NOTHING, TOPICS, Rights, Rules
from chp.errors import ChpError

from ...mount_table import ROOT, Mounts
from ..problems import Problem


@dataclass(frozen=True, slots=True)
class Caller:
    """A user; if there are no rules, any caller. `hashed` is the hash of its token, or "" without a token."""

    user: str = ""
    rules: Rules | None = None
    hashed: str = ""

    @property
    def rights(self) -> Rights | None:
        """The rights of the user; None if there are no rules."""
        return None if self.rules is None else self.rules.rights(self.user)

    def at(self, mount: str) -> Caller:
        """Return the caller by the rules of a mount's pair; raise `Problem` if that pair does not know the caller."""
        return self

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
        """Raise `Problem` unless the user may set the keys, and read those with conditions.

        The answer to a condition tells the revision of the key.
        """
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
        """Raise `Problem` unless the user may consume by a group, or with `loses` remove it: the servers' rule."""
        if self.rules is not None and (what := self.rules.unconsumed(self.user, topic, group, loses=loses)):
            raise self._denied(what)

    def may_command(self, name: str) -> bool:
        """Return True if the user may use an operator's command, or see the facts that it shows."""
        return self.rules is None or self.rules.may(self.user, "admin", name)

    def command(self, name: str) -> None:
        """Raise `Problem` unless an operator's command may be used."""
        if not self.may_command(name):
            raise self._denied(f"use the admin command {name!r}")

    def _denied(self, what: str) -> Problem:
        ask = self.rules.to_ask() if self.rules is not None else ""
        return Problem(403, "access", f"user {self.user!r} may not {what}; ask {ask or 'the operator of the servers'}")


@dataclass(frozen=True, slots=True, eq=False)
class MountedCaller(Caller):
    """The caller of a gateway of several pairs.

    `parts` has a caller for each pair that knows this one, by mount. `reasons` has the `Problem` of each other pair.
    """

    table: Mounts = field(kw_only=True)
    parts: Mapping[str, Caller] = field(kw_only=True)
    reasons: Mapping[str, Problem] = field(kw_only=True)

    def at(self, mount: str) -> Caller:
        """Return the caller by the rules of a mount's pair; raise `Problem` if that pair does not know the caller."""
        if mount in self.parts:
            return self.parts[mount]
        reason = self.reasons.get(mount)
        if reason is not None and reason.status == 401:
            text = f"the pair of the mount {mount!r} does not know the token; ask for one that it knows too"
            raise Problem(403, "access", text)
        raise reason or Problem(403, "access", f"the mount {mount!r} is not served here")

    def _of_key(self, key: str) -> Caller:
        return self.at(self.table.of_key(key))

    def _of_topic(self, name: str) -> Caller:
        return self.at(self.table.of_topic(name))

    def may_read(self, key: str) -> bool:
        """Return True if one key may be read."""
        part = self.parts.get(self.table.find(key) or "")
        return part is not None and part.may_read(key)

    def read(self, key: str) -> None:
        """Raise `Problem` unless one key may be read, whether it exists or not."""
        self._of_key(key).read(key)

    def read_all(self, prefix: str) -> None:
        """Raise `Problem` unless all keys of a prefix may be read, in each mount that is served here."""
        for mount in self.table.touched(prefix):
            if mount in self.parts or mount in self.reasons:
                self.at(mount).read_all(mount if mount != ROOT and mount.startswith(prefix) else prefix)

    def write(self, keys: Sequence[str], conditions: Iterable[int]) -> None:
        """Raise `Problem` unless the user may set the keys, all of one mount, and read those with conditions."""
        if keys:
            self._of_key(keys[0]).write(keys, conditions)

    def write_anything(self) -> None:
        """Raise `Problem` if the user may write no key of any mount. The body is then not read."""
        self._any(lambda part: part.write_anything())

    def sees_topic(self, name: str) -> bool:
        """Return True if a topic may be read."""
        return _is_allowed(lambda: self._of_topic(name).topic("read", name))

    def topic(self, verb: str, name: str) -> None:
        """Raise `Problem` unless a topic may be read, or written."""
        self._of_topic(name).topic(verb, name)

    def group(self, topic: str, group: str, *, loses: bool) -> None:
        """Raise `Problem` unless the user may consume by a group, or with `loses` remove it."""
        self._of_topic(topic).group(topic, group, loses=loses)

    def may_command(self, name: str) -> bool:
        """Return True if an operator's command may be used at some pair."""
        return any(part.may_command(name) for part in self.parts.values())

    def command(self, name: str) -> None:
        """Raise `Problem` unless an operator's command may be used at some pair."""
        self._any(lambda part: part.command(name))

    def _any(self, check: Callable[[Caller], None]) -> None:
        """Raise the first `Problem` of a check if no part of the caller passes it."""
        problems: list[Problem] = []
        for part in self.parts.values():
            try:
                check(part)
            except Problem as problem:
                problems.append(problem)
        if len(problems) == len(self.parts):
            raise problems[0]


def _is_allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except (Problem, ChpError):
        return False
    return True


# The caller of each request to a gateway that does not tell users apart.
ANYBODY = Caller()
# A caller without any right, for paths whose answers tell nothing about the pair.
NOBODY = Caller("", Rules({"users": {}, "roles": {}}))
assert NOBODY.rights == NOTHING


def caller_of(scope: Scope) -> Caller:
    """Return the caller that the middleware found for a request."""
    caller = scope["caller"]
    assert isinstance(caller, Caller), "the middleware has admitted it"
    return caller
