"""Topics: /v1/topics, their settings and facts, publishing, and reading without a group.

A gateway of a part of the keys serves a topic only if `/.chp/topics/NAME/` lies in that part, as the rules of access
have it. Publishing is awaited, as sets are. A page of messages is read by a thread of its own, a few at a time; who
reads them as events has one as long as it does.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chp import columns
from chp.access import TOPICS
from chp.errors import ChpError
from chp.keys import check_key
from chp.topics import Settings, check_topic, pack_messages

from ...errors import NoSuchTopic
from ...starts import TopicStart
from ...topics.aiotopic import AsyncTopic
from ...topics.reader import Message, MessageBatch
from ..access.caller import caller_of
from ..gateway import Gateway, gateway_of
from ..once import marker_of, write
from ..problems import Problem
from ..request_fields import number, query
from ..slices import Steps
from .batches import BYTES_MAX, NDJSON, ROWS_MAX, BatchRows, bad_row, read_lines
from .keys import PAGE, PAGE_BYTES, written
from .watch import SEND_S, STREAM

FACTS_S = 5.0
SETTINGS = {"keep", "max_messages", "max_bytes", "max_age_s"}
STREAMS_MAX = 64  # readers of messages as events: each has a thread and a socket
EVENTS = 200  # of one write
QUIET_S = 1.0  # so often there is a comment when nothing comes
OFFSET_MAX = 1 << 53  # what JSON keeps exactly everywhere


async def list_topics(request: Request) -> Response:
    """GET /v1/topics: all of them, with what is known of each."""
    gateway = gateway_of(request)
    query(request)
    sees = caller_of(request).sees_topic
    found = [each for each in await gateway.clone.topics(FACTS_S) if sees(each["name"])]
    return json_answer({"topics": [each for each in found if f"{TOPICS}{each['name']}/".startswith(gateway.subtrees)]})


async def show_topic(request: Request) -> Response:
    """GET /v1/topics/{topic}: its offsets, bytes and settings."""
    topic = topic_of(request)
    query(request)
    try:
        return json_answer({"name": topic.name, **await topic.facts(FACTS_S)})
    except NoSuchTopic as error:
        raise absent(error) from None


async def make_topic(request: Request) -> Response:
    """PUT /v1/topics/{topic}: make it, with settings as JSON or with the defaults."""
    gateway, topic = gateway_of(request), topic_of(request)
    query(request)
    async with gateway.bodies.taken(request, gateway.limits.small_bytes) as body:
        settings = _settings(body)
        return await said(request, {columns.TOPIC: [topic.name, Settings.of(settings).to_map()]}, body, 201)


async def remove_topic(request: Request) -> Response:
    """DELETE /v1/topics/{topic}: with all its messages."""
    topic = topic_of(request)
    query(request)
    return await said(request, {columns.TOPIC: [topic.name, None]})


async def publish(request: Request) -> Response:
    """POST /v1/topics/{topic}/messages: the body is one message, or with NDJSON many: all of them or none."""
    gateway, topic, fields = gateway_of(request), topic_of(request), query(request, "key")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    async with gateway.bodies.taken(request) as body:
        if kind == NDJSON and "key" in fields:
            raise Problem(400, "bad-query", 'of many messages each has its own "key" in its row')
        if kind == NDJSON:
            keys, values = await gateway.slices.read(len(body), _rows(body))
        else:
            keys, values = [fields.get("key")], [body]
        named = any(key is not None for key in keys)
        if named and not all(key is not None for key in keys):
            raise Problem(400, "bad-row", 'give each of the rows a "key", or none of them')
        if (marker := await marker_of(request, body)) is not None:
            return await _published_once(gateway, packed(topic.name, keys, values), marker)
        if kind == NDJSON:
            done = await topic.publish_many(values, [key or "" for key in keys] if named else None)
        else:
            done = await topic.publish(body, keys[0])  # what others publish meanwhile travels with it
    return json_answer({"count": len(values), "revision": str(done.revision), "durability": done.durability})


async def _published_once(gateway: Gateway, messages: list[Any], marker: tuple[str, bytes]) -> Response:
    rows = BatchRows(gateway.subtrees)
    rows.extras = {columns.PUBLISH: [messages]}
    done = await write(gateway.clone, gateway.writes, rows, marker)
    told = {"count": messages[1], "revision": str(done.revision)}
    answer = json_answer(told | ({"durability": done.durability} if done.durability else {}))
    if done.again:
        answer.headers["Idempotency-Replayed"] = "true"
    return answer


def packed(topic: str, keys: Sequence[str | None], values: list[bytes]) -> list[Any]:
    """Messages for a topic as a batch has them; keys of all, or of none."""
    if not values or len(values) > ROWS_MAX or sum(map(len, values)) > BYTES_MAX:
        raise Problem(413, "too-large", f"messages are 1 to {ROWS_MAX}, of {BYTES_MAX} bytes; publish them in parts")
    names = ["" if key is None else check_key(key) for key in keys]
    return [topic, len(values), pack_messages(names if any(names) else None, values)]


async def said(request: Request, extras: dict[str, Any], body: bytes = b"", status: int = 200) -> Response:
    """What a request says of topics, done by the pair: once, if it has an Idempotency-Key."""
    gateway = gateway_of(request)
    rows = BatchRows(gateway.subtrees)
    rows.extras = extras
    return await written(gateway, request, rows, body, status)


async def read_topic(request: Request) -> Response:
    """GET /v1/topics/{topic}/messages?after=&max=: a page, in order; `next` is the `after` of the next one. To who
    accepts events: all messages, one event each, and those that come."""
    if STREAM in request.headers.get("accept", ""):
        return await _events(request)
    gateway, topic, fields = gateway_of(request), topic_of(request), query(request, "after", "max")
    most, after = number(fields, "max", PAGE, gateway.limits.page), _offset(fields.get("after"))
    found: list[dict[str, Any]] = []
    size = 0
    try:
        async with gateway.reading:
            async for batch in topic.read(_start(after), wait=False):
                for message in batch:
                    found.append(message_json(message))
                    size += len(message.value)
                    if len(found) >= most or size > PAGE_BYTES:
                        break
                if len(found) >= most or size > PAGE_BYTES:
                    break
    except NoSuchTopic as error:
        raise absent(error) from None
    return json_answer({"messages": found, "next": found[-1]["offset"] if found else after})


async def _events(request: Request) -> Response:
    gateway, topic, fields = gateway_of(request), topic_of(request), query(request, "after")
    last = request.headers.get("last-event-id") or fields.get("after")
    start: TopicStart = "end" if last == "latest" else _start(_offset(last))
    if gateway.streams >= STREAMS_MAX:
        raise Problem(429, "busy", f"{gateway.streams} read messages as events here; ask another gateway", retry_s=5)
    try:
        await topic.facts(FACTS_S)  # what is wrong is told with a status
    except NoSuchTopic as error:
        raise absent(error) from None
    return MessageEvents(request, topic, start)


class MessageEvents(Response):
    """The messages of a topic as events: the answer ends when the reader leaves, or the gateway does."""

    def __init__(self, request: Request, topic: AsyncTopic, start: TopicStart) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=STREAM)
        del self.headers["content-length"]
        self._gateway, self._caller = gateway_of(request), caller_of(request)
        self._topic, self._start, self._gone = topic, start, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write to one reader; who takes nothing for long is cut off."""
        self._gateway.streams += 1
        leaving = asyncio.ensure_future(self._left(receive))
        abort: Callable[[], None] | None = scope.get("state", {}).get("abort")
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    async with asyncio.timeout(SEND_S):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            if abort is not None:
                abort()
        finally:
            leaving.cancel()
            self._gateway.streams -= 1

    async def _left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True

    async def _pieces(self) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._topic.reading(self._start, quiet_s=QUIET_S)) as found:
                async for batch in found:
                    if batch is None and self._may_go_on():
                        yield b": nothing came\n\n"
                    for piece in () if batch is None else _pieces_of(batch):
                        if not self._may_go_on():
                            return
                        yield piece
                    if not self._may_go_on():
                        return
        except NoSuchTopic:
            yield b"event: removed\ndata: {}\n\n"
        except ChpError:  # no server serves: the reader comes back
            return

    def _may_go_on(self) -> bool:
        """Whether both ends are there, and the rules let it read on."""
        try:
            self._gateway.callers.still(self._caller).topic("read", self._topic.name)
        except Problem:
            return False
        return not self._gone and not self._gateway.closing.is_set()


