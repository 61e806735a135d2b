"""Who may do what: users and roles with their rules, as one value (SPEC.md, section 36).

    rules = {"users": {NAME: entry}, "roles": {NAME: entry}}
    entry = {"roles": [...], "read": [PREFIX, ...], "write": [...], "consume": [...], "deny-read": [...],
             "deny-write": [...], "deny-consume": [...], "admin": [COMMAND, ...], "tokens": [SHA-256, ...]}
                                        lists that are empty are left out; a role has no "roles" and no "tokens"

A prefix is a subtree: empty (everything), or with a slash at both ends; there are no patterns. What nothing allows is
not allowed, and what is denied is denied whatever else allows it. A rule is about keys, so a subtree may be read if
something allows all of it and nothing denies a part of it.

`consume` is the right to a group of a topic, whose prefix is `/.chp/topics/TOPIC/GROUP/`: to make it, to be its member,
to acknowledge, to begin it anew and to remove it. Rules that never name `consume` mean what they meant before there was
such a right: `read` of the topic is enough, and for what a group loses by it, `write` of the topic too.

All rules are one value that is replaced as a whole: it is small, and two who change it at once can't mix. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest

from .batch import packb
from .errors import BadInput
from .keys import check_subtree

CONSUME, DENY_CONSUME = "consume", "deny-consume"
ALLOW, DENY = ("read", "write", CONSUME), ("deny-read", "deny-write", DENY_CONSUME)
LISTS = (*ALLOW, *DENY, "admin")
COMMANDS = ("access", "backup", "clients", "leases", "restore", "status", "switch")  # later versions may have more
RULES_BYTES_MAX = 32 << 10  # of all, packed: they are asked for and set in one message, which has 64 KiB
ROLES_MAX = 32  # of one user
TOKENS_MAX = 16  # of one user, so that all of them leave room for the rules
TOKEN_SHOWN = 8  # digits of a token's hash, by which people and an audit name it
ASK_MAX = 3  # people who are named to whoever is denied
NONCE_BYTES = 8  # behind a topic of P+1, of what is sent to one subscriber alone
TOPICS = "/.chp/topics/"  # the rights to a topic are those to a subtree of its name
BY_READ = "no rule names `consume`: `read` of a topic allows its groups, and `write` allows to remove and reset them"
BY_CONSUME = "rules name `consume`: it alone allows to make, use, reset and remove the groups of a topic"
HUGZ = "HUGZ"  # who may read nothing at all hears this topic, and with it all keys that begin so
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_COMMAND = re.compile(r"[a-z][a-z-]{0,31}\Z")
_HASH = re.compile(r"[0-9a-f]{64}\Z")
_FOUND_BY = 16  # digits of a hash by which it is looked up: who makes tokens up can't choose them
Entry = dict[str, list[str]]
Document = dict[str, dict[str, Entry]]


@dataclass(frozen=True, slots=True)
class Sides:
    """What is allowed, and what is denied, of reading or of writing."""

    allow: tuple[str, ...]
    deny: tuple[str, ...]

    def covers(self, prefix: str) -> bool:
        """Whether every key that begins with a prefix is allowed, were it no key's yet."""
        return prefix.startswith(self.allow) and not any(
            prefix.startswith(denied) or denied.startswith(prefix) for denied in self.deny
        )

    def has(self, key: str) -> bool:
        """Whether one key is allowed."""
        return key.startswith(self.allow) and not key.startswith(self.deny)

    def first_not(self, keys: Sequence[str]) -> str | None:
        """The first key that is not allowed; two comparisons a rule tell that all are, as mostly they do.

        What lies between two keys that begin with a prefix begins with it too.
        """
        if not keys:
            return None
        low, high = min(keys), max(keys)
        within = any(low.startswith(prefix) and high.startswith(prefix) for prefix in self.allow)
        if within and not any(high >= denied and (low <= denied or low.startswith(denied)) for denied in self.deny):
            return None
        return next((key for key in keys if not self.has(key)), None)


@dataclass(frozen=True, slots=True)
class Rights:
    """What one user may do, with what its roles give."""

    read: Sides
    write: Sides
    admin: frozenset[str]
    consume: Sides = Sides((), ())


NOTHING = Rights(Sides((), ()), Sides((), ()), frozenset())


