"""`chp topic`: list, make, show and remove topics, and the groups that share them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from chp.limits import DEFAULT

from ..data.write import confirm
from ..faults import Misused
from ..out import Out
from ..settings import DELAY, TIME, TOPIC_START, YES, CliSettings, at_least_1, command, duration, group
from ..store import topic_errors, topic_of, writing
from ..text import counted, escape, show_count
from .messages import HEADER, headers_of

if TYPE_CHECKING:
    from chp_client import ScheduledMessage

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
NAME, GROUP = click.argument("name"), click.argument("group")
OFF = {
    "max-deliveries": "max_deliveries", "retry-after": "retry_after_s", "ack-timeout": "ack_timeout_s",
    "lag-alarm": "lag_alarm_s", "expire-after": "expire_after_s",
}  # fmt: skip


def with_group_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a group's settings to a command."""
    options = (
        duration(
            "--ack-timeout",
            help="A member that acknowledges nothing for so long loses its messages to others.",
            whole=True,
        ),
        at_least_1(
            "--max-deliveries",
            most=DEFAULT.deliveries_max,
            help="A message that was given so often and not done is put aside.",
        ),
        duration(
            "--retry-after", help="With --max-deliveries: how long a message waits that failed; then twice as long."
        ),
        duration(
            "--lag-alarm",
            help="The servers' log and metrics tell when the oldest message is older than this.",
            whole=True,
        ),
        duration("--expire-after", help="Remove the group when it had no member for so long.", whole=True),
    )
    for option in reversed(options):
        function = option(function)
    return function


@group()
def topic() -> None:
    """List, make, show and remove topics.

    Topics are logs of messages beside the keys: `chp pub` writes to one, `chp sub` reads it.

    Examples:
        chp topic ls
        chp topic create orders --max-messages 1000000
        chp topic show orders
        chp topic groups orders
        chp topic rm orders
    """


@command(topic, mounts=True)
def ls(settings: CliSettings) -> None:
    """List the topics.

    A pipe gets their names, a terminal also the number of messages and bytes that each keeps.

    Examples:
        chp topic ls --json
    """
    with writing(settings) as store, topic_errors():
        found = store.clone.topics(settings.timeout_s)
    settings.out.show(map(_told, found), lambda told: told, _line)


def _line(out: Out, told: dict[str, Any]) -> str:
    kept = f"{counted(told['messages'], 'message')}, {counted(told['bytes'], 'byte')}"
    return f"{told['name']}  {out.style(kept, dim=True)}" if out.terminal else str(told["name"])


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    kept = facts["next"] - facts["first"]
    return {"name": facts["name"], "messages": kept, **{name: facts[name] for name in ("first", "next", "bytes")},
            "last": _when(facts["wall_ms"]), "settings": facts["settings"]}  # fmt: skip


