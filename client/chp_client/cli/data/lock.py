"""`chp lock` and `chp elect`: run a command while a lock is held, or while this is the leader.

The command is a child process. It ends as it likes, and its exit code is ours; if the lock is lost meanwhile it is told
by SIGTERM, then SIGKILL, and the exit code is 4. Its environment has CHP_LOCK_TOKEN, the fencing token.
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
from ..out import json_line
from ..settings import DURATION, CliSettings, examples, pass_settings, shared
from ..store import reading
from ..text import escape

END_S = 10.0  # for a child that was told to end, before it is killed
_WAIT = click.option("--wait", type=DURATION, metavar="DURATION", help="Wait at most so long.  [default: for ever]")
_TTL = click.option(
    "--ttl", type=DURATION, default="10s", metavar="DURATION", show_default=True,
    help="How long the place of one that is not heard is kept.",
)  # fmt: skip


@click.command(short_help="Run a command while holding a lock.", epilog=examples("""
    chp lock /locks/nightly -- ./nightly.sh     # waits for its turn
    chp lock /locks/nightly --wait 1s -- ./nightly.sh   # else exit code 1
    chp lock /locks/nightly                     # who has it, and who waits
"""))  # fmt: skip
@click.argument("path")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="What others see of this holder.  [default: the host's name]")
@_WAIT
@_TTL
@shared
@pass_settings
def lock(
    settings: CliSettings, path: str, command: tuple[str, ...], *, name: str | None, wait: float | None, ttl: float
) -> None:
    """Wait for the lock PATH, run COMMAND, and give it back; without COMMAND, show who has it and who waits.

    The exit code is the command's; 1 if the lock was not had within --wait, 4 if it was lost while the command ran.
    """
    _run(settings, path, command, name=name, wait=wait, ttl=ttl)


@click.command(short_help="Run a command while being the leader.", epilog=examples("""
    chp elect /leader/reports --name host-1 -- ./reports --serve
    chp elect /leader/reports              # who leads, and who would follow
"""))  # fmt: skip
@click.argument("path")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="What others see of this one.  [default: the host's name]")
@_WAIT
@_TTL
@shared
@pass_settings
def elect(
    settings: CliSettings, path: str, command: tuple[str, ...], *, name: str | None, wait: float | None, ttl: float
) -> None:
    """Stand for election at PATH, and run COMMAND once elected; leadership ends with it.

    Without COMMAND, show who leads and who would follow; exit code 1 if nobody does.
    """
    _run(settings, path, command, name=name, wait=wait, ttl=ttl)


def _run(
    settings: CliSettings, path: str, command: tuple[str, ...], *, name: str | None, wait: float | None, ttl: float
) -> None:
    with reading(settings, [path.rstrip("/") + "/"]) as store:
        place = Election(store.clone, path, (name or socket.gethostname()).replace(":", "-"), ttl=ttl)
        if not command:
            _show(settings, path, place)
            return
        if not place.acquire(wait):
            raise NotFound(f"{escape(path)} was not had within {wait:g} s: {place.leader} has it")
        try:
            code = _while_held(place, command)
        finally:
            place.release()
    click.get_current_context().exit(code)


def _show(settings: CliSettings, path: str, place: Election) -> None:
    names = place.contenders()
    if settings.out.json:
        line = json_line({"path": path, "holder": next(iter(names), None), "waiting": names[1:]})
        settings.out.raw(line.encode() + b"\n")
    for i, contender in enumerate([] if settings.out.json else names):
        settings.out.raw(f"{escape(contender)}\t{'waits' if i else 'has it'}\n".encode())
    if not names:
        raise NotFound(f"nobody has {escape(path)}")


def _while_held(place: Election, command: tuple[str, ...]) -> int:
    """The command's exit code; raises Refused if what it ran under was lost."""
    assert place.token is not None, "it is held"
    environ = {**os.environ, "CHP_LOCK_TOKEN": str(int(place.token))}
    try:
        child = subprocess.Popen(command, env=environ)
    except OSError as error:
        raise NotFound(f"{command[0]}: {error.strerror or error}") from None
    lost = threading.Event()
    place.on_lost(lambda: _end(child, lost))
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:  # the terminal has told the child too; it ends as it likes
            continue
    if lost.is_set():
        raise RefusedByServer(f"the lock was lost while {command[0]} ran: it was told to end")
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[Any], lost: threading.Event) -> None:
    lost.set()
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()


COMMANDS = (lock, elect)
