"""covers: the gateway's topics: made, published into, read by pages, removed; over a failover; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from chp_client import Clone
from chp_client.gateway.paths import topics
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

LINES = {"Content-Type": "application/x-ndjson"}
MESSAGES = "/v1/topics/t/messages"


def page(client: httpx.Client, path: str) -> tuple[list[Any], Any]:
    """Return the values of a page, and the place where the next one begins."""
    told = client.get(path).raise_for_status().json()
    return [each.get("value", each.get("base64")) for each in told["messages"]], told["next"]


def test_published_messages_are_read_in_order_by_pages_and_by_a_clone(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway, Clone(pair.servers) as clone:
        client = gateway.client
        made = client.put("/v1/topics/t", content=b'{"keep": "size", "max_messages": 1000}')
        assert made.status_code == 201 and client.put("/v1/topics/t").json()["code"] == "there"
        done = client.post(f"{MESSAGES}?key=alice", content=b"\xff\x00").json()
        assert done["count"] == 1 and done["durability"] == "replicated"
        rows = "".join(json.dumps({"value": str(i)}) + "\n" for i in range(25))
        assert client.post(MESSAGES, content=rows, headers=LINES).json()["count"] == 25
        found, after = page(client, f"{MESSAGES}?max=10")
        while after < 25:
            more, after = page(client, f"{MESSAGES}?max=10&after={after}")
            found += more
        assert found == ["/wA=", *map(str, range(25))]
        assert page(client, f"{MESSAGES}?after=25") == ([], 25)
        first = client.get(f"{MESSAGES}?max=1").json()["messages"][0]
        assert first["key"] == "alice" and first["offset"] == 0
        read = [message.value for batch in clone.topic("t").read(wait=False) for message in batch]
        assert read == [b"\xff\x00", *(b"%d" % i for i in range(25))]
        facts = client.get("/v1/topics/t").json()
        assert (facts["first"], facts["next"]) == (0, 26)
        assert [each["name"] for each in client.get("/v1/topics").json()["topics"]] == ["t"]
        pair.primary.kill()
        client.post(MESSAGES, content=b"last").raise_for_status()
        assert page(client, f"{MESSAGES}?after=25") == (["last"], 26)
        assert client.delete("/v1/topics/t").status_code == 200
        assert client.get(MESSAGES).status_code == 404


@pytest.fixture(scope="module")
def asked() -> Any:
    """Start a gateway to everything and one to a subtree, for requests that are refused."""
    with (
        Pair() as pair,
        RunningGateway(pair.servers) as whole,
        RunningGateway(pair.servers, "--subtree", "/a/") as part,
    ):
        whole.client.post(MESSAGES, content=b"1").raise_for_status()
        yield whole.client, part.client


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/topics/none", b"", 404, "absent"),
        ("GET", "/v1/topics/none/messages", b"", 404, "absent"),
        ("DELETE", "/v1/topics/none", b"", 404, "absent"),
        ("GET", "/v1/topics/b%20d", b"", 400, "bad-request"),
        ("GET", "/v1/topics/" + "x" * 201, b"", 400, "bad-request"),
        ("GET", "/v1/topics?page=1", b"", 400, "bad-query"),
        ("GET", "/v1/topics/t?x=1", b"", 400, "bad-query"),
        ("GET", f"{MESSAGES}?after=-1", b"", 400, "bad-query"),
        ("GET", f"{MESSAGES}?after=x", b"", 400, "bad-query"),
        ("GET", f"{MESSAGES}?after=99999999999999999", b"", 400, "bad-query"),
        ("GET", f"{MESSAGES}?max=0", b"", 400, "bad-query"),
        ("GET", f"{MESSAGES}?max=10001", b"", 400, "bad-query"),
        ("PUT", "/v1/topics/u", b"[", 400, "bad-body"),
        ("PUT", "/v1/topics/u", b"[]", 400, "bad-body"),
        ("PUT", "/v1/topics/u", b'{"keeps": "all"}', 400, "bad-body"),
        ("PUT", "/v1/topics/u", b'{"keep": "some"}', 400, "bad-request"),
        ("PUT", "/v1/topics/u", b'{"keep": "time"}', 400, "bad-request"),
        ("PUT", "/v1/topics/u", b'{"keep": "size", "max_bytes": -1}', 400, "bad-request"),
        ("PUT", "/v1/topics/u", b'{"keep": ["all"]}', 400, "bad-request"),
        ("PUT", "/v1/topics/u", b"\xff", 400, "bad-body"),
        ("POST", f"{MESSAGES}?key=", b"1", 400, "bad-key"),
        ("LINES", f"{MESSAGES}?key=k", b"{}", 400, "bad-query"),
        ("LINES", MESSAGES, b"{}", 400, "bad-row"),
        ("LINES", MESSAGES, b"[]", 400, "bad-row"),
        ("LINES", MESSAGES, b"nothing", 400, "bad-row"),
        ("LINES", MESSAGES, b'{"value": 1}', 400, "bad-row"),
        ("LINES", MESSAGES, b'{"value": "\\ud800"}', 400, "bad-row"),
        ("LINES", MESSAGES, b'{"base64": "x"}', 400, "bad-row"),
        ("LINES", MESSAGES, b'{"value": "1", "base64": ""}', 400, "bad-row"),
        ("LINES", MESSAGES, b'{"value": "1", "ttl": 1}', 400, "bad-row"),
        ("LINES", MESSAGES, b'{"value": "1", "key": 5}', 400, "bad-row"),
        ("LINES", MESSAGES, b'{"value":"1"}\n{"value":"2","key":"k"}', 400, "bad-row"),
        ("LINES", MESSAGES, b"", 400, "bad-request"),
        ("PATCH", "/v1/topics/t", b"", 405, "bad-method"),
        ("POST", "/v1/topics/t", b"", 405, "bad-method"),
        ("DELETE", MESSAGES, b"", 405, "bad-method"),
        ("GET", "/v1/topics/t/", b"", 404, "no-path"),
    ],
)
def test_a_bad_topic_request_is_a_problem_and_publishes_nothing(
    asked: tuple[httpx.Client, httpx.Client], method: str, path: str, body: bytes, *, status: int, code: str
) -> None:
    whole, _ = asked
    headers = LINES if method == "LINES" else {}
    answer = whole.request("POST" if headers else method, path, content=body, headers=headers)
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert (answer.status_code, answer.json()["code"]) == (status, code) and answer.json()["detail"]
    assert page(whole, MESSAGES) == (["1"], 0), "and nothing was published"


def test_a_gateway_of_a_subtree_has_no_topics_outside_the_subtree(asked: tuple[httpx.Client, httpx.Client]) -> None:
    _, part = asked
    assert part.get("/v1/topics").json() == {"topics": []}
    for answer in (part.get("/v1/topics/t"), part.get(MESSAGES), part.post(MESSAGES, content=b"2")):
        assert answer.status_code == 400 and answer.headers["content-type"] == "application/problem+json"


# -- messages as events


def events(
    gateway: RunningGateway, last: str | None, wanted: int, then: Callable[[], object] = lambda: None
) -> list[tuple[int, str]]:
    """Return the offsets and values of this many events. Call `then` at the first event."""
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": last})}
    found: list[tuple[int, str]] = []
    with gateway.client.stream("GET", MESSAGES, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("id: "):
                found.append((int(line[4:]), ""))
            elif line.startswith("data: "):
                found[-1] = found[-1][0], json.loads(line[6:])["value"]
                if len(found) == 1:
                    then()
                if len(found) == wanted:
                    break
    return found


def test_message_events_go_on_over_another_gateway_and_a_failover(pair: Pair) -> None:
    with RunningGateway(pair.servers) as one, RunningGateway(pair.servers) as other, Clone(pair.servers) as clone:
        topic = clone.topic("t")
        topic.publish_many([b"%d" % i for i in range(500)]).wait(30)

        def more() -> None:
            topic.publish_many([b"%d" % i for i in range(500, 600)]).wait(30)

        found = events(one, None, 550, more)
        pair.primary.kill()
        topic.publish(b"last").wait(30)
        found += events(other, "549", 51)
        assert found == [*((i, str(i)) for i in range(600)), (600, "last")]


def test_a_message_stream_may_begin_at_the_latest_and_tells_its_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningGateway(pair.servers) as gateway, Clone(pair.servers) as clone:
        wanted = {"Accept": "text/event-stream"}
        assert gateway.client.get(MESSAGES, headers=wanted).status_code == 404
        topic = clone.topic("t")
        topic.publish(b"old").wait(30)
        assert gateway.client.get(f"{MESSAGES}?after=x", headers=wanted).status_code == 400
        seen = list[str]()
        with gateway.client.stream("GET", f"{MESSAGES}?after=latest", headers=wanted) as answer:
            for line in answer.iter_lines():
                # The first comment shows that the stream waits for messages.
                if line.startswith(":") and not seen:
                    topic.publish(b"new").wait(30)
                    seen.append(line)
                elif line.startswith("data: ") and "value" in line:
                    seen.append(json.loads(line[6:])["value"])
                    monkeypatch.setattr(topics, "STREAMS_MAX", 1)
                    assert gateway.client.get(MESSAGES, headers=wanted).status_code == 429
                    topic.remove(timeout=30)
                elif line.startswith("event: "):
                    seen.append(line)
        assert seen == [": nothing came", "new", "event: removed"]
        assert gateway.client.get("/metrics").text.count("chp_gateway_streams 0") == 1
