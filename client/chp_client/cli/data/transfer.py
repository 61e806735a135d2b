"""`chp dump` and `chp load`: a subtree as JSON lines, there and back.

    {"key": "/rates/EUR/USD", "value": "1.0832", "revision": "3.1042", "ttl": 29.4}
    {"key": "/app/logo", "base64": "iVBORw0KGgo=", "revision": "3.17"}

A line for `load` needs "key" and one of "value" and "base64". `load` uses "ttl" (seconds left) if the line has one. It
ignores "revision" and all other fields, because loading gives new revisions. If a key is in several lines, the last one
wins.

`dump -o FILE` writes a file beside FILE and renames it when it is complete, so FILE is never half a dump. A pipe or a
device is written in place. `load` reads and checks one line at a time, and sends portions of lines that share a ttl. So
`load` holds only one portion and those that are not acknowledged yet.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING

import click

from chp.keys import check_key
from chp.limits import DEFAULT
from chp.properties import ttl_ms

from ...errors import Refused
from ..faults import Misused, NotFound, RefusedByServer
from ..out import Out, json_line
from ..settings import CliSettings, command, duration
from ..store import Item, Store, reading, writing
from ..text import counted, escape, show_count, value_of
from .read import item_fields, say_empty
from .write import standard_input

if TYPE_CHECKING:
    from chp_client import Ticket

PORTION_ITEMS = 1000
PORTION_BYTES = 1 << 20
# At most this many portions are sent and not acknowledged yet.
TICKETS_MAX = 64
LINES_A_WRITE = 1000
# A dry run, which sets nothing, reports this word in place of a durability.
CHECKED = "checked"

Advance = Callable[[int], None]


# -- dump


@command(mounts=True)
@click.argument("prefix", default="")
@click.option("-o", "--output", "path", metavar="FILE", help="Write to FILE, complete or not at all.")
def dump(settings: CliSettings, prefix: str, path: str | None) -> None:
    """Write keys as JSON lines.

    PREFIX is the beginning of the keys. A line has key, value or base64, revision, and the ttl that is left. An empty
    dump has exit code 0, and is mentioned on standard error.

    Examples:
        chp dump > everything.jsonl
        chp dump /rates/ -o rates.jsonl
        chp dump /rates/ | jq -r 'select(.ttl == null) | .key'
        chp --servers tcp://a:5556 dump / | chp --servers tcp://b:5556 load -
    """
    with reading(settings, [prefix]) as store:
        keys = store.keys(prefix)
        items = store.items(keys)
        if path is None or path == "-":
            if not _write_items(settings.out.stream, items, lambda n: None):
                say_empty(settings.out, prefix)
            return
        with _complete_or_not(path) as file, progress(settings.out, "dumping", len(keys)) as advance:
            n = _write_items(file, items, advance)
    if not n:
        say_empty(settings.out, prefix)
    settings.out.note(f"{show_count(n)} keys under {escape(prefix) or '(everything)'} in {path}")


def _write_items(file: IO[bytes], items: Iterable[Item], advance: Advance) -> int:
    n, lines = 0, (json_line(item_fields(item)) for item in items)
    while written := list(islice(lines, LINES_A_WRITE)):
        file.write("\n".join([*written, ""]).encode())
        advance(len(written))
        n += len(written)
    file.flush()
    return n


@contextmanager
def _complete_or_not(path: str) -> Iterator[IO[bytes]]:
    # If `path` is a symbolic link, replace the file that it points to. A pipe or a device can't be replaced, so write
    # in place.
    target = os.path.realpath(path)
    in_place = os.path.exists(target) and not os.path.isfile(target)
    part = target if in_place else f"{target}.part"
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            if not in_place:
                os.fsync(file.fileno())
        if not in_place:
            os.replace(part, target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotFound(f"{path} can't be written: {error.strerror}; give another -o") from None
    finally:
        if not in_place and os.path.exists(part):
            os.unlink(part)


# -- load


@dataclass(slots=True)
class Portion:
    """Lines that share a ttl and a mount, and are sent in one `set_many`."""

    ttl_s: float | None = None
    mount: str = ""
    values: dict[str, bytes] = field(default_factory=dict)
    size: int = 0

    def fits(self, ttl_s: float | None, mount: str, value: bytes) -> bool:
        """Return True if a line with this ttl, mount and value may join the portion."""
        room = len(self.values) < PORTION_ITEMS and self.size + len(value) <= PORTION_BYTES
        return not self.values or (room and (ttl_s, mount) == (self.ttl_s, self.mount))


@command(mounts=True)
@click.argument("path", metavar="FILE|-", type=click.Path())
@duration("--ttl", help="The ttl of every key, instead of the lines' own.")
@click.option("-n", "--dry-run", is_flag=True, help="Check every line, and set nothing.")
def load(settings: CliSettings, path: str, ttl: float | None, dry_run: bool) -> None:
    """Set keys from JSON lines.

    FILE, or standard input (-), holds lines as `chp dump` writes them. The command ends when every set is
    acknowledged, and reports the rate. If a line is wrong, the error names it (exit code 2). If a server refuses some
    keys, the error tells how many are set (exit code 4).

    Examples:
        chp load rates.jsonl
        chp load - < rates.jsonl
        chp load --dry-run rates.jsonl     # only check the lines
        jq -c '{key: ("/copy" + .key), value}' rates.jsonl | chp load -
    """
    began = time.monotonic()
    with _opened(path) as (file, size), progress(settings.out, "loading", size, bytes_=True) as advance:
        portions = _portions(_parsed(file, path, ttl, advance), settings.mount_of)
        n, durability = (sum(len(p.values) for p in portions), CHECKED) if dry_run else _send(settings, portions)
    _report(settings.out, n, time.monotonic() - began, durability)


def _send(settings: CliSettings, portions: Iterator[Portion]) -> tuple[int, str]:
    with writing(settings) as store:
        sent = _Sent(store)
        try:
            for portion in portions:
                sent.send(portion)
        except _WrongLine as wrong:
            sent.finish()
            n = sent.keys
            before = f"{show_count(n)} keys of the lines before it are set" if n else "nothing was set"
            raise _WrongLine(f"{wrong.message}; {before}") from None
        sent.finish()
    return sent.keys, sent.weakest


class _Sent:
    """The portions that were sent: the number of their keys, how many are set, and the weakest durability."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The tickets that are not settled yet, each with the number of its keys.
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self.keys, self.weakest = 0, ""
        self._set = 0

    def send(self, portion: Portion) -> None:
        """Send a portion. If too many portions are not acknowledged yet, wait for the oldest portion."""
        self._tickets.append((self._store.set_many(portion.values, portion.ttl_s), len(portion.values)))
        self.keys += len(portion.values)
        if len(self._tickets) > TICKETS_MAX:
            self._wait()

    def finish(self) -> None:
        """Wait for all acknowledgements. If a portion is refused, raise a fault that tells how many keys are set."""
        while self._tickets:
            self._wait()

    def _wait(self) -> None:
        try:
            self._settle()
        except Refused as refused:
            with suppress(TimeoutError):
                while self._tickets:
                    with suppress(Refused):
                        self._settle()
            told = f"{show_count(self._set)} of the {counted(self.keys, 'key')} sent are known to be set"
            raise RefusedByServer(f"{refused}; {told}") from None

    def _settle(self) -> None:
        ticket, keys = self._tickets.popleft()
        self.weakest = min(self.weakest, self._store.wait(ticket).durability, key=_STRENGTH.index)
        self._set += keys


