"""Tests of a client that knows replicas: which server it reads at, how it moves, and that it never goes back.

covers: choice.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from chp.errors import BadFrame
from chp.headers import replica_facts
from chp.versions import VERSION
from chp_client.core.choice import CHOOSE_S, HOME_S, JOIN_S, LOOK_S, PATIENCE_S
from chp_client.core.events import State
from tests.unit.client_frames import ACTIVE, PASSIVE, WHOSE, Talk, message, n, own_topic, segment, topic

PULSE = topic("/.chp/pulse/")
EVERYTHING = {own_topic(), topic("")}
NO_LOADS: Mapping[int, dict[str, int]] = {}


def load(readers: int = 0, cpu: int = 0, *, age: int = 0, hops: int = 1) -> dict[str, int]:
    return {"hops": hops, "age": age, "readers": readers, "cpu": cpu}


def chances(*given: float) -> Callable[[], float]:
    """Return a source of chance that gives these numbers, and the last one for ever."""
    left = list(given)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


class Servers(Talk):
    """A client of servers 0 and 1, which are a pair, and of replicas behind them."""

    def __init__(self, servers: int = 4, replicas: int = 2, **options: Any) -> None:
        self.replicas = range(servers - replicas, servers)
        super().__init__(servers=servers, **options)

    def look(
        self,
        told: int = n(0),
        *,
        passive: tuple[int, ...] = (),
        dead: tuple[int, ...] = (),
        loads: Mapping[int, dict[str, int]] = NO_LOADS,
    ) -> None:
        """Let all servers answer a look. Server 1 is passive if it is of the pair."""
        for i in range(len(self.topics)):
            if i not in dead:
                state = PASSIVE if i in (*passive, 1) and not (i == 1 and 1 in self.replicas) else ACTIVE
                replica = loads.get(i, load()) if i in self.replicas else None
                self.greet(state, told, i, bytes([i]) * 16, replica)

    def readable(self) -> list[int]:
        """Return the servers at which the client reads."""
        return [i for i, topics in enumerate(self.topics) if topic("") in topics]

    def reading(self, told: int = n(5), *, loads: Mapping[int, dict[str, int]] = NO_LOADS) -> Servers:
        """Let the client join one of the servers, and complete its copy there."""
        self.look(told, loads=loads)
        (at,) = self.readable()
        self.greet(ACTIVE, told, at, bytes([at]) * 16, loads.get(at, load()) if at in self.replicas else None)
        self.up(at)
        self.snapshot(told, {"/a": (b"1", told)}, server=at)
        assert self.core.state is State.SYNCED and self.core.active is self.core.links[at]
        return self

    def beat(self, at: int, told: int = n(5), **more: Any) -> None:
        self.heartbeat(told, server=at, replica=more.pop("load", load()), **more)

    def resumed(self, told: int, at: int, *records: Any) -> None:
        """Answer the last request with a resume."""
        request = self.last_id()
        if records:
            self.reply(told, [4, request, 0, b"S" * 16], *records, server=at)
        have = self.core.channels[0].replica.map.fingerprint()
        self.reply(told, [5, request, told, *have, None, True, 0, 0, WHOSE], server=at)


# -- the choice


def test_a_client_of_four_servers_looks_at_all_and_joins_one_replica() -> None:
    talk = Servers()
    assert talk.topics == [{PULSE}] * 4, "a look costs a greeting of each server"
    talk.look(loads={2: load(7), 3: load(6)})
    assert talk.topics == [set(), set(), set(), EVERYTHING]
    talk.greet(server=3, uuid=b"\3" * 16, replica=load(6))
    assert [(i, r["from"]) for i, _, r in talk.requests] == [(3, 0)]
    talk.snapshot(n(5), {"/a": (b"1", n(5))})
    assert talk.map == {"/a": b"1"} and talk.core.state is State.SYNCED
    talk.up(0)
    talk.up(3)
    talk.set({"/b": b"2"})
    assert [i for i, *_ in talk.sent] == [3], "the replica sends it to the pair"


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (load(10, 0), load(9, 700), 3),
        (load(9, 0), load(9, 1), 2),
        (load(1, 900), load(500, 10), 3),
        (load(9, 5), load(9, 5), 3),
    ],
)
def test_the_replica_with_the_lower_load_wins(first: dict[str, int], second: dict[str, int], chosen: int) -> None:
    talk = Servers(chance=lambda: 0.9)
    talk.look(loads={2: first, 3: second})
    assert talk.readable() == [chosen]


def test_a_client_compares_two_random_replicas_of_many() -> None:
    talk = Servers(servers=6, replicas=6, chance=chances(0.99, 0.0, 0.5))
    talk.look(loads={i: load(10 - i) if i else load(9) for i in range(6)})
    assert talk.readable() == [5], "of the last and the first, the last has fewer readers"


def test_a_client_waits_only_a_moment_for_silent_servers() -> None:
    talk = Servers()
    talk.greet(server=0, told=n(5))
    talk.greet(server=2, told=n(5), replica=load())
    assert talk.readable() == []
    talk.wait(CHOOSE_S)
    assert talk.readable() == [2]


def test_a_client_given_two_replicas_reads_at_the_less_loaded_one() -> None:
    talk = Servers(servers=2, replicas=2, chance=lambda: 0.0)
    assert talk.topics == [EVERYTHING | {b"HUGZ"}] * 2, "as at a pair"
    talk.greet(server=0, told=n(5), replica=load(3))
    assert talk.requests == [], "the other one may have fewer readers"
    talk.greet(server=1, told=n(5), uuid=b"\1" * 16, replica=load(2))
    assert talk.topics == [set(), EVERYTHING] and talk.core.active_address == "tcp://server1:5556"


def test_a_client_that_all_replicas_refuse_asks_one_of_them_again() -> None:
    """A right that is granted later reaches the client, as it does at a pair."""
    talk = Servers(servers=2, replicas=2)
    for at in (0, 1):
        talk.update(message(topic("") + bytes(8), n(5), [7, 0, "access", "may not read"]), at)

    def tell(at: int, *topics: bytes) -> None:
        told = [0, VERSION, ACTIVE, n(5), 250, bytes([at]) * 16, f"server{at}", load()]
        for where in topics:
            talk.update(message(where, n(5), told), at)

    tell(0, own_topic(), PULSE)
    tell(1, own_topic(), PULSE)
    assert talk.core.active is not None and talk.core.denied(), "the caller learns why"
    at = talk.core.active.index
    for _ in range(40):
        talk.wait(0.25)
        tell(at, own_topic())
    assert talk.stats["subscribed_again"] and talk.core.active is talk.core.links[at]
    tell(at, topic(""))
    talk.snapshot(n(5), {"/a": (b"1", n(5))}, server=at)
    assert talk.map == {"/a": b"1"} and talk.core.state is State.SYNCED and not talk.core.denied()


def test_a_client_leaves_a_replica_that_refuses_for_another_replica() -> None:
    talk = Servers(servers=2, replicas=2)
    talk.update(message(topic("") + bytes(8), n(5), [7, 0, "access", "may not read"]), 0)
    told = [0, VERSION, ACTIVE, n(5), 250, bytes(16), "server0", load()]
    talk.update(message(own_topic(), n(5), told), 0)
    talk.greet(told=n(5), server=1, uuid=b"\1" * 16, replica=load(99))
    assert talk.core.active is talk.core.links[1]


def test_a_client_of_a_pair_subscribes_and_sends_to_both_servers() -> None:
    talk = Talk(servers=2).joined()
    talk.greet(PASSIVE, server=1)
    talk.up(1)
    talk.set({"/b": b"2"})
    assert talk.topics == [EVERYTHING] * 2 and [i for i, *_ in talk.sent] == [0, 1]


def test_three_servers_that_are_no_replicas_are_an_error() -> None:
    talk = Servers(servers=3, replicas=0)
    for i in range(3):
        talk.greet(server=i, told=n(5))
    talk.wait(5.0)
    assert talk.core.active is None and talk.requests == []
    assert "name the two of one pair, and its replicas" in talk.core.denied()[0][1]


def test_a_third_pair_server_that_appears_later_is_not_followed() -> None:
    talk = Servers(servers=3, replicas=0)
    talk.look(told=n(5), dead=(2,))
    talk.wait(LOOK_S)
    assert talk.core.active is talk.core.links[0]
    talk.wait(HOME_S * 2)
    assert PULSE in talk.topics[2]
    talk.greet(server=2, told=n(9, 2))
    talk.wait(LOOK_S)
    assert talk.core.active is not talk.core.links[2] and talk.core.denied() == []


# -- the end of a server


def test_a_client_leaves_a_dead_replica_and_resumes_at_another() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.down(3)
    assert PULSE in talk.topics[2] and talk.core.state is State.SYNCED
    talk.look(n(6), dead=(3,))
    assert talk.readable() == [2]
    talk.greet(server=2, told=n(6), replica=load())
    assert [(i, r["from"]) for i, _, r in talk.requests[-1:]] == [(2, n(5))]
    talk.resumed(n(6), 2, [[1, n(5), n(6), n(6), 0, [], False], segment({"/b": b"2"})])
    assert talk.map == {"/a": b"1", "/b": b"2"}
    assert talk.states == [State.SYNCED], "the resume took no time, so the copy was never old"
    assert talk.stats["resyncs_snapshot"] == 1 and talk.stats["failovers"] == 1


def test_unanswered_sets_at_a_silent_replica_go_to_the_next_replica() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.greet(server=3, told=n(5), uuid=b"\3" * 16, replica=load())
    talk.set({"/b": b"2"})
    talk.wait(1.1)
    assert talk.core.state is State.STALE and PULSE in talk.topics[2]
    talk.look(dead=(3,), told=n(5))
    talk.up(2)
    talk.greet(server=2, told=n(5), replica=load())
    assert [(i, no) for i, no, *_ in talk.sent] == [(3, 1), (2, 1)]


def test_no_server_behind_the_copy_is_followed() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.down(3)
    talk.look(n(4), dead=(3,))
    talk.wait(9.0)
    assert talk.readable() == [3], "all are behind"
    talk.look(n(5), dead=(3,))
    assert talk.readable() == [2]


def test_no_server_of_an_older_epoch_is_followed() -> None:
    talk = Servers().reading(told=n(5, 2), loads={2: load(1)})
    talk.down(3)
    talk.look(n(900, 1), dead=(3,))
    talk.wait(CHOOSE_S + LOOK_S)
    assert talk.readable() == [3]


def test_an_answer_that_is_behind_the_copy_is_not_taken() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.down(3)
    talk.look(dead=(3,), told=n(5))
    talk.greet(server=2, told=n(5), replica=load())
    talk.snapshot(n(4), {"/old": (b"0", n(4))}, server=2)
    assert talk.map == {"/a": b"1"} and talk.core.position == n(5) and talk.stats["answers_behind"] == 1
    talk.wait(1.0)
    talk.resumed(n(5), 2)
    assert talk.core.state is State.SYNCED


def test_a_client_resumes_at_a_restarted_replica_unless_it_is_behind() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.greet(server=3, told=n(6), uuid=b"x" * 16, replica=load())
    assert talk.requests[-1][0::2] == (3, talk.requests[-1][2]) and talk.requests[-1][2]["from"] == n(5)
    talk.resumed(n(6), 3)
    talk.greet(server=3, told=n(2), uuid=b"y" * 16, replica=load())
    assert talk.core.active is None and talk.map == {"/a": b"1"}


def test_a_client_without_live_replicas_votes_and_follows_the_pair() -> None:
    talk = Servers()
    for i in range(4):
        talk.up(i)
    talk.look(dead=(0, 2, 3))
    talk.wait(LOOK_S + 1.0)
    assert {i for i, _, r in talk.requests if r["credit"] == 1} >= {1}, "votes"
    talk.greet(server=1, told=n(5, 2))
    talk.wait(CHOOSE_S)
    assert talk.core.active is talk.core.links[1] and talk.readable() == [1]


def test_a_client_waits_without_a_vote_while_replicas_hear_no_active() -> None:
    talk = Servers().reading(loads={2: load(1)})
    for i in range(4):
        talk.up(i)
    before = len(talk.requests)
    talk.greet(PASSIVE, n(5), 3, b"\3" * 16, load())
    assert talk.core.state is State.STALE
    talk.look(n(5), passive=(2, 3))
    talk.wait(1.5)
    assert talk.requests[before:] == [] and talk.core.active is None, "the pair is left alone"
    talk.greet(ACTIVE, n(6, 2), 3, b"\3" * 16, load())
    assert talk.core.active is talk.core.links[3], "it was read at before, so a resume there costs least"
    assert talk.requests[-1][2]["from"] == n(5)


def test_a_client_leaves_replicas_that_hear_no_active_for_long() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.greet(PASSIVE, n(5), 3, b"\3" * 16, load())
    end = talk.now + PATIENCE_S + 2.0
    while talk.now < end and talk.core.active is None:
        talk.look(n(5), passive=(2, 3))
        talk.wait(0.25)
    assert talk.core.active is talk.core.links[0] and talk.readable()[0] == 0
    assert talk.now > end - 2.5


# -- moves


def asked(talk: Servers, at: int, readers: int, of_them: int) -> None:
    talk.update(message(own_topic(), n(5), [13, readers, of_them]), at)


def test_a_reader_moves_to_another_replica_without_becoming_stale() -> None:
    talk = Servers().reading(loads={2: load(9)})
    asked(talk, 3, 600, 300)
    talk.look(n(5), loads={2: load(0)})
    assert talk.readable() == [2, 3], "it hears both until the channels of the new one are live"
    talk.batch(n(5), n(6), {"/b": b"2"}, server=3)
    talk.greet(server=2, told=n(6), replica=load())
    assert talk.readable() == [2] and talk.requests[-1][0] == 2 and talk.requests[-1][2]["from"] == n(6)
    talk.batch(n(6), n(7), {"/c": b"3"}, server=2)
    talk.resumed(n(6), 2)
    assert talk.map == {"/a": b"1", "/b": b"2", "/c": b"3"} and talk.states == [State.SYNCED]
    assert talk.stats["moves"] == 1 and "failovers" not in talk.stats and talk.stats["resyncs_snapshot"] == 1


def test_a_slow_resume_after_a_move_makes_the_client_stale() -> None:
    talk = Servers().reading(loads={2: load(9)})
    asked(talk, 3, 600, 300)
    talk.look(n(5), loads={2: load(0)})
    talk.greet(server=2, told=n(6), replica=load())
    for _ in range(3):
        talk.wait(0.3)
        talk.beat(2, n(6), channel_last=n(5))
        assert talk.states == [State.SYNCED]
    talk.wait(0.2)
    assert talk.states == [State.SYNCED, State.STALE]


def test_a_replica_that_does_not_greet_is_not_joined() -> None:
    talk = Servers().reading(loads={2: load(9)})
    asked(talk, 3, 600, 300)
    talk.look(n(5), loads={2: load(0)})
    end = talk.now + JOIN_S + 0.5
    while talk.now < end:
        talk.beat(3)
        talk.wait(0.25)
    assert talk.readable() == [3] and talk.states == [State.SYNCED]


@pytest.mark.parametrize(
    ("readers", "others", "goes"), [(600, (0, 0), 300), (300, (150, 150), 100), (200, (200, 200), 0)]
)
def test_as_many_readers_move_as_make_the_loads_even(readers: int, others: tuple[int, int], goes: int) -> None:
    moved = 0
    for i in range(100):
        talk = Servers(servers=5, replicas=3, chance=chances((i + 0.5) / 100)).reading()
        (at,) = talk.readable()
        asked(talk, at, readers, readers // 2)
        talk.look(n(5), loads={r: load(k) for r, k in zip(sorted({2, 3, 4} - {at}), others, strict=True)})
        moved += len(talk.readable()) > 1
    assert moved / 100 * (readers // 2) == pytest.approx(goes, abs=5)


def test_a_client_of_the_pair_moves_to_a_replica_that_has_come() -> None:
    talk = Servers()
    talk.look(told=n(5), dead=(2, 3))
    talk.wait(LOOK_S)
    assert talk.readable()[0] == 0
    talk.greet(told=n(5))
    talk.snapshot(n(5), {"/a": (b"1", n(5))}, server=0)
    end = talk.now + HOME_S * 1.6
    while talk.now < end and PULSE not in talk.topics[2]:
        talk.heartbeat(n(5), server=0)
        talk.wait(0.2)
    talk.look(n(5), dead=(0, 3))
    talk.wait(CHOOSE_S)
    assert talk.readable() == [0, 1, 2], "the passive of a pair is heard too"
    talk.greet(server=2, told=n(5), replica=load())
    talk.resumed(n(5), 2)
    assert talk.readable() == [2] and State.STALE not in talk.states


# -- how old the copy is


def test_the_age_that_a_replica_reports_makes_the_copy_older() -> None:
    talk = Servers().reading(loads={2: load(1)})
    talk.beat(3, load=load(age=400))
    assert talk.core.freshness.current_at == pytest.approx(talk.now - 0.4)
    talk.beat(3, load=load(age=1600))
    assert talk.core.state is State.STALE, "beyond a second, and a heartbeat for the hop"
    talk.beat(3, load=load(age=1200))
    assert talk.core.state is State.SYNCED


def test_lag_at_a_replica_comes_from_its_age_and_from_late_batches() -> None:
    talk = Servers(max_lag_s=1.0).reading(loads={2: load(1)})
    talk.beat(3, load=load(age=300), wall=10**12)
    assert talk.core.freshness.lag_s == pytest.approx(0.3) and talk.lags == [], "its own clock says nothing"
    talk.batch(n(5), n(6), {"/b": b"2"}, server=3, wall=1_000)
    talk.now += 0.2
    talk.batch(n(6), n(7), {"/b": b"3"}, server=3, wall=1_000)
    assert talk.core.freshness.lag_s == pytest.approx(0.2)
    talk.beat(3, n(7), load=load(age=1100))
    assert talk.lags == [pytest.approx(1.1)]


@pytest.mark.parametrize("bad", [{}, {"hops": 1}, {**load(), "cpu": -1}, {**load(), "readers": "9"}])
def test_malformed_replica_facts_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadFrame, match="four numbers"):
        replica_facts(bad)