class Rules:
    """All rules, checked; never changed."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.rights = lru_cache(maxsize=1024)(self._rights)
        entries = [entry for kind in ("users", "roles") for entry in document[kind].values()]
        self.names_consume = any(CONSUME in entry or DENY_CONSUME in entry for entry in entries)
        self._tokens = {
            hashed[:_FOUND_BY]: (hashed, user)
            for user, entry in document["users"].items()
            for hashed in entry.get("tokens", ())
        }

    @staticmethod
    def of(thing: object) -> Rules:
        """Rules that somebody said, or `BadInput` that names what is wrong with them."""
        if not isinstance(thing, dict) or not set(thing) <= {"users", "roles"}:
            raise BadInput("rules are a table of 'users' and one of 'roles', and nothing else")
        document: Document = {}
        for kind in ("users", "roles"):
            table = thing.get(kind, {})
            if not isinstance(table, dict):
                raise BadInput(f"{kind!r} is a table, of a name and its rules each")
            document[kind] = {_name(name, kind): _entry(entry, kind, name) for name, entry in sorted(table.items())}
        for name, entry in document["users"].items():
            if missing := sorted(set(entry.get("roles", ())) - document["roles"].keys()):
                raise BadInput(
                    f"user {name!r} has the role {missing[0]!r}, which is not there; add it, or mend the name"
                )
        if len(packb(document)) > RULES_BYTES_MAX:
            raise BadInput(f"the rules take more than {RULES_BYTES_MAX} bytes; say more of them by roles")
        rules = Rules(document)
        if len(rules._tokens) < sum(len(entry.get("tokens", ())) for entry in document["users"].values()):
            raise BadInput("two users have the same token; make each a token of its own")
        return rules

    def may(self, user: str, verb: str, where: str) -> bool:
        """Whether a user may read or write a key, or all of a subtree ("" or with a slash at its end), or do `admin`.

        The one question that every door asks, in one form or another.
        """
        rights = self.rights(user)
        if verb == "admin":
            return where in rights.admin
        if verb not in ALLOW:
            raise BadInput(f"{verb!r:.40} is nothing that a user may; there are read, write, consume and admin")
        if verb == CONSUME:
            return self._consumes(rights, where)
        sides = rights.read if verb == "read" else rights.write
        return sides.covers(where) if not where or where.endswith("/") else sides.has(where)

    def unconsumed(self, user: str, topic: str, group: str, *, loses: bool = False) -> str:
        """Return what a user may not do that consuming by a group needs, or "".

        With `loses`, the group is removed or begun anew: it may be another user's, and what it keeps may go.
        """
        rights, of_topic = self.rights(user), f"{TOPICS}{topic}/"
        if self.names_consume:
            allowed = rights.consume.covers(f"{of_topic}{group}/")
            return "" if allowed else f"consume by group {group!r:.200} of topic {topic!r:.200}"
        if loses and not rights.write.covers(of_topic):
            return f"write topic {topic!r:.200}"
        return "" if rights.read.covers(of_topic) else f"read topic {topic!r:.200}"

    def _consumes(self, rights: Rights, where: str) -> bool:
        """Return whether a prefix of groups may be consumed; without a rule that names it, as its topic is read."""
        if self.names_consume:
            return rights.consume.covers(where)
        topic = where[len(TOPICS) :].partition("/")[0] if where.startswith(TOPICS) else ""
        return rights.read.covers(f"{TOPICS}{topic}/" if topic else where)

    def user_of(self, hashed: str) -> str:
        """Whose the token with this hash is; "" if it is nobody's."""
        known, user = self._tokens.get(hashed[:_FOUND_BY], ("", ""))
        return user if compare_digest(hashed, known) else ""

    def to_ask(self) -> str:
        """Whom a user who is denied something may ask for it."""
        able = [user for user in self.document["users"] if "access" in self.rights(user).admin]
        more = f" and {len(able) - ASK_MAX} others" if len(able) > ASK_MAX else ""
        return ", ".join(able[:ASK_MAX]) + more

    def _rights(self, user: str) -> Rights:
        entry = self.document["users"].get(user)
        if entry is None:
            return NOTHING
        roles = [self.document["roles"][name] for name in entry.get("roles", ())]
        said = {name: _together(name, [entry, *roles]) for name in LISTS}
        write = Sides(said["write"], (*said["deny-write"], HUGZ))
        read, consume = Sides(said["read"], said["deny-read"]), (*said[DENY_CONSUME], *said["deny-read"])
        return Rights(read, write, frozenset(said["admin"]), Sides(said[CONSUME], consume))


