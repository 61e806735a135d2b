"""Tests of access rules on real sockets: a secret must not get through any port or command (SPEC.md, section 36).

covers: the gate at P, P+1, P+2 of servers with keys, refusals that only the denied one hears, revocation, `Refused`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from chp import headers
from chp.batch import Segment, decode, packb
from chp.keyfiles import KeyPair
from chp.keys import ETX, RESERVED_KEY, STX, channel_topic, public_session, session_topic
from chp.messages import ICANHAZ, kvset
from chp.numbers import pack
from chp_client import Clone, Refused
from chp_client.clientfile import ClientFile
from chp_client.core.events import State
from chp_client.port.admin import Admin, AdminReply
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, until
from tests.wire import keys
from tests.wire.hand import at

QUIET_S = 0.5
SECRET, NAME = b"do-not-tell-anybody", "/secret/name-of-it"
ROOT, BOB = keys.new_pair(), keys.new_pair()
RULES: dict[str, Any] = {
    "roles": {},
    "users": {
        "root": {"admin": ["access", "status", "switch", "backup", "leases"], "read": [""], "write": [""]},
        "bob": {"read": ["/pub/"], "write": ["/pub/"]},
    },
}
WITHOUT_BOB = {"roles": {}, "users": {"root": RULES["users"]["root"]}}


class Who:
    """A pair with rules, and users of it."""

    def __init__(self, pair: Pair, base: Path) -> None:
        self.pair, self.base = pair, base
        known = keys.known(pair)
        self.files = {
            name: keys.client_file(base / f"{name}.toml", key, known) for name, key in (("root", ROOT), ("bob", BOB))
        }
        self.known = known

    def clone(self, name: str, **options: Any) -> Clone:
        """Return a user's Clone."""
        return Clone(client_file=self.files[name], **options)

    def give(self, rules: dict[str, Any]) -> int:
        """Let root give new rules, and return the number at which they hold."""
        with Admin(ClientFile.read(self.files["root"]), WAIT_S) as admin:
            now = admin.ask(self.pair.primary.address, "access").facts["number"]
            return int(admin.ask(self.pair.primary.address, "access", rules=rules, on=now).facts["number"])

    @contextmanager
    def socket(self, kind: int, offset: int, key: KeyPair = BOB) -> Iterator[zmq.Socket[bytes]]:
        """Open a raw socket to the primary."""
        address = self.pair.primary.address
        with zmq.Context() as context, keys.socket(context, kind, key, self.known[address]) as socket:
            socket.connect(at(address, offset))
            yield socket


@contextmanager
def told_a_secret(base: Path) -> Iterator[Who]:
    """Start a pair where bob may read and write /pub/, and root has set a secret."""
    with keys.pair_with_keys(base, ("root", ROOT), ("bob", BOB)) as pair:
        who = Who(pair, base)
        who.give(RULES)
        with who.clone("root") as root:
            root.wait_until_synced(WAIT_S)
            root.set(NAME, SECRET).wait(WAIT_S)
            root.set("/pub/a", b"1").wait(WAIT_S)
        yield who


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Who]:
    """Start one pair for all tests that change neither its rules nor its servers."""
    with told_a_secret(tmp_path_factory.mktemp("told")) as made:
        yield made


@pytest.fixture
def who(tmp_path: Path) -> Iterator[Who]:
    """Start a pair for one test."""
    with told_a_secret(tmp_path) as made:
        yield made


def heard(socket: zmq.Socket[bytes], seconds: float = QUIET_S) -> list[list[bytes]]:
    """Return all messages that come within a time."""
    out, until_s = [], time.monotonic() + seconds
    while socket.poll(max(0, int((until_s - time.monotonic()) * 1000))):
        out.append(socket.recv_multipart())
    return out


def tells_nothing(messages: list[list[bytes]]) -> None:
    """Check that messages have nothing of the secret or of its key's name."""
    for frames in messages:
        for frame in frames:
            assert SECRET not in frame and b"name-of-it" not in frame, frame


def writes(who: Who) -> None:
    """Let root write the secret again, so that a listener would hear it."""
    with who.clone("root", subtree=None) as root:
        root.set(NAME, SECRET).wait(WAIT_S)


