"""Topics: their names, their settings, and how messages travel (SPEC.md, section 35).

    messages   [keys, values]              keys: a column of text, or nil if none has one; values: a column of bytes
               [keys, values, headers]     headers: a column of maps from name to text; left out if none has any

The publisher packs them, the active reads them once, and they are kept and delivered as those bytes.

    slot       crc32 of the key & 255; where no message of the batch has a key, the offset's last 8 bits in the reverse
               order, so that a few messages are shared evenly too. Groups share a topic by slots, so messages with one
               key stay in order. A set of slots is a number of 256 bits. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Any, NamedTuple
from zlib import crc32

from .batch import packb, unpackb
from .errors import BadFrame, BadInput
from .limits import DEFAULT
from .unpacking import CONTAINER, MESSAGES

NAME_MAX = 200
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX}}}")
KEEPS = ("all", "acknowledged", "size", "time")
# The numbers in settings are below this, so that JSON can have them.
NUMBERS_MAX = 1 << 53
HEADER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# The headers of one message, by name.
Headers = Mapping[str, str]


class _NoHeaders(dict[str, str]):
    """The headers of a message that has none: all such messages share this map, so nothing may be added to it."""

    def __setitem__(self, name: str, value: str) -> None:
        raise TypeError("the headers of a message that was read can't be changed; make a dict of them")

    def __reduce__(self) -> str:
        return "NO_HEADERS"


NO_HEADERS: Headers = _NoHeaders()
# The first byte of messages without headers: an array of two.
_TWO = b"\x92"
# A lease's name has two halves of this many octets.
HALF = 8
# The slots of this many keys are remembered.
SLOTS_KNOWN_MAX = 100_000


class Settings(NamedTuple):
    """The settings of a topic: what it keeps. None is no bound.

    all           everything; beyond a bound new messages are refused
    acknowledged  like all, without the messages that every group has acknowledged
    size          the latest messages, within the bounds
    time          the messages that are younger than `max_age_s`

    With `require_group`, the topic takes messages only while it has a group. With `expire_after_s`, the topic is
    removed after it was unused for this long.
    """

    keep: str = "all"
    max_messages: int | None = None
    max_bytes: int | None = None
    max_age_s: int | None = None
    require_group: bool = False
    expire_after_s: int | None = None

    def to_map(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults."""
        told = self._asdict().items()
        return {name: value for name, value in told if value != Settings._field_defaults[name]}

    @staticmethod
    def of(told: object) -> Settings:
        """Check a map of settings; raise `BadInput` that says what is wrong and what to do."""
        if type(told) is not dict or not told.keys() <= set(Settings._fields):
            raise BadInput(f"a topic has the settings {', '.join(Settings._fields)}, not {told!r:.80}")
        settings = Settings(**told)
        if settings.keep not in KEEPS:
            raise BadInput(f"keep is one of {', '.join(KEEPS)}, not {settings.keep!r:.40}")
        for name, value in settings._asdict().items():
            plain = name in ("keep", "require_group") or value is None
            if not plain and (type(value) is not int or not 0 < value < NUMBERS_MAX):
                raise BadInput(f"{name} is a whole number above 0, or left out, not {value!r:.40}")
        if type(settings.require_group) is not bool:
            raise BadInput(f"require_group is true or false, not {settings.require_group!r:.40}")
        if (settings.keep == "time") != (settings.max_age_s is not None):
            raise BadInput('keep="time" and max_age_s go together: give both, or neither')
        if settings.keep == "size" and settings.max_messages is None and settings.max_bytes is None:
            raise BadInput('keep="size" needs max_messages or max_bytes')
        return settings


def check_topic(name: object) -> str:
    """Return the name of a topic itself; raise `BadInput` if it is not valid."""
    if type(name) is not str or not NAME.fullmatch(name):
        raise BadInput(f"a topic's name is 1 to 200 of A-Z a-z 0-9 . _ -, not {name!r:.80}")
    return name


