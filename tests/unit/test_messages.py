"""The commands of CHP/1: round trips over anything legal, and one refusal for each way to be wrong."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp import messages
from chp.errors import BadFrame, BadInput, BadKey, BadValue
from chp.keys import COMMANDS
from chp.limits import DEFAULT

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200).filter(
    lambda key: key[0] >= " " and key not in COMMANDS
)
UUIDS = st.sampled_from([b"", b"0123456789abcdef"])
NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
GOOD = [b"/a", bytes(8), bytes(16), b"", b"1"]
PARSERS: dict[str, Callable[[Sequence[bytes]], object]] = {
    "KVSET": messages.parse_kvset,
    "KVPUB": messages.parse_kvpub,
    "KVSYNC": messages.parse_kvsync,
}


@given(KEYS, NUMBERS, UUIDS, st.binary(max_size=50), st.binary(max_size=50))
def test_chp1_commands_are_read_back(key: str, number: int, uuid: bytes, properties: bytes, value: bytes) -> None:
    told = messages.kvpub(key, number, value, uuid=uuid, properties=properties)
    assert messages.parse_kvpub(told) == (key, number, uuid, properties, value)
    asked = messages.kvset(key, value, uuid=uuid, properties=properties)
    assert messages.parse_kvset(asked) == (key, uuid, properties, value)
    assert messages.parse_hugz(messages.hugz(number)).sequence in (number, 0)
    assert messages.parse_kthxbai(messages.kthxbai(number, "/ü/")) == (number, b"", "/ü/")
    assert messages.parse_icanhaz(messages.icanhaz(key)) == key


@given(st.lists(st.binary(max_size=30), max_size=7))
def test_any_frames_are_read_or_refused(frames: list[bytes]) -> None:
    for parse in (*PARSERS.values(), messages.parse_icanhaz, messages.parse_kthxbai, messages.parse_hugz):
        try:
            parse(frames)
        except BadInput as error:
            assert str(error)


@pytest.mark.parametrize("command", PARSERS)
@pytest.mark.parametrize(
    ("place", "frame", "error", "words"),
    [
        (0, b"", BadKey, "empty"),
        (0, b"KTHXBAI", BadKey, "command of the protocol"),
        (0, b"HUGZ", BadKey, "command of the protocol"),
        (0, b"ICANHAZ?", BadKey, "command of the protocol"),
        (0, b"\x02\x03", BadKey, "control character"),
        (0, b"\xff", BadKey, "not UTF-8"),
        (0, b"k" * 1025, BadKey, "1024"),
        (1, b"", BadFrame, "sequence of 0 bytes; send 8"),
        (1, bytes(3), BadFrame, "sequence of 3 bytes; send 8"),
        (2, bytes(15), BadFrame, "uuid of 15 bytes; send 16 or none"),
        (4, bytes(DEFAULT.value_bytes_max + 1), BadValue, "16777217 bytes; at most 16777216"),
    ],
)
def test_a_bad_frame_is_refused(command: str, place: int, frame: bytes, error: type[Exception], words: str) -> None:
    frames = [*GOOD[:place], frame, *GOOD[place + 1 :]]
    with pytest.raises(error, match=words):
        PARSERS[command](frames)


@pytest.mark.parametrize("command", PARSERS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 9])
def test_a_wrong_number_of_frames(command: str, count: int) -> None:
    with pytest.raises(BadFrame, match=f"{command} has {count} frames, not 5"):
        PARSERS[command]([b"/a"] * count)


def test_the_largest_key_and_value_are_accepted() -> None:
    key, value = "k" * DEFAULT.key_bytes_max, bytes(DEFAULT.value_bytes_max)
    assert messages.parse_kvset(messages.kvset(key, value))[0] == key


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "0 frames, not 2"),
        ([b"ICANHAZ?"], "1 frames, not 2"),
        ([b"", b"ICANHAZ?", b""], "no empty delimiter"),
        ([b"ICANHAZ", b""], "not known here"),
        ([b"ICANHAZ?", b"/\xff/"], "not UTF-8"),
        ([b"ICANHAZ?", b"/" * 1025], "at most 1024"),
    ],
)
def test_bad_icanhaz(frames: list[bytes], words: str) -> None:
    with pytest.raises(BadFrame, match=words):
        messages.parse_icanhaz(frames)


@pytest.mark.parametrize("subtree", ["", "/a/", "/cl", "no slash at all", "/ü"])
def test_any_text_is_a_subtree_for_chp1(subtree: str) -> None:
    assert messages.parse_icanhaz(messages.icanhaz(subtree)) == subtree


def test_hugz_in_every_dialect() -> None:
    assert messages.parse_hugz([b"HUGZ", b"00000000", b"", b"", b""]).sequence == 0
    assert messages.parse_hugz([b"HUGZ", bytes(7) + b"\5", bytes(16), b"chp=2\n", b"body"]) == (5, b"chp=2\n")


@pytest.mark.parametrize(
    "frames",
    [
        [b"HUGZ"],
        [b"HUGS", bytes(8), b"", b"", b""],
        [b"HUGZ", bytes(7), b"", b"", b""],
        [b"HUGZ", bytes(8), b"x", b"", b""],
    ],
)
def test_bad_hugz(frames: list[bytes]) -> None:
    with pytest.raises(BadFrame, match="HUGZ"):
        messages.parse_hugz(frames)


def test_bad_kthxbai_subtree() -> None:
    with pytest.raises(BadFrame, match="KTHXBAI has a subtree that is not UTF-8"):
        messages.parse_kthxbai([b"KTHXBAI", bytes(8), b"", b"", b"\xff"])
