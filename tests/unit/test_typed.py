"""covers: typed.py: values that are dataclasses, pydantic models or what else has a codec; `Clone[Rate]`."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import pydoc
from dataclasses import dataclass, field
from typing import Any, assert_type

import pytest

from chp.errors import BadInput, BadValue
from chp_client import AsyncClone, Change, Changes, Clone, Watch
from chp_client.codecs import Json, Msgpack, Text
from chp_client.typed import codec_of

NOWHERE = "tcp://127.0.0.1:1"


class Side(enum.Enum):
    BID, ASK = "bid", "ask"


@dataclass
class Tick:
    price: decimal.Decimal
    side: Side = Side.BID


@dataclass
class Rate:
    pair: str
    day: dt.date
    at: dt.datetime | None = None
    ticks: list[Tick] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    weight: float = 1.0


RATE = Rate(
    "EUR/USD", dt.date(2026, 1, 5), dt.datetime(2026, 1, 5, 14, 30, tzinfo=dt.UTC),
    [Tick(decimal.Decimal("1.0832"), Side.ASK)], {"x": 0.5}, ("a", "b"), 2,
)  # fmt: skip


def test_a_dataclass_is_json_with_its_fields_by_name() -> None:
    codec = codec_of(Rate)
    assert codec is not None
    data = codec.encode(RATE)
    assert json.loads(data) == {
        "pair": "EUR/USD", "day": "2026-01-05", "at": "2026-01-05T14:30:00+00:00",
        "ticks": [{"price": "1.0832", "side": "ask"}], "shares": {"x": 0.5}, "tags": ["a", "b"], "weight": 2,
    }  # fmt: skip
    assert codec.decode(data) == RATE
    newer = {"pair": "EUR/USD", "day": "2026-01-05", "colour": "red"}
    assert codec.decode(json.dumps(newer).encode()) == Rate("EUR/USD", dt.date(2026, 1, 5)), "a writer may be newer"


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ({"pair": "EUR/USD"}, "missing 1 required positional argument: 'day'"),
        ({"pair": 1, "day": "2026-01-05"}, "1 is not str"),
        ({"pair": "x", "day": "soon"}, "Invalid isoformat string"),
        ({"pair": "x", "day": "2026-01-05", "ticks": {}}, "is not a list"),
        ({"pair": "x", "day": "2026-01-05", "ticks": [{"price": "dear"}]}, "Rate"),
        ({"pair": "x", "day": "2026-01-05", "ticks": [{"price": "1", "side": "both"}]}, "'both' is not a valid Side"),
        ({"pair": "x", "day": "2026-01-05", "at": 5}, r"Rate\.at can't be 5"),
        ([1], "is not an object with names"),
    ],
)
def test_json_that_does_not_fit_the_dataclass_is_refused_with_a_reason(thing: Any, said: str) -> None:
    codec = codec_of(Rate)
    assert codec is not None
    with pytest.raises(BadValue, match=rf"is no Rate.*{said}|{said}"):
        codec.decode(json.dumps(thing).encode())


def test_another_value_than_a_rate_is_not_set() -> None:
    codec = codec_of(Rate)
    assert codec is not None
    with pytest.raises(BadValue, match="a value here is a Rate, not dict"):
        codec.encode({"pair": "EUR/USD"})


def test_an_unusable_value_type_is_refused_when_the_clone_is_made() -> None:
    @dataclass
    class Blob:
        data: bytes

    Blob.__annotations__["data"] = bytes
    with pytest.raises(BadInput, match=r"Blob\.data is of a type that JSON can't carry"):
        Clone(NOWHERE, codec=Blob)
    with pytest.raises(BadInput, match="values can't be of object: it is no dataclass, no pydantic model and no codec"):
        Clone(NOWHERE, codec=object)


class Model:
    """A stand-in for a model of pydantic."""

    def __init__(self, bid: float) -> None:
        self.bid = bid

    def model_dump_json(self) -> str:
        return json.dumps({"bid": self.bid})

    @classmethod
    def model_validate_json(cls, data: bytes) -> Model:
        thing = json.loads(data)
        if "bid" not in thing:
            raise ValueError("Field required")
        return cls(thing["bid"])


def test_a_pydantic_model_goes_by_its_own_methods() -> None:
    codec = codec_of(Model)
    assert codec is not None and codec.decode(codec.encode(Model(1.5))).bid == 1.5
    with pytest.raises(BadValue, match="is no Model: Field required"):
        codec.decode(b"{}")


def test_a_real_pydantic_model_is_encoded_and_decoded() -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Quote", bid=(float, ...), day=(dt.date, ...))
    codec = codec_of(kind)
    assert codec is not None
    assert codec.decode(codec.encode(kind(bid=1.5, day="2026-01-05"))).day == dt.date(2026, 1, 5)
    with pytest.raises(BadValue, match="is no Quote"):
        codec.decode(b'{"bid": "much"}')


def test_other_types_use_the_builtin_codecs() -> None:
    assert codec_of(bytes) is None and isinstance(codec_of(str), Text) and isinstance(codec_of(Msgpack), Msgpack)
    for kind in (dict, list, int, dict[str, int], list[str]):
        assert isinstance(codec_of(kind), Json), kind


def test_a_clone_of_a_type_takes_only_values_of_the_type() -> None:
    with Clone[Rate](NOWHERE, "/rates/") as clone:
        clone["/rates/EUR/USD"] = RATE
        assert clone["/rates/EUR/USD"] == RATE and clone["/rates/EUR/USD"].day.year == 2026
        with pytest.raises(BadValue, match="a value here is a Rate, not bytes"):
            clone.set("/rates/EUR/GBP", b"1")  # type: ignore[arg-type]
        clone.close(0)
    with pytest.raises(BadInput, match=r"Clone\[Rate\] says what its values are; leave the codec out"):
        Clone[Rate](NOWHERE, codec="json")
    assert type(AsyncClone[Rate](NOWHERE).codec).__name__ == "OfDataclass"
    maybe: Any = Clone[Rate] | None
    assert maybe is not None, "as an annotation has it"


def test_a_checker_of_types_knows_what_a_watch_gives() -> None:
    # `make lint` runs the checker, which holds each assert_type. Nothing calls the two functions.
    def of_threads(clone: Clone[Rate], untyped: Clone) -> None:
        assert_type(clone.watch(), Watch[Rate])
        assert_type(next(clone.watch()), Change[Rate])
        assert_type(clone.watch().get().value, Rate)
        for changes in clone.watch().batches():
            assert_type(changes.values, list[Rate])
            assert_type(list(changes), list[Change[Rate]])
        assert_type(next(untyped.watch()).value, Any)

    async def of_tasks(clone: AsyncClone[Rate]) -> None:
        async for change in clone.watch():
            assert_type(change, Change[Rate])
        async for changes in clone.watch().batches():
            assert_type(changes, Changes[Rate])

    assert callable(of_threads) and callable(of_tasks)
    assert Clone.watch.__annotations__["return"] == "Watch[V]"
    assert AsyncClone.watch.__annotations__["return"] == "AsyncWatch[V]"


def test_help_shows_names_and_defaults_and_dir_shows_public_names() -> None:
    import chp_client
    from chp_client import recipes

    text = pydoc.plain(pydoc.render_doc(Clone))
    assert " set(self, key, value, ttl=None, if_revision=None, timeout=None)\n" in text
    assert Clone.set.__annotations__["ttl"] == "Ttl | None", "types are where they were"
    for module in (chp_client, recipes):
        assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__)