def _pieces_of(batch: MessageBatch) -> Iterator[bytes]:
    """Some events at a time."""
    if batch.missed:
        yield f'event: missed\ndata: {{"missed": {batch.missed}}}\n\n'.encode()
    messages = iter(batch)
    while some := list(islice(messages, EVENTS)):
        yield "".join(f"id: {each.offset}\ndata: {json.dumps(message_json(each))}\n\n" for each in some).encode()


def topic_of(request: Request) -> AsyncTopic:
    """The topic that a path names."""
    gateway: Gateway = gateway_of(request)
    name = check_topic(request.path_params["topic"])
    gateway.held(f"{TOPICS}{name}/")
    caller, group = caller_of(request), request.path_params.get("group")
    if request.method == "GET":
        caller.topic("read", name)
    elif group is None:
        caller.topic("write", name)
    else:
        caller.group(name, check_topic(group), loses=request.method == "DELETE")
    return gateway.clone.topic(name)


def absent(error: NoSuchTopic) -> Problem:
    """There is none."""
    return Problem(404, "absent", f"{error}; PUT it, or publish a message into it")


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
    """Return where a reader begins that has seen the message `after`."""
    return "begin" if after is None else after + 1


def _rows(body: bytes) -> Steps[tuple[list[str | None], list[bytes]]]:
    """Read the keys and the values of messages; `Problem` for the row that is none."""
    keys, values = list[str | None](), list[bytes]()

    def plain(given: list[Any]) -> bool:
        found = _plain_rows(given)
        if found is not None:
            keys.extend(found[0])
            values.extend(found[1])
        return found is not None

    def one(row: Any, i: int) -> None:
        try:
            key, value = message_of(json.loads(row) if isinstance(row, bytes) else row)
        except (ChpError, ValueError, RecursionError) as error:
            raise bad_row(i, error) from None
        keys.append(key)
        values.append(value)

    yield from read_lines(body, plain, one)
    return keys, values


