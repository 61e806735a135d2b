"""covers: topics over real sockets and a real journal: publishing, tailing, a kill, a restart, and `chp`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from chp_client import AlreadyThere, AsyncClone, Clone, NoSuchTopic, Refused
from chp_client.port.ask import QuestionPort
from chp_client.topics import groups as groups_module
from chp_client.topics import reader as reader_module
from chp_client.topics import topic as topic_module
from chp_client.topics.topic import requests_of
from chp_server.core.state.journal import Options
from chp_server.store.store_url import look_at, sqlite_journal
from chp_server.testing import Pair, TestServer
from tests.talk import join_all, until


def test_a_topic_reader_misses_no_message_over_a_failover() -> None:
    with Pair() as pair, Clone(pair.servers, subtree=None) as clone:
        ticks = clone.topic("ticks")
        ticks.publish_many([b"%d" % i for i in range(10)]).wait(10)
        taken: list[bytes] = []

        def read() -> None:
            for batch in ticks.read(until=29):
                assert batch.offset == len(taken) and not batch.missed
                taken.extend(batch.values)

        reader = Thread(target=read)
        reader.start()
        pair.primary.kill()
        for i in range(10, 30):
            ticks.publish(b"%d" % i, key=f"k{i}").wait(20)
        join_all(reader)
        assert taken == [b"%d" % i for i in range(30)]
        assert next(iter(next(ticks.read(29)))).key == "k29"


def test_topic_questions_go_first_to_the_server_that_the_client_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Noting(QuestionPort):
        def __init__(self, servers: Sequence[str], *rest: Any, **named: Any) -> None:
            asked.append(servers[0])
            super().__init__(servers, *rest, **named)

    for module in (topic_module, groups_module, reader_module):
        monkeypatch.setattr(module, "QuestionPort", Noting)
    with Pair() as pair, Clone(pair.servers, subtree=None) as clone:
        orders = clone.topic("orders")
        orders.publish(b"1").wait(20)
        orders.facts()
        pair.primary.kill()
        # The acknowledgement of this message shows that the client follows the backup.
        orders.publish(b"2").wait(20)
        orders.facts()
        orders.groups()
        clone.topics()
        assert [len(batch) for batch in orders.read(wait=False)] == [1, 1]
        assert asked == [pair.primary.address] + [pair.backup.address] * 4


def test_messages_survive_a_restart_in_the_journal(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/j.sqlite"
    with TestServer(store=store) as server, Clone([server.address], subtree=None, codec="json") as clone:
        topic = clone.topic("t")
        topic.publish({"n": 1}).wait(10)
        topic.publish_many([{"n": 2}, {"n": 3}], keys=["a", "b"]).wait(10)
        server.restart()
        topic.publish({"n": 4}).wait(20)
        found = [(m.offset, m.key, m.value["n"]) for batch in topic.read(wait=False) for m in batch]
        assert found == [(0, None, 1), (1, "a", 2), (2, "b", 3), (3, None, 4)]
        topic.remove(10)
        with pytest.raises(NoSuchTopic):
            topic.facts()


def test_a_message_that_was_changed_on_disk_is_not_delivered(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/j.sqlite"
    with TestServer(store=store) as server, Clone([server.address], subtree=None) as clone:
        clone.topic("t").publish(b"true").wait(10)
    journal = sqlite_journal(store, Options())
    list(journal.database.run("UPDATE messages SET body = CAST(replace(body, 'true', 'lies') AS BLOB)"))
    journal.close()
    assert "checksum" in "".join(look_at(store).examine()[1])
    with TestServer(store=store) as server, Clone([server.address], subtree=None) as clone:
        with pytest.raises(Refused, match="checksum"):
            list(clone.topic("t").read(wait=False))
        clone.topic("t").publish(b"on").wait(10)


def test_a_full_topic_refuses_messages_unless_it_keeps_by_size() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        few = clone.topic("few")
        few.create(max_messages=3)
        with pytest.raises(AlreadyThere):
            few.create()
        for value in (b"1", b"2", b"3"):
            few.publish(value).wait(10)
        with pytest.raises(Refused) as refused:
            few.publish(b"4").wait(10)
        assert refused.value.code == "full"
        last = clone.topic("last")
        last.create("size", max_messages=5)
        last.publish_many([b"%d" % i for i in range(20)]).wait(10)
        until(lambda: last.facts()["first"] == 15)
        batch = next(last.read(10, wait=False))
        assert (batch.offset, batch.missed) == (15, 5)
        assert [facts["name"] for facts in clone.topics()] == ["few", "last"]


def test_an_async_clone_publishes_and_reads_a_topic(server: TestServer) -> None:
    async def run(address: str) -> None:
        async with AsyncClone([address], subtree=None) as clone:
            topic = clone.topic("t")
            await topic.create(keep="time", max_age_s=3600)
            await topic.publish(b"before")
            taken = []

            async def read() -> None:
                async for batch in topic.read("end", until=2):
                    taken.extend(batch.values)

            reader = asyncio.create_task(read())
            for value in (b"one", b"two"):
                while not taken and not reader.done() and value == b"two":
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)
                await topic.publish(value)
            await asyncio.wait_for(reader, 20)
            assert taken in ([b"one", b"two"], [b"two"])
            assert (await topic.facts())["next"] == 3
            assert [facts["name"] for facts in await clone.topics()] == ["t"]
            await topic.remove()

    asyncio.run(run(server.address))


def test_the_server_does_not_drop_a_waiting_topic_reader() -> None:
    """The server tells a waiting reader that there are no messages, and so does not drop the reader as stuck."""
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        topic = clone.topic("t")
        topic.publish(b"first").wait(10)
        found = requests_of(topic).reading("begin", until=None, wait=True)
        next(found)
        assert [next(found) for _ in range(3)] == [None] * 3
        assert server.server is not None
        assert server.server.core.requests.readers.status(0)["readers"] == 1, "by the same connection all the time"
        topic.publish(b"second").wait(10)
        assert next(batch for batch in found if batch is not None).values == [b"second"]
        found.close()
