"""Tests of one gateway over four real pairs, each with a mount.

covers: gateway/shared/mounts.py, and what all paths of a gateway do with several mounts
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chp.access import token_hash
from chp_client import Clone
from chp_client.gateway.channels.websocket import BINARY, CLOSE, put, taken
from chp_client.gateway.shared import fanout
from chp_client.mount_table import Mounts
from chp_server.testing import Pair
from tests.talk import PATIENT, WAIT_S, run, until
from tests.unit.test_websocket import masked, sets
from tests.wire import keys
from tests.wire.gateways import RunningGateway
from tests.wire.node import Program, node
from tests.wire.test_gateway_watch import events
from tests.wire.test_gateway_websocket import Stranger

PREFIXES = ("/", "/rates/", "/rates/EUR/", "/stock/")
# Keys of each mount, in order.
KEYS = ("/a", "/rates/CHF", "/rates/EUR/CHF", "/rates/EUR/USD", "/rates/GBP", "/stock/7", "/z")
LINES = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Pair]]:
    """Start four pairs."""
    with contextlib.ExitStack() as stack:
        yield {prefix: stack.enter_context(Pair(**PATIENT)) for prefix in PREFIXES}


@pytest.fixture(scope="module")
def table(pairs: dict[str, Pair]) -> Mounts:
    """Return the mounts of the four pairs. Topics need a client file, so all topics are of the first mount."""
    return Mounts({prefix: pair.servers for prefix, pair in pairs.items()})


@pytest.fixture(scope="module")
def gateway(table: Mounts) -> Iterator[RunningGateway]:
    """Run a gateway over the four pairs, with a value at each of `KEYS`."""
    with RunningGateway(text(table)) as running:
        for key in KEYS:
            assert running.client.put(f"/v1/keys{key}", content=key.encode()).status_code == 200
        yield running


def text(table: Mounts) -> str:
    """Return mounts as `--servers` takes them."""
    return " ".join(f"{prefix}={','.join(servers)}" for prefix, servers in table.servers.items())


def test_each_key_is_written_to_and_read_from_its_own_pair(gateway: RunningGateway, table: Mounts) -> None:
    client = gateway.client
    for key in KEYS:
        # An Accept-Charset keeps the second request off the fast path.
        for more in ({}, {"Accept-Charset": "utf-8"}):
            answer = client.get(f"/v1/keys{key}", headers=more)
            assert answer.content == key.encode()
            assert answer.headers["CHP-Number"].partition("=")[0] == table.of_key(key)
        with Clone(table.servers[table.of_key(key)]) as clone:
            clone.wait_until_synced(WAIT_S)
            assert clone[key] == key.encode()
    etag = client.get("/v1/keys/stock/7").headers["ETag"]
    assert client.put("/v1/keys/stock/7", content=b"/stock/7", headers={"If-Match": etag}).status_code == 200
    refused = client.put("/v1/keys/stock/7", content=b"x", headers={"If-Match": etag})
    assert refused.status_code == 412 and refused.json()["now"]["value"] == "/stock/7"
    assert client.put("/v1/keys/rates/EUR/gone", content=b"x").status_code == 200
    assert client.delete("/v1/keys/rates/EUR/gone").headers["CHP-Number"].startswith("/rates/EUR/=")
    assert client.get("/v1/keys/rates/EUR/gone").status_code == 404
    versions = client.get("/v1/versions", params={"key": "/rates/EUR/gone"}).json()["versions"]
    assert [each.get("deleted", False) for each in versions] == [True, False]


def test_pages_are_sorted_over_the_edges_of_mounts(gateway: RunningGateway) -> None:
    def page(**query: Any) -> dict[str, Any]:
        found: dict[str, Any] = gateway.client.get("/v1/keys", params=query).json()
        return {**found, "keys": [each["key"] for each in found["keys"]]}

    assert page(prefix="/")["keys"] == list(KEYS)
    assert [word.partition("=")[0] for word in page(prefix="/")["number"].split()] == list(PREFIXES)
    assert page(prefix="/rates/")["keys"] == list(KEYS[1:5]) == page(prefix="/ra")["keys"]
    assert page(prefix="/stock/")["number"].startswith("/stock/=")
    seen, after = list[str](), ""
    while after is not None:
        some = page(prefix="/", limit=2, after=after)
        seen += some["keys"]
        after = some["next"]
    assert seen == list(KEYS)


def test_keys_of_another_mount_in_a_pair_are_not_shown(gateway: RunningGateway, table: Mounts) -> None:
    with Clone(table.servers["/"], None) as before:
        before.set("/rates/old", b"moved").wait(WAIT_S)
        before.set("/zz", b"here").wait(WAIT_S)
        found: list[str] = []

        def keys() -> list[str]:
            told = gateway.client.get("/v1/keys", params={"prefix": "/"}).json()["keys"]
            found[:] = [each["key"] for each in told]
            return found

        until(lambda: "/zz" in keys())
        assert found == [*KEYS, "/zz"] and gateway.client.get("/v1/keys/rates/old").status_code == 404
        own = gateway.client.get("/v1/pair").json()["gateway"]
        with Clone(table.servers["/"], "/.gateway/") as markers:
            markers.wait_until_synced(WAIT_S)
            assert own["keys"] == len(found) + len(markers)
        # A reader of events hears nothing of the hidden key either.
        with gateway.client.stream("GET", "/v1/watch", params={"prefix": "/"}) as stream:
            lines = stream.iter_lines()
            while "event: current" not in next(lines):
                pass
            before.delete_many(["/rates/old", "/zz"]).wait(WAIT_S)
            while "changes" not in (said := next(lines)):
                pass
            assert json.loads(said.partition(" ")[2])["changes"] == [{"key": "/zz", "deleted": True}]


def test_rows_of_two_mounts_are_refused_with_both_names(gateway: RunningGateway) -> None:
    def batch(*keys: str) -> httpx.Response:
        body = "".join(json.dumps({"set": key, "value": "new"}) + "\n" for key in keys)
        return gateway.client.post("/v1/batch", content=body, headers=LINES)

    refused = batch("/rates/CHF", "/stock/7")
    assert refused.status_code == 400 and refused.json()["code"] == "two-mounts"
    assert "'/rates/CHF' is of '/rates/', and '/stock/7' is of '/stock/'" in refused.json()["detail"]
    assert gateway.client.get("/v1/keys/stock/7").content == b"/stock/7"
    assert batch("/rates/x", "/rates/y").status_code == 200
    for key in ("/rates/x", "/rates/y"):
        assert gateway.client.delete(f"/v1/keys{key}").status_code == 200


def test_a_request_is_done_once_in_its_own_mount(gateway: RunningGateway, table: Mounts) -> None:
    once = {"Idempotency-Key": "one"}
    first, again = (gateway.client.put("/v1/keys/stock/once", content=b"1", headers=once) for _ in range(2))
    assert first.json()["revision"] == again.json()["revision"] and again.headers["Idempotency-Replayed"] == "true"
    other = gateway.client.put("/v1/keys/stock/once", content=b"2", headers=once)
    assert other.status_code == 422
    with Clone(table.servers["/stock/"], "/.gateway/") as markers:
        markers.wait_until_synced(WAIT_S)
        assert len(markers) == 1
    gateway.client.delete("/v1/keys/stock/once")


def test_topics_with_their_groups_and_conditions_are_of_one_mount(gateway: RunningGateway) -> None:
    client = gateway.client
    assert client.post("/v1/topics/orders/messages", content=b"one").status_code == 200
    assert client.put("/v1/topics/orders/groups/g?start=begin").status_code == 201
    given = client.post("/v1/topics/orders/groups/g/receive").json()
    assert [each["value"] for each in given["messages"]] == ["one"]
    told = {"receipt": given["receipt"], "sets": [{"set": "/stock/sold", "value": "1"}]}
    refused = client.post("/v1/topics/orders/groups/g/ack", json=told)
    assert refused.status_code == 400 and refused.json()["code"] == "two-mounts", refused.text
    assert "'/stock/sold' is of '/stock/', and 'orders' is of '/'" in refused.json()["detail"]
    told["sets"] = [{"set": "/sold", "value": "1"}]
    assert client.post("/v1/topics/orders/groups/g/ack", json=told).status_code == 200
    assert client.get("/v1/keys/sold").content == b"1" and client.delete("/v1/keys/sold").status_code == 200
    assert "orders" in [each["name"] for each in client.get("/v1/topics").json()["topics"]]
    refused = client.post("/v1/topics/orders/scheduled?delay_s=60&unless_changed=/rates/CHF", content=b"x")
    assert refused.status_code == 400 and refused.json()["code"] == "two-mounts"
    assert client.post("/v1/topics/orders/scheduled?delay_s=60&unless_changed=/a", content=b"x").status_code == 201
    until(lambda: [each["group"] for each in client.get("/v1/groups").json()["groups"]] == ["g"])


def test_a_reader_of_several_mounts_resumes_in_each_mount(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False, verify=False) as client:
            begun: Any = events(client, "/", None)
            held: list[str] = []
            number, event, data = await anext(begun)
            while event != "current":
                held += [row["key"] for row in data["changes"]] if event == "entries" else []
                number, event, data = await anext(begun)
            assert sorted(held) == list(KEYS) and number == data["number"]
            assert [word.partition("=")[0] for word in number.split()] == list(PREFIXES)
            assert (await written(client, begun, 3))[-1] != number
            await begun.aclose()
            # A stream that resumes gets the missed updates from the logs of all pairs, and no update twice.
            for key in ("/rates/EUR/USD", "/z"):
                await client.put(f"/v1/keys{key}", content=b"missed")
            later = events(client, "/", number)
            seen = [await anext(later) for _ in range(8)]
            assert {event for _, event, _ in seen} == {"change"}
            values = [(row["key"], row["value"]) for _, _, data in seen for row in data["changes"]]
            assert sorted(values) == sorted(
                [*((key, str(n)) for n in range(3) for key in ("/rates/CHF", "/stock/7")),
                 ("/rates/EUR/USD", "missed"), ("/z", "missed")]
            )  # fmt: skip
            assert {data["mount"] for _, _, data in seen} == set(PREFIXES)
            # With so few kept events the reader gets only the latest value of each key.
            monkeypatch.setattr(fanout, "KEPT", 1)
            await written(client, later, 2)
            async for _, _, data in events(client, "/", seen[-1][0]):
                if data["changes"][-1] == {"key": "/stock/7", "value": "1"}:
                    break

    async def written(client: httpx.AsyncClient, stream: Any, count: int) -> list[str]:
        for n in range(count):
            for key in ("/rates/CHF", "/stock/7"):
                await client.put(f"/v1/keys{key}", content=str(n).encode())
        return [(await anext(stream))[0] for _ in range(2 * count)]

    asyncio.run(go())
    for key in ("/rates/CHF", "/rates/EUR/USD", "/stock/7", "/z"):
        gateway.client.put(f"/v1/keys{key}", content=key.encode())


def test_a_stream_of_several_mounts_refuses_a_number_of_one_mount(gateway: RunningGateway) -> None:
    def status(prefix: str, after: str) -> tuple[int, str]:
        with gateway.client.stream("GET", "/v1/watch", params={"prefix": prefix, "after": after}) as answer:
            return answer.status_code, "" if answer.status_code == 200 else json.loads(answer.read())["detail"]

    number = gateway.client.get("/v1/keys/stock/7").headers["CHP-Number"]
    assert status("/stock/", number)[0] == 200 == status("/stock/", number.partition("=")[2])[0]
    refused, why = status("/rates/", "1.2")
    assert refused == 400 and "this spans '/rates/' and '/rates/EUR/'" in why
    refused, why = status("/rates/", number)
    assert refused == 400 and "is no position of the mounts '/rates/', '/rates/EUR/'" in why
    assert status("/stock/", "/stock/=x")[0] == 400

    async def first(last: str) -> str:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False, verify=False) as client:
            return (await anext(events(client, "/stock/", last)))[1]

    # A browser may resume with a number from before the gateway's mounts changed. Then it gets a new snapshot.
    assert asyncio.run(first("1.2")) == "snapshot" == asyncio.run(first("/old/=1.2"))


def test_all_pairs_are_shown_with_their_mounts(gateway: RunningGateway, table: Mounts) -> None:
    told = gateway.client.get("/v1/pair").json()
    assert [(each["mount"], each["server"]) for each in told["servers"]] == [
        (prefix, server) for prefix, servers in table.servers.items() for server in servers
    ]
    assert [each["mount"] for each in told["gateway"]["mounts"]] == list(PREFIXES) and "active" not in told["gateway"]
    assert {each["mount"] for each in gateway.client.get("/v1/history").json()["epochs"]} == set(PREFIXES)
    until(lambda: {each["mount"] for each in gateway.client.get("/v1/clients").json()["clients"]} == set(PREFIXES))
    assert 'chp_gateway_mount_synced{mount="/rates/EUR/"} 1\n' in gateway.client.get("/metrics").text
    active = next(each for each in told["servers"] if each["mount"] == "/stock/" and each["state"] == "active")
    done = gateway.client.post("/v1/pair/switch", params={"from": active["server"]})
    assert done.status_code == 200 and done.json()["active"] in table.servers["/stock/"], done.text


def test_a_websocket_is_of_one_mount(gateway: RunningGateway, table: Mounts) -> None:
    for query in ("", "?mount=/none/", "?mount=/&mount=/", "?subtree=/"):
        assert Stranger(gateway, f"/v1/clone{query}").status == 400
    assert "?mount= with one of '/', '/rates/'" in Stranger(gateway).problem()["detail"]
    stranger = Stranger(gateway, "/v1/clone?mount=%2Frates%2F")
    assert [frame.decode() for frame in taken(stranger.hear(BINARY))[2]] == list(table.servers["/rates/"])
    stranger.socket.sendall(masked(BINARY, put(0, 2, sets("/rates/EUR/x"))))
    closed = stranger.hear(CLOSE)
    assert int.from_bytes(closed[:2], "big") == 1008 and b"is of another mount" in closed


@node
def test_a_clone_in_javascript_is_of_one_mount(gateway: RunningGateway, tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        f"""
        const clone = await Clone.open("{gateway.url}", {{ mount: "/rates/EUR/", subtree: "/rates/EUR/" }});
        await clone.set("/rates/EUR/js", "1");
        console.log(JSON.stringify(clone.keys().sort()));
        clone.close();
        """,
    )
    with program:
        assert program.hear() == ["/rates/EUR/CHF", "/rates/EUR/USD", "/rates/EUR/js"]
    assert gateway.client.delete("/v1/keys/rates/EUR/js").status_code == 200


def test_the_gateway_is_not_ready_if_one_mount_is_unreachable(table: Mounts) -> None:
    # No server is there.
    away = Mounts({**table.servers, "/away/": ["tcp://127.0.0.1:9"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningGateway, "_wait_ready", lambda running: None)
        running = RunningGateway(text(away))
    with running:
        transport = httpx.HTTPTransport(retries=5, verify=False)
        with httpx.Client(
            base_url=running.url, transport=transport, timeout=30, trust_env=False, verify=False
        ) as client:
            until(lambda: client.get("/v1/keys/stock/7").status_code == 200)
            assert client.get("/health").status_code == 200
            until(lambda: client.get("/ready").json().get("detail", "").startswith("mount /away/: CONNECTING"))
            assert client.get("/ready").status_code == 503
            assert client.get("/v1/keys/away/x").json()["code"] == "not-synced"
            page = client.get("/v1/keys", params={"prefix": "/"})
            assert page.status_code == 503 and "mount /away/" in page.json()["detail"]
            assert client.get("/v1/keys", params={"prefix": "/stock/"}).status_code == 200
            states = [(each["mount"], each["state"]) for each in client.get("/v1/pair").json()["servers"]]
            assert ("/away/", "unreachable") in states and ("/", "active") in states


def test_a_gateway_of_some_subtrees_follows_only_their_mounts(table: Mounts) -> None:
    with RunningGateway(text(table), "--subtree", "/rates/", "--subtree", "/.chp/topics/x/") as narrow:
        own = narrow.client.get("/v1/pair").json()["gateway"]
        assert [each["mount"] for each in own["mounts"]] == ["/", "/rates/", "/rates/EUR/"]
        assert narrow.client.get("/v1/keys/rates/EUR/USD").status_code == 200
        assert narrow.client.get("/v1/keys/a").json()["code"] == "bad-key"
        assert narrow.client.get("/v1/keys", params={"prefix": "/stock/"}).status_code == 400
        assert narrow.client.post("/v1/topics/x/messages", content=b"1").status_code == 200


MAPPED = """
[mounts]
"/" = {root}
"/rates/" = {rates}
[topics]
"ticks.*" = "/rates/"
"""


def test_each_mount_has_tokens_and_rules_of_its_own(tmp_path: Path) -> None:
    user = keys.new_pair()
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(keys.pair_with_keys(tmp_path / name, ("gate", user), **PATIENT)) for name in ("a", "b")
        ]
        file = keys.client_file(tmp_path / "gate.toml", user, {**keys.known(both[0]), **keys.known(both[1])})
        table = MAPPED.format(root=both[0].servers, rates=both[1].servers).replace("'", '"')
        file.write_text(file.read_text() + table)

        def access(*words: str) -> str:
            done = run("access", *words, "--client-file", str(file))
            assert done.exit_code == 0, done.output
            return done.stdout.strip()

        for mount, allowed in (("/", "read"), ("/rates/", "write")):
            for command in (("admin", "access", "status"), ("read", ""), ("write", "")):
                access("grant", "gate", *command, "--mount", mount)
            access("grant", "ann", allowed, "", "--mount", mount)
        token = access("token", "ann")
        narrow = access("token", "ann", "--mount", "/rates/")
        missing = run("access", "token", "bob", "--client-file", str(file))
        assert missing.exit_code == 2 and "mount /: there is no user 'bob'" in missing.output
        with RunningGateway("", "--client-file", str(file)) as running:

            def status(shown: str, method: str, path: str) -> int:
                headers = {"Authorization": f"Bearer {shown}"}
                return running.client.request(method, path, headers=headers, content=b"1").status_code

            until(lambda: status(token, "GET", "/v1/keys/none") == 404)
            until(lambda: status(narrow, "PUT", "/v1/keys/rates/x") == 200)
            assert status(token, "PUT", "/v1/keys/x") == 403 == status(narrow, "GET", "/v1/keys/none")
            assert status(token, "PUT", "/v1/keys/rates/x") == 200
            assert status(token, "GET", "/v1/keys/rates/x") == 403 == status(token, "GET", "/v1/pair")
            assert status(token, "POST", "/v1/topics/ticks.a/messages") == 200
            assert status(token, "POST", "/v1/topics/other/messages") == 403 and status("x", "GET", "/v1/pair") == 401
            with Clone(client_file=file, subtree=None) as clone:
                assert "ticks.a" in [facts["name"] for facts in clone.mounts["/rates/"].topics()]
            access("token", "ann", "--revoke", token_hash(narrow)[:16], "--mount", "/rates/")
            until(lambda: status(narrow, "PUT", "/v1/keys/rates/x") == 401)
