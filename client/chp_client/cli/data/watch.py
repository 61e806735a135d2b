"""`chp watch`: every change under a prefix, as it happens, until Ctrl-C.

set     /rates/EUR/USD   1.0832        a pipe gets op, key, value, with tabs between; --json has the rest
del     /rates/EUR/HRK
del     /who/1           expired       by time: nobody deleted it
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import click

from ..faults import PIPE_CLOSED, Misused, RefusedByServer
from ..out import Out, json_line
from ..settings import CliSettings, examples, pass_settings, shared
from ..store import reading
from ..text import escape, read_revision, show_revision, show_value, value_fields

if TYPE_CHECKING:
    from chp_client import Change


def _start(text: str) -> str | int:
    if text in ("now", "snapshot"):
        return "end" if text == "now" else text
    try:
        return read_revision(text)
    except ValueError:
        raise Misused(f"--start {text!r}: give now, snapshot, or a revision such as 1.42") from None


@click.command(short_help="Print every change as it happens.", epilog=examples("""
    chp watch                                # everything
    chp watch /rates/EUR/ --start snapshot   # what is there, then what changes
    chp watch /jobs/done --count 1           # wait for one change, then end
    chp watch --json /rates/ | jq -r .value
    chp watch /config/ --exec './reload.sh'  # a command for each change
"""))  # fmt: skip
@click.argument("prefix", default="")
@click.option(
    "--start",
    default="now",
    metavar="now|snapshot|REVISION",
    help="Where to begin: now, with all that is held, or with every change after a revision.  [default: now]",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--exec", "command", metavar="COMMAND", help="Run it in a shell for each change, one after the other.")
@shared
@pass_settings
def watch(settings: CliSettings, prefix: str, start: str, count: int | None, command: str | None) -> None:
    """Print each change of the keys that begin with PREFIX, once and in order, until Ctrl-C.

    In a pipe a line is: set, key, value, or del, key, with tabs between; "expired" follows where a ttl or a lease had
    run out. With --json it has the revision too.

    With --exec nothing is printed: COMMAND has CHP_OP (set, del or expired), CHP_KEY and CHP_REVISION in its
    environment, and the value's bytes as its input. One that fails is told of on standard error, and ends nothing.
    """
    begin = _start(start)
    out = settings.out
    left = count
    with reading(settings, [prefix]) as store:
        if isinstance(begin, int) and begin > store.number:
            raise RefusedByServer(
                f"--start {show_revision(begin)} is above the store's number {show_revision(store.number)}: it is of "
                "another store, or of what this one lost; give now or snapshot"
            )
        out.watch_reader(PIPE_CLOSED)
        out.note(f"watching {escape(prefix) or 'everything'}; Ctrl-C ends it")
        for changes in store.changes(prefix, begin):
            if command is None:
                out.raw(b"".join(_line(out, change) for change in changes[:left]))
            else:
                for change in changes[:left]:
                    _run(command, change)
            if left is not None:
                left -= len(changes)
                if left <= 0:
                    return


def _run(command: str, change: Change) -> None:
    """Run a command for a change, and wait until it ends; what came meanwhile waits too."""
    operation = "expired" if change.expired else "del" if change.value is None else "set"
    said = {"CHP_OP": operation, "CHP_KEY": change.key, "CHP_REVISION": show_revision(change.revision)}
    if "\0" in change.key:
        click.echo(f"chp watch: {escape(change.key)} has a NUL, which no environment takes; left out", err=True)
        return
    done = subprocess.run(command, shell=True, input=change.value or b"", env={**os.environ, **said}, check=False)
    if done.returncode:
        click.echo(f"chp watch: {command}: exit code {done.returncode}, of {escape(change.key)}", err=True)


def _line(out: Out, change: Change) -> bytes:
    key, value = change.key.encode(), change.value
    if out.json:
        return json_line(_fields(change)).encode() + b"\n"
    if out.terminal:
        return _coloured(out, change).encode() + b"\n"
    if value is not None:
        return b"set\t%b\t%b\n" % (key, value)
    return b"del\t%b\texpired\n" % key if change.expired else b"del\t%b\n" % key


def _fields(change: Change) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": "del" if change.value is None else "set", "key": change.key}
    if change.value is not None:
        fields.update(value_fields(change.value))
    elif change.expired:
        fields["expired"] = True
    return {**fields, "revision": show_revision(change.revision)}


def _coloured(out: Out, change: Change) -> str:
    at = out.style(time.strftime("%H:%M:%S"), dim=True)
    revision = out.style(show_revision(change.revision), dim=True)
    if change.value is None:
        why = "  expired" if change.expired else ""
        return f"{at}  {out.style('del', fg='red')}  {escape(change.key)}{why}  {revision}"
    return f"{at}  {out.style('set', fg='green')}  {escape(change.key)}  {show_value(change.value)}  {revision}"


COMMANDS = (watch,)
