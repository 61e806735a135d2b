"""covers: `Clone.sync`: a batch of no keys is settled when the copy holds all that the servers had before it."""

from __future__ import annotations

import pytest

from chp_client import BadInput, Clone
from tests.talk import NO_SERVER
from tests.unit.client_frames import OTHER, Talk, n


def test_a_sync_is_settled_when_the_copy_has_all_earlier_updates() -> None:
    talk = Talk().joined(n(1), **{"/a": n(1)})
    no = talk.set({})
    talk.ack(no, no, n(3))
    assert not talk.settled, "the acknowledgement alone does not show what was set before it"
    talk.batch(n(1), n(2), {"/a": b"others"}, origins=[[OTHER, 1]])
    assert talk.map["/a"] == b"others" and not talk.settled
    talk.heartbeat(n(3), n(2))
    assert [handle for handle, _ in talk.settled] == [no]


def test_a_sync_waits_for_each_channel_of_the_copy() -> None:
    talk = Talk("/a/", "/b/").joined()
    no = talk.set({})
    talk.ack(no, no, n(3))
    talk.heartbeat(n(3), n(0), on="/a/")
    assert not talk.settled
    talk.heartbeat(n(3), n(0), on="/b/")
    assert [handle for handle, _ in talk.settled] == [no]


def test_sync_of_a_write_only_clone_is_refused() -> None:
    with Clone(NO_SERVER, subtree=None) as clone, pytest.raises(BadInput, match="only writes"):
        clone.sync(1)
