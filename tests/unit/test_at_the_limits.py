"""What goes on where a limit is reached: who was let in may go on, and who was refused is not told that it was done."""

from dataclasses import replace
from typing import Any

from chp.batch import ACK, REFUSED, Segment, split
from chp.keys import RESERVED_KEY, session_topic
from chp.limits import DEFAULT, Limits
from chp.numbers import pack
from chp_server.core import CoreConfig, ServerCore

ONE, TWO = b"1" * 16, b"2" * 16


def core(limits: Limits = DEFAULT) -> ServerCore:
    made = ServerCore(CoreConfig(), b"s" * 16, 0.0, limits)
    made.begin_turn(0.0, 0.0)
    made.end_turn()
    return made


def told(server: ServerCore, session: bytes, *batches: tuple[int, dict[str, Any]]) -> list[int]:
    """The kinds of what a client is told of its batches."""
    server.begin_turn(server.now + 0.01, 0.0)
    for no, extras in batches:
        body = Segment(["/k"], [b"v"], extras or None).encode()
        server.collect([RESERVED_KEY, pack(no), session, b"", body])
    return [split(m[4])[0][0] for m in server.end_turn().acks if m[0] == session_topic(session)]


def test_a_refused_batch_that_comes_again_is_refused_again_after_thousands_of_others() -> None:
    """A client whose answer was lost would take a lock for its own that it was refused."""
    server, never = core(), {"c": [[0], [7]]}
    assert told(server, ONE, (1, never)) == [REFUSED]
    for start in range(1, 5000, 500):
        told(server, TWO, *((no, never) for no in range(start, start + 500)))
    assert told(server, ONE, (1, never)) == [REFUSED]


def test_the_last_transaction_that_was_let_in_may_go_on() -> None:
    server = core(replace(DEFAULT, transactions_max=2))
    for no, transaction in enumerate((b"A" * 16, b"B" * 16, b"A" * 16, b"B" * 16), 1):
        assert told(server, ONE, (no, {"stage": [transaction, "0.0"]})) == [ACK]
    assert told(server, ONE, (5, {"stage": [b"C" * 16, "0.0"]})) == [REFUSED]
