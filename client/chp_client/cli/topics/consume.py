"""`chp sub --group`: a consumer for the shell. It acknowledges a message once the message is printed or handled.

chp sub orders --group billing                   a message is acknowledged once it is written
chp sub orders --group billing --exec ./handle   a message is acknowledged once the command ends with exit code 0

Commands run one after the other. A command that fails is run again, at most --tries times in all, as `Consumer.run`
does with a handler. After the last try, the message goes to `TOPIC.GROUP.dead`. In a group with `max_deliveries`, the
message is given back after each try instead, and the pair counts the tries.

Each message is acknowledged before the next command begins. So if `chp sub` is killed, other members get at most one
handled message again, not a whole batch. If a message can't be put aside, `chp sub` warns and tries again. If the shell
can't run the command, `chp sub` ends and puts nothing aside, because a misspelt command would empty the topic.

A topic or a group that does not exist is made at the start, and standard error says so. If the group is removed later,
`chp sub` ends with exit code 1.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ..faults import PIPE_CLOSED, Misused, NotFound
from ..out import Out, json_line
from ..settings import CliSettings
from ..text import escape, show_count, show_revision

if TYPE_CHECKING:
    from chp_client import Consumer, Message, Topic
    from chp_client.topics.batch import Batch

# An acknowledgement may take this many seconds, because a failover may come first.
PATIENCE_S = 30.0
# A shell returns these exit codes if it can't run a command. Then the message is not the cause.
NOT_RUN = (126, 127)
# With --no-wait, `chp sub` ends after this many seconds without a message: it then has had all messages.
QUIET_S = 1.0


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The options of `chp sub --group`, with the functions that show a message as JSON fields and as text."""

    settings: CliSettings
    fields: Callable[[Message], dict[str, Any]]
    text: Callable[[Out, Message], str | bytes]
    group: str
    start: str | int
    program: str | None
    tries: int
    count: int | None
    no_wait: bool
    no_create: bool


def consume(topic: Topic, asked: ConsumeOptions) -> None:
    """Consume as a member of the group until --count, --no-wait or Ctrl-C ends it, or the group is removed."""
    from chp_client.errors import NoSuchGroup

    with member(topic, asked) as consumer:
        try:
            _consume(consumer, topic, asked)
        except NoSuchGroup:
            remedy = f"make it again with `chp topic subscribe {topic.name} {asked.group} --from OFFSET`"
            raise NotFound(f"group {asked.group!r} of topic {topic.name!r} was removed; {remedy}") from None


def _consume(consumer: Consumer, topic: Topic, asked: ConsumeOptions) -> None:
    out, left = asked.settings.out, asked.count
    if asked.program is None:
        out.watch_reader(PIPE_CLOSED)
    out.note(f"consuming {topic.name} for group {asked.group}; Ctrl-C ends it")
    while left is None or left > 0:
        batch = consumer.take(QUIET_S if asked.no_wait else None)
        if batch is None:
            return
        if batch.missed:
            out.note(f"{show_count(batch.missed)} messages are not kept any more")
        done = take(consumer, batch, asked, left)
        left = None if left is None else left - done


@contextmanager
def member(topic: Topic, asked: ConsumeOptions) -> Iterator[Consumer]:
    """Give a consumer, and close it at the end. If no server answers, raise an error after --timeout.

    A consumer by itself would wait longer.
    """
    from chp_client.errors import NoSuchGroup, NoSuchTopic

    timeout_s, is_new = asked.settings.timeout_s, False
    try:
        topic.facts(timeout_s)
    except NoSuchTopic as error:
        if asked.no_create:
            remedy = "make it with `chp topic create`, or leave out --no-create"
            raise NotFound(f"{error.text}; {remedy}") from None
        # The consumer makes a missing topic.
        is_new = True
    try:
        consumer = topic.consumer(asked.group, start=asked.start, create=not asked.no_create)
    except NoSuchGroup as error:
        remedy = f"make it with `chp topic subscribe {topic.name} {asked.group}`, or leave out --no-create"
        raise NotFound(f"{error.text}; {remedy}") from None
    if is_new and consumer.made_group:
        click.echo(f"made topic {topic.name!r}", err=True)
    if consumer.made_group:
        click.echo(f"made group {asked.group!r} of topic {topic.name!r}", err=True)
    try:
        yield consumer
    finally:
        consumer.close(timeout_s)


