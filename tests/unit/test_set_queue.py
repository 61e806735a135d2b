"""Tests that the sets of all sessions are served in turn, each session's in its order. covers: set_queue.py"""

from collections.abc import Iterable
from dataclasses import replace

from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp_server.core.updates.set_queue import VISIT_BYTES, Frames, SetQueue, turn_bytes


def batch(session: str, size: int = VISIT_BYTES) -> Frames:
    return [RESERVED_KEY, b"n", session.encode(), b"", bytes(size)]


def queue(*sets: Frames) -> SetQueue:
    made = SetQueue(replace(DEFAULT, waiting_sets_bytes_max=10 * VISIT_BYTES))
    for frames in sets:
        made.add(frames)
    return made


def whose(sets: Iterable[Frames]) -> str:
    return "".join(frames[2].decode() for frames in sets)


def test_sessions_are_served_in_turn_across_turns() -> None:
    waiting = queue(*map(batch, "aaabbc"))
    assert whose(waiting.take(2 * VISIT_BYTES)) == "ab"
    assert whose(waiting.take(2 * VISIT_BYTES)) == "ca"
    assert whose(waiting.take_all()) == "ba"
    assert not waiting.sessions and not waiting.bytes


def test_sessions_with_small_and_large_batches_get_equal_bytes() -> None:
    waiting = queue(*(batch(session, size) for session, size in [("a", VISIT_BYTES), ("b", VISIT_BYTES // 4)] * 8))
    assert whose(waiting.take(3 * VISIT_BYTES)) == "abbbba"


def test_a_turn_takes_one_set_at_least_and_stops_in_the_middle_of_a_visit() -> None:
    waiting = queue(batch("a", 1000), batch("a", 1000))
    assert whose(waiting.take(1)) == "a"
    assert whose(waiting.take(1)) == "a"
    assert whose(waiting.take(1)) == ""


def test_sets_of_chp1_wait_together() -> None:
    waiting = queue([b"/a", b"n", b"u" * 16, b"", b"1"], batch("s", 10), [b"/b", b"n", b"v" * 16, b"", b"2"])
    assert [frames[0] for frames in waiting.take_all()] == [b"/a", b"/b", RESERVED_KEY]


def test_the_queue_has_room_up_to_the_limit() -> None:
    waiting = queue(batch("a", 9 * VISIT_BYTES))
    assert 0 < waiting.room < VISIT_BYTES
    waiting.add(batch("b"))
    assert waiting.room == 0 and len(waiting) == 2
    list(waiting.take_all())
    assert waiting.room == 10 * VISIT_BYTES


def test_batches_without_keys_count_a_share_of_their_bytes() -> None:
    assert turn_bytes([b"", b"", b"", b"", b"\x93\x90\x90" + bytes(37)], 4) == 10
    assert turn_bytes([b"", b"", b"", b"", bytes(40)], 4) == 40
