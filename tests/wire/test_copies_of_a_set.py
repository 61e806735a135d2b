"""Tests of a pair with `copies` 3 by real sockets: its acknowledgements, and what survives the loss of both servers."""

from contextlib import closing
from pathlib import Path

from chp.numbers import epoch_of
from chp_client import Clone
from chp_client.port.admin import Admin
from chp_server.core.core import PROMOTED_EPOCHS
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, synced, until


def test_three_copies_outlive_both_servers(tmp_path: Path) -> None:
    stores = [f"sqlite:{tmp_path / name}" for name in ("a", "b", "r")]
    for name in ("a", "b", "r"):
        (tmp_path / name).mkdir()
    pair = Pair(store=(stores[0], stores[1]), copies=3, replica_timeout_s=0.5)
    with pair, Admin(pair.servers) as admin:
        upstream = ",".join(pair.servers)
        replica = TestServer(replica=True, upstream=upstream, name="R1", store=stores[2], confirms=True).start()

        def copies() -> int:
            assert pair.active is not None
            return int(admin.ask(pair.active.address, "status").facts["copies"]["in_sync"])

        with synced(pair.servers) as clone:
            until(lambda: copies() == 3)
            ack = clone.set("/a", b"1").wait(WAIT_S)
            assert (ack.durability, ack.copies) == ("replicated", 3)
            message = clone.topic("orders").publish(b"one").wait(WAIT_S)
            assert (message.durability, message.copies) == ("replicated", 3)
            replica.kill()
            until(lambda: copies() == 2)
            ack = clone.set("/b", b"2").wait(WAIT_S)
            assert (ack.durability, ack.copies) == ("journaled", 2)
            replica.start()
            until(lambda: copies() == 3)
            assert clone.set("/c", b"3").wait(WAIT_S).copies == 3
            before = clone.revision
    replica.kill()
    with TestServer(store=stores[2], promote=True) as server, closing(Clone([server.address])) as clone:
        clone.wait_until_synced(WAIT_S)
        assert dict(clone.items()) == {"/a": b"1", "/b": b"2", "/c": b"3"}
        assert epoch_of(clone.revision) > epoch_of(before) + PROMOTED_EPOCHS
        with clone.topic("orders").consumer("billing", start="begin") as consumer:
            assert [each.value for each in next(iter(consumer))] == [b"one"]
    with TestServer(store=stores[2]) as plain, synced([plain.address]) as clone:
        assert clone["/c"] == b"3", "a promoted journal is that of a server"
