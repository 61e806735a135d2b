"""`chp get` and `chp ls`: look at keys.

`get` of one key into a pipe gives the value's bytes and nothing else, so that `chp get A | chp set B -` copies it; a
terminal gets a line end, and control characters as escapes. Several keys are lines of key, tab, value.
"""

from __future__ import annotations

import click

from .faults import NotFound
from .out import Out
from .settings import Settings, examples, pass_settings, shared
from .store import Item, reading
from .text import columns, escape, show_bytes, show_duration, show_revision, show_value, value_fields
from .tree import draw


@click.command(short_help="Print values.", epilog=examples("""
    chp get /rates/EUR/USD
    chp get /app/logo > logo.png           # the exact bytes
    chp get /rates/EUR/USD /rates/EUR/JPY  # key, tab, value
    chp get --json /rates/EUR/USD          # with revision and remaining ttl
"""))  # fmt: skip
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--raw", is_flag=True, help="The exact bytes of each value, on a terminal too.")
@shared
@pass_settings
def get(settings: Settings, keys: tuple[str, ...], raw: bool) -> None:
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
"""))  # fmt: skip
@click.argument("prefix", default="")
@click.option("-l", "--long", "long_", is_flag=True, help="Revision, remaining ttl and size of each.")
@click.option("--tree", "as_tree", is_flag=True, help="As a tree of folders.")
@click.option("--depth", type=click.IntRange(min=1), help="How deep the tree goes.  [default: all of it]")
@click.option("--count", is_flag=True, help="Only how many there are.")
@shared
@pass_settings
def ls(settings: Settings, *, prefix: str, long_: bool, as_tree: bool, depth: int | None, count: bool) -> None:
    """List the keys that begin with PREFIX (all of them without it), in order.

    An empty list is an answer too, and said on standard error: exit code 0.
    """
    out = settings.out
    with reading(settings, [prefix]) as store:
        if not count and not store.keys(prefix):
            say_empty(out, prefix)
        if count:
            n = len(store.keys(prefix))
            out.record({"prefix": prefix, "count": n}) if out.json else out.line(str(n))
        elif out.json:
            out.lines([_ls_json(item) for item in store.items(prefix)])
        elif as_tree or depth:
            out.lines(draw(store.keys(prefix), depth, folder=lambda text: out.style(text, fg="blue", bold=True)))
        elif long_:
            _print_long(out, list(store.items(prefix)))
        else:
            out.lines([escape(key) if out.terminal else key for key in store.keys(prefix)])


def say_empty(out: Out, prefix: str) -> None:
    """That there is nothing, on standard error: an answer that is empty looks like one that did not come."""
    if not out.json:
        click.echo(f"no keys begin with {escape(prefix)!r}" if prefix else "there are no keys", err=True)


def _ls_json(item: Item) -> str:
    from .out import json_line

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


COMMANDS = (get, ls)
