"""covers: groups.py, group_coordinator.py, member.py, message_pages.py: which member has which slots and messages."""

from __future__ import annotations

import random
from dataclasses import astuple, replace
from typing import Any

import pytest

from chp.batch import decode, packb, unpackb
from chp.errors import BadFrame
from chp.headers import Refused
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.topics import ALL_SLOTS, pack_messages, pack_slots, slots_of, unpack_messages, unpack_slots
from chp.versions import VERSION
from chp_server.core.state.groups import NOBODY, Group
from chp_server.core.state.leases import LeaseOwner
from chp_server.core.state.topics import Topics
from chp_server.testing import Cores

from .group_talk import GroupTalk, Hand

EVERY = pack_slots(ALL_SLOTS)
A, B = b"a" * 16, b"b" * 16
ONE, TWO, THREE = (n * 12 + bytes(4) for n in (b"1", b"2", b"3"))


# -- the state


def group_of(*members: bytes) -> Group:
    group = Group("g")
    group.begin(0)
    for member in members:
        group.join(member, "")
    return group


def test_a_member_moves_only_its_own_slots_from_their_present_offset() -> None:
    group = group_of(A, B)
    group.assign(0b1111, A)
    assert not group.stands(B, (0b1, 0, 5)), "another's"
    assert not group.stands(A, (0b10001, 0, 5)), "one of them is nobody's"
    assert not group.stands(A, (0b1, 1, 5)), "they are not there"
    assert not group.stands(A, (0b1, 0, 0)), "it moves nothing"
    assert not group.stands(A, (0, 0, 5)), "no slots"
    assert group.stands(A, (0b11, 0, 5))
    group.move(A, (0b11, 0, 5))
    assert group.places[A] == {0: 0b1100, 5: 0b11}
    assert not group.stands(A, (0b11, 0, 5)), "it is done once"
    group.move(A, (0b1100, 0, 5))
    assert group.places[A] == {5: 0b1111}, "slots at one offset are one place"
    group.check(5)


def test_slots_keep_their_offsets_when_they_change_members_or_a_member_leaves() -> None:
    group = group_of(A, B)
    group.assign(ALL_SLOTS, A)
    group.move(A, (0b111, 0, 9))
    group.assign(0b101, B)
    assert group.places[B] == {9: 0b101}
    assert group.floor() == 0
    group.leave(A)
    assert group.places[NOBODY] == {0: ALL_SLOTS ^ 0b111, 9: 0b10}
    assert list(group.members) == [B]
    group.check(9)
    group.begin(3)
    assert group.places == {NOBODY: {3: ALL_SLOTS ^ 0b101}, B: {3: 0b101}}
    group.check(9)


def test_the_state_saves_and_loads_groups() -> None:
    topics = Topics(DEFAULT)
    topics.place("t", 9, b"x", 1)
    topics.apply({"group": ["t", "g", {"start": 4, "ack_timeout_s": 7}]})
    topics.apply({"join": ["t", "g", A, "me"]})
    topics.apply({"assign": [["t", "g", [[EVERY, A]]]]})
    topics.apply({"ack": [["t", "g", A, [[pack_slots(1), 4, 6]]]]})
    again = Topics(DEFAULT)
    again.load(unpackb(packb(topics.to_list()), "a state"))
    assert again.to_list() == topics.to_list()
    again.groups.left(A)
    assert again.by_name["t"].groups["g"].places == {NOBODY: {4: ALL_SLOTS ^ 1, 6: 1}}
    again.check_all()
    again.apply({"topic": ["t", None]})
    again.apply({"ack": [["t", "g", A, [[pack_slots(1), 4, 6]]]]})
    assert not again.groups.any_member


def test_a_group_that_begins_anew_has_no_members() -> None:
    topics = Topics(DEFAULT)
    topics.place("t", 9, b"x", 1)
    topics.apply({"group": ["t", "g", {"start": 4}]})
    topics.apply({"join": ["t", "g", A, "me"]})
    topics.apply({"assign": [["t", "g", [[EVERY, A]]]]})
    topics.apply({"group": ["t", "g", {"start": 4, "again": True}]})
    group = topics.by_name["t"].groups["g"]
    assert (group.places, group.members) == ({NOBODY: {4: ALL_SLOTS}}, {})
    assert not topics.groups.any_member and ("t", "g") in topics.groups.unsettled
    topics.groups.left(A)
    topics.check_all()


