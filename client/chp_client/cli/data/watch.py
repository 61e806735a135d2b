"""`chp watch`: every change under a prefix, as it happens, until Ctrl-C.

set     /rates/EUR/USD   1.0832        a pipe gets op, key, value, with tabs between; --json has the revision too
del     /rates/EUR/HRK
del     /who/1           expired       its ttl or its lease ran out
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import click

from ..faults import PIPE_CLOSED, Misused, RefusedByServer
from ..out import Out
from ..settings import KEY_START, CliSettings, at_least_1, command, moved
from ..store import Store, reading
from ..text import escape, show_revision, show_value, value_fields

if TYPE_CHECKING:
    from chp_client import Change


@command(mounts=True)
@click.argument("prefix", default="")
@click.option(
    "--from",
    "start",
    type=KEY_START,
    default="end",
    metavar="end|snapshot|begin|REVISION",
    help="Where to begin: with new changes, with all that is held, with the oldest change retained, or with every "
    "change after a revision.  [default: end]",
)
@moved("--start", "--from")
@at_least_1("--count", help="End after so many changes.")
@click.option("--exec", "program", metavar="COMMAND", help="Run it in a shell for each change, one after the other.")
def watch(settings: CliSettings, prefix: str, start: str | int, count: int | None, program: str | None) -> None:
    """Print every change as it happens.

    PREFIX is the beginning of the keys. Each change is printed once and in order, until Ctrl-C. In a pipe a line is
    "set, key, value" or "del, key", with tabs between. A "del" line ends with "expired" if a ttl or a lease had run
    out. With --json a line has the revision too.

    With --exec nothing is printed: COMMAND has CHP_OP (set, del or expired), CHP_KEY and CHP_REVISION in its
    environment, and the value's bytes as its input. A command that fails is reported on standard error.

    Examples:
        chp watch                                # everything
        chp watch /rates/EUR/ --from snapshot    # what is there, then what changes
        chp watch /jobs/done --count 1           # wait for one change, then end
        chp watch --json /rates/ | jq -r .value
        chp watch /config/ --exec './reload.sh'  # a command for each change
    """
    out, left = settings.out, count
    with reading(settings, [prefix]) as store:
        _check(store, prefix, start)
        out.watch_reader(PIPE_CLOSED)
        out.note(f"watching {escape(prefix) or 'everything'}; Ctrl-C ends it")
        for changes in store.changes(prefix, start):
            if program is None:
                out.show(changes[:left], _fields, _text)
            else:
                for change in changes[:left]:
                    _run(program, change)
            if left is not None:
                left -= len(changes)
                if left <= 0:
                    return


def _check(store: Store, prefix: str, start: str | int) -> None:
    """Raise a fault for a watch that would never print anything."""
    if prefix.endswith("*") and not store.keys(prefix, limit=1):
        raise Misused(f"{escape(prefix)!r}: a watch is by prefix; use {escape(prefix.rstrip('*'))!r}")
    if isinstance(start, int) and start > store.number:
        raise RefusedByServer(
            f"--from {show_revision(start)} is above the store's number {show_revision(store.number)}: it is of "
            "another store, or of what this one lost; give end or snapshot"
        )


def _run(program: str, change: Change) -> None:
    """Run a command for a change, and wait until it ends; later changes wait too."""
    operation = "expired" if change.expired else "del" if change.value is None else "set"
    told = {"CHP_OP": operation, "CHP_KEY": change.key, "CHP_REVISION": show_revision(change.revision)}
    if "\0" in change.key:
        click.echo(f"chp watch: {escape(change.key)} has a NUL, which no environment takes; left out", err=True)
        return
    done = subprocess.run(program, shell=True, input=change.value or b"", env={**os.environ, **told}, check=False)
    if done.returncode:
        click.echo(f"chp watch: {program}: exit code {done.returncode}, of {escape(change.key)}", err=True)


def _fields(change: Change) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": "del" if change.value is None else "set", "key": change.key}
    if change.value is not None:
        fields.update(value_fields(change.value))
    elif change.expired:
        fields["expired"] = True
    if change.mount:
        fields["mount"] = change.mount
    return {**fields, "revision": show_revision(change.revision)}


def _text(out: Out, change: Change) -> str | bytes:
    value = change.value
    if not out.terminal:
        key = change.key.encode()
        return (
            b"set\t%b\t%b" % (key, value) if value is not None else b"del\t%b%b" % (key, b"\texpired" * change.expired)
        )
    at, revision = (out.style(text, dim=True) for text in (time.strftime("%H:%M:%S"), show_revision(change.revision)))
    word, rest = ("del", "  expired" * change.expired) if value is None else ("set", f"  {show_value(value)}")
    colour = "red" if value is None else "green"
    return f"{at}  {out.style(word, fg=colour)}  {escape(change.key)}{rest}  {revision}"


COMMANDS = (watch,)
