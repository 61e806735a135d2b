"""covers: questions/unused.py, chp/topics.py: topics that require a group, and topics that are removed when unused."""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import packb
from chp.errors import BadInput
from chp.topics import Settings, pack_messages
from chp_server.core.asks import Vote
from chp_server.core.state.groups import Group
from chp_server.testing import Cores

SESSION = b"s" * 16
LEASE = b"l" * 16
PUBLISH = {"publish": [["t", 1, pack_messages(None, [b"m"])]]}


class Pair(Cores):
    """A pair whose one client sends batches that are numbered by themselves."""

    no = 0

    def say(self, **extras: Any) -> Any:
        """Send a batch, let it be replicated, and return the last answer."""
        self.no += 1
        self.put("PB", SESSION, self.no, {}, **extras)
        self.run(0.1)
        return self.answers(SESSION)[-1][1:]

    def groups(self, server: str = "P") -> list[str]:
        """Return the names of the topic's groups."""
        return list(self.cores[server].state.topics.by_name["t"].groups)

    def has(self, server: str = "P") -> bool:
        """Return True if the topic is there."""
        return "t" in self.cores[server].state.topics.by_name


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_topic_that_requires_a_group_refuses_messages_without_a_group(pair: Pair) -> None:
    pair.say(topic=["t", {"require_group": True}])
    code, text = pair.say(**PUBLISH)
    assert code == "group" and "subscribe one first" in text
    pair.say(group=["t", "g", {}])
    assert pair.say(**PUBLISH)[0] == "ack"
    pair.say(group=["t", "g", None])
    assert pair.say(**PUBLISH)[0] == "group"


def test_a_scheduled_message_waits_for_the_group_that_its_topic_requires(pair: Pair) -> None:
    pair.say(topic=["t", {"require_group": True}])
    pair.say(schedule=[["t", "n", -100, 0, None, PUBLISH["publish"][0][2]]])
    pair.run(1.0)
    assert pair.p.state.topics.by_name["t"].next == 0
    pair.say(group=["t", "g", {}])
    pair.run(1.0)
    assert pair.p.state.topics.by_name["t"].next == 1


def test_an_unused_topic_is_removed_after_its_expiry_time(pair: Pair) -> None:
    pair.say(topic=["t", {"expire_after_s": 5}])
    pair.run(4.0)
    pair.say(**PUBLISH)
    pair.run(4.0)
    assert pair.has() and pair.has("B")
    pair.run(2.0)
    assert not pair.has() and not pair.has("B")
    facts = [fact for turn in pair.turns["P"] for fact in turn.facts if fact.event == "topic removed"]
    assert [fact.fields["topic"] for fact in facts] == ["t"]


@pytest.mark.parametrize(
    "use",
    [{"group": ["t", "g", {}]}, {"schedule": [["t", "n", -60_000, 0, None, PUBLISH["publish"][0][2]]]}],
    ids=["group", "scheduled"],
)
def test_a_topic_that_is_used_stays(pair: Pair, use: dict[str, Any]) -> None:
    pair.say(topic=["t", {"expire_after_s": 2}])
    pair.say(**use)
    pair.run(5.0)
    assert pair.has()


def test_a_topic_expires_only_after_its_reader_has_gone(pair: Pair) -> None:
    pair.say(topic=["t", {"expire_after_s": 2}])
    pair.p.request([b"reader", b"ICANHAZ?", b"", packb({"chp": 4, "id": 1, "topic": "t", "after": 0, "credit": 8})])
    pair.run(5.0)
    assert pair.has()
    pair.p.requests.readers.gone(b"reader")
    pair.run(3.0)
    assert not pair.has()


def test_the_expiry_time_of_a_topic_begins_anew_after_a_failover(pair: Pair) -> None:
    pair.say(topic=["t", {"expire_after_s": 5}])
    pair.run(3.0)
    pair.stopped = "P"
    pair.run(1.5)
    pair.b.do(Vote())
    pair.run(3.5)
    assert pair.b.pair.active and pair.has("B")
    pair.run(3.0)
    assert not pair.has("B")


@pytest.mark.parametrize("settings", [{"require_group": 1}, {"expire_after_s": 0}, {"expire_after_s": True}])
def test_invalid_group_and_expiry_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Settings.of(settings)


def test_a_group_without_members_is_removed_after_its_expiry_time(pair: Pair) -> None:
    pair.say(group=["t", "g", {"expire_after_s": 5}])
    pair.say(group=["t", "other", {}])
    pair.run(3.0)
    pair.say(lease=[LEASE, 8000], join=["t", "g", LEASE, "m"])
    pair.run(7.5)
    assert pair.groups() == pair.groups("B") == ["g", "other"]
    # The lease has ended, and the time begins.
    pair.run(4.0)
    assert pair.groups() == ["g", "other"]
    pair.run(3.0)
    assert pair.groups() == pair.groups("B") == ["other"]
    facts = [fact for turn in pair.turns["P"] for fact in turn.facts if fact.event == "group removed"]
    assert [(fact.fields["topic"], fact.fields["group"]) for fact in facts] == [("t", "g")]


@pytest.mark.parametrize(
    "use",
    [{"group": ["t", "g", {"change": True, "ack_timeout_s": 9}]}, {"group": ["t", "g", {"again": True, "start": 0}]}],
    ids=["changed", "begun anew"],
)
def test_a_group_that_is_changed_has_its_whole_time_again(pair: Pair, use: dict[str, Any]) -> None:
    pair.say(group=["t", "g", {"expire_after_s": 5}])
    pair.run(3.5)
    pair.say(**use)
    pair.run(3.5)
    assert pair.groups() == ["g"]
    pair.run(3.0)
    assert pair.groups() == []


def test_a_group_that_is_made_again_has_its_whole_time(pair: Pair) -> None:
    pair.say(group=["t", "g", {"expire_after_s": 5}])
    pair.run(4.5)
    pair.say(group=["t", "g", None])
    pair.say(group=["t", "g", {"expire_after_s": 5}])
    pair.run(3.5)
    assert pair.groups() == ["g"]


def test_a_group_whose_expiry_time_was_removed_stays(pair: Pair) -> None:
    pair.say(group=["t", "g", {"expire_after_s": 2}])
    pair.say(group=["t", "g", {"change": True, "expire_after_s": None}])
    pair.run(4.0)
    assert pair.groups() == ["g"]


def test_the_expiry_time_of_a_group_survives_a_state_and_a_failover(pair: Pair) -> None:
    pair.say(group=["t", "g", {"expire_after_s": 5}])
    pair.say(group=["t", "h", {"expire_after_s": 5, "max_deliveries": 3}])
    for name in ("g", "h"):
        told = pair.p.state.topics.by_name["t"].groups[name].to_list()
        assert Group.of(told).to_list() == told and Group.of(told).expire_after_s == 5
    pair.run(3.0)
    pair.stopped = "P"
    pair.run(1.5)
    pair.b.do(Vote())
    pair.run(3.5)
    assert pair.b.pair.active and pair.groups("B") == ["g", "h"]
    pair.run(3.0)
    assert pair.groups("B") == []


@pytest.mark.parametrize("expire_after_s", [0, -1, True, 1.5, 1 << 32])
def test_an_invalid_expiry_time_of_a_group_is_refused(pair: Pair, expire_after_s: Any) -> None:
    code, text = pair.say(group=["t", "g", {"expire_after_s": expire_after_s}])
    assert code == "bad" and "expire_after_s is a whole number from 1 to" in text
