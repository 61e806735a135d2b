"""The rights that a message needs: whether its user may do what it asks for (SPEC.md, section 36).

    P      a copy, a resume, a feed, a probe, an image       read of its subtree      `unread`
           the messages of a member of a group               consume of the group, and the member's lease  `unconsumed`
           an admin command                                  that command             `undone`
    P+1    a channel, a prefix of CHP/1                      read of all of it        `unheard`
           the channel of a session                          it is the user's own
    P+2    a batch, a set of CHP/1                           write of each key; conditions read it        `check_batch`
           a commit                                          write of the staged keys, and of the replaced subtree
           an application's version, a transaction           it is the user's own
           a group: made, joined, acknowledged, removed      consume of the group

P is the snapshot port, P+1 the publisher, P+2 the collector. Each function returns "" if the user has the right, or
else a text for people: what the user may not do, and who may change the rules.

Without rules everything is allowed. The authorizer always uses the rules at the last committed number, so a KVSET after
a revocation is refused. `speaker` is the user of the current message, as the shell says; "" if the user is not known.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chp import columns
from chp.access import TOPICS, VOUCH, Rights, Rules
from chp.batch import Segment
from chp.errors import BadInput
from chp.fair import FairTable
from chp.keys import CLIENT_BYTES, ETX, STX, topic_subtree
from chp.topics import dead_topic, is_keyed_lease

from ..state.access_state import APPLICATION, GROUP, AccessState
from ..state.leases import HeldLease
from ..state.staging import StagedBatch

# The first subscriber is remembered for at most this many session channels: as many as `sessions_max`.
CLAIMS_MAX = 100_000
OWN = STX + b"@"
# A replica puts this frame and the name of a user before a message that it sends for this user.
VOUCHED = STX + b"vouch" + ETX
_USER = re.compile(rb"[A-Za-z0-9_-]{1,64}\Z")
# The subscriptions on P+1 that each user may have. They tell only that the server is alive, and nothing of its data.
FREE = frozenset({b"HUGZ"})
FREE_SUBTREES = frozenset({"/.chp/pulse/"})
# Columns that a user without any right to write may not send.
OF_WRITERS = frozenset({columns.STAGE, columns.COMMIT, columns.ABORT, columns.ONCE})
Frames = list[bytes]
Origin = tuple[str, str]  # the key, and the address
NOWHERE: Origin = ("", "")
# Logs show this many characters of a client's key.
KEY_SHOWN = 8


class Signed(list[bytes]):
    """The frames of a message with the user that sent it, for a passive to keep. `origin` is for the audit log."""

    __slots__ = ("origin", "user")

    def __init__(self, frames: Frames, user: str, origin: Origin = NOWHERE) -> None:
        super().__init__(frames)
        self.user, self.origin = user, origin


def with_user(frames: Frames, others: Frames) -> Frames:
    """Return other frames of the same message, with its user."""
    return Signed(others, frames.user) if isinstance(frames, Signed) else others


class StagedInfo(Protocol):
    """The part of `Staging` that the authorizer needs."""

    def batches(self, transaction_id: bytes, parts: list[list[Any]]) -> Sequence[StagedBatch]:
        """Return the batches of the named parts."""

    def opener_of(self, transaction_id: bytes) -> bytes | None:
        """Return the client that opened a transaction; None if it is not known here."""

    def owner_of(self, application: str) -> str | None:
        """Return the user of an application; None if it has none."""


def signer(frames: Frames) -> str:
    """Return the user that sent a KVSET; "" if it is not known."""
    return frames.user if isinstance(frames, Signed) else ""


@dataclass(slots=True)
class Authorizer:
    """The decision whether a user may do what a message asks for.

    It keeps the user of the current message (`speaker`), and the first subscriber of each session's channel (`claims`).
    """

    speaker: str = ""
    origin: Origin = NOWHERE  # of the speaker
    claims: FairTable[bytes, None] = field(default_factory=lambda: FairTable(CLAIMS_MAX))

    def heed(self, frames: Frames) -> None:
        """Take over the user of a message that is handled from now on."""
        self.speaker, self.origin = (frames.user, frames.origin) if isinstance(frames, Signed) else ("", NOWHERE)

    def vouched(self, granted: AccessState, frames: Frames, at: int, *, keyed: bool) -> Frames:
        """Return a message that a replica sends for a user, as if the user had sent it.

        `at` is the index of the first frame of the message: with the identity of a connection before it, 1, else 0.

        Any other message is returned as it is. Raise `BadInput` if the sender may not speak for others.
        """
        if len(frames) < at + 3 or frames[at] != VOUCHED:
            return frames
        sender, rules = signer(frames), granted.rules
        if rules is not None and VOUCH not in rules.rights(sender).admin:
            raise BadInput(
                _denied(rules, sender, "speak for other users as a replica, which is the right `admin vouch`")
            )
        if not _USER.match(frames[at + 1]):
            raise BadInput("a replica names no user for a message")
        user, origin = frames[at + 1].decode() if keyed else "", getattr(frames, "origin", NOWHERE)
        return Signed([*frames[:at], *frames[at + 2 :]], user, origin)

    def who(self) -> dict[str, str]:
        """Return what is known of the speaker, for logs and the audit log."""
        key, address = self.origin
        known = {"key": key[:KEY_SHOWN], "address": address}
        return {"user": self.speaker, **{name: text for name, text in known.items() if text}}

    # -- P

    def unread(self, granted: AccessState, user: str, subtree: str) -> str:
        """Return why a user may not copy or feed a subtree; "" if it may."""
        rules = granted.rules
        if rules is None or subtree in FREE_SUBTREES or rules.rights(user).read.covers(subtree):
            return ""
        return _denied(rules, user, f"read {subtree or 'everything'!r}")

    def unconsumed(self, granted: AccessState, topic: str, group: str, lease: HeldLease | None) -> str:
        """Return why the speaker may not get the messages of a group's member, which has this lease; "" if it may."""
        rules = granted.rules
        if rules is None:
            return ""
        if what := rules.unconsumed(self.speaker, topic, group):
            return _denied(rules, self.speaker, what)
        if lease is None or self._may_use(granted, lease.owner):
            return ""
        return "the member's lease is another user's; join with a lease of your own"

    def _may_use(self, granted: AccessState, owner: bytes) -> bool:
        """Return whether the speaker may use a lease of this owner: one of the speaker's clients, or all of them."""
        if owner.startswith(columns.ANYBODY):
            return owner == columns.ANYBODY + self.speaker.encode()
        return self.owns(granted, owner)

    def owns(self, granted: AccessState, session_id: bytes) -> bool:
        """Return whether a session belongs to the speaker, or to no user yet."""
        return granted.rules is None or granted.owner_of(session_id) in (None, self.speaker)

    def undone(self, granted: AccessState, command: str) -> str:
        """Return why the speaker may not use an admin command; "" if it may."""
        rules = granted.rules
        if rules is None or command in rules.rights(self.speaker).admin:
            return ""
        return _denied(rules, self.speaker, f"use the admin command {command!r}")

    # -- P+1

    def unheard(self, granted: AccessState, user: str, topic: bytes) -> str:
        """Return why a user may not subscribe to a topic; "" if it may."""
        rules = granted.rules
        if topic[:2] == OWN:
            # A replica hears the answers to its clients' sets.
            vouches = rules is not None and VOUCH in rules.rights(user).admin
            return "" if vouches else self._not_own(granted, user, topic)
        if rules is None or topic in FREE:
            return ""
        subtree = topic_subtree(topic) if topic[:1] == STX else _text(topic)
        if subtree is None:
            return _denied(rules, user, "subscribe to a topic that is neither a subtree's channel nor a prefix of keys")
        if subtree in FREE_SUBTREES or rules.rights(user).read.covers(subtree):
            return ""
        return _denied(rules, user, f"read {subtree or 'everything'!r}")

    def _not_own(self, granted: AccessState, user: str, topic: bytes) -> str:
        """Return why a session's channel is not the user's; "" if it is.

        The channel belongs to the user that owns the session's client, or else to the user that first subscribed to it.
        """
        try:
            client = bytes.fromhex(topic[2:-1].decode("ascii"))[:CLIENT_BYTES]
        except ValueError:
            client = b""
        if len(topic) != 35 or not client:
            return "subscribe to a session's channel by its whole name"
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
    """Return why a batch is refused by the rules; "" if it is not."""
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
    """Return why a user may not open a lease of this name; "" if it may.

    Gateways give names of this kind to members, and users that may read everything may have seen some.
    """
    if not secret or "access" in rights.admin or not is_keyed_lease(secret, lease):
        return ""
    return "leases of this name are for group members that use a gateway; open one with another name"


