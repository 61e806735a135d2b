"""The OpenAPI document at /openapi.json, made of the table of routes, and the schemas of its JSON.

A test compares the schemas with the answers of a gateway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from chp.facts import below

from .metrics import KINDS
from .route import Field, Route, Schema

STRING = {"type": "string"}
REVISION = {"type": "string", "pattern": r"^[0-9]+\.[0-9]+$", "description": "epoch.sequence"}
_MOUNTED = r"/\S*=[0-9]+\.[0-9]+"
POSITION = {
    "type": "string", "pattern": rf"^([0-9]+\.[0-9]+|{_MOUNTED}( {_MOUNTED})*)$",
    "description": "the number of a copy; of several mounts PREFIX=NUMBER of each, the prefix percent-encoded",
}  # fmt: skip


def obj(required: Schema, **more: Schema) -> Schema:
    """Return the schema of an object with the members that are required, and `more` members that are optional."""
    return {"type": "object", "required": list(required), "properties": {**required, **more}}


def array(of: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": of}


def facts(prefix: str) -> Schema:
    """Return, by name, the schemas of those facts of a server below `prefix` that the gateway shows."""
    return {each.name: {"type": each.type, "description": each.help} for each in below(prefix) if each.gateway}


REF = {"$ref": "#/components/schemas/Revision"}
AT = {"$ref": "#/components/schemas/Position"}
WHOLE, NUMBER, FLAG = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
ENTRY = obj({"key": STRING, "revision": REF}, value=STRING, base64=STRING, ttl=NUMBER)
DURABILITY = {"type": "string", "enum": ["applied", "journaled", "replicated"]}
DONE = obj({"revision": REF}, durability=DURABILITY)
PAGE = obj({"keys": array(ENTRY), "next": {"type": ["string", "null"]}, "number": AT})
TURNS = obj({}, **facts("turns"), above_50_ms=WHOLE)
SYNCS = obj({}, last=NUMBER, p50=NUMBER, p99=NUMBER)
TOOK = obj({"count": WHOLE, "p50_ms": NUMBER, "p99_ms": NUMBER})
SERVER = obj(
    {"server": STRING, "state": STRING}, **{name: each for name, each in facts("").items() if name != "state"},
    mount=STRING, problem=STRING, turns=TURNS, room=obj({}, **facts("room")), syncs_ms=SYNCS,
    replica=obj({}, **facts("replica")), replicas=array(obj({}, **facts("replicas[]"))),
)  # fmt: skip
MOUNT = obj(
    {"mount": STRING, "state": STRING, "number": REF, "active": {"type": ["string", "null"]}},
    staleness_s={"type": ["number", "null"]},
)  # fmt: skip
OWN = obj(
    {"state": STRING, "number": AT, "keys": WHOLE, "write": FLAG, "hand_over": FLAG, "readers": WHOLE},
    staleness_s={"type": ["number", "null"]}, active={"type": ["string", "null"]}, lag_ms=NUMBER,
    answers=obj({}, **dict.fromkeys(KINDS, TOOK)), mounts=array(MOUNT),
)  # fmt: skip
PAIR = obj({"servers": array(SERVER), "gateway": OWN})
SWITCHED = obj({"active": STRING, "was": STRING, "number": REF, "seconds": NUMBER})
EPOCH = obj(
    {"epoch": WHOLE, "name": STRING, "because": STRING, "wall_ms": WHOLE}, last=REF, opener=STRING, mount=STRING
)
HISTORY = obj({"epochs": array(EPOCH)})
CLIENT = obj(
    {
        **dict.fromkeys(("name", "program", "host", "version", "state", "client", "user", "address"), STRING),
        **dict.fromkeys(
            ("pid", "keys", "lag_ms", "batches", "bytes", "holes", "mismatches", "failovers", "place"), WHOLE
        ),
        "number": REF, "subtrees": array(STRING), "since_s": NUMBER, "heard_s": NUMBER,
    },
    mount=STRING,
)  # fmt: skip
CLIENTS = obj({"clients": array(CLIENT), "count": WHOLE})
GROUP_SEEN = obj({"topic": STRING, "group": STRING, "lag": WHOLE, "oldest_s": NUMBER, "members": WHOLE}, late=FLAG)
VERSION = obj({"revision": REF, "wall_ms": WHOLE}, by=STRING, value=STRING, base64=STRING, deleted=FLAG, expired=FLAG)
VERSIONS = obj({"key": STRING, "versions": array(VERSION)})
KEEP = {"type": "string", "enum": ["all", "acknowledged", "size", "time"]}
SETTINGS = obj({}, keep=KEEP, max_messages=WHOLE, max_bytes=WHOLE, max_age_s=WHOLE,
               require_group=FLAG, expire_after_s=WHOLE)  # fmt: skip
TOPIC = obj(
    {"name": STRING, "first": WHOLE, "next": WHOLE, "bytes": WHOLE, "groups": WHOLE},
    settings=SETTINGS, wall_ms=WHOLE, made=STRING, scheduled=WHOLE,
)  # fmt: skip
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
MESSAGE = obj(
    {"offset": WHOLE, "revision": REF, "time": NUMBER}, key=STRING, value=STRING, base64=STRING, headers=TEXTS
)
MESSAGES = obj({"messages": array(MESSAGE), "next": {"type": ["integer", "null"]}})
PUBLISHED = obj({"count": WHOLE, "revision": REF}, durability=DURABILITY)
GROUP = obj(
    {"name": STRING, "position": WHOLE, "lag": WHOLE, "members": array(obj({"name": STRING, "slots": WHOLE}))},
    oldest_ms={"type": ["integer", "null"]}, ack_timeout_s={"type": ["integer", "null"]}, failing=WHOLE,
    lag_alarm_s={"type": ["integer", "null"]},
    max_deliveries={"type": ["integer", "null"]}, retry_after_s={"type": ["number", "null"]}, deliveries=WHOLE,
    expire_after_s={"type": ["integer", "null"]},
)  # fmt: skip
GIVEN = obj(
    {"messages": array(MESSAGE), "receipt": STRING, "member": STRING, "missed": WHOLE, "behind": WHOLE},
    deliveries=WHOLE, max_deliveries=WHOLE,
)  # fmt: skip
READY = obj({"status": STRING, "number": AT, "write": FLAG})
PROBLEM = obj(
    {**dict.fromkeys(("type", "title", "code", "detail"), STRING), "status": WHOLE},
    row=WHOLE, revisions={"type": "object"}, now={"type": ["object", "null"]},
)  # fmt: skip
STATUS = obj({"status": STRING})
SCHEDULED = obj({"name": STRING, "revision": REF}, durability=DURABILITY)
SCHEDULE = obj(
    {"scheduled": array(obj({"name": STRING, "due": STRING, "size": WHOLE}, every_s=NUMBER, unless_changed=STRING,
                            key=STRING)), "next": {"type": ["string", "null"]}},
)  # fmt: skip
TOPICS = obj({"topics": array(TOPIC)})
GROUPS = obj({"groups": array(GROUP)})
GROUPS_SEEN = obj({"groups": array(GROUP_SEEN)})
RECEIPT = {"receipt": STRING}
ROWS = array({"type": "object"})
ACK = obj(RECEIPT, upto=WHOLE, sets=ROWS, publish=ROWS, **{"except": ROWS})
NACK = obj(RECEIPT, delay=NUMBER, messages=ROWS, why=STRING)
EXTEND = obj(RECEIPT, ttl=NUMBER)
NAME = {**STRING, "pattern": "^[A-Za-z0-9._-]{1,200}$"}
BYTES = {"type": "string", "format": "binary"}

_ERROR = {
    "description": "a problem: code says which, detail what to do",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_NAMED = "1 to 200 of A-Z a-z 0-9 . _ -"
_IN_PATH: dict[str, tuple[str, Schema]] = {
    "key": ("without its slash", STRING), "topic": (_NAMED, NAME), "group": (_NAMED, NAME),
    "name": (_NAMED, NAME),
}  # fmt: skip


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of all routes except the routes of the console."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.path.startswith("/console/") and route.path != "/":
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "chp-gateway", "version": "1", "description": "A shared, replicated dictionary by HTTP."},
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM, "Revision": REVISION, "Position": POSITION}},
    }


def _operation(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(status): {"description": text} for status, text in route.status.items()}
    if route.answer is not None:
        responses[str(min(route.status))]["content"] = _content({"application/json": route.answer})
    made: dict[str, Any] = {
        "summary": route.about,
        "parameters": [*map(_in_path, re.findall(r"\{(\w+)\}", route.path)), *map(_parameter, route.fields)],
        "responses": {**responses, "default": _ERROR},
    }
    if route.body:
        made["requestBody"] = {"required": route.body_required, "content": _content(route.body)}
    return made


def _content(kinds: Any) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in kinds.items()}


def _in_path(name: str) -> dict[str, Any]:
    about, schema = _IN_PATH[name]
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


def _parameter(field: Field) -> dict[str, Any]:
    return {
        "name": field.name, "in": field.place, "description": field.about, "required": field.required,
        "schema": field.schema,
    }  # fmt: skip
