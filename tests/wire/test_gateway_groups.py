"""covers: paths/groups.py, topics/stateless_member.py: groups by HTTP, by any gateway; each receipt counts once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from chp_client import Clone
from chp_client.gateway.request_fields import RequestLimits
from chp_client.topics.stateless_member import Receipt
from chp_server.testing import Pair
from tests.talk import until
from tests.wire.gateways import RunningGateway

LINES = {"Content-Type": "application/x-ndjson"}
GROUP = "/v1/topics/t/groups/g"
ALL = bytes([255]) * 32
UNNAMED = [{"topic": "t", "value": "1", "key": ""}]
MIXED = [{"topic": "t", "value": "1"}, {"topic": "t", "value": "2", "key": "k"}]
NOBODYS = str(Receipt("nobody", [[ALL, 0, 1]]))


def publish(client: httpx.Client, n: int, first: int = 0, topic: str = "t") -> None:
    """Publish the messages first, first + 1, ... under five keys."""
    rows = "".join(json.dumps({"value": str(i), "key": f"k{i % 5}"}) + "\n" for i in range(first, first + n))
    client.post(f"/v1/topics/{topic}/messages", content=rows, headers=LINES).raise_for_status()


def receive(client: httpx.Client, query: str = "", path: str = GROUP) -> tuple[list[str], str]:
    """Receive messages, and return their values and their receipt."""
    answer = client.post(f"{path}/receive?wait=10&{query}").raise_for_status()
    told: Any = answer.json() if answer.status_code == 200 else {"messages": [], "receipt": ""}
    return [each["value"] for each in told["messages"]], told["receipt"]


def ack(client: httpx.Client, receipt: str, **more: Any) -> httpx.Response:
    """Acknowledge a receipt."""
    headers = {"Idempotency-Key": more.pop("once")} if "once" in more else {}
    return client.post(f"{GROUP}/ack", json={"receipt": receipt, **more}, headers=headers)


def numbers(first: int, end: int) -> list[str]:
    """Return numbers as the texts that are published."""
    return list(map(str, range(first, end)))


@pytest.fixture(scope="module")
def gateways() -> Iterator[tuple[httpx.Client, httpx.Client, Pair]]:
    """Start two gateways to one pair."""
    with Pair() as pair, RunningGateway(pair.servers) as one, RunningGateway(pair.servers) as two:
        yield one.client, two.client, pair


@pytest.fixture
def clients(gateways: tuple[httpx.Client, httpx.Client, Pair]) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Return the clients of both gateways, with a new topic t that has a group g."""
    one, two, _ = gateways
    assert one.put(f"{GROUP}?start=begin").status_code == 201
    yield one, two
    one.delete("/v1/topics/t").raise_for_status()


