"""Tests of servers with keys: a client without a known key is cut at the handshake on each port (SPEC.md, section 25).

covers: --keys, --plain-bind, the peers' keys, adding and removing a user while the server runs.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from chp import keyfiles
from chp.keyfiles import KeyPair
from chp_client import Clone
from chp_server.ports import subscribers
from chp_server.testing import Pair, TestServer, free_port
from tests.talk import until
from tests.wire import keys
from tests.wire.classic import ClassicClient
from tests.wire.hand import at
from tests.wire.keys import ALICE

GENEROUS_MS = 30_000
STRANGER = keys.new_pair()
# The kinds of a client's sockets at P, P+1, P+2 and P+3.
KINDS = (zmq.DEALER, zmq.SUB, zmq.XPUB, zmq.DEALER)
DONE = {zmq.EVENT_HANDSHAKE_SUCCEEDED: "in"}
# libzmq reports "protocol" if the other end uses another mechanism, or "no detail" if it sees the connection end first.
NOT_OURS = {"protocol", "no detail"}
FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def directory(server: TestServer) -> Path:
    """Return the directory of a server's keys."""
    return Path(str(server.config.keys))


def handshake(server: TestServer, offset: int, key: KeyPair | None, server_key: bytes | None = None) -> str:
    """Return how a connection to P+offset begins: "in", "auth", "protocol" or "no detail"."""
    known = keys.public_of(directory(server)) if server_key is None else server_key
    return first_event(at(server.address, offset), KINDS[offset], key, known)


def first_event(endpoint: str, kind: int, key: KeyPair | None, server_key: bytes) -> str:
    """Return libzmq's first event of a handshake."""
    told = [*DONE.items(), *zip(FAILED, ("auth", "protocol", "no detail"), strict=True)]
    names = {int(event): name for event, name in told}
    with zmq.Context() as context, keys.socket(context, kind, key, server_key) as socket:
        monitor = socket.get_monitor_socket(sum(names))
        socket.connect(endpoint)
        try:
            assert monitor.poll(GENEROUS_MS), f"no handshake at {endpoint}"
            return names[parse_monitor_message(monitor.recv_multipart())["event"]]
        finally:
            socket.disable_monitor()
            monitor.close(0)


@pytest.mark.parametrize("offset", range(4))
def test_a_client_without_a_known_key_is_cut_off_on_every_port(keyed_pair: Pair, offset: int) -> None:
    server = keyed_pair.primary
    assert handshake(server, offset, None) in NOT_OURS
    assert handshake(server, offset, STRANGER) == "auth"
    # Here alice expects the key of another server.
    assert handshake(server, offset, ALICE, keys.new_pair().public) == "no detail"


def test_users_and_the_peer_are_let_in_only_at_their_own_ports(keyed_pair: Pair) -> None:
    assert [handshake(keyed_pair.primary, i, ALICE) for i in range(4)] == ["in", "in", "in", "auth"]
    text = (directory(keyed_pair.backup) / "server.secret").read_text()
    peer = keyfiles.read_secret(text)
    assert [handshake(keyed_pair.primary, i, peer) for i in range(4)] == ["auth", "auth", "auth", "in"]


def test_handshakes_without_a_known_key_are_counted(keyed_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "IDLE_S", 0.1)
    server = keyed_pair.primary.server
    assert server is not None
    handshake(keyed_pair.primary, 0, STRANGER)
    handshake(keyed_pair.primary, 1, None)
    until(lambda: server.core.committer.counts["unknown_keys"] == 1, "the unknown key is counted")
    until(lambda: server.core.committer.counts["handshakes_failed"] >= 1, "the client without one too")


def test_a_pair_with_a_wrong_peer_key_does_not_get_in_sync(tmp_path: Path) -> None:
    a, b = keys.pair_of_directories(tmp_path)
    (b / "peer.pub").write_text((b / "server.pub").read_text().replace(keys.public_of(b).decode(), stranger_text()))
    p, q = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    with ExitStack() as ending:
        primary = ending.enter_context(TestServer(role="primary", bind=p, peer=q, keys=str(a)))
        backup = ending.enter_context(TestServer(role="backup", bind=q, peer=p, keys=str(b)))
        assert primary.server and backup.server
        core = backup.server.core
        until(
            lambda: core.committer.counts["unknown_keys"] > 0, "the backup does not know the key that the primary shows"
        )
        assert not core.pair.in_sync()


def stranger_text() -> str:
    """Return a public key that belongs to no user."""
    return STRANGER.public.decode()


def test_an_added_user_is_let_in_and_a_removed_user_is_refused(keyed_pair: Pair) -> None:
    bob = keys.new_pair()
    assert handshake(keyed_pair.primary, 0, bob) == "auth"
    keys.admit(directory(keyed_pair.primary), "bob", bob)
    assert handshake(keyed_pair.primary, 0, bob) == "in"
    (directory(keyed_pair.primary) / "clients" / "bob.pub").unlink()
    assert handshake(keyed_pair.primary, 0, bob) == "auth"
    assert handshake(keyed_pair.primary, 0, ALICE) == "in"


def test_clients_without_keys_connect_at_the_plain_ports(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path)
    plain = f"tcp://127.0.0.1:{free_port()}"
    with TestServer(keys=str(a), plain_bind=plain) as server:
        with ClassicClient([plain]) as client, Clone([plain]) as clone:
            client.until_ready()
            clone.wait_until_synced(30)
            client.set(b"/a", b"1")
            client.until(lambda: client.map == {b"/a": b"1"})
            clone.set("/b", b"2").wait(30)
            client.until(lambda: client.map == {b"/a": b"1", b"/b": b"2"})
        assert {handshake(server, i, None) for i in range(3)} <= NOT_OURS
        assert first_event(plain, zmq.DEALER, STRANGER, keys.public_of(a)) in NOT_OURS


def test_an_ipc_client_needs_no_key(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path)
    folder = tmp_path / "run"
    with TestServer(keys=str(a), ipc=str(folder)) as server:
        port = server.address.rpartition(":")[2]
        with Clone([f"ipc://{folder}/{port}"]) as clone:
            clone.set("/a", b"1").wait(30)
            assert clone["/a"] == b"1"