def _when(wall_ms: int) -> str:
    """Return a server's wall-clock time as text, in UTC; "never" for 0."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ms / 1000)) if wall_ms else "never"


@command(topic, mounts=True)
@NAME
@click.option(
    "--keep", type=click.Choice(["all", "acknowledged", "size", "time"]), default="all", help="What it keeps."
)
@at_least_1("--max-messages", help="The most messages it has.")
@click.option("--max-bytes", metavar="BYTES", help="The most bytes: 1000000, 500M, 10G.")
@duration("--max-age", help="The greatest age of a message: 12h, 7d.", whole=True)
@click.option("--require-group", is_flag=True, help="Take messages only while it has a group.")
@duration("--expire-after", help="Remove it when it was not used for so long.", whole=True)
def create(
    settings: CliSettings, name: str, keep: str, max_bytes: str | None, require_group: bool, **bounds: Any
) -> None:
    """Make a topic with settings of its own.

    A topic that is made by its first message keeps all.

    Examples:
        chp topic create orders --max-messages 1000000       # at this number, publishers are refused
        chp topic create jobs --keep acknowledged --max-messages 100000   # drops what all groups acknowledged
        chp topic create ticks --keep size --max-bytes 10G   # at this size, the oldest messages are dropped
        chp topic create audit --keep time --max-age 7d
    """
    most, size = bounds["max_messages"], _bytes(max_bytes)
    with topic_of(settings, name) as found:
        found.create(
            keep, max_messages=most, max_bytes=size, max_age_s=bounds["max_age"], require_group=require_group,
            expire_after_s=bounds["expire_after"], timeout=settings.timeout_s,
        )  # fmt: skip
    settings.out.done({"created": name}, f"created {name}")


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(iB|B)?", text)
    if not found or not int(found[1]):
        raise Misused(f"--max-bytes {text!r}: give bytes, or such as 500M or 10G")
    return int(found[1]) * _UNITS[found[2]]


@command(topic, mounts=True)
@NAME
def show(settings: CliSettings, name: str) -> None:
    """Show a topic and its groups.

    Show its offsets, what it keeps, when its last message came, how many messages wait for their time, and its groups
    with their settings and members.

    Examples:
        chp topic show orders --json
    """
    with topic_of(settings, name) as found:
        facts, groups = found.facts(settings.timeout_s), list(map(_group, found.groups(settings.timeout_s)))
    told = _told(facts) | {name: facts[name] for name in ("scheduled",) if name in facts}
    shown = {key: show_count(value) if type(value) is int else value for key, value in told.items()}
    shown.pop("settings")
    shown["keeps"] = " ".join(f"{key}={value}" for key, value in told["settings"].items()) or "all"
    lines = [f"{key:<10}{value}" for key, value in shown.items()]
    settings.out.answer(
        {**told, "groups": groups}, "\n".join([*lines, *(_group_text(settings.out, g) for g in groups)])
    )


@command(topic, name="rm", mounts=True)
@NAME
@YES
def remove(settings: CliSettings, name: str, yes: bool) -> None:
    """Remove a topic with all its messages.

    The topic NAME is gone for all publishers and readers. Its scheduled messages are dropped.

    Examples:
        chp topic rm orders --yes
    """
    if not yes:
        confirm(f"topic {name} would be removed", f"Remove topic {name} with all its messages?")
    from chp_client.errors import Refused

    waiting = 0
    with topic_of(settings, name) as found:
        # A user may have the right to remove a topic, but not to read its facts.
        with suppress(Refused):
            waiting = found.facts(settings.timeout_s).get("scheduled", 0)
        found.remove(settings.timeout_s)
    more = f", and dropped {counted(waiting, 'scheduled message')}" if waiting else ""
    settings.out.done({"removed": name, "scheduled": waiting}, f"removed {name}{more}")


# -- scheduled messages


@command(topic, mounts=True)
@NAME
@click.argument("value")
@click.option("--in", "delay_s", type=DELAY, metavar="DURATION", help="Publish it after this time: 30m, 2h, 7d.")
@click.option("--at", type=TIME, metavar="TIME", help="Or at this time: 2027-01-31T09:00:00+01:00.")
@click.option("--every", "every_s", type=DELAY, metavar="DURATION", help="And again each time after so long.")
@click.option("--unless-changed", metavar="KEY", help="Drop it if this key of the map changes before.")
@click.option("--name", "message_name", metavar="NAME", help="The name for `cancel`; else a random one.")
@click.option("--key", help="The key of the message.")
@HEADER
def schedule(
    settings: CliSettings, name: str, value: str, message_name: str | None, headers: tuple[str, ...], **when: Any
) -> None:
    """Have the pair publish a message later.

    Publish VALUE to the topic NAME when it is due. The message survives failovers and restarts.

    Examples:
        chp topic schedule reminders 'order 7' --in 30m --unless-changed /orders/7
        chp topic schedule reports daily --at 2027-01-31T09:00:00Z --every 1d --name daily
    """
    from chp_client.topics.schedule import EVERY_S_MIN

    if (when["delay_s"] is None) == (when["at"] is None):
        raise Misused("give one of --in and --at: when the message is to be published")
    if when["every_s"] is not None and when["every_s"] < EVERY_S_MIN:
        raise Misused(f"--every is {EVERY_S_MIN:g}s or more, not {when['every_s']:g}s")
    data, carried = value.encode(errors="surrogateescape"), headers_of(headers)
    with topic_of(settings, name) as found:
        made = found.schedule(data, name=message_name, headers=carried, timeout=settings.timeout_s, **when)
        made.wait(settings.timeout_s)
    # A script needs the name to cancel the message, so a pipe gets the name too.
    settings.out.answer({"scheduled": made.name, "topic": name}, made.name)


@command(topic, mounts=True)
@NAME
@at_least_1("--limit", help="The most messages it shows.", default=100)
@click.option("--after", metavar="NAME", help="Begin behind this name.")
def scheduled(settings: CliSettings, name: str, limit: int, after: str | None) -> None:
    """List the messages of a topic that wait for their time.

    They are in the order of their names.

    Examples:
        chp topic scheduled reminders
        chp topic scheduled reminders --json | jq -r .due
    """
    with topic_of(settings, name) as found:
        messages = found.scheduled(limit, after, timeout=settings.timeout_s)
    settings.out.show(map(_scheduled, messages), lambda told: told, _scheduled_text)


def _scheduled(message: ScheduledMessage) -> dict[str, Any]:
    told = {"name": message.name, "due": message.due.isoformat(timespec="milliseconds"), "size": message.size}
    more = {"every_s": message.every_s, "unless_changed": message.unless_changed, "key": message.key}
    return told | {name: value for name, value in more.items() if value is not None}


def _scheduled_text(out: Out, told: dict[str, Any]) -> str:
    more = [counted(told["size"], "byte")]
    more += [f"every {told['every_s']:g} s"] if "every_s" in told else []
    more += [f"unless {escape(told['unless_changed'])} changes"] if "unless_changed" in told else []
    return f"{told['name']}  {told['due']}  {out.style(', '.join(more), dim=True)}"


@command(topic, mounts=True)
@NAME
@click.argument("message_name", metavar="MESSAGE")
def cancel(settings: CliSettings, name: str, message_name: str) -> None:
    """Cancel a message that waits for its time.

    Exit code 1 if the topic NAME has no scheduled message of that name.

    Examples:
        chp topic cancel reports daily
    """
    with topic_of(settings, name) as found:
        found.cancel(message_name, settings.timeout_s)
    settings.out.done({"cancelled": message_name, "topic": name}, f"cancelled {message_name} of topic {name}")


# -- groups


def _group(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a group as --json has them."""
    told = {name: facts[name] for name in ("name", "position", "lag")}
    oldest = _when(facts["oldest_ms"]) if facts["oldest_ms"] else None
    members = [{"name": name, "slots": slots} for name, slots in facts["members"]]
    names = ("ack_timeout_s", "lag_alarm_s", "max_deliveries", "retry_after_s", "expire_after_s")
    counted = {name: facts[name] for name in names}
    failing = {name: facts[name] for name in ("failing", "deliveries")}
    return {**told, "oldest": oldest, "members": members, **counted, **failing}


