"""Tests of Ctrl-C in the middle of a set, a delete or a lease: it takes full effect or none, and the Clone goes on.

Python runs a signal's handler where a Python function begins, or after a call. Python calls a profiler at the same
places. So a profiler can raise KeyboardInterrupt at each of these places in turn.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from chp_client import Clone, Revision
from chp_client.clone.base import internals
from chp_server.testing import TestServer, free_port
from tests.talk import WAIT_S, until

SOME = {f"/some/{i}": b"1" for i in range(20)}
MANY = {f"/many/{i}": b"1" for i in range(3000)}
OLD = {"/a": b"old", "/some/1": b"old"}


def revision_of(clone: Clone, key: str) -> Revision:
    entry = clone.entry(key)
    assert entry is not None
    return entry.revision


# name -> (the act, the contents after it)
ACTS: dict[str, tuple[Callable[[Clone], Callable[[], object]], dict[str, bytes]]] = {
    "set": (lambda clone: partial(clone.set, "/a", b"new"), OLD | {"/a": b"new"}),
    "set a large value": (lambda clone: partial(clone.set, "/a", b"x" * 5000), OLD | {"/a": b"x" * 5000}),
    "set with a ttl": (lambda clone: partial(clone.set, "/a", b"new", ttl=1000), OLD | {"/a": b"new"}),
    "set on a condition": (
        lambda clone: partial(clone.set, "/a", b"new", if_revision=revision_of(clone, "/a")),
        OLD | {"/a": b"new"},
    ),
    "delete": (lambda clone: partial(clone.delete, "/a"), {"/some/1": b"old"}),
    "set some": (lambda clone: partial(clone.set_many, SOME), OLD | SOME),
    "set many": (lambda clone: partial(clone.set_many, MANY), OLD | MANY),
    "delete some": (lambda clone: partial(clone.delete_many, SOME), {"/a": b"old"}),
    "open a lease": (lambda clone: partial(clone.lease, 1000), OLD),
    "set by a lease": (lambda clone: partial(clone.lease(1000).set_many, SOME), OLD | SOME),
    "clear": (lambda clone: clone.clear, {}),
}


def arrived(other: Clone, clone: Clone) -> bool:
    return bool(other.get("/end") == clone["/end"])


def interrupted(act: Callable[[], object], place: int) -> bool:
    """Interrupt an act at a place, and return True if there was such a place."""
    left = place

    def profiler(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and "chp_client" in frame.f_code.co_filename:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profiler)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("what", ACTS)
def test_an_interrupted_set_is_made_wholly_or_not_at_all(server: TestServer, what: str) -> None:
    with Clone(server.address) as clone, Clone(server.address) as other:
        for each in (clone, other):
            each.wait_until_synced(WAIT_S)
        core, place, going_on = internals(clone).mailbox.core, 0, True
        prepare, new = ACTS[what]

        def overdue(now: float) -> None:
            # The agent sends now what it has not sent yet. Otherwise it would do so two seconds later.
            core.session.progress_at = now - WAIT_S

        while going_on:
            clone.clear()
            clone.set_many(OLD).wait(WAIT_S)
            act = prepare(clone)
            clone.flush(WAIT_S)
            until(lambda: clone.window == (0, 0), clone.describe)
            going_on = interrupted(act, place)
            internals(clone).mailbox.command(overdue)
            clone.flush(WAIT_S)
            held = clone.snapshot()
            assert held in (OLD, new), f"made in part, interrupted at place {place}"
            clone.set("/end", str(place).encode()).wait(WAIT_S)
            until(partial(arrived, other, clone), other.describe)
            assert clone.snapshot() == other.snapshot(), f"interrupted at place {place}"
            assert clone.verify().ok
            place += 1
        assert held == new and place > 5


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Set Python's own handler of SIGINT, since a background job of a shell ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_clone_can_be_closed_after_an_interrupted_close() -> None:
    clone = Clone(f"tcp://127.0.0.1:{free_port()}")
    # No server takes the set, so the close waits.
    clone.set("/a", b"1")
    timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        clone.close(WAIT_S)
    timer.join()
    clone.close(0)
    assert clone.state == "CLOSED"
    assert not clone._agent.thread.is_alive()
