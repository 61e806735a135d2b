"""The matrix of access: all ways to change what another user made, and the users that may (SPEC.md, section 36).

covers: the table of section 36, by CHP and by HTTP side by side. Each column of a KVSET, option of ICANHAZ, admin
command, route of the gateway, column that a WebSocket may use, and port has a row here, or is listed as one that leaves
other users' things alone. One without a row fails
`test_the_matrix_covers_every_column_option_command_route_and_port`. All clients and the gateway are at a server of the
pair, and then at a replica of another pair (SPEC.md, section 44).

    alice      reads and writes /pub/ and all topics, and consumes by all groups; all things here are hers
    other      has the rights of alice
    mallory    has the rights of alice without consume
    reader     reads what alice reads, and has no other right
    root       has all rights
    replica    has the right to vouch alone
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import zmq

from chp import access, columns
from chp.access import TOPICS, token_hash
from chp.batch import Segment, packb
from chp.keys import ETX, RESERVED_KEY, STX
from chp.numbers import pack
from chp_client.clientfile import ClientFile
from chp_client.gateway.channels import admission
from chp_client.gateway.channels.websocket import BINARY, CLOSE, put
from chp_client.gateway.routes import ROUTES
from chp_client.port.admin import Admin
from chp_client.topics.stateless_member import Receipt, member_of
from chp_server.core.questions import topic_readers as questions
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, until
from tests.unit.test_websocket import masked
from tests.wire import keys, test_access, test_access_programs, test_gateway_access, test_replica_keys
from tests.wire.gateways import RunningGateway
from tests.wire.speaker import Speaker
from tests.wire.test_gateway_websocket import Stranger

NAMES = ("gate", "root", "alice", "other", "mallory", "reader")
KEYS = {name: keys.new_pair() for name in (*NAMES, "replica")}
TOKENS = {name: f"chp_test-{name}" for name in (*NAMES, "replica")}
EVERYTHING: dict[str, Any] = {"read": [""], "write": [""], "consume": [""]}
BOTH = ["/pub/", TOPICS]
ALICE = {"read": BOTH, "write": BOTH, "consume": [TOPICS]}
USERS: dict[str, Any] = {
    "gate": {**EVERYTHING, "admin": ["access", "status", "clients", "switch"]},
    "root": {**EVERYTHING, "admin": [*access.COMMANDS, "nonsense"]},
    "alice": ALICE,
    "other": ALICE,
    "mallory": {"read": BOTH, "write": BOTH},
    "reader": {"read": BOTH},
    "replica": {"admin": [access.VOUCH]},
}
USERS = {name: {**entry, "tokens": [token_hash(TOKENS[name])]} for name, entry in USERS.items()}
# Alice comes last, because her acts may remove the things that the others try to use.
ASKERS = ("reader", "mallory", "other", "alice")
ALL = b"\xff" * 32
NOT_DONE = {"access", "lease", "fenced", "member", "staged"}
Request = tuple[str, str, dict[str, Any]]


class Stage:
    """A pair with these users, and the door by which they and a gateway come: a server of the pair or a replica."""

    def __init__(self, pair: Pair, gateway: RunningGateway, base: Path, door: tuple[str, bytes]) -> None:
        self.pair, self.gateway, self.address = pair, gateway, door[0]
        # The client files of the gateway and of root name the door. `direct` is root's client file for the pair.
        self.gate, self.file, self.direct = (base / f"{name}.toml" for name in ("gate", "root", "direct"))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.by = {name: Speaker(*door, name, KEYS[name], self.context) for name in NAMES[1:]}
        self._names = count()

    def unique(self) -> str:
        """Return a name that is not in use yet."""
        return f"n{next(self._names)}"

    def http(self, name: str, method: str, path: str, **given: Any) -> httpx.Response:
        """Send a request of a user to the gateway."""
        shown = {"Authorization": f"Bearer {TOKENS[name]}", **given.pop("headers", {})}
        with httpx.Client(base_url=self.gateway.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            return client.request(method, path, headers=shown, **given)

    def make(self, **extras: Any) -> None:
        """Make something that belongs to alice."""
        assert self.by["alice"].set(extras) == "", extras

    def give(self, users: dict[str, Any]) -> None:
        """Give new rules, and wait until the gateway has learned them."""
        with Admin(ClientFile.read(self.file), WAIT_S) as admin:
            now = admin.ask_active("access").facts["number"]
            document = admin.ask_active("access", rules={"users": users, "roles": {}}, on=now).facts["rules"]
        callers = self.gateway.gateway.callers
        until(lambda: callers.rules is not None and callers.rules.document == document, "the gateway knows them")

    def leases(self) -> dict[str, dict[str, Any]]:
        """Return the leases as an operator sees them, by name."""
        with Admin(ClientFile.read(self.file), WAIT_S) as admin:
            return {each["lease"]: each for each in admin.ask_active("leases").facts["leases"]}

    def close(self) -> None:
        """Close all sockets."""
        for each in self.by.values():
            each.close()
        self.context.term()


@contextmanager
def door_of(kind: str, pair: Pair, base: Path) -> Iterator[dict[str, bytes]]:
    """Yield the servers that clients name, with their keys: those of the pair, or a replica that follows the pair."""
    if kind == "server":
        yield keys.known(pair)
    else:
        folder = keys.of_replica(base / "r", KEYS["replica"], pair, *((name, KEYS[name]) for name in NAMES))
        with TestServer(replica=True, upstream=",".join(pair.servers), keys=str(folder), name="R1") as replica:
            core = replica.server.core  # type: ignore[union-attr]
            until(lambda: core.active and core.state.access.changed, "the replica is in sync and has the rules")
            yield {replica.address: KEYS["replica"].public}


@pytest.fixture(scope="module", params=["server", "replica"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    base = tmp_path_factory.mktemp("matrix")
    with keys.pair_with_keys(base, *KEYS.items()) as pair:
        direct = keys.client_file(base / "direct.toml", KEYS["root"], keys.known(pair))
        with Admin(ClientFile.read(direct), WAIT_S) as admin:
            admin.ask_active("access", rules={"users": USERS, "roles": {}}, on=0)
        with door_of(request.param, pair, base) as door:
            gate, _ = (keys.client_file(base / f"{name}.toml", KEYS[name], door) for name in ("gate", "root"))
            with RunningGateway([*door], "--client-file", str(gate)) as gateway:
                made = Stage(pair, gateway, base, next(iter(door.items())))
                yield made
                made.close()


# -- the rows


class Act(NamedTuple):
    """A row of the matrix: an act on alice's things. `may` has the users that may do it, by CHP and HTTP."""

    what: str
    may: str
    # The columns, options, commands, routes and ports that the row is about.
    doors: set[str]
    # This act returns the code of its refusal.
    chp: Callable[[Stage, str, Speaker], str] | None = None
    http: Callable[[Stage, str], Request] | None = None


