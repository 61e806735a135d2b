"""covers: topics/schedule.py: messages that are published later, by Clone, AsyncClone, transaction, HTTP and `chp`."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from chp_client import AlreadyThere, AsyncClone, BadInput, Clone, NoSuchMessage, NoSuchTopic, Refused
from chp_server.testing import Pair, TestServer
from tests import talk
from tests.talk import WAIT_S, until
from tests.wire.gateways import RunningGateway

FAR_S = 3600.0


def published(clone: Clone[bytes], topic: str) -> list[bytes]:
    return [message.value for batch in clone.topic(topic).read(wait=False) for message in batch]


def test_a_message_is_published_later_with_its_key_and_headers(clone: Clone[bytes]) -> None:
    topic = clone.topic("t")
    with pytest.raises(NoSuchTopic):
        topic.scheduled()
    made = topic.schedule(b"later", key="k", delay_s=0.3, headers={"a": "b"})
    assert len(made.name) == 16 and made.wait(WAIT_S).revision
    (waits,) = topic.scheduled()
    assert (waits.name, waits.key, waits.size, waits.every_s, waits.unless_changed) == (made.name, "k", 5, None, None)
    assert abs(waits.due - datetime.now(UTC)) < timedelta(seconds=WAIT_S)
    message = next(iter(next(topic.read())))
    assert (message.value, message.key, dict(message.headers)) == (b"later", "k", {"a": "b"})
    assert topic.scheduled() == []


def test_scheduled_messages_have_unique_names_and_can_be_cancelled(clone: Clone[bytes]) -> None:
    topic = clone.topic("t")
    at = datetime.now(UTC) + timedelta(hours=1)
    topic.schedule(b"1", at=at, every_s=timedelta(days=1), name="daily", unless_changed="/k").wait(WAIT_S)
    with pytest.raises(AlreadyThere, match="daily already"):
        topic.schedule(b"2", at=at, name="daily").wait(WAIT_S)
    (daily,) = topic.scheduled()
    assert daily.every_s == 86_400 and daily.unless_changed == "/k" and abs(daily.due - at) < timedelta(milliseconds=2)
    topic.cancel("daily", WAIT_S)
    with pytest.raises(NoSuchMessage, match="no scheduled message daily"):
        topic.cancel("daily", WAIT_S)
    for name in "abc":
        topic.schedule(b"", delay_s=FAR_S, name=name).wait(WAIT_S)
    assert [each.name for each in topic.scheduled(2)] == ["a", "b"]
    assert [each.name for each in topic.scheduled(after="b")] == ["c"]


def test_a_transaction_schedules_unless_a_key_changes(clone: Clone[bytes]) -> None:
    with clone.transaction() as t:
        t.set("/orders/7", b"new")
        name = t.schedule("reminders", b"7", delay_s=FAR_S, unless_changed="/orders/7")
    assert [each.name for each in clone.topic("reminders").scheduled()] == [name]
    clone.set("/orders/7", b"paid").wait(WAIT_S)
    assert clone.topic("reminders").scheduled() == []
    with pytest.raises(Refused) as refused, clone.transaction() as t:
        t.set("/orders/7", b"again")
        t.cancel("reminders", name)
    assert refused.value.code == "name" and clone["/orders/7"] == b"paid"


def test_a_transaction_raises_the_errors_of_schedule_and_cancel(clone: Clone[bytes]) -> None:
    clone.topic("t").schedule(b"1", delay_s=FAR_S, name="taken").wait(WAIT_S)
    with pytest.raises(AlreadyThere, match="taken already"), clone.transaction() as t:
        t.schedule("t", b"2", delay_s=FAR_S, name="taken")
    with pytest.raises(NoSuchMessage, match="no scheduled message gone"), clone.transaction() as t:
        t.cancel("t", "gone")
    with pytest.raises(NoSuchMessage):
        _ = t.done
    assert [each.name for each in clone.topic("t").scheduled()] == ["taken"]


def test_a_transaction_can_move_a_scheduled_message_but_names_each_once(clone: Clone[bytes]) -> None:
    topic = clone.topic("t")
    topic.schedule(b"1", delay_s=FAR_S, name="rep").wait(WAIT_S)
    with clone.transaction() as t:
        t.cancel("t", "rep")
        t.schedule("t", b"moved", delay_s=2 * FAR_S, name="rep")
        with pytest.raises(BadInput, match="'rep' of topic 't' twice"):
            t.schedule("t", b"x", delay_s=1, name="rep")
        with pytest.raises(BadInput, match="schedules 'rep' of topic 't' itself"):
            t.cancel("t", "rep")
    (waits,) = topic.scheduled()
    assert waits.size == 5 and waits.due - datetime.now(UTC) > timedelta(seconds=1.5 * FAR_S)
    with clone.transaction() as t:
        t.cancel("t", "rep")
        with pytest.raises(BadInput, match="cancels 'rep' of topic 't' twice"):
            t.cancel("t", "rep")
    assert topic.scheduled() == []


@pytest.mark.parametrize(
    ("when", "says"),
    [
        ({}, "give delay_s or at"),
        ({"delay_s": 1, "at": datetime.now(UTC) + timedelta(hours=1)}, "give delay_s or at"),
        ({"delay_s": -1}, "delay_s=-1"),
        ({"delay_s": float("nan")}, "delay_s=nan"),
        ({"delay_s": "1"}, "delay_s='1'"),
        ({"delay_s": 1e12}, "hundred years"),
        ({"at": datetime(2026, 1, 1)}, "time zone"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "ago; publish the message"),
        ({"at": datetime(9999, 1, 1, tzinfo=UTC)}, "more than a hundred years away"),
        ({"delay_s": 1, "every_s": 0.5}, "every_s=0.5"),
        ({"delay_s": 1, "name": "a/b"}, "name of a scheduled message"),
        ({"delay_s": 1, "unless_changed": ""}, "key is empty"),
        ({"delay_s": 1, "headers": {"A": "b"}}, "header's name"),
    ],
)
def test_schedule_refuses_bad_arguments(clone: Clone[bytes], when: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        clone.topic("t").schedule(b"x", **when)


def test_an_async_clone_schedules_lists_and_cancels(server: TestServer) -> None:
    async def main() -> None:
        async with AsyncClone(server.address) as clone:
            topic = clone.topic("t")
            made = await topic.schedule(b"x", delay_s=FAR_S, name="n")
            with pytest.raises(AlreadyThere):
                await topic.schedule(b"x", delay_s=FAR_S, name="n")
            assert [each.name for each in await topic.scheduled()] == [made.name] == ["n"]
            await topic.cancel("n")
            with pytest.raises(NoSuchMessage):
                await topic.cancel("n")

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_http_schedules_lists_and_cancels(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway, Clone(pair.servers) as clone:
        client, path = gateway.client, "/v1/topics/t/scheduled"
        made = client.post(
            f"{path}?delay_s=3600&unless_changed=/k&every_s=60&key=a", content=b"later", headers={"CHP-Header-N": "1"}
        )
        assert made.status_code == 201, made.text
        name = made.json()["name"]
        (row,) = client.get(path).json()["scheduled"]
        assert {**row, "due": ""} == {
            "name": name, "due": "", "every_s": 60, "unless_changed": "/k", "key": "a", "size": 5,
        }  # fmt: skip
        assert client.delete(f"{path}/{name}").status_code == 200
        assert client.delete(f"{path}/{name}").status_code == 404
        once = {"Idempotency-Key": "one"}
        first, second = (client.post(f"{path}?delay_s=3600", content=b"x", headers=once).json() for _ in range(2))
        assert first["name"] == second["name"]
        assert client.post(f"{path}?delay_s=3600&name={first['name']}", content=b"x").status_code == 409
        for query, says in (
            ("", "delay_s or at"), ("delay_s=x", "number of seconds"), ("at=soon", "no time"), ("delay=1", "delay"),
            ("at=2020-01-01T00:00:00Z", "ago"), ("at=2060-01-01T00:00:00", "at='2060-01-01T00:00:00' has no time zone"),
        ):  # fmt: skip
            answer = client.post(f"{path}?{query}", content=b"x")
            assert answer.status_code == 400 and says in answer.json()["detail"], answer.text
        assert client.get("/v1/topics/none/scheduled").status_code == 404
        client.post(f"{path}?at=2020-01-01T00:00:00Z&every_s=60", content=b"x")
        assert client.post(f"{path}?delay_s=0.1", content=b"soon").status_code == 201
        until(lambda: published(clone, "t") == [b"soon"], "it to be published")


def test_the_command_line_schedules_lists_and_cancels(server: TestServer) -> None:
    chp = partial(talk.run, "--servers", server.address, "topic")
    made = chp("schedule", "t", "text", "--in", "30m", "--unless-changed", "/k", "--name", "n")
    assert made.exit_code == 0 and made.output == "n\n", made.output
    assert chp("schedule", "t", "x", "--at", "2060-01-31T09:00:00Z", "--every", "1d", "--name", "m").exit_code == 0
    told = list(map(json.loads, chp("scheduled", "t", "--json").output.splitlines()))
    assert [each["name"] for each in told] == ["m", "n"] and told[1]["unless_changed"] == "/k"
    assert told[0]["due"] == "2060-01-31T09:00:00.000+00:00" and told[0]["every_s"] == 86_400
    assert chp("cancel", "t", "n").exit_code == 0
    gone = chp("cancel", "t", "n")
    assert gone.exit_code == 1 and "chp topic scheduled" in gone.output
    for least_and_most in ("0s", "36600d"):
        assert chp("schedule", "limits", "x", "--in", least_and_most).exit_code == 0
    for words, says in (
        ((), "give one of --in and --at"),
        (("--in", "1h", "--at", "2060-01-31T09:00:00Z"), "give one of --in and --at"),
        (("--at", "tomorrow"), "give a time such as 2027-01-31T09:00:00Z"),
        (("--in", "1h", "--every", "500ms"), "--every is 1s or more"),
        (("--in", "36601d"), "to a hundred years"),
    ):
        wrong = chp("schedule", "t", "text", *words)
        assert wrong.exit_code == 2 and says in wrong.output, wrong.output