def test_invalid_group_join_and_ack_columns_are_refused() -> None:
    talk = GroupTalk()
    assert talk.group("t", "g") == ""
    assert "t" in talk.core.state.topics.by_name, "the topic is made with its first group"
    assert talk.group("t", "g") == "there"
    one = Hand(talk, "t", "g", 77)
    assert one.send(group=["t", "x", {"start": 1}]) == "bad", "there is no such offset"
    assert one.send(group=["t", "x", {"colour": 1}]) == "bad"
    assert one.send(group=["t", "x", None]) == "group"
    assert one.send(group=["t", "no name", {}]) == "bad"
    assert one.send(join=["t", "g", one.lease, ""]) == "lease", "no such lease"
    assert one.send(join=["u", "g", one.lease, ""]) == "topic"
    assert one.send(ack=[["t", "g", one.lease, [[EVERY, 0, 1]]]]) == "bad", "beyond the end"
    assert one.send(ack=[["t", "h", one.lease, [[EVERY, 0, 1]]]]) == "group"
    assert one.send(assign=[["t", "g", [[EVERY, one.lease]]]]) == "bad", "that is the server's to say"
    assert one.join() == ""
    two = Hand(talk, "t", "g", 78)
    assert two.send(join=["t", "g", one.lease, ""]) == "lease", "another's"
    talk.publish("t", [b"1"])
    assert two.send(ack=[["t", "g", one.lease, [[EVERY, 0, 1]]]]) == "lease", "a name is no right to it"
    assert one.send(ack=[["t", "g", one.lease, [[EVERY, 0, 1], [EVERY, 0, 1]]]]) == "bad", "twice"
    assert one.send(ack=[["t", "g", one.lease, [[EVERY, 0, 1]]]]) == "", "it has joined, and all slots are its"
    assert one.send(group=["t", "g", None]) == ""
    assert one.send(ack=[["t", "g", one.lease, [[EVERY, 1, 2]]]]) == "group"


# -- what members are given


def test_one_member_has_all_slots_and_gets_the_stored_messages() -> None:
    talk = GroupTalk()
    talk.publish("t", [b"1", b"2"], ["a", "b"])
    one = talk.member()
    assert one.slots == 256
    talk.turn(0.1)
    assert one.got == [(0, "a", b"1"), (1, "b", b"2")]
    assert one.ack() == ""
    talk.publish("t", [b"3"])
    talk.turn(0.1)
    talk.turn(0.1)
    assert one.got[2:] == [(2, "", b"3")]
    assert talk.core.state.topics.groups.get("t", "g").floor() == 2  # type: ignore[union-attr]


def test_a_batch_with_a_repeated_acknowledgement_is_refused_whole() -> None:
    talk = GroupTalk()
    talk.publish("t", [b"1"])
    one = talk.member()
    talk.turn(0.1)
    moves = one.chunks[0][0]
    one.no += 1
    talk.set(one.session, one.no, {"/done": b"1"}, ack=[["t", "g", one.lease, moves]],
             publish=[["out", 1, packb([None, [b"o"]])]])  # fmt: skip
    talk.turn(0.1)
    assert talk.map["/done"] == b"1"
    assert talk.core.state.topics.by_name["out"].next == 1
    one.no += 1
    talk.set(one.session, one.no, {"/done": b"2"}, ack=[["t", "g", one.lease, moves]],
             publish=[["out", 1, packb([None, [b"o"]])]])  # fmt: skip
    talk.turn(0.1)
    ((_, code, detail),) = talk.refusals(one.session)
    assert code == "fenced"
    assert detail == {"topic": "t", "group": "g", "member": True, "from": 0, "at": [[EVERY, 1, True]]}
    assert talk.map["/done"] == b"1", "nothing of it is there"
    assert talk.core.state.topics.by_name["out"].next == 1


def keyed(n: int, start: int = 0) -> tuple[list[bytes], list[str]]:
    return [b"%d" % i for i in range(start, start + n)], [f"k{i % 50}" for i in range(start, start + n)]


def drain(talk: GroupTalk, *members: Hand, turns: int = 30) -> None:
    for _ in range(turns):
        talk.turn(0.1)
        for member in members:
            while member.chunks:
                assert member.ack() == ""
    talk.turn(0.3)


def test_the_places_of_a_group_are_told_once_the_passive_has_them() -> None:
    pair, session, lease = Cores(), b"s" * 16, b"l" * 16

    def ask(group: str) -> None:
        told = packb({"chp": VERSION, "id": 1, "topic": "t", "facts": True, "group": group})
        pair.p.request([b"asker", ICANHAZ, b"", told])

    def promised() -> list[Any]:
        turns = pair.turns["P"]
        found: list[Any] = [decode(m[-1])[0] for turn in turns for _, messages in turn.promises for m in messages]
        turns.clear()
        assert all(header.facts["start"] == 0 for header in found)
        return [(header.facts["next"], header.facts["places"]) for header in found]

    pair.put("P", session, 1, {}, group=["t", "g", {"start": 0}])
    pair.put("P", session, 2, {}, lease=[lease, 60_000], join=["t", "g", lease, "m"])
    pair.put("P", session, 3, {}, publish=[["t", 1, pack_messages(None, [b"m"])]])
    pair.run(1.0)
    slots = pair.p.state.topics.by_name["t"].groups["g"].slots_of(lease)
    pair.linked = False
    pair.put("P", session, 4, {}, ack=[["t", "g", lease, [[pack_slots(slots & 3), 0, 1]]]])
    ask("g")
    pair.turn("P")
    assert promised() == []
    pair.linked = True
    pair.run(1.0)
    assert promised() == [(1, [[pack_slots(ALL_SLOTS & ~3), 0], [pack_slots(3), 1]])]
    ask("none")
    pair.turn("P")
    refused: list[Any] = [decode(m[-1])[0] for _, messages in pair.turns["P"][-1].replies for m in messages]
    assert [header.code for header in refused] == ["group"]