def _group_text(out: Out, told: dict[str, Any]) -> str:
    """Return a line for the group, and a line for each member."""
    since = f", since {told['oldest']}" if told["oldest"] else ""
    n = counted(len(told["members"]), "member")
    facts = f"position {show_count(told['position'])}, lag {show_count(told['lag'])}{since}, {n}"
    if told["max_deliveries"]:
        facts += f", max_deliveries {told['max_deliveries']:,}"
    times = ("retry_after_s", "ack_timeout_s", "lag_alarm_s", "expire_after_s")
    facts += "".join(f", {name.removesuffix('_s')} {told[name]:,} s" for name in times if told[name])
    if told["failing"]:
        facts += (
            f", {counted(told['failing'], 'slot')} failing, {told['deliveries']} of {told['max_deliveries']} deliveries"
        )
    members = [
        f"  {escape(each['name'])}  " + out.style(counted(each["slots"], "slot"), dim=True) for each in told["members"]
    ]
    return "\n".join([f"group {told['name']}  {out.style(facts, dim=True)}", *members])


@command(topic, mounts=True)
@NAME
def groups(settings: CliSettings, name: str) -> None:
    """List the groups of a topic, their lag and members.

    The lag is the number of messages that a group has yet to acknowledge.

    Examples:
        chp topic groups orders
        chp topic groups orders --json | jq 'select(.lag > 1000).name'
    """
    with topic_of(settings, name) as found:
        told = list(map(_group, found.groups(settings.timeout_s)))
    settings.out.show(told, lambda each: each, _group_text)


