"""Tests of one question to P and its answers. covers: chp_client.core.question, chp_client.port"""

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from chp.batch import GREETING, KTHXBAI, REFUSED, REPLY, SYNC, join, unpackb
from chp.errors import BadFrame
from chp.headers import Kthxbai, Sync
from chp.keys import RESERVED_KEY
from chp.messages import ICANHAZ
from chp.numbers import number, pack
from chp_client.core.question import Question, reply_of
from chp_client.errors import Refused, Unanswered
from chp_client.port.ask import QuestionPort
from chp_client.port.connection import Connection, Elsewhere
from chp_server.testing import Pair, free_port


def message(*header: Any) -> list[bytes]:
    """Return a message of P."""
    return [RESERVED_KEY, pack(number(1, 7)), b"", b"", join(list(header))]


def end(request: int) -> list[bytes]:
    return message(KTHXBAI, request, 8, 0, 0, None, False)


def sync(request: int, chunk: int) -> list[bytes]:
    return message(SYNC, request, chunk, 0)


def test_a_question_is_an_icanhaz_with_its_id_and_options() -> None:
    command, subject, body = Question(5, b"/a/", {"from": 0, "credit": 2}).frames
    assert (command, subject) == (ICANHAZ, b"/a/")
    options = unpackb(body, "options")
    assert {name: options[name] for name in ("id", "from", "credit")} == {"id": 5, "from": 0, "credit": 2}


def test_an_answer_to_an_earlier_question_is_dropped() -> None:
    question = Question(2, b"", {})
    assert question.hear("s", message(REPLY, 1, {})) is None
    assert not question.over
    told = question.hear("s", message(REPLY, 2, {"a": 1}))
    assert told is not None and reply_of("s", told).facts == {"a": 1} and question.over


@pytest.mark.parametrize(
    "frames",
    [
        [b"x"],
        [RESERVED_KEY, pack(1), b"", b"", b"\xc1"],
        message(REPLY, 2, []),
        message(GREETING, 3, 3, 7, 250, bytes(16), "fake"),
    ],
)
def test_a_message_that_is_no_valid_answer_is_a_bad_frame(frames: list[bytes]) -> None:
    with pytest.raises(BadFrame):
        Question(2, b"", {}).hear("s", frames)


def test_a_chunk_is_refused_where_a_reply_is_due() -> None:
    told = Question(2, b"", {}).hear("s", sync(2, 0))
    assert told is not None
    with pytest.raises(BadFrame, match="s answered with SYNC where a REPLY was due"):
        reply_of("s", told)


def test_a_question_grants_room_for_chunks_taken_until_the_end() -> None:
    question = Question(3, b"/a/", {}, grant=2)
    granted = []
    for frames in (
        sync(3, 0),
        sync(3, 1),
        sync(9, 2),
        sync(3, 2),
        sync(3, 3),
        end(3),
    ):
        heard = question.hear("s", frames)
        granted.append(question.granted() if heard is not None else None)
    more = [None if frames is None else unpackb(frames[2], "options")["more"] for frames in granted]
    assert more == [None, 2, None, None, 2, None]
    assert question.over


@pytest.mark.parametrize(
    ("code", "text"), [("bad", "tcp://a:1: refused: no"), ("full", r"tcp://a:1: refused: (full) no")]
)
def test_a_refusal_names_the_server_the_code_and_the_detail(code: str, text: str) -> None:
    with pytest.raises(Refused) as found:
        Question(1, b"", {}).hear("tcp://a:1", message(REFUSED, 1, code, "no"))
    error = found.value
    assert (str(error), error.code, error.detail, error.server) == (text, code, "no", "tcp://a:1")


def test_a_refusal_shows_the_oldest_revision_in_readable_form() -> None:
    with pytest.raises(Refused, match=r"refused: \(retained\) 1\.88$") as found:
        Question(1, b"", {}).hear("tcp://a:1", message(REFUSED, 1, "retained", number(1, 88)))
    assert found.value.detail == number(1, 88)


@pytest.fixture
def line() -> Iterator[tuple[Connection, zmq.Socket[bytes]]]:
    """Return an open connection, and the server's end of it."""
    context = zmq.Context()
    server = context.socket(zmq.ROUTER)
    server.linger = 0
    port = server.bind_to_random_port("tcp://127.0.0.1")
    made = Connection(context, f"tcp://127.0.0.1:{port}")
    assert made.reach(30.0) and made.reached
    yield made, server
    made.close()
    server.close()
    context.term()


def test_a_connection_takes_an_answer_and_makes_room_for_more(line: tuple[Connection, zmq.Socket[bytes]]) -> None:
    mine, server = line
    question = Question(4, b"/a/", {}, grant=2)
    assert mine.ask(question)
    identity, *asked = server.recv_multipart()
    assert asked == question.frames
    for frames in (sync(3, 7), sync(4, 0), sync(4, 1), end(4)):
        server.send_multipart([identity, *frames])
    kinds = [type(told.header) for told in mine.answer(question, 10.0)]
    assert kinds == [Sync, Sync, Kthxbai]
    assert unpackb(server.recv_multipart()[3], "options")["more"] == 2 and not server.poll(0)


def test_hear_reports_a_silent_server_after_the_timeout(line: tuple[Connection, zmq.Socket[bytes]]) -> None:
    mine, _ = line
    with pytest.raises(Elsewhere, match=r"^tcp://127\.0\.0\.1:\d+ said nothing for 0\.05 s$"):
        mine.hear(Question(1, b"", {}), 0.05)


def test_messages_before_the_end_of_a_connection_are_taken_first(line: tuple[Connection, zmq.Socket[bytes]]) -> None:
    mine, server = line
    question = Question(4, b"/a/", {})
    assert mine.ask(question)
    identity, *_ = server.recv_multipart()
    server.send_multipart([identity, *sync(4, 0)])
    assert mine.requests.poll(30_000)
    # libzmq may drop what is unread when a connection ends, so the end is only told here.
    mine.stands = False
    assert isinstance(mine.hear(question, 30.0).header, Sync)
    with pytest.raises(Elsewhere, match="went away"):
        mine.hear(question, 30.0)
    assert not mine.ask(question) and not mine.reach(0.05), "nothing is queued for a server that is away"


def test_a_connection_to_an_unused_port_is_not_reached() -> None:
    with zmq.Context() as context:
        mine = Connection(context, f"tcp://127.0.0.1:{free_port()}")
        assert not mine.reach(0.05) and not mine.ask(Question(1, b"", {})) and not mine.reached
        mine.close()
        mine.close()


def test_a_question_port_walks_from_the_passive_to_the_active() -> None:
    with Pair() as pair, QuestionPort([pair.backup.address, pair.primary.address], 30.0) as port:
        assert port.ask("", feed=True, probe=0)["newest"] >= 0


def test_a_port_asks_for_facts_any_number_of_times() -> None:
    """A server forgets a question for facts once it has answered: a connection may have 128 open."""
    with Pair() as pair, QuestionPort([pair.primary.address], 5.0) as port:
        for _ in range(300):
            port.ask("", feed=True, probe=0)
        for _ in range(300):
            port.ask("", image=0, prefix="")


def test_a_port_that_reaches_no_server_names_the_servers_and_the_remedy() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        QuestionPort([address], 0.2) as port,
        pytest.raises(Unanswered, match=f"no server of {address} serves.*chp status"),
    ):
        port.ask("", feed=True, probe=0)
