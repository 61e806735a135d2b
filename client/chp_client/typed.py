"""Values of a type of the application: `Clone[Rate](...)`, or `Clone(codec=Rate)`.

    bytes                 raw                        str                    UTF-8
    a dataclass           JSON, with the fields by their names; a field may be a number, text, a date, a time, a
                          Decimal, an Enum, another dataclass, None, or a list, tuple or dict of these
    a pydantic model      JSON, by its `model_dump_json` and `model_validate_json`; pydantic is not imported for it
    a codec's class       the codec that the class makes without arguments; it has `encode` and `decode`
    dict, list, ...       JSON

A type that can't be carried is an error when the Clone is made, not at the first value. Fields that are not known here
are ignored, so a writer may be newer than its readers. A missing field gets its default. If it has no default, the
value can't be decoded (`BadValue`), and `on_bad` decides what happens.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from chp.errors import BadInput, BadValue

from .codecs import Codec, Json, Msgpack, Text

_BY_NAME: dict[str, Callable[[], Codec]] = {"text": Text, "json": Json, "msgpack": Msgpack}
PLAIN: tuple[type, ...] = (dict, list, int, float, bool)
_AS_TEXT: dict[type, Callable[[str], Any]] = {
    dt.datetime: dt.datetime.fromisoformat, dt.date: dt.date.fromisoformat, dt.time: dt.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
}  # fmt: skip
Read = Callable[[Any], Any]


def codec_of(codec: str | Codec | type[Any]) -> Codec | None:
    """Return the codec for a name or for a type of values. Return a given codec as it is.

    Return None for "raw", which needs no codec.
    """
    if codec in ("raw", bytes):
        return None
    if isinstance(codec, str):
        if codec not in _BY_NAME:
            near = get_close_matches(codec, ["raw", *_BY_NAME], 1)
            names = "use raw, text, json or msgpack, an object with encode and decode, or a type of values"
            raise BadInput(f"codec {codec!r:.60} is not known; {f'did you mean {near[0]!r}?' if near else names}")
        return _BY_NAME[codec]()
    if isinstance(codec, type) or typing.get_origin(codec) is not None:
        return codec_of_type(codec)
    if not isinstance(codec, Codec):
        raise BadInput(f"codec {codec!r:.60} has no encode and decode; give a name, an object with both, or a type")
    return codec


def codec_of_type(kind: Any) -> Codec:
    """Return the codec for values of a type. Raises `BadInput` if the type has none."""
    origin = typing.get_origin(kind) or kind
    if origin is str:
        return Text()
    if origin in PLAIN or kind is Any:
        return Json()
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json"):
        return OfModel(kind)
    if dataclasses.is_dataclass(kind):
        return OfDataclass(typing.cast(type, kind))
    if isinstance(kind, type) and hasattr(kind, "encode") and hasattr(kind, "decode"):
        try:
            made: Codec = kind()
        except TypeError as error:
            raise BadInput(
                f"codec {kind.__name__} can't be made without arguments ({error}); give an object of it"
            ) from None
        return made
    name = getattr(kind, "__name__", repr(kind))
    raise BadInput(
        f"values can't be of {name:.60}: it is no dataclass, no pydantic model and no codec; give a codec of your own, "
        "an object with encode and decode"
    )


class OfModel:
    """A codec that uses the JSON methods of a pydantic model."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        """Return the JSON that the model writes."""
        _check(value, self._kind)
        text: str = value.model_dump_json()
        return text.encode()

    def decode(self, data: bytes) -> Any:
        """Return the model's object. Raise `BadValue` for bytes that the model does not accept."""
        try:
            return self._kind.model_validate_json(data)
        except ValueError as error:
            raise BadValue(f"the value {data[:40]!r} is no {self._kind.__name__}: {error}") from None


class OfDataclass:
    """A codec for a dataclass as JSON."""

    def __init__(self, kind: type) -> None:
        self._kind, self._json = kind, Json()
        self._read = _reader_of(kind, kind.__name__)

    def encode(self, value: Any) -> bytes:
        """Return JSON with the fields by their names."""
        _check(value, self._kind)
        return self._json.encode(_plain(value))

    def decode(self, data: bytes) -> Any:
        """Return an object of the dataclass. Raise `BadValue` for bytes that are not JSON of one."""
        thing = self._json.decode(data)
        try:
            return self._read(thing)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise BadValue(f"the value {data[:40]!r} is no {self._kind.__name__}: {error}") from None


