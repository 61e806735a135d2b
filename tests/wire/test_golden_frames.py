"""Tests of the vectors of CHP/1 in spec/vectors against the codec, byte for byte.

The codec must read each message of chp1.json, and must build those that our programs send. It must refuse each message
of chp1-refused.json.
"""

from collections.abc import Callable

import pytest

from chp import errors, messages
from chp.properties import parse_properties, remaining_ttl_ms, ttl_ms_of, with_ttl_until
from tests.wire.vectors import Vector, load

KEY, VALUE = "/rates/EUR/USD", b"1.0832"
UUID = bytes.fromhex("6b1f0c7a2d3e4f50a1b2c3d4e5f60718")
NUMBER = 1 << 48 | 12
TTL = b"ttl=5\n"

GOLDEN = load("chp1.json")
REFUSED = load("chp1-refused.json")

BUILT: dict[str, list[bytes]] = {
    "icanhaz-everything": messages.icanhaz(),
    "icanhaz-subtree": messages.icanhaz("/rates/"),
    "kvsync-plain": messages.kvsync(KEY, NUMBER, VALUE),
    "kvsync-ttl": messages.kvsync(KEY, NUMBER, VALUE, properties=with_ttl_until(b"", 2190, wall_now_s=1_795_196_540.0)),
    "kthxbai": messages.kthxbai(NUMBER, "/rates/"),
    "kvpub-plain": messages.kvpub(KEY, NUMBER, VALUE, uuid=UUID),
    "kvpub-ttl": messages.kvpub(KEY, NUMBER, VALUE, uuid=UUID, properties=TTL),
    "kvpub-delete": messages.kvpub(KEY, NUMBER, b"", uuid=UUID),
    "kvpub-no-uuid": messages.kvpub(KEY, NUMBER, b""),
    "hugz-chp2": messages.hugz(properties=b"chp=2\n"),
    "hugz-rfc": messages.hugz(),
    "kvset-plain": messages.kvset(KEY, VALUE, uuid=UUID),
    "kvset-ttl": messages.kvset(KEY, VALUE, uuid=UUID, properties=TTL),
    "kvset-no-uuid": messages.kvset(KEY, VALUE),
    "kvset-delete": messages.kvset(KEY, b"", uuid=UUID),
}

# message -> (parser, names of the values that the parser returns)
READERS: dict[str, tuple[Callable[[list[bytes]], object], tuple[str, ...]]] = {
    "ICANHAZ": (messages.parse_icanhaz, ("subtree",)),
    "KVSYNC": (messages.parse_kvsync, ("key", "number", "uuid", "properties", "value")),
    "KTHXBAI": (messages.parse_kthxbai, ("number", "properties", "subtree")),
    "KVPUB": (messages.parse_kvpub, ("key", "number", "uuid", "properties", "value")),
    "HUGZ": (messages.parse_hugz, ("number", "properties")),
    "KVSET": (messages.parse_kvset, ("key", "uuid", "properties", "value")),
}


def parse_kvset_and_ttl(frames: list[bytes]) -> int | None:
    """Return the ttl of a KVSET, read as a server does."""
    return ttl_ms_of(messages.parse_kvset(frames)[2])


def test_each_message_has_vectors() -> None:
    assert {vector.message for vector in GOLDEN.values()} == READERS.keys()
    assert len(GOLDEN) >= 23 and len(REFUSED) >= 18


@pytest.mark.parametrize("name", BUILT)
def test_each_message_is_built_byte_for_byte(name: str) -> None:
    assert BUILT[name] == GOLDEN[name].frames


@pytest.mark.parametrize("vector", GOLDEN.values(), ids=lambda v: v.name)
def test_each_vector_is_read_into_its_decoded_values(vector: Vector) -> None:
    parse, names = READERS[vector.message]
    found = parse(vector.frames)
    assert dict(zip(names, found if isinstance(found, tuple) else (found,), strict=True)) == vector.decoded


@pytest.mark.parametrize("vector", REFUSED.values(), ids=lambda v: v.name)
def test_each_refused_vector_raises_its_error(vector: Vector) -> None:
    parse = parse_kvset_and_ttl if vector.message == "KVSET" else READERS[vector.message][0]
    with pytest.raises(getattr(errors, vector.verdict)) as caught:
        parse(vector.frames)
    assert type(caught.value).__name__ == vector.verdict


def test_a_ttl_is_read_from_kvset_kvpub_and_kvsync() -> None:
    now = 1_795_196_540.0
    assert ttl_ms_of(GOLDEN["kvset-ttl"].frames[3]) == 5000
    assert ttl_ms_of(GOLDEN["kvpub-ttl"].frames[3]) == 5000
    assert remaining_ttl_ms(GOLDEN["kvsync-ttl"].frames[3], now) == 2190
    assert remaining_ttl_ms(GOLDEN["kvsync-c"].frames[3], now) == 2190
    assert remaining_ttl_ms(GOLDEN["kvsync-python"].frames[3], now) == 39_934
    assert ttl_ms_of(GOLDEN["kvset-c"].frames[3]) is None
    assert parse_properties(GOLDEN["hugz-chp2"].frames[3]) == {"chp": "2"}