def lease_of(u: str) -> bytes:
    return u.encode().ljust(16, b"-")


def sets(made: Callable[[Stage, str], None] | None, extras: Callable[[str], dict[str, Any]], key: str = "") -> Any:
    """Return an act that sends a batch about a thing of alice."""

    def act(stage: Stage, u: str, speaker: Speaker) -> str:
        if made is not None:
            made(stage, u)
        return speaker.set(extras(u), key and f"{key}{u}")

    return act


def asks(subject: bytes, /, **options: Any) -> Any:
    """Return an act that asks a question."""
    return lambda _stage, _u, speaker: speaker.ask(subject, **options)


def command(verb: str, /, **options: Any) -> Any:
    return asks(STX + verb.encode() + ETX, **options)


def request(method: str, path: str, made: Callable[[Stage, str], None] | None = None, **given: Any) -> Any:
    """Return an act that sends a request about a thing of alice, whose name is {u}."""

    def act(stage: Stage, u: str) -> Request:
        if made is not None:
            made(stage, u)
        return method, path.replace("{u}", u), given

    return act


def of_alice(method: str, path: str, **more: Any) -> Any:
    """Return an act that sends a request with the receipt of alice's member w."""

    def act(stage: Stage, u: str) -> Request:
        group(stage, u)
        message(stage, u)
        given = stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/receive?member=w&wait=9").json()
        return method, path.replace("{u}", u), {"json": {"receipt": given["receipt"], **more}}

    return act


