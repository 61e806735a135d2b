"""Functions by which tests talk to Clones and commands, and wait; `conftest.py` makes fixtures of them.

A test takes the fixtures `server`, `pair`, `clone` and `run` if their settings suffice. A test with other settings
opens `TestServer(...)` or `Pair(...)` itself, and then one of these:

    synced(servers, ...)       a Clone that holds its first snapshot
    unconnected(...)           a Clone that no server answers
    run("get", "/a")           a command of `chp`, inside the test's process
    until(condition, what)     a wait for what another thread or process does
    join_all(thread, ...)      a wait for the end of threads

A copy may lag behind what another client wrote, so a test looks at it with `until`. `WAIT_S` bounds each wait. It is
long, since a busy machine may be slow; a wait ends as soon as its condition holds.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

from click.testing import CliRunner, Result

from chp_client import Clone
from chp_client.cli.app import chp

WAIT_S = 60.0
# Bounds of memory are multiplied by this: each object of Python without the GIL has 16 bytes more.
LARGER = 1.6 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1.0
TICK_S = 0.01
# The address of a port at which no server listens.
NO_SERVER = "tcp://127.0.0.1:9"

# The settings of a server whose frequent heartbeats soon tell clients its state.
QUICK: dict[str, Any] = {"heartbeat_s": 0.1}
# The settings of a pair whose servers do not take a busy machine for a dead peer.
PATIENT: dict[str, Any] = {"heartbeat_s": 0.1, "peer_timeout_s": 1.0}


def until(condition: Callable[[], object], what: str | Callable[[], object] = "", timeout_s: float = WAIT_S) -> None:
    """Wait until `condition` holds. Raise AssertionError with `what`, or with its result, if that takes too long."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what() if callable(what) else what}"
        time.sleep(TICK_S)


def join_all(*threads: Thread) -> None:
    """Wait until the threads have ended. Raise AssertionError if one hangs."""
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads), f"a thread hangs: {threads}"


def run(*words: str, stdin: bytes | None = None, env: Mapping[str, str | None] | None = None) -> Result:
    """Run a command of `chp` to its end."""
    return CliRunner().invoke(chp, list(words), input=stdin, env=env, prog_name="chp")


@contextmanager
def synced(servers: str | list[str] | None, subtree: str | None = "", **options: Any) -> Iterator[Clone]:
    """Open a Clone that holds its first snapshot."""
    with Clone(servers, subtree, **options) as clone:
        clone.wait_until_synced(WAIT_S)
        yield clone


@contextmanager
def unconnected(**options: Any) -> Iterator[Clone]:
    """Open a Clone that no server answers, and give up at the end what it wanted to send."""
    clone = Clone(NO_SERVER, **options)
    try:
        yield clone
    finally:
        clone.close(0.0)
