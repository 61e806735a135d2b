"""The test vectors of SPEC.md, part 1, against the codec, byte for byte.

The vectors are read out of the page itself: a block marked `chp1 NAME` is a message the codec must read,
and, where it is one that ours send, must build; a block marked `chp1-refused PARSER ERROR NAME` is one it
must refuse.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from chp import errors, messages
from chp.messages import Hugz, Kthxbai
from chp.properties import parse_properties, remaining_ttl_ms, ttl_ms_of, with_ttl_until

SPEC = Path(__file__).parents[2] / "SPEC.md"
KEY, VALUE = "/rates/EUR/USD", b"1.0832"
UUID = bytes.fromhex("6b1f0c7a2d3e4f50a1b2c3d4e5f60718")
NUMBER = 1 << 48 | 12
UNTIL_C, UNTIL_PYTHON = b"ttl=1795196542190\n", b"ttl=1795196579.933595\n"
TTL = b"ttl=5\n"


def vectors(kind: str) -> dict[str, list[bytes]]:
    """The blocks of a kind in SPEC.md: name -> frames."""
    found = {}
    blocks = re.findall(rf"^```{kind} (.+)\n((?:.+\n)+?)```$", SPEC.read_text(encoding="utf-8"), re.M)
    for name, block in blocks:
        frames: list[bytes] = []
        for line in block.splitlines():
            part = re.fullmatch(r"(\d+: |   )([0-9a-f -]*?) *(\|.*)?", line)
            assert part, f"{name}: {line!r} is not a frame line"
            frame = b"" if part[2] == "-" else bytes.fromhex(part[2])
            if part[1].strip():
                assert part[1] == f"{len(frames)}: ", f"{name}: frames are numbered in order"
                frames.append(frame)
            else:
                frames[-1] += frame
        assert name not in found, f"{name} is there twice"
        found[name] = frames
    return found


GOLDEN = vectors("chp1")
REFUSED = vectors("chp1-refused")

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

Case = tuple[Callable[[list[bytes]], object], object]
READ: dict[str, Case] = {
    "icanhaz-everything": (messages.parse_icanhaz, ""),
    "icanhaz-subtree": (messages.parse_icanhaz, "/rates/"),
    "kvsync-plain": (messages.parse_kvsync, (KEY, NUMBER, b"", b"", VALUE)),
    "kvsync-ttl": (messages.parse_kvsync, (KEY, NUMBER, b"", UNTIL_C, VALUE)),
    "kvsync-c": (messages.parse_kvsync, (KEY, 12, UUID, UNTIL_C, VALUE)),
    "kvsync-python": (messages.parse_kvsync, (KEY, 12, UUID, UNTIL_PYTHON, VALUE)),
    "kthxbai": (messages.parse_kthxbai, Kthxbai(NUMBER, b"", "/rates/")),
    "kthxbai-c": (messages.parse_kthxbai, Kthxbai(12, b"", "")),
    "kthxbai-python": (messages.parse_kthxbai, Kthxbai(12, b"", "/rates/")),
    "kvpub-plain": (messages.parse_kvpub, (KEY, NUMBER, UUID, b"", VALUE)),
    "kvpub-ttl": (messages.parse_kvpub, (KEY, NUMBER, UUID, TTL, VALUE)),
    "kvpub-delete": (messages.parse_kvpub, (KEY, NUMBER, UUID, b"", b"")),
    "kvpub-no-uuid": (messages.parse_kvpub, (KEY, NUMBER, b"", b"", b"")),
    "kvpub-expired-c": (messages.parse_kvpub, (KEY, 12, UUID, UNTIL_C, b"")),
    "hugz-c": (messages.parse_hugz, Hugz(12, b"")),
    "hugz-chp2": (messages.parse_hugz, Hugz(0, b"chp=2\n")),
    "hugz-rfc": (messages.parse_hugz, Hugz(0, b"")),
    "hugz-python": (messages.parse_hugz, Hugz(12, b"")),
    "kvset-plain": (messages.parse_kvset, (KEY, UUID, b"", VALUE)),
    "kvset-ttl": (messages.parse_kvset, (KEY, UUID, TTL, VALUE)),
    "kvset-c": (messages.parse_kvset, (KEY, UUID, b"ttl=0\n", VALUE)),
    "kvset-no-uuid": (messages.parse_kvset, (KEY, b"", b"", VALUE)),
    "kvset-delete": (messages.parse_kvset, (KEY, UUID, b"", b"")),
}


def parse_kvset_and_ttl(frames: list[bytes]) -> int | None:
    """A KVSET as a server reads it: its frames, then its ttl."""
    return ttl_ms_of(messages.parse_kvset(frames)[2])


def test_every_vector_is_read() -> None:
    assert GOLDEN.keys() == READ.keys()
    assert len(REFUSED) >= 18


@pytest.mark.parametrize("name", BUILT)
def test_built_byte_for_byte(name: str) -> None:
    assert BUILT[name] == GOLDEN[name]


@pytest.mark.parametrize("name", READ)
def test_read(name: str) -> None:
    parse, expected = READ[name]
    assert parse(GOLDEN[name]) == expected


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words: str) -> None:
    command, error, _ = words.split()
    parse: Callable[[list[bytes]], object] = {
        "icanhaz": messages.parse_icanhaz,
        "kvset": parse_kvset_and_ttl,
    }[command]
    with pytest.raises(getattr(errors, error)) as caught:
        parse(REFUSED[words])
    assert type(caught.value).__name__ == error


def test_ttl_in_all_three_places() -> None:
    now = 1_795_196_540.0
    assert ttl_ms_of(GOLDEN["kvset-ttl"][3]) == 5000
    assert ttl_ms_of(GOLDEN["kvpub-ttl"][3]) == 5000
    assert remaining_ttl_ms(GOLDEN["kvsync-ttl"][3], now) == 2190
    assert remaining_ttl_ms(GOLDEN["kvsync-c"][3], now) == 2190
    assert remaining_ttl_ms(GOLDEN["kvsync-python"][3], now) == 39_934
    assert ttl_ms_of(GOLDEN["kvset-c"][3]) is None
    assert parse_properties(GOLDEN["hugz-chp2"][3]) == {"chp": "2"}