class _WrongLine(Misused):
    """The error of a line that is not valid, which the client finds before it sends the line."""


_STRENGTH = ("applied", "journaled", "replicated", "")


def _report(out: Out, n: int, took_s: float, durability: str) -> None:
    rate = n / took_s if took_s else 0.0
    told = " checked" if durability == CHECKED else ""
    rest = "; none set" if durability == CHECKED else f": {rate:,.0f} sets/s{', ' * bool(n)}{durability}"
    fields = {"keys": n, "seconds": round(took_s, 3), "sets_per_s": round(rate), "durability": durability}
    out.report(fields, f"{counted(n, 'key')}{told} in {took_s:.2f} s{rest}")


@contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    if path == "-":
        yield standard_input(), None
        return
    try:
        with open(path, "rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise NotFound(f"{path}: {error.strerror}; give a file that can be read, or - for standard input") from None


def _parsed(
    file: Iterable[bytes], path: str, ttl: float | None, advance: Advance
) -> Iterator[tuple[str, bytes, float | None]]:
    for i, line in enumerate(file, 1):
        advance(len(line))
        if not line.strip():
            continue
        try:
            yield parse_line(line, ttl)
        except ValueError as error:
            raise _WrongLine(f"{path}, line {i}: {error}") from None


def parse_line(line: bytes, ttl: float | None = None) -> tuple[str, bytes, float | None]:
    """Return key, value and ttl of one line; raise ValueError with the reason if the line is wrong."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}); is the file complete?") from None
    if type(fields) is not dict:
        raise ValueError('not an object; give {"key": ..., "value": ...}')
    value = value_of(fields)
    if len(value) > DEFAULT.value_bytes_max:
        raise ValueError(f"the value has {len(value):,} bytes; at most {DEFAULT.value_bytes_max:,} are allowed")
    return check_key(fields.get("key")), value, _ttl(fields.get("ttl")) if ttl is None else ttl


def _ttl(given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ValueError(f'"ttl" is a number of seconds, not {given!r:.40}')
    ttl_ms(given)
    return float(given) or None


def _portions(
    lines: Iterable[tuple[str, bytes, float | None]], mount_of: Callable[[str], str] = lambda key: ""
) -> Iterator[Portion]:
    portion = Portion()
    for key, value, ttl_s in lines:
        mount = mount_of(key)
        if not portion.fits(ttl_s, mount, value):
            yield portion
            portion = Portion()
        portion.ttl_s, portion.mount = ttl_s, mount
        portion.values[key] = value
        portion.size += len(value)
    if portion.values:
        yield portion


# -- progress, on a terminal only


@contextmanager
def progress(out: Out, what: str, total: int | None, bytes_: bool = False) -> Iterator[Advance]:
    """Show a progress bar if standard error is a terminal. Give the function that advances the bar."""
    if not out.err_terminal or out.json:
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    done = DownloadColumn() if bytes_ else MofNCompleteColumn()
    console = Console(file=sys.stderr)
    with Progress(TextColumn(what), BarColumn(), done, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.update(task, advance=n)


COMMANDS = (dump, load)
