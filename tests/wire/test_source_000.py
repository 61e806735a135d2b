"""covers: docs/sources.md, 000: Put, Get, Subscribe and Unsubscribe, while programs and servers come and go.

`publish` is Put. A consumer's `get` is Get, and it also confirms the message before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chp_client import AlreadyThere, Clone, NoSuchGroup, NoSuchTopic, Refused
from chp_server.testing import Pair, TestServer
from tests.talk import until


def test_a_subscriber_gets_only_messages_since_its_subscription() -> None:
    with TestServer() as server, Clone([server.address], subtree=None, codec="text") as clone:
        news = clone.topic("news")
        news.subscribe("alice")
        assert news.facts()["next"] == 0, "a topic that was not there is made"
        with pytest.raises(AlreadyThere):
            news.subscribe("alice")
        news.publish("before bob").wait(10)
        news.subscribe("bob")
        news.publish("for both").wait(10)
        with news.consumer("alice") as alice, news.consumer("bob") as bob:
            assert [alice.get(10).value, alice.get(10).value] == ["before bob", "for both"]  # type: ignore[union-attr]
            assert bob.get(10).value == "for both", "only what came since"  # type: ignore[union-attr]
            assert alice.get(0.1) is None and alice.lag == 0, "nothing new"
        news.publish("pending").wait(10)
        news.unsubscribe("alice")
        with pytest.raises(NoSuchGroup):
            news.unsubscribe("alice")
        news.subscribe("alice")
        with news.consumer("alice") as alice:
            assert alice.get(0.1) is None, "what was pending is lost"


def test_get_raises_an_error_without_a_subscription(clone: Clone[bytes]) -> None:
    news = clone.topic("news")
    with pytest.raises(NoSuchTopic):
        news.consumer("alice", create=False)
    news.subscribe("bob")
    with pytest.raises(NoSuchGroup, match="no group 'alice' of topic 'news'"):
        news.consumer("alice", create=False)
    assert [group["name"] for group in news.groups()] == ["bob"], "nothing was made"
    with news.consumer("bob", create=False) as bob:
        assert bob.get(0.1) is None
        news.unsubscribe("bob")
        with pytest.raises(NoSuchGroup, match="no group 'bob'"):
            until(lambda: bob.get(0.1), "the group to be missed")


def test_messages_are_kept_until_each_subscriber_has_them_or_unsubscribes() -> None:
    with TestServer() as server, Clone([server.address], subtree=None) as clone:
        news = clone.topic("news")
        news.create("acknowledged")
        for name in ("alice", "bob"):
            news.subscribe(name)
        news.publish_many([b"1", b"2", b"3"]).wait(10)
        with news.consumer("alice") as alice:
            assert next(alice).values == [b"1", b"2", b"3"]
            assert alice.take(0.1) is None
        until(lambda: {group["name"]: group["lag"] for group in news.groups()} == {"alice": 0, "bob": 3})
        assert news.facts()["first"] == 0, "one has not had them"
        news.unsubscribe("bob")
        until(lambda: news.facts()["first"] == 3)


def test_a_publisher_that_repeats_its_count_publishes_each_message_once() -> None:
    with TestServer() as server:
        # A producer that begins again does not know whether its last message was published, so it sends that one again.
        for sent in (range(1, 4), range(3, 6), range(5, 7)):
            with Clone([server.address], subtree=None) as clone:
                for n in sent:
                    with clone.transaction() as t:
                        t.once("publisher 7", n, strict=True)
                        t.publish("news", b"%d" % n)
        with Clone([server.address], subtree=None) as clone:
            with pytest.raises(Refused) as refused, clone.transaction() as t:
                t.once("publisher 7", 9, strict=True)
                t.publish("news", b"9")
            assert (refused.value.code, refused.value.detail) == ("count", 6), "and the count that is registered"
            found = [value for batch in clone.topic("news").read(wait=False) for value in batch.values]
            assert found == [b"%d" % n for n in range(1, 7)]


@pytest.mark.slow
def test_intermittent_subscribers_get_each_message_once_over_failovers(tmp_path: Path) -> None:
    stores = f"sqlite:{tmp_path}/a.sqlite", f"sqlite:{tmp_path}/b.sqlite"
    taken: dict[str, list[int]] = {"alice": [], "bob": []}
    with Pair(store=stores) as pair, Clone(pair.servers, subtree=None, codec="json") as publisher:
        news = publisher.topic("news")
        for name in taken:
            news.subscribe(name, timeout=20)
        for turn in range(4):
            killed = pair.kill()
            news.publish_many(list(range(turn * 10, turn * 10 + 10))).wait(30)
            for name, had in taken.items():
                # Alice takes part in every second turn only.
                if turn % 2 or name == "bob":
                    with (
                        Clone(pair.servers, subtree=None, codec="json") as clone,
                        clone.topic("news").consumer(name) as c,
                    ):
                        while len(had) < turn * 10 + 10:
                            had.extend(next(c).values)
                        assert c.take(0.1) is None
            killed.start()
            until(lambda: all(each.server is not None and each.server.core.status()["in_sync"] for each in both(pair)))
    assert taken == {name: list(range(40)) for name in taken}


def both(pair: Pair) -> tuple[TestServer, TestServer]:
    return pair.primary, pair.backup
