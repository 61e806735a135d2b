"""Tests of staged updates by hand: they are invisible until the commit, and their columns apply from then on."""

import os
from collections.abc import Iterator

import pytest

from chp.limits import Limits
from chp.topics import pack_messages
from chp_client import Clone
from chp_server.testing import TestServer
from tests.wire.hand import Hand, Session


@pytest.fixture
def hand() -> Iterator[Hand]:
    with TestServer(heartbeat_s=0.1) as server, Hand(server.address) as made:
        yield made


@pytest.fixture
def session(hand: Hand) -> Session:
    return hand.session()


def commit(
    session: Session, tx: bytes, parts: list[list[object]], application: str = "job", version: int = 1, **more: str
) -> int:
    replace = more.get("replace")
    return session.acked(session.send([], [], {"commit": [tx, application, version, parts, replace]}))[0]


def test_a_commit_may_replace_a_subtree(hand: Hand, session: Session) -> None:
    session.put({"/a/old": b"1", "/a/both": b"1", "/b/old": b"1"})
    replica, tx = hand.follow(), os.urandom(16)
    session.put({"/a/both": b"2", "/a/new": b"2"}, stage=[tx, "0.0"])
    commit(session, tx, [["0.0", 1]], replace="/a/")
    replica.until(lambda: replica.values == {"/a/both": b"2", "/a/new": b"2", "/b/old": b"1"})
    replica.until_compared()
    assert hand.follow().values == replica.values


def test_the_only_if_newer_condition_is_decided_at_the_commit(hand: Hand, session: Session) -> None:
    old = session.put({"/a": b"1", "/b": b"1"})
    tx = os.urandom(16)
    session.put({"/a": b"2", "/b": b"2"}, n=[[0, 1], [old, old]], stage=[tx, "0.0"])
    meanwhile = session.put({"/b": b"3"})
    revision = commit(session, tx, [["0.0", 1]])
    replica = hand.follow()
    assert replica.values == {"/a": b"2", "/b": b"3"}
    assert replica.revisions == {"/a": revision, "/b": meanwhile}


def test_the_ttl_of_staged_updates_begins_with_the_commit(hand: Hand, session: Session) -> None:
    tx = os.urandom(16)
    session.put({"/a": b"1", "/b": b"1"}, t=[[0], [50_000]], stage=[tx, "0.0"])
    commit(session, tx, [["0.0", 1]])
    (chunk, _) = hand.sync()
    keys, _, extras = chunk[1]
    assert keys == ["/a", "/b"] and extras["t"][0] == [0] and extras["t"][1][0] > 40_000


def test_a_commit_without_an_application_is_not_remembered(hand: Hand, session: Session) -> None:
    for value in (b"1", b"2"):
        tx = os.urandom(16)
        session.put({"/a": value}, stage=[tx, "0.0"])
        commit(session, tx, [["0.0", 1]], "", 0)
    assert hand.follow().values == {"/a": b"2"}
    tx = os.urandom(16)
    session.put({"/a": b"3"}, stage=[tx, "0.0"])
    commit(session, tx, [["0.0", 1]], "job", 7)
    session.put({"/a": b"4"}, stage=[tx, "0.0"])
    commit(session, tx, [["0.0", 1]], "job", 7)
    assert hand.follow().values == {"/a": b"3"}


def test_a_commit_with_a_missing_batch_is_refused_with_the_staged_counts(hand: Hand, session: Session) -> None:
    tx = os.urandom(16)
    session.put({"/a": b"1"}, stage=[tx, "0.0"])
    parts: list[list[object]] = [["0.0", 2], ["1.0", 1]]
    refused = session.send([], [], {"commit": [tx, "job", 1, parts, None]})
    assert session.refused(refused) == ("staged", {"0.0": 1, "1.0": 0})
    assert hand.sync()[-1][0][3] == 0, "nothing of it is seen"
    session.put({"/b": b"2"}, stage=[tx, "0.0"])
    session.put({"/c": b"3"}, stage=[tx, "1.0"])
    commit(session, tx, parts)
    assert hand.follow().values == {"/a": b"1", "/b": b"2", "/c": b"3"}


