"""Tests that a replica tells each user only what the user may read, and that a revoked right ends there too.

covers: the authorizer on all ports of a replica, what a replica passes for its users, the removal of their keys
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from chp import headers
from chp.access import TOPICS
from chp.batch import Segment, decode, packb
from chp.keyfiles import KeyPair
from chp.keys import ETX, RESERVED_KEY, STX, channel_topic
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_client import Clone
from chp_client.clientfile import ClientFile
from chp_client.core.events import State
from chp_client.port.admin import Admin
from chp_server.access import keyring
from chp_server.core.updates.authorizer import VOUCHED
from chp_server.ports import subscribers
from chp_server.shell import reactor
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, until
from tests.wire import keys, test_access
from tests.wire.hand import at
from tests.wire.speaker import Speaker

NAMES = ("root", "bob", "carol", "r1")
KEYS = {name: keys.new_pair() for name in NAMES}
READER = {"read": ["/pub/", TOPICS], "write": ["/pub/"], "consume": [TOPICS]}
USERS: dict[str, Any] = {
    "root": {"admin": ["access", "status"], "read": [""], "write": [""], "consume": [""]},
    "bob": READER,
    "carol": READER,
    "r1": {"admin": ["vouch"]},
}
TOPIC_NAME = "t"
COPY: dict[str, Any] = {"from": 0, "credit": 64}
OF_TOPIC: dict[str, Any] = {"topic": TOPIC_NAME, "after": 0, "credit": 64}


class Site:
    """A pair with rules, a replica of it, and root at the pair."""

    def __init__(self, base: Path, pair: Pair, ending: ExitStack) -> None:
        self.pair, self.ending = pair, ending
        self.folders = [Path(str(server.config.keys)) for server in (pair.primary, pair.backup)]
        users = [(name, KEYS[name]) for name in NAMES[:-1]]
        self.folder = keys.of_replica(base / "r", KEYS["r1"], pair, *users)
        direct = keys.client_file(base / "direct.toml", KEYS["root"], keys.known(pair))
        self.admin = ending.enter_context(Admin(ClientFile.read(direct), WAIT_S))
        self.give(USERS)
        self.replica = ending.enter_context(
            TestServer(replica=True, upstream=",".join(pair.servers), keys=str(self.folder), name="R1")
        )
        assert self.replica.server is not None
        self.core = self.replica.server.core
        until(lambda: self.core.active and self.core.state.access.changed, "the replica is in sync")
        self.root = ending.enter_context(Clone(client_file=direct))
        self.root.set("/pub/a", b"1").wait(WAIT_S)
        self.root.set(test_access.NAME, test_access.SECRET).wait(WAIT_S)
        self.root.topic(TOPIC_NAME).publish(b"first").wait(WAIT_S)
        self.context: zmq.Context[zmq.Socket[bytes]] = ending.enter_context(zmq.Context())

    def give(self, users: dict[str, Any]) -> int:
        """Let root give new rules at the pair, and return the number at which they hold."""
        now = self.admin.ask_active("access").facts["number"]
        return int(self.admin.ask_active("access", rules={"users": users, "roles": {}}, on=now).facts["number"])

    def socket(self, kind: int, offset: int, key: KeyPair) -> zmq.Socket[bytes]:
        """Open a socket to a port of the replica."""
        made = self.ending.enter_context(keys.socket(self.context, kind, key, KEYS["r1"].public))
        made.connect(at(self.replica.address, offset))
        return made

    def speaker(self, name: str) -> Speaker:
        """Return a user that talks to the replica."""
        made = Speaker(self.replica.address, KEYS["r1"].public, name, KEYS[name], self.context)
        self.ending.callback(made.close)
        return made

    def client_file(self, base: Path, name: str) -> Path:
        """Write a client file of a user that knows the replica alone."""
        return keys.client_file(base / f"{name}.toml", KEYS[name], {self.replica.address: KEYS["r1"].public})

    def tell(self, text: bytes) -> None:
        """Let root set a key and publish a message, and wait until the replica has them."""
        self.root.set("/pub/told", text).wait(WAIT_S)
        self.root.topic(TOPIC_NAME).publish(text).wait(WAIT_S)
        self.follows()

    def follows(self) -> None:
        """Wait until the replica has what the pair has now."""
        assert self.pair.active is not None and self.pair.active.server is not None
        here = self.pair.active.server.core.state.number
        until(lambda: self.core.state.number >= here, "the replica has all of it")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        keys.pair_with_keys(tmp_path, *KEYS.items()) as pair,
        ExitStack() as ending,
    ):
        yield Site(tmp_path, pair, ending)


class Open:
    """The open connections of a user to the replica, each of which has been used, and what they hear."""

    def __init__(self, site: Site, name: str) -> None:
        key, lease = KEYS[name], name.encode().ljust(16, b"-")
        self.speaker = site.speaker(name)
        self.channel = site.socket(zmq.SUB, 1, key)
        self.channel.subscribe(channel_topic("/pub/"))
        self.reader, self.member = (site.socket(zmq.DEALER, 0, key) for _ in range(2))
        assert self.speaker.set({"group": [TOPIC_NAME, name, {"start": 0}]}) == ""
        assert self.speaker.set({"lease": [lease, 600_000], "join": [TOPIC_NAME, name, lease, "m"]}) == ""
        self._of_member: dict[str, Any] = {"topic": TOPIC_NAME, "group": name, "member": lease, "credit": 64}
        self.ask()
        site.tell(b"before")
        self.hears(b"before")

    def ask(self, no: int = 1) -> None:
        """Ask for the messages of the topic, as a reader and as a member of a group."""
        ask(self.reader, no=no, **OF_TOPIC)
        ask(self.member, no=no, **self._of_member)

    def hears(self, text: bytes) -> None:
        """Wait until a text has come by each socket."""
        for name, socket in {"channel": self.channel, "reader": self.reader, "member": self.member}.items():
            until(partial(self.heard, text, socket), f"the {name} hears it")

    def heard(self, text: bytes, *sockets: zmq.Socket[bytes]) -> bool:
        """Return True if a text comes by a socket, without waiting."""
        found = False
        for socket in sockets or (self.channel, self.reader, self.member):
            while socket.poll(0):
                found |= text in b"".join(socket.recv_multipart())
        return found

    def hears_nothing_of(self, text: bytes) -> None:
        """Check that a text comes by no socket."""
        time.sleep(test_access.QUIET_S)
        assert not self.heard(text)


def ask(socket: zmq.Socket[bytes], subject: bytes = b"", no: int = 1, **options: Any) -> None:
    """Ask a question on P; raise `zmq.Again` if the server refuses the connection."""
    socket.send_multipart([ICANHAZ, subject, packb({"chp": 4, "id": no, **options})], zmq.NOBLOCK)


# -- what a user may not read


def test_a_replica_tells_a_user_nothing_that_the_user_may_not_read(site: Site) -> None:
    dealer = site.socket(zmq.DEALER, 0, KEYS["bob"])
    subs = [site.socket(zmq.SUB, 1, KEYS["bob"]) for _ in test_access.TOPICS]
    for sub, topic in zip(subs, test_access.TOPICS, strict=True):
        sub.subscribe(topic)
        header, _ = decode(sub.recv_multipart()[4])
        assert isinstance(header, headers.Refused) and header.code == "access", topic
    subjects = [(subject, options) for subject in (b"", b"/", b"/secret/") for options in test_access.QUESTIONS]
    commands, at = ("status", "clients", "access", "leases", "switch", "follow", "nonsense"), site.core.state.proof()
    subjects += [(STX + command.encode() + ETX, {"at": at}) for command in commands]
    for no, (subject, options) in enumerate(subjects, 1):
        ask(dealer, subject, no, **options)
        assert dealer.poll(int(WAIT_S * 1000)), (subject, options)
        frames = dealer.recv_multipart()
        assert decode(frames[4])[0][:2] == (no, "access"), (subject, options)
        test_access.tells_nothing([frames])
    site.root.set(test_access.NAME, test_access.SECRET).wait(WAIT_S)
    site.follows()
    time.sleep(test_access.QUIET_S)
    for socket in (dealer, *subs):
        test_access.tells_nothing(test_access.heard(socket, 0))


def test_a_client_of_a_replica_cannot_speak_for_another_user(site: Site) -> None:
    dealer, pub = site.socket(zmq.DEALER, 0, KEYS["bob"]), site.socket(zmq.PUB, 2, KEYS["bob"])
    speaker, before = site.speaker("bob"), site.core.committer.counts["garbage_collector"]
    body = Segment(["/secret/forged"], [b"x"], None).encode()
    forged = [VOUCHED, b"root", RESERVED_KEY, pack(1), b"session of root.", b"", body]
    counts = site.core.committer.counts
    until(lambda: pub.send_multipart(forged) is None and counts["garbage_collector"] > before, "it is counted")
    for options in (COPY, {**OF_TOPIC, "topic": "other"}):
        dealer.send_multipart([VOUCHED, b"root", ICANHAZ, b"", packb({"chp": 4, "id": 1, **options})])
    assert speaker.set({}, "/pub/honest") == ""
    site.follows()
    assert "/pub/honest" in site.core.state.map.values and "/secret/forged" not in site.core.state.map.values
    assert not test_access.heard(dealer)


# -- what is taken away


def test_a_right_that_is_taken_away_at_the_pair_ends_at_the_replica(site: Site) -> None:
    bob, carol = Open(site, "bob"), Open(site, "carol")
    dealer = site.speaker("bob")
    assert dealer.ask(b"/pub/", **COPY) == ""
    number = site.give({name: entry for name, entry in USERS.items() if name != "bob"})
    assert bob.speaker.set({}, "/pub/x") == "access"
    until(lambda: site.core.state.access.changed == number, "the replica has the rules")
    # When rules change, a server ends the answers to all readers of topics. Clients ask again by themselves.
    bob.ask(2)
    carol.ask(2)
    site.tell(b"after")
    carol.hears(b"after")
    bob.hears_nothing_of(b"after")
    for options in (COPY, {**COPY, "inspect": True}, {**COPY, "feed": True}, {**COPY, "image": 0}, OF_TOPIC):
        assert dealer.ask(b"" if "topic" in options else b"/pub/", **options) == "access", options
    sub = site.socket(zmq.SUB, 1, KEYS["bob"])
    sub.subscribe(channel_topic("/pub/"))
    header, _ = decode(sub.recv_multipart()[4])
    assert isinstance(header, headers.Refused) and header.code == "access"
    site.give(USERS)
    site.follows()
    assert dealer.ask(b"/pub/", **COPY) == dealer.ask(**OF_TOPIC) == ""


def test_a_removed_key_is_refused_by_the_replica(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reactor, "HOUSEKEEPING_S", 0.1)
    monkeypatch.setattr(keyring, "AGAIN_S", 0.5)
    monkeypatch.setattr(subscribers, "IDLE_S", 0.1)
    bob, carol = Open(site, "bob"), Open(site, "carol")
    zap_handler = site.replica.server.sockets.zap_handler  # type: ignore[union-attr]
    assert zap_handler is not None
    for folder in (site.folder, *site.folders):
        (folder / "clients" / "bob.pub").unlink()
    until(lambda: zap_handler.removals, "the replica sees that the key is gone")
    # A member that acknowledges nothing gets few messages until it asks again.
    carol.ask(2)
    site.tell(b"after")
    carol.hears(b"after")
    bob.hears_nothing_of(b"after")
    dealer, pub = site.socket(zmq.DEALER, 0, KEYS["bob"]), site.socket(zmq.PUB, 2, KEYS["bob"])
    body = Segment(["/pub/x"], [b"x"], None).encode()
    for no in range(9, 14):
        for socket in (dealer, bob.reader, bob.member):
            with suppress(zmq.Again):
                ask(socket, b"/pub/", no, **COPY)
        for socket in (pub, bob.speaker.pub):
            socket.send_multipart([RESERVED_KEY, pack(no), bob.speaker.session, b"", body])
    bob.hears_nothing_of(b"after")
    assert not test_access.heard(dealer, 0) and "/pub/x" not in site.core.state.map.values


def test_a_replica_serves_only_while_it_has_the_right_to_vouch(site: Site, tmp_path: Path) -> None:
    with Clone(subtree="/pub/", client_file=site.client_file(tmp_path, "bob")) as bob:
        bob.wait_until_synced(WAIT_S)
        site.give({name: entry for name, entry in USERS.items() if name != "r1"})
        site.root.set("/pub/after", b"1").wait(WAIT_S)
        until(lambda: bob.state is not State.SYNCED and not site.core.active, "the replica serves no more")
        assert "/pub/after" not in bob and "/pub/after" not in site.core.state.map.values
        ticket = bob.set("/pub/x", b"2")
        site.give(USERS)
        until(lambda: "/pub/after" in bob, "the replica serves again")
        ticket.wait(WAIT_S)
