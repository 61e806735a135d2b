"""Properties and the ttl in them: what is read, what is refused, and that what we write can be read back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.errors import BadFrame, BadInput, BadTtl
from chp.limits import DEFAULT
from chp.properties import (
    format_properties,
    parse_properties,
    remaining_ttl_ms,
    ttl_ms,
    ttl_ms_of,
    with_ttl_s,
    with_ttl_until,
)

NAMES = st.text(st.characters(exclude_characters="=\n", exclude_categories=["Cs"]), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40)


@given(st.dictionaries(NAMES, TEXTS, max_size=8))
def test_written_properties_are_read_back(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(frame: bytes) -> None:
    for read in (parse_properties, ttl_ms_of, lambda f: remaining_ttl_ms(f, 1.0)):
        try:
            read(frame)
        except BadInput as error:
            assert str(error)


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (b"", {}),
        (b"ttl=5\n", {"ttl": "5"}),
        (b"ttl=5", {"ttl": "5"}),
        (b"a=1=2\n", {"a": "1=2"}),
        (b"a=\nb=x\n", {"a": "", "b": "x"}),
    ],
)
def test_legal_properties_are_read(frame: bytes, found: dict[str, str]) -> None:
    assert parse_properties(frame) == found


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"ttl\n", "no '='"),
        (b"\n", "no '='"),
        (b"a=1\n\nb=2\n", "no '='"),
        (b"=1\n", "no name"),
        (b"a=1\na=2\n", "twice"),
        (b"a=\xff\n", "not UTF-8"),
        (b"a=" + b"x" * DEFAULT.property_bytes_max + b"\n", "put it in the value"),
        # The limit counts bytes, not characters.
        (("a=" + "é" * 600 + "\n").encode(), "put it in the value"),
        (b"a=1\n" * 2000, "send at most 4096"),
    ],
)
def test_bad_properties_are_refused(frame: bytes, words: str) -> None:
    with pytest.raises(BadFrame, match=words):
        parse_properties(frame)


@pytest.mark.parametrize("properties", [{"": "x"}, {"a=b": "x"}, {"a\n": "x"}, {"a": "x\ny"}])
def test_properties_that_cannot_be_read_back_are_not_written(properties: dict[str, str]) -> None:
    with pytest.raises(BadFrame):
        format_properties(properties)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("5", 5000),
        ("0.5", 500),
        (".5", 500),
        ("5.", 5000),
        ("1e2", 100_000),
        ("0", None),
        ("0.0", None),
        ("00", None),
        ("0.0001", 1),
        ("315360000", 315_360_000_000),
    ],
)
def test_relative_ttl(text: str, ms: int | None) -> None:
    assert ttl_ms_of(f"a=1\nttl={text}\n".encode()) == ms


@pytest.mark.parametrize(
    "text",
    ["", "abc", "-1", "nan", "inf", "-inf", "1e999", "315360001", "1e9", "5 ", "1_0", "0x5", "٥", "9" * 40],
)
def test_bad_ttl(text: str) -> None:
    with pytest.raises((BadTtl, BadFrame), match="ttl"):
        ttl_ms_of(f"ttl={text}\n".encode())


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -0.001, 315_360_000.1])
def test_bad_seconds(seconds: float) -> None:
    with pytest.raises(BadTtl, match=r"ttl=.*give|ttl=.*leave"):
        ttl_ms(seconds)


def test_no_ttl_is_not_an_error() -> None:
    assert ttl_ms_of(b"") is ttl_ms_of(b"ttl=0\n") is ttl_ms_of(b"a=1\n") is None
    assert remaining_ttl_ms(b"", 1.0) is remaining_ttl_ms(b"a=1\n", 1.0) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("1795196542190", 2190),  # C: ms
        ("1795196542.19", 2190),  # Python: s
        ("1795196539", 0),  # over
        ("1795196539000", 0),
        # This ttl is relative, from an unknown program.
        ("5", 5000),
        ("0", None),
    ],
)
def test_remaining_ttl(text: str, left: int | None) -> None:
    assert remaining_ttl_ms(f"ttl={text}\n".encode(), 1_795_196_540.0) == left


@given(st.integers(min_value=1, max_value=315_360_000_000))
def test_a_ttl_put_in_is_read_back_to_the_millisecond(ms: int) -> None:
    assert ttl_ms_of(with_ttl_s(b"a=1\n", ms)) == ms
    assert remaining_ttl_ms(with_ttl_until(b"", ms, 1_795_196_540.0), 1_795_196_540.0) == ms


def test_a_ttl_is_changed_or_taken_out_and_the_rest_kept() -> None:
    assert with_ttl_s(b"ttl=5\na=1\n", 7000) == b"ttl=7\na=1\n"
    assert with_ttl_s(b"ttl=5\na=1\n", None) == b"a=1\n"
    assert with_ttl_s(b"", None) == b""
    assert with_ttl_until(b"ttl=5\n", None, 1.0) == b""
