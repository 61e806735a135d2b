"""Tests of how the command line shows and reads values, revisions, durations, subtrees, trees and columns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp.errors import BadSubtree
from chp.keys import check_subtree
from chp.limits import DEFAULT
from chp.numbers import number
from chp_client.cli import text
from chp_client.cli.text import draw


@given(st.binary(max_size=60))
def test_every_value_comes_back_through_json(value: bytes) -> None:
    assert text.value_of(json.loads(json.dumps(text.value_fields(value)))) == value


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "one of"),
        ({"value": "a", "base64": "YQ=="}, "one of"),
        ({"value": 1}, "are text"),
        ({"base64": "not base64!"}, "RFC 4648"),
        ({"base64": "YQ"}, "RFC 4648"),
        ({"base64": "Y!Q=="}, "RFC 4648"),
        ({"value": "\ud800"}, "surrogate"),
    ],
)
def test_an_invalid_json_value_is_refused_with_the_reason(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        text.value_of(fields)


def test_control_characters_never_reach_a_terminal() -> None:
    assert text.show_value(b"a\x1b[31mb\nc\xff") == r"a\x1b[31mb\nc\xff"
    assert text.show_value(b"a\nb", keep="\n") == "a\nb"
    assert text.escape("caf\u00e9") == "caf\u00e9"


@pytest.mark.parametrize(
    ("said", "revision"), [("3.1042", number(3, 1042)), ("0", 0), (str(number(2, 7)), number(2, 7))]
)
def test_a_revision_is_read_as_it_is_shown(said: str, revision: int) -> None:
    assert text.read_revision(said) == revision
    assert text.read_revision(text.show_revision(revision)) == revision


@pytest.mark.parametrize("said", ["", "x", "1.", ".1", "-1", "1.2.3", "40000.1", "1.999999999999999"])
def test_an_invalid_revision_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match=r"give it as shown|at most"):
        text.read_revision(said)


@pytest.mark.parametrize(
    ("said", "seconds"), [("30", 30), ("0.5", 0.5), ("500ms", 0.5), ("5m", 300), ("2h", 7200), ("1d", 86400)]
)
def test_durations_with_units_are_read_as_seconds(said: str, seconds: float) -> None:
    assert text.read_duration(said) == seconds


@pytest.mark.parametrize("said", ["0", "-1", "nan", "inf", "5 weeks", "", "1e3", "99999d"])
def test_an_invalid_duration_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match="such as 30"):
        text.read_duration(said)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.25, "0.2s"), (59, "59s"), (61, "1m 1s"), (720, "12m"), (11100, "3h 5m"), (90000, "1d 1h")],
)
def test_durations_are_shown_in_two_units_at_most(seconds: float | None, shown: str) -> None:
    assert text.show_duration(seconds) == shown


def test_sizes_and_latencies_are_shown_with_units() -> None:
    assert [text.show_bytes(n) for n in (0, 1023, 3200, 17 << 20)] == ["0 B", "1023 B", "3.1 KiB", "17 MiB"]
    assert [text.show_latency(s) for s in (87e-6, 0.0012, 2.1)] == ["87 us", "1.2 ms", "2.10 s"]


@pytest.mark.parametrize(
    ("prefixes", "subtrees"),
    [
        (["/rates/EUR/USD"], ["/rates/EUR/"]),
        (["/rates/EUR/USD", "/rates/EUR/JPY"], ["/rates/EUR/"]),
        (["/rates/EUR/USD", "/rates/x"], ["/rates/"]),
        (["/a/x", "/b/y"], ["/a/", "/b/"]),
        (["/a"], ["/"]),
        (["plain"], [""]),
        ([""], [""]),
        (["/a/x", "plain"], [""]),
    ],
)
def test_the_fewest_subtrees_that_hold_the_keys(prefixes: list[str], subtrees: list[str]) -> None:
    assert text.covering_subtrees(prefixes) == subtrees


@given(st.lists(st.text(alphabet="/ab", max_size=8), min_size=1, max_size=100))
def test_covering_subtrees_are_valid_and_hold_every_key(prefixes: list[str]) -> None:
    subtrees = text.covering_subtrees(prefixes)
    assert all(check_subtree(s) == s for s in subtrees)
    assert all(any(p.startswith(s) for s in subtrees) for p in prefixes)


def test_a_tree_of_folders() -> None:
    keys = ["/rates/EUR/JPY", "/rates/EUR/USD", "/rates/asof", "plain"]
    assert draw(keys) == ["/rates/ (3)", "├── EUR/ (2)", "│   ├── JPY", "│   └── USD", "└── asof", "plain"]
    assert draw(keys, depth=1) == ["/rates/ (3)", "plain"]


def test_a_tree_shows_a_key_and_a_folder_of_one_name() -> None:
    assert draw(["/a", "/a/b", "/a/"]) == ["/ (1)", "└── a", "/a/ (2)", "└── b"]


def test_a_sparkline_is_scaled_to_the_largest_number() -> None:
    assert text.sparkline([0, 1, 8]) == " ▁█"
    assert text.sparkline([]) == ""
    assert text.sparkline([0, 0]) == "  "


def test_columns_have_no_trailing_blanks() -> None:
    assert text.columns([("A", "B"), ("long", "x")], right=(0,)) == ["   A  B", "long  x"]


def test_percentiles_are_of_the_nearest_rank() -> None:
    numbers = [float(n) for n in range(1, 101)]
    assert (text.percentile(numbers, 50), text.percentile(numbers, 99), text.percentile([7.0], 99)) == (50, 99, 7)


@pytest.mark.parametrize("letter", ["a", "\u00e9"])
def test_the_longest_subtree_is_counted_in_bytes(letter: str) -> None:
    longest = "/" + letter * ((DEFAULT.subtree_bytes_max - 2) // len(letter.encode())) + "/"
    assert len(longest.encode()) == DEFAULT.subtree_bytes_max
    assert check_subtree(longest) == longest
    with pytest.raises(BadSubtree, match=f"at most {DEFAULT.subtree_bytes_max}"):
        check_subtree(longest[:-1] + "b/")