def _check(value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise BadValue(f"a value here is a {kind.__name__}, not {type(value).__name__}")


def _plain(thing: Any) -> Any:
    """Return a field's value in the types of JSON."""
    if dataclasses.is_dataclass(thing):
        return {field.name: _plain(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    if isinstance(thing, enum.Enum):
        return thing.value
    if isinstance(thing, dt.date | dt.time):
        return thing.isoformat()
    if isinstance(thing, decimal.Decimal):
        return str(thing)
    if isinstance(thing, list | tuple):
        return [_plain(each) for each in thing]
    return {key: _plain(each) for key, each in thing.items()} if isinstance(thing, dict) else thing


def _reader_of(kind: Any, at: str) -> Read:
    """Return a function that makes a value of `kind` from JSON's types.

    `at` names the field in errors.
    """
    if kind in (str, *PLAIN, type(None)):
        return _exactly(kind)
    if kind in _AS_TEXT:
        return lambda thing: _AS_TEXT[kind](_text(thing))
    if dataclasses.is_dataclass(kind):
        return _of_fields(typing.cast(type, kind), at)
    if kind is Any:
        return lambda thing: thing
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        made: Read = kind
        return made
    found = _reader_of_many(typing.get_origin(kind), typing.get_args(kind), at)
    if found is None:
        raise BadInput(f"{at} is of a type that JSON can't carry, {kind!r:.60}; give a codec of your own")
    return found


def _reader_of_many(origin: Any, arguments: tuple[Any, ...], at: str) -> Read | None:
    """Return the reader of a union, a list, a tuple of equal items or a dict; None for any other type."""
    if origin in (typing.Union, types.UnionType):
        return _first_of([_reader_of(each, at) for each in arguments], at)
    if origin in (list, tuple) and (len(arguments) == 1 or arguments[1:] == (...,)):
        return _listed(origin, _reader_of(arguments[0], at))
    if origin is dict and arguments[0] is str:
        return _named(_reader_of(arguments[1], at))
    return None


def _exactly(kind: Any) -> Read:
    def read(thing: Any) -> Any:
        if kind is float and type(thing) is int:
            return float(thing)
        if type(thing) is not kind:
            raise ValueError(f"{thing!r:.40} is not {kind.__name__}")
        return thing

    return read


def _text(thing: Any) -> str:
    if type(thing) is not str:
        raise ValueError(f"{thing!r:.40} is not text")
    return thing


def _first_of(readers: list[Read], at: str) -> Read:
    def read(thing: Any) -> Any:
        for each in readers:
            try:
                return each(thing)
            except (TypeError, ValueError, ArithmeticError):
                continue
        raise ValueError(f"{at} can't be {thing!r:.40}")

    return read


def _listed(origin: Callable[[Any], Any], each: Read) -> Read:
    def read(thing: Any) -> Any:
        if type(thing) is not list:
            raise ValueError(f"{thing!r:.40} is not a list")
        return origin(map(each, thing))

    return read


def _named(each: Read) -> Read:
    def read(thing: Any) -> Any:
        return {key: each(value) for key, value in _object(thing).items()}

    return read


def _object(thing: Any) -> dict[str, Any]:
    if type(thing) is not dict:
        raise ValueError(f"{thing!r:.40} is not an object with names")
    return thing


def _of_fields(kind: type, at: str) -> Read:
    hints = typing.get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    readers = {field.name: _reader_of(hints[field.name], f"{at}.{field.name}") for field in fields}

    def read(thing: Any) -> Any:
        named = _object(thing)
        return kind(**{name: each(named[name]) for name, each in readers.items() if name in named})

    return read


class Typed:
    """The result of `Clone[Rate]`. It makes Clones with values of that type, and is an annotation for type checkers."""

    def __init__(self, made: Any, kind: Any) -> None:
        self._made, self._kind = made, kind

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Make a Clone."""
        return self._made(*arguments, **self._with_codec(named))

    def _with_codec(self, named: dict[str, Any]) -> dict[str, Any]:
        if "codec" in named:
            raise BadInput(f"{self!r} says what its values are; leave the codec out")
        return {**named, "codec": self._kind}

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._made,)

    def __or__(self, other: Any) -> Any:
        # `self | other` would only call this method again.
        return typing.Union[self, other]  # noqa: UP007

    def __repr__(self) -> str:
        return f"{self._made.__name__}[{getattr(self._kind, '__name__', self._kind)}]"
