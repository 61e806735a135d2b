"""The names of a segment's sparse columns (SPEC.md, section 13), so that no code has such a name as a bare string.

Code that reads `extras[columns.TTLS]` need not know that the name on the wire is "t". `batch` checks the form of each
column when it reads a segment.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from .numbers import describe

DELETES: Final = "d"
TTLS: Final = "t"
# A batch is done only if each of these keys has the given revision.
CONDITIONS: Final = "c"
# An item is left out if its key has a later revision than the given one.
UNLESS_NEWER: Final = "n"
# The keys live as long as the lease that this column names.
LEASED: Final = "l"
# Open a lease, or refresh it.
LEASE: Final = "lease"
# If a lease belongs to no single client, ANYBODY stands in the place of its owner. In records, the name of the user
# follows.
ANYBODY: Final = b"anybody:"
# Refresh a lease that is there; the batch is refused if the lease has ended.
REFRESH: Final = "refresh"
UNLEASE: Final = "unlease"
STAGE: Final = "stage"
COMMIT: Final = "commit"
ABORT: Final = "abort"
# The revisions of the items, as runs of [revision, count].
REVISIONS: Final = "r"
UUIDS: Final = "u"
PROPERTIES: Final = "p"
# A staged commit was made: its application, version and transaction.
DONE: Final = "done"
# Time caused this change, such as the expiry of keys or of a lease, and no client.
ENDED: Final = "ended"
# A batch was refused; if it is sent again it is refused again.
REFUSED: Final = "refused"
# The batches of a session that its client can't send again, since another server answered them.
SKIPPED: Final = "skipped"
# The first field tells if the record's number is kept, so that an image of it can be made. The second field lists the
# numbers that are no longer kept.
IMAGES: Final = "images"
# In packed chunks: the length of each key, and of each value.
KEY_BYTES: Final = "k"
VALUE_BYTES: Final = "v"
# Messages for topics: the name of the topic, the count, and the messages.
PUBLISH: Final = "publish"
# Make a topic, or remove it.
TOPIC: Final = "topic"
# The offsets that the messages of `publish` got. This column replaces `publish`.
PLACED: Final = "placed"
# Messages below an offset are removed.
TRIM: Final = "trim"
# Make a group of a topic, reset it, or remove it.
GROUP: Final = "group"
# A lease becomes a member of a group.
JOIN: Final = "join"
# An acknowledgement: slots of a group move from one offset to another.
ACK: Final = "ack"
# The slots that each member has from now on.
ASSIGN: Final = "assign"
# A member gives messages back that it could not handle.
NACK: Final = "nack"
# Members ended, or lost slots, with messages in hand: the messages of these slots below an offset have failed.
FAILED: Final = "failed"
# A message that failed too often is put aside: its slots continue with the messages after it.
ASIDE: Final = "aside"
# Messages that their topics hold back until their time, and those that are cancelled.
SCHEDULE: Final = "schedule"
CANCEL: Final = "cancel"
# The messages of `schedule`, with the times at which they are due. This column replaces `schedule`.
SCHEDULED: Final = "scheduled"
# Scheduled messages that were published or dropped, and when each is due again.
FIRED: Final = "fired"
# A batch is done only if these keys have these revisions. They need not be keys of the segment.
EXPECT: Final = "expect"
# A batch is done only if this application has not committed this version or a later one.
ONCE: Final = "once"

OF_GROUPS = frozenset({GROUP, JOIN, ACK, ASSIGN, NACK, FAILED, ASIDE})
OF_SCHEDULE = frozenset({SCHEDULE, CANCEL, SCHEDULED, FIRED})
OF_TOPICS = frozenset({PUBLISH, TOPIC, PLACED, TRIM}) | OF_GROUPS | OF_SCHEDULE

# The columns that concern each item, or some items, and not the segment as a whole.
OF_ITEMS = frozenset({DELETES, TTLS, CONDITIONS, UNLESS_NEWER, LEASED, REVISIONS, UUIDS, PROPERTIES})
# The columns that readers of a subtree get: the others may name keys and topics outside of the subtree.
SHOWN = OF_ITEMS | {ENDED}
# Each of these columns is a pair of arrays: [[index, ...], [value, ...]].
PAIRED = (TTLS, CONDITIONS, UNLESS_NEWER, PROPERTIES)


def in_words(extras: dict[str, Any]) -> Iterator[str]:
    """Yield the columns that concern a segment as a whole, for logs and transcripts: `ttl=2500`, `if=1.7`."""
    return (_WORDS[name](column) for name, column in extras.items() if name in _WORDS)


def _named(lease: bytes) -> str:
    """Return the name of a lease as its holder wrote it, if that is text."""
    text = lease.rstrip(b".\0").decode("ascii", "replace")
    return text if text.isprintable() and "\ufffd" not in text else lease.hex()


def _acked(topic: str, group: str, member: bytes, moves: list[list[Any]], *_: object) -> str:
    offsets = ",".join(f"{after}-{upto}" for _, after, upto in moves)
    return f"ack={topic}/{group}:{_named(member)}:{offsets}"


def _assigned(topic: str, group: str, holders: list[list[Any]]) -> str:
    whose = ",".join(
        f"{int.from_bytes(slots, 'little').bit_count()} to {_named(m) or 'nobody'}" for slots, m in holders
    )
    return f"assign={topic}/{group}:{whose}"


def _of_slots(word: str, topic: str, group: str, told: list[list[Any]]) -> str:
    return f"{word}={topic}/{group}:" + ",".join(str(each[-2] if type(each[-1]) is str else each[-1]) for each in told)


_WORDS: dict[str, Callable[[Any], str]] = {
    TTLS: lambda column: f"ttl={column if isinstance(column, int) else column[1]}",
    CONDITIONS: lambda column: "if=" + ",".join(map(describe, column[1])),
    LEASED: lambda column: f"leased={_named(column)}",
    LEASE: lambda column: f"lease={_named(column[0])}:{column[1]}ms",
    UNLEASE: lambda column: f"unlease={_named(column)}",
    PUBLISH: lambda column: " ".join(f"publish={name}+{count}" for name, count, _ in column),
    TOPIC: lambda column: f"topic={column[0]}" + (" removed" if column[1] is None else ""),
    PLACED: lambda column: " ".join(f"placed={name}:{first}+{count}" for name, first, count, *_ in column[1]),
    TRIM: lambda column: " ".join(f"trim={name}:{below}" for name, below in column),
    GROUP: lambda column: f"group={column[0]}/{column[1]}" + (" removed" if column[2] is None else ""),
    JOIN: lambda column: f"join={column[0]}/{column[1]}:{_named(column[2])}",
    ACK: lambda column: " ".join(_acked(*each) for each in column),
    ASSIGN: lambda column: " ".join(_assigned(*each) for each in column),
    NACK: lambda column: " ".join(f"nack={t}/{g}:{_named(m)}:{len(told)}" for t, g, m, told in column),
    FAILED: lambda column: " ".join(_of_slots("failed", *each) for each in column),
    ASIDE: lambda column: " ".join(_of_slots("aside", *each) for each in column),
    SCHEDULE: lambda column: " ".join(f"schedule={topic}/{name}" for topic, name, *_ in column),
    CANCEL: lambda column: " ".join(f"cancel={topic}/{name}" for topic, name in column),
    SCHEDULED: lambda column: " ".join(f"scheduled={topic}/{name}:{due}" for topic, name, due, *_ in column[1]),
    FIRED: lambda column: " ".join(f"fired={topic}/{name}" for topic, name, _ in column),
    EXPECT: lambda column: "expect=" + ",".join(f"{key}:{describe(at)}" for key, at in column),
    ONCE: lambda column: f"once={column[0]}:{column[1]}",
    IMAGES: lambda column: (
        "images=" + ",".join(["kept"] * column[0] + [f"-{describe(number)}" for number in column[1]])
    ),
    SKIPPED: lambda column: (
        f"skipped={column[1]}..{column[2]}" if len(column) > 2 else f"no longer skipped={column[1]}"
    ),
}


def without(extras: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Return the columns that have none of these names."""
    return {name: column for name, column in extras.items() if name not in names}
