"""covers: openapi.py: the answers of each path have exactly the members and types that /openapi.json names."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from chp_client.topics.stateless_member import Receipt
from chp_server.testing import Pair
from tests.wire.gateways import RunningGateway

LINES = {"Content-Type": "application/x-ndjson"}
# The receipt of member m, which has all slots because it is the only member.
OF_M = {"receipt": str(Receipt("m", [[b"\xff" * 32, 0, 1]]))}
ASKED: list[tuple[str, str, str, dict[str, Any]]] = [
    ("PUT", "/v1/keys/{key}", "/v1/keys/o/a", {"content": b"1"}),
    ("PUT", "/v1/keys/{key}", "/v1/keys/o/b?ttl=60", {"content": b"\xff"}),
    ("PUT", "/v1/keys", "/v1/keys?key=o", {"content": b"1", "headers": {"Idempotency-Key": "one"}}),
    ("PUT", "/v1/keys", "/v1/keys?key=o", {"content": b"1", "headers": {"Idempotency-Key": "one"}}),
    ("POST", "/v1/batch", "/v1/batch", {"content": b'{"set":"/o/c","value":""}', "headers": LINES}),
    ("GET", "/v1/keys", "/v1/keys?prefix=/o/", {}),
    ("GET", "/v1/keys", "/v1/keys?prefix=/o/&limit=1", {}),
    ("GET", "/v1/pair", "/v1/pair", {}),
    ("POST", "/v1/pair/switch", "/v1/pair/switch?from=tcp://127.0.0.1:1", {}),
    ("GET", "/v1/history", "/v1/history", {}),
    ("GET", "/v1/versions", "/v1/versions?key=/o/a", {}),
    ("GET", "/v1/versions", "/v1/versions", {}),
    ("GET", "/v1/groups", "/v1/groups", {}),
    ("GET", "/v1/clients", "/v1/clients", {}),
    ("PUT", "/v1/topics/{topic}", "/v1/topics/o", {"content": b'{"keep": "size", "max_messages": 9}'}),
    ("PUT", "/v1/topics/{topic}", "/v1/topics/o", {}),
    ("POST", "/v1/topics/{topic}/messages", "/v1/topics/o/messages?key=k", {"content": b"1"}),
    ("POST", "/v1/topics/{topic}/messages", "/v1/topics/o/messages", {"content": b"\xff"}),
    ("GET", "/v1/topics/{topic}/messages", "/v1/topics/o/messages", {}),
    (
        "POST",
        "/v1/topics/{topic}/scheduled",
        "/v1/topics/o/scheduled?delay_s=60&every_s=60&unless_changed=/o/a&key=k&name=n",
        {"content": b"1"},
    ),
    ("POST", "/v1/topics/{topic}/scheduled", "/v1/topics/o/scheduled?delay_s=-1", {"content": b"1"}),
    ("GET", "/v1/topics/{topic}/scheduled", "/v1/topics/o/scheduled", {}),
    ("GET", "/v1/topics/{topic}/scheduled", "/v1/topics/none/scheduled", {}),
    ("DELETE", "/v1/topics/{topic}/scheduled/{name}", "/v1/topics/o/scheduled/n", {}),
    ("DELETE", "/v1/topics/{topic}/scheduled/{name}", "/v1/topics/o/scheduled/n", {}),
    ("GET", "/v1/topics", "/v1/topics", {}),
    ("GET", "/v1/topics/{topic}", "/v1/topics/o", {}),
    ("GET", "/v1/topics/{topic}", "/v1/topics/none", {}),
    ("PUT", "/v1/topics/{topic}/groups/{group}", "/v1/topics/o/groups/g?start=begin", {}),
    ("POST", "/v1/topics/{topic}/groups/{group}/receive", "/v1/topics/o/groups/g/receive?member=m&max=1&wait=9", {}),
    ("POST", "/v1/topics/{topic}/groups/{group}/extend", "/v1/topics/o/groups/g/extend", {"json": OF_M | {"ttl": 60}}),
    ("POST", "/v1/topics/{topic}/groups/{group}/ack", "/v1/topics/o/groups/g/ack", {"json": OF_M}),
    ("POST", "/v1/topics/{topic}/groups/{group}/nack", "/v1/topics/o/groups/g/nack", {"json": OF_M}),
    (
        "POST",
        "/v1/topics/{topic}/groups/{group}/settings",
        "/v1/topics/o/groups/g/settings",
        {"json": {"ack_timeout_s": 60}},
    ),
    ("GET", "/v1/topics/{topic}/groups", "/v1/topics/o/groups", {}),
    ("GET", "/v1/topics/{topic}/groups/{group}", "/v1/topics/o/groups/g", {}),
    ("DELETE", "/v1/topics/{topic}/groups/{group}", "/v1/topics/o/groups/g", {}),
    ("DELETE", "/v1/topics/{topic}", "/v1/topics/o", {}),
    ("GET", "/health", "/health", {}),
    ("GET", "/ready", "/ready", {}),
    ("DELETE", "/v1/keys/{key}", "/v1/keys/o/a", {}),
    ("DELETE", "/v1/keys", "/v1/keys?key=o", {}),
    ("GET", "/v1/keys/{key}", "/v1/keys/o/none", {}),
    ("PUT", "/v1/keys/{key}", "/v1/keys/o/b", {"content": b"1", "headers": {"If-Match": '"1.1"'}}),
    ("PUT", "/v1/keys/{key}", "/v1/keys/o/b", {"content": b"1", "headers": {"If-None-Match": "*"}}),
    ("POST", "/v1/batch", "/v1/batch", {"content": b"{", "headers": LINES}),
]
KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def fits(text: str, schema: dict[str, Any]) -> bool:
    """Return True if a text fits a schema."""
    return text in schema.get("enum", [text]) and bool(re.search(schema.get("pattern", ""), text))


def wrong(value: Any, schema: dict[str, Any], whole: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield the places where a value differs from the schema. Members that the schema does not name are wrong too."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, KINDS[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds):
        yield f"{at} is {value!r}, not {kinds}"
    elif isinstance(value, dict) and "properties" in schema:
        for name in set(schema["required"]) - value.keys():
            yield f"{at}.{name} is missing"
        for name, member in value.items():
            if name in schema["properties"]:
                yield from wrong(member, schema["properties"][name], whole, f"{at}.{name}")
            else:
                yield f"{at}.{name} is not named"
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from wrong(item, schema["items"], whole, f"{at}[{i}]")
    elif isinstance(value, str) and not fits(value, schema):
        yield f"{at} is {value!r}"


def test_every_answer_matches_the_openapi_document(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway:
        whole = gateway.client.get("/openapi.json").json()
        for method, path, url, given in ASKED:
            answer: httpx.Response = gateway.client.request(method, url, **given)
            said = whole["paths"][path][method.lower()]["responses"].get(str(answer.status_code))
            if said is None:
                said = whole["paths"][path][method.lower()]["responses"]["default"]
            kind = answer.headers["Content-Type"]
            schema = said["content"][kind]["schema"]
            assert list(wrong(answer.json(), schema, whole)) == [], (method, url, answer.text)
            assert answer.status_code < 500
        asked = {(path, method.lower()) for method, path, _, _ in ASKED}
        for path, methods in whole["paths"].items():
            for method, does in methods.items():
                if "application/json" in does["responses"].get("200", {}).get("content", {}):
                    assert (path, method) in asked, f"{method} {path} is not looked at"


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, {"type": "string"}),
        (True, {"type": "integer"}),
        ({}, {"type": "object", "required": ["a"], "properties": {}}),
        ({"a": 1}, {"type": "object", "required": [], "properties": {}}),
        ("x", {"type": "string", "pattern": "^[0-9]$"}),
        ([1], {"type": "array", "items": {"type": "string"}}),
        (None, {"type": ["string", "number"]}),
    ],
)
def test_the_schema_check_finds_wrong_values(value: Any, schema: dict[str, Any]) -> None:
    assert list(wrong(value, schema, {}))
