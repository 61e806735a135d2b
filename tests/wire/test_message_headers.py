"""covers: headers of messages over a pair: Clone, transaction, consumer, dead letter, HTTP, `chp pub`, and traces."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from chp_client import AsyncClone, BadInput, Clone, telemetry
from chp_server.testing import Pair
from tests import talk
from tests.talk import WAIT_S
from tests.wire.gateways import RunningGateway

LINES = {"Content-Type": "application/x-ndjson"}


def headers_of(clone: Clone, topic: str) -> list[dict[str, str]]:
    return [dict(message.headers) for batch in clone.topic(topic).read(wait=False) for message in batch]


def test_headers_travel_with_their_message(pair: Pair) -> None:
    servers = ",".join(pair.servers)
    with Clone(pair.servers) as clone, RunningGateway(pair.servers) as gateway:
        orders = clone.topic("orders")
        with pytest.raises(BadInput, match="1 headers for 2 messages"):
            orders.publish_many([b"1", b"2"], headers=[{"a": "b"}])
        with pytest.raises(BadInput, match="not 'A'"):
            orders.publish(b"1", headers={"A": "b"})
        orders.publish(b"0", key="k", headers={"n": "0"})
        orders.publish(b"1")
        orders.publish_many([b"2", b"3"], headers=[None, {"n": "3"}]).wait(WAIT_S)
        with clone.transaction() as t:
            t.publish("orders", b"4", headers={"n": "4"})
            t.publish_many("orders", [b"5"], headers=[{"n": "5"}])
        client, path = gateway.client, "/v1/topics/orders/messages"
        client.post(
            path, content=b"6", headers={"CHP-Header-N": "gr%C3%BCn", "chp-header-x": "100%25"}
        ).raise_for_status()
        rows = [{"value": "7", "headers": {"n": "7"}}, {"base64": "OA=="}]
        client.post(path, content="\n".join(map(json.dumps, rows)), headers=LINES).raise_for_status()
        pub = partial(talk.run, "--servers", servers, "pub", "orders")
        assert pub("--header", "n=a=b", "--header", "m=", "9").exit_code == 0
        expected = [{"n": "0"}, {}, {}, {"n": "3"}, {"n": "4"}, {"n": "5"}, {"n": "grün", "x": "100%"}, {"n": "7"}, {}]
        expected.append({"n": "a=b", "m": ""})
        assert headers_of(clone, "orders") == expected
        told = client.get(path).json()["messages"]
        assert [each.get("headers", {}) for each in told] == expected
        for bad, says in (({"CHP-Header-N": "%ff"}, "not UTF-8"), ({"CHP-Header-N": "x" * 1025}, "1025 bytes")):
            answer = client.post(path, content=b"x", headers=bad)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad-header") and says in answer.text
        bad_row = client.post(path, content='{"value": "x", "headers": {"A": "b"}}', headers=LINES)
        assert bad_row.json()["code"] == "bad-row" and "'A'" in bad_row.text
        for words, says in ((["a"], "a name and a text"), (["A=b"], "1 to 64"), (["a=b", "--header", "a=c"], "twice")):
            refused = pub("--header", *words, "x")
            assert refused.exit_code == 2 and says in refused.stderr
        assert orders.facts()["next"] == len(expected), "nothing was half done"
        with orders.consumer("billing") as consumer:
            found: list[dict[str, str]] = []
            while len(found) < len(expected):
                batch = consumer.take(WAIT_S)
                assert batch is not None
                found += [dict(each.headers) for each in batch]
                batch.reject(batch.offsets[0], "bad")
                batch.done().wait(WAIT_S)
        assert found == expected and headers_of(clone, "orders.billing.dead")[0] == {"n": "0"}


def test_a_repeated_idempotency_key_with_other_headers_is_refused(pair: Pair) -> None:
    with RunningGateway(pair.servers) as gateway:
        path, once = "/v1/topics/again/messages", {"Idempotency-Key": "one"}
        send = [gateway.client.post(path, content=b"1", headers={**once, "CHP-Header-A": each}) for each in "bbc"]
        assert [each.status_code for each in send[:2]] == [200, 200] and send[2].status_code == 422
        assert len(gateway.client.get(path).json()["messages"]) == 1


class Trace:
    """A stand-in for OpenTelemetry, which sends the current span's name as the header "traceparent"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.spans = "", list[tuple[str, Any]]()
        meter = types.SimpleNamespace(record=lambda *_: None, add=lambda *_: None)
        made = dict.fromkeys(("create_histogram", "create_counter", "create_up_down_counter"), lambda *_, **__: meter)
        modules: dict[str, dict[str, Any]] = {
            "opentelemetry.metrics": {"get_meter": lambda _: types.SimpleNamespace(**made)},
            "opentelemetry.propagate": {"inject": self._inject, "extract": lambda carrier: carrier.get("traceparent")},
            "opentelemetry.trace": {
                "get_tracer": lambda _: self,
                "SpanKind": types.SimpleNamespace(CONSUMER="consumer"),
            },
        }
        for name, members in modules.items():
            monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**members))
        telemetry._meter.cache_clear()

    def _inject(self, carrier: dict[str, str]) -> None:
        if self.current:
            carrier["traceparent"] = self.current

    @contextmanager
    def start_as_current_span(
        self, name: str, *, context: Any, kind: str, attributes: dict[str, str]
    ) -> Iterator[None]:
        assert kind == "consumer" and attributes["messaging.consumer.group.name"] == "g"
        self.spans.append((name, context))
        yield


def test_a_trace_goes_from_publish_to_handler(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch)
    try:
        with Clone(pair.servers, subtree=None, metrics=telemetry.OpenTelemetry()) as clone:
            traced = clone.topic("traced")
            traced.publish(b"0").wait(WAIT_S)
            trace.current = "span-1"
            traced.publish(b"1", headers={"a": "b"}).wait(WAIT_S)
            asyncio.run(_publish(pair.servers, "traced", [b"2", b"3"]))
            trace.current = ""
            with traced.consumer("g") as consumer:
                consumer.run(lambda message: consumer.stop() if message.value == b"3" else None)
            assert trace.spans == [("process traced", None), *[("process traced", "span-1")] * 3]
            assert headers_of(clone, "traced")[1] == {"traceparent": "span-1", "a": "b"}
    finally:
        telemetry._meter.cache_clear()


async def _publish(servers: list[str], topic: str, values: list[bytes]) -> None:
    async with AsyncClone(servers, subtree=None, metrics=telemetry.OpenTelemetry()) as clone:
        await clone.topic(topic).publish_many(values)