def check_plain(granted: AccessState, user: str, key: str) -> str:
    """Return why a set of CHP/1 is refused by the rules; "" if it is not."""
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
    named += [item[0] for name in (columns.SCHEDULE, columns.CANCEL) for item in extras.get(name, ())]
    if columns.GROUP in extras and (extras[columns.GROUP][2] or {}).get("max_deliveries") is not None:
        # The server will publish messages that fail too often there, so the user must have the right to write there.
        named.append(dead_topic(*extras[columns.GROUP][:2]))
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


def unscheduled(granted: AccessState, user: str, topic: str, unless: str) -> str:
    """Return why a message that a user has scheduled may not be published any more; "" if it may."""
    rules = granted.rules
    if rules is None:
        return ""
    rights = rules.rights(user)
    if not rights.write.covers(f"{TOPICS}{topic}/"):
        return _denied(rules, user, f"write topic {topic!r:.200}")
    if unless and not rights.read.has(unless):
        return _denied(rules, user, f"read {unless!r:.200}, which the message depends on")
    return ""


def _anothers(granted: AccessState, user: str, extras: dict[str, Any], staging: StagedInfo) -> str:
    """Return why an application or a transaction of a batch is another user's; "" if none is.

    Without this check, a user could commit versions of another user's application, or end its transactions, and so undo
    the other user's work without a trace.
    """
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
    """Return the names that become the user's with this batch: the session's client, applications, a group."""
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
    """Return the keys that the batch has conditions on: the answer may tell their revisions."""
    found = [key for key, _ in extras.get(columns.EXPECT, ())]
    found += [entry[4] for entry in extras.get(columns.SCHEDULE, ()) if entry[4]]
    for name in (columns.CONDITIONS, columns.UNLESS_NEWER):
        found += [segment.keys[i] for i in extras[name][0]] if name in extras else []
    return found


