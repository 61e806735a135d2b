"""Tests of the classic client with the classic server: both stand-ins must agree before they test our programs."""

from collections.abc import Iterator

import pytest

from tests.wire.classic import DIALECTS, ClassicClient, ClassicServer


@pytest.fixture(params=DIALECTS)
def classic(request: pytest.FixtureRequest) -> Iterator[ClassicServer]:
    with ClassicServer(dialect=request.param, hugz_s=0.05) as running:
        yield running


def test_a_client_gets_the_snapshot_then_the_updates(classic: ClassicServer) -> None:
    classic.put(b"/a", b"1")
    classic.put(b"/b", b"2")
    with ClassicClient([classic.endpoint], classic.dialect) as client:
        client.until_ready()
        assert len(client.map) == 2
        classic.put(b"/a", b"3")
        classic.put(b"/b", b"")
        client.until(lambda: client.map == {b"/a": b"3"})
        assert client.sequence == 4


def test_sets_of_one_client_reach_the_other_client(classic: ClassicServer) -> None:
    one, two = (ClassicClient([classic.endpoint], classic.dialect, b"/x/") for _ in range(2))
    with one, two:
        one.until_ready()
        two.until_ready()
        one.set(b"/x/k", b"v")
        two.until(lambda: two.map.get(b"/x/k") == b"v")
        two.set(b"/y/outside", b"v")
        two.delete(b"/x/k")
        one.until(lambda: not one.map)
        assert b"/y/outside" in two.map, "a classic client shows its own sets, wherever they are"


def test_the_delete_of_an_expired_key_has_the_moment_of_expiry(classic: ClassicServer) -> None:
    with ClassicClient([classic.endpoint], classic.dialect) as client:
        client.until_ready()
        uuid = client.set(b"/short", b"v", ttl=1)
        client.until(lambda: len(client.log) == 2)
        told, deleted = client.log
        assert told[2] == deleted[2] == uuid
        assert told[3].rstrip(b"\n") in (b"ttl=1", b"ttl=1.0")
        assert float(deleted[3][4:]) > 1e9 and deleted[4] == b""
        assert not client.map and not classic.items


def test_old_updates_are_discarded_and_a_hugz_with_a_body_is_stored(classic: ClassicServer) -> None:
    with ClassicClient([classic.endpoint], classic.dialect) as client:
        client.until_ready()
        classic.put(b"/a", b"1")
        client.until(lambda: client.sequence == 1)
        classic.publish_raw([b"/a", (1).to_bytes(8, "big"), b"", b"", b"old"])
        client.until(lambda: client.discarded)
        assert client.map == {b"/a": b"1"}
        classic.publish_raw([b"HUGZ", (9).to_bytes(8, "big"), b"", b"", b"body"])
        client.until(lambda: client.map.get(b"HUGZ") == b"body")


def test_a_client_leaves_a_silent_server_for_the_other_server() -> None:
    with ClassicServer(hugz_s=0.05) as first, ClassicServer(hugz_s=0.05) as second:
        first.put(b"/a", b"first")
        second.put(b"/a", b"second")
        with ClassicClient([first.endpoint, second.endpoint], silent_s=2.0) as client:
            client.until(lambda: client.map == {b"/a": b"first"} and client.hugz)
            first.stop()
            client.until(lambda: client.current == 1 and client.map == {b"/a": b"second"})


def test_a_passive_server_takes_requests_but_does_not_answer(classic: ClassicServer) -> None:
    classic.active = False
    with ClassicClient([classic.endpoint], classic.dialect) as client:
        client.until(lambda: classic.requests == [[b"ICANHAZ?", b""]])
        client.turn(0.1)
        assert not client.synced
