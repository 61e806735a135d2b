"""Dead letters: the messages in a group's dead topic, one for each message that can't be handled (docs/topics.md).

    letter = msgpack map of topic, group, offset, revision, key, value, tries and why

A letter is a message of at most 16 MiB. If it would be larger, its `value` is nil, and `bytes` has the size of the
value; the next message of the dead topic is then the value. A letter has the headers of its message. Consumers and
servers write letters. The reason (`why`) is text from any source. So it is cut, and characters that UTF-8 can't encode
are escaped. Pure.
"""

from __future__ import annotations

from typing import Any

from .batch import packb
from .limits import DEFAULT
from .topics import Headers

# A message to be published: its key or "", its value and its headers.
Outgoing = tuple[str, bytes, Headers]


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, of at most `most` bytes of UTF-8."""
    data = text.encode("utf-8", "backslashreplace")
    return text if len(data) == len(text) <= most else data[:most].decode("utf-8", "ignore")


def letter(told: dict[str, Any], key: str, value: bytes, headers: Headers) -> list[Outgoing]:
    """Return a letter as messages: one, or two if the value is too large to be in it. Both have the headers."""
    packed = packb({**told, "value": value})
    if len(packed) <= DEFAULT.value_bytes_max:
        return [(key, packed, headers)]
    return [(key, packb({**told, "value": None, "bytes": len(value)}), headers), (key, value, headers)]
