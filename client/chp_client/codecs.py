"""What a value is to the application: bytes as they are, text, JSON, or msgpack. Never pickle.

A codec is any object with `encode(value) -> bytes` and `decode(bytes) -> value`; `codec_of` finds one by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgpack

from chp.errors import BadInput, BadValue


@runtime_checkable
class Codec(Protocol):
    """Values to bytes and back."""

    def encode(self, value: Any) -> bytes:
        """The bytes of a value."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value of some bytes."""
        ...


class Text:
    """str as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """UTF-8 of a str."""
        if not isinstance(value, str):
            raise BadValue(f"codec 'text' takes str, not {type(value).__name__}; format it first")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise BadValue(f"codec 'text' can't take this value ({error}); mend it first") from None

    def decode(self, data: bytes) -> str:
        """The text; what is not UTF-8 shows as U+FFFD, since somebody else wrote it."""
        return data.decode(errors="replace")


class Json:
    """Anything JSON can say, compactly; NaN and infinity are no JSON, and few other languages would read them."""

    def encode(self, value: Any) -> bytes:
        """JSON as UTF-8."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadValue(f"codec 'json' can't take this value ({error}); give what JSON can say") from None

    def decode(self, data: bytes) -> Any:
        """The value; `BadValue` for bytes that are not JSON."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadValue(f"the value {data[:40]!r} is not JSON ({error}); read it with codec='raw'") from None


class Msgpack:
    """Anything msgpack can say."""

    def encode(self, value: Any) -> bytes:
        """msgpack."""
        try:
            packed: bytes = msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadValue(f"codec 'msgpack' can't take this value ({error})") from None
        return packed

    def decode(self, data: bytes) -> Any:
        """The value; `BadValue` for bytes that are not one msgpack object."""
        try:
            return msgpack.unpackb(data, strict_map_key=False)
        except Exception as error:
            raise BadValue(f"the value {data[:40]!r} is not msgpack ({error}); read it with codec='raw'") from None


_BY_NAME: dict[str, Callable[[], Codec]] = {"text": Text, "json": Json, "msgpack": Msgpack}


def undecodable(key: str, error: BadValue) -> BadValue:
    """The error for a value that somebody else wrote, with the key it is at."""
    return BadValue(f"key {key!r:.80}: {error}")


def codec_of(codec: str | Codec) -> Codec | None:
    """The codec meant; None for "raw", which costs nothing."""
    if codec == "raw":
        return None
    if isinstance(codec, str):
        if codec not in _BY_NAME:
            raise BadInput(f"codec {codec!r} is not known; use raw, text, json or msgpack, or an object with both")
        return _BY_NAME[codec]()
    if isinstance(codec, type):
        raise BadInput(f"codec {codec.__name__} is a class; make one: {codec.__name__}()")
    if not isinstance(codec, Codec):
        raise BadInput(f"codec {codec!r:.60} has no encode and decode; give a name or an object with both")
    return codec
