"""`chp set` and `chp del`: change keys, and wait until the pair has the change.

Both wait for the acknowledgement before they end, so exit code 0 means that the pair has the change. Neither needs a
copy of keys, except `del` of a prefix, or of a key that ends with a slash: it reads which keys there are.
"""

from __future__ import annotations

import sys
from typing import IO

import click

from chp.keys import check_key
from chp.limits import DEFAULT

from ..completion import keys as offered
from ..faults import Misused, NotFound
from ..settings import REVISION, YES, CliSettings, command, duration
from ..store import absent, reading, writing
from ..text import counted, escape
from .read import show_keys

# One request deletes at most this many keys.
PORTION = 10_000


@command(mounts=True)
@click.argument("key", shell_complete=offered)
@click.argument("value", required=False)
@click.option("--file", "path", type=click.Path(), help="Take the value's bytes from a file.")
@duration("--ttl", help="Let it expire: 30, 500ms, 5m, 2h, 1d.")
@click.option(
    "--if-revision", type=REVISION, metavar="REVISION", help="Only if the key is at this revision; 0: only if absent."
)
def set_(
    settings: CliSettings, key: str, value: str | None, path: str | None, *, ttl: float | None, if_revision: int | None
) -> None:
    """Set a key, and wait for the acknowledgement.

    If VALUE is "-", the value is standard input. The bytes are taken unchanged: a line feed at the end stays. Exit
    code 4 if the key is not at the revision of --if-revision.

    Examples:
        chp set /config/motd 'hello, world'
        chp set /config/logo --file logo.png
        date | chp set /seen -                      # from standard input
        chp set /lock/nightly host-7 --ttl 5m --if-revision 0   # only if absent
        chp set /config/motd new --if-revision 3.1042           # only if unchanged
    """
    check_or_misused(key)
    data = _value(value, path)
    if len(data) > DEFAULT.value_bytes_max:
        raise Misused(f"the value has {len(data):,} bytes; at most {DEFAULT.value_bytes_max:,} are allowed: split it")
    with writing(settings) as store:
        done = store.set(key, data, ttl, if_revision)
    fields, out = done.fields(), settings.out
    how = out.style(f"revision {fields['revision']}, {done.durability}", dim=True)
    out.done({"key": key, **fields}, f"set {escape(key)}  {how}")


def check_or_misused(key: str) -> None:
    """Raise a usage error for a text that can't be a key."""
    try:
        check_key(key)
    except ValueError as error:
        raise Misused(str(error)) from None


def _value(value: str | None, path: str | None) -> bytes:
    if (value is None) == (path is None):
        raise click.UsageError("give either VALUE (or - for standard input) or --file")
    if value == "-":
        return standard_input().read(DEFAULT.value_bytes_max + 1)
    return read_file(path or "") if value is None else value.encode(errors="surrogateescape")


def standard_input() -> IO[bytes]:
    """Return standard input; raise a usage error if the calling program has closed it."""
    if sys.stdin is None:
        raise Misused("standard input is closed; give it something to read, or /dev/null")
    return sys.stdin.buffer


def read_file(path: str) -> bytes:
    """Return the bytes of a file, or raise a fault that names it."""
    try:
        with open(path, "rb") as file:
            return file.read(DEFAULT.value_bytes_max + 1)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}; give a file that can be read") from None


# -- del


@command(mounts=True)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=offered)
@click.option("--prefix", is_flag=True, help="Delete every key that begins with KEY.")
@YES
@click.option("-n", "--dry-run", is_flag=True, help="Only print the keys.")
def del_(settings: CliSettings, keys: tuple[str, ...], prefix: bool, yes: bool, dry_run: bool) -> None:
    """Delete keys, or all under a prefix.

    A key that does not exist counts as deleted: exit code 0. An absent KEY that ends with a slash is refused with exit
    code 1 if other keys begin with it, because it may be meant as a prefix.

    Examples:
        chp del /config/motd
        chp del --prefix /rates/EUR/          # asks first
        chp del --prefix /rates/ --dry-run    # what would go
        chp ls /tmp/ | xargs chp del
    """
    if prefix:
        doomed = _under(settings, keys)
    else:
        doomed = list(dict.fromkeys(keys))
        for key in keys:
            check_or_misused(key)
        _refuse_prefixes(settings, [key for key in doomed if key.endswith("/")])
    if dry_run:
        show_keys(settings.out, doomed)
        return
    if prefix and doomed and not yes:
        where = ", ".join(escape(p) or "(everything)" for p in keys)
        n = counted(len(doomed), "key")
        confirm(f"{n} would be deleted", f"Delete {n} under {where}?", ", or --dry-run to see them")
    if doomed:
        delete_all(settings, doomed)
    settings.out.done({"deleted": len(doomed)}, f"deleted {counted(len(doomed), 'key')}")


def _refuse_prefixes(settings: CliSettings, keys: list[str]) -> None:
    """Raise a fault for the first of these keys that does not exist, but is the beginning of other keys."""
    if not keys:
        return
    with reading(settings, keys) as store:
        for key in keys:
            if (longer := store.keys(key)) and store.item(key) is None:
                n, one = counted(len(longer), "key"), len(longer) == 1
                raise NotFound(f"{absent(key)}; {n} begin{'s' * one} with it: chp del --prefix {escape(key)}")


def _under(settings: CliSettings, prefixes: tuple[str, ...]) -> list[str]:
    with reading(settings, list(prefixes)) as store:
        return sorted({key for prefix in prefixes for key in store.keys(prefix)})


def can_ask() -> bool:
    """Return True if a user would see a question and could answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(what: str, question: str, otherwise: str = "") -> None:
    """Ask the user; return if the answer is yes, else abort. Raise a usage error without a terminal to ask on."""
    if not can_ask():
        raise Misused(f"{what}, but there is no terminal to ask on; add --yes{otherwise}")
    click.confirm(question, abort=True, err=True)


def delete_all(settings: CliSettings, keys: list[str]) -> None:
    """Delete these keys, a portion at a time, and wait for the acknowledgements."""
    by_mount: dict[str, list[str]] = {}
    for key in keys:
        by_mount.setdefault(settings.mount_of(key), []).append(key)
    with writing(settings) as store:
        for some in by_mount.values():
            for start in range(0, len(some), PORTION):
                store.wait(store.delete_many(some[start : start + PORTION]))


COMMANDS = (set_, del_)
