"""covers: lag_alarms.py: groups whose oldest message is older than their `lag_alarm_s`."""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import packb, unpackb
from chp.limits import DEFAULT
from chp_server.core.state.topics import Topics

from .group_talk import GroupTalk


def told(talk: GroupTalk, seconds: int) -> list[tuple[str, str, int]]:
    """Return what the log says of late groups in so many seconds: level, event and lag."""
    facts = [fact for _ in range(4 * seconds) for fact in talk.turn(0.25).facts]
    return [(fact.level, fact.event, fact.fields["lag"]) for fact in facts if fact.event.startswith("group ")]


def shown(talk: GroupTalk) -> dict[str, Any]:
    (group,) = talk.core.status()["groups"]
    assert isinstance(group, dict)
    return group


def test_a_late_group_is_logged_once_and_its_recovery_once() -> None:
    talk = GroupTalk()
    talk.group("t", "g", lag_alarm_s=5)
    talk.publish("t", [b"1"])
    assert told(talk, 5) == []
    assert shown(talk)["late"] is False
    talk.publish("t", [b"2"])
    assert told(talk, 20) == [("warning", "group late", 2)], "though it has no member"
    assert shown(talk)["late"] is True and talk.core.committer.counts["groups_late"] == 1
    one = talk.member()
    talk.turn(0.1)
    assert one.ack() == ""
    assert told(talk, 5) == [("info", "group in time", 0)]
    assert shown(talk)["late"] is False
    talk.publish("t", [b"3"])
    assert told(talk, 8) == [("warning", "group late", 1)], "and again"
    assert talk.core.committer.counts["groups_late"] == 2


@pytest.mark.parametrize("told_of", [None, {"change": True, "lag_alarm_s": None}])
def test_a_removed_group_or_alarm_is_no_longer_checked(told_of: dict[str, Any] | None) -> None:
    talk = GroupTalk()
    talk.group("t", "g", lag_alarm_s=5)
    talk.publish("t", [b"1"])
    assert len(told(talk, 9)) == 1
    assert talk.member("other").send(group=["t", "g", told_of]) == ""
    assert told(talk, 9) == [] and not talk.core.state.topics.groups.alarmed
    if told_of is not None:
        assert talk.member("other").send(group=["t", "g", {"change": True, "lag_alarm_s": 9}]) == ""
        assert len(told(talk, 3)) == 1


def test_removing_a_topic_removes_the_alarms_of_its_groups() -> None:
    talk = GroupTalk()
    talk.group("t", "g", lag_alarm_s=5)
    talk.publish("t", [b"1"])
    assert len(told(talk, 9)) == 1
    assert talk.member("g", "u").send(topic=["t", None]) == ""
    assert told(talk, 9) == []


def test_lag_alarm_s_is_a_part_of_the_state() -> None:
    topics = Topics(DEFAULT)
    topics.apply({"group": ["t", "g", {"lag_alarm_s": 7}]})
    topics.apply({"group": ["t", "h", {"ack_timeout_s": 7}]})
    again = Topics(DEFAULT)
    again.load(unpackb(packb(topics.to_list()), "a state"))
    assert again.to_list() == topics.to_list()
    assert again.by_name["t"].groups["g"].lag_alarm_s == 7
    assert list(again.groups.alarmed) == [("t", "g")]
    assert len(again.by_name["t"].groups["h"].to_list()) == 5, "as an older server knows it"
    assert again.groups.any_newer
    (group, _) = again.by_name["t"].groups_after("", 9)
    assert group["lag_alarm_s"] == 7
