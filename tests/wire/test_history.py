"""covers: port/history.py and `chp history`: the versions of a key that the log still holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import Result

from chp_client import AsyncClone, BadInput, BadKey, Clone
from chp_client.port.history import Version
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S


def told(versions: list[Version]) -> list[tuple[object, str, bool]]:
    return [(v.value, v.operation, v.expired) for v in versions]


def test_history_shows_value_time_and_client_of_each_version(clone: Clone, server: TestServer) -> None:
    first = clone.set("/a/k", b"1").wait(WAIT_S)
    clone.set("/a/other", b"x").wait(WAIT_S)
    clone.delete("/a/k").wait(WAIT_S)
    with Clone(server.address, subtree=None) as other, clone.watch("/a/k") as watch:
        other.set("/a/k", b"2", ttl=0.2).wait(WAIT_S)
        while not watch.get(WAIT_S).expired:
            pass
    versions = clone.history("/a/k", timeout=WAIT_S)
    assert told(versions) == [
        (b"1", "set", False),
        (None, "delete", False),
        (b"2", "set", False),
        (None, "delete", True),
    ]
    assert versions[0].revision == first.revision and [v.ttl for v in versions] == [None, None, 0.2, None]
    mine, _, others, nobody = [v.by for v in versions]
    assert mine and others and mine != others and len(mine) == 24 and nobody is None
    assert all(abs(v.when - datetime.now(UTC)) < timedelta(minutes=10) for v in versions)
    assert told(clone.history("/a/k", limit=1, timeout=WAIT_S)) == [(None, "delete", True)]


def test_history_of_a_key_without_a_folder_and_of_an_unset_key(clone: Clone) -> None:
    clone.set("plain", b"1").wait(WAIT_S)
    assert told(clone.history("plain", timeout=WAIT_S)) == [(b"1", "set", False)]
    assert clone.history("/never", timeout=WAIT_S) == []


def test_a_version_from_a_record_of_several_clients_names_no_client(clone: Clone, server: TestServer) -> None:
    """Sets of two clients are in one record if the server takes both in one turn."""
    with Clone(server.address, subtree=None) as other:
        for i in range(200):
            ours, theirs = clone.set("/s/a", str(i).encode()), other.set("/s/b", b"")
            if ours.wait(WAIT_S).revision >> 48 and theirs.wait(WAIT_S).revision:
                versions = clone.history("/s/a", limit=1, timeout=WAIT_S)
                if versions[0].by is None:
                    return
    pytest.skip("the server never took two clients' sets in one turn")


def test_history_decodes_values_and_keeps_undecodable_ones_as_bytes(server: TestServer, clone: Clone) -> None:
    for value in (b"1", b"{"):
        clone.set("/j", value).wait(WAIT_S)
    with Clone(server.address, codec="json") as reader:
        assert [v.value for v in reader.history("/j", timeout=WAIT_S)] == [1, b"{"]

    async def main() -> None:
        async with AsyncClone(server.address, subtree=None) as other:
            assert [v.value for v in await other.history("/j", timeout=WAIT_S)] == [b"1", b"{"]

    asyncio.run(main())


def test_history_refuses_an_empty_key_and_a_bad_limit(clone: Clone) -> None:
    with pytest.raises(BadKey):
        clone.history("")
    for limit in (0, 10_001, "3"):
        with pytest.raises(BadInput, match="is not a number of versions"):
            clone.history("/a", limit=limit)  # type: ignore[arg-type]


def test_history_is_answered_after_a_failover(pair: Pair) -> None:
    with Clone(pair.servers) as clone:
        clone.wait_until_synced(WAIT_S)
        clone.set("/a", b"1").wait(WAIT_S)
        pair.primary.kill()
        clone.set("/a", b"2").wait(WAIT_S)
        assert told(clone.history("/a", timeout=WAIT_S)) == [(b"1", "set", False), (b"2", "set", False)]


def test_the_history_command_prints_each_version(clone: Clone, run: Callable[..., Result]) -> None:
    clone.set("/a", b"1", ttl=60).wait(WAIT_S)
    clone.delete("/a").wait(WAIT_S)
    lines = run("history", "/a", "--json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert (first["op"], first["value"], first["ttl"], second["op"]) == ("set", "1", 60, "del")
    assert len(first["by"]) == 24 and first["when"].endswith("Z") and "." in first["revision"]
    text = run("history", "/a", "--limit", "2").stdout
    assert "  set      1  ttl 60 s  by " in text and "  delete   by " in text
    none = run("history", "/never")
    assert none.exit_code == 1 and "the log has no version of '/never'" in none.stderr
