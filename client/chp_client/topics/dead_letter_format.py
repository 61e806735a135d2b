"""Letters of one batch: the messages that a consumer puts aside, and how many of them fit one record. Pure.

`chp.dead_letters` has the form of a letter.
"""

from __future__ import annotations

from chp.dead_letters import Outgoing, cut
from chp.topics import slots_of

# For each offset of a message that is put aside, its letters.
Letters = dict[int, list[Outgoing]]
# The longest reason, as the text of an exception may hold a whole document.
WHY_BYTES_MAX = 4096
# The reasons of a whole batch, so that its letters fit one record (chunk.py).
WHYS_BYTES_MAX = 4 << 20
# The letters of one record, unless one letter is larger.
PORTION_BYTES = 1 << 20


def shown(thing: object) -> str:
    """Return the text of any object, cut to its limit, even if its own `str` fails."""
    try:
        text = f"{thing}"[:WHY_BYTES_MAX]
    except Exception as error:
        text = f"its text can't be had ({type(error).__name__})"
    return cut(text, WHY_BYTES_MAX)


def why_max(messages: int) -> int:
    """Return the longest reason for each of `messages` messages, if all of them are put aside."""
    return min(WHY_BYTES_MAX, WHYS_BYTES_MAX // max(1, messages))


def reason(error: Exception) -> str:
    """Return the text that tells why a handler failed."""
    return shown(f"{type(error).__name__}: {shown(error)}")


def portions(letters: Letters) -> list[list[int]]:
    """Their offsets, in their order, by what goes into one record."""
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
    """The slots that these messages may be of: one without a key, as those beside it had none either, or had."""
    slots = 0
    for offset, ((key, *_), *_) in letters.items():
        slots |= slots_for_one(offset, key)
    return slots


def slots_for_one(offset: int, key: str) -> int:
    """The slots that a message may be of."""
    return 1 << slots_of([key], 0, 1)[0] | (0 if key else 1 << slots_of(None, offset, 1)[0])
