"""covers: examples/queue_http.py: its seven routes, what each refuses, and many programs while a server is killed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from chp_server.testing import Pair
from examples.queue_http import ask, serving

# The number of lines of each producer's log, which go to each of its topics.
LINES = 15
# topic -> its producers
PRODUCERS = {"1": ["P1", "P2", "P3"], "2": ["P1", "P4", "P5"], "3": ["P1", "P2"]}
CONSUMERS = {"1": ["C1", "C2", "C3"], "2": ["C1"], "3": ["C1", "C2", "C3"]}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Start one queue for the tests of refused requests. It has a topic t, a producer p and no consumer."""
    with (
        Pair() as pair,
        serving(pair.servers) as url,
        httpx.Client(base_url=url, trust_env=False, verify=False) as made,
    ):
        made.post("/producer/register", data={"topic": "t", "producer_id": "p"}).raise_for_status()
        yield made


@pytest.mark.parametrize(
    ("method", "path", "fields", "status", "says"),
    [
        ("POST", "/topics", {"topic_name": "t"}, 409, "there already"),
        ("POST", "/topics", {"topic_name": "b d"}, 400, "'b d'"),
        ("POST", "/topics", {}, 400, "'topic_name'"),
        ("POST", "/topics", {"topic": "u"}, 400, "'topic_name'"),
        ("POST", "/topics", {"topic_name": "u", "more": "1"}, 400, "'more'"),
        ("POST", "/topics", {"topic_name": "u" * 2_000_000}, 413, "bytes"),
        ("POST", "/producer/register", {"topic": "t", "producer_id": "p"}, 409, "/queue/producers/t/p"),
        ("POST", "/producer/register", {"topic": "t", "producer_id": "p/q"}, 400, "'p/q'"),
        ("POST", "/producer/produce", {"topic": "t", "producer_id": "p", "message": "1"}, 409, "no consumer"),
        ("POST", "/producer/produce", {"topic": "t", "producer_id": "q", "message": "1"}, 404, "'q'"),
        ("POST", "/producer/produce", {"topic": "none", "producer_id": "p", "message": "1"}, 404, "'none'"),
        ("POST", "/producer/produce", {"topic": "t", "producer_id": "p"}, 400, "'message'"),
        ("POST", "/consumer/register", {"topic": "none"}, 404, "'none'"),
        ("GET", "/consumer/consume", {"topic": "t", "consumer_id": "c"}, 404, "'c'"),
        ("GET", "/consumer/consume", {"topic": "t"}, 400, "'consumer_id'"),
        ("GET", "/size", {"topic": "t", "consumer_id": "c"}, 404, "'c'"),
    ],
)
def test_a_wrong_request_is_answered_with_a_failure_and_its_reason(
    client: httpx.Client, method: str, path: str, fields: dict[str, str], *, status: int, says: str
) -> None:
    get = method == "GET"
    answer = client.request(method, path, params=fields if get else None, data=None if get else fields)
    told = answer.json()
    assert (answer.status_code, told["status"]) == (status, "failure") and says in told["message"], told


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"topic_name": 1}', b'"a"', b"[" * 10_000, b"\xff"])
def test_a_body_other_than_a_json_object_of_strings_is_refused(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/topics", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["status"] == "failure"


def test_parameters_are_a_query_a_form_or_json(client: httpx.Client) -> None:
    client.post("/topics", params={"topic_name": "q"}).raise_for_status()
    client.post("/topics", data={"topic_name": "f"}).raise_for_status()
    client.post("/topics", json={"topic_name": "j"}).raise_for_status()
    assert {"q", "f", "j"} <= set(client.get("/topics").json()["topics"])


def test_a_consumer_gets_each_message_since_its_registration_once(pair: Pair) -> None:
    with serving(pair.servers) as one, serving(pair.servers) as other:
        ask(one, "POST /producer/register", topic="t", producer_id="p")
        old = ask(other, "POST /consumer/register", topic="t")["consumer_id"]
        for text in ("ä", "2"):
            ask(one, "POST /producer/produce", topic="t", producer_id="p", message=text)
        new = ask(one, "POST /consumer/register", topic="t")["consumer_id"]
        sizes = [ask(other, "GET /size", topic="t", consumer_id=each)["size"] for each in (old, new)]
        assert sizes == [2, 0]
        assert ask(other, "GET /consumer/consume", topic="t", consumer_id=new) == {}
        for n in range(20):
            ask(one, "POST /producer/produce", topic="t", producer_id="p", message=str(n))
        # One consumer asks both HTTP servers at once.
        with ThreadPoolExecutor(4) as pool:
            asks = [pool.submit(drained, url, "t", new) for url in (one, other) * 2]
            parts = [each.result() for each in asks]
        assert sorted((text for part in parts for text in part), key=int) == [str(n) for n in range(20)], "each once"
        assert all(part == sorted(part, key=int) for part in parts), "in order"
        assert drained(other, "t", old) == ["ä", "2", *map(str, range(20))]


def test_one_producer_and_one_consumer_of_one_topic(pair: Pair) -> None:
    with serving(pair.servers) as url:
        ask(url, "POST /topics", topic_name="DS")
        assert ask(url, "GET /topics")["topics"] == ["DS"]
        ask(url, "POST /producer/register", topic="DS", producer_id="P")
        ask(url, "POST /consumer/register", topic="DS", consumer_id="C")
        for text in lines("P"):
            ask(url, "POST /producer/produce", topic="DS", producer_id="P", message=text)
        assert ask(url, "GET /size", topic="DS", consumer_id="C")["size"] == LINES
        assert drained(url, "DS", "C") == lines("P"), "all there, once, in order"
        assert ask(url, "GET /size", topic="DS", consumer_id="C")["size"] == 0
        assert ask(url, "GET /consumer/consume", topic="DS", consumer_id="C") == {}, "nothing new"


def test_each_consumer_gets_all_messages_in_order_if_the_active_is_killed(pair: Pair) -> None:
    with serving(pair.servers) as one, serving(pair.servers) as other:
        for topic, names in PRODUCERS.items():
            for name in names:
                ask(one, "POST /producer/register", topic=topic, producer_id=name)
        for topic, names in CONSUMERS.items():
            for name in names:
                ask(other, "POST /consumer/register", topic=topic, consumer_id=name)
        with ThreadPoolExecutor(9) as pool:
            logs = [pool.submit(log, one, name) for name in ("P1", "P2", "P3", "P4", "P5")]
            wanted = {
                (name, topic): pool.submit(consumed, other, topic, name, LINES * len(PRODUCERS[topic]))
                for topic, names in CONSUMERS.items() for name in names
            }  # fmt: skip
            # P5 has published its log, and P1, which has three topics, is still at work.
            logs[4].result()
            pair.kill()
            for each in logs:
                each.result()
            found = {whose: each.result() for whose, each in wanted.items()}
    for (_, topic), texts in found.items():
        for name in PRODUCERS[topic]:
            assert [text for text in texts if text.startswith(name)] == lines(name), "all there, once, in order"
        assert texts == found["C1", topic], "and all consumers have one order"


def lines(name: str) -> list[str]:
    return [f"{name} line {n}" for n in range(LINES)]


def log(url: str, name: str) -> None:
    """Publish each line of a producer's log to all its topics."""
    for text in lines(name):
        for topic, names in PRODUCERS.items():
            if name in names:
                ask(url, "POST /producer/produce", topic=topic, producer_id=name, message=text)


def consumed(url: str, topic: str, name: str, count: int) -> list[str]:
    """Consume this many messages, and ask again while there is none."""
    found: list[str] = []
    for _ in range(5000):
        if len(found) == count:
            break
        if told := ask(url, "GET /consumer/consume", topic=topic, consumer_id=name):
            found.append(told["message"])
        else:
            threading.Event().wait(0.05)
    return found


def drained(url: str, topic: str, name: str) -> list[str]:
    """Consume until there is no message left, and return the texts."""
    found: list[str] = []
    while told := ask(url, "GET /consumer/consume", topic=topic, consumer_id=name):
        found.append(told["message"])
    return found
