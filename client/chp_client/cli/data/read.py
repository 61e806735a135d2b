"""`chp get`, `chp ls` and `chp du`: look at keys.

`get` of one key into a pipe gives the value's bytes and nothing else, so that `chp get A | chp set B -` copies it; a
terminal gets a line end, and control characters as escapes. Several keys are lines of key, tab, value.
"""

from __future__ import annotations

import click

from ..completion import keys as offered
from ..faults import NotFound
from ..out import Out
from ..settings import CliSettings, examples, pass_settings, shared
from ..store import Item, reading
from ..text import columns, escape, show_bytes, show_duration, show_revision, show_value, value_fields
from .tree import draw


@click.command(short_help="Print values.", epilog=examples("""
    chp get /rates/EUR/USD
    chp get /app/logo > logo.png           # the exact bytes
    chp get /rates/EUR/USD /rates/EUR/JPY  # key, tab, value
    chp get --json /rates/EUR/USD          # with revision and remaining ttl
"""))  # fmt: skip
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=offered)
@click.option("--raw", is_flag=True, help="The exact bytes of each value, on a terminal too.")
@shared
@pass_settings
def get(settings: CliSettings, keys: tuple[str, ...], raw: bool) -> None:
    """Print the values of keys.

    One key: its exact bytes in a pipe, a readable line on a terminal. Exit code 1 if any key is not there.
    """
    missing = []
    with reading(settings, list(keys)) as store:
        for key in keys:
            item = store.item(key)
            if item is None:
                missing.append(key)
            else:
                _print_value(settings.out, item, alone=len(keys) == 1, raw=raw)
    for key in missing[:-1]:
        click.echo(f"chp get: {_absent(key)}", err=True)
    if missing:
        raise NotFound(f"{_absent(missing[-1])}; `chp ls` lists what is there")


def _absent(key: str) -> str:
    return f"no key {escape(key)!r}"


def _print_value(out: Out, item: Item, *, alone: bool, raw: bool) -> None:
    if out.json:
        out.record(item_fields(item))
    elif raw or (alone and not out.terminal):
        out.raw(item.value)
    elif alone:
        out.line(show_value(item.value, keep="\n\t").removesuffix("\n"))
    elif out.terminal:
        out.line(f"{out.style(escape(item.key), fg='cyan')}\t{show_value(item.value)}")
    else:
        out.raw(item.key.encode() + b"\t" + item.value + b"\n")


def item_fields(item: Item) -> dict[str, object]:
    """A key as a JSON object."""
    fields: dict[str, object] = {"key": item.key, **value_fields(item.value), "revision": show_revision(item.revision)}
    if item.ttl_s is not None:
        fields["ttl"] = round(item.ttl_s, 3)
    return fields


@click.command(short_help="List keys, flat or as a tree.", epilog=examples("""
    chp ls                    # every key, one a line
    chp ls /rates/EUR         # those that begin so
    chp ls -l /rates/         # with revision, ttl and size
    chp ls --tree --depth 2   # folders and how much is in them
    chp ls --count /rates/
    chp ls --limit 100 --after /rates/EUR/USD   # a page
"""))  # fmt: skip
@click.argument("prefix", default="", shell_complete=offered)
@click.option("-l", "--long", "long_", is_flag=True, help="Revision, remaining ttl and size of each.")
@click.option("--tree", "as_tree", is_flag=True, help="As a tree of folders.")
@click.option("--depth", type=click.IntRange(min=1), help="How deep the tree goes.  [default: all of it]")
@click.option("--count", is_flag=True, help="Only how many there are.")
@click.option("--after", metavar="KEY", help="Only those behind this key.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.  [default: all]")
@shared
@pass_settings
def ls(
    settings: CliSettings,
    *,
    prefix: str,
    long_: bool,
    as_tree: bool,
    depth: int | None,
    count: bool,
    after: str | None,
    limit: int | None,
) -> None:
    """List the keys that begin with PREFIX (all of them without it), in order.

    An empty list is an answer too, and said on standard error: exit code 0.
    """
    out = settings.out
    with reading(settings, [prefix]) as store:
        keys = store.keys(prefix, after, limit)
        if not count and not keys:
            say_empty(out, prefix)
        if count:
            out.record({"prefix": prefix, "count": len(keys)}) if out.json else out.line(str(len(keys)))
        elif out.json:
            out.lines([_ls_json(item) for item in store.items_of(keys)])
        elif as_tree or depth:
            out.lines(draw(keys, depth, folder=lambda text: out.style(text, fg="blue", bold=True)))
        elif long_:
            _print_long(out, list(store.items_of(keys)))
        else:
            out.lines([escape(key) if out.terminal else key for key in keys])