def test_the_passive_and_a_loaded_state_know_the_start_of_each_group() -> None:
    pair = Cores()
    pair.put("PB", ONE, 1, {}, publish=[["t", 3, packb([None, [b"1", b"2", b"3"]])]])
    for n, group in enumerate(("first", "late", "moved"), 2):
        pair.put("PB", ONE, n, {}, group=["t", group, {"start": 0 if group == "first" else -1}])
    pair.put("PB", ONE, 5, {}, group=["t", "moved", {"start": 1, "again": True}])
    pair.run(0.5)
    again = Topics(DEFAULT)
    again.load(unpackb(packb(pair.p.state.topics.to_list()), "a state"))
    for topics in (pair.b.state.topics, again):
        starts = {group.name: group.start for group in topics.by_name["t"].groups.values()}
        assert starts == {"first": 0, "late": 3, "moved": 1}
    # A state of an older server has none, and an older server takes the groups alone.
    told = again.to_list()
    assert told[1][0].pop() == {"late": 3, "moved": 1}
    older = Topics(DEFAULT)
    older.load(unpackb(packb(told), "a state"))
    assert [group.start for group in older.by_name["t"].groups.values()] == [0, 0, 0]


def test_members_share_messages_by_slots_in_order_without_repeats() -> None:
    talk = GroupTalk()
    one, two, three = (talk.member() for _ in range(3))
    assert sorted([one.slots, two.slots, three.slots]) == [85, 85, 86]
    for start in range(0, 600, 200):
        talk.publish("t", *keyed(200, start))
        talk.turn(0.0)
    drain(talk, one, two, three)
    got = [one.got, two.got, three.got]
    assert sorted(m[0] for part in got for m in part) == list(range(600))
    for part in got:
        assert part == sorted(part), "in order"
        assert len(part) > 100
    keys = [{m[1] for m in part} for part in got]
    assert not keys[0] & keys[1] and not keys[1] & keys[2], "one key has one member"
    group = talk.core.state.topics.groups.get("t", "g")
    assert group is not None and group.floor() == 600
    assert len(group.places[one.lease]) == 1, "slots that keep up are at one offset"


def items_to(talk: GroupTalk, member: Hand) -> list[list[Any]]:
    """Take a turn, and return the items of the MESSAGES that a member gets in it."""
    found: list[list[Any]] = []
    for identity, replies in talk.turn(0.05).deliveries:
        if identity == member.identity:
            found += (item for frames in replies for item in decode(frames[4])[1])
    return found


def test_an_item_has_only_the_messages_of_its_member() -> None:
    talk = GroupTalk()
    one, two = talk.member(ask=False), talk.member(ask=False)
    talk.publish("t", *keyed(40))
    talk.publish("t", [b"no key %d" % i for i in range(40)])
    talk.turn(0.0)
    got: dict[int, bytes] = {}
    for member in (one, two):
        member.ask(credit=1)
        [[first, n, _, _, bodies, mask]] = items_to(talk, member)
        assert (first, n, len(mask), len(bodies)) == (0, 80, 80, 1), "two publishes are one bin"
        keys, values = unpack_messages(bodies[0])
        assert keys is not None and "" in keys, "and messages without a key have an empty one"
        offsets = [offset for offset, there in enumerate(mask) if there]
        assert not got.keys() & set(offsets)
        got.update(zip(offsets, values, strict=True))
    assert [got[i] for i in range(80)] == [*keyed(40)[0], *(b"no key %d" % i for i in range(40))]
    talk = GroupTalk()
    talk.publish("t", *keyed(40))
    talk.turn(0.0)
    alone = talk.member(ask=False)
    alone.ask()
    [[first, n, _, _, bodies]] = items_to(talk, alone)
    assert (first, n, unpack_messages(bodies[0])) == (0, 40, (keyed(40)[1], keyed(40)[0])), "all are there"


def test_a_member_gets_two_chunks_ahead_and_one_for_each_granted_credit() -> None:
    talk = GroupTalk()
    one = talk.member()
    for i in range(6):
        talk.publish("t", [b"%d" % i])
        talk.turn(0.05)
        talk.turn(0.05)
    assert len(one.chunks) == 2, "six of its eight credits are left, and it is given nothing more"
    talk.turn(60.0)
    assert len(one.chunks) == 2
    for n in (3, 4):
        one.grant(1)
        for _ in range(2):
            talk.publish("t", [b"more"])
            talk.turn(0.05)
            talk.turn(0.05)
        assert len(one.chunks) == n


