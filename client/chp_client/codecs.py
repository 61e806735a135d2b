"""What a value is to the application: bytes as they are, text, JSON, or msgpack. Never pickle.

A codec is any object with `encode(value) -> bytes` and `decode(bytes) -> value`; `typed.codec_of` finds one by name, or
of a type of values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import msgpack

from chp.errors import BadInput, BadValue

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # of the checker, for the default

    V = TypeVar("V", default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")  # of what values are


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


def undecodable(key: str, error: Exception) -> BadValue:
    """The error for a value that somebody else wrote, with the key it is at."""
    return BadValue(f"key {key!r:.80}: {error}")


OnBad = Literal["raise", "skip"] | Callable[[str, bytes, Exception], Any]
SKIPPED: Final = object()  # in the place of a value that is left out


class Decoding:
    """A codec's `decode`, and what becomes of a value that it can't take: somebody else wrote it.

    on_bad   "raise" (`BadValue` names the key), "skip" (its item is left out), or a callable: what it returns for the
             key, the bytes and the error stands in the value's place, and what it raises is raised
    """

    def __init__(self, decode: Callable[[bytes], Any], on_bad: OnBad = "raise") -> None:
        if on_bad not in ("raise", "skip") and not callable(on_bad):
            raise BadInput(f"on_bad={on_bad!r:.60} is not 'raise', 'skip' or a callable (key, bytes, error)")
        self.decode, self.on_bad = decode, on_bad

    def value(self, key: str, data: bytes) -> Any:
        """The value of a key; SKIPPED if it is to be left out."""
        try:
            return self.decode(data)
        except BadValue as error:
            return self._bad(key, data, error)
        except Exception as error:  # of a codec of the application's own
            if self.on_bad == "raise":
                raise
            return self._bad(key, data, error)

    def column(self, keys: Sequence[str], values: Sequence[Any], empty: Sequence[int] = ()) -> list[Any]:
        """The values of several keys, None at the places `empty`; no line runs for each if `decode` takes them all."""
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
