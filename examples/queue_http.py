"""A distributed queue over HTTP, made of topics: programs register, produce and consume by seven routes.

    python -m examples.queue_http

Without an argument the program is a demonstration; `python -m examples.queue_http 8000` serves on that port of the
loopback. Parameters are a query, a form or a JSON object. Each consumer gets every message published since it
registered, in order, once. Its position is a key, which the server moves by compare-and-set before it answers with the
message. All state is in the pair, so any number of these servers may run. Topics that this program makes keep all
messages; a topic that another program made may have bounds.
"""

import inspect
import json
import socket
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chp.errors import ChpError
from chp.topics import check_topic
from chp_client import AlreadyThere, AsyncClone, Conflict, NoSuchTopic, Refused
from chp_client.topics.aiotopic import AsyncTopic
from chp_client.topics.reader import Message

from .pair import servers

Told = dict[str, Any] | None
BODY_MAX, TRIES = 1 << 20, 100


class Wrong(Exception):
    """An error of a request: the HTTP status, and what is wrong."""


def key(kind: str, topic: str, who: str) -> str:
    """Return the key of a registration."""
    return f"/queue/{kind}/{check_topic(topic)}/{check_topic(who)}"


async def registered(clone: AsyncClone, at: str) -> Any:
    """Return the entry of a registration. Sync first if it is missing, because another server may just have made it."""
    if at not in clone:
        await clone.sync()
    if (entry := clone.entry(at)) is None:
        _, _, kind, topic, who = at.split("/")
        raise Wrong(404, f"{who!r} is not one of the {kind} that are registered to topic {topic!r}")
    return entry


async def list_topics(clone: AsyncClone) -> Told:
    """GET /topics."""
    return {"topics": [each["name"] for each in await clone.topics()]}


async def create_topic(clone: AsyncClone, topic_name: str) -> Told:
    """POST /topics."""
    await clone.topic(topic_name).create()
    return {"message": f"topic {topic_name!r} is created"}


async def register_producer(clone: AsyncClone, topic: str, producer_id: str = "") -> Told:
    """POST /producer/register: also makes the topic if there is none."""
    producer_id = producer_id or uuid4().hex
    at = key("producers", topic, producer_id)
    with suppress(AlreadyThere):
        await clone.topic(topic).create()
    await clone.set(at, b"", if_revision=0)
    return {"producer_id": producer_id}


async def register_consumer(clone: AsyncClone, topic: str, consumer_id: str = "") -> Told:
    """POST /consumer/register: a consumer registers for each of its topics, with the same id."""
    consumer_id = consumer_id or uuid4().hex
    upto = (await clone.topic(topic).facts())["next"]
    await clone.set(key("consumers", topic, consumer_id), b"%d" % upto, if_revision=0)
    return {"consumer_id": consumer_id}


async def produce(clone: AsyncClone, topic: str, producer_id: str, message: str) -> Told:
    """POST /producer/produce: refused for a topic without a consumer."""
    await registered(clone, key("producers", topic, producer_id))
    if not clone.prefix(f"/queue/consumers/{topic}/"):
        await clone.sync()
        if not clone.prefix(f"/queue/consumers/{topic}/"):
            raise Wrong(409, f"no consumer is registered to topic {topic!r}")
    await clone.topic(topic).publish(message.encode())
    return {}


async def first(topic: AsyncTopic, position: int) -> Message | None:
    """Return the first message at or after a position, or None."""
    async for batch in topic.read(position, wait=False):
        for message in batch:
            return message
    return None


async def consume(clone: AsyncClone, topic: str, consumer_id: str) -> Told:
    """GET /consumer/consume: the next message, 204 if there is none."""
    at = key("consumers", topic, consumer_id)
    for _ in range(TRIES):
        entry = await registered(clone, at)
        position = int(entry.value)
        message = await first(clone.topic(topic), position)
        if message is None:
            return None
        try:
            await clone.set(at, b"%d" % (message.offset + 1), if_revision=entry.revision)
        except Conflict:
            # Another request of this consumer was faster.
            await clone.sync()
            continue
        return {"message": message.value.decode()}
    raise Wrong(503, f"other requests of consumer {consumer_id!r} were faster {TRIES} times; ask again")


