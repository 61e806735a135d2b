"""`chp record` and `chp replay`: the change feed into a directory of Parquet files, and back into a store.

The package `chp_client.recording` does the work, and needs the extra `parquet`. On Ctrl-C or SIGTERM both commands
finish what they write before they end. A later run can go on from there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from chp.errors import BadInput
from chp.keys import check_subtree
from chp.limits import MIB

from ..faults import Misused
from ..out import Out
from ..settings import KEY_START, CliSettings, at_least_1, command, duration, moved
from ..store import closing, explained, make_clone
from ..text import show_count, show_revision

if TYPE_CHECKING:
    from ...recording.replayer import Replayed

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))


@command()
@DIRECTORY
@click.option("--subtree", default="", metavar="/NAME/", help="What to record.  [default: everything]")
@click.option(
    "--from", "start", default="snapshot", type=KEY_START, metavar="end|snapshot|begin|REVISION",
    help="Where a new recording begins; begin is the oldest change retained.  [default: snapshot]",
)  # fmt: skip
@moved("--start", "--from")
@duration("--every", "every_s", default="60s", help="A file at least so often.")
@at_least_1("--size", "size_mib", default=8, help="MiB of keys and values a file.")
def record(
    settings: CliSettings, directory: str, *, subtree: str, start: str | int, every_s: float, size_mib: int
) -> None:
    """Record every change as Parquet files.

    Write the changes of a subtree into DIR, until Ctrl-C. Files appear complete, by rename; Spark and others read DIR
    as plain Parquet. Run again, the command goes on after the last number in DIR, if the servers still retain the
    changes after it (chp-server --retain-bytes, --retain-s; with --store memory: --retain-memory-bytes). If they do
    not, the command says so, and the recording has a row `gap` and a snapshot.

    Examples:
        chp record ticks/ --subtree /ticks/   # all that is there; or goes on
        chp record log/ --from end --every 10s --size 64
        python -c "import pandas; print(pandas.read_parquet('ticks/'))"
    """
    recording = _module("recorder")
    # Only this user may read the files, because they contain every value that was set.
    os.umask(0o077)
    with explained(settings), _until_told() as stop:
        if not directory:
            raise BadInput("no directory is given")
        writer = recording.record(
            settings.servers, directory, check_subtree(subtree), start=start, every_s=every_s,
            file_bytes=size_mib * MIB, stop=stop, timeout_s=settings.timeout_s,
            say=lambda text: click.echo(f"chp record: {text}", err=True),
        )  # fmt: skip
    fields = {"rows": writer.rows, "files": writer.finished, "number": show_revision(writer.reached)}
    told = f"{show_count(writer.rows)} rows in {writer.finished} files, up to {fields['number']}"
    settings.out.report(fields, told)


@command()
@DIRECTORY
@click.option("--speed", default="1", metavar="N|max", help="Relative to the recorded clock, or max.  [default: 1]")
@click.option(
    "--from", "start", default="begin", type=KEY_START, metavar="begin|REVISION",
    help="Only what was recorded after this revision.  [default: begin]",
)  # fmt: skip
def replay(settings: CliSettings, directory: str, speed: str, start: str | int) -> None:
    """Play a recording into a store.

    Set and delete what DIR recorded, in its order. The answer has the number up to which everything is acknowledged.
    Give this number as --from to go on there.

    Examples:
        chp replay ticks/                # at the speed it was recorded
        chp replay ticks/ --speed 10
        chp --servers tcp://test:5556 replay ticks/ --speed max --from 1.90017
    """
    replaying = _module("replayer")
    pace, out = _speed(speed), settings.out
    if start in ("end", "snapshot"):
        raise Misused(f"--from {start}: a recording is replayed from begin, or from a revision such as 1.42")
    after = start if isinstance(start, int) else 0
    with explained(settings), closing(make_clone(settings, [])) as clone, _until_told() as stop:
        clone.wait_until_synced(settings.timeout_s)
        done: Replayed = replaying.replay(
            directory, clone, speed=pace, start=start, stop=stop, timeout_s=max(60.0, settings.timeout_s),
            keys_under=lambda subtree: _keys_under(settings, subtree),
            progress=lambda so_far: _progress(out, so_far),
        )  # fmt: skip
    rate = done.rows / done.seconds if done.seconds else 0.0
    fields = {
        "rows": done.rows, "deletes": done.deletes, "seconds": round(done.seconds, 3), "rows_per_s": round(rate),
        "number": show_revision(max(done.number, after)), "complete": not stop.is_set(),
    }  # fmt: skip
    rest = "" if not stop.is_set() else f"; go on with --from {fields['number']}"
    out.report(fields, f"{done.rows:,} rows in {done.seconds:.2f} s: {rate:,.0f}/s, up to {fields['number']}{rest}")


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e9:
        raise Misused(f"--speed {text!r}: give a number above 0, such as 10, or max")
    return speed


@contextmanager
def _until_told() -> Iterator[Event]:
    """Give an event that Ctrl-C and SIGTERM set. A second signal ends the command at once."""
    stop = Event()

    def told(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(out: Out, done: Replayed) -> None:
    if out.err_terminal and not out.json:
        click.echo(f"\r{done.rows:,} rows, acknowledged up to {show_revision(done.number)}   ", err=True, nl=False)


def _keys_under(settings: CliSettings, subtree: str) -> set[str]:
    with closing(make_clone(settings, [subtree])) as clone:
        clone.wait_until_synced(settings.timeout_s)
        return set(clone)


def _module(name: str) -> Any:
    """Import a module of `chp_client.recording`; raise a usage error if the extra `parquet` is not installed."""
    from importlib import import_module

    try:
        return import_module(f"chp_client.recording.{name}")
    except ImportError as error:
        raise Misused(str(error)) from None


COMMANDS = (record, replay)
