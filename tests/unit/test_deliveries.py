"""covers: groups that count deliveries: failures, redelivery to another member, delays and dead letters."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from chp.access import Rules
from chp.batch import Segment, unpackb
from chp.topics import unpack_with_headers
from chp_server.core.state.access_state import AccessState
from chp_server.core.state.groups import Group
from chp_server.core.updates.authorizer import check_batch

from .group_talk import GroupTalk, Hand

DEAD = "t.g.dead"


def group_of(talk: GroupTalk) -> Group:
    group = talk.core.state.topics.groups.get("t", "g")
    assert group is not None
    talk.core.state.check()
    assert Group.of(unpackb(msgpack.packb(group.to_list()), "a group")).to_list() == group.to_list()
    return group


def letters(talk: GroupTalk) -> list[dict[str, Any]]:
    """Return the letters in the dead topic."""
    topic = talk.core.state.topics.by_name.get(DEAD)
    if topic is None:
        return []
    bodies = [body for row in talk.shelf.read(topic.id, 0, 1 << 62, 1 << 40) for body in unpackb(row.body, "a row")]
    return [msgpack.unpackb(value) for body in bodies for value in unpack_with_headers(body)[1]]


def keyed(n: int) -> tuple[list[bytes], list[str]]:
    return [b"%d" % i for i in range(n)], [f"k{i}" for i in range(n)]


def work(talk: GroupTalk, member: Hand, bad: bytes = b"", most: int = 10_000) -> int:
    """Acknowledge what a member gets, until nothing comes or a chunk has the bad message; return how many it did."""
    done = 0
    for _ in range(3):
        talk.turn(0.05)
        while member.chunks and done < most:
            if any(value == bad for _, _, value in member.chunks[0][1]):
                return done
            done += len(member.chunks[0][1])
            assert member.ack() == ""
            talk.turn(0.0)
    return done


def test_a_message_that_kills_its_members_becomes_a_dead_letter() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=3)
    talk.publish("t", *keyed(50))
    deaths, done = 0, 0
    while not letters(talk):
        member = talk.member(ttl_ms=1000)
        done += work(talk, member, b"7")
        assert deaths < 3, "it was given a fourth time"
        if deaths:
            assert member.counted[-1] == [deaths, 3] and len(member.chunks[0][1]) == 1, "it is given alone"
        deaths += 1
        talk.turn(2.0)
        talk.turn(0.1)
        talk.turn(0.1)
    done += work(talk, talk.member(), b"7")
    talk.turn(1.0)
    (letter,) = letters(talk)
    assert (deaths, done, letter["tries"], letter["offset"], letter["value"]) == (3, 49, 3, 7, b"7")
    assert letter["key"] == "k7" and "ended" in letter["why"] and letter["topic"] == "t" and letter["group"] == "g"
    group = group_of(talk)
    assert group.floor() == 50 and not group.failures and not group.dead
    dead = talk.core.state.topics.by_name[DEAD]
    (row,) = talk.shelf.read(dead.id, 0, 1 << 62, 1 << 40)
    assert talk.core.committer.counts["dead_letters"] == 1 and row.n == 1


def test_messages_in_hand_of_a_dead_member_are_given_one_by_one() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=5)
    talk.publish("t", *keyed(30))
    talk.turn(0.0)
    first = talk.member(ttl_ms=1000)
    talk.turn(0.05)
    assert len(first.chunks[0][1]) == 30 and first.counted == [[0, 5]]
    talk.publish("t", [b"later"] * 20, [f"k{i}" for i in range(20)])
    talk.turn(2.0)
    talk.turn(0.1)
    group = group_of(talk)
    assert group.times_max == 1 and group.suspects.bit_count() == len(set(_slots(30)))
    second = talk.member()
    for n in range(30):
        talk.turn(0.05)
        assert [len(messages) for _, messages in second.chunks] == [1], "nothing else comes before it is acknowledged"
        assert second.counted[-1] == [1, 5] and len(second.got) == n + 1
        assert second.ack() == ""
    assert sorted(offset for offset, _, _ in second.got) == list(range(30))
    work(talk, second)
    assert len(second.got) == 50 and len(second.counted) < 34, "the others come together"
    assert second.counted[-1] == [0, 5] and not group_of(talk).failures and not letters(talk)


def _slots(n: int) -> list[int]:
    from chp.topics import slots_of

    return list(slots_of([f"k{i}" for i in range(n)], 0, n))


def test_only_messages_given_alone_or_given_back_become_dead_letters() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=1)
    talk.publish("t", *keyed(10))
    talk.turn(0.0)
    talk.member(ttl_ms=1000)
    talk.turn(0.05)
    talk.turn(2.0)
    talk.turn(0.1)
    assert group_of(talk).times_max == 1 and not letters(talk), "ten were in hand, and nobody knows which it was"
    second = talk.member()
    talk.turn(0.05)
    assert len(second.got) == 1
    assert second.give_back() == ""
    talk.turn(0.1)
    talk.turn(0.1)
    ((letter),) = letters(talk)
    assert letter["offset"] == second.got[0][0] and letter["why"] == "a member gave it back" and letter["tries"] == 2
    third = GroupTalk()
    third.group("t", "g", max_deliveries=1)
    third.publish("t", *keyed(10))
    third.turn(0.0)
    member = third.member()
    third.turn(0.05)
    assert member.give_back(4, "its price is negative") == ""
    third.turn(0.1)
    third.turn(0.1)
    (letter,) = letters(third)
    assert (letter["offset"], letter["why"], letter["tries"]) == (4, "its price is negative", 1)
    third.turn(1.0)
    third.turn(1.0)
    assert group_of(third).floor() == 10 and not group_of(third).failures


def test_a_slow_member_counts_as_a_failed_delivery_unlike_a_closed_one() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=5, ack_timeout_s=5)
    talk.publish("t", *keyed(40))
    talk.turn(0.0)
    one = talk.member(ttl_ms=900_000)
    talk.turn(0.05)
    assert len(one.got) == 40 and one.send(unlease=one.lease) == ""
    talk.turn(0.1)
    two = talk.member(ttl_ms=900_000)
    talk.turn(0.05)
    assert len(two.got) == 40 and two.counted == [[0, 5]], "who is closed adds nothing"
    three = talk.member(ttl_ms=900_000)
    for _ in range(4):
        talk.turn(2.0)
    assert len(three.counted) >= 1, "two was too slow, and lost its messages"
    assert three.counted[-1] == [1, 5] and len(three.chunks[0][1]) == 1
    assert two.ack() == "fenced"


def test_a_failed_message_waits_ever_longer_and_delays_only_its_slot() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=10, retry_after_ms=4000)
    talk.publish("t", *keyed(10))
    talk.turn(0.0)
    one = talk.member()
    talk.turn(0.05)
    assert one.give_back(3, "no") == ""
    talk.publish("t", [b"next", b"behind"], ["other", "k3"])
    for times, wait in ((1, 4.0), (2, 8.0), (3, 16.0)):
        talk.turn(0.1)
        talk.turn(0.1)
        while one.chunks:
            assert [value for _, _, value in one.chunks[0][1]] == [b"next"]
            one.ack()
        talk.turn(wait - 0.6)
        talk.turn(0.1)
        assert not one.chunks, "not before its time, nor what is behind it in its slot"
        talk.refresh(one)
        talk.turn(0.5)
        talk.turn(0.1)
        assert [value for _, _, value in one.chunks[0][1]] == [b"3"] and one.counted[-1] == [times, 10]
        assert one.give_back(3, "no") == ""
    talk.turn(40.0)
    talk.turn(0.1)
    assert one.ack() == ""
    talk.turn(0.1)
    talk.turn(0.1)
    assert one.got[-1][2] == b"behind" and not group_of(talk).failures


def test_a_dead_letter_that_is_refused_is_tried_again_and_its_slot_waits() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=1)
    maker = talk.member("other")
    assert maker.send(topic=[DEAD, {"max_messages": 1}]) == ""
    talk.publish(DEAD, [b"full"])
    talk.publish("t", [b"0", b"1"], ["a", "a"])
    talk.turn(0.0)
    one = talk.member()
    talk.turn(0.05)
    assert one.give_back(0, "no") == ""
    seen = []
    for _ in range(12):
        seen += talk.turn(1.0).facts
    assert not one.chunks and group_of(talk).dead and len(letters_of(seen)) >= 2, "it pauses, and says so each time"
    assert "may have 1" in str(letters_of(seen)[0])
    assert maker.send(topic=[DEAD, None]) == ""
    for _ in range(35):
        talk.turn(1.0)
    assert [each["value"] for each in letters(talk)] == [b"0"] and [each[2] for each in one.got] == [b"0", b"1", b"1"]


@pytest.mark.parametrize("told", [None, {"change": True, "max_deliveries": None}])
def test_a_refused_dead_letter_is_not_retried_without_its_group_or_bound(told: dict[str, Any] | None) -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=1)
    maker = talk.member("other")
    assert maker.send(topic=[DEAD, {"max_messages": 1}]) == ""
    talk.publish(DEAD, [b"full"])
    talk.publish("t", [b"0"], ["a"])
    talk.turn(0.0)
    one = talk.member()
    talk.turn(0.05)
    assert one.give_back(0, "no") == ""
    talk.turn(0.1)
    due_at = talk.core.requests.readers.coordinator.due_at
    assert due_at(0.0) is not None, "it is tried again"
    assert maker.send(group=["t", "g", told]) == ""
    talk.turn(0.1)
    assert due_at(0.0) is None, "else each turn would follow at once"


def letters_of(facts: list[Any]) -> list[Any]:
    return [each for each in facts if "dead letter refused" in str(each)]


def test_a_change_of_group_settings_keeps_places_and_members() -> None:
    talk = GroupTalk()
    talk.publish("t", *keyed(10))
    one = talk.member()
    talk.turn(0.05)
    assert one.send(group=["t", "g", {"change": True, "max_deliveries": 2, "retry_after_ms": 10}]) == ""
    group = group_of(talk)
    assert (group.max_deliveries, group.retry_after_ms, group.floor(), one.slots) == (2, 10, 0, 256)
    assert one.give_back(4, "no") == "" and group_of(talk).times_max == 1
    assert one.send(group=["t", "g", {"change": True, "ack_timeout_s": 7}]) == ""
    assert (group.max_deliveries, group.retry_after_ms, group.ack_timeout_s) == (2, 10, 7)
    assert one.send(group=["t", "g", {"change": True, "max_deliveries": None}]) == "bad", "retry_after_ms needs it"
    assert one.send(group=["t", "g", {"change": True, "max_deliveries": None, "retry_after_ms": None}]) == ""
    assert not group_of(talk).failures and group.max_deliveries is None and len(group.to_list()) == 5
    assert one.send(group=["t", "missing", {"change": True, "max_deliveries": 2}]) == "group"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_deliveries": 0}, {"max_deliveries": 1001}, {"max_deliveries": True}, {"max_deliveries": "5"},
        {"max_deliveries": 5, "retry_after_ms": 0}, {"max_deliveries": 5, "retry_after_ms": 3_600_001},
        {"lag_alarm_s": 0}, {"lag_alarm_s": 1.5}, {"lag_alarm_s": True}, {"lag_alarm_s": (1 << 31) + 1},
        {"retry_after_ms": 10}, {"change": 1}, {"change": True, "start": 0}, {"change": True, "again": True},
    ],
)  # fmt: skip
def test_invalid_group_settings_are_refused(settings: dict[str, Any]) -> None:
    talk = GroupTalk()
    assert talk.group("t", "g", **settings) == "bad" if "change" not in settings else True
    maker = talk.member("maker")
    assert maker.send(group=["t", "g", {**settings}]) == "bad"
    assert talk.core.state.topics.groups.get("t", "g") is None


def test_delivery_settings_need_version_5_and_the_right_to_the_dead_topic() -> None:
    talk = GroupTalk()
    maker = talk.member("other")
    talk.core.committer.view.version = 4
    for told in ({"max_deliveries": 5}, {"lag_alarm_s": 5}, {"change": True, "ack_timeout_s": 1}):
        assert maker.send(group=["t", "g", told]) == "bad"
        assert "need version 5 on both" in str(maker.detail)
    assert maker.send(nack=[["t", "other", maker.lease, []]]) == "bad"
    talk.core.committer.view.version = 5
    assert talk.group("t", "g") == "" and not talk.core.state.topics.groups.any_newer
    assert maker.send(group=["t", "g", {"change": True, "max_deliveries": 5}]) == ""
    assert talk.core.state.topics.groups.any_newer, "an older peer is turned away then"
    rules = Rules.of(
        {
            "users": {
                "ann": {"consume": ["/.chp/topics/t/"]},
                "bob": {"consume": ["/.chp/topics/t/"], "write": [f"/.chp/topics/{DEAD}/"]},
            }
        }
    )
    granted = AccessState()
    granted.rules = rules
    made = Segment([], [], {"group": ["t", "g", {"max_deliveries": 5}]})
    staging = talk.core.state.staging
    assert f"write topic '{DEAD}'" in check_batch(granted, "ann", b"s" * 16, made, staging)
    assert check_batch(granted, "bob", b"s" * 16, made, staging) == ""
    plain = Segment([], [], {"group": ["t", "g", {"start": 0}]})
    assert check_batch(granted, "ann", b"s" * 16, plain, staging) == "", "as it was"


def test_an_invalid_give_back_of_messages_is_refused() -> None:
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=5)
    talk.publish("t", *keyed(10))
    talk.turn(0.0)
    one, other = talk.member(), talk.member()
    talk.turn(0.05)
    (slots, after, upto), *_ = one.chunks[0][0]
    whose = ["t", "g", one.lease]
    assert other.send(nack=[[*whose, [[slots, after, upto, None]]]]) == "lease", "another client's"
    mine = ["t", "g", other.lease]
    assert other.send(nack=[[*mine, [[slots, after, upto, None]]]]) == "fenced", "another member's slots"
    assert one.send(nack=[[*whose, [[slots, after, 11, None]]]]) == "bad", "there is no such message"
    assert one.send(nack=[[*whose, [[slots, 5, 5, None]]]]) == "bad"
    assert one.send(nack=[[*whose, [[slots, after, upto, None], [slots, after, upto, None]]]]) == "bad", "twice"
    assert one.send(nack=[["t", "no", one.lease, []]]) == "group"
    assert not group_of(talk).failures
    assert one.send(nack=[[*whose, []]]) == "" and group_of(talk).times_max == 1, "all that it has in hand"
    for column in ("failed", "aside"):
        assert one.send(**{column: [["t", "g", []]]}) == "bad", "the server's to write"


def test_a_dead_letter_is_read_from_the_journal_without_connected_members() -> None:
    """A server that restarted has no messages in memory, and the last member died of this one."""
    talk = GroupTalk()
    talk.group("t", "g", max_deliveries=1)
    talk.publish("t", [b"bad"], ["k"])
    readers = talk.core.requests.readers
    for _ in range(2):
        member = talk.member(ttl_ms=1000)
        talk.turn(0.05)
        assert len(member.chunks) == 1
        readers.gone(member.identity)
        readers.pages._rows.clear()
        readers.pages._near.clear()
        talk.turn(2.0)
    for _ in range(5):
        talk.turn(0.0)
    assert [letter["value"] for letter in letters(talk)] == [b"bad"]
    assert talk.core.next_deadline() > talk.core.turn.now, "nothing is left to do"
