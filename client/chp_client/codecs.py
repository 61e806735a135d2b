"""The codecs of values: raw bytes, text, JSON or msgpack. Pickle is never used.

A codec is any object with `encode(value) -> bytes` and `decode(bytes) -> value`. `typed.codec_of` returns the codec for
a name, or for a type of values. `Decoding` decides what happens to a value that the codec can't decode.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import msgpack

from chp.errors import BadInput, BadValue

if TYPE_CHECKING:
    # A type checker needs the TypeVar of typing_extensions, which takes a `default`.
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    # The type of values.
    V = TypeVar("V")


@runtime_checkable
class Codec(Protocol):
    """A codec: it turns values into bytes and back."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the value of some bytes."""
        ...


class Text:
    """A codec for str as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return a str as UTF-8."""
        if not isinstance(value, str):
            raise BadValue(f"codec 'text' takes str, not {type(value).__name__}; format it first")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise BadValue(f"codec 'text' can't take this value ({error}); give text that UTF-8 can hold") from None

    def decode(self, data: bytes) -> str:
        """Return the text. Raise `BadValue` for bytes that are not UTF-8."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise BadValue(f"the value {data[:40]!r} is not UTF-8 ({error}); read it with codec='raw'") from None


class Json:
    """A codec for anything that JSON can hold, in its compact form.

    NaN and infinity are refused: they are not JSON, and few other languages would read them.
    """

    def encode(self, value: Any) -> bytes:
        """Return a value as JSON in UTF-8."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadValue(f"codec 'json' can't take this value ({error}); give a value that JSON can hold") from None

    def decode(self, data: bytes) -> Any:
        """Return the value. Raise `BadValue` for bytes that are not JSON."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadValue(f"the value {data[:40]!r} is not JSON ({error}); read it with codec='raw'") from None


class Msgpack:
    """A codec for anything that msgpack can hold."""

    def encode(self, value: Any) -> bytes:
        """Return a value as msgpack."""
        try:
            packed: bytes = msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadValue(f"codec 'msgpack' can't take this value ({error})") from None
        return packed

    def decode(self, data: bytes) -> Any:
        """Return the value. Raise `BadValue` for bytes that are not one msgpack object."""
        try:
            return msgpack.unpackb(data, strict_map_key=False)
        except Exception as error:
            raise BadValue(f"the value {data[:40]!r} is not msgpack ({error}); read it with codec='raw'") from None


def undecodable(key: str, error: Exception) -> BadValue:
    """Return the error for a value that can't be decoded, with its key."""
    return BadValue(f"key {key!r:.80}: {error}")


OnBad = Literal["raise", "skip"] | Callable[[str, bytes, Exception], Any]
# This stands in the place of a value that is left out.
SKIPPED: Final = object()


class Decoding:
    """The `decode` of a codec, and what happens to a value that it can't decode. Another client may have written it.

    on_bad   "raise" (`BadValue` names the key), "skip" (the item is left out), or a callable: it gets the key, the
             bytes and the error, and returns the value to use instead, or raises
    """

    def __init__(self, decode: Callable[[bytes], Any], on_bad: OnBad = "raise") -> None:
        if on_bad not in ("raise", "skip") and not callable(on_bad):
            raise BadInput(f"on_bad={on_bad!r:.60} is not 'raise', 'skip' or a callable (key, bytes, error)")
        self.decode, self.on_bad = decode, on_bad

    def value(self, key: str, data: bytes) -> Any:
        """Return the value of a key, or SKIPPED if it is left out."""
        try:
            return self.decode(data)
        except BadValue as error:
            return self._bad(key, data, error)
        except Exception as error:
            # A codec of the application may raise anything.
            if self.on_bad == "raise":
                raise
            return self._bad(key, data, error)

    def column(self, keys: Sequence[str], values: Sequence[Any], empty: Sequence[int] = ()) -> list[Any]:
        """Return the decoded values of several keys, with None at each index in `empty`.

        If `decode` accepts every value, no other Python code runs for each value.
        """
        out: list[Any] = []
        start = 0
        try:
            for stop in [*empty, len(values)]:
                out.extend(map(self.decode, values[start:stop]))
                out.append(None)
                start = stop + 1
        except Exception:
            rows = zip(keys, values, strict=True)
            return [None if data is None else self.value(key, data) for key, data in rows]
        out.pop()
        return out

    def _bad(self, key: str, data: bytes, error: Exception) -> Any:
        if self.on_bad == "raise":
            raise undecodable(key, error) from None
        if self.on_bad == "skip":
            return SKIPPED
        return self.on_bad(key, data, error)
