"""Topics: /v1/topics, their settings and facts, publishing, and reading without a group.

A gateway that serves a part of the keys serves a topic only if `/.chp/topics/NAME/` lies in that part. The rules of
access use the same prefix. A publication is answered when the pair has acknowledged it. A page of messages is read by a
thread of its own, and few pages are read at once. A reader of messages as events has a thread while it reads.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from itertools import islice
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response

from chp import columns
from chp.access import TOPICS
from chp.errors import BadInput, ChpError
from chp.keys import check_key
from chp.topics import Headers, Settings, check_headers, column_of_headers, pack_messages

from ...core.events import Ack
from ...errors import NoSuchTopic, Unanswered
from ...starts import TopicStart
from ...topics.aiotopic import AsyncTopic, reading
from ...topics.reader import Message, MessageBatch
from ..answers import json_answer, shown
from ..call import Call
from ..gateway import Gateway
from ..problems import RETRY_S, Problem
from ..request_fields import number, only
from ..shared.mounts import GatewayMount, GatewayMounts
from ..shared.rows import BYTES_MAX, NDJSON, ROWS_MAX, BatchRows, bad_row, read_lines
from ..shared.writes import WriteResult, marker_of
from ..slices import Steps
from . import stream
from .keys import PAGE, PAGE_BYTES, result_answer, written
from .stream import Stream

FACTS_S = 5.0
SETTINGS = frozenset(Settings._fields)
# At most this many readers get messages as events. Each reader has a thread and a socket.
STREAMS_MAX = 64
# At most this many events are sent in one write.
EVENTS = 200
# A comment is sent this often while no message comes.
QUIET_S = 1.0
# Offsets have to be smaller than this: every reader of JSON keeps such numbers exactly.
OFFSET_MAX = 1 << 53
# Request headers whose names begin with this become headers of the message.
HEADER = "chp-header-"
Published = tuple[list[str | None], list[bytes], list[Headers | None] | None]


async def list_topics(call: Call) -> Response:
    """Answer GET /v1/topics: the topics that are served here and that the caller may read."""
    subtrees, sees = call.gateway.subtrees, call.caller.sees_topic
    found = await _topics(call.gateway.mounts)
    seen = [each for each in found if sees(each["name"]) and f"{TOPICS}{each['name']}/".startswith(subtrees)]
    return json_answer({"topics": seen})


async def _topics(mounts: GatewayMounts) -> list[dict[str, Any]]:
    """Return the facts of the topics of all mounts, by name. Raise `Problem` if one of the pairs does not answer."""
    told = await asyncio.gather(*map(_topics_of, mounts))
    found = [each for mount, facts in zip(mounts, told, strict=True) for each in facts
             if mounts.has_topic(mount, each["name"])]  # fmt: skip
    return sorted(found, key=lambda facts: str(facts["name"])) if mounts.several else found


async def _topics_of(mount: GatewayMount) -> list[dict[str, Any]]:
    try:
        return await mount.clone.topics(FACTS_S)
    except Unanswered as error:
        raise Problem(503, "unanswered", mount.what(f"{error}; ask again"), retry_s=RETRY_S) from None


async def show_topic(call: Call) -> Response:
    """Answer GET /v1/topics/{topic}: its offsets, bytes and settings."""
    with absent_is_404():
        return json_answer({"name": call.topic_name, **await call.topic.facts(FACTS_S)})


async def make_topic(call: Call) -> Response:
    """Answer PUT /v1/topics/{topic}: make it, with settings as JSON or with the defaults."""
    async with call.small_body() as body:
        settings = Settings.of(_settings(body)).to_map()
        return await write_columns(call, {columns.TOPIC: [call.topic_name, settings]}, body, 201)


async def remove_topic(call: Call) -> Response:
    """Answer DELETE /v1/topics/{topic}: remove it with all its messages."""
    return await write_columns(call, {columns.TOPIC: [call.topic_name, None]})


async def publish(call: Call) -> Response:
    """Answer POST /v1/topics/{topic}/messages: publish the body, or with NDJSON all of its messages or none."""
    gateway, fields = call.gateway, call.fields
    many = call.header("content-type").partition(";")[0].strip().lower() == NDJSON
    headers: list[Headers | None] | None = [headers_of(call)]
    async with call.body() as body:
        if many and ("key" in fields or headers != [None]):
            raise Problem(400, "bad-query", 'of many messages each has its own "key" and "headers" in its row')
        if many:
            keys, values, headers = await gateway.slices.read(len(body), _rows(body))
        else:
            keys, values = [fields.get("key")], [body]
        names = names_of(call.topic_name, keys)
        mount = gateway.mounts.of_topic(call.topic_name)
        if (marker := await marker_of(call.request, call.caller.at(mount.prefix).user, body)) is not None:
            rows = BatchRows(gateway.subtrees)
            rows.extras = {columns.PUBLISH: [packed(call.topic_name, names, values, headers)]}
            done = await mount.writes.write(rows, marker)
        else:
            with mount.writes.waiting():
                if many:
                    done = _result(await call.topic.publish_many(values, names, headers=headers))
                else:
                    # The message can share a batch with messages that others publish meanwhile.
                    done = _result(await call.topic.publish(body, keys[0], headers=headers[0] if headers else None))
    return result_answer({"count": len(values), "revision": str(done.revision)}, done)


def headers_of(call: Call) -> Headers | None:
    """Return a message's headers, which are the percent-encoded CHP-Header-NAME of the request; None without any."""
    found: dict[str, str] = {}
    for name, value in call.request.headers.items():
        if name.startswith(HEADER):
            try:
                found[name.removeprefix(HEADER)] = unquote(value, errors="strict")
            except UnicodeDecodeError:
                text = f"{name} is not UTF-8 once it is percent-decoded; encode the text as UTF-8, and then each byte"
                raise Problem(400, "bad-header", text) from None
    try:
        return check_headers(found) or None
    except BadInput as error:
        raise Problem(400, "bad-header", str(error)) from None


