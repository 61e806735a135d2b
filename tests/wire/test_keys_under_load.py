"""Tests of keys that change under load: no set is lost, and no copy stays STALE (SPEC.md, section 25).

covers: rotation of a server's and of a client's key; invalid handshakes and ZAP questions; reserved names;
`chp check --against` of servers that have keys.
"""

from __future__ import annotations

import random
import socket as sockets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import zmq

from chp import keyfiles
from chp_client import Clone
from chp_client.clientfile import ClientFile
from chp_client.core.events import State
from chp_client.errors import Refused
from chp_client.port.admin import Admin
from chp_server.access.keyring import Keyring
from chp_server.access.zap import CLIENTS, ENDPOINT, LOCAL, PEER, ZapHandler
from chp_server.exits import CannotStart
from chp_server.testing import Pair, TestServer
from chp_server.tools.against import NoContents, of_server
from tests.talk import WAIT_S, until
from tests.wire import keys

# A copy may be stale for at most this many seconds. On an idle machine it is stale for two seconds. A copy that does
# not heal would be stale for longer.
STALE_S = 10.0
ALICE = keys.new_pair()


class Load:
    """A writer that sets all the time, and the longest time that copies were stale."""

    def __init__(self, writer: Clone, readers: list[Clone]) -> None:
        self._writer, self._readers = writer, readers
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked: dict[str, bytes] = {}
        self.stale_s = 0.0

    def _run(self) -> None:
        no = 0
        while not self._ending.is_set():
            batch = {f"/load/{no + i}": b"%d" % (no + i) for i in range(20)}
            self._writer.set_many(batch).wait(WAIT_S)
            self.acked |= batch
            no += 20
            now = [reader.staleness_s for reader in self._readers if reader.state is not State.SYNCED]
            self.stale_s = max([self.stale_s, *(found for found in now if found is not None)])

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Run the writer for the time of the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()

    def goes_on(self, more: int = 200) -> None:
        """Wait until this many more sets are acknowledged."""
        wanted = len(self.acked) + more
        until(lambda: len(self.acked) >= wanted, "sets are acknowledged")

    def nothing_is_lost(self) -> None:
        """Check that each copy has all acknowledged sets."""
        for reader in self._readers:
            until(lambda reader=reader: self.acked.items() <= dict(reader).items(), "the copy has everything")  # type: ignore[misc]


def pair_with_keys(base: Path) -> tuple[Pair, Path, Path]:
    """Return a pair with journals that knows alice, and its directories of keys."""
    pair = keys.pair_with_keys(base, ("alice", ALICE), store=(f"sqlite:{base / 'a'}-data", f"sqlite:{base / 'b'}-data"))
    return pair, base / "a", base / "b"


def in_sync(pair: Pair) -> bool:
    """Return True if both servers are in sync."""
    return all(s.server is not None and s.server.core.pair.in_sync() for s in (pair.primary, pair.backup))


def _switched(admin: Admin, active: str) -> bool:
    try:
        admin.ask(active, "switch")
    except Refused as refused:
        assert refused.code == "busy", refused
        return False
    return True


def test_changing_server_keys_under_load_loses_no_set(tmp_path: Path) -> None:
    """For each server, while it is the passive: stop it, give the other server its new key, and start it again."""
    pair, a, b = pair_with_keys(tmp_path)
    new = {a: keys.new_pair(), b: keys.new_pair()}
    addresses = {pair.primary.address: a, pair.backup.address: b}
    path = keys.client_file(tmp_path / "alice.toml", ALICE, {at: keys.public_of(f) for at, f in addresses.items()})
    text = path.read_text()
    for folder in (a, b):
        old = keys.public_of(folder).decode()
        text = text.replace(f'["{old}"]', f'["{old}", "{new[folder].public.decode()}"]')
    path.write_text(text)
    with pair, Clone(client_file=path) as reader, Clone(client_file=path, subtree=None) as writer:
        reader.wait_until_synced(WAIT_S)
        load = Load(writer, [reader])
        with load.going_on():
            for _ in range(2):
                passive, mine, other = _passive(pair, a, b)
                passive.kill()
                load.goes_on()
                (mine / "server.secret").write_text(keyfiles.secret_text("server", new[mine]))
                keys.replace(other / "peer.pub", keyfiles.public_text("peer", new[mine].public))
                passive.start()
                until(lambda: in_sync(pair), "both are in sync again")
                load.goes_on()
                with Admin(ClientFile.read(path), WAIT_S) as admin:
                    active = pair.primary if passive is pair.backup else pair.backup
                    # A server refuses a hand-over soon after the last one, so try until it accepts.
                    until(partial(_switched, admin, active.address), "the active hands over")
                load.goes_on()
        load.nothing_is_lost()
        assert load.stale_s < STALE_S


def _passive(pair: Pair, a: Path, b: Path) -> tuple[TestServer, Path, Path]:
    until(lambda: in_sync(pair), "one follows")
    assert pair.primary.server is not None
    return (pair.backup, b, a) if pair.primary.server.core.active else (pair.primary, a, b)