def topic(stage: Stage, u: str) -> None:
    stage.make(topic=[u, {}])


def scheduled(stage: Stage, u: str) -> None:
    stage.make(schedule=[[u, "n", -60_000, 0, None, packb([None, [b"1"]])]])


def group(stage: Stage, u: str) -> None:
    stage.make(group=[u, "g", {"start": 0}])


def message(stage: Stage, u: str) -> None:
    assert stage.http("alice", "POST", f"/v1/topics/{u}/messages", content=b"1").status_code == 200


def lease(stage: Stage, u: str) -> None:
    stage.make(lease=[lease_of(u), 600_000])


def member(stage: Stage, u: str) -> None:
    """Make a group with a member of alice, which has all slots of a topic with a message."""
    group(stage, u)
    stage.make(lease=[lease_of(u), 600_000], join=[u, "g", lease_of(u), "w"])
    message(stage, u)
    place = stage.pair.primary.server.core.state.topics.groups.get  # type: ignore[union-attr]
    until(lambda: (g := place(u, "g")) is not None and g.slots_of(lease_of(u)).bit_count() == 256, "its slots")


def staged(stage: Stage, u: str) -> None:
    assert stage.by["alice"].set({"stage": [lease_of(u), "0.0"]}, f"/pub/{u}") == ""


def application(stage: Stage, u: str) -> None:
    stage.make(once=[u, 1, False])


def key(stage: Stage, u: str) -> None:
    assert stage.by["alice"].set({}, f"/pub/{u}") == ""


def join_by_its_own(stage: Stage, u: str, speaker: Speaker) -> str:
    """Let a user join a group with a lease of its own."""
    group(stage, u)
    own = (speaker.session + u.encode())[-16:]
    return speaker.set({"lease": [own, 9000], "join": [u, "g", own, "m"]})


def take_hers(stage: Stage, u: str, speaker: Speaker) -> str:
    """Ask for the messages of alice's member."""
    member(stage, u)
    return speaker.ask(topic=u, group="g", member=lease_of(u), credit=1)


