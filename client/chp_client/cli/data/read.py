"""`chp get`, `chp ls`, `chp du` and `chp history`: look at keys.

`get` of one key writes only the value's bytes into a pipe, so that `chp get A | chp set B -` copies the value. A
terminal also gets a line end, and control characters as escapes. For several keys, `get` writes lines of key, tab,
value.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..completion import keys as offered
from ..faults import NotFound
from ..out import Out
from ..settings import CliSettings, at_least_1, command
from ..store import Item, Store, absent, reading, writing
from ..text import draw, escape, show_bytes, show_duration, show_revision, show_value, value_fields

if TYPE_CHECKING:
    from chp_client import Version

PREFIX = click.argument("prefix", default="", shell_complete=offered)


def item_fields(item: Item) -> dict[str, Any]:
    """Return a key as a JSON object."""
    fields: dict[str, Any] = {"key": item.key, **value_fields(item.value), "revision": show_revision(item.revision)}
    if item.ttl_s is not None:
        fields["ttl"] = round(item.ttl_s, 3)
    return fields


# -- get


@command(mounts=True)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=offered)
@click.option("--raw", is_flag=True, help="The exact bytes of each value, on a terminal too.")
def get(settings: CliSettings, keys: tuple[str, ...], raw: bool) -> None:
    """Print the values of keys.

    One key: its exact bytes in a pipe, a readable line on a terminal. Exit code 1 if any key does not exist.

    Examples:
        chp get /rates/EUR/USD
        chp get /app/logo > logo.png           # the exact bytes
        chp get /rates/EUR/USD /rates/EUR/JPY  # key, tab, value
        chp get --json /rates/EUR/USD          # with revision and remaining ttl
    """
    out, missing = settings.out, []
    with reading(settings, list(keys)) as store:
        for key in keys:
            item = store.item(key)
            if item is None:
                missing.append(f"{absent(key)}; {_instead(store, key)}")
            elif not out.json and (raw or (len(keys) == 1 and not out.terminal)):
                out.raw(item.value)
            else:
                out.show([item], item_fields, _text if len(keys) > 1 else _value)
    for text in missing[:-1]:
        click.echo(f"chp get: {text}", err=True)
    if missing:
        raise NotFound(missing[-1])


def _instead(store: Store, key: str) -> str:
    """Return a remedy for a key that does not exist: suggest the key with a leading slash if there is one."""
    return f"did you mean {escape('/' + key)}?" if store.item("/" + key) else "`chp ls` lists what is there"


def _value(out: Out, item: Item) -> str:
    return show_value(item.value, keep="\n\t").removesuffix("\n")


def _text(out: Out, item: Item) -> bytes:
    if out.terminal:
        return f"{out.style(escape(item.key), fg='cyan')}\t{show_value(item.value)}".encode()
    return item.key.encode() + b"\t" + item.value


# -- ls


@command(mounts=True)
@PREFIX
@click.option("-l", "--long", "long_", is_flag=True, help="Revision, remaining ttl and size of each.")
@click.option("--tree", "as_tree", is_flag=True, help="As a tree of folders.")
@at_least_1("--depth", help="The number of levels of the tree.  [default: all]")
@click.option("--count", is_flag=True, help="Only the number of keys.")
@click.option("--after", metavar="KEY", help="Only the keys behind this one.")
@at_least_1("--limit", help="At most so many.  [default: all]")
def ls(settings: CliSettings, prefix: str, after: str | None, limit: int | None, **how: Any) -> None:
    """List keys, flat or as a tree.

    List the keys that begin with PREFIX, in order; without PREFIX list all keys. An empty list has exit code 0, and is
    mentioned on standard error.

    Examples:
        chp ls                    # every key, one a line
        chp ls /rates/EUR         # the keys that begin with /rates/EUR
        chp ls -l /rates/         # with revision, ttl and size
        chp ls --tree --depth 2   # folders and the number of keys in them
        chp ls --count /rates/
        chp ls --limit 100 --after /rates/EUR/USD   # a page
    """
    out = settings.out
    with reading(settings, [prefix]) as store:
        keys = store.keys(prefix, after, limit)
        if how["count"]:
            out.answer({"prefix": prefix, "count": len(keys)}, str(len(keys)))
            return
        if not keys:
            say_empty(out, prefix)
        if out.json or (how["long_"] and not (how["as_tree"] or how["depth"])):
            _show_long(out, store, keys)
        elif how["as_tree"] or how["depth"]:
            out.lines(draw(keys, how["depth"], folder=partial(out.style, fg="blue", bold=True)))
        else:
            show_keys(out, keys)


def show_keys(out: Out, keys: list[str]) -> None:
    """Show keys, one a line."""
    out.show(keys, lambda key: {"key": key}, lambda out, key: escape(key) if out.terminal else key)


def _show_long(out: Out, store: Store, keys: list[str]) -> None:
    if out.terminal:
        out.table(store.items(keys), item_fields, _row, head=("REVISION", "TTL", "SIZE", "KEY"), right=(0, 1, 2))
    else:
        out.show(store.items(keys), _size_fields, _size_line)


def _row(i: Item) -> tuple[str, ...]:
    return show_revision(i.revision), show_duration(i.ttl_s), show_bytes(len(i.value)), escape(i.key)


def _size_fields(item: Item) -> dict[str, Any]:
    fields = {name: told for name, told in item_fields(item).items() if name not in ("value", "base64")}
    return {**fields, "bytes": len(item.value)}


def _size_line(out: Out, i: Item) -> str:
    ttl = "-" if i.ttl_s is None else f"{i.ttl_s:.3f}"
    return f"{show_revision(i.revision)}\t{ttl}\t{len(i.value)}\t{i.key}"


def say_empty(out: Out, prefix: str) -> None:
    """Say on standard error that there are no keys, because an empty answer looks like a missing one."""
    if not out.json:
        click.echo(f"no keys begin with {escape(prefix)!r}" if prefix else "there are no keys", err=True)


# -- du


@command(mounts=True)
@PREFIX
@at_least_1("--depth", default=1, help="The level of the folders below PREFIX.")
@click.option("--keys", is_flag=True, help="Single keys instead of folders.")
@at_least_1("--limit", default=50, help="Lines at most.")
def du(settings: CliSettings, prefix: str, depth: int, keys: bool, limit: int) -> None:
    """Show the bytes of keys and values, by folder.

    A line has bytes, keys and name, the largest first. The last line is the sum for PREFIX. A server needs more
    memory than this sum: some 200 bytes more for each key.

    Examples:
        chp du                      # the folders, the largest first
        chp du --depth 2 /rates/
        chp du --keys --limit 20    # the largest keys
    """
    out = settings.out
    with reading(settings, [prefix]) as store:
        sizes = [(item.key, len(item.key.encode()) + len(item.value)) for item in store.items(store.keys(prefix))]
    found = sizes_by(sizes, prefix, None if keys else depth)
    if not sizes:
        say_empty(out, prefix)
    rows = [({"name": name}, name, size, n) for name, size, n in found[:limit]]
    last = f"all under {prefix!r}" if prefix else "all"
    rows.append(({"prefix": prefix}, last, sum(size for _, size in sizes), len(sizes)))
    if out.terminal:
        out.table(rows, _du_fields, lambda r: (show_bytes(r[2]), str(r[3]), escape(r[1])), right=(0, 1))
    else:
        out.show(rows, _du_fields, lambda out, r: f"{r[2]}\t{r[3]}\t{r[1]}")
    if len(found) > limit:
        click.echo(f"{len(found) - limit} more; --limit {len(found)} shows them", err=True)


def _du_fields(row: tuple[dict[str, Any], str, int, int]) -> dict[str, Any]:
    return {**row[0], "bytes": row[2], "keys": row[3]}


def sizes_by(sizes: list[tuple[str, int]], prefix: str, depth: int | None) -> list[tuple[str, int, int]]:
    """Return name, bytes and keys of each folder, or of each key if `depth` is None; the largest first."""
    found: dict[str, tuple[int, int]] = {}
    for key, size in sizes:
        name = key if depth is None else folder_of(key, prefix, depth)
        before = found.get(name, (0, 0))
        found[name] = before[0] + size, before[1] + 1
    return sorted(((name, *counted) for name, counted in found.items()), key=lambda row: (-row[1], row[0]))


def folder_of(key: str, prefix: str, depth: int) -> str:
    """Return the folder of a key `depth` levels below a prefix, or the key itself if it has fewer folders."""
    end = len(prefix) + key[len(prefix) :].startswith("/")
    for _ in range(depth):
        slash = key.find("/", end)
        if slash < 0:
            return key
        end = slash + 1
    return key[:end]


# -- history
#
#     2026-11-22 18:40:15.250Z  3.1042  set      1.0832   by 3f1c9a0b77d2...
#     2026-11-22 18:41:02.110Z  3.1077  expired


@command(mounts=True)
@click.argument("key", shell_complete=offered)
@at_least_1("--limit", default=1000, most=10_000, help="At most so many, the last ones.")
def history(settings: CliSettings, key: str, limit: int) -> None:
    """Print the versions of a key that the log still holds.

    A line has the time, the revision, the value, and the client, as `chp leases` names owners. The client is missing
    if one record has sets of several clients. Exit code 1 if the log has no version.

    Examples:
        chp history /rates/EUR/USD              # the oldest first
        chp history /config/motd --limit 1      # who changed it last, and when
        chp history --json /config/motd | jq -r .by
    """
    with writing(settings) as store:
        versions = store.history(key, limit)
    settings.out.show(versions, _version_fields, _version_line)
    if not versions:
        raise NotFound(f"the log has no version of {escape(key)!r}; `chp get` prints what it is now")


def _version_fields(version: Version) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": "del" if version.value is None else "set", "key": version.key}
    if version.value is not None:
        fields.update(value_fields(version.value))
    if version.expired:
        fields["expired"] = True
    if version.ttl is not None:
        fields["ttl"] = version.ttl
    when = version.when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {**fields, "revision": show_revision(version.revision), "when": when, "by": version.by}


def _version_line(out: Out, version: Version) -> str:
    when = f"{version.when:%Y-%m-%d %H:%M:%S}.{version.when.microsecond // 1000:03}Z"
    kind = "expired" if version.expired else version.operation
    parts = [out.style(when, dim=True), show_revision(version.revision), f"{kind:7}"]
    if version.value is not None:
        parts.append(show_value(version.value))
    if version.ttl is not None:
        parts.append(f"ttl {version.ttl:g} s")
    if version.by is not None:
        parts.append(out.style(f"by {version.by}", dim=True))
    return "  ".join(parts).rstrip()


COMMANDS = (get, ls, du, history)
