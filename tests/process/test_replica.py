"""A pair and a replica in real processes: kills of each of them, and starts that can't be right."""

from pathlib import Path

import pytest

from chp_server.exits import Exit
from chp_server.testing import free_port
from tests.process.cluster import ProcessPair, ServerProcess
from tests.talk import WAIT_S, synced, until


def replica_of(directory: Path, name: str, *servers: str, address: str = "") -> ServerProcess:
    """Return a replica with a journal, which is not started yet."""
    (directory / name).mkdir(exist_ok=True)
    address = address or f"tcp://127.0.0.1:{free_port()}"
    flags = ["--replica", "--upstream", ",".join(servers), "--heartbeat-s", "0.1"]
    return ServerProcess(directory / name, "alone", address, None, *flags)


def ends(server: ServerProcess) -> str:
    """Wait until a server ends with the exit code for a wrong start, and return its log."""
    assert server.process is not None
    assert server.process.wait(WAIT_S) == Exit.USAGE
    server.process = None
    return server.log.read_text()


def test_a_clone_at_a_replica_survives_the_active_and_the_replica(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair:
        replica = replica_of(tmp_path, "r1", *pair.servers).start()
        try:
            with synced([replica.address]) as clone:
                clone.set("/a", b"1").wait(WAIT_S)
                first = pair.active()
                assert first is not None
                first.kill()
                assert clone.set("/b", b"2").wait(WAIT_S).epoch == 2
                assert clone.stats["resyncs_snapshot"] == 1, "all that it missed came by a resume"
                first.start()
                pair.wait_in_sync()
                replica.kill()
                with synced(pair.servers) as direct:
                    direct.set("/c", b"3").wait(WAIT_S)
                replica.start()
                until(lambda: clone.get("/c") == b"3", lambda: f"the clone is back: {clone!r}")
                assert clone.set("/d", b"4").wait(WAIT_S).durability == "replicated"
                assert dict(clone) == {"/a": b"1", "/b": b"2", "/c": b"3", "/d": b"4"}
                assert clone.stats["resyncs_snapshot"] == 1, "the replica that is back has the same numbers"
                active = pair.active()
                assert active is not None
                log = active.log.read_text()
                assert "by=records" in log, "the replica went on from its journal"
        finally:
            replica.kill()


def test_a_replica_ends_if_its_upstream_follows_this_replica(tmp_path: Path) -> None:
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    one, two = (replica_of(tmp_path, f"r{i}", addresses[1 - i], address=addresses[i]).start() for i in range(2))
    try:
        until(lambda: any(each.process is not None and each.process.poll() is not None for each in (one, two)))
        ended = one if one.process is not None and one.process.poll() is not None else two
        assert "follows this replica" in ends(ended)
    finally:
        one.kill()
        two.kill()


def test_a_server_ends_on_the_journal_of_another_store_or_kind(tmp_path: Path) -> None:
    pair = [ServerProcess(tmp_path / name, "alone", f"tcp://127.0.0.1:{free_port()}", None) for name in "ab"]
    for server, name in zip(pair, "ab", strict=True):
        (tmp_path / name).mkdir()
        server.start()
    replica = replica_of(tmp_path, "r", pair[0].address)
    other = replica_of(tmp_path, "r", pair[1].address, address=replica.address)
    plain = ServerProcess(tmp_path / "r", "alone", replica.address, None)
    of_a_server = replica_of(tmp_path, "a", pair[1].address, address=replica.address)
    try:
        replica.start()
        with synced([replica.address]) as clone:
            clone.set("/a", b"1").wait(WAIT_S)
        replica.kill()
        assert "hold the store" in ends(other.start())
        assert "is the journal of a replica" in ends(plain.start())
        pair[0].kill()
        assert "is the journal of a server" in ends(of_a_server.start())
    finally:
        for each in (*pair, replica, other, plain, of_a_server):
            each.kill()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replica"], "name the servers of the pair"),
        (["--upstream", "tcp://a:5556"], "add --replica"),
        (["--replica", "--upstream", "tcp://a:1,tcp://a:1"], "give each server once"),
        (["--replica", "--upstream", "tcp://a:5556", "--peer", "tcp://b:5556"], "no part of it"),
        (["--replica", "--upstream", "tcp://127.0.0.1:5577"], "is this replica itself"),
        (["--replica", "--upstream", "tcp://a:5556", "--keys", "k", "--ipc", "/run/chp"], "can't vouch"),
    ],
)
def test_wrong_replica_flags_are_refused(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from chp_server.main import main

    assert main(flags) == Exit.USAGE
    assert words in capsys.readouterr().err
