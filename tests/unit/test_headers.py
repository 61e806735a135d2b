"""covers: chp/headers.py, what a header must be to be read, and that it goes out as it came in."""

import re
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chp import headers
from chp.batch import decode, encode, packb, peek
from chp.errors import BadFrame
from chp.headers import KIND_NAMES, State, expect, fields_of, header_of, name_of

SERVER = bytes(range(16))
SAMPLES = [
    ([0, 2, 3, 1 << 48, 250, SERVER, "a"], headers.Greeting(2, State.ACTIVE, 1 << 48, 250, SERVER, "a")),
    ([1, 1, 2, 3, 1795, [[SERVER, 1]], False], headers.Batch(1, 2, 3, 1795, [[SERVER, 1]], False)),
    (
        [1, 1, 2, 3, 1795, [[SERVER, 1]], False, [[1, 1, 1], [0, 0, 2]]],
        headers.Batch(1, 2, 3, 1795, [[SERVER, 1]], False, [[1, 1, 1], [0, 0, 2]]),
    ),
    ([2, 3, 9, 7, 2, (1 << 64) - 1, 250, 1795, 5, 77], headers.Heartbeat(3, 9, 7, 2, (1 << 64) - 1, 250, 1795, 5, 77)),
    ([3, 1, 0], headers.Sync(1, 0)),
    ([3, 0, 4, 1795], headers.Sync(0, 4, 1795)),
    ([4, 1, 0], headers.Records(1, 0)),
    ([5, 1, 9, 2, 4, None, False, 0, 0, [b"s", b"o"]], headers.Kthxbai(1, 9, 2, 4, None, False, 0, 0, [b"s", b"o"])),
    ([5, 1, 9, 2, 4, 7, True, 5, 77, []], headers.Kthxbai(1, 9, 2, 4, 7, True, 5, 77, [])),
    ([6, [[1, 1, 9]], 2], headers.Ack([[1, 1, 9]], 2)),
    ([7, 3, "revision", {"/b": 4}], headers.Refused(3, "revision", {"/b": 4})),
    ([7, 3, "lease", None], headers.Refused(3, "lease", None)),
    ([8, 1, {"number": 9}], headers.Reply(1, {"number": 9})),
    ([9, 1, 2, 2, 1795, SERVER, "b", "alone", SERVER], headers.Epoch(1, 2, 2, 1795, SERVER, "b", "alone", SERVER)),
    ([10, 9], headers.StateHead(9)),
    ([10, 9, 2, 4, 0, 0], headers.StateHead(9, 2, 4, 0, 0)),
    ([10, 9, 2, 4, 0, 0, 0, 0, [5, 60]], headers.StateHead(9, 2, 4, 0, 0, 0, 0, [5, 60])),
]
WRONG: dict[type, list[object]] = {
    int: [None, "1", 1.0, True, b"", -1],
    bytes: [None, "x", 1],
    str: [None, b"x", 1],
    list: [None, 1, {}],
}
WRONG |= {bool: [None, 0, 1, "no"], dict: [None, [], 1]}


def kind_of(fields: list[object]) -> str:
    return f"{KIND_NAMES[int(str(fields[0]))]}-{len(fields)}"