def _plain_rows(rows: list[Any]) -> tuple[list[str | None], list[bytes]] | None:
    """Messages that are all a text, or all a text and a key, as columns; None if they are not."""
    try:
        values, members = [row["value"].encode() for row in rows], set(map(len, rows))
        if members == {1}:
            return [None] * len(rows), values
        keys = [row["key"] for row in rows]
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return (keys, values) if members == {2} and set(map(type, keys)) == {str} else None


def message_of(row: Any) -> tuple[str | None, bytes]:
    """Key and value of a message that is to be published; ValueError for what is none."""
    known = isinstance(row, dict) and row.keys() <= {"value", "base64", "key"}
    if not known or len(row.keys() - {"key"}) != 1:
        raise ValueError('a row is such as {"value": "text", "key": "k"}; "base64" in place of "value" for bytes')
    value, key = row.get("value", row.get("base64")), row.get("key")
    if not isinstance(value, str) or not isinstance(key, str | None):
        raise ValueError("value, base64 and key are texts")
    return key, base64.b64decode(value, validate=True) if "base64" in row else value.encode()


def message_json(message: Message) -> dict[str, Any]:
    """A message as it is answered."""
    made: dict[str, Any] = {"offset": message.offset, "revision": str(message.revision), "time": message.time}
    if message.key:
        made["key"] = message.key
    try:
        made["value"] = message.value.decode()
    except UnicodeDecodeError:
        made["base64"] = base64.b64encode(message.value).decode()
    return made


def json_answer(told: Any, status: int = 200) -> Response:
    """An answer that nobody keeps."""
    return Response(json.dumps(told) + "\n", status, {"Cache-Control": "no-store"}, media_type="application/json")