TOPICS = [
    channel_topic("/secret/"), channel_topic(""), channel_topic("/"), b"", b"/", b"/secret/", b"/sec", NAME.encode(),
    STX, STX + b"/sec", STX + b"/secret/", STX + b"@", STX + ETX + b"x", b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("topic", TOPICS)
def test_a_subscription_beyond_the_users_rights_is_refused(told: Who, topic: bytes) -> None:
    with told.socket(zmq.SUB, 1) as sub:
        sub.subscribe(topic)
        refusal = sub.recv_multipart()
        assert refusal[0][: len(topic)] == topic and len(refusal[0]) == len(topic) + 8
        header, _ = decode(refusal[4])
        assert isinstance(header, headers.Refused) and header.code == "access", header
        writes(told)
        tells_nothing(heard(sub))


def test_denied_subscriptions_do_not_disturb_the_channel_of_another_user(who: Who) -> None:
    with who.clone("root") as root:
        root.wait_until_synced(WAIT_S)
        for _ in range(3):
            with who.socket(zmq.SUB, 1) as sub:
                sub.subscribe(channel_topic(""))
                sub.recv_multipart()
                sub.unsubscribe(channel_topic(""))
                sub.subscribe(channel_topic(""))
                sub.recv_multipart()
        before = root.stats.get("subscribed_again", 0)
        with who.clone("root", subtree=None) as other:
            other.set("/pub/b", b"2").wait(WAIT_S)
        until(lambda: root.get("/pub/b") == b"2", "root's channel goes on")
        assert root.state is State.SYNCED and root.stats.get("subscribed_again", 0) == before


QUESTIONS: list[dict[str, Any]] = [
    {"from": 0, "credit": 8},
    {"from": 0, "credit": 8, "inspect": True},
    {"from": 1 << 40 | 2, "feed": True, "credit": 8},
    {"from": 0, "feed": True, "probe": 10},
    {"from": 0, "image": 0},
    {"from": 0, "image": 1 << 48 | 1, "part": 0},
]


@pytest.mark.parametrize("options", QUESTIONS)
@pytest.mark.parametrize("subtree", ["", "/", "/secret/"])
def test_questions_beyond_the_users_rights_are_refused(told: Who, options: dict[str, Any], subtree: str) -> None:
    with told.socket(zmq.DEALER, 0) as dealer:
        dealer.send_multipart([ICANHAZ, subtree.encode(), packb({"chp": 4, "id": 5, **options})])
        answer = dealer.recv_multipart()
        header, _ = decode(answer[4])
        assert header[:2] == (5, "access"), header
        tells_nothing([answer, *heard(dealer)])


def test_a_part_of_an_image_has_no_keys_outside_of_the_readers_subtree(told: Who) -> None:
    asks = {"chp": 5, "id": 5, "from": 0, "credit": 8}
    with told.socket(zmq.DEALER, 0, ROOT) as root, told.socket(zmq.DEALER, 0) as bob:
        root.send_multipart([ICANHAZ, b"", packb({**asks, "image": 0})])
        header, _ = decode(root.recv_multipart()[4])
        assert isinstance(header, headers.Reply)
        facts = header.facts
        part = {**asks, "image": facts["number"], "proof": [facts["store"], facts["opener"]], "part": 0}
        root.send_multipart([ICANHAZ, b"", packb(part)])
        root.recv_multipart()
        for prefix in ({}, {"prefix": ""}, {"prefix": "/secret/"}):
            bob.send_multipart([ICANHAZ, b"/pub/", packb({**part, **prefix})])
            tells_nothing(came := heard(bob))
            assert came, "he is answered"


def test_a_chp_1_reader_gets_only_the_subtree_it_may_read(told: Who) -> None:
    with told.socket(zmq.DEALER, 0) as dealer:
        for subtree in (b"", b"/secret/"):
            dealer.send_multipart([ICANHAZ, subtree])
        tells_nothing(heard(dealer))
        dealer.send_multipart([ICANHAZ, b"/pub/"])
        assert dealer.recv_multipart()[0] == b"/pub/a"


@pytest.mark.parametrize("command", ["status", "switch", "leases", "backup", "restore", "access", "nonsense"])
def test_admin_commands_of_a_user_without_admin_rights_are_refused(told: Who, command: str) -> None:
    with told.socket(zmq.DEALER, 0) as dealer:
        dealer.send_multipart([ICANHAZ, STX + command.encode() + ETX, packb({"chp": 4, "id": 5, "rules": {}, "on": 0})])
        header, _ = decode(dealer.recv_multipart()[4])
        assert isinstance(header, headers.Refused) and header[:2] == (5, "access") and repr(command) in header.detail


def test_a_user_cannot_subscribe_to_the_session_of_another_user(told: Who) -> None:
    session = b"root's session.."
    with told.socket(zmq.PUB, 2, ROOT) as pub, told.socket(zmq.SUB, 1, ROOT) as own, told.socket(zmq.SUB, 1) as sub:
        topic = session_topic(public_session(session))
        own.subscribe(topic)
        own.recv_multipart()
        body = Segment([NAME], [b"x"], {"c": [[0], [1]]}).encode()
        sub.subscribe(topic)
        header, _ = decode(sub.recv_multipart()[4])
        assert isinstance(header, headers.Refused) and header.code == "access"
        frames = [RESERVED_KEY, pack(1), session, b"", body]
        until(lambda: pub.send_multipart(frames) is None and own.poll(100), "it is refused")
        assert any(NAME.encode() in frame for frames in heard(own) for frame in frames), "its user hears why"
        tells_nothing(heard(sub))


def test_access_rules_apply_to_sets_of_chp_1(who: Who) -> None:
    with who.socket(zmq.PUB, 2) as pub, who.clone("root") as root:
        root.wait_until_synced(WAIT_S)

        def sent() -> bool:
            pub.send_multipart(kvset("/secret/mine", b"x", uuid=b"u" * 16))
            pub.send_multipart(kvset("/pub/mine", b"x", uuid=b"v" * 16))
            return "/pub/mine" in root

        until(sent, "what he may write is there")
        assert "/secret/mine" not in root


def test_a_denied_clone_is_refused_at_once_and_an_allowed_one_works(who: Who) -> None:
    for options in ({}, {"subtree": "/secret/"}, {"subtrees": ["/pub/", "/secret/"]}):
        with who.clone("bob", **options) as bob:
            began = time.monotonic()
            with pytest.raises(Refused, match="ask root") as refused:
                bob.wait_until_synced(WAIT_S)
            assert refused.value.code == "access"
            assert time.monotonic() - began < WAIT_S / 2
            tells_nothing([[repr(dict(bob)).encode()]])
    with who.clone("bob", subtree="/pub/") as bob:
        bob.wait_until_synced(WAIT_S)
        bob.set("/pub/bob", b"1").wait(WAIT_S)
    with who.clone("bob", subtree=None) as bob:
        with pytest.raises(Refused, match="may not write '/secret/x'") as refused:
            bob.set("/secret/x", b"1").wait(WAIT_S)
        assert refused.value.code == "access"


def test_a_revocation_cuts_readers_and_refuses_the_next_set(who: Who) -> None:
    with who.clone("bob", subtree="/pub/") as bob, who.clone("root") as root:
        bob.wait_until_synced(WAIT_S)
        root.wait_until_synced(WAIT_S)
        who.give(WITHOUT_BOB)
        with pytest.raises(Refused, match="may not write"):
            bob.set("/pub/x", b"1").wait(WAIT_S)
        until(lambda: bob.state is not State.SYNCED, "he is cut off")
        root.set("/pub/later", SECRET).wait(WAIT_S)
        with pytest.raises(Refused, match="may not read"):
            bob.wait_until_synced(WAIT_S)
        assert bob.get("/pub/later") is None and root.state is State.SYNCED
        who.give(RULES)
        until(lambda: bob.state is State.SYNCED, "he asks again, and gets what he may")
        assert bob["/pub/later"] == SECRET


def test_acknowledged_rules_hold_after_the_active_dies(who: Who) -> None:
    who.give(WITHOUT_BOB)
    who.pair.primary.kill()
    with who.clone("root") as root, who.clone("bob", subtree="/pub/") as bob:
        root.wait_until_synced(WAIT_S)
        with pytest.raises(Refused, match="may not read"):
            bob.wait_until_synced(WAIT_S)


def test_a_store_with_rules_is_not_served_without_keys(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("root", ROOT))
    store = f"sqlite:{tmp_path / 'journal'}"
    with TestServer(keys=str(a), store=store) as server:
        file = keys.client_file(tmp_path / "root.toml", ROOT, {server.address: keys.public_of(a)})
        with Admin(ClientFile.read(file), WAIT_S) as admin:
            admin.ask(server.address, "access", rules=WITHOUT_BOB, on=0)
    with pytest.raises(Exception, match="start with --keys"):
        TestServer(store=store).start()


def test_a_restore_leaves_the_rules_as_they_are_on_both_servers(who: Who) -> None:
    """A restore does not give bob a right back that he lost after the backup."""
    all_of_it = {**RULES["users"]["root"], "admin": [*RULES["users"]["root"]["admin"], "restore"]}
    who.give({**RULES, "users": {**RULES["users"], "root": all_of_it}})
    with Admin(ClientFile.read(who.files["root"]), WAIT_S) as admin:
        admin.ask_active("backup", name="copy.db")
        number = who.give({"roles": {}, "users": {"root": all_of_it}})
        admin.ask_active("restore", name="copy.db")
        told: list[dict[str, Any]] = []

        def same() -> bool:
            told[:] = [answer.facts for answer in admin.ask_all("access").values() if isinstance(answer, AdminReply)]
            return len(told) == 2 and all(facts["number"] == number for facts in told)

        until(same, "both say so")
    assert all(facts["rules"]["users"].keys() == {"root"} for facts in told)
    with who.clone("bob", subtree="/pub/") as bob, pytest.raises(Refused, match="may not read"):
        bob.wait_until_synced(WAIT_S)