def _together(name: str, entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(sorted({word for entry in entries for word in entry.get(name, ())}))


def _name(name: object, kind: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise BadInput(f"{name!r:.80} is no name in {kind!r}: 1 to 64 letters, digits, '_' and '-'")
    return name


def _entry(entry: object, kind: str, name: str) -> Entry:
    allowed = {*LISTS, "roles", "tokens"} if kind == "users" else set(LISTS)
    if not isinstance(entry, dict) or not entry.keys() <= allowed:
        unknown = sorted(map(str, entry.keys() - allowed))[:1] if isinstance(entry, dict) else ["no table"]
        raise BadInput(f"{kind} {name!r}: {', '.join(unknown)!r:.80}; there are {', '.join(sorted(allowed))}")
    found: Entry = {}
    for what, words in sorted(entry.items()):
        if not isinstance(words, list):
            raise BadInput(f"{kind} {name!r}: {what!r} is a list, such as {what} = [...]")
        if words:
            found[what] = sorted({_word(what, word, f"{kind} {name!r}") for word in words})
    if len(found.get("roles", ())) > ROLES_MAX:
        raise BadInput(f"{kind} {name!r}: at most {ROLES_MAX} roles")
    if len(found.get("tokens", ())) > TOKENS_MAX:
        raise BadInput(f"{kind} {name!r}: at most {TOKENS_MAX} tokens; revoke one first")
    return found


def _word(what: str, word: object, whose: str) -> str:
    if what == "roles":
        return _name(word, "roles")
    if what == "tokens":
        if not isinstance(word, str) or not _HASH.match(word):
            raise BadInput(f"{whose}: tokens are SHA-256 in 64 hexadecimal digits, as `chp access token` writes them")
        return word
    if what == "admin":
        if not isinstance(word, str) or not _COMMAND.match(word):
            raise BadInput(f"{whose}: {word!r:.60} is no admin command; such as status, switch, backup, access")
        return word
    try:
        return check_subtree(word)
    except BadInput as error:
        raise BadInput(f"{whose}: {what} {error}") from None


def token_hash(token: str) -> str:
    """What the rules have of a bearer token: 32 random bytes are not to be found by trying, so one hash is enough."""
    return sha256(b"chp token" + token.encode(errors="replace")).hexdigest()


def granted(document: Document, kind: str, name: str, what: str, words: Iterable[str]) -> Document:
    """Rules with more in one list of a user or a role ("users" or "roles"), who may be new."""
    return _with(document, kind, name, what, sorted({*document[kind].get(name, {}).get(what, ()), *words}))


def revoked(document: Document, kind: str, name: str, what: str, words: Iterable[str]) -> Document:
    """Rules with less in one list; `BadInput` if something of it is not there."""
    gone, old = set(words), set(document[kind].get(name, {}).get(what, ()))
    if missing := sorted(gone - old):
        raise BadInput(
            f"{kind[:-1]} {name!r} has no {what} {missing[0]!r} of its own; `chp access show` lists what there is"
        )
    return _with(document, kind, name, what, sorted(old - gone))


def without(document: Document, kind: str, name: str) -> Document:
    """Rules without a user or a role."""
    if name not in document[kind]:
        raise BadInput(f"there is no {kind[:-1]} {name!r}; `chp access show` lists them")
    return {**document, kind: {known: entry for known, entry in document[kind].items() if known != name}}


def _with(document: Document, kind: str, name: str, what: str, words: list[str]) -> Document:
    entry = {**document[kind].get(name, {}), what: words}
    return {**document, kind: {**document[kind], name: {each: said for each, said in entry.items() if said}}}


def changes(before: Document | None, after: Document, most: int = 50) -> list[str]:
    """What new rules change, a line each: `+ user bob read /pub/`."""
    old, new = (set(lines(document)) if document is not None else set() for document in (before, after))
    found = [f"- {line}" for line in sorted(old - new)] + [f"+ {line}" for line in sorted(new - old)]
    return found if len(found) <= most else [*found[:most], f"and {len(found) - most} more"]


def lines(document: Document) -> list[str]:
    """Rules as people read and compare them, a line each: `user alice read /pub/`."""
    return [
        f"{kind[:-1]} {name} {what} {word or repr(word)}" if what else f"{kind[:-1]} {name}"
        for kind in ("roles", "users")
        for name, entry in document[kind].items()
        for what, word in ([(what, word) for what, words in entry.items() for word in words] or [("", "")])
    ]
