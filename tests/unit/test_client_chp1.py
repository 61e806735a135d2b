"""The client's core with servers that speak RFC 12 only."""

from __future__ import annotations

import pytest

from chp.messages import hugz, kthxbai, kvpub
from chp_client.core.events import Ack, State
from chp_client.errors import Refused
from tests.unit.client_frames import ACTIVE, Talk, n


class Chp1Talk(Talk):
    """A talk with CHP/1 servers."""

    def hugz(self, number: int = 0, server: int = 0, **more: bytes) -> None:
        self.update(hugz(number, **more), server)

    def found(self, server: int = 0) -> None:
        """Let the client hear a HUGZ before and after its subscription."""
        self.hugz(server=server)
        self.now += 1.0
        self.hugz(server=server)

    def kvpub(self, key: str, number: int, value: bytes, server: int = 0, **more: bytes) -> None:
        self.update(kvpub(key, number, value, **more), server)

    def answer(self, number: int, *items: tuple[str, int, bytes], server: int = 0) -> None:
        for key, sequence, value in items:
            self.core.on_reply(server, kvpub(key, sequence, value), self.now)
        self.core.on_reply(server, kthxbai(number), self.now)
        self.take()


def joined(*items: tuple[str, int, bytes], number: int = 0, servers: int = 1) -> Chp1Talk:
    talk = Chp1Talk(servers=servers)
    for i in range(servers):
        talk.up(i)
    talk.found()
    talk.answer(number, *items)
    return talk


def test_a_server_that_sends_hugz_without_a_greeting_is_chp1() -> None:
    talk = Chp1Talk("/a/")
    talk.hugz()
    assert b"/a/" in talk.topics[0] and talk.chp1_asked == [], "the subscription may not be there yet"
    talk.now += 1.0
    talk.hugz()
    assert talk.chp1_asked == [(0, [b"ICANHAZ?", b"/a/"])]


def test_a_server_whose_hugz_says_chp2_is_not_taken_for_chp1() -> None:
    talk = Chp1Talk()
    talk.hugz(properties=b"chp=2\n")
    assert talk.topics[0] == Chp1Talk().topics[0] and talk.core.links[0].protocol == 0


def test_updates_that_came_during_a_snapshot_follow_it() -> None:
    talk = Chp1Talk()
    talk.found()
    talk.kvpub("/a", 3, b"old")
    talk.kvpub("/c", 5, b"after")
    talk.answer(4, ("/a", 4, b"new"), ("/b", 2, b"2"))
    assert talk.map == {"/a": b"new", "/b": b"2", "/c": b"after"}
    assert talk.core.state is State.SYNCED and talk.core.position == 5


def test_updates_are_applied_when_strictly_greater_and_an_empty_value_deletes() -> None:
    talk = joined(("/a", 1, b"1"), number=1)
    talk.kvpub("/b", 2, b"2", properties=b"ttl=5\n")
    talk.kvpub("/b", 2, b"again")
    talk.kvpub("/a", 3, b"")
    assert talk.map == {"/b": b"2"}
    assert talk.core.channels[0].replica.map.remaining_ms("/b", talk.now) == 5000


def test_an_empty_value_with_a_ttl_is_a_delete() -> None:
    talk = joined(("/a", 1, b"1"), number=1)
    talk.kvpub("/a", 2, b"", properties=b"ttl=1795196542190\n")
    assert talk.map == {}


def test_keys_deleted_while_away_are_gone_after_the_next_snapshot() -> None:
    talk = joined(("/a", 1, b"1"), ("/b", 2, b"2"), number=2)
    talk.wait(30)
    talk.answer(3, ("/a", 1, b"1"))
    assert talk.map == {"/a": b"1"}


def test_a_client_asks_two_chp1_servers_alternately_without_limit() -> None:
    talk = Chp1Talk(servers=2)
    talk.found()
    talk.found(server=1)
    talk.wait(600)
    asked = [i for i, _ in talk.chp1_asked]
    assert len(asked) > 500 and set(asked) == {0, 1} and asked[:4] == [0, 1, 0, 1]
    assert talk.core.state is State.CONNECTING


def test_a_client_becomes_stale_by_silence_and_joins_the_other_server() -> None:
    talk = joined(("/a", 1, b"1"), number=1, servers=2)
    talk.wait(3.0)
    assert talk.core.state is State.SYNCED
    talk.wait(2.0)
    assert talk.core.state is State.STALE and talk.chp1_asked[-1][0] == 1
    talk.hugz(1, server=1)
    talk.answer(2, ("/a", 2, b"2"), server=1)
    assert talk.map == {"/a": b"2"} and talk.core.state is State.SYNCED
    assert talk.core.active_address == "tcp://server1:5556"


def test_an_update_from_the_other_server_makes_the_client_ask_it() -> None:
    talk = joined(number=1, servers=2)
    talk.found(server=1)
    talk.now += 1.5
    talk.kvpub("/a", 2, b"1", server=1)
    assert talk.chp1_asked[-1] == (1, [b"ICANHAZ?", b""])


def test_a_silent_server_is_asked_in_chp2_only_after_the_hugz_interval() -> None:
    """Three frames stop a classic server, but a CHP/2 server whose greeting was lost must be asked at some time."""
    talk = Chp1Talk(servers=2)
    for server in (0, 1):
        talk.up(server)
    talk.wait(2.0)
    assert talk.requests == []
    talk.wait(1.0)
    assert {server for server, _, _ in talk.requests} == {0, 1}
    talk.down(0)
    talk.up(0)
    talk.requests.clear()
    talk.wait(1.0)
    assert {server for server, _, _ in talk.requests} == {1}


