"""Tests that a key whose file is removed is refused on its open connections too (SPEC.md, section 25).

covers: `Keyring.look`; ZapHandler, sockets.py, replies.py and subscription_authorizer.py on P, P+1 and P+2
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from chp import keyfiles
from chp.batch import Segment, decode, packb
from chp.headers import Messages
from chp.keys import RESERVED_KEY, channel_topic
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp_client import Clone
from chp_client.clientfile import ClientFile
from chp_server.access import keyring
from chp_server.ports import subscribers
from chp_server.shell import reactor
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until
from tests.wire import keys
from tests.wire.hand import at

WAIT_MS = 30_000
ALICE, SECOND, ROOT = keys.new_pair(), keys.new_pair(), keys.new_pair()


class Open:
    """The connections of one key to one server: P, P+1 and P+2, each of which has been used."""

    def __init__(self, ending: ExitStack, keyed_server: TestServer, pair: keyfiles.KeyPair, no: int) -> None:
        context = ending.enter_context(zmq.Context())
        public = keys.public_of(Path(str(keyed_server.config.keys)))
        self.snapshot, self.updates, self.collector = (
            ending.enter_context(keys.socket(context, kind, pair, public)) for kind in (zmq.DEALER, zmq.SUB, zmq.XPUB)
        )
        self._session, self._no, self._id = bytes([no]) * 12 + bytes(4), 0, 0
        for offset, socket in enumerate((self.snapshot, self.updates, self.collector)):
            socket.connect(at(keyed_server.address, offset))
        self.updates.subscribe(channel_topic("/"))
        assert self.collector.poll(WAIT_MS) and self.collector.recv() == b"\x01"

    def ask(self, **options: object) -> None:
        """Send a question on P."""
        self._id += 1
        self.snapshot.send_multipart([ICANHAZ, b"/", packb({"chp": 4, "id": self._id, **options})])

    def is_answered(self) -> bool:
        """Return True if a question on P is answered."""
        self.ask(**{"from": 0, "credit": 8})
        if not self.snapshot.poll(2000):
            return False
        while self.snapshot.poll(200):
            self.snapshot.recv_multipart()
        return True

    def put(self, key: str, value: bytes) -> None:
        """Send a KVSET on P+2."""
        self._no += 1
        body = Segment([key], [value], None).encode()
        self.collector.send_multipart([RESERVED_KEY, pack(self._no), self._session, b"", body])

    def hears(self, of: str, timeout_ms: int = 2000) -> bool:
        """Return True if a BATCH with a key comes on P+1."""
        while self.updates.poll(timeout_ms):
            if of.encode() in b"".join(self.updates.recv_multipart()):
                return True
        return False


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """Return a stack that ends with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def keyed_server(ending: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestServer:
    """Start a server that knows root and two keys of alice, and looks at its keys and readers often."""
    monkeypatch.setattr(reactor, "HOUSEKEEPING_S", 0.1)
    monkeypatch.setattr(keyring, "AGAIN_S", 0.5)
    monkeypatch.setattr(subscribers, "IDLE_S", 0.1)
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE), ("alice.2", SECOND), ("root", ROOT))
    return ending.enter_context(TestServer(keys=str(a)))


def clients(keyed_server: TestServer) -> Path:
    return Path(str(keyed_server.config.keys)) / "clients"


def remove(keyed_server: TestServer, name: str) -> None:
    """Delete a user's key file, and wait until the server has seen that."""
    assert keyed_server.server is not None and keyed_server.server.sockets.zap_handler is not None
    zap_handler = keyed_server.server.sockets.zap_handler
    before = zap_handler.removals
    (clients(keyed_server) / f"{name}.pub").unlink()
    until(lambda: zap_handler.removals > before, "the server sees that the key is gone")


@pytest.fixture
def root(ending: ExitStack, keyed_server: TestServer, tmp_path: Path) -> Clone:
    """Open a Clone of root."""
    path = keys.client_file(
        tmp_path / "root.secret", ROOT, {keyed_server.address: keys.public_of(clients(keyed_server).parent)}
    )
    clone = ending.enter_context(Clone(ClientFile.read(path)))
    clone.wait_until_synced(WAIT_S)
    return clone


def test_a_removed_key_is_refused_on_each_port_and_the_users_other_key_goes_on(
    ending: ExitStack, keyed_server: TestServer, root: Clone
) -> None:
    one, other = Open(ending, keyed_server, ALICE, 1), Open(ending, keyed_server, SECOND, 2)
    for no, each in enumerate((one, other)):
        each.put(f"/before/{no}", b"1")
        until(lambda no=no: f"/before/{no}" in root, "the set is done", WAIT_S)  # type: ignore[misc]
        assert each.is_answered() and each.hears(f"/before/{no}")
    remove(keyed_server, "alice")
    one.put("/after/0", b"1")
    other.put("/after/1", b"1")
    until(lambda: "/after/1" in root, "the other key's set is done", WAIT_S)
    root.set("/after/root", b"1").wait(WAIT_S)
    assert other.hears("/after/root") and other.is_answered()
    assert not one.hears("/after/", 500) and not one.is_answered()
    assert "/after/0" not in root


def test_a_removed_key_ends_the_reading_of_a_topic(ending: ExitStack, keyed_server: TestServer, root: Clone) -> None:
    """A reader of a topic with enough credit sends nothing more. So the server has to end the reading by itself."""
    root.topic("t").publish(b"first").wait(WAIT_S)
    one = Open(ending, keyed_server, ALICE, 1)
    one.ask(topic="t", after=0, credit=64)
    assert one.snapshot.poll(WAIT_MS)
    remove(keyed_server, "alice")
    root.topic("t").publish(b"second").wait(WAIT_S)
    said = b""
    while one.snapshot.poll(2000):
        frames = one.snapshot.recv_multipart()
        assert type(decode(frames[-1])[0]) is Messages
        said += b"".join(frames)
    assert b"first" in said and b"second" not in said


def test_an_old_connection_is_refused_after_its_key_moves_to_another_name(
    ending: ExitStack, keyed_server: TestServer, root: Clone
) -> None:
    one = Open(ending, keyed_server, ALICE, 1)
    assert one.is_answered()
    remove(keyed_server, "alice")
    keys.admit(clients(keyed_server).parent, "carol", ALICE)
    one.put("/after/0", b"1")
    again = Open(ending, keyed_server, ALICE, 3)
    again.put("/after/2", b"1")
    until(lambda: "/after/2" in root, "carol is let in", WAIT_S)
    assert "/after/0" not in root


def test_overwriting_a_key_file_removes_the_old_key(ending: ExitStack, keyed_server: TestServer, root: Clone) -> None:
    one = Open(ending, keyed_server, ALICE, 1)
    assert one.is_answered() and keyed_server.server is not None
    (clients(keyed_server) / "alice.pub").write_text(keyfiles.public_text("alice", keys.new_pair().public))
    until(lambda: keyed_server.server.core.committer.counts["subscribers_cut"], "its subscription is cut")  # type: ignore[union-attr]
    assert not one.is_answered()


def test_messages_by_a_removed_key_are_counted(ending: ExitStack, keyed_server: TestServer, root: Clone) -> None:
    one = Open(ending, keyed_server, ALICE, 1)
    assert one.is_answered() and keyed_server.server is not None
    core = keyed_server.server.core
    remove(keyed_server, "alice")
    one.put("/after/0", b"1")
    until(lambda: core.committer.counts["removed_keys"], "what came by it is counted")
