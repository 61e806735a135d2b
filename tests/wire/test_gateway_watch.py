"""covers: GET /v1/watch: snapshots, resumption over a restart of the gateway and a failover, slow readers."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest

from chp_client import Clone
from chp_client.gateway.paths import stream
from chp_client.gateway.shared import fanout
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway


async def events(
    client: httpx.AsyncClient, prefix: str, last: str | None, **params: str
) -> AsyncIterator[tuple[str, str, dict]]:  # type: ignore[type-arg]
    """Yield (id, event, data) of a stream."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", "/v1/watch", params={"prefix": prefix, **params}, headers=headers) as answer:
        if answer.status_code != 200:
            raise httpx.ReadError("not now")
        said = {"id": "", "event": "", "data": ""}
        async for line in answer.aiter_lines():
            if not line:
                if said["data"]:
                    yield said["id"], said["event"], json.loads(said["data"])
                said |= {"event": "", "data": ""}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                said[name] = value


async def read(where: dict[str, str], prefix: str, wanted: int, began: asyncio.Event) -> list[str]:
    """Return this many values of changes that one reader sees. The reader reconnects after each fault."""
    seen: list[str] = []
    last: str | None = None
    while len(seen) < wanted:
        async with httpx.AsyncClient(base_url=where["url"], timeout=30, trust_env=False, verify=False) as client:
            try:
                async for number, event, data in events(client, prefix, last):
                    last = number or last
                    if event == "current":
                        began.set()
                    elif event == "change":
                        seen += [row["value"] for row in data["changes"]]
                    else:
                        assert last is None, f"{event} after {last}: it was not resumed"
                    if len(seen) >= wanted:
                        break
            except httpx.HTTPError:
                await asyncio.sleep(0.05)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(("readers_n", "updates"), [(30, 300), pytest.param(200, 1000, marks=pytest.mark.long)])
def test_every_reader_sees_each_change_once_over_a_restart_and_failover(
    pair: Pair, readers_n: int, updates: int
) -> None:
    where: dict[str, str] = {}

    async def go(clone: Clone, first: RunningGateway) -> RunningGateway:
        where["url"] = first.url
        began = [asyncio.Event() for _ in range(readers_n)]
        readers = [asyncio.create_task(read(where, "/w/", updates, each)) for each in began]
        await asyncio.gather(*(each.wait() for each in began))
        second = first
        for n in range(updates):
            await asyncio.to_thread(clone.set("/w/n", str(n).encode()).wait, 30)
            if n == updates // 3:
                await asyncio.to_thread(first.stop)
                second = await asyncio.to_thread(RunningGateway, pair.servers)
                where["url"] = second.url
            if n == 2 * updates // 3:
                await asyncio.to_thread(pair.primary.kill)
        for seen in await asyncio.wait_for(asyncio.gather(*readers), 300):
            assert seen == [str(n) for n in range(updates)]
        return second

    with Clone(pair.servers, subtree="/w/") as clone:
        asyncio.run(go(clone, RunningGateway(pair.servers))).stop()


def test_a_watch_begins_with_a_snapshot_and_each_record_is_one_event(pair: Pair) -> None:
    async def go(gateway: RunningGateway, clone: Clone) -> None:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False, verify=False) as client:
            stream = events(client, "/s/", None)
            kinds = [await anext(stream) for _ in range(3)]
            assert [kind for _, kind, _ in kinds] == ["snapshot", "entries", "current"]
            assert [number for number, _, _ in kinds[:2]] == ["", ""], "who has half a snapshot may not resume from it"
            assert {row["key"] for row in kinds[1][2]["changes"]} == {"/s/a", "/s/b"}
            ack = clone.set_many({"/s/a": b"2", "/s/c": b"\xff", "/t/x": b"-"}).wait(10)
            number, kind, data = await anext(stream)
            assert (number, kind) == (str(ack.revision), "change")
            assert data["changes"] == [{"key": "/s/a", "value": "2"}, {"key": "/s/c", "base64": "/w=="}]
            clone.delete("/s/a").wait(10)
            assert (await anext(stream))[2]["changes"] == [{"key": "/s/a", "deleted": True}]

    with Clone(pair.servers) as clone, RunningGateway(pair.servers) as gateway:
        clone.set_many({"/s/a": b"1", "/s/b": b"1", "/t/x": b"1"}).wait(10)
        # Once the gateway has done this write, it has the updates before it.
        gateway.client.put("/v1/keys/t/y", content=b"")
        asyncio.run(go(gateway, clone))


