"""covers: copies that take their time, and what is left of a ttl after a resume (SPEC.md, section 17.2)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from chp.batch import packb, split
from chp.headers import KTHXBAI, RECORDS, SYNC
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.versions import VERSION

from .client_frames import Talk as ClientTalk
from .client_frames import n
from .server_talk import ONE, TWO, Talk

# One turn gathers four keys, so a copy of some hundred takes many turns.
SLOW = replace(DEFAULT, gather_items_max=4, gather_quiet_times=1)
KEYS = {f"/k/{i}": b"v" for i in range(200)}


class Asking(Talk):
    """A server, and one reader's answers with the time of each."""

    def __init__(self, *args: Any) -> None:
        self.got: list[tuple[float, list[Any]]] = []
        super().__init__(*args)

    def ask(self, subtree: str = "", **options: Any) -> None:
        told = packb({"chp": VERSION, "id": 1, "from": 0, "credit": 64, **options})
        self.core.request([b"reader", ICANHAZ, subtree.encode(), told])

    def turn(self, seconds: float = 1.0) -> Any:
        turn = super().turn(seconds)
        self.got += [(self.now, split(f[4])) for who, many in turn.replies for f in many if who == b"reader"]
        return turn

    def answer(self, seconds: float, turns: int = 400) -> list[list[Any]]:
        """Return the bodies of an answer, after so many turns at most."""
        for _ in range(turns):
            self.turn(seconds)
            if self.got and self.got[-1][1][0][0] == KTHXBAI:
                break
        return [body for _, body in self.got]


def test_a_reader_hears_each_second_that_its_snapshot_is_prepared() -> None:
    talk = Asking(SLOW)
    talk.set(ONE, 1, KEYS)
    talk.turn()
    began = talk.now
    talk.ask("/k/")
    chunks = talk.answer(0.2)
    told = [began, *(at for at, _ in talk.got)]
    assert max(b - a for a, b in pairwise(told)) < 1.01
    assert [header[0] for header, *_ in chunks] == [SYNC] * (len(chunks) - 1) + [KTHXBAI]
    assert [header[2] for header, *_ in chunks[:-1]] == list(range(len(chunks) - 1)), "empty ones count in the index"
    assert len([1 for _, *segments in chunks[:-1] if not segments]) > 5 > talk.core.requests.syncs.dropped
    assert sum(len(segment[0]) for _, *segments in chunks for segment in segments) == len(KEYS)


def test_a_reader_hears_each_second_that_its_resume_is_prepared() -> None:
    talk = Asking(SLOW)
    talk.set(ONE, 1, KEYS)
    talk.turn()
    number = talk.core.state.number
    talk.set(ONE, 2, {"/k/new": b"1"})
    talk.turn()
    talk.ask("/k/", **{"from": number, "proof": talk.core.state.whose(number)})
    chunks = talk.answer(0.2)
    assert [header[0] for header, *_ in chunks] == [RECORDS] * (len(chunks) - 1) + [KTHXBAI]
    assert [header[2] for header, *_ in chunks[:-1]] == list(range(len(chunks) - 1))
    assert len(chunks) > 5 and len([1 for _, *records in chunks[:-1] if records]) == 1


def test_an_immediate_answer_has_no_empty_chunk() -> None:
    talk = Asking()
    talk.set(ONE, 1, KEYS)
    talk.turn()
    talk.ask("/k/")
    assert [body[0][0] for body in talk.answer(1.0)] == [SYNC, KTHXBAI] and all(body[1:] for _, body in talk.got[:-1])


def test_a_client_that_hears_empty_chunks_does_not_begin_anew() -> None:
    talk = ClientTalk()
    talk.greet()
    asked = len(talk.requests)
    for index in range(30):
        talk.wait(1.0)
        talk.heartbeat(n(1), count=1)
        talk.reply(n(1), [3, talk.last_id(), index])
    assert len([r for r in talk.requests[asked:] if "more" not in r[2]]) == 0
    talk.reply(n(1), [3, talk.last_id(), 30], [["/a"], [b"1"], {"r": [[n(1), 1]]}])
    talk.reply(n(1), [5, talk.requests[asked - 1][2]["id"], n(1), 1, n(1), None, False, 0, 0, [b"T" * 16, b"S" * 16]])
    assert talk.map == {"/a": b"1"}


# -- what is left of a ttl


@pytest.mark.parametrize("column", [20_000, [[0, 1], [20_000, 20_000]]])
def test_a_resume_tells_what_is_left_of_each_ttl(column: Any) -> None:
    talk = Asking()
    talk.set(ONE, 1, {"/first": b"1"})
    talk.turn()
    number = talk.core.state.number
    talk.set(ONE, 2, {"/a": b"1", "/b": b"1"}, t=column)
    talk.turn(0.0)
    talk.turn(5.0)
    talk.set(TWO, 1, {"/b": b"2"}, t=30_000)
    talk.turn(0.0)
    talk.turn(2.0)
    talk.ask("", **{"from": number, "proof": talk.core.state.whose(number)})
    [chunk, _] = talk.answer(0.0)
    left: dict[str, int] = {}
    for _, (keys, _, extras) in chunk[1:]:
        ttl = extras["t"]
        left |= dict.fromkeys(keys, ttl) if isinstance(ttl, int) else {keys[i]: ms for i, ms in zip(*ttl, strict=True)}
    assert left == {"/a": 13_000, "/b": 28_000}


def test_a_feed_tells_the_ttl_that_was_set() -> None:
    talk = Asking()
    talk.set(ONE, 1, {"/a": b"1"}, t=20_000)
    talk.turn(0.0)
    talk.turn(5.0)
    talk.ask(feed=True)
    [chunk, _] = talk.answer(0.0)
    assert [segment[2]["t"] for record in chunk[1:] for segment in record[1:]] == [20_000]