def test_messages_left_out_of_an_acknowledgement_come_again(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = clients
    publish(one, 20)
    told = one.post(f"{GROUP}/receive?member=a&wait=10").json()
    # These messages have the keys k2 and k1.
    bad = [each for each in told["messages"] if each["value"] in ("7", "11")]
    assert ack(one, told["receipt"], **{"except": [{"offset": "7"}]}).status_code == 400
    assert ack(one, told["receipt"], **{"except": [*bad, 7]}).status_code == 400
    assert ack(two, told["receipt"], **{"except": bad}).status_code == 200
    assert ack(one, told["receipt"]).json()["code"] == "fenced"
    left = list[str]()
    while len(left) < 5:
        found, receipt = receive(two, "member=a")
        assert ack(one, receipt).status_code == 200
        left += found
    assert left == ["7", "11", "12", "16", "17"], "each, and what comes behind it under its key"


@pytest.mark.parametrize(
    ("path", "given", "named"),
    [
        ("ack", {"upto": "7"}, "upto is"),
        ("ack", {"except": [{"offset": "7"}]}, '"except" has'),
        ("ack", {"except": [7]}, '"except" has'),
        ("nack", {"messages": [{"offset": "7"}]}, '"messages" has'),
        ("nack", {"messages": [7]}, '"messages" has'),
    ],
)
def test_a_bad_offset_is_refused_with_the_name_of_its_field(
    wrong: httpx.Client, path: str, given: dict[str, Any], named: str
) -> None:
    answer = wrong.post(f"{GROUP}/{path}", json={"receipt": NOBODYS, **given})
    assert answer.status_code == 400 and answer.json()["detail"].startswith(named), answer.text


def test_a_group_is_made_shown_and_removed(clients: tuple[httpx.Client, httpx.Client]) -> None:
    one, _ = clients
    publish(one, 10)
    again = one.put(GROUP)
    assert (again.status_code, again.json()["code"]) == (409, "there")
    assert receive(one, "member=ann")[0] == numbers(0, 10)
    shown = one.get(GROUP).json()
    assert shown == one.get("/v1/topics/t/groups").json()["groups"][0]
    assert (shown["position"], shown["lag"], shown["members"]) == (0, 10, [{"name": "ann", "slots": 256}])
    assert one.put("/v1/topics/t/groups/h?start=7&ack_timeout_s=60").status_code == 201
    other = one.get("/v1/topics/t/groups/h").json()
    assert (other["position"], other["lag"], other["ack_timeout_s"]) == (7, 3, 60)
    assert one.delete("/v1/topics/t/groups/h").status_code == 200
    assert one.delete("/v1/topics/t/groups/h").status_code == one.get("/v1/topics/t/groups/h").status_code == 404


def test_unacknowledged_messages_come_again_and_a_receipt_is_good_once(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = clients
    publish(one, 20)
    found, receipt = receive(one, "member=w&max=8")
    assert found == numbers(0, 8)
    assert receive(two, "member=w&max=8") == (found, receipt), "the same, as it was not acknowledged"
    assert ack(two, receipt).json()["durability"] == "replicated"
    fenced = ack(one, receipt)
    assert (fenced.status_code, fenced.json()["code"]) == (409, "fenced")
    found, receipt = receive(two, "member=w")
    assert found == numbers(8, 20)
    assert ack(one, receipt, upto=14).status_code == 200
    assert ack(one, receipt).status_code == 409, "a part of it is done already"
    found, receipt = receive(one, "member=w")
    assert found == numbers(15, 20) and ack(one, receipt).status_code == 200
    assert one.get(GROUP).json()["lag"] == 0
    empty = one.post(f"{GROUP}/receive?member=w")
    assert (empty.status_code, empty.content, empty.headers["CHP-Member"]) == (204, b"", "w")


def test_an_acknowledgement_with_keys_and_messages_is_all_or_nothing(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = clients
    publish(one, 5)
    _, receipt = receive(one, "member=w")
    more = {"sets": [{"set": "/sum", "value": "10"}, {"set": "/new", "value": "1", "if": "0"}],
            "publish": [{"topic": "out", "value": "ten", "key": "k"}, {"topic": "out", "base64": "/w==", "key": "l"},
                        {"topic": "plain", "value": "no key"}]}  # fmt: skip
    held = ack(one, receipt, **{**more, "sets": [{"set": "/sum", "value": "9", "if": "1.1"}]})
    assert (held.status_code, held.json()["code"]) == (412, "revision")
    assert one.get("/v1/topics/out").status_code == 404, "nothing of it was done"
    done = ack(one, receipt, once="ack 1", **more)
    again = ack(two, receipt, once="ack 1", **more)
    assert done.status_code == again.status_code == 200 and done.json()["revision"] == again.json()["revision"]
    assert again.headers["Idempotency-Replayed"] == "true"
    late = ack(two, receipt, sets=[{"set": "/sum", "value": "11"}])
    assert (late.status_code, late.json()["code"]) == (409, "fenced")
    until(lambda: two.get("/v1/keys/sum").text == "10", "the other gateway has the sum")
    published = one.get("/v1/topics/out/messages").json()["messages"]
    assert [(each.get("key"), each.get("value", each.get("base64"))) for each in published] == [
        ("k", "ten"), ("l", "/w==")
    ]  # fmt: skip
    assert len({each["revision"] for each in published}) == 1
    plain = one.get("/v1/topics/plain/messages").json()["messages"]
    assert [each["value"] for each in plain] == ["no key"] and "key" not in plain[0]
    one.delete("/v1/topics/out").raise_for_status()
    one.delete("/v1/topics/plain").raise_for_status()


def test_members_share_a_topic_and_messages_given_back_go_to_another(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = clients
    for name in ("a", "b"):
        # No member has messages in hand, so slots move at once.
        one.post(f"{GROUP}/receive?member={name}").raise_for_status()
    publish(one, 40)
    of_a, receipt_a = receive(one, "member=a")
    of_b, receipt_b = receive(two, "member=b")
    assert sorted([*of_a, *of_b], key=int) == numbers(0, 40) and of_a and of_b
    assert one.post(f"{GROUP}/extend", json={"receipt": receipt_a, "ttl": 60}).status_code == 200
    assert two.post(f"{GROUP}/nack", json={"receipt": receipt_a}).status_code == 200
    late = ack(one, receipt_a)
    assert (late.status_code, late.json()["code"]) == (409, "fenced")
    gone = one.post(f"{GROUP}/extend", json={"receipt": receipt_a})
    assert (gone.status_code, gone.json()["code"]) == (409, "fenced")
    assert ack(one, receipt_b).status_code == 200
    assert receive(one, "member=b")[0] == of_a


def test_messages_given_back_with_a_delay_go_to_another_member_later(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    one, _ = clients
    publish(one, 3)
    _, receipt = receive(one, "member=a")
    assert one.post(f"{GROUP}/nack", json={"receipt": receipt, "delay": 0.5}).status_code == 200
    assert receive(one, "member=b&ttl=60")[0] == numbers(0, 3), "it waits for them"
    assert ack(one, receipt).status_code == 409


def test_a_member_receives_messages_over_a_failover() -> None:
    with Pair() as pair, RunningGateway(pair.servers) as gateway, Clone(pair.servers, subtree=None) as clone:
        client = gateway.client
        client.put(f"{GROUP}?start=begin").raise_for_status()
        publish(client, 4)
        found, receipt = receive(client, "member=w")
        pair.primary.kill()
        assert receive(client, "member=w")[0] == found == numbers(0, 4), "not acknowledged, so once more"
        assert ack(client, receipt).status_code == 200
        clone.topic("t").publish(b"later").wait(30)
        assert receive(client, "member=w")[0] == ["later"]


def test_an_idempotency_key_publishes_messages_and_makes_a_group_once(
    clients: tuple[httpx.Client, httpx.Client],
) -> None:
    one, two = clients
    once = {"Idempotency-Key": "publish 1"}
    first = one.post("/v1/topics/t/messages?key=k", content=b"1", headers=once)
    again = two.post("/v1/topics/t/messages?key=k", content=b"1", headers=once)
    assert first.json()["revision"] == again.json()["revision"] and first.json()["count"] == 1
    assert again.headers["Idempotency-Replayed"] == "true"
    other = two.post("/v1/topics/t/messages?key=k", content=b"2", headers=once)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency-key")
    assert one.get("/v1/topics/t").json()["next"] == 1
    made = {"Idempotency-Key": "make h"}
    assert one.put("/v1/topics/t/groups/h", headers=made).status_code == 201
    assert two.put("/v1/topics/t/groups/h", headers=made).status_code == 201
    assert two.put("/v1/topics/t/groups/h").status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/topics/none/groups", None, 404, "absent"),
        ("GET", "/v1/topics/t/groups/none", None, 404, "absent"),
        ("GET", "/v1/topics/t/groups?x=1", None, 400, "bad-query"),
        ("DELETE", "/v1/topics/none/groups/g", None, 404, "absent"),
        ("PUT", "/v1/topics/t/groups/b%20d", None, 400, "bad-request"),
        ("PUT", "/v1/topics/t/groups/n?start=middle", None, 400, "bad-request"),
        ("PUT", "/v1/topics/t/groups/n?start=9", None, 409, "bad"),
        ("PUT", "/v1/topics/t/groups/n?ack_timeout_s=0", None, 400, "bad-query"),
        ("POST", "/v1/topics/none/groups/g/receive", None, 404, "absent"),
        ("POST", "/v1/topics/t/groups/none/receive", None, 404, "absent"),
        ("POST", f"{GROUP}/receive?max=0", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?max=10001", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?wait=31", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?wait=nan", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?wait=20&ttl=30", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?ttl=0.5", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?ttl=3601", None, 400, "bad-query"),
        ("POST", f"{GROUP}/receive?member={'x' * 129}", None, 400, "bad-request"),
        ("POST", f"{GROUP}/receive?member=%0A", None, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", None, 400, "bad-body"),
        ("POST", f"{GROUP}/ack", [], 400, "bad-body"),
        ("POST", f"{GROUP}/ack", {"sets": []}, 400, "bad-body"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "set": []}, 400, "bad-body"),
        ("POST", f"{GROUP}/ack", {"receipt": 1}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": "x" * 20_000}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": "\u00fc"}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS[:-4]}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": str(Receipt("a", []))}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": str(Receipt("a", [[ALL, 5, 5]]))}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": str(Receipt("a", [[b"", 0, 5]]))}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS}, 409, "fenced"),
        ("POST", "/v1/topics/t/groups/none/ack", {"receipt": NOBODYS}, 404, "absent"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "upto": -1}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "upto": "1"}, 400, "bad-request"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "sets": {}}, 400, "bad-body"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "sets": [{"set": ""}]}, 400, "bad-row"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "sets": [{"set": "/.gateway/x", "value": ""}]}, 403, "reserved"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "publish": [1]}, 400, "bad-row"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "publish": [{"topic": "t"}]}, 400, "bad-row"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "publish": [{"topic": "", "value": ""}]}, 400, "bad-row"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "publish": [{"topic": "t", "value": 1}]}, 400, "bad-row"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "publish": UNNAMED}, 400, "bad-row"),
        ("POST", f"{GROUP}/ack", {"receipt": NOBODYS, "publish": MIXED}, 400, "bad-row"),
        ("POST", f"{GROUP}/nack", {"receipt": NOBODYS}, 409, "fenced"),
        ("POST", f"{GROUP}/nack", {"receipt": NOBODYS, "delay": -1}, 400, "bad-body"),
        ("POST", f"{GROUP}/nack", {"receipt": NOBODYS, "delay": True}, 400, "bad-body"),
        ("POST", f"{GROUP}/extend", {"receipt": NOBODYS, "ttl": 10}, 409, "fenced"),
        ("POST", f"{GROUP}/extend", {"receipt": NOBODYS, "ttl": 3601}, 400, "bad-body"),
        ("GET", f"{GROUP}/receive", None, 405, "bad-method"),
        ("GET", f"{GROUP}/none", None, 404, "no-path"),
    ],
)
def test_a_bad_group_request_is_a_problem_and_changes_nothing(
    wrong: httpx.Client, method: str, path: str, body: Any, *, status: int, code: str
) -> None:
    answer = wrong.request(method, path, **({} if body is None else {"json": body}))
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert (answer.status_code, answer.json()["code"]) == (status, code) and answer.json()["detail"]
    groups = wrong.get("/v1/topics/t/groups").json()["groups"]
    assert [(each["name"], each["lag"], each["members"]) for each in groups] == [("g", 1, [])]


@pytest.fixture(scope="module")
def wrong() -> Iterator[httpx.Client]:
    """Return a client of a gateway with a topic and a group that must stay as they are."""
    with Pair() as pair, RunningGateway(pair.servers) as gateway:
        yield from _with_one_message(gateway.client)


def _with_one_message(client: httpx.Client) -> Iterator[httpx.Client]:
    client.put(f"{GROUP}?start=begin").raise_for_status()
    publish(client, 1)
    yield client
    client.delete("/v1/topics/t").raise_for_status()


def test_a_receive_beyond_the_limit_is_refused_at_once(pair: Pair) -> None:
    with RunningGateway(pair.servers, limits=RequestLimits(receiving=1)) as gateway, ThreadPoolExecutor(1) as pool:
        gateway.client.put(GROUP).raise_for_status()
        waits = pool.submit(receive, gateway.client, "member=w")
        while "chp_gateway_receiving 1" not in gateway.client.get("/metrics").text:
            assert not waits.done()
        answer = gateway.client.post(f"{GROUP}/receive")
        assert (answer.status_code, answer.json()["code"]) == (429, "busy") and "Retry-After" in answer.headers
        publish(gateway.client, 1)
        assert waits.result(30)[0] == ["0"]
