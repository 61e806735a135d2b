"""`chp topic groups`, `subscribe`, `reset`, `unsubscribe`: who shares it, how far each group is, where it goes on."""

from __future__ import annotations

import time
from typing import Any

import click

from ..faults import Misused
from ..out import Out
from ..settings import DURATION, CliSettings, examples, pass_settings, shared
from ..text import escape, show_count
from .consume import group_start
from .messages import topic_of


def when(wall_ms: int) -> str:
    """A server's time, for people and programs."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ms / 1000)) if wall_ms else "never"


def sure(what: str, question: str) -> None:
    """Go on only if somebody says so."""
    from ..data.write import somebody_to_ask

    if not somebody_to_ask():
        raise Misused(f"{what} and there is nobody to ask; add --yes")
    click.confirm(question, abort=True, err=True)


def group_told(group: dict[str, Any]) -> dict[str, Any]:
    """What is known of a group, as --json says it."""
    told = {name: group[name] for name in ("name", "position", "lag")}
    oldest = when(group["oldest_ms"]) if group["oldest_ms"] else None
    members = [{"name": name, "slots": slots} for name, slots in group["members"]]
    return {**told, "oldest": oldest, "members": members, "ack_timeout_s": group["ack_timeout_s"]}


def group_lines(out: Out, told: dict[str, Any]) -> list[str]:
    """The same for people: a line of the group, one of each member."""
    since = f", since {told['oldest']}" if told["oldest"] else ""
    n = len(told["members"])
    facts = f"position {show_count(told['position'])}, lag {show_count(told['lag'])}{since}, {n} member{'s' * (n != 1)}"
    members = [f"  {escape(each['name'])}  " + out.style(_slots(each["slots"]), dim=True) for each in told["members"]]
    return [f"group {told['name']}  {out.style(facts, dim=True)}", *members]


def _slots(n: int) -> str:
    return f"{n} slot{'s' * (n != 1)}"


@click.command(short_help="List the groups of a topic, their lag and members.", epilog=examples("""
    chp topic groups orders
    chp topic groups orders --json | jq 'select(.lag > 1000).name'
"""))  # fmt: skip
@click.argument("name")
@shared
@pass_settings
def groups(settings: CliSettings, name: str) -> None:
    """List the groups of the topic NAME: how many messages each has yet to acknowledge, since when, and its members."""
    with topic_of(settings, name) as found:
        told = [group_told(group) for group in found.groups(settings.timeout_s)]
    for group in told:
        if settings.out.json:
            settings.out.record(group)
        else:
            settings.out.lines(group_lines(settings.out, group))


@click.command(short_help="Make a group, before its first consumer.", epilog=examples("""
    chp topic subscribe orders billing               # what comes from now on is kept for it
    chp topic subscribe orders audit --from begin
"""))  # fmt: skip
@click.argument("name")
@click.argument("group")
@click.option("--from", "start", default="end", metavar="begin|end|OFFSET", help="Where it begins.  [default: end]")
@click.option(
    "--ack-timeout", type=DURATION, metavar="DURATION",
    help="A member that acknowledges nothing for so long of what it has loses it to others.",
)  # fmt: skip
@shared
@pass_settings
def subscribe(settings: CliSettings, *, name: str, group: str, start: str, ack_timeout: float | None) -> None:
    """Make GROUP of the topic NAME, which is made too if it is not there."""
    begin = group_start(start)
    timeout_s = None if ack_timeout is None else max(1, round(ack_timeout))
    with topic_of(settings, name) as found:
        found.subscribe(group, begin, ack_timeout_s=timeout_s, timeout=settings.timeout_s)
    _say(settings, {"subscribed": group, "topic": name}, f"made group {group} of topic {name}")


@click.command(short_help="Have a group begin anew elsewhere.", epilog=examples("""
    chp topic reset orders billing --to begin --yes   # all that is kept comes again
    chp topic reset orders billing --to end           # what waits is left out
    chp topic reset orders billing --to 4711
"""))  # fmt: skip
@click.argument("name")
@click.argument("group")
@click.option("--to", "start", required=True, metavar="begin|end|OFFSET", help="Where it goes on.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@shared
@pass_settings
def reset(settings: CliSettings, *, name: str, group: str, start: str, yes: bool) -> None:
    """Have GROUP of the topic NAME go on elsewhere; what its members have in hand is refused to them as fenced."""
    begin = group_start(start)
    if not yes:
        what = f"group {group} of topic {name}"
        sure(f"{what} would go on at {start}", f"Have {what} go on at {start}?")
    with topic_of(settings, name) as found:
        found.reset(group, begin, settings.timeout_s)
    _say(settings, {"reset": group, "topic": name, "to": begin}, f"group {group} of topic {name} goes on at {start}")


@click.command(short_help="Remove a group.", epilog=examples("chp topic unsubscribe orders billing --yes"))
@click.argument("name")
@click.argument("group")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@shared
@pass_settings
def unsubscribe(settings: CliSettings, *, name: str, group: str, yes: bool) -> None:
    """Remove GROUP of the topic NAME, with how far it has come; messages stay as the topic keeps them."""
    if not yes:
        what = f"group {group} of topic {name}"
        sure(f"{what} would be removed", f"Remove {what}, with how far it has come?")
    with topic_of(settings, name) as found:
        found.unsubscribe(group, settings.timeout_s)
    _say(settings, {"unsubscribed": group, "topic": name}, f"removed group {group} of topic {name}")


def _say(settings: CliSettings, fields: dict[str, Any], text: str) -> None:
    if settings.out.json:
        settings.out.record(fields)
    elif settings.out.terminal:
        settings.out.line(text)


GROUP_COMMANDS = (groups, subscribe, reset, unsubscribe)
