"""Letters: what goes to a group's dead topic of a message that can't be handled (docs/topics.md).

A letter is a msgpack map of topic, group, offset, revision, key, value, tries and why. It is a message, of 16 MiB at
most: where it would be larger its value is nil, `bytes` says of how many, and the next message of the dead topic is
that value. Why it could not be handled is text that came from anywhere: it is cut, and what is no UTF-8 is written
out. Pure.
"""

from __future__ import annotations

from typing import Any

from chp.batch import packb
from chp.limits import DEFAULT
from chp.topics import Headers, slots_of

# A message to be published: its key or "", its value and its headers.
Outgoing = tuple[str, bytes, Headers]
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


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, of at most `most` bytes of UTF-8."""
    data = text.encode("utf-8", "backslashreplace")
    return text if len(data) == len(text) <= most else data[:most].decode("utf-8", "ignore")


def why_max(messages: int) -> int:
    """Return the longest reason for each of `messages` messages, if all of them are put aside."""
    return min(WHY_BYTES_MAX, WHYS_BYTES_MAX // max(1, messages))


def reason(error: Exception) -> str:
    """Return the text that tells why a handler failed."""
    return shown(f"{type(error).__name__}: {shown(error)}")


def letter(told: dict[str, Any], key: str, value: bytes, headers: Headers) -> list[Outgoing]:
    """Return a letter as messages: one, or two if the value is too large to be in it. Both have the headers."""
    packed = packb({**told, "value": value})
    if len(packed) <= DEFAULT.value_bytes_max:
        return [(key, packed, headers)]
    return [(key, packb({**told, "value": None, "bytes": len(value)}), headers), (key, value, headers)]


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
