"""`chp pub` and `chp sub`: messages into a topic, and out of it.

chp pub orders < lines            each line a message; ends when the pair has them all
chp sub orders --from begin       each message a line; without end, unless --count or --no-wait says so
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from chp.limits import DEFAULT

from ..data.write import standard_input
from ..faults import PIPE_CLOSED, Misused, NoServer, NotFound
from ..out import Out, json_line
from ..settings import Settings, examples, pass_settings, shared
from ..store import explained, writing
from ..text import escape, show_count, show_revision, show_value, value_fields

if TYPE_CHECKING:
    from chp_client import MessageBatch, Topic


@contextmanager
def topic_of(settings: Settings, name: str) -> Iterator[Topic]:
    """A topic to publish to or to read, whose errors are faults."""
    with writing(settings) as store, asking(settings):
        yield store.clone.topic(name)


@contextmanager
def asking(settings: Settings) -> Iterator[None]:
    """Faults for what is not there, and for servers that do not answer."""
    from chp_client.errors import NoSuchTopic, Unanswered

    with explained(settings):
        try:
            yield
        except NoSuchTopic as error:
            raise NotFound(f"{error.text}; `chp topic ls` lists them") from None
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
def pub(settings: Settings, *, topic: str, value: str | None, key: str | None) -> None:
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


def _after(text: str) -> int | None:
    from chp_client import LATEST

    if text in ("begin", "end"):
        return None if text == "begin" else LATEST
    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text) - 1
    raise Misused(f"--from {text!r}: give begin, end, or the offset of a message")


@click.command(short_help="Print the messages of a topic.", epilog=examples("""
    chp sub orders                           # what comes from now on
    chp sub orders --from begin --no-wait    # all that is there
    chp sub orders --from 17 --count 1       # one message
    chp sub orders --json | jq -r .key
"""))  # fmt: skip
@click.argument("topic")
@click.option("--from", "start", default="end", metavar="begin|end|OFFSET", help="Where to begin.  [default: end]")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--no-wait", is_flag=True, help="End when all that is there was printed.")
@shared
@pass_settings
def sub(settings: Settings, *, topic: str, start: str, count: int | None, no_wait: bool) -> None:
    """Print each message of TOPIC, in order, over failovers, until Ctrl-C.

    In a pipe a line is the message as it came. With --json it has offset, key, revision and time too.
    """
    after, out, left = _after(start), settings.out, count
    with topic_of(settings, topic) as found:
        out.watch_reader(PIPE_CLOSED)
        out.note(f"reading {topic} from {start}; Ctrl-C ends it")
        for batch in found.read(after, wait=not no_wait):
            if batch.missed:
                out.note(f"{show_count(batch.missed)} messages before {batch.offset} are not kept any more")
            out.raw(b"".join(_shown(out, batch, left)))
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    return


def _shown(out: Out, batch: MessageBatch, left: int | None) -> Iterator[bytes]:
    for message in list(batch)[:left]:
        if out.json:
            fields = {"offset": message.offset, "key": message.key, **value_fields(message.value)}
            at = {"revision": show_revision(message.revision), "time": round(message.time, 3)}
            yield json_line({**fields, **at}).encode() + b"\n"
        elif out.terminal:
            key = "" if message.key is None else f"{escape(message.key)}  "
            yield f"{out.style(str(message.offset), dim=True)}  {key}{show_value(message.value)}\n".encode()
        else:
            yield message.value + b"\n"


COMMANDS = (pub, sub)
