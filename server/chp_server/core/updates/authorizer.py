"""What each door asks of the rules: whether who speaks may do what it asks for (SPEC.md, section 36).

    P      a copy, a resume, a feed, a probe, an image       read of its subtree      `unread`
           the messages of a member of a group               consume of the group, and the member's lease  `unconsumed`
           an admin command                                  that command             `undone`
    P+1    a channel, a prefix of CHP/1                      read of all of it        `unheard`
           the channel of a session                          it is the user's own
    P+2    a batch, a set of CHP/1                           write of each key; conditions read it        `check_batch`
           a commit                                          write of what was staged, and of what it replaces
           an application's version, a transaction           it is the user's own
           a group: made, joined, acknowledged, removed      consume of the group

Each answers with "" or with a text for people: what they may not do, and who may change that. Without rules nothing is
asked; rules are read at the number that is committed, so a KVSET after a revocation is refused. `speaker` is the user
of the message in hand, as whoever runs the core said ("" for one that is not known). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from chp import columns
from chp.access import TOPICS, Rights, Rules
from chp.batch import Segment
from chp.fair import FairTable
from chp.keys import CLIENT_BYTES, STX, topic_subtree
from chp.topics import is_keyed_lease

from ..state.access_state import APPLICATION, GROUP, AccessState
from ..state.leases import HeldLease

CLAIMS_MAX = 100_000  # as sessions_max
OWN = STX + b"@"
FREE = frozenset({b"HUGZ"})  # of P+1: that a server lives, and nothing of what it holds
FREE_SUBTREES = frozenset({"/.chp/pulse/"})
OF_WRITERS = frozenset({columns.STAGE, columns.COMMIT, columns.ABORT, columns.ONCE})  # not for who may write nothing
Frames = list[bytes]
Origin = tuple[str, str]  # the key, and the address
NOWHERE: Origin = ("", "")
KEY_SHOWN = 8  # characters of a key, by which people know it


class Signed(list[bytes]):
    """The frames of a message, and the user who sent it; a passive keeps them together. `origin` is for an audit."""

    __slots__ = ("origin", "user")

    def __init__(self, frames: Frames, user: str, origin: Origin = NOWHERE) -> None:
        super().__init__(frames)
        self.user, self.origin = user, origin


def with_user(frames: Frames, others: Frames) -> Frames:
    """Other frames of the same message."""
    return Signed(others, frames.user) if isinstance(frames, Signed) else others


class StagedInfo(Protocol):
    """What is known of what is staged."""

    def decoded(self, transaction_id: bytes, parts: list[list[Any]]) -> list[Segment]:
        """The segments of the named parts."""

    def opener_of(self, transaction_id: bytes) -> bytes | None:
        """The client that staged something in it first, as far as that is known here."""

    def owner_of(self, application: str) -> str | None:
        """The user of an application; None if it is nobody's."""


def signer(frames: Frames) -> str:
    """Who sent a KVSET."""
    return frames.user if isinstance(frames, Signed) else ""