WRITERS, CONSUMERS = "alice other mallory", "alice other"
ROWS = {"Content-Type": "application/x-ndjson"}
G = "/v1/topics/{u}/groups/g"
ACTS = [
    # Keys: a user that may write a key may overwrite and remove it, whichever user has set it.
    Act("set a key", WRITERS, {"PUT /v1/keys", "PUT /v1/keys/{key}"}, sets(key, lambda u: {}, "/pub/"),
        request("PUT", "/v1/keys/pub/{u}", key, content=b"2")),
    Act("set several", WRITERS, {"POST /v1/batch"}, sets(key, lambda u: {}, "/pub/"),
        request("POST", "/v1/batch", key, content=b'{"set":"/pub/b","value":""}', headers=ROWS)),
    Act("remove a key", WRITERS, {columns.DELETES, "DELETE /v1/keys", "DELETE /v1/keys/{key}", "ws d"},
        sets(key, lambda u: {"d": [0]}, "/pub/"), request("DELETE", "/v1/keys/pub/{u}", key)),
    Act("let a key end", WRITERS, {columns.TTLS, "ws t"}, sets(key, lambda u: {"t": [[0], [60_000]]}, "/pub/"),
        request("PUT", "/v1/keys/pub/{u}?ttl=60", key, content=b"2")),
    Act("set on a condition", WRITERS, {columns.CONDITIONS, "ws c"}, sets(None, lambda u: {"c": [[0], [0]]}, "/pub/"),
        request("PUT", "/v1/keys/pub/{u}", content=b"2", headers={"If-None-Match": "*"})),
    Act("set unless newer", WRITERS, {columns.UNLESS_NEWER, "ws n"},
        sets(None, lambda u: {"n": [[0], [0]]}, "/pub/")),
    Act("set if another key is as it was", WRITERS, {columns.EXPECT},
        sets(None, lambda u: {"expect": [[f"/pub/{u}.no", 0]]}, "/pub/")),
    # Leases belong to their client alone.
    Act("open a lease of hers", "alice", {columns.LEASE, "ws lease"},
        sets(lease, lambda u: {"lease": [lease_of(u), 1000]})),
    Act("make it anybody's", "", {columns.LEASE}, sets(lease, lambda u: {"lease": [lease_of(u), 9, columns.ANYBODY]})),
    Act("refresh it", "alice", {columns.REFRESH, "ws refresh"}, sets(lease, lambda u: {"refresh": lease_of(u)})),
    Act("end it", "alice", {columns.UNLEASE, "ws unlease"}, sets(lease, lambda u: {"unlease": lease_of(u)})),
    Act("set a key with it", "alice", {columns.LEASED, "ws l"}, sets(lease, lambda u: {"l": lease_of(u)}, "/pub/")),
    # Jobs belong to their user alone.
    Act("stage into her transaction", "alice", {columns.STAGE},
        sets(staged, lambda u: {"stage": [lease_of(u), "1.0"]}, "/pub/")),
    Act("commit it", "alice", {columns.COMMIT},
        sets(staged, lambda u: {"commit": [lease_of(u), "", 0, [["0.0", 1]], None]})),
    Act("abort it", "alice", {columns.ABORT}, sets(staged, lambda u: {"abort": lease_of(u)})),
    Act("count her application up", "alice", {columns.ONCE}, sets(application, lambda u: {"once": [u, 9, False]})),
    # Topics: a user that may write a topic may remove it.
    Act("publish", WRITERS, {columns.PUBLISH, "POST /v1/topics/{topic}/messages"},
        sets(topic, lambda u: {"publish": [[u, 1, packb([None, [b"1"]])]]}),
        request("POST", "/v1/topics/{u}/messages", topic, content=b"1")),
    Act("make a topic", WRITERS, {columns.TOPIC, "PUT /v1/topics/{topic}"}, sets(None, lambda u: {"topic": [u, {}]}),
        request("PUT", "/v1/topics/{u}")),
    Act("remove a topic", WRITERS, {columns.TOPIC, "DELETE /v1/topics/{topic}"},
        sets(topic, lambda u: {"topic": [u, None]}), request("DELETE", "/v1/topics/{u}", topic)),
    Act("schedule a message", WRITERS, {columns.SCHEDULE, "POST /v1/topics/{topic}/scheduled"},
        sets(topic, lambda u: {"schedule": [[u, "n", -60_000, 0, None, packb([None, [b"1"]])]]}),
        request("POST", "/v1/topics/{u}/scheduled?delay_s=60", topic, content=b"1")),
    Act("schedule one that depends on a key", WRITERS, {columns.SCHEDULE},
        sets(topic, lambda u: {"schedule": [[u, "n", -60_000, 0, f"/pub/{u}", packb([None, [b"1"]])]]}),
        request("POST", "/v1/topics/{u}/scheduled?delay_s=60&unless_changed=/pub/{u}", topic, content=b"1")),
    Act("cancel it", WRITERS, {columns.CANCEL, "DELETE /v1/topics/{topic}/scheduled/{name}"},
        sets(scheduled, lambda u: {"cancel": [[u, "n"]]}),
        request("DELETE", "/v1/topics/{u}/scheduled/n", scheduled)),
    # groups
    Act("make a group", CONSUMERS, {columns.GROUP, "PUT /v1/topics/{topic}/groups/{group}"},
        sets(topic, lambda u: {"group": [u, "g", {"start": 0}]}), request("PUT", f"{G}?start=begin", topic)),
    Act("begin a group anew", CONSUMERS, {columns.GROUP},
        sets(group, lambda u: {"group": [u, "g", {"start": 0, "again": True}]})),
    Act("remove a group", CONSUMERS, {columns.GROUP, "DELETE /v1/topics/{topic}/groups/{group}"},
        sets(group, lambda u: {"group": [u, "g", None]}), request("DELETE", G, group)),
    Act("change a group", CONSUMERS, {columns.GROUP, "POST /v1/topics/{topic}/groups/{group}/settings"},
        sets(group, lambda u: {"group": [u, "g", {"change": True, "ack_timeout_s": 9}]}),
        request("POST", f"{G}/settings?ack_timeout_s=9", group)),
    Act("join a group", CONSUMERS, {columns.JOIN, "POST /v1/topics/{topic}/groups/{group}/receive"},
        join_by_its_own,
        request("POST", f"{G}/receive?member=m", group)),
    Act("join by her lease", "alice", {columns.JOIN}, sets(member, lambda u: {"join": [u, "g", lease_of(u), "m"]})),
    Act("acknowledge what she has", "alice", {columns.ACK, "POST /v1/topics/{topic}/groups/{group}/ack"},
        sets(member, lambda u: {"ack": [[u, "g", lease_of(u), [[ALL, 0, 1]]]]}), of_alice("POST", f"{G}/ack")),
    Act("give back what she has", "alice", {"POST /v1/topics/{topic}/groups/{group}/nack"},
        sets(member, lambda u: {"refresh": lease_of(u), "unlease": lease_of(u)}), of_alice("POST", f"{G}/nack")),
    Act("give messages of hers back", "alice", {columns.NACK},
        sets(member, lambda u: {"nack": [[u, "g", lease_of(u), [[ALL, 0, 1, "no"]]]]}),
        of_alice("POST", f"{G}/nack", messages=[{"offset": 0}])),
    Act("keep what she has", "alice", {"POST /v1/topics/{topic}/groups/{group}/extend"},
        sets(member, lambda u: {"refresh": lease_of(u)}), of_alice("POST", f"{G}/extend", ttl=30)),
    Act("take the messages of her member", "alice", {"option member", "option have", "option proof", "option group"},
        take_hers),
    # operators
    Act("see the pair", "", {"admin status"}, command("status"), request("GET", "/v1/pair")),
    Act("hand over", "", {"admin switch", "option force", "POST /v1/pair/switch"}, command("switch", force=True),
        request("POST", "/v1/pair/switch?from=x")),
    Act("see clients", "", {"admin clients"}, command("clients"), request("GET", "/v1/clients")),
    Act("end any lease", "", {"admin leases", "option end"}, command("leases", end=b"x" * 16)),
    Act("change the rules", "", {"admin access", "option rules", "option on"}, command("access", rules={}, on=0)),
    Act("make a backup", "", {"admin backup", "option name", "option path"}, command("backup", name="b")),
    Act("restore one", "", {"admin restore"}, command("restore", name="b")),
]  # fmt: skip


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.what)
def test_each_act_is_allowed_to_the_listed_users_by_chp_and_http(stage: Stage, act: Act) -> None:
    done_by(stage, act, act.may)