def test_one_segment_may_open_a_lease_and_join_a_group() -> None:
    talk = GroupTalk()
    assert talk.group("t", "g") == ""
    hand = Hand(talk, "t", "g", 9)
    talk.members.append(hand)
    assert hand.send(lease=[hand.lease, 1_000_000], join=["t", "g", hand.lease, "hand"]) == ""
    talk.turn(0.0)
    assert hand.slots == 256


def test_messages_without_keys_are_spread_evenly_over_members() -> None:
    talk = GroupTalk()
    one, two = talk.member(), talk.member()
    talk.publish("t", [b"x"] * 1000)
    drain(talk, one, two)
    assert abs(len(one.got) - len(two.got)) <= 2
    one.got.clear()
    for _ in range(10):
        talk.publish("t", [b"few"])
    drain(talk, one, two)
    assert len(one.got) == 5


def test_a_new_member_gets_slots_only_after_their_messages_are_acknowledged() -> None:
    talk = GroupTalk()
    one = talk.member()
    talk.publish("t", *keyed(100))
    talk.turn(0.0)
    talk.turn(0.0)
    assert len(one.got) == 100, "all in hand"
    two = talk.member()
    assert two.slots == 0, "nobody takes what another has in hand"
    talk.publish("t", *keyed(100, 100))
    talk.turn(0.1)
    talk.turn(0.1)
    more = len(one.got)
    assert 100 < more < 200, "of the slots that it keeps it gets more meanwhile"
    assert two.got == []
    drain(talk, one, two)
    assert two.slots == 128
    assert sorted(m[0] for m in one.got + two.got) == list(range(200))


def test_unacknowledged_messages_of_a_leaving_member_go_to_others() -> None:
    talk = GroupTalk()
    one, two = talk.member(), talk.member()
    talk.publish("t", *keyed(200))
    talk.turn(0.1)
    talk.turn(0.1)
    unread = {m[0] for m in one.got}
    assert one.send(unlease=one.lease) == ""
    assert two.slots == 256
    drain(talk, two)
    assert {m[0] for m in two.got} == set(range(200))
    assert unread <= {m[0] for m in two.got}
    assert one.ack() in ("fenced", "lease")


def test_a_living_member_whose_lease_has_expired_is_fenced() -> None:
    talk = GroupTalk()
    one, two = talk.member(ttl_ms=1000), talk.member(ttl_ms=100_000)
    talk.publish("t", *keyed(100))
    talk.turn(0.1)
    talk.turn(0.1)
    assert one.got
    talk.turn(2.0)
    talk.turn(0.3)
    assert two.slots == 256
    assert one.ack(publish=[["out", 1, packb([None, [b"o"]])]]) in ("fenced", "lease")
    assert "out" not in talk.core.state.topics.by_name
    talk.turn(0.1)
    assert one.refused == ["member"], "its stream ends"


def test_a_member_on_a_new_connection_continues_behind_its_messages_in_hand() -> None:
    talk = GroupTalk()
    one = talk.member()
    talk.publish("t", *keyed(100))
    talk.turn(0.1)
    talk.turn(0.1)
    assert len(one.got) == 100
    one.identity = b"another"
    one.ask(have=one.have, proof=one.proof)
    talk.publish("t", *keyed(10, 100))
    talk.turn(0.1)
    talk.turn(0.1)
    assert [m[0] for m in one.got] == list(range(110))
    one.ask(have=one.have, proof=[one.proof[0] + (1 << 40), *one.proof[1:]])  # type: ignore[index]
    talk.turn(0.1)
    talk.turn(0.1)
    assert [m[0] for m in one.got[110:]] == list(range(110)), "of another history it says nothing"