@dataclass(slots=True)
class Authorizer:
    """Who speaks, and which sessions' channels were asked for first by whom."""

    speaker: str = ""
    origin: Origin = NOWHERE  # of the speaker
    claims: FairTable[bytes, None] = field(default_factory=lambda: FairTable(CLAIMS_MAX))

    def heed(self, frames: Frames) -> None:
        """A message is in hand."""
        self.speaker, self.origin = (frames.user, frames.origin) if isinstance(frames, Signed) else ("", NOWHERE)

    def who(self) -> dict[str, str]:
        """Who speaks, for logs and an audit: what is known of it."""
        key, address = self.origin
        known = {"key": key[:KEY_SHOWN], "address": address}
        return {"user": self.speaker, **{name: text for name, text in known.items() if text}}

    # -- P

    def unread(self, granted: AccessState, user: str, subtree: str) -> str:
        """Why a copy or feed of a subtree is not to be had."""
        rules = granted.rules
        if rules is None or subtree in FREE_SUBTREES or rules.rights(user).read.covers(subtree):
            return ""
        return _denied(rules, user, f"read {subtree or 'everything'!r}")

    def unconsumed(self, granted: AccessState, topic: str, group: str, lease: HeldLease | None) -> str:
        """Return why the user in hand may not have the messages that a group gives to the member of a lease, or ""."""
        rules = granted.rules
        if rules is None:
            return ""
        if what := rules.unconsumed(self.speaker, topic, group):
            return _denied(rules, self.speaker, what)
        if lease is None or self._may_use(granted, lease.owner):
            return ""
        return "the member's lease is another user's; join with a lease of your own"

    def _may_use(self, granted: AccessState, owner: bytes) -> bool:
        """Return whether a lease of this owner is the user's: of one of its clients, or of anybody of its."""
        if owner.startswith(columns.ANYBODY):
            return owner == columns.ANYBODY + self.speaker.encode()
        return self.owns(granted, owner)

    def owns(self, granted: AccessState, session_id: bytes) -> bool:
        """Whether a session is the speaker's, or nobody's yet."""
        return granted.rules is None or granted.owner_of(session_id) in (None, self.speaker)

    def undone(self, granted: AccessState, command: str) -> str:
        """Why an admin command is not done."""
        rules = granted.rules
        if rules is None or command in rules.rights(self.speaker).admin:
            return ""
        return _denied(rules, self.speaker, f"use the admin command {command!r}")

    # -- P+1

    def unheard(self, granted: AccessState, user: str, topic: bytes) -> str:
        """Why a subscription is not admitted."""
        if topic[:2] == OWN:
            return self._not_own(granted, user, topic)
        rules = granted.rules
        if rules is None or topic in FREE:
            return ""
        subtree = topic_subtree(topic) if topic[:1] == STX else _text(topic)
        if subtree is None:
            return _denied(rules, user, "subscribe to what is neither a subtree's channel nor a prefix of keys")
        if subtree in FREE_SUBTREES or rules.rights(user).read.covers(subtree):
            return ""
        return _denied(rules, user, f"read {subtree or 'everything'!r}")

    def _not_own(self, granted: AccessState, user: str, topic: bytes) -> str:
        """A session's channel is its user's: of who wrote with it, or else of who asked for it first."""
        try:
            client = bytes.fromhex(topic[2:-1].decode("ascii"))[:CLIENT_BYTES]
        except ValueError:
            client = b""
        if len(topic) != 35 or not client:
            return "a session's channel is subscribed to by its whole name"
        owner = granted.owners.get(client)
        if owner is None and client in self.claims:
            owner = self.claims.user_of(client)
        if owner is None:
            owner = user
            self.claims.put(client, None, user)
            if len(self.claims) > CLAIMS_MAX:
                del self.claims[self.claims.loser()]
        return "" if owner == user or granted.rules is None else "the session is another user's; open one of your own"


# -- P+2


def check_batch(granted: AccessState, user: str, session_id: bytes, segment: Segment, staging: StagedInfo) -> str:
    """Why a batch is not done."""
    rules = granted.rules
    if rules is None:
        return ""
    owner, rights = granted.owner_of(session_id), rules.rights(user)
    if owner not in (None, user):
        return "the session is another user's; open one of your own"
    extras = segment.extras or {}
    why = _unwritten(rules, rights, user, segment) or _anothers(granted, user, extras, staging)
    if not why and columns.LEASE in extras:
        why = _of_gateways(granted.secret, rights, extras[columns.LEASE][0])
    if not why and segment.extras and columns.COMMIT in segment.extras:
        why = _uncommitted(rules, rights, user, segment.extras[columns.COMMIT], staging)
    return why


def _of_gateways(secret: bytes, rights: Rights, lease: bytes) -> str:
    """Return why a lease of this name is not opened: gateways name members so, and readers of all may have seen it."""
    if not secret or "access" in rights.admin or not is_keyed_lease(secret, lease):
        return ""
    return "leases of this name are for members of groups that come by gateways; open one of another name"


def check_plain(granted: AccessState, user: str, key: str) -> str:
    """Why a set of CHP/1 is not done."""
    rules = granted.rules
    if rules is None or rules.rights(user).write.has(key):
        return ""
    return _denied(rules, user, f"write {key!r:.200}")


