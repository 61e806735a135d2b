"""covers: tests/process/topic_rules.py: a right history breaks no rule, and each rule refuses a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.process.topic_rules import (
    AFTER_SPLIT,
    BEFORE,
    DONE,
    EFFECTS,
    LATER,
    MAIN,
    REFUSED,
    REPLICATED,
    RULES,
    STEPS,
    UNKNOWN,
    VERSIONS,
    Given,
    History,
    Message,
    Read,
    Write,
    receipt,
    wrong,
)

ONE, TWO = (0, "k", "a"), (1, "k", "b")


def right() -> History:
    """Return a history of two messages of one key that three groups handled, two versions and two steps."""
    publish = [
        Write("p", "w1", 1, {MAIN: [("k", "a")]}, answered=2, outcome=REPLICATED),
        Write("p", "w2", 3, {MAIN: [("k", "b")]}, answered=4, outcome=REPLICATED),
        Write("p", "w3", 3.5, {MAIN: [("k", "never")]}, answered=4, outcome=REFUSED),
        Write("p", "w4", 3.6, {MAIN: [("k", "lost")]}, outcome=UNKNOWN),
    ]
    effects = [
        Write(f"m{n}", f"e{n}", called, {DONE: [(None, receipt(n - 1, value, f"e{n}"))]}, {f"/w/e{n}": f"e{n}"},
              (EFFECTS, f"m{n}", [n - 1]), answered=called + 1, outcome=REPLICATED)
        for n, called, value in ((1, 10, "a"), (2, 16, "b"))
    ]  # fmt: skip
    later = [Write("l", "l1", 12, ack=(LATER, "m3", [0, 1]), answered=13, outcome=REPLICATED)]
    versions = [
        Write("v", "v1", 1, {VERSIONS: [(None, "strict1 1 v1")]}, once=("strict1", 1), answered=2, outcome=REPLICATED),
        Write("v", "v2", 3, {VERSIONS: [(None, "strict1 2 v2")]}, once=("strict1", 2), answered=4, outcome=REPLICATED),
    ]
    steps = [
        Write("s", "s1", 1, {STEPS: [(None, "s1")]}, after="", answered=2, outcome=REPLICATED),
        Write("s", "s2", 3, {STEPS: [(None, "s2")]}, after="s1", answered=4, outcome=REPLICATED),
    ]
    given = [
        Given(EFFECTS, "m1", 5, 9, [ONE]), Given(EFFECTS, "m2", 14, 15, [TWO]),
        Given(LATER, "m3", 5, 9, [ONE, TWO]), Given(BEFORE, "m4", 5, 9, [ONE, TWO]),
    ]  # fmt: skip
    logs = {
        MAIN: [Message(0, "k", "a", 1), Message(1, "k", "b", 2)],
        DONE: [Message(0, None, receipt(0, "a", "e1"), 3), Message(1, None, receipt(1, "b", "e2"), 4)],
        VERSIONS: [Message(0, None, "strict1 1 v1", 5), Message(1, None, "strict1 2 v2", 6)],
        STEPS: [Message(0, None, "s1", 7), Message(1, None, "s2", 8)],
    }
    reads = [Read("r", MAIN, [ONE]), Read("r", MAIN, [TWO])]
    keys = {"/w/e1": "e1", "/w/e2": "e2"}
    return History([*publish, *effects, *later, *versions, *steps], given, reads, logs, keys)


def named(history: History, name: str) -> Write:
    return next(write for write in history.writes if write.name == name)


def a_gap(history: History) -> None:
    history.logs[MAIN][1] = replace(history.logs[MAIN][1], offset=2)


def a_stranger(history: History) -> None:
    history.logs[MAIN].append(Message(2, "k", "x", 9))


def a_strange_key(history: History) -> None:
    history.keys["/w/e1"] = "x"


def twice(history: History) -> None:
    history.logs[MAIN].append(Message(2, "k", "b", 9))


def in_part(history: History) -> None:
    del history.keys["/w/e1"]


def lost(history: History) -> None:
    del history.logs[MAIN][1]


def refused_and_there(history: History) -> None:
    history.logs[MAIN].append(Message(2, "k", "never", 9))


def two_records(history: History) -> None:
    named(history, "w1").publish[MAIN].append(("k", "b"))


def calls_in_another_order(history: History) -> None:
    named(history, "w1").called = 3.2


def another_value(history: History) -> None:
    history.given[0].messages[0] = (0, "k", "b")


def read_beyond_the_end(history: History) -> None:
    history.reads[1].messages.append((2, "k", "lost"))


def read_twice(history: History) -> None:
    history.reads.append(Read("r", MAIN, [TWO]))


def told_of_missed_ones(history: History) -> None:
    history.reads[1] = Read("r", MAIN, [TWO], missed=1)


def no_effect(history: History) -> None:
    named(history, "e2").outcome = UNKNOWN
    del history.logs[DONE][1], history.keys["/w/e2"]


def two_effects(history: History) -> None:
    history.writes.append(Write("d", "e3", 18, {DONE: [(None, receipt(1, "b", "e3"))]}))
    history.logs[DONE].append(Message(2, None, receipt(1, "b", "e3"), 9))


def effects_in_another_order(history: History) -> None:
    one, two = history.logs[DONE]
    history.logs[DONE] = [replace(two, offset=0, revision=3), replace(one, offset=1, revision=4)]


def two_acknowledgements(history: History) -> None:
    history.writes.append(Write("d", "l2", 18, ack=(LATER, "m9", [1]), answered=19, outcome=REPLICATED))


def its_own_again(history: History) -> None:
    history.given.append(Given(EFFECTS, "m1", 5, 12, [ONE]))


def given_to_who_joined_after(history: History) -> None:
    history.given.append(Given(EFFECTS, "m2", 14, 15, [ONE]))


def done_for_who_was_replaced(history: History) -> None:
    history.given.append(Given(EFFECTS, "m2", 5, 12, [ONE]))


def seen_twice(history: History) -> None:
    history.given.append(Given(BEFORE, "m5", 5, 12, [ONE]))


def seen_by_nobody(history: History) -> None:
    history.given[2] = Given(LATER, "m3", 5, 9, [TWO])


def a_version_twice(history: History) -> None:
    history.writes.append(Write("v", "v3", 5, {VERSIONS: [(None, "strict1 2 v3")]}, once=("strict1", 2)))
    history.logs[VERSIONS].append(Message(2, None, "strict1 2 v3", 9))


def a_version_that_is_not_there(history: History) -> None:
    del history.logs[VERSIONS][1]


def versions_with_a_gap(history: History) -> None:
    del history.logs[VERSIONS][0]


def versions_that_go_back(history: History) -> None:
    for n, place in ((1, 0), (2, 1)):
        named(history, f"v{n}").publish[VERSIONS] = [(None, f"app {n} v{n}")]
        named(history, f"v{n}").once = ("app", n)
        history.logs[VERSIONS][1 - place] = Message(1 - place, None, f"app {n} v{n}", 6 - place)


def a_step_over_another(history: History) -> None:
    named(history, "s2").after = ""


# The made-up error, and the rule that finds it.
WRONG: list[tuple[Callable[[History], None], str]] = [
    (a_gap, "dense"), (a_stranger, "known"), (a_strange_key, "known"), (twice, "once_or_not"),
    (in_part, "once_or_not"), (lost, "once_or_not"), (refused_and_there, "refused_is_absent"),
    (two_records, "one_record"),
    (calls_in_another_order, "order_of_calls"), (another_value, "seen_is_there"),
    (read_beyond_the_end, "seen_is_there"), (read_twice, "read_in_order"), (told_of_missed_ones, "read_in_order"),
    (no_effect, "effects_once"), (two_effects, "effects_once"), (effects_in_another_order, "effects_in_order"),
    (two_acknowledgements, "acknowledged_once"), (its_own_again, "not_again"),
    (given_to_who_joined_after, "not_of_others"), (done_for_who_was_replaced, "fenced"),
    (seen_twice, "at_most_once"), (seen_by_nobody, "at_least_once"), (a_version_twice, "versions_once"),
    (a_version_that_is_not_there, "versions_once"), (versions_with_a_gap, "versions_in_order"),
    (versions_that_go_back, "versions_in_order"), (a_step_over_another, "steps_follow"),
]  # fmt: skip


def test_a_right_history_breaks_no_rule() -> None:
    assert wrong(right()) == []


@pytest.mark.parametrize(("spoil", "rule"), WRONG, ids=lambda each: getattr(each, "__name__", None))
def test_a_wrong_history_breaks_a_rule(spoil: Callable[[History], None], rule: str) -> None:
    history = right()
    spoil(history)
    assert rule in {text.split(":")[0] for text in wrong(history)}
    history.split = True
    found = {text.split(":")[0] for text in wrong(history)}
    assert (rule in found) == (rule in {each.__name__ for each in AFTER_SPLIT})


def test_each_rule_is_broken_by_a_wrong_history() -> None:
    assert {rule for _, rule in WRONG} == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize("outcome", [UNKNOWN, "journaled"])
def test_a_write_with_an_unsure_outcome_may_be_present_or_absent(outcome: str) -> None:
    history = right()
    named(history, "w4").outcome = outcome
    assert wrong(history) == []
    history.logs[MAIN].append(Message(2, "k", "lost", 9))
    assert not [text for text in wrong(history) if text.startswith("once_or_not")]


def test_messages_on_their_way_to_a_member_that_was_replaced_break_no_rule() -> None:
    history = right()
    history.given.append(Given(EFFECTS, "m8", 5, 12, [ONE]))
    history.writes.append(Write("x", "e8", 13, ack=(EFFECTS, "m8", [0]), answered=14, outcome=REFUSED))
    assert wrong(history) == []
