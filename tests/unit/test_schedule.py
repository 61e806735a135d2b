"""covers: state/schedule.py, expiry.py: messages that are published later, on conditions, again, and once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from chp.access import Rules
from chp.batch import Segment, decode_segment
from chp.errors import BadFrame, BadInput
from chp.keys import public_session
from chp.limits import DEFAULT
from chp.topics import pack_messages
from chp_server.core.asks import Vote
from chp_server.core.state.access_state import AccessState
from chp_server.core.state.schedule import Schedule, timed, with_user
from chp_server.core.state.staging import Staging
from chp_server.core.state.verdicts import Refusal
from chp_server.core.updates.authorizer import check_batch, unscheduled
from chp_server.testing import Cores

SESSION, OTHER = b"s" * 16, b"o" * 16
ME = public_session(SESSION)


def message(value: bytes = b"m", key: str | None = None) -> bytes:
    return pack_messages(None if key is None else [key], [value])


def entry(name: str, when: int, *, every: int = 0, unless: str | None = None, value: bytes = b"m") -> list[Any]:
    return ["t", name, when, every, unless, message(value)]


class Pair(Cores):
    """A pair whose one client sends batches that are numbered by themselves."""

    no = 0

    def say(self, items: dict[str, bytes | None] | None = None, /, **extras: Any) -> Any:
        """Send a batch, let it be replicated, and return the last answer."""
        self.no += 1
        self.put("PB", SESSION, self.no, items or {}, **extras)
        self.run(0.1)
        return self.answers(SESSION)[-1][1:]

    def messages(self, server: str = "P") -> int:
        """Return the number of messages that were published."""
        topic = self.cores[server].state.topics.by_name.get("t")
        return 0 if topic is None else topic.next

    def waiting(self, server: str = "P") -> list[str]:
        """Return the names of the messages that wait for their time."""
        return sorted(self.cores[server].state.topics.schedule.by_topic.get("t", ()))


@pytest.fixture
def pair() -> Pair:
    return Pair()


# -- what is published, and when


def test_a_message_is_published_only_when_its_delay_is_over(pair: Pair) -> None:
    assert pair.say(schedule=[entry("a", -2000)])[0] == "ack"
    pair.run(1.5)
    assert pair.messages() == 0 and pair.waiting() == pair.waiting("B") == ["a"]
    pair.run(0.6)
    assert pair.messages() == pair.messages("B") == 1 and pair.waiting() == pair.waiting("B") == []


def test_a_message_is_published_at_its_clock_time_or_immediately_if_past(pair: Pair) -> None:
    pair.say(schedule=[entry("at", round((pair.now + 3) * 1000)), entry("past", 1)])
    assert pair.messages() == 1 and pair.waiting() == ["at"]
    pair.run(3.0)
    assert pair.messages() == 2


def test_messages_are_published_in_the_order_of_their_times(pair: Pair) -> None:
    pair.say(schedule=[entry(f"{n}", -2000 - n % 7 * 100, value=b"%d" % n) for n in range(50)])
    seen = []
    for _ in range(60):
        before = set(pair.waiting())
        pair.run(0.05)
        seen += [int(n) % 7 for n in before - set(pair.waiting())]
    assert len(seen) == 50 and seen == sorted(seen)


def test_a_cancelled_message_is_never_published(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -1000), entry("b", -1000)])
    assert pair.say(cancel=[["t", "a"]])[0] == "ack"
    pair.run(2.0)
    assert pair.messages() == 1
    assert pair.say(cancel=[["t", "b"]])[0] == "name", "it was published"


def test_a_transaction_cancels_and_schedules_messages_or_changes_nothing(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -5000)])
    assert pair.say({"/k": b"1"}, cancel=[["t", "none"]], schedule=[entry("b", -5000)])[0] == "name"
    assert pair.waiting() == ["a"] and "/k" not in pair.p.state.map.values
    assert pair.say({"/k": b"1"}, cancel=[["t", "a"]], schedule=[entry("b", -5000)])[0] == "ack"
    assert pair.waiting() == ["b"] and pair.p.state.map.values["/k"] == b"1"


def test_a_transaction_moves_a_message_under_its_name(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -1000, unless="/old")])
    moved = entry("a", -4000, unless="/new", value=b"moved")
    assert pair.say({"/new": b"1"}, cancel=[["t", "a"]], schedule=[moved])[0] == "ack"
    pair.run(2.0)
    assert pair.waiting() == pair.waiting("B") == ["a"] and pair.messages() == 0
    assert list(pair.p.state.topics.schedule.unless) == ["/new"]
    pair.run(2.5)
    assert pair.waiting() == pair.waiting("B") == [] and pair.messages() == pair.messages("B") == 1
    assert pair.say(cancel=[["t", "a"]], schedule=[moved])[0] == "name", "it was published, so it is not moved"


@pytest.mark.parametrize("change", [{"/order": b"paid"}, {"/order": None}])
def test_a_change_of_the_unless_key_drops_the_message(pair: Pair, change: dict[str, bytes | None]) -> None:
    pair.say({"/order": b"new"}, schedule=[entry("remind", -2000, unless="/order"), entry("other", -2000, unless="/x")])
    pair.say({"/elsewhere": b"1"})
    assert pair.waiting() == ["other", "remind"], "its own set is no change"
    pair.say(change)
    assert pair.waiting() == pair.waiting("B") == ["other"]
    pair.run(2.5)
    assert pair.messages() == 1


def test_a_set_and_a_delete_of_the_unless_key_drop_the_message(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -2000, unless="/absent")])
    pair.say({"/absent": b"1"})
    pair.say({"/absent": None})
    assert pair.waiting() == []


def test_the_expiry_of_the_unless_key_drops_the_message(pair: Pair) -> None:
    pair.say({"/short": b"1"}, t=500, schedule=[entry("a", -2000, unless="/short")])
    pair.run(1.0)
    assert pair.waiting() == []


def test_a_repeated_message_comes_once_for_all_missed_times(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -1000, every=1000)])
    pair.run(3.5)
    assert pair.messages() == 3 and pair.waiting() == ["a"]
    # Both are down for ten seconds.
    pair.stopped = "PB"
    pair.run(10.0)
    pair.stopped = ""
    pair.run(4.0)
    assert 3 + 1 + 3 <= pair.messages() <= 3 + 1 + 4
    pair.say(cancel=[["t", "a"]])
    before = pair.messages()
    pair.run(3.0)
    assert pair.messages() == before


def test_a_full_topic_holds_back_only_its_own_messages(pair: Pair) -> None:
    pair.say(topic=["t", {"max_messages": 1}])
    pair.say(schedule=[entry("a", -200), entry("b", -200), ["u", "c", -300, 0, None, message()]])
    pair.run(1.0)
    assert pair.messages() == 1 and pair.p.state.topics.by_name["u"].next == 1
    assert len(pair.waiting()) == 1
    turns = len(pair.turns["P"])
    pair.run(1.0)
    assert len(pair.turns["P"]) - turns == 20 and pair.p.next_deadline() > pair.now, "it does not try in each turn"


def test_a_turn_publishes_a_bounded_number_of_due_messages() -> None:
    pair = Pair(replace(DEFAULT, fired_max=10))
    pair.say(schedule=[entry(f"{n}", -1000) for n in range(95)])
    pair.run(0.9)
    counts = []
    while pair.waiting():
        pair.run(0.05)
        counts.append(pair.messages())
    assert counts[-1] == 95
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) <= 10


def test_a_removed_topic_has_no_scheduled_messages(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -1000, unless="/k")])
    pair.say(topic=["t", None])
    pair.run(2.0)
    assert pair.messages() == 0 and not pair.p.state.topics.schedule.unless


# -- over a failover


def test_a_successor_publishes_the_remaining_messages_once(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -500), entry("b", -6000)])
    pair.run(1.0)
    assert pair.messages("B") == 1
    pair.stopped = "P"
    pair.run(2.0)
    pair.b.do(Vote())
    pair.run(6.0)
    assert pair.b.active and pair.messages("B") == 2 and pair.waiting("B") == []


def test_a_server_that_takes_over_a_whole_state_has_the_schedule(pair: Pair) -> None:
    pair.say(schedule=[entry(f"{n}", -60_000, unless="/k", value=b"x" * 2000) for n in range(1500)])
    ours, theirs = pair.p.state.topics.schedule, Schedule(DEFAULT)
    for body in ours.segments(5):
        theirs.apply(decode_segment(body).extras or {})
    assert theirs.measure() == ours.measure() and theirs.by_topic == ours.by_topic and theirs.unless == ours.unless
    theirs.check_all()


def test_a_message_published_on_both_sides_of_a_split_is_kept_once(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -3000), entry("later", -60_000)])
    pair.linked = False
    pair.run(1.5)
    pair.b.do(Vote())
    pair.run(3.0)
    assert pair.p.pair.active and pair.b.pair.active and pair.messages() == pair.messages("B") == 1
    pair.linked = True
    pair.run(5.0)
    assert not pair.p.pair.active and pair.messages() == pair.messages("B") == 1
    assert pair.waiting() == pair.waiting("B") == ["later"]


def test_a_message_scheduled_on_the_losing_side_of_a_split_is_kept(pair: Pair) -> None:
    pair.say({"/k": b"1"})
    pair.linked = False
    pair.run(1.5)
    pair.b.do(Vote())
    pair.run(0.5)
    pair.put("P", OTHER, 1, {}, schedule=[entry("mine", -60_000, unless="/k")])
    pair.run(3.0)
    pair.linked = True
    pair.run(5.0)
    assert pair.waiting() == pair.waiting("B") == ["mine"]


# -- rights


def rules(**rights: list[str]) -> AccessState:
    granted = AccessState()
    granted.rules = Rules.of({"users": {"ann": {name.replace("_", "-"): where for name, where in rights.items()}}})
    return granted


@pytest.mark.parametrize(
    ("rights", "why"),
    [
        ({"write": ["/"], "read": ["/"]}, ""),
        ({"write": ["/.chp/topics/t/"], "read": ["/k/"]}, ""),
        ({"write": ["/.chp/topics/t/"]}, "read '/k/1'"),
        ({"read": ["/"], "write": ["/other/"]}, "write topic 't'"),
    ],
)
def test_rights_are_judged_when_a_message_is_scheduled_and_when_it_is_due(
    rights: dict[str, list[str]], why: str
) -> None:
    granted = rules(**rights)
    told = with_user(Segment([], [], {"schedule": [entry("a", 1, unless="/k/1")]}), "ann")
    for segment in (Segment([], [], {"schedule": [entry("a", 1, unless="/k/1")]}), told):
        assert why in check_batch(granted, "ann", ME, segment, Staging(DEFAULT))
    assert why in unscheduled(granted, "ann", "t", "/k/1") and bool(unscheduled(granted, "ann", "t", "/k/1")) == bool(
        why
    )
    cancels = Segment([], [], {"cancel": [["t", "a"]]})
    assert bool(check_batch(granted, "ann", ME, cancels, Staging(DEFAULT))) == ("write" in why)


def test_a_message_that_the_rules_deny_when_it_is_due_is_dropped_and_logged(pair: Pair) -> None:
    pair.say(schedule=[entry("a", -1000), ["u", "b", -1000, 0, None, message()]])
    for core in (pair.p, pair.b):
        core.state.access.rules = Rules.of({"users": {"ann": {"write": ["/.chp/topics/u/"]}}})
        for found in core.state.topics.schedule.by_topic.values():
            for waiting in found.values():
                waiting.user = "ann"
        core.state.topics.schedule._of_user = Counter({"ann": 2})
    pair.run(1.5)
    assert pair.messages() == 0 and pair.waiting() == [] and pair.p.state.topics.by_name["u"].next == 1
    facts = [fact for turn in pair.turns["P"] for fact in turn.facts if fact.event == "denied"]
    assert "write topic 't'" in facts[0].fields["what"] and len(facts) == 1


# -- what is refused


@pytest.mark.parametrize(
    ("extras", "code"),
    [
        ({"schedule": [entry("a", 1), entry("a", 1)]}, "bad"),
        ({"schedule": [["t", "a/b", 1, 0, None, message()]]}, "bad"),
        ({"schedule": [["t", "a", 1, 0, "\x01", message()]]}, "bad"),
        ({"schedule": [["t", "a", 1, 0, None, pack_messages(None, [b"1", b"2"])]]}, "bad"),
        ({"schedule": [["t", "a", 1, 0, None, b"\xc1"]]}, "bad"),
        ({"cancel": [["t", "a"], ["t", "a"]]}, "bad"),
        ({"cancel": [["t", "none"]]}, "name"),
        ({"schedule": [entry("there", 1)]}, "there"),
        ({"scheduled": [1, []]}, "bad"),
        ({"fired": []}, "bad"),
        ({"schedule": [entry("a", 1)], "stage": [b"t" * 16, "p"]}, "bad"),
        ({"schedule": [entry("a", 1)], "topic": ["t2", {}]}, "bad"),
    ],
)
def test_a_refused_schedule_or_cancel_changes_nothing(pair: Pair, extras: dict[str, Any], code: str) -> None:
    pair.say(schedule=[entry("there", -60_000)])
    assert pair.say(**extras)[0] == code
    pair.run(0.5)
    assert pair.waiting() == ["there"] and pair.messages() == 0


@pytest.mark.parametrize(
    "column", [[["t", "a", "1", 0, None, b""]], [["t", "a", 1, -1, None, b""]], [["t", "a", 1, 0, None]], "x", [[1]]]
)
def test_an_invalid_schedule_column_is_a_bad_frame(column: object) -> None:
    with pytest.raises(BadFrame):
        decode_segment(Segment([], [], {"schedule": column}).encode())


def test_the_user_with_most_messages_is_refused_when_the_table_is_full() -> None:
    schedule = Schedule(replace(DEFAULT, scheduled_max=10))

    def put(user: str, *names: str) -> None:
        segment = Segment([], [], {"schedule": [entry(f"{user}.{name}", 1) for name in names]})
        schedule.check(segment.extras or {}, user)
        schedule.apply(timed(with_user(segment, user), 0).extras or {})

    put("ann", *map(str, range(9)))
    put("bob", "0")
    with pytest.raises(Refusal, match="scheduled_max"):
        put("ann", "more")
    put("bob", *map(str, range(1, 5)))
    with pytest.raises(Refusal, match="scheduled_max"):
        put("bob", "more")
    schedule.check({"cancel": [["t", "bob.0"]]}, "bob")
    schedule.check({"cancel": [["t", "bob.0"]], "schedule": [entry("bob.0", 9)]}, "bob")
    with pytest.raises(Refusal, match="scheduled_max"):
        schedule.check({"cancel": [["t", "bob.0"]], "schedule": [entry("bob.0", 9), entry("bob.more", 9)]}, "bob")
    schedule.check_all()


def test_due_messages_of_a_turn_are_ordered_by_time_and_bounded() -> None:
    schedule = Schedule(DEFAULT)
    told = [entry(f"{n:02}", 1000 + 7 * n % 30) for n in range(30)]
    schedule.apply(timed(with_user(Segment([], [], {"schedule": told}), ""), 0).extras or {})
    times = [message.due_ms for _, message in schedule.due(2000, 30)]
    assert len(times) == 30 and times == sorted(times)
    assert len(schedule.due(2000, 10)) == 10


def test_bytes_of_scheduled_messages_have_a_bound() -> None:
    schedule = Schedule(replace(DEFAULT, scheduled_bytes_max=1000))
    with pytest.raises(Refusal, match="scheduled_bytes_max"):
        schedule.check({"schedule": [entry("a", 1, value=b"x" * 1001)]}, "")


def test_an_empty_name_is_bad_input() -> None:
    with pytest.raises(BadInput, match="name"):
        Schedule(DEFAULT).check({"cancel": [["t", ""]]}, "")


def test_a_random_history_agrees_with_a_simple_model() -> None:
    """Each step is checked against a dict of what waits, and all invariants hold."""
    chance = random.Random(7)
    schedule, model, now = Schedule(DEFAULT), dict[str, tuple[int, str]](), 1000
    for step in range(3000):
        now += chance.randrange(20)
        kind = chance.random()
        if kind < 0.5:
            name, unless = f"{step}", chance.choice([None, "/a", "/b"])
            when = chance.choice([now + chance.randrange(1, 500), -chance.randrange(1, 500)])
            told = timed(with_user(Segment([], [], {"schedule": [entry(name, when, unless=unless)]}), "u"), now)
            schedule.apply(told.extras or {})
            model[name] = when if when > 0 else now - when, unless or ""
        elif kind < 0.6 and model:
            name = chance.choice(list(model))
            schedule.apply({"cancel": [["t", name]]})
            del model[name]
        elif kind < 0.65:
            key = chance.choice(["/a", "/b", "/c"])
            schedule.changed([key])
            model = {n: m for n, m in model.items() if m[1] != key}
        else:
            found = {name: m.due_ms for (_, name), m in schedule.due(now, 100)}
            assert found == {n: due for n, (due, _) in model.items() if due <= now}
            schedule.apply({"fired": [["t", name, 0] for name in found]})
            model = {n: m for n, m in model.items() if n not in found}
        if step % 100 == 0:
            schedule.check_all()
            assert schedule.count == len(model)
