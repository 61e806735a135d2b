"""Disks that fail: full, read-only, changed, cut short. A server never acknowledges what it can't keep."""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import Timer

import msgpack
import pytest
import zmq

from chp_client import Clone
from chp_server.config import Config
from chp_server.exits import Exit
from chp_server.journal import JournalError, open_journal
from chp_server.reactor import Server
from chp_server.testing import TestServer, free_port
from chp_server.turn import Save, Turn

from .cluster import GENEROUS_S, ProcessPair, ServerProcess, wait_for
from .faults import DyingServer, Load, ended, nothing_lost, other, wait_active

pytestmark = pytest.mark.slow
MIB = 1 << 20
Mount = Callable[[Path, str], None]


def mounted(path: Path, *args: str) -> bool:
    """Run mount; whether that worked."""
    try:
        done = subprocess.run(["mount", *args, str(path)], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.fixture
def tmpfs() -> Iterator[Mount]:
    """Mounts small file systems in memory, and takes them away again; skips where that is not allowed."""
    places: list[Path] = []

    def mount(path: Path, size: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if not mounted(path, "-t", "tmpfs", "-o", f"size={size}", "none"):
            pytest.skip("mounting a tmpfs is not allowed here")
        places.append(path)

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=False)


def write_until_it_ends(server: ServerProcess, servers: list[str]) -> None:
    """Set large values until the server has ended for want of room."""
    process = server.process
    assert process is not None
    with Clone(servers, None) as clone:
        for i in range(200):
            if process.poll() is not None:
                break
            clone.set(f"/large/{i % 4}", os.urandom(100_000)).wait(GENEROUS_S)
    assert ended(server) == Exit.DATA_NOT_WRITABLE


def test_an_active_whose_disk_is_full_ends_and_the_other_goes_on(tmp_path: Path, tmpfs: Mount) -> None:
    pair = ProcessPair(tmp_path)
    tmpfs(pair.primary.data, "4m")
    with pair, Load(pair.servers, 1) as load:
        if pair.active() is not pair.primary:
            pytest.skip("the backup came first on this machine")
        write_until_it_ends(pair.primary, pair.servers)
        assert "no room" in pair.primary.log.read_text()
        load.go_on()
        assert mounted(pair.primary.data, "-o", "remount,size=200m")
        pair.primary.start()
        pair.wait_in_sync()
        load.end()
        nothing_lost(pair.both, load)


def test_a_lone_server_whose_disk_is_full_keeps_all_that_it_acknowledged(tmp_path: Path) -> None:
    """No mount needed: no file of its may grow beyond a limit."""
    server = DyingServer(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1")
    server.environ["FILE_BYTES_MAX"] = str(2 * MIB)
    server.start()
    acked: dict[str, bytes] = {}
    try:
        wait_active(server)
        process = server.process
        assert process is not None
        with Clone([server.address]) as clone:
            for i in range(200):
                ticket = clone.set(f"/{i}", os.urandom(100_000))
                wait_for("an end", lambda ticket=ticket: ticket.done or process.poll() is not None)  # type: ignore[misc]
                if not ticket.done:
                    break
                acked[f"/{i}"] = clone[f"/{i}"]
            assert ended(server) == Exit.DATA_NOT_WRITABLE
            assert acked and "Traceback" not in server.log.read_text()
            del server.environ["FILE_BYTES_MAX"]
            server.start()
            clone.flush(GENEROUS_S)  # the one that failed is sent again
        with Clone([server.address]) as fresh:
            fresh.wait_until_synced(GENEROUS_S)
            assert len(fresh) == len(acked) + 1
            assert all(fresh[key] == value for key, value in acked.items())
    finally:
        server.kill()


def test_a_suffix_that_can_not_be_saved_ends_the_server_before_it_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with TestServer(data=str(tmp_path / "file" / "data")) as server:
        assert server.server is not None
        turn = Turn(saves=[Save("suffix-1.2", [])])
        with pytest.raises(JournalError, match=r"file/data: .*can't be saved"):
            server.server.perform(turn)


def test_a_journal_that_fails_while_a_request_looks_at_it_ends_the_server() -> None:
    """It is no defect of the program, and from then on no acknowledgement would be true."""

    def unreadable() -> dict[str, int | float | str]:
        raise JournalError("the disk is gone; mount it")

    config = replace(Config(), store="memory:", bind=f"tcp://127.0.0.1:{free_port()}")
    server = Server(config, open_journal("memory:"))
    giving_up = Timer(GENEROUS_S, server.stop)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        try:
            server.bind()
            server.core.journal_stats = unreadable
            client.connect(config.bind)
            client.send_multipart([b"ICANHAZ?", b"\x02status\x03", msgpack.packb({"chp": 3, "id": 1})])
            giving_up.start()
            with pytest.raises(JournalError, match="the disk is gone"):
                server.run()
        finally:
            giving_up.cancel()
            server.close()


def test_a_disk_that_becomes_read_only_is_refused_at_the_start(tmp_path: Path, tmpfs: Mount) -> None:
    pair = ProcessPair(tmp_path)
    tmpfs(pair.backup.data, "100m")
    with pair, Load(pair.servers, 1) as load:
        pair.backup.kill()
        load.go_on()
        if not mounted(pair.backup.data, "-o", "remount,ro"):
            pytest.skip("remounting is not allowed here")
        pair.backup.start()
        assert ended(pair.backup) == Exit.DATA_NOT_WRITABLE
        line = pair.backup.log.read_text().splitlines()[-1]
        assert str(pair.backup.data) in line
        load.go_on()
        assert mounted(pair.backup.data, "-o", "remount,rw")
        pair.backup.start()
        pair.wait_in_sync()
        load.end()
        nothing_lost(pair.both, load)


def damage_a_row(server: ServerProcess) -> str:
    """Flip a bit of the row in the middle of a closed journal; the place as the server will name it."""
    with sqlite3.connect(server.data / "journal.sqlite") as db:
        rows = db.execute("SELECT first, body FROM rows ORDER BY first").fetchall()
        first, body = rows[len(rows) // 2]
        changed = body[:-1] + bytes([body[-1] ^ 1])
        db.execute("UPDATE rows SET body = ? WHERE first = ?", (changed, first))
    db.close()
    return f"{first >> 48}.{first & (1 << 48) - 1}"


def test_a_flipped_bit_is_refused_and_with_prefix_the_peer_brings_the_rest(tmp_path: Path) -> None:
    with ProcessPair(tmp_path) as pair, Load(pair.servers) as load:
        load.go_on(20)
        active = pair.active()
        assert active is not None
        victim = other(pair, active)
        victim.kill()
        place = damage_a_row(victim)
        victim.start()
        assert ended(victim) == Exit.JOURNAL_DAMAGED
        assert place in victim.log.read_text()
        load.go_on()
        victim.environ["CHP_SERVER_RECOVER"] = "prefix"
        victim.start()
        pair.wait_in_sync()
        (recovered,) = [line for line in victim.log.read_text().splitlines() if "set aside" in line]
        assert " WARN " in recovered and " recovered " in recovered
        assert list(victim.data.glob("journal.sqlite.damaged-*"))
        load.end()
        pair.wait_in_sync()
        active.kill()
        wait_active(victim)  # the writers' Clones vote for it
        nothing_lost([victim], load)


def test_both_damaged_the_one_with_more_of_its_prefix_serves(tmp_path: Path) -> None:
    """Prefix on both sides can lose what was acknowledged, so the operator asks for it; the two end as one."""
    with ProcessPair(tmp_path) as pair:
        with Load(pair.servers, 1) as load:
            load.go_on(20)
            load.end()
        for server in pair.both:
            server.kill()
            damage_a_row(server)
            server.environ["CHP_SERVER_RECOVER"] = "prefix"
            server.start()
        pair.wait_in_sync()
        with Clone(pair.servers) as clone:
            clone.wait_until_synced(GENEROUS_S)
            held = dict(clone)
        assert held and set(held.items()) <= set(load.acked.items())


def test_no_number_that_was_set_aside_is_issued_again(tmp_path: Path) -> None:
    """Clients may be at it: what follows on the prefix is of an epoch above all that were there."""
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1").start()
    with ExitStack() as ending:
        ending.callback(server.kill)
        clone = ending.enter_context(Clone(server.address))
        issued = []
        for life in range(4):
            for i in range(10):
                ack = clone.set(f"/{life}/{i}", os.urandom(1000)).wait(GENEROUS_S)
                issued.append((ack.epoch, ack.sequence))
            server.kill()
            if life == 3:
                place = damage_a_row(server)
                server.environ["CHP_SERVER_RECOVER"] = "prefix"
            server.start()
        assert place in server.log.read_text()
        after = clone.set("/after", b"1").wait(GENEROUS_S)
        assert after.epoch > max(epoch for epoch, _ in issued)
        clone.wait_until_synced(GENEROUS_S)
        with Clone(server.address) as other_clone:
            other_clone.wait_until_synced(GENEROUS_S)
            assert dict(other_clone) == dict(clone)


@pytest.mark.parametrize("cut", [-1000, 3000], ids=["shorter", "longer"])
def test_a_torn_tail_of_one_journal_loses_nothing_of_a_pair(tmp_path: Path, cut: int) -> None:
    """`longer`: a transaction that was being written. `shorter`: the disk lied about the last one; the peer has it."""
    with ProcessPair(tmp_path) as pair, Load(pair.servers) as load:
        load.go_on(10)
        active = pair.active()
        assert active is not None
        for server in (active, other(pair, active)):
            server.kill()
        wal = active.data / "journal.sqlite-wal"
        if cut < 0:
            os.truncate(wal, wal.stat().st_size + cut)
        else:
            with wal.open("ab") as file:
                file.write(os.urandom(cut))
        for server in pair.both:
            server.start()
        pair.wait_in_sync()
        load.go_on()
        load.end()
        pair.wait_in_sync()
        nothing_lost(pair.both, load)


def test_a_torn_tail_of_a_lone_server_is_told_and_nothing_synced_is_lost(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1").start()
    try:
        with Load([server.address], 1) as load:
            load.go_on(10)
            server.kill()
            wal = server.data / "journal.sqlite-wal"
            whole = wal.read_bytes()
            with wal.open("ab") as file:
                file.write(whole[-2000:])  # half of a frame, as an unfinished write leaves it
            server.start()
            load.go_on()
            load.end()
            nothing_lost([server], load)
    finally:
        with suppress(OSError):
            server.kill()