def check_group(name: object) -> str:
    """Return the name of a group itself; raise `BadInput` if it is not valid."""
    if type(name) is not str or not NAME.fullmatch(name):
        raise BadInput(f"a group's name is 1 to 200 of A-Z a-z 0-9 . _ -, not {name!r:.80}")
    return name


def check_name(name: object) -> str:
    """Return the name of a scheduled message itself; raise `BadInput` if it is not valid."""
    if type(name) is not str or not NAME.fullmatch(name):
        raise BadInput(f"the name of a scheduled message is 1 to 200 of A-Z a-z 0-9 . _ -, not {name!r:.80}")
    return name


def dead_topic(topic: str, group: str) -> str:
    """Return the topic of a group's dead letters; a name that is too long is cut, and ends with a checksum."""
    name = f"{topic}.{group}.dead"
    if len(name) <= NAME_MAX:
        return name
    tail = f".{sha256(name.encode()).hexdigest()[:16]}.dead"
    return name[: NAME_MAX - len(tail)] + tail


def check_headers(headers: object) -> Headers:
    """Return the headers of a message; raise `BadInput` if they are not valid."""
    if headers is None or (isinstance(headers, Mapping) and not headers):
        return NO_HEADERS
    if not isinstance(headers, Mapping):
        raise BadInput(f'headers are a mapping such as {{"traceparent": "00-..."}}, not {headers!r:.60}')
    most, size = DEFAULT.message_headers_max, 0
    if len(headers) > most:
        raise BadInput(f"a message has at most {most} headers, not {len(headers)}; put the rest into its value")
    for name, value in headers.items():
        if type(name) is not str or not HEADER_NAME.fullmatch(name):
            raise BadInput(f"a header's name is 1 to 64 of a-z 0-9 . _ -, and begins with a letter or digit, "
                           f"not {name!r:.100}")  # fmt: skip
        if type(value) is not str:
            raise BadInput(f"the value of header {name!r} is text, not {value!r:.60}")
        try:
            length = len(value.encode())
        except UnicodeEncodeError:
            raise BadInput(f"the value of header {name!r} is no text that UTF-8 has: {value!r:.60}") from None
        if length > DEFAULT.header_value_bytes_max:
            raise BadInput(f"the value of header {name!r} has {length} bytes, and at most 1,024 are taken; "
                           "put it into the message's value")  # fmt: skip
        size += len(name) + length
    if size > DEFAULT.message_headers_bytes_max:
        raise BadInput(f"the headers of a message have at most 4,096 bytes in all, not {size:,}; "
                       "put the rest into its value")  # fmt: skip
    return dict(headers)


def column_of_headers(headers: Sequence[Headers | None]) -> list[Headers] | None:
    """Return the checked headers of messages as a column; None if no message has headers."""
    column = list(map(check_headers, headers))
    if not any(column):
        return None
    if sum(map(len, column)) + (CONTAINER + 2) * len(column) > MESSAGES - 100:
        raise BadInput(f"{len(column):,} messages have too many headers for one batch; publish them in parts")
    return column


def pack_messages(keys: list[str] | None, values: list[bytes], headers: Sequence[Headers] | None = None) -> bytes:
    """Return messages as they travel; `headers` has a mapping for each message, or is None if no message has any."""
    return packb((keys, values) if headers is None else (keys, values, list(map(dict, headers))))


def unpack_messages(body: bytes) -> tuple[list[str] | None, list[bytes]]:
    """Return (keys or None, values); raise `BadFrame` unless the body has messages."""
    keys, values, _ = unpack_with_headers(body)
    return keys, values


def has_headers(body: bytes) -> bool:
    """Return True if messages as they travel have a column of headers: the array has three elements then."""
    return body[:1] != _TWO