def test_a_watch_from_an_unknown_number_begins_with_a_snapshot(pair: Pair) -> None:
    async def go(gateway: RunningGateway) -> str:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False, verify=False) as client:
            return (await anext(events(client, "/", "77.5")))[1]

    with RunningGateway(pair.servers) as gateway:
        assert asyncio.run(go(gateway)) == "snapshot"


def test_last_event_id_counts_more_than_after_in_the_url(pair: Pair) -> None:
    async def go(gateway: RunningGateway, first: str, second: str) -> str:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False, verify=False) as client:
            return (await anext(events(client, "/s/", second, after=first)))[0]

    with Clone(pair.servers) as clone, RunningGateway(pair.servers) as gateway:
        numbers = [str(clone.set("/s/a", b"%d" % n).wait(10).revision) for n in range(3)]
        assert asyncio.run(go(gateway, numbers[0], numbers[1])) == numbers[2]
        refused = gateway.client.get("/v1/watch?after=yesterday").json()
        assert refused["detail"].startswith("after: "), "what is wrong is named as it was given"


def stuck(gateway: RunningGateway, prefix: str) -> socket.socket:
    """Return a reader with a small buffer. It has read the snapshot, and reads more only if the test does."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", gateway.port))
    sock.sendall(f"GET /v1/watch?prefix={prefix} HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n\r\n".encode())
    came = b""
    while b"event: current" not in came:
        came += sock.recv(4096)
    return sock


def held_for_readers(gateway: RunningGateway) -> int:
    """Return the largest number of bytes that wait in the gateway to be written to a reader."""
    return max(each.transport.get_write_buffer_size() for each in gateway.server.server_state.connections)


def test_a_slow_reader_skips_old_values_and_takes_bounded_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "KEPT", 20)
    monkeypatch.setattr(fanout, "TOGETHER", 200_000)
    # 300 such values are 9 MB, which is more than the sockets' buffers take.
    value = b"x" * 30_000
    with Clone(pair.servers, subtree="/slow/") as clone, RunningGateway(pair.servers) as gateway:
        reader, most = stuck(gateway, "/slow/"), 0
        for n in range(300):
            clone.set("/slow/n", b"%d %s" % (n, value)).wait(30)
            most = max(most, held_for_readers(gateway))
        assert 0 < most < 1_000_000, "what it does not take is not gathered"
        came = b""
        while b'"value":"299 ' not in came:
            came += reader.recv(1 << 20)
        reader.close()
        seen = [int(n) for n in re.findall(rb'"value":"(\d+) ', came)]
        assert gateway.gateway.metrics.conflated > 0
    assert seen == sorted(set(seen)) and seen[-1] == 299, "in order and once"
    assert b"event: snapshot" not in came and len(seen) < 200, "it was given all of them"


def test_a_reader_that_takes_nothing_is_cut_off_and_others_go_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SEND_S", 1.0)
    with Clone(pair.servers, subtree="/cut/") as clone, RunningGateway(pair.servers) as gateway:
        reader = stuck(gateway, "/cut/")
        other = threading.Thread(target=drain, args=(stuck(gateway, "/cut/"),), daemon=True)
        other.start()
        for _ in range(200):
            clone.set("/cut/n", b"x" * 100_000).wait(30)
        while gateway.gateway.readers > 1:
            threading.Event().wait(0.05)
        with suppress(ConnectionResetError):
            drain(reader)
        assert gateway.gateway.metrics.cut_off == 1 and other.is_alive()


def drain(sock: socket.socket) -> None:
    """Read until the end."""
    with sock:
        while sock.recv(1 << 20):
            pass
