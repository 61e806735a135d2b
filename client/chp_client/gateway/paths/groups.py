"""Groups of a topic: /v1/topics/{topic}/groups, and what their members receive, acknowledge and give back.

A member is a name that its program chose, at whichever gateway it asks: nothing of it is kept here. What came and is
not acknowledged is what it receives when it asks again, or others when it stays away for its ttl. A receipt is checked
by the pair, so one that came by another gateway is as good. Each that waits for messages has a thread and a socket.
"""

from __future__ import annotations

import asyncio
from functools import partial
from secrets import token_hex
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from chp import columns
from chp.access import TOPICS
from chp.errors import BadInput, ChpError
from chp.keys import check_key
from chp.topics import check_topic

from ...errors import NoSuchTopic, Refused
from ...starts import topic_start
from ...topics import stateless_member
from ...topics.aiotopic import AsyncTopic
from ...topics.groups import begin, end
from ...topics.stateless_member import Receipt, ReceivedBatch
from ..access.caller import caller_of
from ..gateway import Gateway, gateway_of
from ..once import write
from ..problems import Problem
from ..request_fields import number, query
from ..slices import SLICE_ROWS, Steps, document
from .batches import BYTES_MAX, ROWS_MAX, BatchRows, add_row
from .keys import PAGE, written
from .topics import FACTS_S, absent, json_answer, message_json, message_of, packed, said, topic_of

TTL_S, TTL_MAX_S = 30.0, 3600.0
WAIT_MAX_S = 30.0  # proxies end what is silent for a minute
DEPTH = 3  # the object, a list in it, and a row in that
THINGS = 6 * ROWS_MAX  # values in a large body
ACK = frozenset({"receipt", "upto", "except", "sets", "publish"})


async def list_groups(request: Request) -> Response:
    """GET /v1/topics/{topic}/groups: all of them."""
    topic = topic_of(request)
    query(request)
    return json_answer({"groups": await _groups(topic)})


async def show_group(request: Request) -> Response:
    """GET /v1/topics/{topic}/groups/{group}: its position, lag and members."""
    topic, name = topic_of(request), _name(request)
    query(request)
    found = next((each for each in await _groups(topic) if each["name"] == name), None)
    if found is None:
        raise Problem(404, "absent", f"topic {topic.name} has no group {name}; PUT it")
    return json_answer(found)


async def _groups(topic: AsyncTopic) -> list[dict[str, Any]]:
    try:
        found = await topic.groups(FACTS_S)
    except NoSuchTopic as error:
        raise absent(error) from None
    named = ("name", "slots")
    return [{**each, "members": [dict(zip(named, one, strict=True)) for one in each["members"]]} for each in found]


async def make_group(request: Request) -> Response:
    """PUT /v1/topics/{topic}/groups/{group}: it begins at `start`."""
    topic, name, fields = topic_of(request), _name(request), query(request, "start", "ack_timeout_s")
    await _without_body(request)
    timeout = {"ack_timeout_s": number(fields, "ack_timeout_s", 1, 1 << 31)} if "ack_timeout_s" in fields else {}
    return await said(request, begin(topic.name, name, _start(fields.get("start", "end")), **timeout), b"", 201)


async def _without_body(request: Request) -> None:
    gateway = gateway_of(request)
    async with gateway.bodies.taken(request, gateway.limits.small_bytes) as body:
        if body:
            raise Problem(400, "bad-body", "this takes no body: what it is told stands in the query")


def _start(text: str) -> int:
    return topic_start(int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text)


async def remove_group(request: Request) -> Response:
    """DELETE /v1/topics/{topic}/groups/{group}: with its positions."""
    topic, name = topic_of(request), _name(request)
    query(request)
    return await said(request, end(topic.name, name))