def unpack_with_headers(body: bytes) -> tuple[list[str] | None, list[bytes], list[dict[str, str]] | None]:
    """Return (keys or None, values, headers or None); raise `BadFrame` unless the body has messages."""
    thing = unpackb(body, "a batch of messages", MESSAGES, DEFAULT.key_bytes_max)
    if type(thing) is not list or not 2 <= len(thing) <= 3 or type(thing[1]) is not list or not thing[1]:
        raise BadFrame("messages are an array of keys, or nil, and values, at least one, and maybe headers")
    keys, values, headers = thing if len(thing) == 3 else (*thing, None)
    if len(values) > DEFAULT.batch_items_max:
        raise BadFrame(f"a batch has at most {DEFAULT.batch_items_max} messages, not {len(values)}; split it")
    if list(map(type, values)).count(bytes) != len(values):
        raise BadFrame("the values of messages are bytes (msgpack bin), each of them")
    if keys is not None and (type(keys) is not list or list(map(type, keys)).count(str) != len(values)):
        raise BadFrame("the keys of messages are text, one for each value; or nil, if none has one")
    if keys is not None and len(keys) != len(values):
        raise BadFrame("the keys of messages are as many as the values")
    if headers is not None and (type(headers) is not list or list(map(type, headers)).count(dict) != len(values)):
        raise BadFrame("the headers of messages are a map for each value, or left out")
    if headers is not None and len(headers) != len(values):
        raise BadFrame("the headers of messages are as many as the values")
    return keys, values, headers


def keyed_lease(secret: bytes, text: bytes) -> bytes:
    """Return the name of a lease, made with a secret. Its second half proves that the secret made the first half."""
    half = hmac_digest(secret, text, sha256)[:HALF]
    return half + hmac_digest(secret, half, sha256)[:HALF]


def is_keyed_lease(secret: bytes, lease: bytes) -> bool:
    """Return True if the name of a lease was made with this secret."""
    return compare_digest(hmac_digest(secret, lease[:HALF], sha256)[:HALF], lease[HALF:])


# The number of messages of each topic, and their bytes.
Counts = dict[str, list[int]]


def add_counts(counts: Counts, name: str, messages: int, size: int) -> None:
    """Add the number and the bytes of messages to the counts of a topic."""
    sums = counts.setdefault(name, [0, 0])
    sums[0] += messages
    sums[1] += size


SLOTS = 256
ALL_SLOTS = (1 << SLOTS) - 1
_BY_OFFSET = bytes(int(f"{i:08b}"[::-1], 2) for i in range(SLOTS)) * (DEFAULT.batch_items_max // SLOTS + 2)


class _SlotOf(dict[str, int]):
    """The slots of the latest keys; they are remembered, as a checksum costs twice as much as a look-up."""

    def __missing__(self, key: str) -> int:
        if len(self) >= SLOTS_KNOWN_MAX:
            self.clear()
        slot = self[key] = crc32(key.encode()) & 255
        return slot


_slot_of = _SlotOf()


def slots_of(keys: list[str] | None, first: int, n: int) -> bytes:
    """Return the slot of each message, a byte each: by its key, or by its offset if no message has a key."""
    if keys is None:
        at = first % SLOTS
        return (_BY_OFFSET if n < len(_BY_OFFSET) - SLOTS else _BY_OFFSET * (n // SLOTS + 2))[at : at + n]
    return bytes(map(_slot_of.__getitem__, keys))


@lru_cache(maxsize=4096)
def slot_mask(slots: int) -> bytes:
    """Return a table for `bytes.translate`: 1 for each of these slots, 0 for the others."""
    return bytes((slots >> i) & 1 for i in range(SLOTS))


def pack_slots(slots: int) -> bytes:
    """Return a set of slots as it travels: 256 bits, slot 0 the lowest of the first byte."""
    return slots.to_bytes(SLOTS // 8, "little")


def unpack_slots(data: bytes) -> int:
    """Return the set of slots in 256 bits that `pack_slots` made."""
    return int.from_bytes(data, "little")