def take(consumer: Consumer, batch: Batch, asked: ConsumeOptions, left: int | None) -> int:
    """Handle messages of a batch until `left` are done; return the number that are.

    A message is done when it was handled and acknowledged, or put aside. One that was given back comes again.
    """
    if asked.program is None:
        messages = list(batch)[:left]
        if not messages:
            return 0
        asked.settings.out.show(messages, asked.fields, asked.text)
        return len(messages) if acknowledged(batch, messages[-1], asked) else 0
    run = Command(asked.program, consumer.topic, asked)
    # The offsets of messages that the pair gives again, because they follow a message that was given back.
    again: set[int] = set()
    done, most = 0, batch.deliveries_max
    for message in list(batch):
        if done == left:
            break
        if message.offset in again:
            continue
        comes_again = False
        if not (why := consumer.attempt(run, message, asked.tries if most is None else 1)):
            is_told = acknowledged(batch, message, asked)
        elif run.code in NOT_RUN:
            raise Misused(f"--exec: {why}: the shell can't run it; message {message.offset} was left as it is")
        elif most is not None:
            again.update(batch.reject(message, why))
            is_told = acknowledged(batch, message, asked)
            comes_again = batch.deliveries < most
            warned(f"message {message.offset} was given back, {batch.deliveries} of {most}: {why}")
        else:
            batch.reject(message, why, asked.tries)
            is_told = put_aside(consumer, batch, f"message {message.offset}", why, asked)
        if not is_told:
            break
        done += not comes_again
    return done


def put_aside(consumer: Consumer, batch: Batch, which: str, why: str, asked: ConsumeOptions) -> bool:
    """Put a rejected message aside, and wait for the acknowledgement. Return False if that failed.

    If the pair refuses, `chp sub` tries again; with --no-wait it ends.
    """
    done = consumer.put_aside(batch, warned, patient=not asked.no_wait)
    if done:
        warned(f"{which} went to topic {consumer.dead_topic}: {why}")
    return done


def warned(text: str) -> None:
    """Write a line to standard error."""
    click.echo(f"chp sub: {escape(text)}", err=True)


def acknowledged(batch: Batch, message: Message, asked: ConsumeOptions) -> bool:
    """Acknowledge a batch up to a message, and wait until that is done.

    Return False if the servers refuse it, because other members have the messages of the batch now.
    """
    from chp_client.errors import Fenced

    try:
        batch.upto(message.offset + 1).done().wait(asked.settings.patience(PATIENCE_S))
    except Fenced as fenced:
        click.echo(f"chp sub: {fenced}", err=True)
        return False
    return True


@dataclass(slots=True)
class Command:
    """The command of --exec, as a handler."""

    program: str
    topic: str
    asked: ConsumeOptions
    # The last exit code.
    code: int = 0

    def __call__(self, message: Message) -> None:
        """Run the command, and wait until it ends. Raise `Failed` unless its exit code is 0."""
        key = message.key or ""
        if "\0" in key:
            raise Failed("its key has a NUL, which no environment takes")
        said = {
            "CHP_TOPIC": self.topic,
            "CHP_GROUP": self.asked.group,
            "CHP_KEY": key,
            "CHP_OFFSET": str(message.offset),
            "CHP_REVISION": show_revision(message.revision),
            "CHP_HEADERS": json_line(dict(message.headers)),
            "CHP_DELIVERIES": str(message.deliveries),
        }
        as_json = self.asked.settings.out.json
        data = f"{json_line(self.asked.fields(message))}\n".encode() if as_json else message.value
        done = subprocess.run(self.program, shell=True, input=data, env={**os.environ, **said}, check=False)
        self.code = done.returncode
        if self.code:
            raise Failed(f"{self.program}: exit code {self.code}")


class Failed(Exception):
    """The error that a command has failed to handle a message."""
