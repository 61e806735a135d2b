"""The rules of access: users and roles with what each may do, as one value (SPEC.md, section 36).

    rules = {"users": {NAME: entry}, "roles": {NAME: entry}}
    entry = {"roles": [...], "read": [PREFIX, ...], "write": [...], "consume": [...], "deny-read": [...],
             "deny-write": [...], "deny-consume": [...], "admin": [COMMAND, ...], "tokens": [SHA-256, ...]}
                                        lists that are empty are left out; a role has no "roles" and no "tokens"

A prefix is a subtree: empty (everything), or with a slash at both ends; there are no patterns. A key that no rule
allows is not allowed, and a denied key is denied even if another rule allows it. A rule is about keys, so a subtree may
be read if a rule allows all of it and no rule denies a part of it.

`consume` is the right to use a group of a topic: to make it, to be its member, to acknowledge its messages, to reset it
and to remove it. The prefix of a group is `/.chp/topics/TOPIC/GROUP/`. Rules that never name `consume` keep the meaning
that they had before this right existed: `read` of the topic is enough, but to reset or remove a group needs `write` of
the topic too.

All rules are one value that is replaced as a whole. The value is small, and two operators who change it at once can't
mix their changes. Pure.
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
# The admin commands of this version. Rules may name other ones, as later versions may have more.
COMMANDS = ("access", "backup", "clients", "leases", "restore", "status", "switch", "vouch")
# The admin command that a replica needs: to follow the pair, and to send requests in the name of its clients.
VOUCH = "vouch"
# All rules, packed, take at most this many bytes, so that they fit a message of 64 KiB that sets or returns them.
RULES_BYTES_MAX = 32 << 10
# One user has at most this many roles.
ROLES_MAX = 32
# One user has at most this many tokens, so that the tokens leave room for the rules.
TOKENS_MAX = 16
# People and an audit name a token by this many digits of its hash.
TOKEN_SHOWN = 8
# The answer to a denied user names at most this many users who may change the rules.
ASK_MAX = 3
# A message on P+1 to one subscriber alone has a nonce of this many bytes after its topic.
NONCE_BYTES = 8
# The rights to topic NAME are the rights to the subtree /.chp/topics/NAME/.
TOPICS = "/.chp/topics/"
BY_READ = "no rule names `consume`: `read` of a topic allows its groups, and `write` allows to remove and reset them"
BY_CONSUME = "rules name `consume`: it alone allows to make, use, reset and remove the groups of a topic"
# Every user hears this topic, even one who may read nothing. Its subscribers also get all keys that begin with HUGZ, so
# no user may write such keys.
HUGZ = "HUGZ"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_COMMAND = re.compile(r"[a-z][a-z-]{0,31}\Z")
_HASH = re.compile(r"[0-9a-f]{64}\Z")
# A token is looked up by this many digits of its hash. A client that invents tokens can't choose these digits.
_FOUND_BY = 16
Entry = dict[str, list[str]]
Document = dict[str, dict[str, Entry]]


@dataclass(frozen=True, slots=True)
class Sides:
    """The prefixes that are allowed and denied for one right, such as reading."""

    allow: tuple[str, ...]
    deny: tuple[str, ...]

    def covers(self, prefix: str) -> bool:
        """Return True if every key that begins with a prefix is allowed, including keys that do not exist yet."""
        return prefix.startswith(self.allow) and not any(
            prefix.startswith(denied) or denied.startswith(prefix) for denied in self.deny
        )

    def has(self, key: str) -> bool:
        """Return True if one key is allowed."""
        return key.startswith(self.allow) and not key.startswith(self.deny)

    def first_not(self, keys: Sequence[str]) -> str | None:
        """Return the first key that is not allowed, or None.

        Usually all keys are allowed. Two comparisons for each rule show that: if the lowest and the highest key begin
        with a prefix, all keys between them do.
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
    """The rights of one user, with those of the user's roles."""

    read: Sides
    write: Sides
    admin: frozenset[str]
    consume: Sides = Sides((), ())


NOTHING = Rights(Sides((), ()), Sides((), ()), frozenset())


