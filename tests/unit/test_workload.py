"""covers: workload.py, pace.py: slots of a group move by work, to the member that is free first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chp.limits import DEFAULT
from chp.topics import ALL_SLOTS, slots_of, unpack_slots
from chp_server.core.questions.group_coordinator import GroupCoordinator
from chp_server.core.questions.workload import Workload, moves, shares, weights_of
from chp_server.core.state.groups import Group
from chp_server.core.state.pace import Pace

from .group_talk import GroupTalk, Hand

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
STEP_S = 0.1
TTL_S = 4.0

# Small pages, so that few messages show what becomes of many.
FIRST = 32
LIMITS = replace(DEFAULT, first_page_messages=FIRST)


# -- the decision


def load(member: bytes, rate: float | None, waits: dict[int, float], *, hand: float = 0.0, slots: int = 9) -> Workload:
    return Workload(member, rate, hand + sum(waits.values()), slots, {1 << slot: n for slot, n in waits.items()})


def moved(*members: Workload) -> list[tuple[int, bytes, bytes]]:
    return [(slot.bit_length() - 1, giver, taker) for slot, giver, taker in moves(list(members))]


def test_slots_of_a_slow_member_go_to_the_one_that_is_free_first() -> None:
    slow = load(C, 1.0, {0: 3.0, 1: 4.0, 2: 5.0})
    assert moved(load(A, 10.0, {9: 30.0}), load(B, 10.0, {}), slow)[:2] == [(0, C, B), (1, C, B)]
    assert moved(load(A, 10.0, {9: 1.0}), load(B, 10.0, {}), load(C, 1.0, {0: 1.0, 1: 1.0})) == [], "it is done soon"
    assert moved(load(C, 1.0, {0: 30.0, 1: 30.0})) == [], "there is no other member"


def test_slots_stay_unless_others_take_less_than_half_as_long() -> None:
    assert moved(load(A, 10.0, {9: 60.0}), load(C, 10.0, {0: 50.0, 1: 50.0})) == []
    assert moved(load(A, 10.0, {9: 5.0}), load(C, 10.0, {0: 30.0, 1: 70.0})) == [(0, C, A)]


def test_a_slot_with_one_hot_key_stays_and_the_others_go() -> None:
    hot = load(A, 10.0, {0: 900.0, 1: 1.0, 2: 2.0})
    assert moved(hot, load(B, 12.0, {})) == [(1, A, B), (2, A, B)]
    assert moved(load(C, 1.0, {0: 900.0}), load(B, 10.0, {})) == [(0, C, B)], "a member that is much faster may have it"


def test_slots_move_only_between_members_that_may_take_and_give() -> None:
    slow = load(C, 1.0, {0: 30.0, 1: 31.0, 2: 32.0})
    assert moved(load(A, None, {}), slow) == [(0, C, A)], "a new member counts as fast as the one that gives"
    assert moved(load(A, None, {}), load(C, None, {0: 30.0})) == [], "nothing is known"
    gone = load(B, 10.0, {})
    gone.takes = False
    assert moved(gone, load(C, 1.0, {0: 30.0, 1: 30.0})) == []
    assert moved(load(A, 10.0, {}), load(C, 1.0, {0: 30.0}, slots=1)) == [], "its last slot"
    assert moved(load(A, 10.0, {}), load(C, 1.0, {}, hand=90.0)) == [], "what it has in hand stays"
    silent = load(C, 0.0, {0: 1.0, 1: 2.0}, hand=1.0)
    assert moved(load(A, 10.0, {}), silent) == [(0, C, A), (1, C, A)]


def test_shares_keep_their_proportion_when_members_come_and_go() -> None:
    assert shares({A: 0, B: 86, C: 85}, {}) == {A: 85, B: 86, C: 85}
    due = {A: 120, B: 126, C: 10}
    weights = weights_of(due)
    assert shares(due, weights) == due
    assert shares({A: 120, C: 10}, weights) == {A: 236, C: 20}
    four = shares({**due, b"d": 0}, weights)
    assert four[b"d"] == 64 and four[C] in (7, 8) and sum(four.values()) == 256
    assert weights_of({A: 85, B: 86, C: 85}) == {}
    many = {b"%d" % i: 1 for i in range(256)}
    assert set(shares(many, {b"1": 1e-9, b"2": 1e3}).values()) == {1}, "each member has one"


# -- what a member does


def test_the_rate_of_a_member_counts_acknowledgements_while_work_is_there() -> None:
    pace = Pace(0.0)
    pace.give(0b11, 100, 40, 1.0)
    pace.look({0: 0b11}, 1.5)
    assert pace.rate is None
    pace.look({0: 0b11}, 3.0)
    assert (pace.rate, pace.hand) == (20.0, 40), "at most"
    pace.look({100: 0b1, 0: 0b10}, 5.0)
    assert (pace.rate, pace.hand) == (12.5, 20)
    pace.look({100: 0b11}, 95.0)
    assert (pace.rate, pace.hand) == (12.5, 0), "it was idle, and is not slower for that"
    pace.give(0b11, 200, 60, 100.0)
    pace.look({200: 0b11}, 101.0)
    assert pace.rate == 36.25
    pace.give(0b11, 300, 60, 102.0)
    pace.look({200: 0b1}, 103.0)
    assert (pace.rate, pace.hand) == (30.0, 30), "what another member has now was not acknowledged"


def test_the_page_size_follows_the_speed_of_a_member() -> None:
    pace = Pace(0.0)
    assert (pace.size, pace.is_full, pace.grants) == (FIRST, False, False)
    pace.give(1, 8, FIRST, 0.0)
    pace.give(1, 16, FIRST, 0.0)
    assert pace.is_full
    pace.take(1, 0.1)
    assert pace.grants
    pace.take(1, 0.9)
    assert pace.size == 2 * FIRST, "it waits for the next, so the time may be that of the server"
    pace.give(1, 90, 60, 0.9)
    pace.give(1, 150, 60, 0.9)
    pace.take(1, 1.0)
    assert pace.size == 4 * FIRST, "it took little time"
    pace.give(1, 200, 60, 1.0)
    pace.take(1, 3.0)
    assert pace.size == 2 * FIRST, "a page took two seconds"
    pace.take(1, 3.1)
    assert pace.size == 4 * FIRST, "and the next did not"
    pace.give(1, 201, 1, 9.0)
    pace.take(1, 9.1)
    pace.give(1, 202, 1, 9.4)
    pace.take(1, 9.5)
    assert pace.size == 4 * FIRST, "a short page tells nothing"
    pace.begin(0)
    assert (pace.hand, pace.grants, pace.is_full) == (0, False, False)


# -- a group


class Worker:
    """A member that handles so many messages in a second of the talk's clock, page after page."""

    def __init__(self, talk: GroupTalk, rate: float, ttl_s: float = TTL_S) -> None:
        self.talk, self.rate = talk, rate
        self.hand = talk.member(ttl_ms=round(ttl_s * 1000))
        # The messages of the page under way that are not handled.
        self._left: float | None = None
        self.offsets: list[int] = []
        self.keys: list[str] = []
        self.idle_s = 0.0

    @property
    def slots(self) -> int:
        return slots_of_member(self.talk, self.hand)

    def work(self, seconds: float) -> None:
        may = self.rate * seconds
        while may > 0 and (self._left is not None or self.hand.chunks):
            moves, messages = self.hand.chunks[0]
            if self._left is None:
                self._left = len(messages)
                self.hand.grant()
            done = min(may, self._left)
            self._left, may = self._left - done, may - done
            if self._left <= 1e-9:
                self._left = None
                self.hand.chunks.pop(0)
                # A member that lives is never fenced: no slot moves with a message in hand.
                assert self.hand.send(ack=[["t", "g", self.hand.lease, moves]]) == ""
                self.offsets += [offset for offset, *_ in messages]
                self.keys += [key for _, key, _ in messages]
        self.idle_s += may / self.rate


