"""The output of a command: its form, and the stream that it goes to.

    standard output    the answer: bytes or lines in a pipe, JSON lines with --json, columns and colour on a terminal
    standard error     one-line errors, and remarks about the work, which only a terminal gets

A command says once what it shows, as fields for JSON and as text, and `Out` chooses the form:

    show(things, fields, text)      many things: a line each
    table(things, fields, row)      many things: aligned columns
    records(things)                 many things, as JSON only
    answer(fields, text)            one result, to a pipe and to a terminal
    done(fields, text)              one result as JSON or to a terminal; a script reads the exit code instead
    report(fields, text)            one result about the work: JSON to standard output, text to standard error

All output is UTF-8, whatever the locale, so that a value leaves as it came.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from .text import columns

if TYPE_CHECKING:
    from rich.console import Console

# The library's warnings are held back for a command's timeout and this margin, because the command may end so late.
MARGIN_S = 1.0
T = TypeVar("T")
Fields = dict[str, Any]


class Out:
    """The two streams of a command."""

    def __init__(self, as_json: bool = False) -> None:
        self.json = as_json

    @property
    def terminal(self) -> bool:
        """True if the answer goes to a terminal, as text."""
        return sys.stdout.isatty() and not self.json

    @property
    def err_terminal(self) -> bool:
        """True if standard error is a terminal."""
        return sys.stderr.isatty()

    @property
    def stream(self) -> IO[bytes]:
        """The standard output, for bytes."""
        return sys.stdout.buffer

    # -- the forms of an answer

    def show(self, things: Iterable[T], fields: Callable[[T], Fields], text: Callable[[Out, T], str | bytes]) -> None:
        """Write a line for each thing, all in one write."""
        if self.json:
            self.records(map(fields, things))
        elif lines := [_encoded(text(self, each)) for each in things]:
            self.raw(b"\n".join([*lines, b""]))

    def table(
        self,
        things: Iterable[T],
        fields: Callable[[T], Fields],
        row: Callable[[T], Sequence[str]],
        *,
        head: Sequence[str] = (),
        right: Sequence[int] = (),
        empty: str = "",
    ) -> None:
        """Write aligned columns below a head, or the text `empty` if there is nothing."""
        found = list(things)
        if self.json:
            self.records(map(fields, found))
        elif found:
            first, *rest = columns([*([head] if head else []), *map(row, found)], right)
            self.lines([self.style(first, dim=True) if head else first, *rest])
        elif empty:
            self.line(empty)

    def records(self, things: Iterable[Fields]) -> None:
        """Write a line of JSON for each thing, all in one write."""
        self.lines(list(map(json_line, things)))

    def answer(self, fields: Fields, text: str) -> None:
        """Write a result, to a pipe as well as to a terminal."""
        self.line(json_line(fields) if self.json else text)

    def done(self, fields: Fields, text: str) -> None:
        """Write a result as JSON or to a terminal. Write no text to a pipe, because the exit code says enough there."""
        if self.json or self.terminal:
            self.answer(fields, text)

    def report(self, fields: Fields, text: str) -> None:
        """Write a result about the work: JSON to standard output, text to standard error."""
        if self.json:
            self.answer(fields, text)
        else:
            click.echo(text, err=True)

    def note(self, text: str) -> None:
        """Write a remark about the work, to a terminal only."""
        if self.err_terminal:
            click.echo(text, err=True)

    # -- the writes that the forms are made of

    def raw(self, data: bytes) -> None:
        """Write exactly these bytes."""
        self.stream.write(data)
        self.stream.flush()

    def line(self, text: str) -> None:
        """Write one line of text."""
        self.raw(_encoded(text) + b"\n")

    def lines(self, texts: Sequence[str]) -> None:
        """Write many lines in one write."""
        if texts:
            self.line("\n".join(texts))

    def style(self, text: str, **how: Any) -> str:
        """Return the text in colour if it goes to a terminal, and the environment does not forbid colour."""
        return click.style(text, **how) if self.terminal and not no_colour() else text

    def console(self) -> Console:
        """Return a rich console on standard output; in a pipe it is wide enough never to wrap."""
        from rich.console import Console

        return Console(highlight=False) if self.terminal else Console(width=240, color_system=None, highlight=False)

    def watch_reader(self, code: int) -> None:
        """End the process with this exit code once the reader closes the pipe, even if there is nothing to write."""
        try:
            fd = self.stream.fileno()
            is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        except (OSError, ValueError):
            # Standard output is not a real file.
            return
        if is_pipe:
            threading.Thread(target=_end_with_reader, args=(fd, code), daemon=True).start()


def _encoded(text: str | bytes) -> bytes:
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def _end_with_reader(fd: int, code: int) -> None:
    # `poll` reports a closed reader even if it is asked for no events.
    poller = select.poll()
    poller.register(fd, 0)
    poller.poll()
    os._exit(code)


class _WarningLines(logging.Handler):
    """The library's warnings, one line each on standard error."""

    silent_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() >= self.silent_until:
            click.echo(f"chp: {record.getMessage()}".replace("\n", " "), err=True)


_WARNINGS = _WarningLines(logging.WARNING)


def hold_warnings(seconds: float) -> None:
    """Hold back warnings for `seconds` and a margin; 0 shows them again.

    A command that finds no server within --timeout ends with its own line, and needs no warnings before that line.
    """
    _WARNINGS.silent_until = time.monotonic() + seconds + (MARGIN_S if seconds else 0)


def show_warnings() -> None:
    """Show the library's warnings, unless the calling program has set up its own log."""
    log = logging.getLogger("chp_client")
    if not log.hasHandlers():
        log.addHandler(_WARNINGS)


def json_line(fields: Fields) -> str:
    """Return an object as one line of JSON that people can read too."""
    return json.dumps(fields, ensure_ascii=False, default=_plain)


def _plain(thing: object) -> object:
    return thing.hex() if isinstance(thing, bytes) else str(thing)


def no_colour() -> bool:
    """Return True if the environment asks for no colour (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
