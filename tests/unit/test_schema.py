"""covers: spec/schema.cddl: the vectors are of it, and it knows each column and header that the programs know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chp import columns
from chp.batch import COLUMNS
from chp.headers import KIND_NAMES, header_of
from chp.topics import unpack_messages, unpack_with_headers
from tests.cddl import Mismatch, Schema
from tests.unit.test_headers import SAMPLES, kind_of
from tests.wire.vectors import Vector, load

SCHEMA = Schema((Path(__file__).parents[2] / "spec" / "schema.cddl").read_text(encoding="utf-8"))
FILES = ("session", "sets", "updates", "questions", "topics", "peer", "journal", "refused")
VECTORS = [vector for file in FILES for vector in load(f"{file}.json").values()]
RULES = {"KVSET": "kvset", "ICANHAZ": "question", "MESSAGES": "messages-for-reader"}
PEER = {"RECORD": "update", "SYNC": "sync", "END": "state"}
# A schema cannot express these: how fields go together, and which objects exist.
UNSAID = {
    "kvset-fewer-values-than-keys", "kvset-a-key-of-ours", "kvset-a-command-as-a-key",
    "kvset-an-item-that-is-not-there", "kvset-an-item-deleted-twice", "kvset-a-lease-that-is-not-there",
    "kvset-a-commit-with-keys", "kvset-a-commit-of-what-is-not-here", "kvset-batch-0", "kvset-a-session-of-15-bytes",
    "icanhaz-a-subtree-without-its-slash", "icanhaz-an-unknown-command", "update-a-kind-that-is-not-known",
    "update-three-bytes-of-number",
}  # fmt: skip


def rule_of(vector: Vector) -> str:
    if vector.port == "P+3":
        return PEER.get(vector.message, f"peer-{vector.message.lower()}")
    return RULES.get(vector.message, vector.message.lower())


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.verdict == "taken"], ids=lambda v: v.name)
def test_an_accepted_vector_matches_the_schema(vector: Vector) -> None:
    SCHEMA.check(rule_of(vector), vector.decoded)


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.verdict != "taken"], ids=lambda v: v.name)
def test_a_refused_vector_does_not_match_the_schema(vector: Vector) -> None:
    if vector.decoded is None or vector.name in UNSAID:
        return
    with pytest.raises(Mismatch):
        SCHEMA.check(rule_of(vector), vector.decoded)


def test_topic_facts_and_messages_match_the_schema() -> None:
    topics = load("topics.json")
    of_one = [topics[name].decoded[0][2] for name in ("reply-facts-of-a-topic", "reply-places-of-a-group")]
    for facts in (*of_one, *topics["reply-topics"].decoded[0][2]["topics"]):
        SCHEMA.check("topic-facts", facts)
    keys, values = unpack_messages(topics["kvset-messages-for-a-topic"].decoded[2]["publish"][0][2])
    SCHEMA.check("messages", [keys, values])
    carried = unpack_with_headers(topics["kvset-messages-with-headers-for-a-topic"].decoded[2]["publish"][0][2])
    SCHEMA.check("messages", list(carried))


def test_the_schema_has_each_column_of_the_programs() -> None:
    known, of_clients = set(SCHEMA.entries["columns"]), set(SCHEMA.entries["client-columns"])
    assert known == COLUMNS | {columns.REFUSED}
    assert {columns.KEY_BYTES, columns.VALUE_BYTES} <= set(SCHEMA.entries["packed-columns"])
    servers = {"r", "u", "p", "done", "refused", "skipped", "ended", "placed", "trim", "assign", "scheduled", "fired"}
    servers |= {"failed", "aside", "images"}
    assert of_clients == COLUMNS - servers


HEADERS: list[list[Any]] = [
    *(fields for fields, _ in SAMPLES if isinstance(fields, list) and fields[-1:] != [[]]),
    [11, 7, 2, 0, 2],
    [11, 7, 2, 0, 2, [[bytes(32), 0]], [9, b"", b""]],
    [11, 7, 2, 0, 2, [[bytes(32), 0]], [9, b"", b""], [1, 5]],
    [12, 1, 2, 2, 1795, "root", [[bytes(12), "ann"]]],
    [12, 1, 2, 2, 1795, "root", [], {"users": {}}, bytes(32)],
]


@pytest.mark.parametrize("header", HEADERS, ids=kind_of)
def test_a_header_of_the_programs_matches_the_schema(header: list[Any]) -> None:
    name = KIND_NAMES[header[0]]
    rule = {"BATCH": "update", "MESSAGES": "messages-for-reader"}.get(name, name.lower())
    rest = [load("journal.json")["journal-the-rest"].decoded[1]] if name == "STATE" else []
    SCHEMA.check(rule, [header, *rest])
    assert header_of(header)
    with pytest.raises(Mismatch):
        SCHEMA.check(rule, [[header[0], "no", *header[2:]], *rest])


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("a = 0..3", [0, 3], [4, -1, True, "1", None]),
        ('a = "x" / nil / [* a]', ["x", None, ["x", [None]]], ["y", [1], {}]),
        ("a = bstr .size (1..2)", [b"1", b"12"], [b"", b"123", "1"]),
        ("a = [b: int, ? tstr, 0*2 bool]", [[1], [1, "x"], [1, True, True]], [[], ["x"], [1, True, True, True]]),
        ("a = { x: int, ? y: bool, * tstr => nil }", [{"x": 1}, {"x": 1, "z": None}], [{}, {"x": 1, "z": 1}, []]),
        ("a = [+ (int / tstr)] ; words\nb = a", [[1], ["x", 1]], [[], [None]]),
        ("a = { x: 'b' }", [{"x": b"b"}], [{"x": "b"}, {"x": b"b", "y": 1}]),
    ],
)  # fmt: skip
def test_the_schema_checker_accepts_good_and_refuses_bad_values(text: str, good: list[Any], bad: list[Any]) -> None:
    schema = Schema(text)
    for thing in good:
        schema.check("a", thing)
    for thing in bad:
        with pytest.raises(Mismatch):
            schema.check("a", thing)