# act -> the users that may do it if no rule names consume. Such rules mean what they meant before that right existed.
BY_READ = {
    "make a group": "alice other mallory reader", "join a group": "alice other mallory reader",
    "begin a group anew": WRITERS, "remove a group": WRITERS,
}  # fmt: skip


def test_read_and_write_allow_group_acts_if_no_rule_names_consume(stage: Stage) -> None:
    without = {name: {what: at for what, at in entry.items() if what != "consume"} for name, entry in USERS.items()}
    stage.give(without)
    try:
        for act in ACTS:
            if act.what in BY_READ:
                done_by(stage, act, BY_READ[act.what])
    finally:
        stage.give(USERS)


def done_by(stage: Stage, act: Act, may: str) -> None:
    """Let each user try an act by CHP and HTTP, and check that both answer as wanted."""
    for name in ASKERS:
        wanted, found = name in may.split(), dict[str, bool]()
        if act.chp is not None:
            code = act.chp(stage, stage.unique(), stage.by[name])
            assert code in NOT_DONE or not code, f"{name} by CHP: {code}"
            found["CHP"] = not code
        if act.http is not None:
            method, path, given = act.http(stage, stage.unique())
            answer = stage.http(name, method, path, **given)
            fenced = answer.status_code == 409 and answer.json()["code"] == "fenced"
            assert answer.is_success or answer.status_code == 403 or fenced, f"{name} by HTTP: {answer.text}"
            found["HTTP"] = answer.is_success
        assert found and set(found.values()) == {wanted}, (name, act.what, found)