def slots_of_member(talk: GroupTalk, hand: Hand) -> int:
    return group_of(talk).slots_of(hand.lease)


def group_of(talk: GroupTalk) -> Group:
    group = talk.core.state.topics.groups.get("t", "g")
    assert group is not None
    return group


def coordinator_of(talk: GroupTalk) -> GroupCoordinator:
    return talk.core.requests.readers.coordinator


def publish(talk: GroupTalk, keys: list[str]) -> None:
    for at in range(0, len(keys), 500):
        some = keys[at : at + 500]
        talk.publish("t", [b"x" * 100] * len(some), some)
        talk.turn(0.0)


def go_on(workers: list[Worker], until: Callable[[], bool], each: Callable[[], None] = lambda: None) -> float:
    """Let members work until something is so, and return the seconds."""
    talk, took_s = workers[0].talk, 0.0
    while not until():
        assert took_s < 600, "it never came"
        talk.turn(STEP_S)
        took_s += STEP_S
        if round(took_s / STEP_S) % 10 == 0:
            talk.refresh(*(worker.hand for worker in workers))
        for worker in workers:
            worker.work(STEP_S)
        each()
    return took_s


def drained(talk: GroupTalk, messages: int) -> Callable[[], bool]:
    return lambda: group_of(talk).floor() >= messages