async def receive(request: Request) -> Response:
    """POST .../receive: what is next for a member, with a receipt; 204 if nothing comes while it waits."""
    gateway, topic, group = gateway_of(request), topic_of(request), _name(request)
    fields = query(request, "max", "wait", "member", "ttl")
    await _without_body(request)
    most, name = number(fields, "max", PAGE, gateway.limits.page), fields.get("member") or token_hex(8)
    ttl_s, wait_s = _seconds(fields, "ttl", TTL_S, TTL_MAX_S), _seconds(fields, "wait", 0.0, WAIT_MAX_S)
    if not ttl_s >= 1 or wait_s > ttl_s / 2:
        raise Problem(400, "bad-query", "ttl is 1 second or more, and wait at most half of it; give a longer ttl")
    member = _member(request, name)
    come = stateless_member.coming(topic.name, group, member, name, round(ttl_s * 1000))
    with gateway.receiving():
        given = await _received(gateway, topic, come, (most, wait_s))
    if given is None:
        return Response(status_code=204, headers={"CHP-Member": name, "Cache-Control": "no-store"})
    messages = [message_json(each) for each, _ in zip(given.batch, range(given.size), strict=False)]
    told = {"messages": messages, "receipt": str(Receipt(name, given.moves)), "member": name}
    return json_answer({**told, "missed": given.batch.missed, "behind": given.behind})


async def _received(
    gateway: Gateway, topic: AsyncTopic, come: dict[str, Any], most_wait: tuple[int, float]
) -> ReceivedBatch | None:
    _, group, member, _ = come[columns.JOIN]
    most, wait_s = most_wait
    await _come(gateway, come)
    get = partial(topic.topic.receive, group, member, most=most, wait_s=wait_s, stopped=gateway.closing.is_set)
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    try:
        given = await loop.run_in_executor(gateway.receivers, get)
    except Refused as error:
        if error.code != "member":  # its lease ended, or the group was begun anew
            raise
        await _come(gateway, come)
        given = await loop.run_in_executor(gateway.receivers, get)
    if given is not None and loop.time() - began > 1.0:
        await _come(gateway, come)  # it has its whole ttl for them
    return given


async def acknowledge(request: Request) -> Response:
    """POST .../ack: messages are done, and keys and messages come of it, in one record: all of it, or 409 fenced."""
    gateway, topic, group = gateway_of(request), topic_of(request), _name(request)
    query(request)
    async with gateway.bodies.taken(request) as body:
        rows = await gateway.slices.read(len(body), _acknowledged(request, topic.name, group, body))
        return await written(gateway, request, rows, body)


def _acknowledged(request: Request, topic: str, group: str, body: bytes) -> Steps[BatchRows]:
    """Read what is acknowledged, set and published together."""
    told = yield from _told(body, ACK)
    receipt = Receipt.of(told["receipt"])
    if "upto" in told:
        receipt = receipt.upto(_offset(told["upto"]))
    receipt = receipt.without(map(_left_out, _list(told, "except")))
    yield
    rows = BatchRows(gateway_of(request).subtrees)
    for i, row in enumerate(_list(told, "sets"), 1):
        add_row(rows, row, i)
        if i % SLICE_ROWS == 0:
            yield
    acked = receipt.acknowledged(topic, group, _member(request, receipt.name))
    rows.extras = acked | (yield from _published(request, _list(told, "publish"), rows))
    if rows.bytes > BYTES_MAX:
        raise Problem(413, "too-large", f"keys, values and messages have more than {BYTES_MAX} bytes; do less")
    return rows


async def give_back(request: Request) -> Response:
    """POST .../nack: the member leaves, at once or after a delay, and what it has goes to others."""
    return await _kept(request, "delay", 0.0)


async def extend(request: Request) -> Response:
    """POST .../extend: the member has what it has for so long from now on."""
    return await _kept(request, "ttl", TTL_S)


