"""covers: overviews beside keys: the versions of a key with times and writers, and groups with lag and members."""

import time

from chp_client import Clone
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway


def named(gateway: RunningGateway) -> dict[str, str]:
    """Return id -> name of the connected clients. The ids are those that records name."""
    return {each["client"]: each["name"] for each in gateway.client.get("/v1/clients").json()["clients"]}


def test_the_versions_of_a_key_have_times_and_writers(pair: Pair) -> None:
    with Clone(pair.servers, name="writer") as clone, RunningGateway(pair.servers) as gateway:
        before_ms = time.time() * 1000 - 1000
        for value in (b"1", b"\xff", b"3"):
            clone.set("/a/b", value).wait(10)
        clone.set("/a/c", b"another").wait(10)
        clone.delete("/a/b").wait(10)
        answer = gateway.client.get("/v1/versions", params={"key": "/a/b"})
        newest, *older = answer.json()["versions"]
        assert answer.headers["Cache-Control"] == "no-store"
        assert newest["deleted"] and not newest["expired"] and "value" not in newest
        assert [each.get("value", each.get("base64")) for each in older] == ["3", "/w==", "1"]
        assert all(before_ms < each["wall_ms"] < time.time() * 1000 + 1000 for each in [newest, *older])
        (by,) = {each["by"] for each in [newest, *older]}
        while by not in (names := named(gateway)):
            time.sleep(0.1)
        assert names[by] == "writer"
        few = gateway.client.get("/v1/versions?limit=2&key=/a/b").json()["versions"]
        assert few == [newest, older[0]]
        assert gateway.client.get("/v1/versions?key=/never").json() == {"key": "/never", "versions": []}


def test_a_server_hands_over_by_http_but_not_twice(pair: Pair) -> None:
    with Clone(pair.servers) as clone, RunningGateway(pair.servers) as gateway:
        clone.set("/a", b"1").wait(10)
        one, other = pair.servers
        done = gateway.client.post("/v1/pair/switch", params={"from": one})
        assert done.status_code == 200 and (done.json()["was"], done.json()["active"]) == (one, other)
        states = {each["server"]: each["state"] for each in gateway.client.get("/v1/pair").json()["servers"]}
        assert states[other] == "active", "what is shown next is not what was before"
        again = gateway.client.post("/v1/pair/switch", params={"from": one})
        assert again.status_code == 409 and "not active" in again.json()["detail"]
        soon = gateway.client.post("/v1/pair/switch", params={"from": other})
        assert soon.status_code in (409, 429), "the one that has just taken over, or does not have its passive yet"
        assert soon.json()["detail"]
        pair.backup.kill()
        silent = gateway.client.post("/v1/pair/switch", params={"from": other})
        assert (silent.status_code, silent.json()["code"]) == (503, "unanswered")


def test_bad_requests_for_overviews_are_refused_with_a_code(pair: Pair) -> None:
    with RunningGateway(pair.servers, "--subtree", "/a/") as gateway:
        for asked, status, code in (
            ("/v1/versions", 400, "bad-query"),
            ("/v1/versions?key=", 400, "bad-key"),
            ("/v1/versions?key=/a/b&limit=0", 400, "bad-query"),
            ("/v1/versions?key=/a/b&limit=1001", 400, "bad-query"),
            ("/v1/versions?key=/b", 400, "bad-key"),
            ("/v1/groups?x=1", 400, "bad-query"),
        ):
            answer = gateway.client.get(asked)
            assert (answer.status_code, answer.json()["code"]) == (status, code), (asked, answer.text)
        for asked in ("", "?from=", "?from=tcp://127.0.0.1:1", f"?from={pair.servers[0]}&force=1"):
            answer = gateway.client.post(f"/v1/pair/switch{asked}")
            assert (answer.status_code, answer.json()["code"]) == (400, "bad-query"), (asked, answer.text)
        page = {"Origin": gateway.url}
        answer = gateway.client.post("/v1/pair/switch", params={"from": pair.servers[0]}, headers=page)
        assert (answer.status_code, answer.json()["code"]) == (403, "read-only")


def test_groups_of_served_topics_are_shown_with_lag_and_members(pair: Pair) -> None:
    with Clone(pair.servers) as clone:
        orders = clone.topic("orders")
        orders.create()
        orders.subscribe("billing", "begin")
        orders.publish_many([b"1", b"2"]).wait(10)
        with RunningGateway(pair.servers) as gateway, orders.consumer("billing"):
            told = {"topic": "orders", "group": "billing", "lag": 2, "members": 1}
            while not told.items() <= (found := gateway.client.get("/v1/groups").json()["groups"])[0].items():
                time.sleep(0.1)
            assert len(found) == 1 and found[0]["oldest_s"] >= 0
        with RunningGateway(pair.servers, "--subtree", "/a/") as gateway:
            assert gateway.client.get("/v1/groups").json() == {"groups": []}
