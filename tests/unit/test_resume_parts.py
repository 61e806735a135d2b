"""Tests that a large record in parts keeps its revision in a resume, whichever parts concern the subtree."""

from dataclasses import replace

from chp.batch import BATCH, Segment, join, split
from chp.headers import Kthxbai
from chp.limits import DEFAULT
from chp_server.core.questions.syncs import resume_parts
from chp_server.core.state.record_log import Record


def part(prev: int, first: int, last: int, more: bool, *keys: str) -> Record:
    segment = Segment(list(keys), [b"v"] * len(keys))
    return Record(prev, first, last, join([BATCH, prev, first, last, 0, [], more], [segment.encode()]))


def resumed(records: list[Record], subtree: str) -> list[list[object]]:
    """Return the headers that a reader of the subtree gets after number 1."""
    chunks = resume_parts(iter(records), 1, subtree, Kthxbai(1, 99, 0, 0, None, True), DEFAULT, opener=lambda _: b"")
    return [body[0] for [frames] in chunks for body in split(frames[4])[1:] if split(frames[4])[0][0] == 4]


def test_a_record_that_begins_outside_the_subtree_keeps_its_first_number() -> None:
    records = [part(1, 2, 2, True, "/b/1"), part(2, 3, 3, True, "/a/1"), part(3, 4, 9, False, "/a/2")]
    assert [header[1:4] for header in resumed(records, "/a/")] == [[1, 2, 3], [3, 4, 9]]
    assert [header[1:4] for header in resumed(records, "/b/")] == [[1, 2, 2], [2, 4, 9]]


def test_each_chunk_names_the_opener_of_its_last_record() -> None:
    records = [part(1, 2, 2, False, "/a/1"), part(2, 3, 3, False, "/a/2"), part(3, 9, 9, False, "/a/3")]
    limits = replace(DEFAULT, sync_chunk_bytes=1)
    end = Kthxbai(1, 99, 0, 0, None, True)
    chunks = resume_parts(iter(records), 1, "/a/", end, limits, opener=lambda number: b"%d" % number)
    headers = [split(frames[4])[0] for [frames] in chunks]
    assert [header[2:] for header in headers if header[0] == 4] == [[0, b"2"], [1, b"3"], [2, b"9"]]


def test_records_of_one_part_follow_on_one_another() -> None:
    records = [part(1, 2, 2, False, "/a/1"), part(2, 3, 3, False, "/b/1"), part(3, 4, 5, False, "/a/2")]
    assert [header[1:4] for header in resumed(records, "/a/")] == [[1, 2, 2], [2, 4, 5]]