def test_batches_staged_for_a_committed_version_are_dropped(hand: Hand, session: Session) -> None:
    """A micro-batch that runs a second time stages its updates in another transaction, for the same version."""
    revisions = set()
    for value in (b"1", b"2"):
        tx = os.urandom(16)
        session.put({"/a": value}, stage=[tx, "0.0"])
        revisions.add(commit(session, tx, [["0.0", 1]]))
    status = hand.status()
    assert (status["transactions"], status["staged_bytes"], status["counts"]["commits"]) == (0, 0, 1)
    assert hand.follow().values == {"/a": b"1"} and len(revisions) == 1


def test_a_batch_staged_after_the_commit_is_not_kept(hand: Hand, session: Session) -> None:
    """A slower attempt that stages after the commit would never be committed, and would take memory for an hour."""
    tx = os.urandom(16)
    session.put({"/a": b"1"}, stage=[tx, "0.0"])
    session.put({"/a": b"2"}, stage=[tx, "0.1"])
    commit(session, tx, [["0.0", 1]])
    session.put({"/a": b"3"}, stage=[tx, "0.1"])
    status = hand.status()
    assert (status["transactions"], status["staged_bytes"]) == (0, 0)
    # A second commit of this version is acknowledged as done, although it names another attempt.
    commit(session, tx, [["0.1", 1]])
    assert hand.follow().values == {"/a": b"1"}


def test_a_staged_batch_without_room_is_refused_with_the_limit_name() -> None:
    limits = Limits(staged_bytes_max=1000, staged_commits_max=2)
    with TestServer(limits, heartbeat_s=0.1) as server, Hand(server.address) as hand:
        session, tx = hand.session(), os.urandom(16)
        session.put({"/a": bytes(900)}, stage=[tx, "0.0"])
        code, detail = session.refused(session.send(["/b"], [bytes(900)], {"stage": [tx, "0.0"]}))
        assert code == "busy" and "staged_bytes_max" in detail and "1000" in detail
        session.put({"/c": b""}, stage=[os.urandom(16), "0.0"])
        code, detail = session.refused(session.send(["/d"], [b""], {"stage": [os.urandom(16), "0.0"]}))
        assert code == "busy" and "staged_commits_max" in detail


def messages(topic: str, *values: bytes) -> dict[str, object]:
    return {"publish": [[topic, len(values), pack_messages(None, list(values))]]}


def test_keys_and_messages_become_visible_together_and_once(hand: Hand, session: Session) -> None:
    tx = os.urandom(16)
    session.put({"/a": b"1"}, stage=[tx, "1.0"], **messages("orders", b"three"))
    session.put({}, stage=[tx, "0.0"], **messages("orders", b"one", b"two"))
    session.put({}, stage=[tx, "0.1"], **messages("orders", b"of a slower attempt"))
    assert hand.status()["topics"]["topics"] == 0 and hand.sync()[-1][0][3] == 0, "nothing of it is seen"
    # The second commit changes nothing, and gets the same answer.
    for _ in range(2):
        commit(session, tx, [["0.0", 1], ["1.0", 1]])
    with Clone(hand.address) as clone:
        clone.wait_until_synced(30)
        read = [value for batch in clone.topic("orders").read(wait=False) for value in batch.values]
        assert read == [b"one", b"two", b"three"] and clone["/a"] == b"1"


def test_a_commit_whose_messages_have_no_room_is_refused_whole(hand: Hand, session: Session) -> None:
    session.acked(session.send([], [], {"topic": ["few", {"max_messages": 3}]}))
    tx = os.urandom(16)
    for i in range(2):
        session.put({f"/{i}": b"1"}, stage=[tx, f"{i}.0"], **messages("few", b"1", b"2"))
    code, said = session.refused(session.send([], [], {"commit": [tx, "job", 1, [["0.0", 1], ["1.0", 1]], None]}))
    assert code == "full" and "4 more" in said
    assert hand.sync()[-1][0][3] == 0
    commit(session, tx, [["0.0", 1]])
    assert hand.sync()[-1][0][3] == 1


def test_a_staged_batch_cannot_make_a_topic(hand: Hand, session: Session) -> None:
    code, said = session.refused(session.send([], [], {"topic": ["t", {}], "stage": [os.urandom(16), "0.0"]}))
    assert code == "bad" and "send two" in said
