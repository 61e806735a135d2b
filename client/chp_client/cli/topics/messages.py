"""`chp pub` and `chp sub`: messages into a topic, and out of it.

chp pub orders < lines            each line a message; ends when the pair has them all
chp sub orders --from begin       each message a line; without end, unless --count or --no-wait says so
chp sub orders --group billing    as a member of a group, which shares them (consume.py)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from chp.limits import DEFAULT

from ..data.write import standard_input
from ..faults import PIPE_CLOSED, Misused, NoServer, NotFound
from ..out import Out, json_line
from ..settings import CliSettings, examples, pass_settings, shared
from ..store import explained, writing
from ..text import escape, show_count, show_revision, show_value, value_fields
from .consume import ConsumeOptions, consume, group_start

if TYPE_CHECKING:
    from chp_client import Message, Topic

TRIES = 5  # as `Consumer.run`


@contextmanager
def topic_of(settings: CliSettings, name: str) -> Iterator[Topic]:
    """A topic to publish to or to read, whose errors are faults."""
    with writing(settings) as store, asking(settings):
        yield store.clone.topic(name)


@contextmanager
def asking(settings: CliSettings) -> Iterator[None]:
    """Faults for what is not there, and for servers that do not answer."""
    from chp_client.errors import NoSuchGroup, NoSuchTopic, Unanswered

    with explained(settings):
        try:
            yield
        except NoSuchTopic as error:
            raise NotFound(f"{error.text}; `chp topic ls` lists them") from None
        except NoSuchGroup as error:
            raise NotFound(f"{error.text}; `chp topic groups` lists those of a topic") from None
        except Unanswered as error:
            raise NoServer(str(error)) from None


@click.command(short_help="Publish messages to a topic.", epilog=examples("""
    chp pub orders 'one message'
    chp pub orders --key alice '{"item": 7}'
    chp pub orders < lines                 # each line is a message
"""))  # fmt: skip
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--key", help="The key of the messages.")
@shared
@pass_settings
def pub(settings: CliSettings, *, topic: str, value: str | None, key: str | None) -> None:
    """Publish VALUE to TOPIC, or each line of standard input; the topic is made if it is not there.

    It ends when all of them are acknowledged. Exit code 4 if the topic has no room for one: those before it are there.
    """
    values = iter([value.encode(errors="surrogateescape")]) if value is not None else _lines()
    count = 0
    with writing(settings) as store, asking(settings):
        found, ticket = store.clone.topic(topic), None
        for data in values:
            ticket = found.publish(data, key=key, timeout=settings.timeout_s)
            count += 1
            if ticket.done and ticket.error is not None:
                break
        store.clone.flush(settings.timeout_s)  # the first of them that was refused tells
        done = None if ticket is None else ticket.wait(settings.timeout_s)
    if settings.out.json:
        at = {} if done is None else {"revision": show_revision(done.revision), "durability": done.durability}
        settings.out.record({"topic": topic, "messages": count, **at})
    elif settings.out.terminal:
        settings.out.line(f"published {show_count(count)} message{'' if count == 1 else 's'} to {topic}")


def _lines() -> Iterator[bytes]:
    for line in standard_input():
        data = line.removesuffix(b"\n")
        if len(data) > DEFAULT.value_bytes_max:
            raise Misused(f"a line has {len(data):,} bytes; a message has at most {DEFAULT.value_bytes_max:,}")
        yield data


@click.command(short_help="Print the messages of a topic.", epilog=examples("""
    chp sub orders                           # what comes from now on
    chp sub orders --from begin --no-wait    # all that is there
    chp sub orders --from 17 --count 1       # one message
    chp sub orders --json | jq -r .key
    chp sub orders --group billing --exec ./handle
"""))  # fmt: skip
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="begin|end|OFFSET",
    help="Where to begin; a group that is there goes on where it is.  [default: end; a new group: begin]",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--no-wait", is_flag=True, help="End when all that is there was printed; in a group, after a second without any."
)
@click.option(
    "--group", metavar="NAME", help="Share the topic with the others of this group, which is made if it is not there."
)
@click.option("--exec", "command", metavar="COMMAND", help="With --group: run it in a shell for each message.")
@click.option("--tries", type=click.IntRange(min=1, max=100), help="With --exec: how often.  [default: 5]")
@shared
@pass_settings
def sub(
    settings: CliSettings,
    *,
    topic: str,
    start: str | None,
    count: int | None,
    no_wait: bool,
    group: str | None,
    command: str | None,
    tries: int | None,
) -> None:
    """Print each message of TOPIC, in order, over failovers, until Ctrl-C.

    In a pipe a line is the message as it came. With --json it has offset, key, revision and time too.

    With --group each message goes to one member of the group, and is acknowledged when it is printed.

    With --exec nothing is printed: COMMAND has the message as its input (with --json, as that prints it), and in its
    environment CHP_TOPIC, CHP_GROUP, CHP_KEY, CHP_OFFSET and CHP_REVISION. A message is acknowledged when it ends with
    0; otherwise it is tried again, at last put aside in the topic TOPIC.GROUP.dead, and the next one follows. With
    126 or 127, by which a shell says that it can't run it, `chp sub` ends (2) and the message stays.
    """
    if command is not None and group is None:
        raise Misused("--exec needs --group NAME, which keeps what is done; `chp sub | ...` keeps nothing")
    if tries is not None and command is None:
        raise Misused("--tries is how often --exec COMMAND is run; give that too")
    with topic_of(settings, topic) as found:
        if group is None:
            _read(settings, found, start or "end", count, no_wait)
        else:
            begin, show = group_start(start or "begin"), partial(_shown, settings.out)
            consume(found, ConsumeOptions(settings, show, group, begin, command, tries or TRIES, count, no_wait))


def _read(settings: CliSettings, found: Topic, start: str, count: int | None, no_wait: bool) -> None:
    begin, out, left = group_start(start), settings.out, count
    out.watch_reader(PIPE_CLOSED)
    out.note(f"reading {found.name} from {start}; Ctrl-C ends it")
    for batch in found.read(begin, wait=not no_wait):
        if batch.missed:
            out.note(f"{show_count(batch.missed)} messages before {batch.offset} are not kept any more")
        out.raw(b"".join(_shown(out, message) for message in list(batch)[:left]))
        if left is not None:
            left -= len(batch)
            if left <= 0:
                return


def _shown(out: Out, message: Message) -> bytes:
    if out.json:
        fields = {"offset": message.offset, "key": message.key, **value_fields(message.value)}
        at = {"revision": show_revision(message.revision), "time": round(message.time, 3)}
        return json_line({**fields, **at}).encode() + b"\n"
    if out.terminal:
        key = "" if message.key is None else f"{escape(message.key)}  "
        return f"{out.style(str(message.offset), dim=True)}  {key}{show_value(message.value)}\n".encode()
    value: bytes = message.value
    return value + b"\n"


COMMANDS = (pub, sub)
