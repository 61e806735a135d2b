"""The paths for machines to read, at /openapi.json; a test holds them against the routes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .metrics import KINDS
from .request_fields import query

_STRING = {"type": "string"}
_REVISION = {"type": "string", "pattern": r"^[0-9]+\.[0-9]+$", "description": "epoch.sequence"}


def _map(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **more}}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


_REF = {"$ref": "#/components/schemas/Revision"}
_WHOLE, _NUMBER, _FLAG = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
_ENTRY = _map({"key": _STRING, "revision": _REF}, value=_STRING, base64=_STRING, ttl=_NUMBER)
_DURABILITY = {"type": "string", "enum": ["applied", "journaled", "replicated"]}
_DONE = _map({"revision": _REF}, durability=_DURABILITY)
_PAGE = _map({"keys": _list(_ENTRY), "next": {"type": ["string", "null"]}, "number": _REF})
_TURNS = _map({}, turns=_WHOLE, seconds=_NUMBER, longest_ms=_NUMBER, above_50_ms=_WHOLE)
_ROOM = _map({}, full=_FLAG, why=_STRING, memory=_WHOLE, memory_max=_WHOLE, disk_free=_WHOLE)
_SYNCS = _map({}, last=_NUMBER, p50=_NUMBER, p99=_NUMBER)
_TOOK = _map({"count": _WHOLE, "p50_ms": _NUMBER, "p99_ms": _NUMBER})
_SERVER = _map(
    {"server": _STRING, "state": _STRING}, name=_STRING, role=_STRING, version=_STRING, problem=_STRING,
    epoch=_WHOLE, sequence=_WHOLE, keys=_WHOLE, sessions=_WHOLE, leases=_WHOLE, in_sync=_FLAG,
    since_s=_NUMBER, uptime_s=_NUMBER, waits_for=_STRING, turns=_TURNS, room=_ROOM, syncs_ms=_SYNCS,
)  # fmt: skip
_OWN = _map(
    {"state": _STRING, "number": _REF, "keys": _WHOLE, "write": _FLAG, "hand_over": _FLAG, "readers": _WHOLE},
    staleness_s={"type": ["number", "null"]}, active={"type": ["string", "null"]}, lag_ms=_NUMBER, 
    answers=_map({}, **dict.fromkeys(KINDS, _TOOK)),
)  # fmt: skip
_PAIR = _map({"servers": _list(_SERVER), "gateway": _OWN})
_SWITCHED = _map({"active": _STRING, "was": _STRING, "number": _REF, "seconds": _NUMBER})
_EPOCH = _map({"epoch": _WHOLE, "name": _STRING, "because": _STRING, "wall_ms": _WHOLE}, last=_REF, opener=_STRING)
_HISTORY = _map({"epochs": _list(_EPOCH)})
_CLIENT = _map(
    {
        **dict.fromkeys(("name", "program", "host", "version", "state", "client", "user", "address"), _STRING),
        **dict.fromkeys(
            ("pid", "keys", "lag_ms", "batches", "bytes", "holes", "mismatches", "failovers", "place"), _WHOLE
        ),
        "number": _REF, "subtrees": _list(_STRING), "since_s": _NUMBER, "heard_s": _NUMBER,
    }
)  # fmt: skip
_CLIENTS = _map({"clients": _list(_CLIENT), "count": _WHOLE})
_GROUP_SEEN = _map({"topic": _STRING, "group": _STRING, "lag": _WHOLE, "oldest_s": _NUMBER, "members": _WHOLE})
_VERSION = _map(
    {"revision": _REF, "wall_ms": _WHOLE}, by=_STRING, value=_STRING, base64=_STRING, deleted=_FLAG, expired=_FLAG
)
_VERSIONS = _map({"key": _STRING, "versions": _list(_VERSION)})
_KEEP = {"type": "string", "enum": ["all", "acknowledged", "size", "time"]}
_SETTINGS = _map({}, keep=_KEEP, max_messages=_WHOLE, max_bytes=_WHOLE, max_age_s=_WHOLE)
_TOPIC = _map(
    {"name": _STRING, "first": _WHOLE, "next": _WHOLE, "bytes": _WHOLE, "groups": _WHOLE},
    settings=_SETTINGS, wall_ms=_WHOLE, made=_STRING,
)  # fmt: skip
_MESSAGE = _map({"offset": _WHOLE, "revision": _REF, "time": _NUMBER}, key=_STRING, value=_STRING, base64=_STRING)
_MESSAGES = _map({"messages": _list(_MESSAGE), "next": {"type": ["integer", "null"]}})
_PUBLISHED = _map({"count": _WHOLE, "revision": _REF}, durability=_DURABILITY)
_GROUP = _map(
    {"name": _STRING, "position": _WHOLE, "lag": _WHOLE, "members": _list(_map({"name": _STRING, "slots": _WHOLE}))},
    oldest_ms={"type": ["integer", "null"]}, ack_timeout_s={"type": ["integer", "null"]},
)  # fmt: skip
_GIVEN = _map({"messages": _list(_MESSAGE), "receipt": _STRING, "member": _STRING, "missed": _WHOLE, "behind": _WHOLE})
_READY = _map({"status": _STRING, "number": _REF, "write": _FLAG})


def _query(name: str, about: str, schema: dict[str, Any] = _STRING, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": about, "required": required, "schema": schema}


def _header(name: str, about: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": about, "schema": {**_STRING, **more}}


_IN_PATH = {
    "name": "key",
    "in": "path",
    "required": True,
    "description": "without its slash",
    "schema": _STRING,
}
_KEY = _query("key", "a key that does not begin with a slash, or that a client would change in a path", required=True)
_FRESH = _query("fresh", "503 unless the copy is current", {"type": "string", "enum": ["", "0", "1"]})
_TTL = _query("ttl", "seconds until it is deleted", {"type": "number", "exclusiveMinimum": 0})
_MATCH = _header("If-Match", "only if the key has this ETag; not with If-None-Match", pattern=r'^"[0-9]+\.[0-9]+"$')
_NONE = _header("If-None-Match", "*: only if there is no such key; not with If-Match", enum=["*"])
_CACHED = _header("If-None-Match", "304 if the key still has one of these ETags")
_ONCE = _header(
    "Idempotency-Key", "asked again with the same, it is done once and answered as the first time", minLength=1,
    maxLength=255,
)  # fmt: skip
_TOPIC_NAME = {**_STRING, "pattern": "^[A-Za-z0-9._-]{1,200}$"}
_OCTETS = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_PROBLEM = {
    "description": "a problem: code says which, detail what to do",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def _does(
    about: str, parameters: list[Any], answers: dict[str, str], told: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """`told`: the schema of what 200 brings as JSON."""
    said: dict[str, Any] = {status: {"description": text} for status, text in answers.items()}
    if told is not None:
        said["200"]["content"] = {"application/json": {"schema": told}}
    return {"summary": about, "parameters": parameters, "responses": {**said, "default": _PROBLEM}, **more}


def _key_methods(where: dict[str, Any]) -> dict[str, Any]:
    value = {"requestBody": {"required": True, "content": _OCTETS}}
    return {
        "get": _does("the value", [where, _FRESH, _CACHED], {"200": "the value", "304": "as it was"}),
        "put": _does("set", [where, _TTL, _MATCH, _NONE, _ONCE], {"200": "done"}, _DONE, **value),
        "delete": _does("delete", [where, _MATCH, _NONE, _ONCE], {"200": "done"}, _DONE),
    }


def _topic_paths() -> dict[str, Any]:
    name = {**_IN_PATH, "name": "topic", "description": "1 to 200 of A-Z a-z 0-9 . _ -", "schema": _TOPIC_NAME}
    key = _query("key", "of a single message")
    page = [name, _query("after", "the last offset that was seen", _WHOLE), _query("max", "messages", _WHOLE)]
    settings = {"requestBody": {"content": {"application/json": {"schema": _SETTINGS}}}}
    body = {"requestBody": {"required": True, "content": {**_OCTETS, "application/x-ndjson": {"schema": _STRING}}}}
    made = {"201": {"description": "made", "content": {"application/json": {"schema": _DONE}}}}
    put = _does("make it", [name], {}, **settings)
    return {
        "/v1/topics": {"get": _does("all topics", [], {"200": "by name"}, _map({"topics": _list(_TOPIC)}))},
        "/v1/topics/{topic}": {
            "get": _does("what is known of it", [name], {"200": "facts"}, _TOPIC),
            "put": {**put, "responses": {**made, **put["responses"]}},
            "delete": _does("remove it with its messages", [name], {"200": "gone"}, _DONE),
        },
        "/v1/topics/{topic}/messages": {
            "post": _does("publish one message or many", [name, key], {"200": "done"}, _PUBLISHED, **body),
            "get": _does(
                "a page of messages, in order; as server-sent events, if these are accepted, all and what comes",
                [*page, _header("Last-Event-ID", "of events: the offset of the last message that was seen")],
                {"200": "messages, and `next`"},
                _MESSAGES,
            ),
        },
    }


def _group_paths() -> dict[str, Any]:
    names = [{**_IN_PATH, "name": name, "description": "1 to 200 of A-Z a-z 0-9 . _ -"} for name in ("topic", "group")]
    start = _query("start", "begin, end (the default) or an offset")
    timeout = _query("ack_timeout_s", "who acknowledges nothing for so long loses what it has", _WHOLE)
    receive = [
        *names,
        _query("max", "messages", _WHOLE),
        _query("wait", "seconds until 204, at most half of ttl", _NUMBER),
        _query("member", "its name; a random one if there is none"),
        _query("ttl", "seconds after which others get what it has", _NUMBER),
    ]
    made = {"201": {"description": "made", "content": {"application/json": {"schema": _DONE}}}}
    put = _does("make it", [*names, start, timeout, _ONCE], {})
    receipt = {"receipt": _STRING}
    rows = _list({"type": "object"})
    here = "/v1/topics/{topic}/groups"

    def told(about: str, **members: Any) -> dict[str, Any]:
        body = {"required": True, "content": {"application/json": {"schema": _map(receipt, **members)}}}
        return {"post": _does(about, [*names, _ONCE], {"200": "done"}, _DONE, requestBody=body)}

    return {
        here: {"get": _does("all groups of a topic", names[:1], {"200": "by name"}, _map({"groups": _list(_GROUP)}))},
        f"{here}/{{group}}": {
            "get": _does("its position, lag and members", names, {"200": "facts"}, _GROUP),
            "put": {**put, "responses": {**made, **put["responses"]}},
            "delete": _does("remove it with its positions", names, {"200": "gone"}, _DONE),
        },
        f"{here}/{{group}}/receive": {
            "post": _does("what is next for a member", receive, {"200": "messages", "204": "none"}, _GIVEN)
        },
        f"{here}/{{group}}/ack": told(
            "messages are done, with what came of them", upto=_WHOLE, sets=rows, publish=rows, **{"except": rows}
        ),
        f"{here}/{{group}}/nack": told("give back what the member has, and leave", delay=_NUMBER),
        f"{here}/{{group}}/extend": told("keep what it has for longer", ttl=_NUMBER),
    }


def _paths() -> dict[str, Any]:
    page = [
        _query("prefix", "what the keys begin with"),
        _query("after", "the `next` of the page before"),
        _query("limit", "keys of the page", {"type": "integer", "minimum": 1, "maximum": 10_000}),
        {**_KEY, "required": False},
        _FRESH,
    ]
    rows = {"application/x-ndjson": {"schema": _STRING}, "application/msgpack": {"schema": _STRING}}
    versions = [_query("key", "any key", required=True), _query("limit", "versions, 50 if it is not given", _WHOLE)]
    last = _header("Last-Event-ID", "the id of the last event that was seen")
    reader = [_query("prefix", "of the keys"), _query("after", "as Last-Event-ID"), last]
    return {
        "/v1/keys": {**_key_methods(_KEY), "get": _does("a page of keys", page, {"200": "keys, and `next`"}, _PAGE)},
        "/v1/keys/{key}": _key_methods(_IN_PATH),
        "/v1/batch": {
            "post": _does(
                "sets and deletes in one record", [_ONCE], {"200": "done"}, _DONE,
                requestBody={"required": True, "content": rows},
            )
        },
        "/v1/watch": {"get": _does("changes, as server-sent events", reader, {"200": "a stream of events"})},
        "/v1/versions": {
            "get": _does("what a key was, as the log has it", versions, {"200": "when, by whom"}, _VERSIONS)
        },
        **_topic_paths(),
        "/v1/groups": {"get": _does("groups of all topics", [], {"200": "100"}, _map({"groups": _list(_GROUP_SEEN)}))},
        **_group_paths(),
        "/v1/pair": {"get": _does("the servers, and this gateway", [], {"200": "both"}, _PAIR)},
        "/v1/pair/switch": {
            "post": _does(
                "have the active server hand over", [_query("from", "the active one", required=True)],
                {"200": "the other serves"}, _SWITCHED,
            )
        },
        "/v1/clients": {
            "get": _does("who told the active server that it is connected", [], {"200": "the first 500"}, _CLIENTS)
        },
        "/v1/history": {"get": _does("epochs: when, who and because", [], {"200": "the newest first"}, _HISTORY)},
        "/health": {"get": _does("whether it answers", [], {"200": "yes"}, _map({"status": _STRING}))},
        "/ready": {"get": _does("whether its copy is current", [], {"200": "yes"}, _READY)},
        "/metrics": {"get": _does("for Prometheus", [], {"200": "text"})},
        "/openapi.json": {"get": _does("this", [], {"200": "this"})},
    }  # fmt: skip


def document() -> dict[str, Any]:
    """The whole of it."""
    problem = _map(
        {**dict.fromkeys(("type", "title", "code", "detail"), _STRING), "status": _WHOLE},
        row=_WHOLE, revisions={"type": "object"}, now={"type": ["object", "null"]},
    )  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "chp-gateway", "version": "1", "description": "A shared, replicated dictionary by HTTP."},
        "paths": _paths(),
        "components": {"schemas": {"Problem": problem, "Revision": _REVISION}},
    }


async def show_openapi(request: Request) -> Response:
    """GET /openapi.json."""
    query(request)
    return JSONResponse(document())