@pytest.mark.parametrize("rates", [(1000.0, 1000.0, 100.0), (100.0, 100.0, 10.0)])
def test_three_members_of_unequal_speed_all_work_at_full_speed(rates: tuple[float, ...]) -> None:
    talk = GroupTalk(LIMITS)
    workers = [Worker(talk, rate) for rate in rates]
    n = round(30 * sum(rates))
    publish(talk, [f"k{i % 997}" for i in range(n)])
    took_s = go_on(workers, lambda: sum(len(worker.offsets) for worker in workers) == n)
    assert n / took_s > 0.85 * sum(rates)
    assert sorted(offset for worker in workers for offset in worker.offsets) == list(range(n)), "nothing comes twice"
    assert workers[2].slots.bit_count() < 40
    assert talk.core.committer.counts["slots_moved_by_work"] > 40


def test_one_hot_key_stays_with_one_member_and_starves_no_other_key() -> None:
    talk = GroupTalk(LIMITS)
    workers = [Worker(talk, 100.0) for _ in range(3)]
    slot = 1 << slots_of(["hot"], 0, 1)[0]
    other = [key for key in (f"k{i}" for i in range(600)) if 1 << slots_of([key], 0, 1)[0] != slot]
    publish(talk, ["hot" if i % 10 else other[i // 10] for i in range(5000)])
    (owner,) = [worker for worker in workers if worker.slots & slot]
    holders = set[int]()
    others = list[float]()

    def look() -> None:
        holders.update(i for i, worker in enumerate(workers) if worker.slots & slot)
        others.append(sum(key != "hot" for worker in workers for key in worker.keys))

    took_s = go_on(workers, drained(talk, 5000), look)
    assert holders == {workers.index(owner)}
    assert others[round(0.3 * took_s / STEP_S)] == 500, "the other keys are done while the hot one goes on"
    assert [offset for offset, key in zip(owner.offsets, owner.keys, strict=True) if key == "hot"] == [
        i for i in range(5000) if i % 10
    ]


def test_no_slot_moves_twice_within_the_ttl() -> None:
    talk = GroupTalk(LIMITS)
    # Who is slow changes each second.
    workers = [Worker(talk, 50.0, 6.0) for _ in range(3)]
    publish(talk, [f"k{i % 997}" for i in range(5000)])
    seen: dict[int, tuple[int, float]] = {}
    moved_at: dict[int, float] = {}
    twice = list[float]()

    def look() -> None:
        for i, worker in enumerate(workers):
            worker.rate = 5.0 if int(talk.now / 4) % 3 == i else 50.0
            for slot in range(256):
                if worker.slots >> slot & 1 and seen.get(slot, (i, 0.0))[0] != i:
                    twice.append(talk.now - moved_at.get(slot, -100.0))
                    moved_at[slot] = talk.now
                if worker.slots >> slot & 1:
                    seen[slot] = i, talk.now

    for worker in workers:
        worker.work(0.0)
    go_on(workers, drained(talk, 5000), look)
    assert len(twice) > 20, "slots moved"
    assert min(twice) >= 6.0 - 2 * STEP_S


def test_messages_in_hand_stay_with_their_member() -> None:
    talk = GroupTalk(LIMITS)
    slow, fast = Worker(talk, 2.0), Worker(talk, 1000.0)
    publish(talk, [f"k{i % 997}" for i in range(500)])
    talk.turn(STEP_S)
    mine = {offset for _, messages in slow.hand.chunks for offset, *_ in messages}
    assert mine
    go_on([slow, fast], lambda: bool(slow.offsets))
    assert slow.slots.bit_count() == 128 and talk.core.committer.counts["slots_moved_by_work"] > 100, "they are chosen"
    go_on([slow, fast], drained(talk, 500))
    assert mine <= set(slow.offsets)
    assert sorted(slow.offsets + fast.offsets) == list(range(500))
    assert len(slow.offsets) < 150


def test_a_successor_keeps_the_shares_and_moves_nothing_before_the_ttl_is_over() -> None:
    talk = GroupTalk(LIMITS)
    workers = [Worker(talk, rate) for rate in (100.0, 100.0, 10.0)]
    publish(talk, [f"k{i % 997}" for i in range(4000)])
    go_on(workers, lambda: workers[2].slots.bit_count() < 40)
    for _ in range(2):
        # A move is under way as the server becomes active.
        before, came = [worker.slots for worker in workers], talk.now
        coordinator_of(talk).clear(1)
        coordinator_of(talk).begin(talk.now)
        for worker in workers:
            worker.hand.ask(have=worker.hand.have, proof=worker.hand.proof)
        go_on(workers, lambda came=came: talk.now > came + TTL_S - 2 * STEP_S)  # type: ignore[misc]
        assert sum((old & worker.slots).bit_count() for old, worker in zip(before, workers, strict=True)) > 250
        go_on(workers, lambda came=came: talk.now > came + TTL_S + 2.5)  # type: ignore[misc]
    go_on(workers, drained(talk, 4000))
    assert sorted(offset for worker in workers for offset in worker.offsets) == list(range(4000))


def keys_of(talk: GroupTalk, hand: Hand, n: int) -> list[str]:
    """Return keys whose slots a member has."""
    mine = slots_of_member(talk, hand)
    return [key for key in (f"k{i}" for i in range(10 * n)) if mine >> slots_of([key], 0, 1)[0] & 1][:n]


@pytest.mark.parametrize("held", [True, False])
def test_slots_that_wait_for_a_message_that_failed_do_not_move(held: bool) -> None:
    talk = GroupTalk(LIMITS)
    talk.group("t", "g", max_deliveries=100, retry_after_ms=3_600_000)
    one, two = talk.member(), talk.member()
    first, *others = keys_of(talk, one, 300)
    publish(talk, [first, *keys_of(talk, two, 1)])
    talk.turn(0.1)
    assert two.ack() == ""
    for _ in range(9):
        talk.turn(1.0)
    assert one.ack() == "", "it is slower than the other"
    publish(talk, [first] * 300 if held else [first, *others])
    talk.turn(1.0)
    assert one.give_back(2, "not yet") == ""
    for _ in range(20):
        talk.turn(1.0)
    assert (talk.core.committer.counts["slots_moved_by_work"] == 0) is held


@pytest.mark.parametrize("ttl_s", [12.0, 1000.0])
def test_a_member_whose_lease_was_not_refreshed_gets_no_slots_by_work(ttl_s: float) -> None:
    talk = GroupTalk(LIMITS)
    slow, other = Worker(talk, 1.0, 1000.0), Worker(talk, 100.0, ttl_s)
    publish(talk, keys_of(talk, slow.hand, 200))
    talk.turn(7.5)
    for _ in range(3):
        talk.turn(1.0)
    assert other.hand.lease in group_of(talk).members
    assert (talk.core.committer.counts["slots_moved_by_work"] > 0) is (ttl_s > 12.0)


def test_a_lone_or_single_page_member_gets_pages_of_any_length() -> None:
    talk = GroupTalk(replace(LIMITS, messages_page_bytes=1000))
    publish(talk, [f"k{i % 997}" for i in range(500)])
    one = talk.member()
    talk.turn(0.1)
    assert len(one.chunks[0][1]) == 500
    two = talk.member(ask=False)
    two.ask(credit=1)
    while one.chunks:
        one.ack()
    publish(talk, [f"k{i % 997}" for i in range(500)])
    talk.turn(0.1)
    talk.turn(0.1)
    assert len(two.got) > 200
    assert len(one.chunks[-1][1]) < 100
    # Its page is a mask of the row, as ever.
    assert sum(unpack_slots(slots) for slots, *_ in two.chunks[0][0]) & ALL_SLOTS
