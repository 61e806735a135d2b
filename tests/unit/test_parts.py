"""covers: chp/parts.py, the rule that a record is seen when its last part is here, with the revision of its first."""

from chp.batch import Segment
from chp.headers import Batch
from chp.parts import Parts, WholeRecord

A, B = b"a" * 16, b"b" * 16
ONE, TWO, THREE = ([Segment([f"/{i}"], [b"v"])] for i in range(3))


def test_a_record_of_one_part_is_whole_at_once() -> None:
    parts = Parts()
    assert parts.add(Batch(4, 5, 5, 9, [[A, 1]], False), ONE) == WholeRecord(4, 5, 5, 9, [[A, 1]], ONE)
    assert not parts and parts.last == 0


def test_parts_are_held_until_the_last_and_have_the_revision_of_the_first() -> None:
    parts = Parts()
    first, second = Batch(4, 5, 5, 9, [[A, 1]], True), Batch(5, 6, 6, 9, [], True)
    last = Batch(6, 7, 9, 9, [[A, 1], [B, 2]], False)
    assert parts.revision(first) == 5
    assert parts.add(first, ONE) is None
    assert parts and parts.last == 5 and parts.revision(second) == 5
    assert parts.add(second, TWO) is None
    assert parts.last == 6 and parts.revision(last) == 5
    assert parts.add(last, THREE) == WholeRecord(4, 5, 9, 9, [[A, 1], [B, 2]], [*ONE, *TWO, *THREE])
    assert not parts and parts.revision(Batch(9, 10, 10, 9, [], False)) == 10


def test_add_does_not_change_its_arguments() -> None:
    parts, segments, origins = Parts(), list(ONE), [[A, 1]]
    parts.add(Batch(4, 5, 5, 9, origins, True), segments)
    parts.add(Batch(5, 6, 6, 9, [[B, 1]], False), TWO)
    assert segments == ONE and origins == [[A, 1]]


def test_drop_discards_the_parts_of_an_incomplete_record() -> None:
    parts = Parts()
    assert not parts.drop()
    parts.add(Batch(4, 5, 5, 9, [], True), ONE)
    assert parts.drop() and not parts and parts.last == 0
    whole = parts.add(Batch(4, 8, 8, 9, [], False), TWO)
    assert whole is not None and whole.segments == TWO and whole.first == 8