# -- no door without a row

# These routes only read. tests/wire/test_gateway_access.py tests the users that may read.
READS = {
    "GET /v1/keys", "GET /v1/keys/{key}", "GET /v1/watch", "GET /v1/topics", "GET /v1/topics/{topic}",
    "GET /v1/topics/{topic}/messages", "GET /v1/topics/{topic}/groups", "GET /v1/topics/{topic}/groups/{group}",
    "GET /v1/topics/{topic}/scheduled",
    "GET /v1/pair", "GET /v1/versions", "GET /v1/groups", "GET /v1/clients", "GET /v1/history", "GET /health",
    "GET /ready", "GET /metrics", "GET /openapi.json", "GET /", "GET /console/",
    *(f"option {name}" for name in (
        "after", "at", "chp", "count", "credit", "facts", "feed", "from", "groups", "id", "inspect", "packed", "parts",
        "prefix", "probe", "resume", "scheduled", "store", "topic", "topics", "until",
    )),
}  # fmt: skip
# Columns that no client may write. Servers refuse them for each user, whatever its rights.
SERVERS: dict[str, Any] = {
    columns.REVISIONS: [[1, 1]], columns.UUIDS: [b"u" * 16], columns.PROPERTIES: [[0], [b""]],
    columns.DONE: [b"t" * 16, "a", 1], columns.ENDED: True, columns.REFUSED: [], columns.KEY_BYTES: [6],
    columns.SKIPPED: [b"s" * 16, 1, 2],
    columns.VALUE_BYTES: [1], columns.PLACED: [1, [["t", 0, 1, 1, 1]]], columns.TRIM: [["t", 1]],
    columns.ASSIGN: [["t", "g", [[ALL, b""]]]],
    columns.SCHEDULED: [1, []], columns.FIRED: [], columns.IMAGES: [True, []],
    columns.FAILED: [["t", "g", [[ALL, 1, ""]]]], columns.ASIDE: [["t", "g", [[ALL, 0]]]],
}  # fmt: skip
# Columns, options, commands, routes and ports that other files test: name -> the test.
ELSEWHERE: dict[str, Callable[..., object]] = {
    "option image": test_access.test_a_part_of_an_image_has_no_keys_outside_of_the_readers_subtree,
    "option part": test_access.test_a_part_of_an_image_has_no_keys_outside_of_the_readers_subtree,
    "option session": test_access_programs.test_a_snapshot_does_not_tell_the_session_number_of_another_user,
    "option below": test_replica_keys.test_a_replica_without_the_right_to_vouch_does_not_serve,
    "option whole": test_replica_keys.test_a_replica_without_the_right_to_vouch_does_not_serve,
    "option confirms": test_replica_keys.test_a_replica_without_the_right_to_vouch_does_not_serve,
    "option confirmed": test_replica_keys.test_a_replica_without_the_right_to_vouch_does_not_serve,
    "option lack": test_replica_keys.test_a_replica_without_the_right_to_vouch_does_not_serve,
    "admin vouch": test_replica_keys.test_clients_of_a_replica_have_the_rights_of_their_own_user,
    "port P+1": test_access.test_a_user_cannot_subscribe_to_the_session_of_another_user,
    "port P+2 of CHP/1": test_access.test_access_rules_apply_to_sets_of_chp_1,
    "port WebSocket": test_gateway_access.test_a_websocket_is_closed_on_a_request_that_the_rules_deny,
}
# This option grants credit only to the questions of its own connection.
OWN = {"option more"}
OPTION = re.compile(r'options(?:\.get\(|\[)"(\w+)"|_number\(options, "(\w+)"|"(\w+)" (?:not )?in options')


