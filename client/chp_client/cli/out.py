"""Where a command's answer goes, and in which form.

    standard output    the answer: bytes or lines in a pipe, JSON lines with --json, columns and colour on a terminal
    standard error     one-line errors; what is said about the work (`note`), on a terminal only

Everything is written as UTF-8 bytes, whatever the locale, so that a value leaves as it came.
"""

from __future__ import annotations

import json
import logging
import os
import select
import stat
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


class Out:
    """The two streams of a command."""

    def __init__(self, as_json: bool = False) -> None:
        self.json = as_json

    @property
    def terminal(self) -> bool:
        """Whether the answer goes to a person's terminal."""
        return sys.stdout.isatty() and not self.json

    @property
    def err_terminal(self) -> bool:
        """Whether somebody sees what is said about the work."""
        return sys.stderr.isatty()

    @property
    def stream(self) -> IO[bytes]:
        """Standard output, for bytes."""
        return sys.stdout.buffer

    def raw(self, data: bytes) -> None:
        """Exactly these bytes."""
        self.stream.write(data)
        self.stream.flush()

    def line(self, text: str) -> None:
        """One line of text."""
        self.raw(text.encode(errors="surrogateescape") + b"\n")

    def lines(self, texts: list[str]) -> None:
        """Many lines in one write."""
        if texts:
            self.line("\n".join(texts))

    def record(self, fields: dict[str, Any]) -> None:
        """One JSON object on a line."""
        self.line(json_line(fields))

    def note(self, text: str) -> None:
        """Something about the work, for a person who is looking."""
        if self.err_terminal:
            click.echo(text, err=True)

    def watch_reader(self, code: int) -> None:
        """End with this exit code as soon as the reader of our pipe has gone, though there is nothing to write."""
        try:
            fd = self.stream.fileno()
            is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        except (OSError, ValueError):
            return  # not a real file
        if is_pipe:
            threading.Thread(target=_end_with_reader, args=(fd, code), daemon=True).start()

    def style(self, text: str, **how: Any) -> str:
        """The text in colour, on a terminal that wants it."""
        return click.style(text, **how) if self.terminal and not no_colour() else text

    def console(self) -> Console:
        """A rich console on standard output; wide enough never to wrap when it is a pipe."""
        from rich.console import Console

        return Console(highlight=False) if self.terminal else Console(width=240, color_system=None, highlight=False)


def _end_with_reader(fd: int, code: int) -> None:
    poller = select.poll()
    poller.register(fd, 0)  # only what is told unasked: that the other end is closed
    poller.poll()
    os._exit(code)


class _Spoken(logging.Handler):
    """What the library warns of, a line each on standard error: that nobody is reached, that the copy grows old."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"chp: {record.getMessage()}".replace("\n", " "), err=True)


def speak() -> None:
    """Let the library's warnings be seen, unless who called us has arranged for its log."""
    log = logging.getLogger("chp_client")
    if not log.hasHandlers():
        log.addHandler(_Spoken(logging.WARNING))


def json_line(fields: dict[str, Any]) -> str:
    """An object as one line of JSON, readable by people too."""
    return json.dumps(fields, ensure_ascii=False, default=_plain)


def _plain(thing: object) -> object:
    return thing.hex() if isinstance(thing, bytes) else str(thing)


def no_colour() -> bool:
    """Whether the environment asks for no colour (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
