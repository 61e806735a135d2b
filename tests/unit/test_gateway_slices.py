"""covers: gateway/slices.py: what it reads is what `json` reads, and the work of one step is bounded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chp_client.gateway import slices
from chp_client.gateway.paths.groups import DEPTH, THINGS
from chp_client.gateway.paths.topics import _rows as message_rows
from chp_client.gateway.problems import Problem
from chp_client.gateway.shared.rows import ROWS_MAX, BatchRows, rows_of
from chp_client.gateway.slices import SLICE_BYTES, SLICE_ROWS, Slices, Steps, blocks, document

LARGE = 2 << 20
PAD = b" " * 500
LINES, PACK = "application/x-ndjson", "application/msgpack"


def steps_of(steps: Steps[Any]) -> tuple[Any, int]:
    """Return what was read, and the number of steps."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


TEXTS = st.text(alphabet=st.sampled_from('ab"\\/\n\x7fé€\U0001f600{}[],:'), max_size=40)
VALUES = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
ROWS = st.dictionaries(TEXTS, VALUES, max_size=4)
DOCUMENTS = st.dictionaries(TEXTS, st.one_of(VALUES, st.lists(ROWS, max_size=4)), max_size=4)


@settings(deadline=None, max_examples=300)
@given(DOCUMENTS, st.booleans(), st.integers(slices.ESCAPE_MAX, 40))
def test_the_slice_reader_reads_each_document_as_json_does(thing: Any, plain: bool, piece: int) -> None:
    """Texts are cut at any place, so that each kind of escape and character lies on a cut."""
    body = json.dumps(thing, ensure_ascii=plain, indent=1).encode()
    reader = slices._SliceReader(body, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "TEXT_PIECE", piece)
        patch.setattr(slices, "SMALL", piece)
        found, _ = steps_of(reader.value(DEPTH))
    assert found == thing and reader.at == len(body)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"a":1', b'{"a":1]', b'{"a" 1}', b"{1:1}", b'{"a":tru}', b'{"a":"\x01"}', b'{"a":"\\x"}', b'{"a":"\\u12"}',
        b'{"a":"b}', b'{"a":1}}', b'{"a":[[[1]]]}', b'{"a":[1,]}', b'{"a":"\xff"}', b'{"a":' + b"9" * 100 + b"}", b"",
        b" " * 5000 + b"1",
    ],
)  # fmt: skip
def test_invalid_or_too_deep_json_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        steps_of(document(b" " * 900 + bad + b" " * SLICE_BYTES, DEPTH, 1000))


