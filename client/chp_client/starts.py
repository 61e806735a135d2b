"""The places where a reader of keys or messages may begin (docs/starts.md).

    keys      "end"         only what is new
              "snapshot"    all that is held, then changes
              "begin"       the oldest change that is retained, and all after it
              a revision    all changes after this revision, the last one that the reader saw
    topics    "begin"       the oldest message that is kept, and all after it
              "end"         only what is new
              an offset     the message with this offset, and all after it

Spark's `startingOffsets` has Spark's own words.
"""

from __future__ import annotations

from chp.errors import BadInput
from chp.numbers import Revision

from . import checks

KeyStart = int | str
TopicStart = int | str
END, SNAPSHOT, BEGIN = "end", "snapshot", "begin"
# Servers take this offset as the end of a topic.
AT_END = -1
_OFFSET_MAX = (1 << 61) - 1
_GONE = {"now": END, "latest": END, "earliest": BEGIN}


def key_start(start: object) -> str | Revision:
    """Return where a reader of keys begins: "end", "snapshot", "begin" or the revision seen last. Raises `BadInput`."""
    if start in (END, SNAPSHOT, BEGIN):
        return str(start)
    _check_gone(start)
    try:
        return checks.revision("start", start)
    except BadInput:
        words = "'end', 'snapshot', 'begin' or a revision such as 1.42"
        raise BadInput(f"start={start!r:.40} is not {words}") from None


def topic_start(start: object) -> int:
    """Return the first offset that a reader of a topic wants; `AT_END` for only what is new. Raises `BadInput`."""
    if start in (BEGIN, END):
        return 0 if start == BEGIN else AT_END
    _check_gone(start)
    if type(start) is not int or not 0 <= start <= _OFFSET_MAX:
        raise BadInput(f"start={start!r:.40} is not 'begin', 'end' or the first offset wanted, a number from 0")
    return start


def _check_gone(start: object) -> None:
    if isinstance(start, str) and start in _GONE:
        raise BadInput(f"start={start!r} is gone; use {_GONE[start]!r}")
