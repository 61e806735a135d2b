"""The paths for machines to read, at /openapi.json; a test holds them against the routes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .asked import query

_STRING = {"type": "string"}
_REVISION = {"type": "string", "pattern": r"^[0-9]+\.[0-9]+$", "description": "epoch.sequence"}


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


def _does(about: str, parameters: list[Any], answers: dict[str, str], **more: Any) -> dict[str, Any]:
    said = {status: {"description": text} for status, text in answers.items()}
    return {"summary": about, "parameters": parameters, "responses": {**said, "default": _PROBLEM}, **more}


def _key_methods(where: dict[str, Any]) -> dict[str, Any]:
    value = {"requestBody": {"required": True, "content": _OCTETS}}
    return {
        "get": _does("the value", [where, _FRESH, _CACHED], {"200": "the value", "304": "as it was"}),
        "put": _does("set", [where, _TTL, _MATCH, _NONE, _ONCE], {"200": "done: revision, durability"}, **value),
        "delete": _does("delete", [where, _MATCH, _NONE], {"200": "done: revision, durability"}),
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
        "/v1/keys": {**_key_methods(_KEY), "get": _does("a page of keys, sorted", page, {"200": "keys, and `next`"})},
        "/v1/keys/{key}": _key_methods(_IN_PATH),
        "/v1/batch": {
            "post": _does(
                "sets and deletes in one record", [_ONCE], {"200": "done"},
                requestBody={"required": True, "content": rows},
            )
        },
        "/v1/watch": {"get": _does("changes, as server-sent events", reader, {"200": "a stream of events"})},
        "/v1/pair": {"get": _does("the servers, and this gateway", [], {"200": "both"})},
        "/v1/history": {"get": _does("epochs: when, who and because", [], {"200": "the newest first"})},
        "/health": {"get": _does("whether it answers", [], {"200": "yes"})},
        "/ready": {"get": _does("whether its copy is current", [], {"200": "yes"})},
        "/metrics": {"get": _does("for Prometheus", [], {"200": "text"})},
        "/openapi.json": {"get": _does("this", [], {"200": "this"})},
    }  # fmt: skip


def document() -> dict[str, Any]:
    """The whole of it."""
    problem = {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": dict.fromkeys(("type", "title", "code", "detail"), _STRING) | {"status": {"type": "integer"}},
    }
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