def in_hand_of(talk: GroupTalk, n: int) -> list[list[Any]]:
    """Return so many ranges, each of one slot and one offset."""
    return [[pack_slots(1 << (i % 256)), i // 256, i // 256 + 1] for i in range(n)]


def test_a_thousand_ranges_in_hand_are_answered() -> None:
    talk = GroupTalk()
    one = talk.member()
    talk.publish("t", *keyed(100))
    talk.turn(0.1)
    talk.turn(0.1)
    most = in_hand_of(talk, 1000)
    widest = [[slots, (1 << 61) + after, (1 << 61) + upto] for slots, after, upto in most]
    for have in (most[:107], most, widest):
        one.got.clear()
        one.refused.clear()
        one.ask(have=have, proof=one.proof)
        talk.publish("t", *keyed(10, 100))
        talk.turn(0.1)
        talk.turn(0.1)
        assert one.got and not one.refused
    assert len(packb({"have": widest})) < DEFAULT.question_bytes_max - 1000, "they fit a frame of P"


@pytest.mark.parametrize(
    ("have", "why"),
    [
        (lambda talk: in_hand_of(talk, 1001), "too much"),
        (lambda talk: [[1 << 20]] * 1001, "1,001 ranges, and at most 1,000"),
        (lambda talk: [[[[]] * 100] * 100] * 10, "too much"),
    ],
)
@pytest.mark.parametrize("id_first", [True, False])
def test_a_question_with_too_many_ranges_is_refused_with_its_id(have: Any, why: str, *, id_first: bool) -> None:
    talk = GroupTalk()
    one = talk.member()
    told = {"chp": VERSION, "topic": "t", "group": "g", "member": one.lease, "credit": 8, "have": have(talk)}
    told = {"id": 4711, **told} if id_first else {**told, "id": 4711}
    talk.core.request([one.identity, ICANHAZ, b"", packb({**told, "proof": [1, b"", b""]})])
    answers = [decode(frames[4])[0] for _, replies in talk.turn(0.0).replies for frames in replies]
    (refused,) = [each for each in answers if isinstance(each, Refused)]
    assert (refused.number, refused.code) == (4711, "bad") and why in str(refused.detail)


def test_ranges_in_hand_do_not_count_in_the_limit_of_other_options() -> None:
    talk = GroupTalk()
    one = talk.member()
    for other, refused in ([bytes(5000), [0] * 800], []), ([bytes(5000), [0] * 1000], ["bad"]):
        one.refused.clear()
        one.ask(have=in_hand_of(talk, 500), proof=[1, b"", b""], other=other)
        talk.turn(0.1)
        assert one.refused == refused


def test_joined_ranges_in_hand_are_taken_though_a_part_is_acknowledged() -> None:
    talk = GroupTalk()
    one = talk.member()
    for n in range(3):
        talk.publish("t", *keyed(10, 10 * n))
        talk.turn(0.1)
        talk.turn(0.1)
    joined = [[EVERY, 0, 30]]
    for expected in (0, 10):
        group = talk.core.state.topics.groups.get("t", "g")
        assert group is not None and group.floor() == expected
        one.got.clear()
        one.identity += b"'"
        one.ask(have=joined, proof=one.proof)
        talk.turn(0.1)
        talk.turn(0.1)
        assert one.got == [], "it has them all in hand"
        if not expected:
            assert one.ack() == ""
    talk.publish("t", *keyed(1, 30))
    talk.turn(0.1)
    talk.turn(0.1)
    assert [m[0] for m in one.got] == [30]


def test_messages_come_again_if_their_acknowledgement_was_lost() -> None:
    """A lone active died with its acknowledgements, so the member has dropped these messages, and gets them again."""
    talk = GroupTalk()
    one = talk.member()
    talk.publish("t", *keyed(10))
    drain(talk, one)
    talk.publish("t", *keyed(10, 10))
    talk.turn(0.1)
    talk.turn(0.1)
    group = talk.core.state.topics.groups.get("t", "g")
    assert group is not None and group.floor() == 10
    # A successor knows the group like this.
    group.begin(0)
    one.got.clear()
    one.ask(have=one.have, proof=one.proof)
    talk.turn(0.1)
    talk.turn(0.1)
    assert [m[0] for m in one.got] == list(range(20))


def test_a_busy_member_is_given_no_less_than_a_page() -> None:
    talk = GroupTalk(replace(DEFAULT, messages_page_bytes=150))
    one, other = talk.member(), talk.member()
    # One chunk is in hand, and one waits.
    for _ in range(2):
        talk.publish("t", *keyed(10))
        talk.turn(0.05)
        talk.turn(0.05)
    assert [len(each.chunks) for each in (one, other)] == [2, 2]
    talk.publish("t", *keyed(10))
    talk.turn(0.05)
    talk.turn(0.05)
    assert not talk.core.requests.ready, "there is less than a page of its slots, so no turn begins for it"
    assert len(one.chunks) == 2
    one.ack()
    talk.turn(0.05)
    assert len(one.chunks) == 2, "it has room: it is given what there is"
    assert len(other.chunks) == 2
    for _ in range(5):
        talk.publish("t", *keyed(20))
        talk.turn(0.05)
    assert len(other.chunks) > 2, "a page is given ahead"
    drain(talk, one, other)
    assert sorted(offset for offset, *_ in one.got + other.got) == list(range(130))


def test_one_of_several_members_gets_about_a_page_of_its_own_slots() -> None:
    talk = GroupTalk(replace(DEFAULT, messages_page_bytes=400))
    members = [talk.member(ask=False) for _ in range(4)]
    for _ in range(8):
        talk.publish("t", *keyed(20))
        talk.turn(0.05)
    for member in members:
        member.ask(credit=1)
    talk.turn(0.05)
    assert talk.shelf.read(1, 0, 1 << 62, 1)[0].n == 20, "a row a turn"
    assert all(len(member.got) > 20 for member in members), [len(member.got) for member in members]


def test_a_member_with_all_slots_gets_several_pages_in_a_turn() -> None:
    talk = GroupTalk(replace(DEFAULT, messages_page_bytes=100))
    for _ in range(8):
        talk.publish("t", *keyed(20))
        talk.turn(0.05)
    one = talk.member(ask=False)
    one.ask(credit=3)
    talk.turn(0.05)
    assert [len(found) for _, found in one.chunks] == [20, 20, 20]


def test_slots_without_messages_advance_with_the_group() -> None:
    talk = GroupTalk()
    one, two = talk.member(), talk.member()
    for i in range(30):
        talk.publish("t", [b"%d" % i], ["always the same"])
        talk.turn(0.05)
        for member in (one, two):
            while member.chunks:
                assert member.ack() == ""
    talk.turn(0.3)
    talk.turn(0.3)
    group = talk.core.state.topics.groups.get("t", "g")
    assert group is not None and group.floor() == 30
    assert sorted([len(one.got), len(two.got)]) == [0, 30]


def test_a_slow_member_loses_its_slots_until_its_next_sign_of_life() -> None:
    talk = GroupTalk()
    talk.group("t", "g", ack_timeout_s=5)
    one, two = talk.member(ttl_ms=900_000), talk.member(ttl_ms=900_000)
    talk.publish("t", *keyed(100))
    for _ in range(10):
        talk.turn(0.3)
        while two.chunks:
            assert two.ack() == ""
    assert one.slots == 128, "not yet"
    for _ in range(10):
        talk.turn(1.0)
        while two.chunks:
            assert two.ack() == ""
    assert {m[0] for m in two.got} == set(range(100)), "the other did them"
    assert one.ack() == "fenced"
    talk.turn(0.3)
    talk.turn(0.3)
    assert one.slots > 64, "fewer than the other has, as it was slow"


def test_a_group_that_is_begun_anew_ends_its_members_streams() -> None:
    talk = GroupTalk()
    talk.publish("t", *keyed(10))
    one = talk.member()
    drain(talk, one)
    assert one.send(group=["t", "g", {"start": 3, "again": True}]) == ""
    talk.turn(0.1)
    assert one.refused == ["member"]
    one.got.clear()
    assert one.join() == ""
    one.ask()
    drain(talk, one)
    assert [m[0] for m in one.got] == list(range(3, 10))


def test_a_topic_with_keep_acknowledged_keeps_messages_that_any_group_lacks() -> None:
    talk = GroupTalk()
    maker = Hand(talk, "t", "g", 50)
    assert maker.send(topic=["t", {"keep": "acknowledged", "max_messages": 100}]) == ""
    talk.publish("t", *keyed(100))
    talk.turn(1.0)
    assert maker.send(publish=[["t", 1, packb([None, [b"x"]])]]) == "full"
    talk.turn(1.0)
    assert talk.core.state.topics.by_name["t"].first == 0, "nobody has asked for them yet"
    one, two = talk.member("g"), talk.member("h")
    drain(talk, one)
    talk.refresh(one, two)
    assert talk.core.state.topics.by_name["t"].first == 0, "the other group has not"
    drain(talk, two)
    talk.turn(0.5)
    assert talk.core.state.topics.by_name["t"].first == 100
    assert maker.send(publish=[["t", 1, packb([None, [b"x"]])]]) == ""


def test_a_once_count_from_two_clients_is_applied_once() -> None:
    talk = GroupTalk()
    first, second = Hand(talk, "t", "g", 1), Hand(talk, "t", "g", 2)
    told = {"publish": [["t", 1, packb([None, [b"x"]])]]}
    assert first.send(once=["importer", 1, True], **told) == ""
    assert second.send(once=["importer", 1, True], **told) == "", "acknowledged again"
    assert talk.core.state.topics.by_name["t"].next == 1
    assert second.send(once=["importer", 3, True], **told) == "count"
    assert second.send(once=["importer", 7, False], **told) == ""
    assert first.send(once=["importer", 5, False], **told) == ""
    assert talk.core.state.topics.by_name["t"].next == 2
    assert first.send(once=["importer", 8, True], stage=[b"s" * 16, "0"], **told) == "bad"


def test_slots_of_messages() -> None:
    assert slots_of(["a", "b", "a"], 7, 3) == bytes([0xE8B7BE43 & 255, 0x71BEEFF9 & 255, 0xE8B7BE43 & 255])
    assert slots_of(None, 254, 4) == bytes([127, 255, 0, 128])
    assert len(slots_of(None, 3, 200_000)) == 200_000
    assert unpack_slots(pack_slots(1 << 255)) == 1 << 255
    assert pack_slots(1)[0] == 1


def test_a_group_waits_for_messages_that_only_the_other_server_has() -> None:
    """A server that lacks messages delivers none after the gap, since the missing ones would be lost."""
    talk = GroupTalk()
    for start in (0, 10, 20):
        talk.publish("t", *keyed(10, start))
        talk.turn(0.0)
    kept = talk.shelf.read(1, 0, 1 << 62, 1 << 30)
    talk.shelf.trim({1: 1 << 60})
    talk.shelf.keep([kept[0], kept[2]])
    one = talk.member(ask=False)
    readers = talk.core.requests.readers
    one.ask()
    for missing in (10, 0):
        if not missing:
            talk.shelf.keep([kept[1]])
            readers.coordinator.pages.clear()
            readers.coordinator.step(talk.now)
        for _ in range(3):
            upto = talk.core.state.number
            for _, replies in readers.coordinator.pump((), upto, talk.now, filling=missing > 0, whole=False):
                one.hear(*decode(replies[0][4]))
            for read in readers.pages.due():
                readers.pages.came(read, talk.shelf.read(*astuple(read)))
        assert [m[0] for m in one.got] == list(range(10 if missing else 30))


# -- anything, in any order


class Chaos:
    """Members that join, die, are stopped and wake, and acknowledge what they were given in any order among them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.talk = GroupTalk()
        self.talk.group("t", "g")
        self.living: list[Hand] = []
        self.zombies: list[Hand] = []
        # slot -> its offsets in the order of acknowledgement
        self.done: dict[int, list[int]] = {}
        self.fenced = self.published = self.alive_again = 0

    def publish(self) -> None:
        n = self.rng.randrange(1, 20)
        keys = [f"k{self.rng.randrange(40)}" for _ in range(n)]
        self.talk.publish("t", [b"x"] * n, keys)
        self.published += n

    def ack(self, hand: Hand, *, zombie: bool = False) -> None:
        found = hand.chunks[0][1]
        code = hand.ack()
        assert zombie or code == "", (code, "a member that lives is never fenced")
        if code:
            self.fenced += 1
            return
        for offset, key, _ in found:
            self.done.setdefault(slots_of([key], 0, 1)[0], []).append(offset)

    def step(self) -> None:
        rng, op = self.rng, self.rng.random()
        if op < 0.3:
            self.publish()
        elif op < 0.38 and len(self.living) < 6:
            self.living.append(self.talk.member(ttl_ms=100_000_000))
        elif op < 0.42 and self.living:
            hand = self.living.pop(rng.randrange(len(self.living)))
            chunks, self.talk.members = hand.chunks, [m for m in self.talk.members if m is not hand]
            assert hand.send(unlease=hand.lease) == ""
            hand.chunks = chunks
            self.zombies.append(hand)
        elif op < 0.46 and self.living:
            hand = rng.choice(self.living)
            hand.identity += b"'"
            hand.ask(have=hand.have, proof=hand.proof)
        elif op < 0.75:
            self.talk.turn(rng.choice((0.0, 0.05, 0.3)))
        else:
            full = [hand for hand in self.living if hand.chunks]
            if full:
                self.ack(rng.choice(full))
            late = [hand for hand in self.zombies if hand.chunks]
            if late and rng.random() < 0.3:
                self.ack(rng.choice(late), zombie=True)
        self.talk.core.state.topics.check_all()

    def end(self) -> None:
        if not self.living:
            self.living.append(self.talk.member(ttl_ms=100_000_000))
        for _ in range(60):
            self.talk.turn(0.3)
            for hand in self.living:
                while hand.chunks:
                    self.ack(hand)
        group = self.talk.core.state.topics.groups.get("t", "g")
        assert group is not None and group.floor() == self.published, "nothing is left"
        assert sum(map(len, self.done.values())) == self.published, "each message was acknowledged once"
        assert all(offsets == sorted(offsets) for offsets in self.done.values()), "in the order of its slot"


@pytest.mark.parametrize("seed", range(8))
def test_each_message_is_acknowledged_exactly_once_in_the_order_of_its_slot(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(300):
        chaos.step()
    chaos.end()
    # A living member gets no message twice.
    for hand in chaos.living:
        assert len({m[0] for m in hand.got}) == len(hand.got)


def test_malformed_group_columns_are_refused() -> None:
    talk = GroupTalk()
    one: Any = Hand(talk, "t", "g", 3)
    for extras in (
        {"ack": [["t", "g", one.lease, []]]}, {"ack": [["t", "g", one.lease, [[b"short", 0, 1]]]]},
        {"join": ["t", "g", b"short", ""]}, {"group": ["t", "g"]}, {"once": ["a", 1]}, {"assign": [["t", "g", 7]]},
    ):  # fmt: skip
        before = talk.core.committer.counts["garbage_collector"]
        assert one.send(**extras) in ("bad", "")
        assert talk.core.committer.counts["garbage_collector"] > before or one.no
    with pytest.raises(BadFrame):
        Topics(DEFAULT).groups.check({"group": ["t", "g", {}], "publish": []}, talk.core.state.leases, LeaseOwner(b""))


# -- two servers


def pair_with_a_member(pair: Cores) -> None:
    pair.put("PB", ONE, 1, {}, group=["t", "g", {"start": 0}])
    pair.put("PB", ONE, 2, {}, lease=[A, 60_000])
    pair.put("PB", ONE, 3, {}, join=["t", "g", A, "one"])
    pair.put("PB", ONE, 4, {}, publish=[["t", 3, packb([None, [b"1", b"2", b"3"]])]])
    pair.run(0.5)
    assert pair.p.state.topics.to_list() == pair.b.state.topics.to_list()
    group = pair.b.state.topics.groups.get("t", "g")
    assert group is not None and group.places == {NOBODY: {}, A: {0: ALL_SLOTS}}, "the passive knows who has which"


def test_a_successor_takes_an_acknowledgement_that_the_dead_active_missed() -> None:
    pair = Cores()
    pair_with_a_member(pair)
    pair.stopped = "P"
    pair.vote("B")
    pair.run(3.0)
    pair.put("B", ONE, 5, {"/k": b"done"}, ack=[["t", "g", A, [[EVERY, 0, 2]]]])
    pair.put("B", ONE, 6, {"/k": b"twice"}, ack=[["t", "g", A, [[EVERY, 0, 2]]]])
    pair.run(0.5)
    assert pair.b.state.map.values == {"/k": b"done"}
    assert [answer[:2] for answer in pair.answers(ONE, "B")] == [(5, "ack"), (6, "fenced")]


def test_a_suffix_batch_with_an_acknowledgement_becomes_a_conflict_whole() -> None:
    pair = Cores()
    pair_with_a_member(pair)
    pair.linked = False
    pair.put("P", ONE, 5, {"/k": b"alone"}, ack=[["t", "g", A, [[EVERY, 0, 2]]]])
    pair.put("P", ONE, 6, {"/other": b"alone"})
    pair.put("P", ONE, 7, {}, group=["t", "madealone", {"start": 0}])
    pair.run(3.0)
    pair.vote("B")
    pair.run(1.0)
    pair.linked = True
    pair.run(8.0)
    assert pair.b.active
    assert pair.p.state.topics.to_list() == pair.b.state.topics.to_list()
    assert pair.b.state.map.values == {"/other": b"alone"}, "sets go through, but not those with an acknowledgement"
    assert set(pair.b.state.topics.by_name["t"].groups) == {"g", "madealone"}
    group = pair.b.state.topics.groups.get("t", "g")
    assert group is not None and group.floor() == 0
    assert pair.outcomes()["/k"] == "conflict"
    pair.put("B", ONE, 5, {"/k": b"alone"}, ack=[["t", "g", A, [[EVERY, 0, 2]]]])
    pair.run(0.5)
    assert pair.answers(ONE, "B")[-1][:2] == (5, "parted")


@pytest.mark.parametrize("gave", ["P", "B", "both"])
def test_an_acknowledgement_for_messages_of_another_history_is_fenced(gave: str) -> None:
    """While both servers were active, each gave offset 3 to a message of its own."""
    pair = Cores()
    pair_with_a_member(pair)
    common = pair.p.state.number
    pair.linked = False
    pair.put("P", THREE, 1, {}, publish=[["t", 1, packb([None, [b"of P"]])]])
    pair.run(3.0)
    pair.vote("B")
    pair.run(1.0)
    pair.put("B", TWO, 1, {}, publish=[["t", 1, packb([None, [b"of B"]])]])
    pair.run(1.0)
    at = {name: [core.state.number, *core.state.whose(core.state.number)] for name, core in pair.cores.items()}
    at["both"] = [common, *pair.p.state.whose(common)]
    assert pair.p.active and pair.b.active
    upto = 3 if gave == "both" else 4
    told = ["t", "g", A, [[EVERY, 0, upto]], [at[gave]]]
    pair.put("B", ONE, 5, {"/k": b"done"}, ack=[told])
    pair.run(0.5)
    assert pair.answers(ONE, "B")[-1][1] == ("fenced" if gave == "P" else "ack")
    group = pair.b.state.topics.groups.get("t", "g")
    assert group is not None and group.floor() == (0 if gave == "P" else upto)
    journaled = [decode(op.body)[1] for turn in pair.turns["B"] for op in turn.journal if hasattr(op, "body")]
    acks = [each for items in journaled for *_, extras in items for each in (extras or {}).get("ack", ())]
    assert acks == ([] if gave == "P" else [told[:4]]), "a record has no position"


def test_a_position_in_a_forgotten_epoch_is_not_taken_for_another_history() -> None:
    talk = GroupTalk(replace(DEFAULT, history_epochs_max=1))
    talk.group("t", "g")
    talk.publish("t", [b"x"])
    one = talk.member()
    talk.turn(0.05)
    assert one.proof is not None
    number, *whose = one.proof
    state = talk.core.state
    assert not state.is_of_others(number, whose)
    state.history = {epoch + 7: entry for epoch, entry in state.history.items()}
    assert not state.is_of_others(number, whose), "its epoch is forgotten"
    assert state.is_of_others(number + (9 << 48), whose), "nobody here has issued it"
