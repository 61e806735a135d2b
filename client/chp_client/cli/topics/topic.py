"""`chp topic`: which topics there are, making one with settings, looking at one, removing one."""

from __future__ import annotations

import re
from typing import Any

import click

from ..faults import Misused
from ..out import Out
from ..settings import DURATION, CliSettings, examples, pass_settings, shared
from ..store import writing
from ..text import show_count
from .groups import GROUP_COMMANDS, group_lines, group_told, sure, when
from .messages import asking, topic_of

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@click.group(short_help="List, make, show and remove topics.", epilog=examples("""
    chp topic ls
    chp topic create orders --max-messages 1000000
    chp topic show orders
    chp topic groups orders
    chp topic rm orders
"""))  # fmt: skip
def topic() -> None:
    """Logs of messages beside the keys: `chp pub` writes to one, `chp sub` reads it."""


@topic.command(name="ls", short_help="List the topics.", epilog=examples("chp topic ls --json"))
@shared
@pass_settings
def ls(settings: CliSettings) -> None:
    """List the topics: in a pipe their names, on a terminal how many messages and bytes each keeps."""
    with writing(settings) as store, asking(settings):
        found = store.clone.topics(settings.timeout_s)
    out = settings.out
    for facts in found:
        if out.json:
            out.record(_told(facts))
        elif out.terminal:
            kept = f"{show_count(facts['next'] - facts['first'])} messages, {show_count(facts['bytes'])} bytes"
            out.line(f"{facts['name']}  {out.style(kept, dim=True)}")
        else:
            out.line(facts["name"])


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(iB|B)?", text)
    if not found or not int(found[1]):
        raise Misused(f"--max-bytes {text!r}: give bytes, or such as 500M or 10G")
    return int(found[1]) * _UNITS[found[2]]


@topic.command(short_help="Make a topic with settings of its own.", epilog=examples("""
    chp topic create orders --max-messages 1000000       # then publishers are told that it is full
    chp topic create jobs --keep acknowledged --max-messages 100000   # what all groups have done goes
    chp topic create ticks --keep size --max-bytes 10G   # then the oldest go
    chp topic create audit --keep time --max-age 7d
"""))  # fmt: skip
@click.argument("name")
@click.option(
    "--keep", type=click.Choice(["all", "acknowledged", "size", "time"]), default="all", help="What it keeps."
)
@click.option("--max-messages", type=click.IntRange(min=1), help="How many messages it has at most.")
@click.option("--max-bytes", metavar="BYTES", help="How many bytes: 1000000, 500M, 10G.")
@click.option("--max-age", type=DURATION, metavar="DURATION", help="How old they become: 12h, 7d.")
@shared
@pass_settings
def create(
    settings: CliSettings,
    *,
    name: str,
    keep: str,
    max_messages: int | None,
    max_bytes: str | None,
    max_age: float | None,
) -> None:
    """Make the topic NAME. One that is made by its first message keeps all."""
    age = None if max_age is None else max(1, round(max_age))
    size = _bytes(max_bytes)
    with topic_of(settings, name) as found:
        found.create(keep, max_messages=max_messages, max_bytes=size, max_age_s=age, timeout=settings.timeout_s)
    if settings.out.json:
        settings.out.record({"created": name})
    elif settings.out.terminal:
        settings.out.line(f"created {name}")


@topic.command(short_help="Show what is known of a topic.", epilog=examples("chp topic show orders --json"))
@click.argument("name")
@shared
@pass_settings
def show(settings: CliSettings, name: str) -> None:
    """Show the offsets of NAME, what it keeps, when its last message came, and its groups with their members."""
    with topic_of(settings, name) as found:
        facts, told = found.facts(settings.timeout_s), found.groups(settings.timeout_s)
    groups = [group_told(group) for group in told]
    if settings.out.json:
        settings.out.record({**_told(facts), "groups": groups})
    else:
        _show(settings.out, _told(facts))
        settings.out.lines([line for group in groups for line in group_lines(settings.out, group)])


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    kept = facts["next"] - facts["first"]
    return {"name": facts["name"], "messages": kept, **{name: facts[name] for name in ("first", "next", "bytes")},
            "last": when(facts["wall_ms"]), "settings": facts["settings"]}  # fmt: skip


def _show(out: Out, told: dict[str, Any]) -> None:
    settings = told.pop("settings")
    shown = {name: show_count(value) if type(value) is int else value for name, value in told.items()}
    shown["keeps"] = " ".join(f"{name}={value}" for name, value in settings.items()) or "all"
    out.lines([f"{name:<10}{value}" for name, value in shown.items()])


@topic.command(
    name="rm", short_help="Remove a topic with all its messages.", epilog=examples("chp topic rm orders --yes")
)
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@shared
@pass_settings
def remove(settings: CliSettings, name: str, yes: bool) -> None:
    """Remove the topic NAME and its messages, for everybody."""
    if not yes:
        sure(f"topic {name} would be removed", f"Remove topic {name} with all its messages?")
    with topic_of(settings, name) as found:
        found.remove(settings.timeout_s)
    if settings.out.json:
        settings.out.record({"removed": name})
    elif settings.out.terminal:
        settings.out.line(f"removed {name}")


for _command in GROUP_COMMANDS:
    topic.add_command(_command)
COMMANDS = (topic,)
