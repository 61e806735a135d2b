"""`chp set` and `chp del`: change keys, and know that it is done.

Both wait for the acknowledgement before they end, so a 0 means that the pair has it. Neither needs a copy of the
store; only `del --prefix` looks first, at what it is about to delete.
"""

from __future__ import annotations

import sys
from typing import IO

import click

from chp.keys import check_key
from chp.limits import DEFAULT

from ..completion import keys as offered
from ..faults import Misused, NotFound
from ..out import Out, json_line
from ..settings import DURATION, REVISION, CliSettings, examples, pass_settings, shared
from ..store import WriteResult, reading, writing
from ..text import escape, show_count, show_revision

PORTION = 10_000  # keys deleted in one request


@click.command(name="set", short_help="Set a key, and wait for the acknowledgement.", epilog=examples("""
    chp set /config/motd 'hello, world'
    chp set /config/logo --file logo.png
    date | chp set /seen -                      # from standard input
    chp set /lock/nightly host-7 --ttl 5m --if-revision 0   # only if absent
    chp set /config/motd new --if-revision 3.1042           # only if unchanged
"""))  # fmt: skip
@click.argument("key", shell_complete=offered)
@click.argument("value", required=False)
@click.option("--file", "path", type=click.Path(), help="Take the value's bytes from a file.")
@click.option("--ttl", type=DURATION, metavar="DURATION", help="Let it expire: 30, 500ms, 5m, 2h, 1d.")
@click.option(
    "--if-revision", type=REVISION, metavar="REVISION", help="Only if the key is at this revision; 0: only if absent."
)
@shared
@pass_settings
def set_(
    settings: CliSettings, *, key: str, value: str | None, path: str | None, ttl: float | None, if_revision: int | None
) -> None:
    """Set KEY to VALUE, or to what comes on standard input if VALUE is -.

    The bytes are taken as they are: a line feed at the end stays. Exit code 4 if --if-revision does not hold.
    """
    check_or_misused(key)
    data = _value(value, path)
    if len(data) > DEFAULT.value_bytes_max:
        raise Misused(f"the value has {len(data):,} bytes; at most {DEFAULT.value_bytes_max:,} are allowed: split it")
    with writing(settings) as store:
        done = store.set(key, data, ttl, if_revision)
    report_done(settings.out, f"set {escape(key)}", {"key": key}, done)


def check_or_misused(key: str) -> None:
    """A key that can be one, or a usage error that says why not."""
    try:
        check_key(key)
    except ValueError as error:
        raise Misused(str(error)) from None


def _value(value: str | None, path: str | None) -> bytes:
    if (value is None) == (path is None):
        raise click.UsageError("give either VALUE (or - for standard input) or --file")
    if value is not None:
        return _stdin() if value == "-" else value.encode(errors="surrogateescape")
    return read_file(path or "")


def _stdin() -> bytes:
    return standard_input().read(DEFAULT.value_bytes_max + 1)


def standard_input() -> IO[bytes]:
    """Standard input, unless whoever started us closed it."""
    if sys.stdin is None:
        raise Misused("standard input is closed; give it something to read, or /dev/null")
    return sys.stdin.buffer


def read_file(path: str) -> bytes:
    """The bytes of a file, or a fault that names it."""
    try:
        with open(path, "rb") as file:
            return file.read(DEFAULT.value_bytes_max + 1)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}; give a file that can be read") from None


def report_done(out: Out, what: str, fields: dict[str, object], done: WriteResult) -> None:
    """Say that it is done: a JSON line, a line on a terminal, nothing in a pipe."""
    if out.json:
        out.record({**fields, "revision": show_revision(done.revision), "durability": done.durability})
    elif out.terminal:
        out.line(f"{what}  {out.style(f'revision {show_revision(done.revision)}, {done.durability}', dim=True)}")


@click.command(name="del", short_help="Delete keys, or all under a prefix.", epilog=examples("""
    chp del /config/motd
    chp del --prefix /rates/EUR/          # asks first
    chp del --prefix /rates/ --dry-run    # what would go
    chp ls /tmp/ | xargs chp del
"""))  # fmt: skip
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=offered)
@click.option("--prefix", is_flag=True, help="Delete every key that begins with KEY.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-n", "--dry-run", is_flag=True, help="Only print the keys.")
@shared
@pass_settings
def del_(settings: CliSettings, keys: tuple[str, ...], prefix: bool, yes: bool, dry_run: bool) -> None:
    """Delete keys. One that is not there is as good as deleted: exit code 0."""
    if not prefix:
        for key in keys:
            check_or_misused(key)
    doomed = _under(settings, keys) if prefix else list(dict.fromkeys(keys))
    if dry_run:
        _show_keys(settings.out, doomed)
        return
    if prefix and doomed and not yes:
        _confirm(len(doomed), keys)
    if doomed:
        delete_all(settings, doomed)
    if settings.out.json:
        settings.out.record({"deleted": len(doomed)})
    elif settings.out.terminal:
        settings.out.line(f"deleted {show_count(len(doomed))} key{'' if len(doomed) == 1 else 's'}")


def _show_keys(out: Out, keys: list[str]) -> None:
    if out.json:
        out.lines([json_line({"key": key}) for key in keys])
    else:
        out.lines([escape(key) if out.terminal else key for key in keys])


def _under(settings: CliSettings, prefixes: tuple[str, ...]) -> list[str]:
    with reading(settings, list(prefixes)) as store:
        return sorted({key for prefix in prefixes for key in store.keys(prefix)})


def somebody_to_ask() -> bool:
    """Whether a question would be seen and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _confirm(n: int, prefixes: tuple[str, ...]) -> None:
    keys = f"{n:,} key{'' if n == 1 else 's'}"
    if not somebody_to_ask():
        raise Misused(f"{keys} would be deleted and there is nobody to ask; add --yes, or --dry-run to see them")
    where = ", ".join(escape(p) or "(everything)" for p in prefixes)
    click.confirm(f"Delete {keys} under {where}?", abort=True, err=True)


def delete_all(settings: CliSettings, keys: list[str]) -> None:
    """Delete these keys, a portion at a time, and wait for the acknowledgements."""
    with writing(settings) as store:
        for start in range(0, len(keys), PORTION):
            store.wait(store.delete_many(keys[start : start + PORTION]))


COMMANDS = (set_, del_)