@click.command(short_help="Where the bytes are.", epilog=examples("""
    chp du                      # the folders, the largest first
    chp du --depth 2 /rates/
    chp du --keys --limit 20    # the largest keys
"""))  # fmt: skip
@click.argument("prefix", default="", shell_complete=offered)
@click.option("--depth", type=click.IntRange(min=1), default=1, show_default=True, help="Folders so deep below PREFIX.")
@click.option("--keys", is_flag=True, help="Single keys in the place of folders.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="Lines at most.")
@shared
@pass_settings
def du(settings: CliSettings, *, prefix: str, depth: int, keys: bool, limit: int) -> None:
    """How many bytes keys and values have under PREFIX, by folder: bytes, keys, name; the largest first.

    The last line is all of it. Memory is more: some 200 bytes a key beside these.
    """
    out = settings.out
    with reading(settings, [prefix]) as store:
        sizes = [(item.key, len(item.key.encode()) + len(item.value)) for item in store.items(prefix)]
    found = sizes_by(sizes, prefix, None if keys else depth)
    if not sizes:
        say_empty(out, prefix)
    _print_sizes(out, found[:limit], (prefix, sum(size for _, size in sizes), len(sizes)))
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more; --limit {len(found)} shows them", err=True)


def _print_sizes(out: Out, rows: list[tuple[str, int, int]], total: tuple[str, int, int]) -> None:
    if out.json:
        for name, size, n in rows:
            out.record({"name": name, "bytes": size, "keys": n})
        out.record({"prefix": total[0], "bytes": total[1], "keys": total[2]})
        return
    last = (f"all under {total[0]!r}" if total[0] else "all", *total[1:])
    if out.terminal:
        out.lines(columns([(show_bytes(size), str(n), escape(name)) for name, size, n in [*rows, last]], right=(0, 1)))
    else:
        out.lines([f"{size}\t{n}\t{name}" for name, size, n in [*rows, last]])


def sizes_by(sizes: list[tuple[str, int]], prefix: str, depth: int | None) -> list[tuple[str, int, int]]:
    """Name, bytes and keys of the folders `depth` below a prefix, or of each key; the largest first."""
    found: dict[str, tuple[int, int]] = {}
    for key, size in sizes:
        name = key if depth is None else folder_of(key, prefix, depth)
        before = found.get(name, (0, 0))
        found[name] = before[0] + size, before[1] + 1
    return sorted(((name, *counted) for name, counted in found.items()), key=lambda row: (-row[1], row[0]))


def folder_of(key: str, prefix: str, depth: int) -> str:
    """The folder of a key so deep below a prefix; the key itself if it lies less deep."""
    end = len(prefix) + key[len(prefix) :].startswith("/")
    for _ in range(depth):
        slash = key.find("/", end)
        if slash < 0:
            return key
        end = slash + 1
    return key[:end]


def say_empty(out: Out, prefix: str) -> None:
    """That there is nothing, on standard error: an answer that is empty looks like one that did not come."""
    if not out.json:
        click.echo(f"no keys begin with {escape(prefix)!r}" if prefix else "there are no keys", err=True)


def _ls_json(item: Item) -> str:
    from ..out import json_line

    fields = item_fields(item)
    fields.pop("value", None)
    fields.pop("base64", None)
    return json_line({**fields, "bytes": len(item.value)})


def _print_long(out: Out, items: list[Item]) -> None:
    if not out.terminal:
        out.lines([f"{show_revision(i.revision)}\t{_ttl(i)}\t{len(i.value)}\t{i.key}" for i in items])
        return
    head = ("REVISION", "TTL", "SIZE", "KEY")
    rows = [(show_revision(i.revision), show_duration(i.ttl_s), show_bytes(len(i.value)), escape(i.key)) for i in items]
    lines = columns([head, *rows], right=(0, 1, 2))
    out.lines([out.style(lines[0], dim=True), *lines[1:]])


def _ttl(item: Item) -> str:
    return "-" if item.ttl_s is None else f"{item.ttl_s:.3f}"


COMMANDS = (get, ls, du)
