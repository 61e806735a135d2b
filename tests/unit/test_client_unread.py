"""covers: a client whose server sends what can't be read: it says so, backs off, and ends the watch that asked."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from chp.errors import BadFrame
from chp_client.core.question import Question

from .client_frames import Talk, n, segment

# One item has more objects than a reader takes.
HEAVY: list[Any] = [[[]] * 60_000] * 20


def heavy(request: int) -> list[Any]:
    """Return the header and an item of RECORDS that weigh too much."""
    return [[4, request, 0, b"S" * 16], HEAVY]


class Heard(Talk):
    """A talk that keeps the warnings too."""

    def __init__(self, *subtrees: str, **options: Any) -> None:
        self.warnings: list[str] = []
        super().__init__(*subtrees, **options)

    def take(self) -> None:
        self.warnings += self.core.out.effects.warnings
        super().take()

    def joined(self, told: int = n(0), **keys: int) -> Heard:
        """Join as `Talk` does."""
        super().joined(told, **keys)
        return self


def test_an_unreadable_answer_causes_one_warning_and_ever_later_requests() -> None:
    talk = Heard().joined(n(1))
    talk.batch(n(2), n(3), {"/a": b"1"})  # a hole
    asked = 0
    for _ in range(40):
        if len(talk.requests) > asked:
            asked = len(talk.requests)
            talk.reply(n(3), *heavy(talk.last_id()))
        talk.wait(1.0)
        talk.heartbeat(n(3), count=9)
    assert talk.stats["garbage"] >= 3
    assert asked < 15, "not again each two seconds, or more often"
    [line] = talk.warnings
    assert "tcp://server0:5556 sent what can't be read" in line and "older version" in line
    while len(talk.requests) == asked:
        talk.wait(1.0)
        talk.heartbeat(n(3), count=9)
    talk.snapshot(n(3), {"/a": (b"1", n(3))})
    assert talk.map == {"/a": b"1"}


def test_an_unreadable_message_is_warned_of_again_after_a_minute() -> None:
    talk = Heard().joined()
    for _ in range(5):
        talk.core.on_update(0, [b"x", b"", b""], talk.now)
        talk.take()
    talk.now += 61
    talk.core.on_update(0, [b"x", b"", b""], talk.now)
    talk.take()
    assert len(talk.warnings) == 2


def test_a_watch_ends_with_the_reason_if_the_missed_changes_are_unreadable() -> None:
    talk = Heard().joined(n(4))
    talk.core.catch_up("watch", "", n(1))
    talk.wait(0.01)
    asked = len(talk.requests)
    talk.reply(n(4), *heavy(talk.last_id()))
    [(handle, error)] = talk.missed
    assert handle == "watch" and isinstance(error, BadFrame)
    assert "changes since 1.1 that can't be read" in str(error) and "start='snapshot'" in str(error)
    talk.wait(10.0)
    assert len(talk.requests) == asked, "nobody asks for it again"


def test_an_unreadable_answer_to_another_request_does_not_end_a_watch() -> None:
    talk = Heard().joined(n(4))
    talk.core.catch_up("watch", "", n(1))
    talk.wait(0.01)
    talk.reply(n(4), *heavy(talk.last_id() + 7))
    assert not talk.missed and talk.stats["garbage"] == 1
    talk.reply(n(4), [4, talk.last_id(), 0, b"S" * 16], [[1, n(1), n(2), n(2), 0, [], False], segment({"/b": b"2"})])
    talk.reply(n(4), [5, talk.last_id(), n(4), 0, 0, None, True, 0, 0, [b"T" * 16, b"S" * 16]])
    assert len(talk.missed) == 1 and not isinstance(talk.missed[0][1], Exception)


def test_a_question_names_the_server_that_sent_an_unreadable_answer() -> None:
    question = Question(1, b"", {})
    with pytest.raises(BadFrame, match=r"tcp://a:1 sent what can't be read: the body is too much"):
        question.hear("tcp://a:1", [b"\2\3", bytes(8), b"", b"", msgpack.packb(heavy(1))])