def test_a_lower_number_in_hugz_means_a_restarted_history() -> None:
    talk = joined(("/a", 9, b"1"), ("/b", 1, b"another"), number=9)
    talk.core.subscriptions.watch(True)
    talk.hugz(1)
    assert talk.stats["histories_restarted"] == 1
    talk.answer(1, ("/b", 1, b"1"))
    assert talk.map == {"/b": b"1"}
    assert talk.changes[-1].keys == ["/b", "/a"] and talk.changes[-1].values == [b"1", None]
    talk.kvpub("/c", 2, b"1")
    assert talk.map == {"/b": b"1", "/c": b"1"}


def test_a_higher_number_in_hugz_is_a_hole() -> None:
    talk = joined(("/a", 1, b"1"), number=1)
    talk.hugz(3)
    assert talk.stats["holes"] == 1
    talk.answer(3, ("/a", 3, b"3"))
    assert talk.map == {"/a": b"3"}


def test_hugz_numbers_that_never_match_cause_only_one_hole() -> None:
    talk = joined(("/a", 1, b"1"), number=1)
    for i in range(20):
        talk.hugz(100 + i)
        if len(talk.chp1_asked) > 1:
            talk.answer(1, ("/a", 1, b"1"))
    assert talk.stats["holes"] == 1


class TestSets:
    def test_a_set_goes_to_both_collectors_as_kvsets_with_uuids(self) -> None:
        talk = joined(servers=2)
        talk.found(server=1)
        talk.sent_chp1.clear()
        talk.set({"/a": b"1", "/b": None}, t=[[0], [1500]])
        first, second, *others = [frames for i, frames in talk.sent_chp1 if i == 0]
        assert others == [] and first[0] == b"/a" and first[1] == b"\0" * 8 and first[3:] == [b"ttl=1.5\n", b"1"]
        assert second[0] == b"/b" and second[3:] == [b"", b""]
        assert len(first[2]) == 16 and first[2] != second[2]
        assert [f for i, f in talk.sent_chp1 if i == 1] == [first, second]

    def test_the_echo_of_a_chp1_set_is_its_acknowledgement(self) -> None:
        talk = joined()
        talk.set({"/a": b"1", "/b": b"2"})
        uuids = [frames[2] for _, frames in talk.sent_chp1]
        talk.kvpub("/a", 1, b"1", uuid=uuids[0])
        assert talk.settled == []
        talk.kvpub("/b", 2, b"2", uuid=uuids[1])
        assert talk.settled == [(1, Ack(0, 2, "applied"))] and talk.map == {"/a": b"1", "/b": b"2"}
        talk.kvpub("/a", 3, b"theirs")
        assert talk.map["/a"] == b"theirs"

    def test_an_unconfirmed_own_set_stays_shown_over_other_updates(self) -> None:
        talk = joined()
        talk.set({"/a": b"mine"})
        talk.kvpub("/a", 1, b"theirs")
        assert talk.map == {"/a": b"mine"}

    def test_sets_made_before_the_link_is_up_arrive(self) -> None:
        talk = Chp1Talk()
        talk.set({"/a": b"1"})
        talk.found()
        talk.answer(0)
        assert talk.sent_chp1 == []
        talk.up()
        assert len(talk.sent_chp1) == 1

    def test_a_set_without_an_echo_is_sent_again_with_its_uuid(self) -> None:
        talk = joined(servers=2)
        talk.found(server=1)
        talk.set({"/a": b"1", "/b": b"2"})
        before = [f for i, f in talk.sent_chp1 if i == 0]
        talk.kvpub("/a", 1, b"1", uuid=before[0][2])
        talk.sent_chp1.clear()
        talk.wait(4.5)
        talk.answer(1, server=1)
        assert (1, before[1]) in talk.sent_chp1 and (1, before[0]) not in talk.sent_chp1

    @pytest.mark.parametrize("extras", [{"c": [[0], [1]]}, {"l": b"L" * 16}])
    def test_a_set_that_chp1_cannot_express_is_refused(self, extras: dict[str, object]) -> None:
        talk = joined()
        talk.set({"/a": b"1"}, shown="c" not in extras, **extras)
        error = talk.settled[0][1]
        assert isinstance(error, Refused) and "CHP/1" in str(error)

    def test_a_write_only_client_listens_for_its_echoes(self) -> None:
        talk = Chp1Talk(write_only=True)
        talk.up()
        talk.found()
        assert b"" in talk.topics[0] and talk.core.state is State.SYNCED
        talk.set({"/a": b"1"})
        talk.kvpub("/a", 1, b"1", uuid=talk.sent_chp1[-1][1][2])
        assert len(talk.settled) == 1 and talk.map == {}


def test_a_server_that_is_upgraded_is_followed_as_chp2() -> None:
    talk = joined(("/a", 1, b"1"), number=1)
    talk.set({"/b": b"2"})
    talk.greet(ACTIVE, n(5))
    assert talk.requests[-1][2]["from"] == 0 and b"" not in talk.topics[0]
    assert [no for _, no, _, _ in talk.sent] == [1], "what had no echo is sent as CHP/2"
    talk.snapshot(n(5), {"/a": (b"1", n(1))})
    assert talk.map == {"/a": b"1", "/b": b"2"} and talk.core.state is State.SYNCED


def test_the_uuids_of_sets_cannot_be_guessed_from_earlier_ones() -> None:
    """A stranger's KVSET with that uuid would come first, and ours be the duplicate."""
    talk = joined()
    talk.set({f"/{i}": b"v" for i in range(4)})
    uuids = [frames[2] for _, frames in talk.sent_chp1]
    assert len({uuid[:8] for uuid in uuids}) == len({uuid[8:] for uuid in uuids}) == 4
    assert not any(talk.core.outbox.session[:8] in uuid or talk.core.outbox.public[:8] in uuid for uuid in uuids)
