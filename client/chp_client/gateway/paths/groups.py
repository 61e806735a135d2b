"""Groups of a topic: /v1/topics/{topic}/groups, and the messages that members receive, acknowledge and give back.

A member is a name that a program chose. The program may use the name at any gateway, as a gateway stores nothing about
members. Messages that a member received and did not acknowledge come again when it asks again. They go to other members
when it stays away for its ttl. The pair checks a receipt, so a receipt from another gateway is as good. A member that
waits has a thread and a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from secrets import token_hex
from typing import Any

from starlette.responses import Response

from chp import columns
from chp.access import TOPICS
from chp.dead_letters import cut
from chp.errors import BadInput, ChpError
from chp.keys import check_key
from chp.limits import DEFAULT
from chp.topics import Headers, check_topic, dead_topic

from ...errors import Refused
from ...starts import topic_start
from ...topics import stateless_member
from ...topics.aiotopic import AsyncTopic
from ...topics.groups import WHOLE, begin, change, counting, end
from ...topics.stateless_member import Receipt, ReceivedBatch
from ...topics.topic import requests_of
from ..answers import json_answer
from ..call import Call
from ..gateway import Gateway
from ..problems import Problem
from ..request_fields import number
from ..shared.rows import BYTES_MAX, ROWS_MAX, BatchRows, add_row
from ..slices import SLICE_ROWS, Steps, document
from .keys import PAGE, written
from .topics import FACTS_S, absent_is_404, message_json, message_of, names_of, packed, write_columns

TTL_S, TTL_MAX_S = 30.0, 3600.0
# A member may wait at most this many seconds. Proxies end a connection that is silent for a minute.
WAIT_MAX_S = 30.0
# A body is nested this deep: the object, the lists in it, and the rows in a list.
DEPTH = 3
# A large body has at most this many values.
THINGS = 6 * ROWS_MAX
ACK = frozenset({"receipt", "upto", "except", "sets", "publish"})
NACK = frozenset({"receipt", "delay", "messages", "why"})


async def list_groups(call: Call) -> Response:
    """Answer GET /v1/topics/{topic}/groups: all groups of the topic."""
    return json_answer({"groups": await _groups(call.topic)})


async def show_group(call: Call) -> Response:
    """Answer GET /v1/topics/{topic}/groups/{group}: its position, lag and members."""
    name = call.group
    found = next((each for each in await _groups(call.topic) if each["name"] == name), None)
    if found is None:
        raise Problem(404, "absent", f"topic {call.topic_name} has no group {name}; PUT it with this path")
    return json_answer(found)


async def _groups(topic: AsyncTopic) -> list[dict[str, Any]]:
    with absent_is_404():
        found = await topic.groups(FACTS_S)
    named = ("name", "slots")
    return [{**each, "members": [dict(zip(named, one, strict=True)) for one in each["members"]]} for each in found]


async def make_group(call: Call) -> Response:
    """Answer PUT /v1/topics/{topic}/groups/{group}: make it, beginning at `start`."""
    fields = call.fields
    await call.no_body()
    start, settings = _start(fields.get("start", "end")), _settings(call)
    if settings.get("retry_after_ms") is not None and settings.get("max_deliveries") is None:
        raise Problem(400, "bad-query", "retry_after_s is for a group that counts deliveries; give max_deliveries too")
    return await write_columns(call, begin(call.topic_name, call.group, start, **settings), b"", 201)


async def change_group(call: Call) -> Response:
    """Answer POST .../settings: change settings of a group; its position stays."""
    await call.no_body()
    if not (settings := _settings(call)):
        names = "max_deliveries, retry_after_s, ack_timeout_s, lag_alarm_s or expire_after_s"
        raise Problem(400, "bad-query", f"no setting; give {names}")
    return await write_columns(call, change(call.topic_name, call.group, **settings))


def _settings(call: Call) -> dict[str, Any]:
    """Return the settings of a group from the query; a setting with an empty value is None, which switches it off."""
    fields = call.fields
    found: dict[str, Any] = {
        name: number(fields, name, 1, most) if fields[name] else None for name, most in WHOLE.items() if name in fields
    }
    if "retry_after_s" in fields:
        after_s = _seconds(fields, "retry_after_s", 0.0, DEFAULT.retry_s_max) if fields["retry_after_s"] else None
        found |= counting(retry_after_s=after_s)
    if found.get("max_deliveries") is not None:
        # The pair publishes messages that fail too often in the dead topic, so the caller needs the right to write it.
        dead = dead_topic(call.topic_name, call.group)
        call.gateway.held(f"{TOPICS}{dead}/")
        call.caller.topic("write", dead)
    return found


def _start(text: str) -> int:
    return topic_start(int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text)


async def remove_group(call: Call) -> Response:
    """Answer DELETE /v1/topics/{topic}/groups/{group}: remove it with its positions."""
    return await write_columns(call, end(call.topic_name, call.group))


async def receive(call: Call) -> Response:
    """Answer POST .../receive: the next messages of a member and a receipt; 204 if none comes while it waits."""
    gateway, fields = call.gateway, call.fields
    await call.no_body()
    most, name = number(fields, "max", PAGE, gateway.limits.page), fields.get("member") or token_hex(8)
    ttl_s, wait_s = _seconds(fields, "ttl", TTL_S, TTL_MAX_S), _seconds(fields, "wait", 0.0, WAIT_MAX_S)
    if not ttl_s >= 1 or wait_s > ttl_s / 2:
        raise Problem(400, "bad-query", "ttl is 1 second or more, and wait at most half of it; give a longer ttl")
    coming = stateless_member.coming(call.topic_name, call.group, _member(call, name), name, round(ttl_s * 1000))
    with gateway.receiving():
        given = await _received(gateway, call.topic, coming, (most, wait_s))
    if given is None:
        return Response(status_code=204, headers={"CHP-Member": name, "Cache-Control": "no-store"})
    messages = [message_json(each) for each, _ in zip(given.batch, range(given.size), strict=False)]
    counts = given.batch.deliveries_max is not None
    receipt = Receipt(name, given.moves, given.batch.position, counts)
    told: dict[str, Any] = {"messages": messages, "receipt": str(receipt), "member": name}
    if counts:
        told |= {"deliveries": given.batch.deliveries, "max_deliveries": given.batch.deliveries_max}
    return json_answer({**told, "missed": given.batch.missed, "behind": given.behind})


async def _received(
    gateway: Gateway, topic: AsyncTopic, coming: dict[str, Any], most_wait: tuple[int, float]
) -> ReceivedBatch | None:
    _, group, member, _ = coming[columns.JOIN]
    most, wait_s = most_wait
    await _join(gateway, coming)
    get = partial(requests_of(topic).receive, group, member, most=most, wait_s=wait_s, stopped=gateway.closing.is_set)
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    try:
        given = await loop.run_in_executor(gateway.receivers, get)
    except Refused as error:
        # The code `member` says that the member's lease ended or the group was made anew. So the member joins again.
        if error.code != "member":
            raise
        await _join(gateway, coming)
        given = await loop.run_in_executor(gateway.receivers, get)
    if given is not None and loop.time() - began > 1.0:
        # The lease is refreshed, so that the member has its whole ttl for the messages.
        await _join(gateway, coming)
    return given


async def _join(gateway: Gateway, coming: dict[str, Any]) -> None:
    """Make a member join its group, or refresh its lease."""
    rows = BatchRows(gateway.subtrees)
    rows.extras, rows.topics = coming, [coming[columns.JOIN][0]]
    await gateway.mounts.of_rows(rows).writes.write(rows)


async def acknowledge(call: Call) -> Response:
    """Answer POST .../ack: acknowledge messages, and set the keys and publish the messages that result.

    All of this is done in one record, or none of it.
    """
    async with call.body() as body:
        rows = await call.gateway.slices.read(len(body), _acknowledged(call, body))
        return await written(call, rows, body)


def _acknowledged(call: Call, body: bytes) -> Steps[BatchRows]:
    """Read the rows that are acknowledged, set and published together."""
    told = yield from _told(body, ACK)
    receipt = Receipt.of(told["receipt"])
    if "upto" in told:
        receipt = receipt.upto(_offset(told["upto"], "upto is the offset of the last message that is done"))
    receipt = receipt.without(_messages(told, "except"))
    yield
    rows = BatchRows(call.gateway.subtrees)
    rows.topics.append(call.topic_name)
    for i, row in enumerate(_list(told, "sets"), 1):
        add_row(rows, row, i)
        if i % SLICE_ROWS == 0:
            yield
    acked = receipt.acknowledged(call.topic_name, call.group, _member(call, receipt.name))
    rows.extras = acked | (yield from _published(call, _list(told, "publish"), rows))
    if rows.bytes > BYTES_MAX:
        raise Problem(413, "too-large", f"keys, values and messages have more than {BYTES_MAX} bytes; do less")
    return rows


async def give_back(call: Call) -> Response:
    """Answer POST .../nack: the member leaves, at once or after a delay, and its messages go to others.

    With `messages` in the body the member stays, and gives only those messages back.
    """
    async with call.body() as body:
        told = await call.gateway.slices.read(len(body), _told(body, NACK))
        if "messages" not in told:
            return await _kept(call, body, told, "delay", 0.0)
        why, receipt = told.get("why", "a member gave it back"), Receipt.of(told["receipt"])
        if not isinstance(why, str) or "delay" in told:
            raise Problem(400, "bad-body", '"why" is a text, and "delay" is for all that came with the receipt')
        member = _member(call, receipt.name)
        back = receipt.given_back(_messages(told, "messages"), cut(why, DEFAULT.reason_bytes_max))
        nack = {columns.REFRESH: member, columns.NACK: [[call.topic_name, call.group, member, back]]}
        return await write_columns(call, nack, body)


async def extend(call: Call) -> Response:
    """Answer POST .../extend: the member keeps its messages for `ttl` seconds from now on."""
    return await _keep(call, "ttl", TTL_S)


async def _keep(call: Call, name: str, default: float) -> Response:
    """Set for how many seconds a member keeps its messages: the member `name` of the body; with 0 it leaves."""
    async with call.small_body() as body:
        told = await call.gateway.slices.read(len(body), _told(body, frozenset({"receipt", name})))
        return await _kept(call, body, told, name, default)


async def _kept(call: Call, body: bytes, told: dict[str, Any], name: str, default: float) -> Response:
    receipt, seconds = Receipt.of(told["receipt"]), told.get(name, default)
    member = _member(call, receipt.name)
    if type(seconds) not in (int, float) or not 0 <= seconds <= TTL_MAX_S:
        raise Problem(400, "bad-body", f"{name} is a number of seconds, at most {TTL_MAX_S:g}")
    if seconds:
        return await write_columns(call, stateless_member.staying(member, max(1, round(seconds * 1000))), body)
    leaving = stateless_member.leaving(call.topic_name, call.group, member, counts=receipt.counts)
    return await write_columns(call, leaving, body)


# -- parts of several handlers


def _member(call: Call, name: str) -> bytes:
    """Return the lease of a member of the path's group.

    The user is part of the name of the lease, so no user can use another user's receipt.
    """
    mount = call.gateway.mounts.of_topic(call.topic_name).prefix
    secret, user = call.gateway.callers.of_pair(mount).secret, call.caller.at(mount).user
    return stateless_member.member_of(secret, call.topic_name, call.group, user, name)


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


def _offset(value: object, wanted: str) -> int:
    """Return an offset; raise `BadInput`, which begins with what is `wanted`, if the value is none."""
    if type(value) is not int or not 0 <= value < stateless_member.OFFSET_MAX:
        raise BadInput(f"{wanted}, not {value!r:.40}")
    return value


def _messages(told: dict[str, Any], name: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the key of each message that a member of the body names."""
    for row in _list(told, name):
        key = row.get("key", "") if isinstance(row, dict) else None
        if not isinstance(row, dict) or not isinstance(key, str):
            text = f'"{name}" has messages as they came, or such as {{"offset": 17, "key": "k"}}'
            raise Problem(400, "bad-body", text)
        yield _offset(row.get("offset"), f'"{name}" has messages by offset, a whole number from 0'), key