def every_door() -> set[str]:
    """Return all columns, options, commands, routes and ports, as the code has them."""
    named = {value for name, value in vars(columns).items() if name.isupper() and type(value) is str}
    routes = {f"{route.method} {re.sub('console/.*', 'console/', route.path)}" for route in ROUTES}
    core = Path(str(questions.__file__)).parents[2]
    texts = [path.read_text() for path in [*core.rglob("*.py"), *(core / "shell").rglob("*.py")]]
    options = {f"option {next(filter(None, found))}" for text in texts for found in OPTION.findall(text)}
    commands = {f"admin {name}" for name in access.COMMANDS}
    of_lines = {f"ws {name}" for name in admission.COLUMNS} | {f"option {name}" for name in admission.OPTIONS}
    ports = {"port P+1", "port P+2 of CHP/1", "port WebSocket"}
    return named | routes | options | commands | of_lines | ports


def test_the_matrix_covers_every_column_option_command_route_and_port() -> None:
    rows = set[str]().union(*(act.doors for act in ACTS), READS, SERVERS, ELSEWHERE, OWN)
    there = every_door()
    assert there - rows == set(), "give it a row: who may, and who may not"
    assert rows - there == set(), "there is no such door any more"


def test_the_admin_commands_of_rules_and_servers_agree(stage: Stage) -> None:
    with Admin(ClientFile.read(stage.file), WAIT_S) as admin, pytest.raises(Exception, match="is not known") as refused:
        admin.ask(stage.address, "nonsense")
    # The right to vouch is no command: a replica uses it with each message that it passes.
    assert ", ".join(sorted({*access.COMMANDS} - {access.VOUCH})) in str(refused.value)


@pytest.mark.parametrize("column", sorted(SERVERS))
def test_a_client_cannot_write_a_column_of_the_servers(stage: Stage, column: str) -> None:
    root = stage.by["root"]
    assert root.set({column: SERVERS[column]}, "/pub/x") == "bad"
    assert "server's to write" in root.why or "knows no column" in root.why, root.why
    assert stage.by["reader"].set({column: SERVERS[column]}, "/pub/x") == "access"


# -- members of groups that come by HTTP


def of_member(stage: Stage) -> tuple[str, str, str]:
    """Make a topic with a message in hand of alice's member w, and return its name, the receipt and the lease."""
    u, before = stage.unique(), set(stage.leases())
    group(stage, u)
    message(stage, u)
    given = stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/receive?member=w&wait=9&ttl=60").json()
    (found,) = set(stage.leases()) - before
    return u, given["receipt"], found