def names_of(topic: str, keys: Sequence[str | None]) -> list[str] | None:
    """Return the keys of a batch of messages, None if it has none; raise `Problem` if only some messages have one."""
    # In a batch with keys all messages without one would be of a single slot, so one member would get them all.
    names = [key for key in keys if key is not None]
    if names and len(names) < len(keys):
        raise Problem(400, "bad-row", f'give each of the messages for topic {topic} a "key", or none of them')
    return names or None


def packed(
    topic: str, names: list[str] | None, values: list[bytes], headers: Sequence[Headers | None] | None = None
) -> list[Any]:
    """Return the element of the column `columns.PUBLISH` that publishes these messages in a topic."""
    if not values or len(values) > ROWS_MAX or sum(map(len, values)) > BYTES_MAX:
        raise Problem(413, "too-large", f"messages are 1 to {ROWS_MAX}, of {BYTES_MAX} bytes; publish them in parts")
    checked = None if names is None else list(map(check_key, names))
    carried = None if headers is None else column_of_headers(headers)
    return [topic, len(values), pack_messages(checked, values, carried)]


def _result(ack: Ack) -> WriteResult:
    return WriteResult(ack.revision, ack.durability)


async def write_columns(call: Call, extras: dict[str, Any], body: bytes = b"", status: int = 200) -> Response:
    """Write columns of the topic and its groups, once for each Idempotency-Key."""
    rows = BatchRows(call.gateway.subtrees)
    rows.extras, rows.topics = extras, [call.topic_name]
    return await written(call, rows, body, status)


async def read_topic(call: Call) -> Response:
    """Answer GET /v1/topics/{topic}/messages: a page in order, or all messages as events."""
    if stream.MEDIA_TYPE in call.header("accept"):
        return await _read_events(call)
    most, after = number(call.fields, "max", PAGE, call.gateway.limits.page), _offset(call.fields.get("after"))
    with absent_is_404():
        async with call.gateway.mounts.of_topic(call.topic_name).reading:
            found = await _page(call.topic, after, most)
    return json_answer({"messages": found, "next": found[-1]["offset"] if found else after})


