"""covers: groups that count deliveries, by all interfaces: Clone, AsyncClone, handlers, HTTP, `chp`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import msgpack
import pytest

from chp_client import AlreadyThere, AsyncClone, BadInput, Clone, Message, NoSuchGroup, Refused
from chp_server.testing import Pair
from tests import talk
from tests.talk import WAIT_S, join_all, until
from tests.wire.gateways import RunningGateway


def letters(clone: Clone, topic: str) -> list[dict[str, Any]]:
    return [msgpack.unpackb(message.value) for batch in clone.topic(topic).read(wait=False) for message in batch]


def facts(clone: Clone, topic: str) -> dict[str, Any]:
    (told,) = clone.topic(topic).groups()
    return told


def test_the_pair_counts_deliveries_to_a_handler_over_a_failover(pair: Pair) -> None:
    with Clone(pair.servers, subtree=None) as clone:
        orders = clone.topic("orders")
        orders.subscribe("billing", max_deliveries=3, retry_after_s=0.05)
        values = [b"%d" % i for i in range(60)]
        orders.publish_many(values, [f"k{i % 7}" for i in range(60)], headers=[{"n": str(i)} for i in range(60)])
        seen: Counter[bytes] = Counter()
        given: list[int] = []

        def handle(message: Message) -> None:
            seen[message.value] += 1
            if message.value == b"30":
                given.append(message.deliveries)
                if len(given) == 2:
                    pair.primary.kill()
                raise ValueError("thirty")
            if len(seen) == 60 and seen[b"30"] == 3:
                consumer.stop()

        with orders.consumer("billing", ttl=5.0) as consumer:
            running = Thread(target=consumer.run, args=(handle,), kwargs={"workers": 4, "tries": 100})
            running.start()
            until(lambda: len(seen) == 60 and facts(clone, "orders")["lag"] == 0)
            consumer.stop()
            join_all(running)
        assert given[0] == 1 and max(given) == 3, "the pair has counted, and not the consumer"
        (letter,) = letters(clone, "orders.billing.dead")
        assert letter["why"] == "ValueError: thirty" and (letter["tries"], letter["value"]) == (3, b"30")
        (batch,) = clone.topic("orders.billing.dead").read(wait=False)
        assert batch.headers == [{"n": "30"}] and batch.keys == ["k2"], "a letter has the headers of its message"
        order = [value for value in seen if int(value) % 7 == 30 % 7]
        assert order == sorted(order, key=int), "what has its key came in order"


def test_a_rejected_message_of_a_committed_batch_is_given_again(pair: Pair) -> None:
    with Clone(pair.servers) as clone:
        orders = clone.topic("rejected")
        orders.publish_many([b"0", b"1", b"2", b"3"], ["a", "b", "a", "a"]).wait(WAIT_S)
        with orders.consumer("g", ttl=5.0) as consumer:
            batch = consumer.take(WAIT_S)
            orders.configure("g", max_deliveries=2)
            assert batch is not None and batch.deliveries_max is None
            assert batch.reject(1, "at once, as the batch came before the setting") == []
            batch.done().wait(WAIT_S)
            assert [each["offset"] for each in letters(clone, "rejected.g.dead")] == [1]
            orders.publish_many([b"4", b"5", b"6", b"7"], ["a", "b", "a", "a"]).wait(WAIT_S)
            batch = consumer.take(WAIT_S)
            assert batch is not None and (batch.values, batch.deliveries_max) == ([b"4", b"5", b"6", b"7"], 2)
            assert batch.reject(6, "not now") == [7], "what is behind it comes again with it"
            batch.commit({"/done": b"4 5"})
            again = consumer.take(WAIT_S)
            assert again is not None and (again.values, again.deliveries) == ([b"6"], 2)
            assert next(iter(again)).deliveries == 2 and facts(clone, "rejected")["deliveries"] == 2
            again.reject(6, "never")
            again.commit({"/done": b"6"})
            last = consumer.take(WAIT_S)
            assert last is not None and (last.values, last.deliveries) == ([b"7"], 1)
            last.done().wait(WAIT_S)
        told = letters(clone, "rejected.g.dead")[-1]
        assert (told["offset"], told["why"], told["tries"]) == (6, "never", 2)
        assert facts(clone, "rejected") | {"name": "g", "failing": 0, "deliveries": 1} == facts(clone, "rejected")


def test_a_rejected_message_is_put_aside_at_once_with_ack_before(pair: Pair) -> None:
    with Clone(pair.servers, subtree=None) as clone:
        before = clone.topic("before")
        before.subscribe("g", max_deliveries=9)
        before.publish(b"1").wait(WAIT_S)
        with before.consumer("g", ack="before") as consumer:
            batch = consumer.take(WAIT_S)
            assert batch is not None and batch.reject(0, "no") == []
            batch.done().wait(WAIT_S)
        assert [each["why"] for each in letters(clone, "before.g.dead")] == ["no"]


def test_settings_of_a_group_are_made_changed_and_refused(pair: Pair) -> None:
    run = partial(talk.run, "--servers", ",".join(pair.servers))
    with Clone(pair.servers, subtree=None) as clone:
        topic = clone.topic("settings")
        for bad, says in (
            ({"max_deliveries": 0}, "max_deliveries is a whole number from 1 to 1,000"),
            ({"max_deliveries": 1001}, "from 1 to 1,000"),
            ({"max_deliveries": 2, "retry_after_s": 0}, "0.001 to 3600"),
            ({"max_deliveries": 2, "retry_after_s": "1"}, "not '1'"),
            ({"retry_after_s": 1.0}, "give max_deliveries too"),
            ({"lag_alarm_s": 0}, "lag_alarm_s is a whole number from 1 to 2,147,483,648, or left out, not 0"),
            ({"lag_alarm_s": 0.5}, "lag_alarm_s is a whole number"),
            ({"expire_after_s": -1}, "expire_after_s is a whole number from 1"),
            ({"expire_after_s": float("nan")}, "not nan"),
            ({"ack_timeout_s": "1d"}, "not '1d'"),
        ):
            with pytest.raises(BadInput, match=says):
                topic.subscribe("g", **bad)
        with pytest.raises(BadInput, match="not 0"):
            topic.configure("g", ack_timeout_s=0)
        with pytest.raises(BadInput, match="take both off"):
            topic.configure("g", max_deliveries=None, retry_after_s=1)
        for option, given, says in (
            ("--retry-after", "2s", "give --max-deliveries too"),
            ("--expire-after", "0.1s", "give whole seconds"),
            ("--ack-timeout", "1500ms", "give whole seconds"),
        ):
            wrong = run("topic", "subscribe", "settings", "g", option, given)
            assert wrong.exit_code == 2 and says in wrong.stderr
        assert [each["name"] for each in clone.topics() if each["name"] == "settings"] == [], "nothing half done"
        with pytest.raises(NoSuchGroup):
            topic.publish(b"1").wait(WAIT_S)
            topic.configure("g", max_deliveries=5)
        with pytest.raises(BadInput, match="no setting"):
            topic.configure("g")
        made = run("topic", "subscribe", "settings", "g", "--max-deliveries", "4", "--retry-after", "2s")
        assert made.exit_code == 0
        (told,) = topic.groups()
        assert (told["max_deliveries"], told["retry_after_s"], told["failing"], told["deliveries"]) == (4, 2.0, 0, 1)
        topic.configure("g", max_deliveries=6, ack_timeout_s=9)
        (told,) = topic.groups()
        assert (told["max_deliveries"], told["retry_after_s"], told["ack_timeout_s"]) == (6, 2.0, 9)
        assert run("topic", "configure", "settings", "g", "--off", "retry-after", "--ack-timeout", "3s").exit_code == 0
        assert run("topic", "configure", "settings", "g", "--expire-after", "2h").exit_code == 0
        shown = json.loads(run("topic", "groups", "settings", "--json").stdout)
        assert (shown["max_deliveries"], shown["retry_after_s"], shown["ack_timeout_s"]) == (6, None, 3)
        assert shown["expire_after_s"] == 7200
        for words in ((), ("--off", "ack-timeout", "--ack-timeout", "3s"), ("--off", "nothing")):
            assert run("topic", "configure", "settings", "g", *words).exit_code == 2
        assert run("topic", "configure", "settings", "g", "--lag-alarm", "1m").exit_code == 0
        assert topic.groups()[0]["lag_alarm_s"] == 60
        topic.configure("g", lag_alarm_s=7)
        shown = json.loads(run("topic", "groups", "settings", "--json").stdout)
        assert (shown["lag_alarm_s"], shown["ack_timeout_s"]) == (7, 3)
        assert run("topic", "configure", "settings", "g", "--off", "lag-alarm").exit_code == 0
        assert topic.groups()[0]["lag_alarm_s"] is None
        topic.configure("g", max_deliveries=None, ack_timeout_s=None)
        (told,) = topic.groups()
        assert told["max_deliveries"] is None

        async def change() -> dict[str, Any]:
            async with AsyncClone(pair.servers, subtree=None) as other:
                await other.topic("settings").subscribe(
                    "h", max_deliveries=3, retry_after_s=1, lag_alarm_s=5, expire_after_s=60
                )
                await other.topic("settings").configure("h", retry_after_s=None)
                return (await other.topic("settings").groups())[-1]

        told = asyncio.run(change())
        assert (told["max_deliveries"], told["retry_after_s"], told["lag_alarm_s"]) == (3, None, 5)
        assert told["expire_after_s"] == 60


def test_errors_of_groups_name_a_remedy(pair: Pair) -> None:
    with Clone(pair.servers, subtree=None) as clone:
        topic = clone.topic("remedies")
        topic.subscribe("g", max_deliveries=2, retry_after_s=1)
        with pytest.raises(Refused, match="take retry_after_s off too"):
            topic.configure("g", max_deliveries=None)
        with pytest.raises(AlreadyThere, match="`configure` changes its settings"):
            topic.subscribe("g")
        with pytest.raises(NoSuchGroup, match="`subscribe` makes it"):
            topic.unsubscribe("h")
        with pytest.raises(BadInput, match="a group's name"):
            topic.subscribe("g/h")


def test_groups_count_deliveries_over_http(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway, Clone(pair.servers, subtree=None) as clone:
        client, path = gateway.client, "/v1/topics/web/groups/g"
        client.put(f"{path}?start=begin&max_deliveries=2&retry_after_s=0.05&expire_after_s=900").raise_for_status()
        rows = "".join(json.dumps({"value": str(i), "key": f"k{i}"}) + "\n" for i in range(3))
        lines = {"Content-Type": "application/x-ndjson"}
        client.post("/v1/topics/web/messages", content=rows, headers=lines).raise_for_status()
        first = client.post(f"{path}/receive?member=w&wait=9").json()
        assert (len(first["messages"]), first["deliveries"], first["max_deliveries"]) == (3, 1, 2)
        acked = {"receipt": first["receipt"], "except": [first["messages"][1]]}
        assert client.post(f"{path}/ack", json=acked).status_code == 200
        back = {"receipt": first["receipt"], "messages": [first["messages"][1]], "why": "no stock"}
        assert client.post(f"{path}/nack", json=back).status_code == 200
        shown = client.get(path).json()
        assert (shown["failing"], shown["deliveries"], shown["max_deliveries"], shown["retry_after_s"]) == (
            1,
            2,
            2,
            0.05,
        )
        assert shown["expire_after_s"] == 900
        second = client.post(f"{path}/receive?member=w&wait=9").json()
        assert [each["value"] for each in second["messages"]] == ["1"] and second["deliveries"] == 2
        for bad in (
            {"receipt": second["receipt"], "messages": [{"offset": 0, "key": "k0"}]},
            {"receipt": second["receipt"], "messages": [{"offset": 1, "key": "k1"}], "why": 7},
            {"receipt": second["receipt"], "messages": [{"offset": 1, "key": "k1"}], "delay": 7},
        ):
            assert client.post(f"{path}/nack", json=bad).status_code == 400
        assert client.post(f"{path}/nack", json={"receipt": second["receipt"]}).status_code == 200, "it leaves"
        until(lambda: len(letters(clone, "web.g.dead")) == 1)
        (letter,) = letters(clone, "web.g.dead")
        assert (letter["offset"], letter["tries"], letter["why"]) == (1, 2, "a member gave it back")
        assert client.get(path).json()["position"] == 2 and client.post(f"{path}/receive").status_code == 204
        changed = client.post(f"{path}/settings?max_deliveries=&retry_after_s=")
        assert changed.status_code == 200 and client.get(path).json()["max_deliveries"] is None
        assert client.post(f"{path}/settings?lag_alarm_s=60").status_code == 200
        assert client.get(path).json()["lag_alarm_s"] == 60
        for query in (
            "",
            "?lag_alarm_s=0",
            "?lag_alarm_s=1.5",
            "?max_deliveries=0",
            "?max_deliveries=x",
            "?retry_after_s=0",
            "?retry_after_s=5000",
        ):
            assert client.post(f"{path}/settings{query}").status_code == 400, query
        assert client.put("/v1/topics/web/groups/h?retry_after_s=1").status_code == 400
        client.put("/v1/topics/needy", json={"require_group": True}).raise_for_status()
        lonely = client.post("/v1/topics/needy/messages", content=b"x")
        assert lonely.status_code == 404 and lonely.json()["detail"].endswith("PUT /v1/topics/TOPIC/groups/GROUP first")
        assert client.post("/v1/topics/web/groups/no/settings?max_deliveries=3").status_code == 404


def test_chp_sub_gives_back_a_message_whose_command_fails(pair: Pair) -> None:
    run = partial(talk.run, "--servers", ",".join(pair.servers))
    with Clone(pair.servers, subtree=None) as clone:
        shell = clone.topic("shell")
        shell.subscribe("g", start="begin", max_deliveries=2)
        shell.publish_many([b"fine", b"bad", b"behind"], ["a", "b", "b"]).wait(WAIT_S)
        command = 'read -r line; echo "$CHP_DELIVERIES $line" >&2; [ "$line" != bad ]'
        done = run("sub", "shell", "--group", "g", "--exec", command, "--no-wait")
        assert done.exit_code == 0 and done.stderr.count("was given back") == 2 and "2 of 2" in done.stderr
        until(lambda: facts(clone, "shell")["lag"] == 0)
        assert [each["value"] for each in letters(clone, "shell.g.dead")] == [b"bad"]
        shown = run("topic", "groups", "shell").stdout
        assert "lag 0" in shown and "failing" not in shown


def test_chp_sub_counts_no_message_that_comes_again(pair: Pair, tmp_path: Path) -> None:
    run = partial(talk.run, "--servers", ",".join(pair.servers))
    tried = tmp_path / "tried"
    with Clone(pair.servers, subtree=None) as clone:
        shell = clone.topic("shell")
        shell.subscribe("g", start="begin", max_deliveries=2)
        shell.publish_many([b"bad", b"behind", b"other"], ["b", "b", "a"]).wait(WAIT_S)
        command = f'read -r line; echo "$line" >> {tried}; [ "$line" != bad ]'
        words = "sub", "shell", "--group", "g", "--exec", command, "--count", "1"
        # "behind" waits in its slot behind "bad", which was given back.
        assert run(*words).exit_code == 0 and tried.read_text().split() == ["bad", "other"]
        # `--count` counts a message that fails for the last time. So even a command that always fails ends.
        last = run(*words)
        assert (last.exit_code, tried.read_text().split()[2:]) == (0, ["bad"]) and "2 of 2" in last.stderr
        until(lambda: [each["value"] for each in letters(clone, "shell.g.dead")] == [b"bad"])
        assert run(*words).exit_code == 0 and tried.read_text().split()[3:] == ["behind"]
        assert run("sub", "shell", "--group", "g", "--no-wait").stdout == "", "all of them are acknowledged"