@pytest.mark.parametrize("column", [columns.LEASE, columns.REFRESH, columns.UNLEASE, columns.LEASED, "anybody"])
@pytest.mark.parametrize("name", ["mallory", "alice"])
def test_a_websocket_cannot_change_the_lease_of_a_group_member(stage: Stage, name: str, column: str) -> None:
    u, receipt, found = of_member(stage)
    lease_id, before = bytes.fromhex(found), stage.leases()[found]["ttl_ms"]
    shapes: dict[str, dict[str, Any]] = {
        columns.LEASE: {"lease": [lease_id, 36_000_000]},
        "anybody": {"lease": [lease_id, 36_000_000, columns.ANYBODY]},
        columns.LEASED: {"l": lease_id},
    }
    extras = shapes.get(column, {column: lease_id})
    stranger = Stranger(stage.gateway, Sec_WebSocket_Protocol=f"chp, bearer.{TOKENS[name]}")
    sent = b""
    for no, each in enumerate((extras, {"lease": [lease_id, 9]}, extras), 1):
        body = Segment(["/pub/ws"], [b"x"], each).encode()
        sent += masked(BINARY, put(0, 2, [RESERVED_KEY, pack(no), b"of a websocket..", b"", body]))
    stranger.socket.sendall(sent)
    said = stranger.hear(CLOSE)
    assert int.from_bytes(said[:2], "big") == 1008 and b"open one of your own" in said
    assert stage.leases()[found]["ttl_ms"] == before == 60_000
    done = stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/ack", json={"receipt": receipt})
    assert done.status_code == 200, done.text


def test_a_user_cannot_guess_the_lease_of_another_users_member(stage: Stage) -> None:
    """The lease's name is made with a secret. It was once a hash of public facts only, which a user could guess."""
    u = stage.unique()
    group(stage, u)
    message(stage, u)
    public = "\n".join(("chp member", u, "g", "alice", "w")).encode()
    guesses = [sha256(public).digest()[:16], *(stage_member(secret, u) for secret in (b"", b"chp members"))]
    for guess in guesses:
        assert stage.by["mallory"].set({"lease": [guess, 600_000]}) == ""
    given = stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/receive?member=w&wait=9")
    assert given.status_code == 200 and [each["value"] for each in given.json()["messages"]] == ["1"], given.text
    for guess in guesses:
        assert stage.by["mallory"].set({"unlease": guess}) == ""


def stage_member(secret: bytes, u: str) -> bytes:
    return member_of(secret, u, "g", "alice", "w")


@pytest.mark.parametrize("name", ["reader", "mallory", "other", "root"])
def test_a_user_cannot_take_or_acknowledge_messages_of_another_users_member(stage: Stage, name: str) -> None:
    u, receipt, found = of_member(stage)
    assert stage.by[name].ask(topic=u, group="g", member=bytes.fromhex(found), credit=8) == "access"
    assert stage.by[name].set({"ack": [[u, "g", bytes.fromhex(found), Receipt.of(receipt).moves]]}) in NOT_DONE
    done = stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/ack", json={"receipt": receipt})
    assert done.status_code == 200, done.text


@pytest.mark.parametrize("opened", [[], [columns.ANYBODY]])
def test_no_user_can_open_the_lease_of_an_http_member(stage: Stage, opened: list[bytes]) -> None:
    """A user that reads everything sees the lease's name in records, and the member uses the same lease again later."""
    u, receipt, found = of_member(stage)
    assert stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/nack", json={"receipt": receipt}).status_code == 200
    assert found not in stage.leases()
    for name in ASKERS:
        assert stage.by[name].set({"lease": [bytes.fromhex(found), 600_000, *opened]}) == "access"
    given = stage.http("alice", "POST", f"/v1/topics/{u}/groups/g/receive?member=w&wait=9")
    assert given.status_code == 200 and found in stage.leases(), given.text


def test_a_receipt_is_good_after_a_failover_and_at_another_gateway(stage: Stage) -> None:
    u, receipt, _ = of_member(stage)
    with Admin(ClientFile.read(stage.direct), WAIT_S) as admin:
        admin.ask(stage.pair.primary.address, "switch")
    until(lambda: stage.pair.active is stage.pair.backup, "the other server serves")
    with RunningGateway(stage.gateway.servers, "--client-file", str(stage.gate)) as second, httpx.Client(
        base_url=second.url, timeout=WAIT_S, trust_env=False, verify=False,
        headers={"Authorization": f"Bearer {TOKENS['alice']}"},
    ) as client:  # fmt: skip
        done = client.post(f"/v1/topics/{u}/groups/g/ack", json={"receipt": receipt})
        assert done.status_code == 200, done.text