def _of_groups(extras: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return topic and name of each group that a segment names, and whether the group is removed or begun again."""
    named = [(*extras[columns.JOIN][:2], False)] if columns.JOIN in extras else []
    if columns.GROUP in extras:
        topic, group, settings = extras[columns.GROUP]
        named.append((topic, group, settings is None or "again" in settings))
    named += [(topic, group, False) for topic, group, *_ in extras.get(columns.NACK, ())]
    return named + [(topic, group, False) for topic, group, *_ in extras.get(columns.ACK, ())]


def _uncommitted(rules: Rules, rights: Rights, user: str, commit: list[Any], staging: StagedInfo) -> str:
    """Return why a commit is refused by the rules; "" if it is not.

    Staged parts were checked when they came. They are checked again, as the rules may have changed, and
    as another user may have staged them.
    """
    transaction_id, _, _, parts, replace = commit
    if replace is not None and not rights.write.covers(replace):
        return _denied(rules, user, f"replace {replace or 'everything'!r}")
    for batch in staging.batches(transaction_id, parts):
        # Mostly one rule covers all keys, and the lowest and the highest key show that.
        if batch.plain and rights.write.covers(batch.prefix):
            continue
        # The text names no key, as the keys may be another user's.
        if _unwritten(rules, rights, user, batch.segment()):
            return _denied(rules, user, "write all that was staged")
    return ""


def _text(topic: bytes) -> str | None:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return None


def _denied(rules: Rules, user: str, what: str) -> str:
    who = f"user {user!r}" if user else "a client without a key"
    return f"{who} may not {what}; ask {rules.to_ask() or 'the operator'}, who may change the rules"