@command(topic, mounts=True)
@NAME
@GROUP
@click.option(
    "--from", "start", default="end", type=TOPIC_START, metavar="begin|end|OFFSET",
    help="Where it begins.  [default: end]",
)  # fmt: skip
@with_group_settings
def subscribe(settings: CliSettings, name: str, group: str, start: str | int, **how: Any) -> None:
    """Make a group, before its first consumer.

    The topic NAME is made too if it does not exist.

    Examples:
        chp topic subscribe orders billing               # new messages are kept for this group
        chp topic subscribe orders audit --from begin
        chp topic subscribe orders report --expire-after 7d   # removed after a week without a consumer
        chp topic subscribe orders mail --max-deliveries 5 --retry-after 2s   # then put aside in TOPIC.GROUP.dead
    """
    if how["retry_after"] is not None and how["max_deliveries"] is None:
        raise Misused("--retry-after is for a group that counts deliveries; give --max-deliveries too")
    with topic_of(settings, name) as found:
        found.subscribe(group, start, **_settings(how), timeout=settings.timeout_s)
    settings.out.done({"subscribed": group, "topic": name}, f"made group {group} of topic {name}")


def _settings(how: dict[str, Any]) -> dict[str, Any]:
    times = ("ack_timeout", "lag_alarm", "expire_after", "retry_after")
    return {"max_deliveries": how["max_deliveries"], **{f"{name}_s": how[name] for name in times}}


@command(topic, mounts=True)
@NAME
@GROUP
@with_group_settings
@click.option(
    "--off", type=click.Choice(OFF), multiple=True, help="A setting that the group has no more; may be given again."
)
def configure(settings: CliSettings, name: str, group: str, off: tuple[str, ...], **how: Any) -> None:
    """Change settings of a group.

    The group goes on where it is. A setting that is not given stays as it is.

    Examples:
        chp topic configure orders billing --max-deliveries 5 --retry-after 2s
        chp topic configure orders billing --off max-deliveries --off retry-after
    """
    given = {key: value for key, value in _settings(how).items() if value is not None}
    removed = {OFF[each]: None for each in off}
    if both := given.keys() & removed.keys():
        raise Misused(f"--off {next(iter(both))!r}: it was given a value too; give one of both")
    if "retry_after_s" in given and "max_deliveries" in removed:
        raise Misused("--retry-after is for a group that counts deliveries; leave out --off max-deliveries")
    if not given and not removed:
        raise Misused(
            "no setting; give --max-deliveries, --retry-after, --ack-timeout, --lag-alarm, --expire-after or --off"
        )
    with topic_of(settings, name) as found:
        found.configure(group, **given, **removed, timeout=settings.timeout_s)
    settings.out.done({"configured": group, "topic": name}, f"changed group {group} of topic {name}")


@command(topic, mounts=True)
@NAME
@GROUP
@click.option("--to", "start", required=True, type=TOPIC_START, metavar="begin|end|OFFSET", help="Where it goes on.")
@YES
def reset(settings: CliSettings, name: str, group: str, start: str | int, yes: bool) -> None:
    """Have a group begin anew elsewhere.

    The group's members can't acknowledge the messages that they hold now: the servers refuse this as fenced.

    Examples:
        chp topic reset orders billing --to begin --yes   # all that is kept comes again
        chp topic reset orders billing --to end           # waiting messages are left out
        chp topic reset orders billing --to 4711
    """
    what = f"group {group} of topic {name}"
    if not yes:
        confirm(f"{what} would go on at {start}", f"Have {what} go on at {start}?")
    with topic_of(settings, name) as found:
        found.reset(group, start, settings.timeout_s)
    settings.out.done({"reset": group, "topic": name, "to": start}, f"{what} goes on at {start}")


@command(topic, mounts=True)
@NAME
@GROUP
@YES
def unsubscribe(settings: CliSettings, name: str, group: str, yes: bool) -> None:
    """Remove a group.

    The group's positions are lost. The topic keeps its messages as its settings say.

    Examples:
        chp topic unsubscribe orders billing --yes
    """
    what = f"group {group} of topic {name}"
    if not yes:
        confirm(f"{what} would be removed", f"Remove {what}, with its positions?")
    with topic_of(settings, name) as found:
        found.unsubscribe(group, settings.timeout_s)
    settings.out.done({"unsubscribed": group, "topic": name}, f"removed {what}")


COMMANDS = (topic,)
