"""The dead letters of one batch: the messages that a consumer puts aside, and how many of them fit one record.

`chp.dead_letters` has the form of a letter. This module is pure.
"""

from __future__ import annotations

from chp.dead_letters import Outgoing, cut
from chp.topics import slots_of

# The letters of each message that is put aside, by the offset of the message.
Letters = dict[int, list[Outgoing]]
# A reason is cut to this many bytes, because the text of an exception may hold a whole document.
WHY_BYTES_MAX = 4096
# All reasons of a batch have at most this many bytes together, so that its letters fit one record (chunk.py).
WHYS_BYTES_MAX = 4 << 20
# The letters of one record have at most this many bytes together, unless a single letter is larger.
PORTION_BYTES = 1 << 20


def shown(thing: object) -> str:
    """Return the text of any object, cut to its limit, even if its own `str` fails."""
    try:
        text = f"{thing}"[:WHY_BYTES_MAX]
    except Exception as error:
        text = f"its text can't be had ({type(error).__name__})"
    return cut(text, WHY_BYTES_MAX)


def why_max(messages: int) -> int:
    """Return the most bytes of each reason, so that all `messages` messages of a batch can be put aside."""
    return min(WHY_BYTES_MAX, WHYS_BYTES_MAX // max(1, messages))


def reason(error: Exception) -> str:
    """Return the text that tells why a handler failed."""
    return shown(f"{type(error).__name__}: {shown(error)}")


def portions(letters: Letters) -> list[list[int]]:
    """Return the offsets of the letters in ascending order, in lists: the letters of each list fit one record."""
    found: list[list[int]] = []
    size = PORTION_BYTES
    for offset in sorted(letters):
        more = sum(len(value) for _, value, _ in letters[offset])
        if size + more > PORTION_BYTES:
            found.append([])
            size = 0
        found[-1].append(offset)
        size += more
    return found


def slots_for(letters: Letters) -> int:
    """Return the slots that may have these messages; see `slots_for_one`."""
    slots = 0
    for offset, ((key, *_), *_) in letters.items():
        slots |= slots_for_one(offset, key)
    return slots


def slots_for_one(offset: int, key: str) -> int:
    """Return the slots that may have a message.

    A message without a key has its slot by its offset if no message of its batch had a key, else by the empty key.
    """
    return 1 << slots_of([key], 0, 1)[0] | (0 if key else 1 << slots_of(None, offset, 1)[0])
