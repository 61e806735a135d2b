"""Scheduled messages: /v1/topics/{topic}/scheduled, messages that the pair publishes later, once or repeatedly."""

from __future__ import annotations

import math
from datetime import datetime
from hashlib import sha256
from typing import Any

from starlette.responses import Response

from chp import columns
from chp.topics import check_name

from ...clone.base import internals
from ...topics.schedule import NAME_BYTES, ScheduledMessage, cancellation, entry
from ..answers import json_answer
from ..call import Call
from ..problems import Problem
from ..request_fields import number, only
from ..shared.rows import BatchRows
from ..shared.writes import marker_of
from .keys import PAGE, result_answer
from .topics import FACTS_S, absent_is_404, headers_of, write_columns

FIELDS = ("key", "delay_s", "at", "every_s", "name", "unless_changed")


async def schedule(call: Call) -> Response:
    """Answer POST /v1/topics/{topic}/scheduled: keep the body, and publish it when it is due."""
    gateway, fields = call.gateway, call.fields
    only(fields, FIELDS)
    unless = fields.get("unless_changed")
    if unless is not None:
        call.caller.read(unless)
    async with call.body() as body:
        rows = BatchRows(gateway.subtrees)
        rows.topics.append(call.topic_name)
        if unless is not None:
            rows.related.append(unless)
        mount = gateway.mounts.of_rows(rows)
        marker = await marker_of(call.request, call.caller.at(mount.prefix).user, body)
        # A request that is sent again with its Idempotency-Key gets the same name, as the name is made from that key.
        again = None if marker is None else sha256(marker.key.encode()).hexdigest()[: 2 * NAME_BYTES]
        row = entry(
            internals(mount.clone).writer, call.topic_name, body, fields.get("key"), name=fields.get("name", again),
            delay_s=_seconds(fields, "delay_s"), at=_time(fields), every_s=_seconds(fields, "every_s"),
            unless_changed=unless, headers=headers_of(call),
        )  # fmt: skip
        rows.extras = {columns.SCHEDULE: [row]}
        done = await mount.writes.write(rows, marker)
    return result_answer({"name": row[1], "revision": str(done.revision)}, done, 201)


async def list_scheduled(call: Call) -> Response:
    """Answer GET /v1/topics/{topic}/scheduled: a page of the messages that wait, in the order of their names."""
    most = number(call.fields, "limit", PAGE, call.gateway.limits.page)
    with absent_is_404():
        found = await call.topic.scheduled(most, call.fields.get("after"), timeout=FACTS_S)
    return json_answer({"scheduled": list(map(told, found)), "next": found[-1].name if len(found) == most else None})


async def cancel(call: Call) -> Response:
    """Answer DELETE /v1/topics/{topic}/scheduled/{name}: drop a message that waits."""
    name = check_name(call.request.path_params["name"])
    return await write_columns(call, {columns.CANCEL: [cancellation(call.topic_name, name)]})


def told(message: ScheduledMessage) -> dict[str, Any]:
    """Return a scheduled message as a map for JSON, without the members that are None."""
    row = {
        "name": message.name, "due": message.due.isoformat(), "every_s": message.every_s,
        "unless_changed": message.unless_changed, "key": message.key, "size": message.size,
    }  # fmt: skip
    return {name: value for name, value in row.items() if value is not None}


def _seconds(fields: dict[str, str], name: str) -> float | None:
    if (text := fields.get(name)) is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise Problem(400, "bad-query", f"{name}={text[:40]!r} is not a number of seconds")
    return found


def _time(fields: dict[str, str]) -> datetime | None:
    if (text := fields.get("at")) is None:
        return None
    try:
        # A plus sign in a query is decoded as a blank, so the plus sign of a time zone is put back.
        found = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        text = f"at={text[:40]!r} is no time such as 2027-01-31T09:00:00Z"
        raise Problem(400, "bad-query", text) from None
    if found.tzinfo is None:
        raise Problem(400, "bad-query", f"at={text[:40]!r} has no time zone; give one, as in 2027-01-31T09:00:00Z")
    return found
