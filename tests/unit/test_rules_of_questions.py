"""covers: which options of a question count, what is a subtree, where a log read begins and ends, conditions."""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import packb, split
from chp.headers import KTHXBAI, REFUSED, REPLY, SYNC
from chp.limits import DEFAULT
from chp.numbers import number
from chp_server.core.core import CoreConfig, ServerCore
from tests.wire.played import OWN, WHO, Servers, answers, kvset, only


@pytest.fixture
def lone() -> Servers:
    servers = Servers()
    servers.turn(lambda core: core.collect(kvset(1, ["/a", "/b"], [b"1", b"2"])))
    return servers


def kinds(messages: list[list[bytes]]) -> list[int]:
    return [split(frames[-1])[0][0] for frames in messages]


def test_an_option_that_is_not_known_is_ignored(lone: Servers) -> None:
    assert kinds(lone.ask(b"", colour="blue")) == [SYNC, KTHXBAI]


@pytest.mark.parametrize(
    "options", [{"credit": 0}, {"credit": "8"}, {"from": "all"}, {"proof": [b""]}, {"session": "me"}]
)
def test_an_option_of_another_type_or_without_credit_is_refused(lone: Servers, options: dict[str, Any]) -> None:
    (refused,) = lone.ask(b"", **options)
    assert split(refused[-1])[0][:3] == [REFUSED, 1, "bad"]


def test_more_without_an_open_answer_gets_no_answer(lone: Servers) -> None:
    assert lone.ask(b"", more=3) == [] and lone.ask(b"", more=0) == []


def test_the_first_of_several_kinds_of_question_counts(lone: Servers) -> None:
    assert lone.ask(b"", more=3, inspect=True) == []
    assert kinds(lone.ask(b"", inspect=True, feed=True)) == [SYNC, KTHXBAI]
    assert kinds(lone.ask(b"", image=0, feed=True)) == [REPLY]


def test_options_that_do_not_belong_to_the_question_are_ignored(lone: Servers) -> None:
    end = number(1, 3)
    probe = lone.ask(b"", feed=True, probe=0, until=1)
    assert split(probe[0][-1])[0][2]["number"] == end
    assert lone.ask(b"", feed=True, probe=0, at=1 << 50) == lone.ask(b"", feed=True, probe=7, at=1 << 50)
    assert kinds(lone.ask(b"", inspect=True, **{"from": 999})) == [SYNC, KTHXBAI]


def test_snapshot_and_feed_questions_are_votes_and_others_are_not() -> None:
    for options, votes in (({}, True), ({"feed": True}, True), ({"inspect": True}, False), ({"more": 1}, False)):
        pair = Servers(pair=True)
        pair.linked = False
        for _ in range(20):
            pair.turn()
        passive = pair.cores[1]
        told = {"chp": 4, "id": 1, **options}
        passive.request([WHO, b"ICANHAZ?", b"", packb(told)])
        pair.turn()
        assert passive.active is votes, options


def test_conditions_on_a_repeated_key_mean_the_revision_before_the_batch(lone: Servers) -> None:
    one, two = number(1, 2), number(1, 1)
    keys, values = ["/a", "/a"], [b"3", b"4"]
    assert only(6, lone.turn(lambda c: c.collect(kvset(2, keys, values, {"c": [[1], [one]]}))).acks, OWN)
    now = lone.cores[0].state.map.revisions["/a"]
    for wanted in ([now, two], [two, now]):
        no = 3 if wanted[0] == now else 4
        turn = lone.turn(lambda c, no=no, w=wanted: c.collect(kvset(no, keys, values, {"c": [[0, 1], w]})))  # type: ignore[misc]
        assert split(only(7, turn.acks, OWN)[-1])[0][2] == "revision", "two revisions never hold"


@pytest.mark.parametrize("subtree", [b"", b"/", b"/r/", b"/" + b"a" * 1022 + b"/"])
def test_an_empty_subtree_or_one_with_both_slashes_is_accepted(lone: Servers, subtree: bytes) -> None:
    assert kinds(lone.ask(subtree))[-1] == KTHXBAI


@pytest.mark.parametrize("subtree", [b"/r", b"r/", b"/\x01/", b"/" + b"a" * 1023 + b"/"])
def test_an_invalid_subtree_is_refused(lone: Servers, subtree: bytes) -> None:
    (refused,) = lone.ask(subtree)
    assert split(refused[-1])[0][:3] == [REFUSED, 1, "bad"]


# -- logs, and what a server holds


def test_a_log_read_needs_no_proof_and_tells_no_checksum(lone: Servers) -> None:
    before, first, second = number(1, 1), number(1, 2), number(1, 3)
    records, end = lone.ask(b"", feed=True, **{"from": before})
    header, *_ = split(records[-1])[1]
    assert header[1:4] == [before, first, second], "a record of two updates"
    assert split(end[-1])[0][2:6] == [second, 0, 0, None], "it has no checksum, and tells of no session"


def test_a_log_read_ends_with_the_last_record_up_to_a_number(lone: Servers) -> None:
    lone.turn(lambda core: core.collect(kvset(2, ["/c"], [b"3"])))
    asked = {"feed": True, "from": number(1, 1)}
    assert split(lone.ask(b"", **asked)[-1][-1])[0][2] == number(1, 4)
    assert split(lone.ask(b"", until=number(1, 3), **asked)[-1][-1])[0][2] == number(1, 3)


def test_active_and_passive_answer_inspect_and_a_starting_server_refuses() -> None:
    pair = Servers(pair=True)
    pair.settle(lambda core: core.collect(kvset(1, ["/a"], [b"1"])))
    question = [WHO, b"ICANHAZ?", b"", packb({"chp": 4, "id": 1, "inspect": True, "from": 999})]
    for i, core in enumerate(pair.cores):
        core.request(question)
        told: list[list[bytes]] = []
        for _ in range(3):
            pair.turn()
            told += answers(pair.turns[i])
        assert kinds(told) == [SYNC, KTHXBAI], core.pair.config.name
    starting = ServerCore(CoreConfig(name="c", has_peer=True), bytes(16), 0.0, DEFAULT)
    starting.begin_turn(0.0, 0.0)
    starting.request(question)
    assert split(answers(starting.end_turn())[0][-1])[0][:3] == [REFUSED, 1, "passive"]


def test_a_condition_on_an_unreached_revision_is_refused_as_parted(lone: Servers) -> None:
    beyond = kvset(2, ["/a"], [b"3"], {"c": [[0], [number(1, 9)]]})
    turn = lone.turn(lambda core: core.collect(beyond))
    assert split(only(7, turn.acks, OWN)[-1])[0][2:4] == ["parted", {"/a": number(1, 2)}]
