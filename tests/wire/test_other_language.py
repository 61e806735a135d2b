"""Tests of a client that knows the specification and nothing of our code, at a real pair.
covers: examples/other_language.py, and by it that SPEC.md says enough to write a client in another language
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.testing import Pair
from examples import other_language
from examples.other_language import Client

# The keys fill several chunks of a snapshot.
MANY = {f"/a/{i}": b"%d" % i for i in range(20_000)}


@pytest.fixture
def foreign(pair: Pair) -> Iterator[Client]:
    client = Client(pair.servers, "/a/")
    yield client
    client.close()


def test_the_foreign_client_is_short_and_imports_no_project_code() -> None:
    text = Path(other_language.__file__).read_text(encoding="utf-8")
    names = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    found = {alias.name if isinstance(node, ast.Import) else str(node.module) for node in names for alias in node.names}
    assert found == {
        "__future__", "collections.abc", "hashlib", "msgpack", "os", "struct", "sys", "time", "typing", "zlib", "zmq",
    }  # fmt: skip
    assert len([line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]) < 250


def test_the_foreign_client_joins_follows_and_is_acknowledged(pair: Pair, foreign: Client) -> None:
    with Clone(pair.servers) as clone:
        clone.set_many(MANY)
        clone.flush(timeout=30)
        foreign.wait(foreign.synced)
        foreign.wait(lambda: foreign.values == MANY)
        clone.set_many({"/a/0": b"new", "/b/0": b"elsewhere"})
        clone.delete("/a/1")
        foreign.wait(lambda: foreign.values.get("/a/0") == b"new" and "/a/1" not in foreign.values)
        first, second = foreign.set({"/a/own": b"mine", "/a/2": None}), foreign.set({"/a/own": b"mine too"})
        foreign.wait(lambda: {first, second} <= foreign.outcome.keys())
        assert foreign.outcome[second][1] == 2, "replicated"
        foreign.wait(lambda: foreign.values["/a/own"] == b"mine too" and "/a/2" not in foreign.values)
        assert foreign.revisions["/a/own"] == foreign.outcome[second][0]
        clone.sync(timeout=30)
        assert dict(clone.prefix("/a/")) == foreign.values and "/b/0" in clone
        assert foreign.seen.count("snapshot") == 1 and "resumed" not in foreign.seen


def test_a_set_of_the_foreign_client_is_refused_by_its_condition(foreign: Client) -> None:
    foreign.wait(foreign.synced)
    no = foreign.set({"/a/x": b"1"}, c=[[0], [12345]])
    foreign.wait(lambda: no in foreign.outcome)
    assert foreign.outcome[no] == ["revision", {"/a/x": 0}]


def test_the_foreign_client_resumes_after_a_gap(pair: Pair, foreign: Client) -> None:
    foreign.wait(foreign.synced)
    with Clone(pair.servers) as clone:
        clone.set("/a/x", b"1").wait(30)
        foreign.wait(lambda: "/a/x" in foreign.values)
        before = len(foreign.seen)
        for server in foreign.servers:
            server.sub.unsubscribe(foreign.topic)
        missed = -1
        # The servers hear only after a while that the client has unsubscribed.
        while foreign.values["/a/x"] == b"%d" % missed or missed < 0:
            missed += 1
            clone.set("/a/x", b"%d" % missed).wait(30)
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                foreign.step()
        for server in foreign.servers:
            server.sub.subscribe(foreign.topic)
        clone.set("/a/y", b"3").wait(30)
        foreign.wait(lambda: foreign.values == {"/a/x": b"%d" % missed, "/a/y": b"3"})
        assert foreign.seen[before:] == ["gap", "resumed"]


def test_the_foreign_client_fails_over_and_loses_no_set(pair: Pair, foreign: Client) -> None:
    foreign.wait(foreign.synced)
    for i in range(20):
        foreign.set({f"/a/{i}": b"before"})
    foreign.wait(lambda: len(foreign.outcome) == 20)
    pair.primary.kill()
    sent = [foreign.set({f"/a/{i}": b"after"}) for i in range(10)]
    foreign.wait(lambda: foreign.outcome.keys() >= set(sent))
    foreign.wait(foreign.synced)
    assert foreign.values == {f"/a/{i}": b"after" if i < 10 else b"before" for i in range(20)}
    assert any(pair.backup.address in line for line in foreign.seen)
    assert foreign.last == 30, "of one session"
    assert not foreign.kept