async def size(clone: AsyncClone, topic: str, consumer_id: str) -> Told:
    """GET /size: how many messages are left for a consumer."""
    entry = await registered(clone, key("consumers", topic, consumer_id))
    return {"size": (await clone.topic(topic).facts())["next"] - int(entry.value)}


async def parameters(request: Request) -> dict[str, Any]:
    """Return the parameters of the query and of the body."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise Wrong(413, f"a body has at most {BODY_MAX:,} bytes")
    try:
        is_json = request.headers.get("content-type", "").startswith("application/json")
        given = json.loads(body) if is_json else dict(urllib.parse.parse_qsl(body.decode(), True, errors="strict"))
        found = {**request.query_params, **given}
    except (ValueError, TypeError, RecursionError) as error:
        raise Wrong(400, f"the body is neither a form nor a JSON object: {error}") from None
    if bad := [name for name, value in found.items() if not isinstance(value, str)]:
        raise Wrong(400, f"parameters are texts; {bad[0]!r} is not")
    return found


def answered(act: Callable[..., Awaitable[Told]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that answers with a status in words, and with the result of `act` or what is wrong."""

    async def route(request: Request) -> Response:
        try:
            told = await called(act, request.app.state.clone, await parameters(request))
        except Wrong as error:
            status, why = error.args
        except ChpError as error:
            status = 404 if isinstance(error, NoSuchTopic) else 409 if isinstance(error, Refused) else 400
            why = str(error)
        else:
            return Response(status_code=204) if told is None else JSONResponse({"status": "success", **told})
        return JSONResponse({"status": "failure", "message": why}, status)

    return route


async def called(act: Callable[..., Awaitable[Told]], clone: AsyncClone, given: dict[str, Any]) -> Told:
    """Call a handler with the given parameters; raise `Wrong` if they do not fit it."""
    try:
        bound = inspect.signature(act).bind(clone, **given)
    except TypeError as error:
        raise Wrong(400, str(error)) from None
    return await act(*bound.args)


def application(pair: list[str]) -> Starlette:
    """Return the application with the seven routes."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncClone(pair, "/queue/") as app.state.clone:
            await app.state.clone.wait_until_synced(30)
            yield

    routes = [
        Route("/topics", answered(list_topics), methods=["GET"]),
        Route("/topics", answered(create_topic), methods=["POST"]),
        Route("/producer/register", answered(register_producer), methods=["POST"]),
        Route("/producer/produce", answered(produce), methods=["POST"]),
        Route("/consumer/register", answered(register_consumer), methods=["POST"]),
        Route("/consumer/consume", answered(consume), methods=["GET"]),
        Route("/size", answered(size), methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


@contextmanager
def serving(pair: list[str], port: int = 0) -> Iterator[str]:
    """Run a server in a thread, and yield its URL."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(application(pair), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def ask(url: str, route: str, /, **fields: str) -> dict[str, Any]:
    """Send a request as a program that knows only HTTP does: a GET with a query, or a POST with a form."""
    method, path = route.split()
    text = urllib.parse.urlencode(fields)
    where, body = (f"{url}{path}?{text}", None) if method == "GET" else (url + path, text.encode())
    with urllib.request.urlopen(urllib.request.Request(where, body, method=method), timeout=30) as answer:
        return dict(json.loads(answer.read() or b"{}"))


def demo(url: str) -> None:
    """Let two producers and a consumer use the queue."""
    ada, bob = (ask(url, "POST /producer/register", topic="logs")["producer_id"] for _ in "ab")
    consumer = {"consumer_id": ask(url, "POST /consumer/register", topic="logs")["consumer_id"], "topic": "logs"}
    for n in range(3):
        for producer in (ada, bob):
            ask(url, "POST /producer/produce", topic="logs", producer_id=producer, message=f"line {n}")
    print(ask(url, "GET /topics")["topics"], ask(url, "GET /size", **consumer)["size"], "messages")
    while found := ask(url, "GET /consumer/consume", **consumer):
        print("consumed", found["message"])
    print(ask(url, "GET /size", **consumer)["size"], "are left")


def main() -> None:
    """Serve on the port that is the argument, or run the demonstration."""
    with servers() as pair:
        if sys.argv[1:]:
            uvicorn.run(application(pair), host="127.0.0.1", port=int(sys.argv[1]))
            return
        with serving(pair) as url:
            demo(url)


if __name__ == "__main__":
    main()
