"""covers: core/questions/syncs.py: how many streams there may be, and which of them is given up."""

from itertools import repeat

from chp.limits import DEFAULT
from chp_server.core.questions.syncs import Syncs, SyncStream

A, SESSION = b"connection", b"session"


def stream(request_id: int, copy: tuple[bytes, str] | None = None, identity: bytes = A) -> SyncStream:
    return SyncStream(identity, request_id, repeat([[b"part"]]), 0, True, 0.0, copy=copy)


def test_a_second_request_for_a_copy_ends_the_first_one() -> None:
    """A server that was stopped finds a minute's questions of one Clone; they leave room for the next."""
    syncs = Syncs(DEFAULT)
    for request_id in range(3 * DEFAULT.syncs_of_one_max):
        assert syncs.open(stream(request_id, (SESSION, "/a/")))
    assert len(syncs) == 1 and syncs.serves(A)
    syncs.close(A)
    assert not syncs.serves(A) and syncs.open(stream(1, (SESSION, "/a/"))) and len(syncs) == 1


def test_copies_of_other_subtrees_sessions_and_connections_go_on() -> None:
    syncs = Syncs(DEFAULT)
    for i, (copy, identity) in enumerate(
        [((SESSION, "/a/"), A), ((SESSION, "/b/"), A), ((b"another", "/a/"), A), ((SESSION, "/a/"), b"else"), (None, A)]
    ):
        assert syncs.open(stream(i, copy, identity))
    assert len(syncs) == 5


def test_each_request_without_a_copy_counts_towards_the_bound() -> None:
    syncs = Syncs(DEFAULT)
    for request_id in range(DEFAULT.syncs_of_one_max):
        assert syncs.open(stream(request_id))
    assert not syncs.open(stream(9999)) and syncs.refused == 1