async def _page(topic: AsyncTopic, after: int | None, most: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    size = 0
    async for batch in topic.read(_start(after), wait=False):
        for message in batch:
            found.append(message_json(message))
            size += len(message.value)
            if len(found) >= most or size > PAGE_BYTES:
                return found
    return found


async def _read_events(call: Call) -> Response:
    only(call.fields, ("after",))
    last = call.header("last-event-id") or call.fields.get("after")
    start: TopicStart = "end" if last == "latest" else _start(_offset(last))
    with ExitStack() as counted:
        counted.enter_context(_streaming(call.gateway))
        # An absent topic raises here, so that the answer is 404 and not a stream.
        with absent_is_404():
            await call.topic.facts(FACTS_S)
        events = MessageEvents(call, start)
        events.counted = counted.pop_all()
    return events


@contextmanager
def _streaming(gateway: Gateway) -> Iterator[None]:
    """Count one more reader of messages as events; raise `Problem` if there are too many."""
    if gateway.streams >= STREAMS_MAX:
        raise Problem(429, "busy", f"{gateway.streams} read messages as events here; ask another gateway", retry_s=5)
    gateway.streams += 1
    try:
        yield
    finally:
        gateway.streams -= 1


class MessageEvents(Stream):
    """The messages of a topic as events for one reader."""

    def __init__(self, call: Call, start: TopicStart) -> None:
        super().__init__(call, {})
        self._topic, self._start = call.topic, start

    def check_right(self) -> None:
        """Raise `Problem` unless the caller may read the topic."""
        self.caller.topic("read", self._topic.name)

    async def run(self) -> None:
        """Send messages until the stream is over."""
        try:
            async with aclosing(reading(self._topic, self._start, quiet_s=QUIET_S)) as found:
                async for batch in found:
                    for piece in [b": nothing came\n\n"] if batch is None else _pieces_of(batch):
                        if self.over():
                            return
                        await self.put(piece)
                    if self.over():
                        return
        except NoSuchTopic:
            await self.put(b"event: removed\ndata: {}\n\n")
        except ChpError:
            # No server serves. The stream ends, and the reader connects again.
            return


def _pieces_of(batch: MessageBatch) -> Iterator[bytes]:
    """Yield the events of a batch, some in each piece."""
    if batch.missed:
        yield f'event: missed\ndata: {{"missed": {batch.missed}}}\n\n'.encode()
    messages = iter(batch)
    while some := list(islice(messages, EVENTS)):
        yield "".join(f"id: {each.offset}\ndata: {json.dumps(message_json(each))}\n\n" for each in some).encode()


@contextmanager
def absent_is_404() -> Iterator[None]:
    """Turn `NoSuchTopic` into a Problem with the status 404."""
    try:
        yield
    except NoSuchTopic as error:
        raise Problem(404, "absent", f"{error.text}; PUT /v1/topics/TOPIC makes it, or its first message") from None


def _settings(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        raise Problem(
            400, "bad-body", 'settings are a JSON object, such as {"keep": "time", "max_age_s": 60}'
        ) from None
    if not isinstance(given, dict) or not given.keys() <= SETTINGS:
        raise Problem(400, "bad-body", f"settings are a JSON object of {', '.join(sorted(SETTINGS))}")
    return given


def _offset(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 17 and int(text) < OFFSET_MAX):
        raise Problem(400, "bad-query", f"after={text[:40]!r} is not the offset of a message, a whole number from 0")
    return int(text)


def _start(after: int | None) -> TopicStart:
    """Return the start for a reader that has seen all messages up to the offset `after`."""
    return "begin" if after is None else after + 1


def _rows(body: bytes) -> Steps[Published]:
    """Read the keys, the values and the headers of messages; raise `Problem` for a bad row."""
    keys, values, headers = list[str | None](), list[bytes](), dict[int, Headers]()

    def plain(given: list[Any]) -> bool:
        found = _plain_rows(given)
        if found is not None:
            keys.extend(found[0])
            values.extend(found[1])
        return found is not None

    def one(row: Any, i: int) -> None:
        try:
            key, value, carried = message_of(json.loads(row) if isinstance(row, bytes) else row)
        except (ChpError, ValueError, RecursionError) as error:
            raise bad_row(i, error) from None
        if carried:
            headers[len(values)] = carried
        keys.append(key)
        values.append(value)

    yield from read_lines(body, plain, one)
    return keys, values, [headers.get(at) for at in range(len(values))] if headers else None


def _plain_rows(rows: list[Any]) -> tuple[list[str | None], list[bytes]] | None:
    """Return messages that are all a text, or all a text and a key, as columns; None for others."""
    try:
        values, members = [row["value"].encode() for row in rows], set(map(len, rows))
        if members == {1}:
            return [None] * len(rows), values
        keys = [row["key"] for row in rows]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return (keys, values) if members == {2} and set(map(type, keys)) == {str} else None


def message_of(row: Any) -> tuple[str | None, bytes, Headers]:
    """Return the key, the value and the headers of a message to publish; raise ValueError for a bad row."""
    known = isinstance(row, dict) and row.keys() <= {"value", "base64", "key", "headers"}
    if not known or len(row.keys() - {"key", "headers"}) != 1:
        raise ValueError('a row is such as {"value": "text", "key": "k", "headers": {"a": "b"}}; "base64" in place '
                         'of "value" for bytes')  # fmt: skip
    value, key = row.get("value", row.get("base64")), row.get("key")
    if not isinstance(value, str) or not isinstance(key, str | None):
        raise ValueError("value, base64 and key are texts")
    data = base64.b64decode(value, validate=True) if "base64" in row else value.encode()
    return key, data, check_headers(row.get("headers"))


def message_json(message: Message) -> dict[str, Any]:
    """Return a message as a map for JSON."""
    told: dict[str, Any] = {"offset": message.offset, "revision": str(message.revision), "time": message.time}
    if message.key:
        told["key"] = message.key
    if message.headers:
        told["headers"] = dict(message.headers)
    return told | shown(message.value)