def _list(told: dict[str, Any], name: str) -> list[Any]:
    found = told.get(name, [])
    if not isinstance(found, list) or len(found) > ROWS_MAX:
        raise Problem(400, "bad-body", f'"{name}" is a list of at most {ROWS_MAX} rows')
    return found


def _published(call: Call, given: list[Any], rows: BatchRows) -> Steps[dict[str, Any]]:
    """Return the column that publishes messages; add their topics and bytes to `rows`."""
    topics: dict[str, tuple[list[str | None], list[bytes], list[Headers | None]]] = {}
    for i, row in enumerate(given, 1):
        if i % SLICE_ROWS == 0:
            yield
        try:
            if not isinstance(row, dict) or "topic" not in row:
                raise ValueError('a message is such as {"topic": "t", "value": "text", "key": "k"}')
            name = check_topic(row["topic"])
            key, value, carried = message_of({member: row[member] for member in row if member != "topic"})
            keys, values, headers = topics.setdefault(name, ([], [], []))
            keys.append(None if key is None else check_key(key))
        except (ChpError, ValueError) as error:
            raise Problem(400, "bad-row", f"publish, row {i}: {str(error)[:300]}", row=i) from None
        call.gateway.held(f"{TOPICS}{name}/")
        call.caller.topic("write", name)
        values.append(value)
        headers.append(carried)
        rows.bytes += len(key or "") + len(value) + sum(map(len, carried)) + sum(map(len, carried.values()))
    rows.topics += topics
    found = [packed(name, names_of(name, keys), values, headers) for name, (keys, values, headers) in topics.items()]
    return {columns.PUBLISH: found} if found else {}
