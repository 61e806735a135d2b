"""Disks that fail: full, read-only, changed, cut short. A server never acknowledges what it can't keep."""

import os
import shutil
import signal
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

from chp_client import Clone, Refused, Ticket
from chp_server.core.state.journal import JournalError
from chp_server.core.updates.turn import Save, Turn
from chp_server.exits import Exit
from chp_server.settings.config import Config
from chp_server.shell.reactor import Server
from chp_server.store.store_url import open_journal
from chp_server.testing import TestServer, free_port
from chp_server.tools.journal_tools import verify
from tests.talk import WAIT_S, until

from .cluster import ProcessPair, ServerProcess
from .faults import DyingServer, Load, both_kept_all, ended, equal, nothing_lost, other, wait_active

pytestmark = pytest.mark.slow
MIB = 1 << 20
Mount = Callable[[Path, str], None]


def mounted(path: Path, *args: str) -> bool:
    """Run `mount`, and return True if it succeeded."""
    try:
        done = subprocess.run(["mount", *args, str(path)], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.fixture
def tmpfs() -> Iterator[Mount]:
    """Return a function that mounts small file systems in memory, or skip the test if that is not allowed."""
    places: list[Path] = []

    def mount(path: Path, size: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if not mounted(path, "-t", "tmpfs", "-o", f"size={size}", "none"):
            pytest.skip("mounting a tmpfs is not allowed here")
        places.append(path)

    yield mount
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=False)


class Disk:
    """A small file system of its own, which another program fills."""

    def __init__(self, tmpfs: Mount, place: Path) -> None:
        tmpfs(place, "64m")
        self._place, self._ballast = place, place / "of-another-program"

    def fill(self, left: int) -> None:
        """Fill the disk, except for this many bytes."""
        disk = os.statvfs(self._place)
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            for _ in range(max(0, disk.f_bavail * disk.f_frsize - left) // 4096 + (1 << 10 if not left else 0)):
                file.write(bytes(4096))

    def free(self) -> None:
        """Remove the other program's file, so that the disk has room again."""
        self._ballast.unlink()


def full(server: ServerProcess) -> str:
    """Return why a server says that it has little room, or "" while it does not answer."""
    status = server.status()
    return status["room"]["why"] if status else ""


def waits_for_room(server: ServerProcess) -> bool:
    """Return True if the journal of a server has found the disk full."""
    return "has no room; waiting" in server.log.read_text()


# The free bytes of a disk with little room: less than the reserve of 64 MiB, and enough for deletes and refusals.
LITTLE = MIB


def test_an_active_hands_over_while_its_disk_has_little_room(tmp_path: Path, tmpfs: Mount) -> None:
    pair = ProcessPair(tmp_path)
    disk = Disk(tmpfs, pair.primary.data)
    with pair, Load(pair.servers) as load:
        if pair.active() is not pair.primary:
            pytest.skip("the backup came first on this machine")
        disk.fill(LITTLE)
        until(lambda: pair.active() is pair.backup, "the backup to serve")
        load.go_on()
        assert "disk" in full(pair.primary)
        assert "little room" in pair.primary.log.read_text()
        disk.free()
        until(lambda: pair.primary.status() and not full(pair.primary), "room")
        pair.wait_in_sync()
        load.go_on()
        load.end()
        nothing_lost(pair.both, load)


def test_a_pair_with_little_disk_room_refuses_sets_but_deletes_and_reads(tmp_path: Path, tmpfs: Mount) -> None:
    pair = ProcessPair(tmp_path)
    disks = [Disk(tmpfs, server.data) for server in pair.both]
    with pair, Clone(pair.servers) as clone:
        for key in ("/kept", "/gone"):
            clone.set(key, b"1").wait(WAIT_S)
        for disk in disks:
            disk.fill(LITTLE)
        until(lambda: all(map(full, pair.both)), "both to say so")
        with pytest.raises(Refused, match=r"\(full\).*are free.*--min-free-disk"):
            clone.set("/more", b"1").wait(WAIT_S)
        clone.delete("/gone").wait(WAIT_S)
        active = pair.active()
        assert active is not None, "both live, and heartbeats and statuses go on"
        with Clone(pair.servers) as reader:
            reader.wait_until_synced(WAIT_S)
            reader.sync(WAIT_S)
            assert dict(reader) == dict(clone) == {"/kept": b"1"}
        for disk in disks:
            disk.free()
        until(lambda: not any(map(full, pair.both)), "room")
        clone.set("/more", b"1").wait(WAIT_S)
        pair.wait_in_sync()


@pytest.mark.parametrize("left", [MIB // 4, 0])
def test_messages_are_given_again_if_full_disks_refused_their_acknowledgement(
    tmp_path: Path, tmpfs: Mount, left: int
) -> None:
    pair = ProcessPair(tmp_path)
    disks = [Disk(tmpfs, server.data) for server in pair.both]
    with pair, Clone(pair.servers, subtree=None) as clone:
        orders = clone.topic("orders")
        orders.subscribe("g", "begin")
        orders.publish_many([b"%d" % i for i in range(11)], [f"k{i}" for i in range(11)]).wait(WAIT_S)
        with orders.consumer("g") as consumer:
            batch = next(consumer)

            def read_only() -> bool:
                for disk in disks:
                    disk.fill(left)
                return all("read-only" in full(server) for server in pair.both)

            # A server may free a part of its journal and so have room again. Fill the disks until both have none.
            if left:
                until(read_only, "both to be read-only")
            else:
                read_only()
            # With left=0 the journal may find the disk full before a measurement does.
            for i in range(40):
                clone.set(f"/{i}", bytes(MIB // 4))
            until(lambda: all("read-only" in full(each) or waits_for_room(each) for each in pair.both), "no room")
            refused = batch.done()
            until(lambda: refused.done, "the refusal")
            assert isinstance(refused.error, Refused)
            for disk in disks:
                disk.free()

            def all_done() -> bool:
                if (batch := consumer.take(0.2)) is not None:
                    batch.done()
                return bool(orders.groups()[0]["lag"] == 0)

            until(all_done, "the group to be done, by the same consumer")
            assert consumer.fenced > 0


def test_a_reader_needs_no_room_on_the_disk(tmp_path: Path, tmpfs: Mount) -> None:
    """Reading works without a free byte on both disks, and so does a `sync`, which only needs an answer."""
    pair = ProcessPair(tmp_path)
    disks = [Disk(tmpfs, server.data) for server in pair.both]
    with pair, Clone(pair.servers) as clone, Clone(pair.servers) as reader:
        clone.set("/kept", b"1").wait(WAIT_S)
        reader.wait_until_synced(WAIT_S)
        for disk in disks:
            disk.fill(0)
        until(lambda: all(full(server).startswith("read-only") for server in pair.both), "both to say so")
        with pytest.raises(Refused, match=r"\(full\).*read-only"):
            clone.set("/more", b"1").wait(WAIT_S)
        for _ in range(3):
            assert reader.sync(WAIT_S).durability == "journaled"
        assert reader.setdefault("/kept", b"other", WAIT_S) == b"1"
        assert reader.pop("/none", None, WAIT_S) is None
        for disk in disks:
            disk.free()
        until(lambda: not any(map(full, pair.both)), "room")
        clone.set("/more", b"1").wait(WAIT_S)
        reader.sync(WAIT_S)
        assert reader.snapshot() == {"/kept": b"1", "/more": b"1"}


def test_the_passive_takes_over_if_the_disk_of_the_active_is_full(tmp_path: Path, tmpfs: Mount) -> None:
    """A measurement comes too late for a disk that is full at once. So the journal has no room in the middle of a turn.

    On a busy machine a measurement may come first. Then the active refuses sets, and hands over.
    """
    pair = ProcessPair(tmp_path, "--min-free-disk", "0")
    disk = Disk(tmpfs, pair.primary.data)
    with pair, Load(pair.servers, 1, retried="full") as load:
        if pair.active() is not pair.primary:
            pytest.skip("the backup came first on this machine")
        disk.fill(0)
        # The sets use up the space that SQLite has set aside too.
        with Clone(pair.servers, None) as writer:
            writer.set_many({f"/large/{i}": os.urandom(100_000) for i in range(160)})
            until(lambda: (pair.backup.status() or {}).get("state") == "active", "the backup to serve")
            said = pair.primary.log.read_text()
            assert "the journal has no room; waiting" in said or "little room" in said
            until(pair.primary.status, "an answer to an operator")
            with suppress(Refused):
                writer.flush(WAIT_S)
        load.go_on()
        disk.free()
        pair.wait_in_sync()
        load.go_on()
        load.end()
        nothing_lost(pair.both, load)


@pytest.mark.parametrize("writing", [False, True], ids=["idle", "in the middle of a turn"])
def test_two_full_disks_make_the_pair_read_only_until_there_is_room(
    tmp_path: Path, tmpfs: Mount, writing: bool
) -> None:
    pair = ProcessPair(tmp_path)
    disks = [Disk(tmpfs, server.data) for server in pair.both]
    with pair, Clone(pair.servers) as clone:
        for key in ("/kept", "/gone"):
            clone.set(key, b"1").wait(WAIT_S)
        pair.wait_in_sync()
        tickets = {f"/{i}": clone.set(f"/{i}", os.urandom(50_000)) for i in range(100 * writing)}
        for disk in disks:
            disk.fill(0)
        until(lambda: all("read-only: disk full" in full(server) for server in pair.both), "both to say so")
        refusals: tuple[Callable[[], Ticket], ...] = (lambda: clone.set("/more", b"1"), lambda: clone.delete("/gone"))
        for refused in refusals:
            with pytest.raises(Refused, match=r"\(full\).*read-only: disk full"):
                refused().wait(WAIT_S)
        with Clone(pair.servers) as reader:
            reader.wait_until_synced(WAIT_S)
            assert reader["/gone"] == b"1" and "/more" not in reader
            for key, ticket in tickets.items():
                until(lambda ticket=ticket: ticket.done, "an answer")  # type: ignore[misc]
                assert (key in reader) == (ticket.error is None), key
        assert pair.active() is not None, "heartbeats and statuses go on"
        for disk in disks:
            disk.free()
        until(lambda: not any(map(full, pair.both)) and pair.active(), "room")
        clone.set("/more", b"1").wait(WAIT_S)
        pair.wait_in_sync()


def test_sigterm_ends_a_server_that_waits_for_room(tmp_path: Path, tmpfs: Mount) -> None:
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--min-free-disk", "0")
    disk = Disk(tmpfs, server.data)
    server.start()
    try:
        wait_active(server)
        with Clone(server.address) as clone:
            tickets = {"/first": clone.set("/first", b"1")}
            tickets["/first"].wait(WAIT_S)

            def answered() -> bool:
                return all(ticket.done for ticket in tickets.values())

            # A measurement may find the disk full before the journal does. Then the sets are refused.
            while not waits_for_room(server):
                disk.fill(0)
                at = len(tickets)
                tickets.update((f"/{i}", clone.set(f"/{i}", os.urandom(100_000))) for i in range(at, at + 200))
                until(lambda: waits_for_room(server) or answered(), "an answer")
                if not waits_for_room(server):
                    disk.free()
                    until(lambda: not full(server), "room")
            server.signal(signal.SIGTERM)
            assert ended(server) == Exit.NO_ROOM
            disk.free()
            server.start()
            until(answered, "the answers")
            assert set(clone) == {key for key, ticket in tickets.items() if ticket.error is None}
    finally:
        server.kill()


def test_a_lone_server_keeps_all_acknowledged_sets_if_its_disk_is_full(tmp_path: Path) -> None:
    """A limit on the size of the server's files stands in for the full disk, so no mount is needed."""
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
                until(lambda ticket=ticket: ticket.done or process.poll() is not None, "an end")  # type: ignore[misc]
                if not ticket.done:
                    break
                acked[f"/{i}"] = clone[f"/{i}"]
            assert ended(server) == Exit.DATA_NOT_WRITABLE
            assert acked and "Traceback" not in server.log.read_text()
            del server.environ["FILE_BYTES_MAX"]
            server.start()
            # The Clone sends the failed batch again.
            clone.flush(WAIT_S)
        with Clone([server.address]) as fresh:
            fresh.wait_until_synced(WAIT_S)
            assert len(fresh) == len(acked) + 1
            assert all(fresh[key] == value for key, value in acked.items())
    finally:
        server.kill()


def test_a_suffix_that_cannot_be_saved_is_a_journal_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with TestServer(data=str(tmp_path / "file" / "data")) as server:
        assert server.server is not None
        turn = Turn(saves=[Save("suffix-1.2", [])])
        with pytest.raises(JournalError, match=r"file/data: .*can't be saved"):
            server.server.perform(turn)


def test_a_journal_error_during_a_status_request_ends_the_server() -> None:
    """The error is no defect of the program. But after it the server could not keep what it acknowledges."""

    def unreadable() -> dict[str, int | float | str]:
        raise JournalError("the disk is gone; mount it")

    config = replace(Config(), store="memory:", bind=f"tcp://127.0.0.1:{free_port()}")
    server = Server(config, open_journal("memory:"))
    giving_up = Timer(WAIT_S, server.stop)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        try:
            server.bind()
            server.core.requests.shell_facts = unreadable
            client.connect(config.bind)
            client.send_multipart([b"ICANHAZ?", b"\x02status\x03", msgpack.packb({"chp": 3, "id": 1})])
            giving_up.start()
            with pytest.raises(JournalError, match="the disk is gone"):
                server.run()
        finally:
            giving_up.cancel()
            server.close()


def test_a_server_does_not_start_on_a_read_only_disk(tmp_path: Path, tmpfs: Mount) -> None:
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
    """Flip a bit of the middle row of a closed journal, and return the place as the server names it."""
    with sqlite3.connect(server.data / "journal.sqlite") as db:
        rows = db.execute("SELECT first, body FROM rows ORDER BY first").fetchall()
        first, body = rows[len(rows) // 2]
        changed = body[:-1] + bytes([body[-1] ^ 1])
        db.execute("UPDATE rows SET body = ? WHERE first = ?", (changed, first))
    db.close()
    return f"{first >> 48}.{first & (1 << 48) - 1}"


def test_recover_prefix_gets_the_rest_of_a_damaged_journal_from_the_peer(tmp_path: Path) -> None:
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
        # The victim becomes active by the votes of the writers' Clones.
        wait_active(victim)
        nothing_lost([victim], load)


def test_recover_prefix_on_both_servers_keeps_a_part_of_the_acknowledged_sets(tmp_path: Path) -> None:
    """`--recover prefix` on both sides can lose acknowledged sets, so only the operator asks for it."""
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
            clone.wait_until_synced(WAIT_S)
            held = dict(clone)
        assert held and set(held.items()) <= set(load.acked.items())


def test_recover_prefix_goes_on_with_an_epoch_above_all_issued_ones(tmp_path: Path) -> None:
    """Clients may know numbers that the journal lost, so the server goes on with an epoch above all that it issued."""
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1").start()
    with ExitStack() as ending:
        ending.callback(server.kill)
        clone = ending.enter_context(Clone(server.address))
        issued = []
        for life in range(4):
            for i in range(10):
                ack = clone.set(f"/{life}/{i}", os.urandom(1000)).wait(WAIT_S)
                issued.append((ack.epoch, ack.sequence))
            server.kill()
            if life == 3:
                place = damage_a_row(server)
                server.environ["CHP_SERVER_RECOVER"] = "prefix"
            server.start()
        assert place in server.log.read_text()
        after = clone.set("/after", b"1").wait(WAIT_S)
        assert after.epoch > max(epoch for epoch, _ in issued)
        clone.wait_until_synced(WAIT_S)
        with Clone(server.address) as other_clone:
            other_clone.wait_until_synced(WAIT_S)
            assert dict(other_clone) == dict(clone)


@pytest.mark.parametrize("cut", [-1000, 3000], ids=["shorter", "longer"])
def test_a_torn_tail_of_one_journal_loses_nothing_of_a_pair(tmp_path: Path, cut: int) -> None:
    """A `longer` log ends in garbage. A `shorter` log lost its last transaction, which the peer still has."""
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
        both_kept_all(pair, load)


def test_a_torn_journal_tail_loses_nothing_of_a_lone_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "alone", f"tcp://127.0.0.1:{free_port()}", None, "--heartbeat-s", "0.1").start()
    try:
        with Load([server.address], 1) as load:
            load.go_on(10)
            server.kill()
            wal = server.data / "journal.sqlite-wal"
            whole = wal.read_bytes()
            with wal.open("ab") as file:
                # This is half of a frame, as an unfinished write leaves it.
                file.write(whole[-2000:])
            server.start()
            load.go_on()
            load.end()
            nothing_lost([server], load)
    finally:
        with suppress(OSError):
            server.kill()


def test_a_start_and_a_check_report_a_full_disk(tmp_path: Path, tmpfs: Mount) -> None:
    """After an orderly end SQLite must make a file to read the journal, and has no room for it."""
    server = ServerProcess(tmp_path, "primary", f"tcp://127.0.0.1:{free_port()}", None, "--min-free-disk", "0")
    tmpfs(server.data, "4m")
    server.start()
    with Clone(server.address) as clone:
        clone.set("/a", bytes(100_000)).wait(WAIT_S)
    server.signal(signal.SIGTERM)
    assert server.process is not None and server.process.wait(WAIT_S) == 0
    with suppress(OSError), (server.data / "others").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    report = verify(f"sqlite:{server.data}")
    assert not report.ok and "no room" in report.line() and "damaged" not in report.line(), report.line()
    server.start()
    assert server.process.wait(WAIT_S) == Exit.NO_ROOM
    assert "no room" in server.log.read_text()
    (server.data / "others").unlink()
    server.start()
    with Clone(server.address) as clone:
        clone.wait_until_synced(WAIT_S)
        assert clone["/a"] == bytes(100_000)
    server.kill()


def test_a_server_starts_on_a_full_disk_by_the_reserve_of_its_last_run(tmp_path: Path, tmpfs: Mount) -> None:
    server = ServerProcess(tmp_path, "primary", f"tcp://127.0.0.1:{free_port()}", None)
    disk, reserve = Disk(tmpfs, server.data), server.data / "reserve"
    server.start()
    with Clone(server.address) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
        clone.set("/b", b"1").wait(WAIT_S)
    until(reserve.exists, "the reserve")
    server.signal(signal.SIGTERM)
    assert server.process is not None and server.process.wait(WAIT_S) == 0
    disk.fill(0)
    server.start()
    with Clone(server.address) as clone:
        clone.wait_until_synced(WAIT_S)
        assert dict(clone) == {"/a": b"1", "/b": b"1"} and not reserve.exists()
        clone.delete("/b").wait(WAIT_S)
    server.kill()


@pytest.mark.parametrize("which", ["passive", "active"])
def test_a_server_ends_if_its_journal_is_removed(tmp_path: Path, which: str) -> None:
    """An active with a removed journal hands over first.

    What the other server acknowledges later holds, and a restart repairs the server.
    """
    with ProcessPair(tmp_path) as pair, Clone(pair.servers) as clone:
        clone.set("/before", b"1").wait(WAIT_S)
        active = pair.active()
        assert active is not None
        victim = active if which == "active" else other(pair, active)
        shutil.rmtree(victim.data)
        assert ended(victim) == Exit.DATA_NOT_WRITABLE
        assert "its file was removed" in victim.log.read_text()
        until(lambda: (other(pair, victim).status() or {}).get("in_sync") is False, "the other to be alone")
        assert clone.set("/alone", b"1").wait(WAIT_S).durability == "journaled"
        victim.start()
        pair.wait_in_sync()
        assert clone.set("/after", b"1").wait(WAIT_S).durability == "replicated"
        equal(pair.both)
        assert dict(clone) == {"/before": b"1", "/alone": b"1", "/after": b"1"}
