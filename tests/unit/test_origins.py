"""Tests that readers of a subtree hear only its part of a record, and only the writers of that part.

covers: `origins` and `whose` of BATCHes (SPEC.md, section 16) and RECORDS; columns of a batch as a whole
"""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import BATCH, RECORDS, segment_of, split
from chp.headers import Kthxbai
from chp.keys import channel_topic, public_session
from chp.limits import DEFAULT
from chp_server.core.questions.syncs import resume_parts
from chp_server.core.updates.channels import FEW
from chp_server.core.updates.turn import Turn

from .server_talk import ONE, TWO, Talk

A, B = public_session(ONE), public_session(TWO)
Told = dict[str, tuple[list[Any], Any, list[list[str]], list[list[str]]]]


def of_parts(parts: list[Any]) -> tuple[list[Any], Any, list[list[str]], list[list[str]]]:
    """Return the origins, `whose`, and the keys and columns of each segment."""
    (_, _, _, _, _, origins, _, *whose), *items = parts
    segments = [segment_of(item) for item in items]
    return origins, whose, [s.keys for s in segments], [sorted(s.extras or {}) for s in segments]


def published(turn: Turn) -> Told:
    """Return the parts of the BATCH on each channel."""
    bodies = [(frames[0], split(frames[4])) for frames in turn.publish if frames[0][:1] == b"\2"]
    return {topic[1:-1].decode(): of_parts(parts) for topic, parts in bodies if parts[0][0] == BATCH}


def resumed(talk: Talk, subtree: str) -> list[Any]:
    """Return the parts of a resume of a subtree from the beginning."""
    end = Kthxbai(1, 99, 0, 0, None, True)
    records = iter(talk.core.committer.committed.log.after(0, 1 << 20))
    said = [split(frames[4]) for [frames] in resume_parts(records, 0, subtree, end, DEFAULT, opener=lambda _: b"")]
    return [of_parts(parts) for header, *records in said if header[0] == RECORDS for parts in records]


@pytest.fixture(params=[0, FEW])
def talk(request: pytest.FixtureRequest) -> Talk:
    """Return a talk with few channels, or with many."""
    made = Talk()
    more = [f"/more/{i}/" for i in range(request.param)]
    for i, subtree in enumerate(["", "/a/", "/b/", *more]):
        made.core.subscription([b"%d" % i, b"\1" + channel_topic(subtree)])
    made.turn()
    return made


def test_readers_of_a_subtree_are_told_only_the_writers_in_that_subtree(talk: Talk) -> None:
    talk.set(ONE, 1, {"/a/1": b"1"})
    talk.set(TWO, 1, {"/b/1": b"1"})
    talk.set(ONE, 2, {"/a/2": b"2", "/b/2": b"2"})
    told = published(talk.turn())
    assert told["/a/"][0] == [[A, 2]] and told["/b/"][0] == [[B, 1], [A, 2]] and told[""][0] == [[A, 2], [B, 1]]
    assert told["/a/"][1] == told["/b/"][1] == []
    talk.set(TWO, 2, {"/b/1": b"3"})
    assert published(talk.turn())["/b/"][0] == [[B, 2]], "the writers of a record are not those of the next"


def test_an_expiry_by_the_server_has_no_origin(talk: Talk) -> None:
    talk.set(ONE, 1, {"/a/1": b"1"}, t=10)
    talk.turn(5.0)
    talk.set(TWO, 1, {"/b/1": b"1"})
    told = published(talk.turn())
    assert told["/a/"][:3] == ([], [], [["/a/1"]])


def test_a_resume_tells_the_writers_of_its_updates(talk: Talk) -> None:
    talk.set(ONE, 1, {"/a/1": b"1"})
    talk.set(TWO, 1, {"/b/1": b"1"})
    talk.set(ONE, 2, {"/a/2": b"2", "/b/2": b"2"})
    talk.turn()
    assert [(origins, whose) for origins, whose, *_ in resumed(talk, "/a/")] == [([[A, 2]], [[[1, 1, 1], [1, 2, 1]]])]
    assert [(origins, whose) for origins, whose, *_ in resumed(talk, "/b/")] == [
        ([[B, 1], [A, 2]], [[[1, 1, 1], [2, 2, 1]]])
    ]
    assert resumed(talk, "/c/") == []


def test_columns_of_a_whole_batch_are_hidden_from_subtree_readers(talk: Talk) -> None:
    talk.set(ONE, 1, {"/b/hidden": b"1"})
    talk.turn()
    revision = talk.revisions["/b/hidden"]
    talk.set(ONE, 2, {"/a/1": b"1"}, expect=[["/b/hidden", revision]], once=["application", 1, True], t=[[0], [5000]])
    told = published(talk.turn())
    assert told["/a/"][3] == [["t"]] and told[""][3] == [["expect", "once", "t"]]
    assert resumed(talk, "/a/")[-1][3] == [["t"]]
