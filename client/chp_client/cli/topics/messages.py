"""`chp pub` and `chp sub`: messages into a topic, and out of it.

chp pub orders < lines            each line is a message; ends when the pair has all messages
chp sub orders --from begin       each message is a line; ends only with --count, with --no-wait or by Ctrl-C
chp sub orders --group billing    reads as a member of a group; the members share the messages (consume.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from chp.errors import BadInput
from chp.limits import DEFAULT

from ..data.write import standard_input
from ..faults import PIPE_CLOSED, Misused, NotFound
from ..out import Out
from ..settings import TOPIC_START, CliSettings, at_least_1, command
from ..store import topic_errors, topic_of, writing
from ..text import counted, escape, show_count, show_revision, show_value, value_fields
from .consume import ConsumeOptions, consume

if TYPE_CHECKING:
    from chp.topics import Headers
    from chp_client import Message, Topic

# The default of --tries. `Consumer.run` has the same default.
TRIES = 5
HEADER = click.option(
    "--header", "headers", multiple=True, metavar="NAME=TEXT", help="A header of the messages; may be given again."
)


@command(mounts=True)
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", help="The key of the messages.")
@HEADER
@click.option("--no-create", is_flag=True, help="Refuse if TOPIC does not exist, instead of making it.")
def pub(settings: CliSettings, topic: str, value: str | None, **how: Any) -> None:
    """Publish messages to a topic.

    Publish VALUE to TOPIC, or each line of standard input. A topic that does not exist is made, and standard error says
    so. The command ends when all messages are acknowledged. Exit code 4 if the topic has no room for a message; the
    messages before that one are published.

    Examples:
        chp pub orders 'one message'
        chp pub orders --key alice '{"item": 7}'
        chp pub orders --header source=shop --header lang=de 'one message'
        chp pub orders --no-create < lines     # each line is a message
    """
    values = iter([value.encode(errors="surrogateescape")]) if value is not None else _lines()
    count, ticket, carried = 0, None, headers_of(how["headers"])
    with writing(settings) as store, topic_errors():
        found = store.clone.topic(topic)
        is_new = not _exists(settings, found)
        if is_new and how["no_create"]:
            raise NotFound(f"there is no topic {topic!r}; make it with `chp topic create`, or leave out --no-create")
        for data in values:
            ticket = found.publish(data, key=how["key"], timeout=settings.timeout_s, headers=carried)
            count += 1
            if ticket.done and ticket.error is not None:
                break
        # The flush raises the error of the first message that was refused.
        store.clone.flush(settings.timeout_s)
        done = None if ticket is None else ticket.wait(settings.timeout_s)
    if is_new and count:
        click.echo(f"made topic {topic!r}", err=True)
    at = {} if done is None else {"revision": show_revision(done.revision), "durability": done.durability}
    settings.out.done({"topic": topic, "messages": count, **at}, f"published {counted(count, 'message')} to {topic}")


def headers_of(given: tuple[str, ...]) -> Headers:
    """Return the headers that the `--header` options give; raise `Misused` if one is wrong."""
    from chp.topics import check_headers

    pairs = [text.partition("=") for text in given]
    if wrong := [text for text, (_, middle, _) in zip(given, pairs, strict=True) if not middle]:
        raise Misused(f"--header {wrong[0]!r}: give a name and a text, such as --header source=shop")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise Misused("--header: a name was given twice; a message has one text for each name")
    try:
        return check_headers({name: text for name, _, text in pairs})
    except BadInput as error:
        raise Misused(f"--header: {error}") from None


def _exists(settings: CliSettings, topic: Topic) -> bool:
    """Return False if the topic does not exist. Return True also if this user may not read the topic."""
    from chp_client.errors import NoSuchTopic, Refused

    try:
        topic.facts(settings.timeout_s)
    except NoSuchTopic:
        return False
    except Refused as refused:
        if refused.code != "access":
            raise
    return True


def _lines() -> Iterator[bytes]:
    for line in standard_input():
        data = line.removesuffix(b"\n")
        if len(data) > DEFAULT.value_bytes_max:
            raise Misused(f"a line has {len(data):,} bytes; a message has at most {DEFAULT.value_bytes_max:,}")
        yield data


@command(mounts=True)
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=TOPIC_START,
    metavar="begin|end|OFFSET",
    help="Where to begin; a group that exists goes on where it is.  [default: end; a new group: begin]",
)
@at_least_1("--count", help="End after so many messages; one that is given back to its group does not count.")
@click.option(
    "--no-wait", is_flag=True, help="End when all that is there was printed; in a group, after a second without any."
)
@click.option(
    "--group",
    metavar="NAME",
    help="Share the topic with the other members of this group, which is made if it does not exist.",
)
@click.option(
    "--no-create", is_flag=True, help="With --group: refuse if TOPIC or the group does not exist, instead of making it."
)
@click.option("--exec", "program", metavar="COMMAND", help="With --group: run it in a shell for each message.")
@at_least_1("--tries", most=100, help="With --exec: how often.  [default: 5]")
def sub(settings: CliSettings, topic: str, start: str | int | None, **how: Any) -> None:
    """Print the messages of a topic.

    Print each message in order, over failovers, until Ctrl-C. In a pipe a line is the message as it came. With --json a
    line has offset, key, headers, revision and time too, and deliveries if the message failed before.

    With --group each message goes to one member of the group, and is acknowledged when it is printed. A topic or group
    that does not exist is made at the start, and standard error says so. Exit code 1 if the topic or group is removed
    later.

    With --exec nothing is printed: COMMAND gets the message as its input (with --json, the JSON line of the message).
    Its environment has CHP_TOPIC, CHP_GROUP, CHP_KEY, CHP_OFFSET, CHP_REVISION and CHP_HEADERS (JSON). A message is
    acknowledged when COMMAND ends with exit code 0. Otherwise COMMAND is run again; after the last try the message is
    put aside in the topic TOPIC.GROUP.dead. If the shell can't run COMMAND (exit code 126 or 127), `chp sub` ends with
    exit code 2 and the message stays.

    Examples:
        chp sub orders                           # new messages only
        chp sub orders --from begin --no-wait    # all that is there
        chp sub orders --from 17 --count 1       # one message
        chp sub orders --json | jq -r .key
        chp sub orders --group billing --exec ./handle
        chp sub orders --group billing --no-create    # the group must exist
    """
    if how["program"] is not None and how["group"] is None:
        raise Misused("--exec needs --group NAME, which keeps what is done; `chp sub | ...` keeps nothing")
    if how["no_create"] and how["group"] is None:
        raise Misused("--no-create needs --group NAME; without it `chp sub` makes nothing")
    if how["tries"] is not None and how["program"] is None:
        raise Misused("--tries is how often --exec COMMAND is run; give that too")
    with topic_of(settings, topic) as found:
        if how["group"] is None:
            _read(settings, found, "end" if start is None else start, how["count"], how["no_wait"])
        else:
            begin, tries = "begin" if start is None else start, how.pop("tries") or TRIES
            consume(found, ConsumeOptions(settings, start=begin, fields=_fields, text=_text, tries=tries, **how))


def _read(settings: CliSettings, found: Topic, start: str | int, count: int | None, no_wait: bool) -> None:
    out, left = settings.out, count
    out.watch_reader(PIPE_CLOSED)
    out.note(f"reading {found.name} from {start}; Ctrl-C ends it")
    for batch in found.read(start, wait=not no_wait):
        if batch.missed:
            out.note(f"{show_count(batch.missed)} messages before {batch.offset} are not kept any more")
        out.show(list(batch)[:left], _fields, _text)
        if left is not None:
            left -= len(batch)
            if left <= 0:
                return


def _fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": message.offset, "key": message.key, **value_fields(message.value)}
    if message.headers:
        fields["headers"] = dict(message.headers)
    if message.deliveries > 1:
        fields["deliveries"] = message.deliveries
    return {**fields, "revision": show_revision(message.revision), "time": round(message.time, 3)}


def _text(out: Out, message: Message) -> str | bytes:
    if not out.terminal:
        return bytes(message.value)
    key = "" if message.key is None else f"{escape(message.key)}  "
    return f"{out.style(str(message.offset), dim=True)}  {key}{show_value(message.value)}"


COMMANDS = (pub, sub)