class Rules:
    """All rules, checked and immutable."""

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
        """Check a document and return its rules, or raise `BadInput` that names what is wrong."""
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
        """Return True if a user has a right to a key, to all of a subtree, or to an admin command.

        A subtree is "" or ends with a slash. Each port of a server makes this check in some form.
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
        """Return the right that a user lacks to consume by a group; "" if the user lacks none.

        With `loses`, the group is to be removed or reset. The group may belong to another user, and messages that the
        group keeps may be removed.
        """
        rights, of_topic = self.rights(user), f"{TOPICS}{topic}/"
        if self.names_consume:
            allowed = rights.consume.covers(f"{of_topic}{group}/")
            return "" if allowed else f"consume by group {group!r:.200} of topic {topic!r:.200}"
        if loses and not rights.write.covers(of_topic):
            return f"write topic {topic!r:.200}"
        return "" if rights.read.covers(of_topic) else f"read topic {topic!r:.200}"

    def _consumes(self, rights: Rights, where: str) -> bool:
        """Return True if these rights allow to consume by all groups below a prefix.

        If no rule names `consume`, the right to read decides.
        """
        if self.names_consume:
            return rights.consume.covers(where)
        topic = where[len(TOPICS) :].partition("/")[0] if where.startswith(TOPICS) else ""
        return rights.read.covers(f"{TOPICS}{topic}/" if topic else where)

    def user_of(self, hashed: str) -> str:
        """Return the user whose token has this hash, or ""."""
        known, user = self._tokens.get(hashed[:_FOUND_BY], ("", ""))
        return user if compare_digest(hashed, known) else ""

    def to_ask(self) -> str:
        """Return the users that may change the rules, for the answer to a denied user."""
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
    """Return the hash of a bearer token, as the rules keep it.

    A token has 32 random bytes, which can't be found by trying, so one hash is enough.
    """
    return sha256(b"chp token" + token.encode(errors="replace")).hexdigest()


def granted(document: Document, kind: str, name: str, what: str, words: Iterable[str]) -> Document:
    """Return the rules with `words` added to the list `what` of a user or a role, which may be new.

    `kind` is "users" or "roles".
    """
    return _with(document, kind, name, what, sorted({*document[kind].get(name, {}).get(what, ()), *words}))


def revoked(document: Document, kind: str, name: str, what: str, words: Iterable[str]) -> Document:
    """Return the rules with `words` removed from the list `what`; raise `BadInput` if the list lacks one of them."""
    gone, old = set(words), set(document[kind].get(name, {}).get(what, ()))
    if missing := sorted(gone - old):
        raise BadInput(
            f"{kind[:-1]} {name!r} has no {what} {missing[0]!r} of its own; `chp access show` lists what there is"
        )
    return _with(document, kind, name, what, sorted(old - gone))


def without(document: Document, kind: str, name: str) -> Document:
    """Return rules without a user or a role."""
    if name not in document[kind]:
        raise BadInput(f"there is no {kind[:-1]} {name!r}; `chp access show` lists them")
    return {**document, kind: {known: entry for known, entry in document[kind].items() if known != name}}


def _with(document: Document, kind: str, name: str, what: str, words: list[str]) -> Document:
    entry = {**document[kind].get(name, {}), what: words}
    return {**document, kind: {**document[kind], name: {each: said for each, said in entry.items() if said}}}


def changes(before: Document | None, after: Document, most: int = 50) -> list[str]:
    """Return a line for each change that new rules make: `+ user bob read /pub/`."""
    old, new = (set(lines(document)) if document is not None else set() for document in (before, after))
    found = [f"- {line}" for line in sorted(old - new)] + [f"+ {line}" for line in sorted(new - old)]
    return found if len(found) <= most else [*found[:most], f"and {len(found) - most} more"]


def lines(document: Document) -> list[str]:
    """Return the rules as people read and compare them, a line each: `user alice read /pub/`."""
    return [
        f"{kind[:-1]} {name} {what} {word or repr(word)}" if what else f"{kind[:-1]} {name}"
        for kind in ("roles", "users")
        for name, entry in document[kind].items()
        for what, word in ([(what, word) for what, words in entry.items() for word in words] or [("", "")])
    ]
