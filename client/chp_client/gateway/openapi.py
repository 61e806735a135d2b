"""The paths for machines to read, at /openapi.json; a test holds them against the routes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .asked import query

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
_SERVER = _map(
    {"server": _STRING, "state": _STRING}, name=_STRING, role=_STRING, version=_STRING, problem=_STRING,
    epoch=_WHOLE, sequence=_WHOLE, keys=_WHOLE, sessions=_WHOLE, leases=_WHOLE, in_sync=_FLAG,
    since_s=_NUMBER, uptime_s=_NUMBER,
)  # fmt: skip
_OWN = _map(
    {"state": _STRING, "number": _REF, "keys": _WHOLE, "write": _FLAG, "readers": _WHOLE},
    staleness_s={"type": ["number", "null"]}, active={"type": ["string", "null"]},
)  # fmt: skip
_PAIR = _map({"servers": _list(_SERVER), "gateway": _OWN})
_EPOCH = _map({"epoch": _WHOLE, "name": _STRING, "because": _STRING, "wall_ms": _WHOLE}, last=_REF, opener=_STRING)
_HISTORY = _map({"epochs": _list(_EPOCH)})
_READY = _map({"status": _STRING, "number": _REF})


def _query(name: str, about: str, schema: dict[str, Any] = _STRING, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": about, "required": required, "schema": schema}


def _header(name: str, about: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": about, "schema": _STRING}


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
_MATCH = _header("If-Match", "only if the key has this ETag")
_NONE = _header("If-None-Match", "*: only if there is no such key")
_CACHED = _header("If-None-Match", "304 if the key still has one of these ETags")
_ONCE = _header("Idempotency-Key", "asked again with the same, it is done once and answered as the first time")
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


def _paths() -> dict[str, Any]:
    page = [
        _query("prefix", "what the keys begin with"),
        _query("after", "the `next` of the page before"),
        _query("limit", "keys of the page", {"type": "integer", "minimum": 1, "maximum": 10_000}),
        {**_KEY, "required": False},
        _FRESH,
    ]
    rows = {"application/x-ndjson": {"schema": _STRING}, "application/msgpack": {"schema": _STRING}}
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
        "/v1/pair": {"get": _does("the servers, and this gateway", [], {"200": "both"}, _PAIR)},
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
