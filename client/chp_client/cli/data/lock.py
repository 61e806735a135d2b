"""`chp lock` and `chp elect`: run a command while a lock is held, or while this client is the leader.

The command is a child process. `chp` ends with the child's exit code. If the lock is lost while the child runs, the
child gets SIGTERM, then SIGKILL, and `chp` ends with exit code 4. The child's environment has CHP_LOCK_TOKEN, the
fencing token.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from typing import Any

import click

from ...recipes import Election
from ..faults import NotFound, RefusedByServer
from ..settings import CliSettings, command, duration
from ..store import reading
from ..text import escape

# A child has this many seconds to end after SIGTERM; then it gets SIGKILL.
END_S = 10.0


def _options(function: Any) -> Any:
    """Add the arguments and options that both commands have."""
    for each in (
        duration("--ttl", default="10s", help="How long the place of a silent holder is kept."),
        duration("--wait", help="Wait at most so long.  [default: for ever]"),
        click.option("--name", help="The name of this holder for others.  [default: the host's name]"),
        click.argument("program", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED),
        click.argument("path"),
    ):
        function = each(function)
    return function


@command(mounts=True)
@_options
def lock(settings: CliSettings, **how: Any) -> int | None:
    """Run a command while holding a lock.

    Wait for the lock PATH, run COMMAND, and give the lock back. Without COMMAND, show the holder of the lock and the
    clients that wait for it.

    The exit code is that of COMMAND; 1 if --wait passed without the lock, 4 if the lock was lost while COMMAND ran.

    Examples:
        chp lock /locks/nightly -- ./nightly.sh     # waits for its turn
        chp lock /locks/nightly --wait 1s -- ./nightly.sh   # else exit code 1
        chp lock /locks/nightly                     # who has it, and who waits
    """
    return _run(settings, **how)


@command(mounts=True)
@_options
def elect(settings: CliSettings, **how: Any) -> int | None:
    """Run a command while being the leader.

    Stand for election at PATH, and run COMMAND once elected. The leadership ends when COMMAND ends. Without COMMAND,
    show the leader and its successors; exit code 1 if there is no leader.

    Examples:
        chp elect /leader/reports --name host-1 -- ./reports --serve
        chp elect /leader/reports              # who leads, and who would follow
    """
    return _run(settings, **how)


def _run(
    settings: CliSettings, path: str, program: tuple[str, ...], *, name: str | None, wait: float | None, ttl: float
) -> int | None:
    with reading(settings, [path.rstrip("/") + "/"]) as store:
        place = Election(store.clone, path, (name or socket.gethostname()).replace(":", "-"), ttl=ttl)
        if not program:
            _show(settings, path, place)
            return None
        if not place.acquire(wait):
            raise NotFound(f"{escape(path)} was not had within {wait:g} s: {place.leader} has it")
        try:
            return _while_held(place, program)
        finally:
            place.release()


def _show(settings: CliSettings, path: str, place: Election) -> None:
    names = place.contenders()
    lines = [f"{escape(name)}\t{'waits' if i else 'has it'}" for i, name in enumerate(names)]
    if names or settings.out.json:
        settings.out.answer({"path": path, "holder": next(iter(names), None), "waiting": names[1:]}, "\n".join(lines))
    if not names:
        raise NotFound(f"{escape(path)} has no holder")


def _while_held(place: Election, program: tuple[str, ...]) -> int:
    """Run the command and return its exit code; raise a fault if the lock was lost meanwhile."""
    assert place.token is not None, "it is held"
    environ = {**os.environ, "CHP_LOCK_TOKEN": str(int(place.token))}
    try:
        child = subprocess.Popen(program, env=environ)
    except OSError as error:
        raise NotFound(f"{program[0]}: {error.strerror or error}") from None
    lost = threading.Event()
    place.on_lost(lambda: _end(child, lost))
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:
            # The terminal has sent Ctrl-C to the child too. Wait until the child ends.
            continue
    if lost.is_set():
        raise RefusedByServer(f"the lock was lost while {program[0]} ran: it was told to end")
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[Any], lost: threading.Event) -> None:
    lost.set()
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()


COMMANDS = (lock, elect)