@pytest.mark.parametrize(("fields", "header"), SAMPLES, ids=lambda x: kind_of(x) if type(x) is list else "")
class TestEachKind:
    def test_a_header_is_decoded_and_encoded_unchanged(self, fields: list[object], header: headers.Header) -> None:
        body = packb([fields, 7])
        assert decode(body) == (header, [7])
        assert type(decode(body)[0]) is type(header)
        assert encode(header, [packb(7)]) == body
        assert fields_of(header) == fields
        assert peek(body) == (header, len(packb([fields])))

    def test_a_header_description_begins_with_its_name(self, fields: list[object], header: headers.Header) -> None:
        assert header.describe().split()[0] == name_of(header) == KIND_NAMES[int(str(fields[0]))]
        assert "  " not in header.describe() and "/a=1" in (header.describe("/a=1"))

    def test_extra_fields_of_a_header_are_ignored(self, fields: list[object], header: headers.Header) -> None:
        full = [*fields, *header[len(fields) - 1 :], {"later": 1}, None]
        assert header_of(full)[: len(fields) - 1] == tuple(fields[1:])

    def test_a_header_with_too_few_fields_is_refused(self, fields: list[object], header: headers.Header) -> None:
        fewest = len(type(header)._fields) - len(type(header)._field_defaults)
        for n in range(1, fewest + 1):
            with pytest.raises(BadFrame, match=f"{fewest + 1} fields, not {n}"):
                header_of(fields[:n])

    def test_a_header_field_of_the_wrong_type_is_refused(self, fields: list[object], header: headers.Header) -> None:
        for i, thing in enumerate(fields[1:], 1):
            name = type(header)._fields[i - 1]
            for wrong in WRONG[type(thing)] if thing is not None and name != "detail" else []:
                if wrong is not None or name not in ("session_no", *type(header)._field_defaults):
                    with pytest.raises(BadFrame, match=f"{name}|negative"):
                        header_of([*fields[:i], wrong, *fields[i + 1 :]])


@pytest.mark.parametrize("thing", [None, 1, {}, (), [], ["1"], [None], [True], [-1], [len(KIND_NAMES)], [1 << 63]])
def test_values_that_are_no_header_are_refused(thing: object) -> None:
    with pytest.raises(BadFrame):
        header_of(thing)


def test_expect_takes_only_the_kind_of_header_that_is_due() -> None:
    assert expect(headers.Sync, [3, 1, 0]) == headers.Sync(1, 0)
    with pytest.raises(BadFrame, match="a RECORDS came where a SYNC was due"):
        expect(headers.Sync, [4, 1, 0])


def test_header_descriptions_have_the_form_of_transcripts() -> None:
    one, n = 1 << 48, (1 << 48) + 7
    assert headers.Batch(n - 1, n, n + 2, 0, [], False).describe("/a=1") == "BATCH #1.7..9 /a=1 (after 1.6)"
    assert headers.Greeting(2, 3, n, 250, SERVER, "a").describe("own channel") == "GREETING own channel ACTIVE 1.7"
    assert headers.Greeting(2, 9, n, 250, SERVER, "a").describe() == "GREETING 9 1.7"
    assert headers.Ack([[1, 3, n], [5, 5, n]], 2).describe() == "ACK 1..3 5 replicated"
    assert headers.Refused(5, "revision", {"/b": n}).describe() == "REFUSED 5 revision {'/b': '1.7'}"
    assert headers.Refused(1 << 30, "passive", 4).describe() == "REFUSED passive PASSIVE"
    assert headers.Epoch(one, n, n, 0, SERVER, "b", "alone", SERVER).describe() == "EPOCH #1.7"
    assert headers.Kthxbai(1, n, 0, 0, None, True).describe() == "KTHXBAI 1.7 resumed"


@given(st.lists(st.integers(-2, 1 << 64) | st.none() | st.text() | st.lists(st.integers()), max_size=9))
def test_any_list_is_a_header_or_a_bad_frame(fields: list[object]) -> None:
    try:
        header = header_of(fields)
    except BadFrame as error:
        assert str(error)
        return
    again = msgpack.unpackb(packb(fields_of(header)))
    assert header_of(again) == header


ROOT = Path(__file__).parents[2]
BARE = re.compile(
    r"""\bheader\[\d                                             # a place of a header
    |\bextras(?:\ or\ \{\}\))?(?:\[|\.(?:get|pop|setdefault)\()"\w  # a column in quotes
    |"\w+"\ (?:not\ )?in\ (?:\w+\.)?extras\b""",
    re.VERBOSE,
)


def test_code_uses_names_for_header_fields_and_columns() -> None:
    files = [
        path
        for folder in ("chp/chp", "server/chp_server", "client/chp_client")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for path in files:
        # This module has SQLite's own headers.
        if path.name == "sqlite_files.py":
            continue
        # The docstring of the module may name them.
        code = path.read_text(encoding="utf-8").partition('"""')[2].partition('"""')[2]
        found = BARE.search(code)
        assert found is None, f"{path}: {found[0]!r}: name it, see chp/chp/headers.py and columns.py"