def test_blocks_split_a_body_at_line_ends_without_loss() -> None:
    for line in (b"x" * 7, b"y" * 70_000, b""):
        body = b"\n".join([line] * 20_000) if len(line) < 100 else b"\n".join([line, b"z", line])
        found = list(blocks(body))
        assert b"\n".join(found) == body
        assert all(len(block) <= SLICE_BYTES or b"\n" not in block for block in found)


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    """Return a body that repeats one unit."""
    return head + unit * ((LARGE - len(head) - len(tail)) // len(unit)) + tail


def batch(body: bytes, kind: str = LINES) -> Steps[Any]:
    return rows_of(kind, body, BatchRows(("",)))


def lists(n: int) -> bytes:
    return b"[" + b"[]," * n + b"0]"


HOSTILE: dict[str, Callable[[], Steps[Any]]] = {
    "a line of lists": lambda: batch(filled(b'{"set":"/x","value":[', b"[],", b"0]}")),
    "a line of numbers": lambda: batch(filled(b'{"set":"/x","value":[', b"0,", b"0]}")),
    "a line of maps": lambda: batch(filled(b'{"set":"/x","value":[', b"{},", b"0]}")),
    "a line of names": lambda: batch(filled(b'{"set":"/x",', b'"a":1,', b'"value":"1"}')),
    "a line of escapes": lambda: batch(filled(b'{"set":"/x","value":"', b"\\n", b'"}')),
    "lines of lists": lambda: batch(b"\n".join([b'{"set":"/x","value":' + lists(60) + b"}"] * 10_000)),
    "rows": lambda: batch(b"\n".join(b'{"set":"/%d","value":"1"}' % i for i in range(60_000))),
    "rows with a ttl": lambda: batch(b"\n".join(b'{"set":"/%d","value":"1","ttl":1}' % i for i in range(60_000))),
    "messages of lists": lambda: message_rows(filled(b'{"value":[', b"[],", b"0]}")),
    "messages": lambda: message_rows(b"\n".join(b'{"value":"1"}' for _ in range(60_000))),
    "msgpack of maps": lambda: batch(b"\xdc\xff\xff" + (b"\x86" + b"\xa1a\x80" * 6) * 65_535, PACK),
    "msgpack of arrays": lambda: batch(b"\xdc\xff\xff" + b"\x9f" * LARGE, PACK),
    "an acknowledgement of lists": lambda: document(filled(b'{"receipt":[', b"[],", b"0]}"), DEPTH, THINGS),
    "an acknowledgement of rows": lambda: document(filled(b'{"sets":[', b'{"set":"/x"},', b"0]}"), DEPTH, THINGS),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_step_makes_more_than_a_slice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the parser gets at most a slice, and each step makes few things, whatever the body is."""
    real, given = json.loads, list[int]()

    def loads(text: bytes) -> Any:
        given.append(len(text))
        return real(text)

    monkeypatch.setattr(json, "loads", loads)
    steps, most = HOSTILE[name](), 0
    try:
        while True:
            given.clear()
            before = sys.getallocatedblocks()
            next(steps)
            most = max(most, sys.getallocatedblocks() - before)
            assert sum(given) <= 3 * SLICE_BYTES
    except (StopIteration, Problem, ValueError):
        assert sum(given) <= 3 * SLICE_BYTES
    assert most < SLICE_BYTES, "blocks of memory of one step"


def test_rows_are_counted_before_any_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(_: bytes) -> Any:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(json, "loads", loads)
    for body, kind in ((b"{}\n" * (ROWS_MAX + 1), LINES), (b"\xdd\x00\x01\x00\x00" + b"\x80" * 70_000, PACK)):
        with pytest.raises(Problem) as refused:
            steps_of(batch(body, kind))
        assert refused.value.status == 413


def test_large_bodies_are_read_one_by_one_and_small_bodies_at_once() -> None:
    told: list[str] = []

    def steps(name: str, count: int) -> Steps[str]:
        for _ in range(count):
            told.append(name)
            yield
        return name

    async def run() -> list[str]:
        order = Slices()
        large, other = (asyncio.create_task(order.read(1 << 20, steps(name, 5))) for name in ("large", "other"))
        while len(told) < 2:
            await asyncio.sleep(0)
        begun = len(told)
        small = await order.read(100, steps("small", 3))
        assert told[begun:] == ["small"] * 3, "it is read at once"
        return [await large, await other, small]

    assert asyncio.run(run()) == ["large", "other", "small"]
    large = [name for name in told if name != "small"]
    assert large == ["large"] * 5 + ["other"] * 5


def test_a_long_row_and_many_rows_are_read_without_change() -> None:
    value = 'a "quoted" text, a pair \U0001f600 and a line end\n' * 4000
    for text in (
        json.dumps({"set": "/x", "value": value}),
        json.dumps({"set": "/x", "value": value}, ensure_ascii=False),
    ):
        rows, steps = steps_of(batch(b'{"set":"/a","value":"1"}\n' + text.encode() + b'\n{"delete":"/b"}\n'))
        assert (
            rows.keys == ["/a", "/x", "/b"] and rows.values[1] == value.encode() and rows.deletes == [2] and steps > 2
        )
    rows, steps = steps_of(batch(b"\n".join(b'{"delete":"/%d"}' % i for i in range(5000))))
    assert rows.deletes == list(range(5000)) and steps >= 5000 // SLICE_ROWS
