"""The table of routes: the source of routing, 405, /openapi.json, the names in /metrics, and docs/gateway/routes.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.responses import Response

from . import openapi as api
from .answers import json_answer
from .call import Call
from .console import SERVED, show_console
from .paths import groups, keys, pair, schedule, topics
from .paths.watch import watch
from .route import STREAM, Field, Right, Route
from .shared.rows import MSGPACK, NDJSON, check_reserved

# -- rights


def _may_set(call: Call) -> None:
    check_reserved(call.key)
    call.caller.write((call.key,), () if call.condition is None else (0,))


def _may_read_page(call: Call) -> None:
    if "key" in call.fields:
        call.caller.read(call.key)
    else:
        call.caller.read_all(call.fields.get("prefix", ""))


def _command(name: str) -> Right:
    return Right(f"the admin command `{name}`", lambda call: call.caller.command(name))


def _topic(verb: str) -> Right:
    return Right(f"{verb} of the topic", lambda call: call.caller.topic(verb, call.topic_name))


def _group(*, loses: bool) -> Callable[[Call], None]:
    return lambda call: call.caller.group(call.topic_name, call.group, loses=loses)


ANYONE = Right("none, and no token", lambda call: None, open=True)
TOKEN = Right("none", lambda call: None)
SEEN = Right("read, of each one that is shown", lambda call: None)
READ_KEY = Right("read of the key", lambda call: call.caller.read(call.key))
READ_VERSIONS = Right("read of the key", lambda call: call.caller.read(call.named_key))
READ_PREFIX = Right("read of all of the prefix", lambda call: call.caller.read_all(call.fields.get("prefix", "")))
READ_PAGE = Right("read of all of the prefix, or of the key", _may_read_page)
WRITE_KEY = Right("write of the key; with a condition, read too", _may_set)
WRITE_ROWS = Right("write of each key; with a condition, read too", lambda call: call.caller.write_anything())
READ_TOPIC, WRITE_TOPIC = _topic("read"), _topic("write")
CONSUME = Right("consume of the group", _group(loses=False))
REMOVE = Right("consume of the group, as its removal loses positions", _group(loses=True))

# -- fields

KEY = Field("key", "a key that does not begin with a slash, or that a client would change in a path", api.STRING, True)
MAYBE_KEY = KEY._replace(required=False)
ANY_KEY = Field("key", "any key", api.STRING, True)
PREFIX = Field("prefix", "the beginning of the keys", api.STRING)
FRESH = Field("fresh", "503 unless the copy is current", {**api.STRING, "enum": ["", "0", "1"]})
TTL = Field("ttl", "seconds until the key is deleted", {**api.NUMBER, "exclusiveMinimum": 0})
header = partial(Field, place="header")
MATCH = header(
    "If-Match", "only if the key has this ETag; not with If-None-Match",
    {**api.STRING, "pattern": r'^"[0-9]+\.[0-9]+"$'},
)  # fmt: skip
NONE = header("If-None-Match", "*: only if there is no such key; not with If-Match", {**api.STRING, "enum": ["*"]})
CACHED = header("If-None-Match", "304 if the key still has one of these ETags", api.STRING)
ONCE = header(
    "Idempotency-Key", "a request that is sent again with this name is done once, and answered as the first time",
    {**api.STRING, "minLength": 1, "maxLength": 255},
)  # fmt: skip
LAST_EVENT = header("Last-Event-ID", "the id of the last event that was seen", api.STRING)
SET = (TTL, MATCH, NONE, ONCE)
DELETE = (MATCH, NONE, ONCE)
LIMIT = Field("limit", "keys of the page", {**api.WHOLE, "minimum": 1, "maximum": 10_000})
MAX = Field("max", "messages of the answer", api.WHOLE)

GROUP_SETTINGS = (
    Field("ack_timeout_s", "a member that acknowledges nothing for so long loses its messages", api.WHOLE),
    Field("max_deliveries", "a message that was given so often is put aside", api.WHOLE),
    Field("lag_alarm_s", "the pair's log and metrics tell when the oldest message is older than this", api.WHOLE),
    Field("retry_after_s", "a message that failed is held back for so long, and twice as long each time", api.NUMBER),
    Field("expire_after_s", "the group is removed when it had no member for so many seconds", api.WHOLE),
)

# -- bodies

VALUE = {keys.OCTETS: api.BYTES}
ROWS = {NDJSON: api.STRING, MSGPACK[0]: api.STRING}
MANY = {keys.OCTETS: api.BYTES, NDJSON: api.STRING}
JSON = "application/json"
PAGED = "keys, and `next`, which is the `after` of the next page"


async def show_openapi(call: Call) -> Response:
    """Answer GET /openapi.json: the document of these routes."""
    return json_answer(api.document(ROUTES), headers={})


_T, _G = "/v1/topics/{topic}", "/v1/topics/{topic}/groups/{group}"
ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/keys", keys.show_page, READ_PAGE,
          "a sorted page of keys, as JSON or NDJSON; with `key` one value",
          (PREFIX, Field("after", "the `next` of the page before", api.STRING), LIMIT, MAYBE_KEY, FRESH), api.PAGE,
          status={200: PAGED}, kind="page"),
    Route("PUT", "/v1/keys", keys.set_key, WRITE_KEY, "set a key", (KEY, *SET), api.DONE, VALUE, kind="write"),
    Route("DELETE", "/v1/keys", keys.delete_key, WRITE_KEY, "delete a key", (KEY, *DELETE), api.DONE, kind="write"),
    Route("GET", "/v1/keys/{key}", keys.read_key, READ_KEY, "the value of a key", (FRESH, CACHED),
          status={200: "the value", 304: "the value is as it was"}, kind="read"),
    Route("PUT", "/v1/keys/{key}", keys.set_key, WRITE_KEY, "set a key", SET, api.DONE, VALUE, kind="write"),
    Route("DELETE", "/v1/keys/{key}", keys.delete_key, WRITE_KEY, "delete a key", DELETE, api.DONE, kind="write"),
    Route("POST", "/v1/batch", keys.batch, WRITE_ROWS, "sets and deletes in one record, all or none", (ONCE,),
          api.DONE, ROWS, kind="batch"),
    Route("GET", "/v1/watch", watch, READ_PREFIX, "changes, as server-sent events",
          (PREFIX, Field("after", "as Last-Event-ID", api.STRING), LAST_EVENT), status={200: "a stream of events"},
          kind=STREAM),
    Route("GET", "/v1/versions", keys.show_versions, READ_VERSIONS,
          "the versions of a key in the log, the newest first",
          (ANY_KEY, Field("limit", "versions, 50 by default", api.WHOLE)), api.VERSIONS,
          status={200: "when, and by which client"}),
    Route("GET", "/v1/topics", topics.list_topics, SEEN, "all topics", (), api.TOPICS, status={200: "by name"}),
    Route("GET", _T, topics.show_topic, READ_TOPIC, "the facts of a topic", (), api.TOPIC,
          status={200: "offsets and settings"}),
    Route("PUT", _T, topics.make_topic, WRITE_TOPIC, "make a topic, with settings", (ONCE,), api.DONE,
          {JSON: api.SETTINGS}, status={201: "made"}, kind="write", body_required=False),
    Route("DELETE", _T, topics.remove_topic, WRITE_TOPIC, "remove a topic with its messages", (ONCE,), api.DONE,
          kind="write"),
    Route("POST", f"{_T}/messages", topics.publish, WRITE_TOPIC,
          "publish one message, or with NDJSON many, all or none",
          (Field("key", "the key of a single message", api.STRING), ONCE), api.PUBLISHED, MANY),
    Route("GET", f"{_T}/messages", topics.read_topic, READ_TOPIC,
          "a page of messages in order; with Accept: text/event-stream all messages as events",
          (Field("after", "the last offset that was seen", api.WHOLE), MAX,
           header("Last-Event-ID", "for events: the offset of the last message that was seen", api.STRING)),
          api.MESSAGES, status={200: "messages, and `next`"}),
    Route("POST", f"{_T}/scheduled", schedule.schedule, WRITE_TOPIC,
          "publish the body later; with `unless_changed`, read of that key too",
          (Field("delay_s", "seconds from now", api.NUMBER),
           Field("at", "or a time, such as 2027-01-31T09:00:00Z", api.STRING),
           Field("every_s", "and again each time after so many seconds", api.NUMBER),
           Field("name", "the name by which it is cancelled; a random one by default", api.STRING),
           Field("unless_changed", "drop it if this key changes before", api.STRING),
           Field("key", "the key of the message", api.STRING), ONCE), api.SCHEDULED, VALUE,
          status={201: "it waits for its time"}),
    Route("GET", f"{_T}/scheduled", schedule.list_scheduled, READ_TOPIC, "the messages that wait for their time",
          (Field("after", "the `next` of the page before", api.STRING), LIMIT), api.SCHEDULE, status={200: "by name"}),
    Route("DELETE", f"{_T}/scheduled/{{name}}", schedule.cancel, WRITE_TOPIC, "cancel a message that waits", (ONCE,),
          api.DONE, kind="write"),
    Route("GET", f"{_T}/groups", groups.list_groups, READ_TOPIC, "all groups of a topic", (), api.GROUPS,
          status={200: "by name"}),
    Route("GET", _G, groups.show_group, READ_TOPIC, "the facts of a group", (), api.GROUP,
          status={200: "position, lag, members"}),
    Route("PUT", _G, groups.make_group, CONSUME, "make a group",
          (Field("start", "begin, end (the default) or an offset", api.STRING),
           *GROUP_SETTINGS, ONCE), api.DONE, status={201: "made"}, kind="write"),
    Route("POST", f"{_G}/settings", groups.change_group, CONSUME, "change settings of a group; an empty one is none",
          (*GROUP_SETTINGS, ONCE), api.DONE, kind="write"),
    Route("DELETE", _G, groups.remove_group, REMOVE, "remove a group with its positions", (ONCE,), api.DONE,
          kind="write"),
    Route("POST", f"{_G}/receive", groups.receive, CONSUME, "the next messages of a member",
          (MAX, Field("wait", "seconds until 204, at most half of ttl", api.NUMBER),
           Field("member", "the name of the member; a random one by default", api.STRING),
           Field("ttl", "seconds after which others get its messages", api.NUMBER)), api.GIVEN,
          status={200: "messages and a `receipt`", 204: "no message came"}),
    Route("POST", f"{_G}/ack", groups.acknowledge, CONSUME, "messages are done, with the keys and messages that result",
          (ONCE,), api.DONE, {JSON: api.ACK}),
    Route("POST", f"{_G}/nack", groups.give_back, CONSUME, "give all messages back and leave, or some of them",
          (ONCE,), api.DONE,
          {JSON: api.NACK}),
    Route("POST", f"{_G}/extend", groups.extend, CONSUME, "keep the messages for longer", (ONCE,), api.DONE,
          {JSON: api.EXTEND}),
    Route("GET", "/v1/pair", pair.show_pair, _command("status"), "the servers, and this gateway", (), api.PAIR,
          status={200: "both"}),
    Route("POST", "/v1/pair/switch", pair.hand_over, _command("switch"), "have the active server hand over to its peer",
          (Field("from", "the active server, as /v1/pair has it", api.STRING, True),), api.SWITCHED,
          status={200: "the peer serves"}),
    Route("GET", "/v1/groups", pair.show_groups, SEEN, "the groups of all topics, at most 100", (), api.GROUPS_SEEN,
          status={200: "lag and members"}),
    Route("GET", "/v1/clients", pair.show_clients, _command("clients"), "the clients that are connected to the pair",
          (), api.CLIENTS, status={200: "the first 500"}),
    Route("GET", "/v1/history", pair.show_history, _command("status"), "the epochs: when, by which server and why", (),
          api.HISTORY, status={200: "the newest first"}),
    Route("GET", "/health", pair.health, ANYONE, "200 while the process answers", (), api.STATUS,
          status={200: "it answers"}),
    Route("GET", "/ready", pair.ready, ANYONE, "200 while the copy is current", (), api.READY,
          status={200: "it is current"}),
    Route("GET", "/metrics", pair.show_metrics, _command("status"), "the metrics, for Prometheus",
          status={200: "text"}),
    Route("GET", "/openapi.json", show_openapi, ANYONE, "these routes, for machines", status={200: "OpenAPI"}),
    *(Route("GET", path, show_console, TOKEN, "the console", (PREFIX,), status={200: "a file"}) for path in SERVED),
)  # fmt: skip