def _unwritten(rules: Rules, rights: Rights, user: str, segment: Segment) -> str:
    if (key := rights.write.first_not(segment.keys)) is not None:
        return _denied(rules, user, f"write {key!r:.200}")
    extras = segment.extras or {}
    if not (segment.keys or rights.write.allow) and (not extras or not OF_WRITERS.isdisjoint(extras)):
        return _denied(rules, user, "write anything")
    named = [item[0] for item in extras.get(columns.PUBLISH, ())]
    named += extras[columns.TOPIC][:1] if columns.TOPIC in extras else []
    for topic in named:
        if not rights.write.covers(f"{TOPICS}{topic}/"):
            return _denied(rules, user, f"write topic {topic!r:.200}")
    for topic, group, loses in _of_groups(extras):
        if what := rules.unconsumed(user, topic, group, loses=loses):
            return _denied(rules, user, what)
    key = rights.read.first_not(_conditions(segment, extras))
    if key is not None:
        return _denied(rules, user, f"read {key!r:.200}, which the batch has a condition on")
    return ""


def _anothers(granted: AccessState, user: str, extras: dict[str, Any], staging: StagedInfo) -> str:
    """Whoever could count an application's versions up, or end its transactions, would undo its work unseen."""
    for name in applications(extras):
        if staging.owner_of(name) not in (None, user):
            return f"the application {name!r:.200} is another user's; choose another name"
    for transaction_id in _transactions(extras):
        opener = staging.opener_of(transaction_id)
        if opener is not None and granted.owners.get(opener, user) != user:
            return "the staged commit is another user's; begin one of your own"
    return ""


def new_owners(
    granted: AccessState, user: str, session_id: bytes, extras: dict[str, Any], staging: StagedInfo
) -> dict[bytes, str]:
    """Return what becomes the user's with a batch that is done: the session's client, and applications."""
    client, named = session_id[:CLIENT_BYTES], applications(extras)
    found = {} if client in granted.owners else {client: user}
    if extras.get(columns.GROUP, [None, None, None])[2] is not None:
        found[GROUP + "/".join(extras[columns.GROUP][:2]).encode()] = user
    return found | {APPLICATION + name.encode(): user for name in named if staging.owner_of(name) is None}


def applications(extras: dict[str, Any]) -> list[str]:
    """Return the applications whose versions a segment counts."""
    named = [extras[columns.ONCE][0]] if columns.ONCE in extras else []
    named += [extras[columns.COMMIT][1]] if columns.COMMIT in extras else []
    return [name for name in named if name]


def _transactions(extras: dict[str, Any]) -> list[bytes]:
    named = [extras[name][0] for name in (columns.STAGE, columns.COMMIT) if name in extras]
    return named + ([extras[columns.ABORT]] if columns.ABORT in extras else [])


def _conditions(segment: Segment, extras: dict[str, Any]) -> list[str]:
    """The keys whose revisions the answer may tell."""
    found = [key for key, _ in extras.get(columns.EXPECT, ())]
    for name in (columns.CONDITIONS, columns.UNLESS_NEWER):
        found += [segment.keys[i] for i in extras[name][0]] if name in extras else []
    return found


def _of_groups(extras: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return topic and name of each group that a segment names, and whether it removes it or begins it anew."""
    named = [(*extras[columns.JOIN][:2], False)] if columns.JOIN in extras else []
    if columns.GROUP in extras:
        topic, group, settings = extras[columns.GROUP]
        named.append((topic, group, settings is None or "again" in settings))
    return named + [(topic, group, False) for topic, group, *_ in extras.get(columns.ACK, ())]


def _uncommitted(rules: Rules, rights: Rights, user: str, commit: list[Any], staging: StagedInfo) -> str:
    """Staged parts were looked at when they came; they are again, as rules may have changed, and may be another's."""
    transaction_id, _, _, parts, replace = commit
    if replace is not None and not rights.write.covers(replace):
        return _denied(rules, user, f"replace {replace or 'everything'!r}")
    for segment in staging.decoded(transaction_id, parts):
        if _unwritten(rules, rights, user, segment):  # whose names may be another's to know
            return _denied(rules, user, "write all that was staged")
    return ""


def _text(topic: bytes) -> str | None:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return None


def _denied(rules: Rules, user: str, what: str) -> str:
    who = f"user {user!r}" if user else "who has no key"
    return f"{who} may not {what}; ask {rules.to_ask() or 'who runs the server'}, who may change the rules"
