"""The names of a segment's sparse columns (SPEC.md, section 13), so that no line of ours has one as a bare string.

Whoever reads `extras[columns.TTLS]` need not know that on the wire it is "t". What each must look like is checked in
`batch`, where a segment is read.
"""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from .numbers import describe

DELETES: Final = "d"
TTLS: Final = "t"
CONDITIONS: Final = "c"  # done only if each key has that revision
UNLESS_NEWER: Final = "n"  # left out if its key has a later revision
LEASED: Final = "l"  # the keys live with that lease
LEASE: Final = "lease"  # open a lease, or refresh it
ANYBODY: Final = b"anybody:"  # in the place of its owner: it is not one client's; in records a user's name follows
REFRESH: Final = "refresh"  # keep a lease that is there; refused if it has ended
UNLEASE: Final = "unlease"
STAGE: Final = "stage"
COMMIT: Final = "commit"
ABORT: Final = "abort"
REVISIONS: Final = "r"  # as runs
UUIDS: Final = "u"
PROPERTIES: Final = "p"
DONE: Final = "done"  # a commit was made
ENDED: Final = "ended"  # these deletes, or the end of this lease, are by time
REFUSED: Final = "refused"  # a batch was refused; a resent one is refused again
SKIPPED: Final = "skipped"  # a session's batches that its client can't send again: another server answered them
KEY_BYTES: Final = "k"  # packed chunks: the length of each key, and of each value
VALUE_BYTES: Final = "v"
PUBLISH: Final = "publish"  # messages for topics: name, how many, and the messages
TOPIC: Final = "topic"  # make a topic, or remove it
PLACED: Final = "placed"  # in the place of `publish`: which offsets the messages have got
TRIM: Final = "trim"  # messages below an offset are let go
GROUP: Final = "group"  # make a group of a topic, begin it anew elsewhere, or remove it
JOIN: Final = "join"  # a lease becomes a member of a group
ACK: Final = "ack"  # slots of a group go from one offset to another
ASSIGN: Final = "assign"  # which member has which slots from now on
EXPECT: Final = "expect"  # done only if keys beside those of the segment have these revisions
ONCE: Final = "once"  # done only if that application has not done this version, or a later one

OF_GROUPS = frozenset({GROUP, JOIN, ACK, ASSIGN})
OF_TOPICS = frozenset({PUBLISH, TOPIC, PLACED, TRIM}) | OF_GROUPS

# what says something of each item, or of some, and not of the segment as a whole
OF_ITEMS = frozenset({DELETES, TTLS, CONDITIONS, UNLESS_NEWER, LEASED, REVISIONS, UUIDS, PROPERTIES})
SHOWN = OF_ITEMS | {ENDED}  # to readers of a subtree: the others may name keys and topics that lie elsewhere
PAIRED = (TTLS, CONDITIONS, UNLESS_NEWER, PROPERTIES)  # [[index, ...], [what, ...]]


def in_words(extras: dict[str, Any]) -> Iterator[str]:
    """What the columns say of a segment as a whole, for logs and transcripts: `ttl=2500`, `if=1.7`."""
    return (_WORDS[name](column) for name, column in extras.items() if name in _WORDS)


def _named(lease: bytes) -> str:
    """A lease as its holder named it, if that is text."""
    text = lease.rstrip(b".\0").decode("ascii", "replace")
    return text if text.isprintable() and "\ufffd" not in text else lease.hex()


def _acked(topic: str, group: str, member: bytes, moves: list[list[Any]]) -> str:
    offsets = ",".join(f"{after}-{upto}" for _, after, upto in moves)
    return f"ack={topic}/{group}:{_named(member)}:{offsets}"


def _assigned(topic: str, group: str, holders: list[list[Any]]) -> str:
    whose = ",".join(
        f"{int.from_bytes(slots, 'little').bit_count()} to {_named(m) or 'nobody'}" for slots, m in holders
    )
    return f"assign={topic}/{group}:{whose}"


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
    EXPECT: lambda column: "expect=" + ",".join(f"{key}:{describe(at)}" for key, at in column),
    ONCE: lambda column: f"once={column[0]}:{column[1]}",
    SKIPPED: lambda column: (
        f"skipped={column[1]}..{column[2]}" if len(column) > 2 else f"no longer skipped={column[1]}"
    ),
}


def without(extras: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """The columns that are none of these."""
    return {name: column for name, column in extras.items() if name not in names}
