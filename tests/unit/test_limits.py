"""Tests at reached limits: an admitted client may go on, and a refused batch is never acknowledged."""

from dataclasses import replace
from typing import Any

import pytest

from chp.batch import ACK, REFUSED, packb
from chp.limits import DEFAULT
from chp.numbers import EPOCH_MAX
from chp_server.core.core import CoreConfig, ServerCore

from .server_talk import ONE, TWO, Talk


def kinds(talk: Talk, session: bytes, *batches: tuple[int, dict[str, Any]]) -> list[int]:
    """Return the kinds of the answers to a client's batches."""
    for no, extras in batches:
        talk.set(session, no, {"/k": b"v"}, **extras)
    talk.turn(0.01)
    return [header[0] for header in talk.told(session)]


def test_a_refused_batch_is_refused_again_after_thousands_of_other_batches() -> None:
    """A client whose refusal was lost must be refused again; else it would think that it holds a lock."""
    talk, never = Talk(), {"c": [[0], [7]]}
    assert kinds(talk, ONE, (1, never)) == [REFUSED]
    for start in range(1, 5000, 500):
        kinds(talk, TWO, *((no, never) for no in range(start, start + 500)))
    assert kinds(talk, ONE, (1, never)) == [REFUSED]


def test_admitted_staged_commits_may_go_on_at_the_limit() -> None:
    talk = Talk(replace(DEFAULT, staged_commits_max=2))
    for no, transaction in enumerate((b"A" * 16, b"B" * 16, b"A" * 16, b"B" * 16), 1):
        assert kinds(talk, ONE, (no, {"stage": [transaction, "0.0"]})) == [ACK]
    assert kinds(talk, ONE, (5, {"stage": [b"C" * 16, "0.0"]})) == [REFUSED]


@pytest.mark.parametrize("epoch", [EPOCH_MAX - 1, EPOCH_MAX, 40_000])
def test_a_server_ignores_a_peer_epoch_that_is_too_high(epoch: int) -> None:
    """The journal takes no epoch beyond the last, and would end the server as soon as it became active."""
    server = ServerCore(CoreConfig(has_peer=True, solo_wait_s=1.0, bootstrap=True), b"s" * 16, 0.0)
    server.begin_turn(0.0, 0.0)
    said = {
        "state": 1, "number": epoch << 48, "epoch": epoch, "server": b"p" * 16, "name": "p", "primary": False,
        "in_sync": False, "follows": 0, "version": 3, "store": b"", "opener": b"", "digest": 0, "settings": {},
        "room": True,
    }  # fmt: skip
    server.peer_message([b"STATE", packb(said)])
    server.end_turn()
    # The server hears all the time, and no peer comes.
    for n in range(9):
        server.begin_turn(n / 4, n / 4)
        server.end_turn()
    assert server.active
    assert server.committer.counts["garbage_peer"] == 1
    server.begin_turn(5.1, 5.1)
    at = [server.state.store, epoch << 48, b"", 0]
    server.peer_message([b"WANT", packb({"at": at, "history": []})])
    server.end_turn()
    assert server.state.epoch == 1, "nobody is believed that far"
