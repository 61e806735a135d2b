"""Tests of the Guide's C and Python clients at our server, which serves them after RFC 12 and SPEC.md.

Each test is about a defect of the Guide's pair, or about CHP/2, which an old client must not notice. The updates that
such a client sees are plain, its map holds no reserved key, and no number goes back.
"""

import struct
import time
from dataclasses import replace
from functools import partial

import pytest
import zmq

from chp_server.settings.config import Config
from chp_server.shell.reactor import Server
from chp_server.store.store_url import open_journal
from chp_server.testing import Pair, TestServer, free_port
from tests.wire.classic import DIALECTS, ClassicClient
from tests.wire.test_golden_frames import REFUSED


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def clients(server: TestServer, dialect: str, *subtrees: bytes) -> list[ClassicClient]:
    """Return classic clients that are ready."""
    made = [ClassicClient([server.address], dialect, subtree) for subtree in subtrees]
    for client in made:
        client.until_ready()
    return made


def sequences(client: ClassicClient) -> list[int]:
    """Return the sequences of all messages that a client applied, in order."""
    return [struct.unpack(">Q", frames[1])[0] for frames in client.log]


def test_set_update_and_delete_reach_the_other_client(server: TestServer, dialect: str) -> None:
    one, two = clients(server, dialect, b"", b"")
    with one, two:
        first = one.set(b"/a", b"1")
        two.until(lambda: two.map == {b"/a": b"1"})
        two.set(b"/a", b"2")
        one.until(lambda: one.map == {b"/a": b"2"} and len(one.log) == 2)
        one.delete(b"/a")
        two.until(lambda: not two.map and len(two.log) == 3)
        assert two.log[0][2] == first, "KVPUB has the uuid of its KVSET"
        assert sequences(two) == sorted(set(sequences(two))), "strictly increasing"
        assert all(len(frames) == 5 for frames in two.log)


def test_a_late_client_gets_the_snapshot_then_updates_without_reserved_keys(server: TestServer, dialect: str) -> None:
    (one,) = clients(server, dialect, b"")
    with one:
        for i in range(500):
            one.set(b"/k/%d" % i, b"%d" % i)
        one.until(lambda: len(one.log) == 500)
        (late,) = clients(server, dialect, b"")
        with late:
            assert late.map == one.map
            one.set(b"/k/0", b"new")
            late.until(lambda: late.map[b"/k/0"] == b"new")
            assert all(key.startswith(b"/k/") for key in late.map), "CHP/2 batches leave no trace"
            one.until(lambda: one.sequence == late.sequence)


def test_a_classic_client_may_subscribe_to_a_prefix_without_a_final_slash(server: TestServer, dialect: str) -> None:
    everything, subtree, prefix = clients(server, dialect, b"", b"/cl/", b"/c")
    with everything, subtree, prefix:
        for key in (b"/cl/a", b"/c/b", b"/d/c"):
            everything.set(key, b"v")
        everything.until(lambda: len(everything.log) == 3)
        subtree.until(lambda: subtree.map == {b"/cl/a": b"v"})
        prefix.until(lambda: prefix.map == {b"/cl/a": b"v", b"/c/b": b"v"})
        late_subtree, late_prefix = clients(server, dialect, b"/cl/", b"/c")
        with late_subtree, late_prefix:
            assert late_subtree.map == subtree.map
            assert late_prefix.map == prefix.map


def test_a_ttl_is_in_updates_and_snapshots_and_ends_the_key(server: TestServer, dialect: str) -> None:
    one, two = clients(server, dialect, b"", b"")
    with one, two:
        before = time.time()
        one.set(b"/long", b"v", ttl=1000)
        one.set(b"/short", b"v", ttl=2)
        one.set(b"/for ever", b"v")
        two.until(lambda: len(two.log) == 3)
        assert [frames[3].split(b".")[0].rstrip(b"\n") for frames in two.log[:2]] == [b"ttl=1000", b"ttl=2"]
        (late,) = clients(server, dialect, b"/long")
        with late:
            moment_s = int(late.log[0][3].removeprefix(b"ttl=")) / 1000
            assert before + 990 < moment_s < time.time() + 1010
        two.until(lambda: b"/short" not in two.map)
        gone = two.log[-1]
        assert (gone[0], gone[4]) == (b"/short", b"")
        assert two.map.keys() == {b"/long", b"/for ever"}, "a key without a ttl never expires"