def test_changing_a_client_key_under_load_loses_no_set(tmp_path: Path) -> None:
    pair, a, b = pair_with_keys(tmp_path)
    known = keys.known(pair)
    old = keys.client_file(tmp_path / "old.toml", ALICE, known)
    second = keys.new_pair()
    new = keys.client_file(tmp_path / "new.toml", second, known)
    with pair, Clone(client_file=old, subtree=None) as before:
        before.set("/load/first", b"1").wait(WAIT_S)
        for folder in (a, b):
            keys.admit(folder, "alice.2", second)
        with Clone(client_file=new) as moved:
            moved.wait_until_synced(WAIT_S)
            load = Load(moved, [moved])
            with load.going_on():
                load.goes_on()
                # Its key is refused from here on, by open connections too.
                before.close()
                for folder in (a, b):
                    (folder / "clients" / "alice.pub").unlink()
                load.goes_on()
            load.nothing_is_lost()
            assert moved["/load/first"] == b"1"
            assert load.stale_s == 0.0, "the user's other key goes on"


def test_a_key_file_with_a_reserved_name_admits_no_user(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE))
    for name in ("local", "peer", "local.2"):
        keys.admit(a, name, keys.new_pair())
    keyring = Keyring(str(a), has_peer=True)
    found = {keyring.user_of(keyfiles.decode(keyfiles.read_public(file.read_text()).decode()), time.monotonic())
             for file in (a / "clients").iterdir()}  # fmt: skip
    assert found == {"alice", None}
    with pytest.raises(CannotStart, match="is missing"):
        Keyring(str(tmp_path / "nowhere"), has_peer=True)


def test_reading_contents_of_a_keyed_server_needs_a_client_file(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE))
    with TestServer(keys=str(a)) as server:
        file = keys.client_file(tmp_path / "alice.toml", ALICE, {server.address: keys.public_of(a)})
        with Clone(client_file=file, subtree=None) as clone:
            clone.set("/a", b"1").wait(WAIT_S)
        assert set(of_server(server.address, WAIT_S, str(file)).keys) == {"/a"}
        with pytest.raises(NoContents, match="--client-file, CHP_CLIENT_FILE"):
            of_server(server.address, 1.0)
        with pytest.raises(NoContents, match="no \\[\\[servers\\]\\] with address tcp://b:1"):
            of_server("tcp://b:1", 1.0, str(file))


# -- what makes no sense


def garbage(rng: random.Random) -> bytes:
    """Return bytes that begin more or less like a handshake."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
    begin = bytearray(greeting[: rng.choice((0, 10, 11, 32, 64))])
    for _ in range(rng.randint(0, 3)):
        if begin:
            begin[rng.randrange(len(begin))] = rng.randrange(256)
    hello = b"\x04" + bytes([rng.choice((200, 0, 255, 26))]) + rng.choice((b"\x05HELLO", b"\x08INITIATE", b"\x05ERROR"))
    return bytes(begin) + hello * rng.randint(0, 2) + rng.randbytes(rng.randint(0, 300))


def test_garbage_handshakes_are_counted_and_disturb_no_client(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE))
    rng = random.Random(7)
    with TestServer(keys=str(a)) as server:
        file = keys.client_file(tmp_path / "alice.toml", ALICE, {server.address: keys.public_of(a)})
        port = int(server.address.rpartition(":")[2])
        with Clone(client_file=file) as clone:
            clone.wait_until_synced(WAIT_S)
            for i in range(150):
                with sockets.create_connection(("127.0.0.1", port + i % 3), WAIT_S) as connection:
                    connection.settimeout(WAIT_S)
                    try:
                        connection.sendall(garbage(rng))
                    except OSError:
                        # The server cut the connection off during the send.
                        pass
            assert clone.set("/a", b"1").wait(WAIT_S)
        assert server.server is not None
        core = server.server.core
        until(lambda: core.committer.counts["handshakes_failed"] > 0, "they are counted")
        assert core.committer.counts["defects"] == 0 and set(core.state.map.values) == {"/a"}


def test_the_zap_handler_answers_each_question_and_refuses_unknown_keys(tmp_path: Path) -> None:
    a, _ = keys.pair_of_directories(tmp_path, ("alice", ALICE))
    ring, rng, known = Keyring(str(a), has_peer=True), random.Random(3), keyfiles.decode(ALICE.public.decode())
    peer = keyfiles.decode(keyfiles.read_public((a / "peer.pub").read_text()).decode())
    let_in = {(CLIENTS, b"CURVE", known), (PEER, b"CURVE", peer), (LOCAL, b"NULL", None)}
    with zmq.Context() as context, context.socket(zmq.REQ) as asking:
        asking.linger = 0
        doors = ZapHandler(context, ring)
        asking.connect(ENDPOINT)
        try:
            for _ in range(400):
                domain = rng.choice((CLIENTS, PEER, LOCAL, b"", b"clients\0", b"\xff"))
                mechanism = rng.choice((b"CURVE", b"NULL", b"PLAIN", b"", b"curve"))
                key = rng.choice((known, peer, None, rng.randbytes(32), rng.randbytes(rng.randint(0, 40)), bytes(32)))
                question = [
                    b"1.0",
                    b"%d" % rng.randint(0, 9),
                    domain,
                    rng.choice((b"127.0.0.1", b"\xff\xfe", b"")),
                    b"",
                    mechanism,
                ]
                asking.send_multipart([*question, *([] if key is None else [key])])
                doors.answer(time.monotonic())
                assert asking.poll(1000), question
                version, request, code, *_, metadata = asking.recv_multipart()
                wanted = (domain, mechanism, None if mechanism == b"NULL" else key) in let_in
                assert version == b"1.0" and request == question[1]
                assert (code == b"200") == wanted, (question, key, code)
                assert domain == PEER or not wanted or b"X-Key" in metadata, "a client can't say it in our place"
        finally:
            doors.close()