async def _kept(request: Request, name: str, default: float) -> Response:
    topic_of(request), _name(request)
    query(request)
    gateway = gateway_of(request)
    async with gateway.bodies.taken(request, gateway.limits.small_bytes) as body:
        told = await gateway.slices.read(len(body), _told(body, frozenset({"receipt", name})))
        member, seconds = _member(request, Receipt.of(told["receipt"]).name), told.get(name, default)
        if type(seconds) not in (int, float) or not 0 <= seconds <= TTL_MAX_S:
            raise Problem(400, "bad-body", f"{name} is a number of seconds, at most {TTL_MAX_S:g}")
        stays = stateless_member.staying(member, max(1, round(seconds * 1000)))
        return await said(request, stays if seconds else stateless_member.leaving(member), body)


# -- what they have in common


async def _come(gateway: Gateway, come: dict[str, Any]) -> None:
    """It is a member from now on."""
    rows = BatchRows(gateway.subtrees)
    rows.extras = come
    await write(gateway.clone, gateway.writes, rows, None)


def _name(request: Request) -> str:
    return check_topic(request.path_params["group"])


def _member(request: Request, name: str) -> bytes:
    """The lease of a member of the path's group: of each user its own, whoever else has a receipt."""
    path, secret = request.path_params, gateway_of(request).callers.secret
    return stateless_member.member_of(secret, path["topic"], path["group"], caller_of(request).user, name)


def _seconds(fields: dict[str, str], name: str, default: float, most: float) -> float:
    text = fields.get(name)
    if text is None:
        return default
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most:
        raise Problem(400, "bad-query", f"{name}={text[:40]!r} is not a number of seconds from 0 to {most:g}")
    return seconds


def _told(body: bytes, members: frozenset[str]) -> Steps[dict[str, Any]]:
    try:
        told = yield from document(body, DEPTH, THINGS)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or "receipt" not in told or not told.keys() <= members:
        raise Problem(400, "bad-body", f'the body is a JSON object with "receipt", of {", ".join(sorted(members))}')
    return told


def _offset(value: object) -> int:
    if type(value) is not int or not 0 <= value < stateless_member.OFFSET_MAX:
        raise BadInput(f"upto is the offset of the last message that is done, not {value!r:.40}")
    return value


def _left_out(row: object) -> tuple[int, str]:
    """A message that is not done, as it came or by its offset and key."""
    key = row.get("key", "") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(key, str):
        raise Problem(400, "bad-body", '"except" has messages as they came, or such as {"offset": 17, "key": "k"}')
    return _offset(row.get("offset")), key


def _list(told: dict[str, Any], name: str) -> list[Any]:
    found = told.get(name, [])
    if not isinstance(found, list) or len(found) > ROWS_MAX:
        raise Problem(400, "bad-body", f'"{name}" is a list of at most {ROWS_MAX} rows')
    return found


def _published(request: Request, given: list[Any], rows: BatchRows) -> Steps[dict[str, Any]]:
    """The column that publishes them; their bytes count with those of the rows."""
    topics: dict[str, tuple[list[str | None], list[bytes]]] = {}
    for i, row in enumerate(given, 1):
        if i % SLICE_ROWS == 0:
            yield
        try:
            if not isinstance(row, dict) or "topic" not in row:
                raise ValueError('a message is such as {"topic": "t", "value": "text", "key": "k"}')
            name = check_topic(row["topic"])
            key, value = message_of({member: row[member] for member in row if member != "topic"})
            keys, values = topics.setdefault(name, ([], []))
            keys.append(check_key(key) if key else None)
        except (ChpError, ValueError) as error:
            raise Problem(400, "bad-row", f"publish, row {i}: {str(error)[:300]}", row=i) from None
        gateway_of(request).held(f"{TOPICS}{name}/")
        caller_of(request).topic("write", name)
        values.append(value)
        rows.bytes += len(key or "") + len(value)
    found = [packed(name, keys, values) for name, (keys, values) in topics.items()]
    return {columns.PUBLISH: found} if found else {}