def test_a_repeated_uuid_is_applied_once_but_sets_without_uuid_each_time(server: TestServer, dialect: str) -> None:
    one, two = clients(server, dialect, b"", b"")
    with one, two:
        uuid = one.set(b"/a", b"1")
        one.set(b"/a", b"1", uuid=uuid)
        one.set(b"/b", b"1", uuid=b"")
        one.set(b"/b", b"1", uuid=b"")
        one.set(b"/end", b"1")
        two.until(lambda: b"/end" in two.map)
        assert [frames[0] for frames in two.log] == [b"/a", b"/b", b"/b", b"/end"]


def test_hugz_comes_under_traffic_and_its_number_never_runs_ahead(server: TestServer, dialect: str) -> None:
    (one,) = clients(server, dialect, b"/quiet/")
    (busy,) = clients(server, dialect, b"/busy/")
    with one, busy:
        seen = len(one.hugz)
        while len(one.hugz) < seen + 3:
            busy.set(b"/busy/a", b"1")
            busy.turn(0.01)
            one.turn(0.01)
        numbers = [struct.unpack(">Q", frames[1])[0] for frames in one.hugz]
        assert numbers == sorted(numbers)
        assert all(frames[2:] in ([b"", b"", b""], [b"", b"chp=2\n", b""]) for frames in one.hugz)
        one.set(b"/quiet/a", b"1")
        one.until(lambda: one.log)
        assert not one.discarded


def test_a_slow_reader_gets_the_whole_snapshot(server: TestServer, dialect: str) -> None:
    (writer,) = clients(server, dialect, b"")
    with writer:
        for i in range(20_000):
            writer.set(b"/key/%d" % i, bytes(100))
        writer.until(lambda: len(writer.log) == 20_000)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as reader:
        reader.linger = 0
        reader.rcvhwm = 100
        reader.connect(server.address)
        reader.send_multipart([b"ICANHAZ?", b""])
        assert reader.poll(30_000)
        with ClassicClient([server.address], dialect, b"/none/") as other:
            # The server serves the other client while this reader pauses.
            other.until_ready()
            seen = len(other.hugz)
            other.until(lambda: len(other.hugz) > seen + 2)
        keys = set()
        while reader.poll(30_000):
            frames = reader.recv_multipart()
            if frames[0] == b"KTHXBAI":
                break
            keys.add(frames[0])
        assert frames[0] == b"KTHXBAI"
        assert len(keys) == 20_000


def has_logged(client: ClassicClient, i: int) -> bool:
    return len(client.log) > i


def test_a_malformed_message_changes_nothing(server: TestServer) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with ClassicClient([server.address]) as client, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(server.address)
        client.until_ready()
        for i, (words, vector) in enumerate(REFUSED.items()):
            if words.startswith("icanhaz"):
                asking.send_multipart(vector.frames)
            else:
                client.send_raw(vector.frames)
            client.set(b"/after/%d" % i, words.encode())
            client.until(partial(has_logged, client, i))
            assert client.log[i][4].decode() == words
        asking.send_multipart([b"ICANHAZ?", b"/none/"])
        assert asking.poll(30_000)
        assert asking.recv_multipart()[0] == b"KTHXBAI", "and nothing came back for the bad ones"


def test_a_pair_fails_over_under_a_classic_client(dialect: str) -> None:
    with (
        Pair(heartbeat_s=0.1, peer_timeout_s=0.5, solo_wait_s=2.0) as pair,
        ClassicClient(pair.servers, dialect, silent_s=2.5) as client,
    ):
        client.until_ready(60)
        client.set(b"/before", b"1")
        client.until(lambda: client.log)
        before = client.sequence
        pair.primary.kill()
        client.set(b"/meanwhile", b"1")
        client.until(lambda: client.current == 1 and client.synced and client.map.get(b"/before") == b"1", 60)
        client.set(b"/after", b"1")
        client.until(lambda: any(frames[0] == b"/after" for frames in client.log), 60)
        with ClassicClient([pair.backup.address], dialect, silent_s=5) as fresh:
            fresh.until_ready()
            assert fresh.map == {b"/before": b"1", b"/meanwhile": b"1", b"/after": b"1"}
        assert client.sequence > before


def test_a_lone_server_answers_a_question_sent_before_its_first_turn() -> None:
    config = replace(Config(), bind=f"tcp://127.0.0.1:{free_port()}")
    server = Server(config, open_journal("memory:"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        server.bind()
        asking.connect(config.bind)
        asking.send_multipart([b"ICANHAZ?", b""])
        assert server.sockets.snapshot.poll(30_000)
        server.turn({server.sockets.snapshot})
        assert asking.poll(30_000)
        assert asking.recv_multipart()[0] == b"KTHXBAI"
    server.close()
