"""Two clients and one key in one turn: each has to be told a revision of its own. covers: commit.py"""

from dataclasses import replace
from typing import Any

from chp.batch import split
from chp.limits import DEFAULT
from chp_server.core.state.state import ReplicatedState

from .server_talk import ONE, TWO, Talk


def test_two_clients_that_write_a_key_in_one_turn_are_told_different_revisions() -> None:
    talk = Talk()
    talk.set(ONE, 1, {"/k": b"one"})
    talk.set(TWO, 1, {"/k": b"two"})
    talk.turn()
    ((_, first),), ((_, second),) = talk.acks(ONE), talk.acks(TWO)
    assert first != second
    talk.set(ONE, 2, {"/k": b"unseen"}, c=[[0], [first]])
    talk.turn()
    assert talk.map == {"/k": b"two"}


def test_a_chp1_set_after_a_batch_of_the_key_gets_another_revision() -> None:
    talk = Talk()
    talk.set(ONE, 1, {"/k": b"one"})
    talk.set_chp1("/k", b"chp1")
    talk.turn()
    assert talk.map == {"/k": b"chp1"}
    assert talk.revisions["/k"] != talk.acks(ONE)[0][1]


def test_a_client_that_writes_its_own_key_twice_does_not_split_the_record() -> None:
    talk = Talk()
    talk.set(ONE, 1, {"/k": b"a"})
    talk.set(ONE, 2, {"/k": b"b"})
    assert len(talk.turn().journal) == talk.core.committer.counts["records"] == 1


def told_again(talk: Talk, no: int) -> list[tuple[int, int]]:
    """Send a batch once more, and return its acknowledgements."""
    talk.set(ONE, no, {"/k": b"again"})
    talk.turn()
    return talk.acks(ONE)


def test_a_repeated_batch_is_acknowledged_with_its_first_revision() -> None:
    """With its session's last revision, the client could overwrite the second client's value of /k by a condition."""
    talk = Talk()
    for no in (1, 2, 3):
        talk.set(TWO, no, {"/k": b"two"})
        talk.set(ONE, no, {"/k": b"one"})
        talk.turn()
    told = talk.acks(ONE)
    assert [told_again(talk, no) for no in (1, 2, 3)] == [[each] for each in told]
    copy = ReplicatedState(DEFAULT)
    copy.load_rest(split(list(talk.core.state.rest(talk.now))[-1])[1], talk.now)
    ours, theirs = ({i: (s.no, s.seen, s.runs) for i, s in x.sessions.items()} for x in (talk.core.state, copy))
    assert ours == theirs, "and a server that catches up by a snapshot knows it too"


def test_a_repeated_batch_whose_revision_is_forgotten_is_acknowledged_as_unknown() -> None:
    talk = Talk(replace(DEFAULT, runs_max=2))
    for no in (1, 2, 3):
        talk.set(ONE, no, {"/k": b"one"})
        talk.turn()
    told = talk.acks(ONE)
    assert [told_again(talk, no) for no in (1, 2, 3)] == [[(1, 1)], [told[1]], [told[2]]]


def test_a_batch_without_newer_items_still_opens_and_ends_a_lease() -> None:
    talk, lease = Talk(), b"L" * 16
    talk.set(TWO, 1, {"/k": b"newer"})
    talk.turn()
    columns: list[dict[str, Any]] = [{"lease": [lease, 5000]}, {"unlease": lease}]
    for no, column in enumerate(columns, 1):
        talk.set(ONE, no, {"/k": b"older"}, n=[[0], [1]], **column)
        talk.turn()
        assert (lease in talk.core.state.leases) == (no == 1)
    assert talk.map == {"/k": b"newer"}
