"""Backups of a core that goes on: as of one number, whole or not there at all."""

import os
from pathlib import Path

import pytest

from chp.batch import REFUSED, Segment, packb, split
from chp.errors import BadInput
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.numbers import describe, pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.journal import JournalFull
from chp_server.core.updates.committed import Committed
from chp_server.core.updates.turn import Copy
from chp_server.shell.copies import Copies, reading


def read_backup(path: str) -> Committed:
    """Return the state of a whole backup."""
    steps = reading(path, DEFAULT, 0.0)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Committed = done.value
            return found


class Backed:
    """A lone server and its copies."""

    def __init__(self, directory: Path) -> None:
        self.core = ServerCore(CoreConfig(name="a"), b"s" * 16, 0.0)
        self.copies = Copies(str(directory), self.core, DEFAULT)
        self.no = 0
        self.core.begin_turn(0.0, 0.0)
        self.core.end_turn()

    def set(self, now: float, **extras: object) -> None:
        self.no += 1
        self.core.begin_turn(now, now)
        segment = Segment(["/k"], [b"%d" % self.no], dict(extras) or None)
        self.core.collect([RESERVED_KEY, pack(self.no), b"1" * 16, b"", segment.encode()])
        self.core.end_turn()

    def end_backup(self) -> list[object]:
        """Finish the backup, and return the header of its answer."""
        while self.copies.busy:
            self.copies.step()
        (reply,) = [messages[0] for _, messages in self.core.end_turn().replies]
        header: list[object] = split(reply[4])[0]
        return header


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    return Backed(tmp_path)


def test_a_backup_has_the_ttls_of_its_number(backed: Backed, tmp_path: Path) -> None:
    """A backup must have the ttls of its own number, since no rows follow that could correct them."""
    path = str(tmp_path / "b.db")
    backed.set(1.0)
    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    backed.set(2.0, t=100)
    backed.set(3.0)
    backed.set(4.0, t=100)
    backed.end_backup()
    found = read_backup(path).state.map
    assert found.values == {"/k": b"1"} and not found.deadlines


def test_a_path_that_is_a_plain_name_is_the_name_of_the_backup(backed: Backed, tmp_path: Path) -> None:
    """Clients of 0.1 send a path. The backup once got the name of the moment then."""
    backed.copies.backup(b"i", {"id": 1, "path": "b.db"})
    backed.end_backup()
    assert os.listdir(tmp_path) == ["b.db"]


def test_a_backup_that_finds_no_room_leaves_the_disk_as_it_was(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise JournalFull("no room")

    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    assert os.listdir(tmp_path)
    monkeypatch.setattr(Snapshotter, "step", full)
    assert backed.end_backup()[0] == REFUSED
    assert not os.listdir(tmp_path)


def test_a_server_that_ends_leaves_no_part_of_a_backup(backed: Backed, tmp_path: Path) -> None:
    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    backed.copies.close()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "/tmp/x.db",
        "../x.db",
        "a/b.db",
        "..",
        ".db",
        ".x.db",
        "x.db/",
        "x.txt",
        "x\0.db",
        "x\n.db",
        "x" * 150 + ".db",
        7,
        b"x.db",
    ],
)
def test_a_backup_name_that_is_a_path_or_malformed_is_refused(tmp_path: Path, name: object) -> None:
    """A path would let a user write `.db` files anywhere on the host, and learn which files exist."""
    backed = Backed(tmp_path / "backups")
    (tmp_path / "x.db").write_bytes(b"")
    for ask in (backed.copies.backup, backed.copies.restore):
        with pytest.raises(BadInput, match="has a name and no path"):
            ask(b"i", {"id": 1, "name": name})
    with pytest.raises(BadInput, match="has a name and no path"):
        backed.copies.backup(b"i", {"id": 1, "path": "/tmp/x.db"})
    assert os.listdir(tmp_path) == ["x.db"]


def test_restore_refuses_links_and_folders_like_missing_backups(backed: Backed, tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret.db"
    secret.write_bytes(b"")
    (tmp_path / "link.db").symlink_to(secret)
    (tmp_path / "dangling.db").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.db").mkdir()
    said = set()
    for name in ("link.db", "dangling.db", "folder.db", "never.db"):
        with pytest.raises(BadInput) as error:
            backed.copies.restore(b"i", {"id": 1, "name": name})
        said.add(str(error.value))
    assert len(said) == 1 and not backed.copies.busy
    with pytest.raises(BadInput, match="exists"):
        backed.copies.backup(b"i", {"id": 1, "name": "dangling.db"})


def test_a_restore_backs_up_the_state_that_it_replaces(backed: Backed, tmp_path: Path) -> None:
    backed.set(1.0)
    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    backed.end_backup()
    backed.set(2.0)
    before = describe(backed.core.state.number)
    backed.copies.restore(b"i", {"id": 2, "name": "b.db"})
    header = backed.end_backup()
    said = header[2]
    assert isinstance(said, dict) and said["name"] == "b.db" and said["kept_number"] == before
    assert backed.core.state.map.values == {"/k": b"1"}
    assert read_backup(str(tmp_path / said["kept"])).state.map.values == {"/k": b"2"}
    backed.copies.restore(b"i", {"id": 3, "name": said["kept"]})
    backed.end_backup()
    assert backed.core.state.map.values == {"/k": b"2"}, "and back"


def test_a_restore_leaves_out_leased_keys_and_ends_present_leases(backed: Backed) -> None:
    """A lock that was held when the backup was made would be held for ever, without a holder."""
    lease = b"L" * 16
    backed.set(1.0, lease=[lease, 3000], l=lease)
    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    backed.end_backup()
    state = backed.core.state
    assert state.map.values == {"/k": b"1"} and list(state.leases) == [lease]
    backed.copies.restore(b"i", {"id": 2, "name": "b.db"})
    backed.end_backup()
    assert not state.map.values and not state.leases


def test_a_restore_is_refused_if_the_present_state_cannot_be_backed_up(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backed.set(1.0)
    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    backed.end_backup()
    backed.set(2.0)

    def full(*_: object) -> bool:
        raise JournalFull("no room")

    monkeypatch.setattr(Snapshotter, "step", full)
    backed.copies.restore(b"i", {"id": 2, "name": "b.db"})
    assert backed.end_backup()[0] == REFUSED
    assert backed.core.state.map.values == {"/k": b"2"} and os.listdir(tmp_path) == ["b.db"]


def test_a_restore_is_read_in_steps_and_turns_go_on_meanwhile(backed: Backed, tmp_path: Path) -> None:
    """A map of a million keys takes seconds to read: the peer would take over."""
    for now in range(1, 4):
        backed.set(now)
    backed.copies.backup(b"i", {"id": 1, "name": "b.db"})
    backed.end_backup()
    backed.set(5.0, d=[0])
    backed.copies.restore(b"i", {"id": 2, "name": "b.db"})
    assert backed.copies.busy and not backed.core.state.map
    with pytest.raises(BadInput, match="under way"):
        backed.copies.restore(b"i", {"id": 3, "name": "b.db"})
    backed.copies.step()
    assert backed.copies.busy and not backed.core.state.map
    backed.set(6.0, d=[0])
    assert backed.end_backup()[0] != REFUSED
    assert backed.core.state.map.values == {"/k": b"3"}


def test_a_restore_of_a_file_that_is_no_backup_is_refused(backed: Backed, tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    path.write_bytes(b"no database" * 1000)
    backed.copies.restore(b"i", {"id": 2, "name": "b.db"})
    assert backed.end_backup()[0] == REFUSED
    assert not backed.copies.busy


def test_the_core_hands_a_backup_request_to_the_shell(backed: Backed, tmp_path: Path) -> None:
    backed.core.begin_turn(1.0, 1.0)
    backed.core.request([b"i", ICANHAZ, b"\x02backup\x03", packb({"id": 1, "chp": 3, "name": "b.db"})])
    turn = backed.core.end_turn()
    assert not turn.replies and not list(tmp_path.iterdir()), "the core touches no file"
    (asked,) = turn.copies
    backed.copies.ask(asked)
    header = backed.end_backup()
    assert isinstance(header[2], dict) and header[2]["name"] == "b.db" and (tmp_path / "b.db").exists()


def test_a_restore_of_an_unknown_name_is_refused(backed: Backed) -> None:
    backed.copies.ask(Copy("restore", b"i", {"id": 1, "name": "none.db"}))
    header = backed.end_backup()
    assert header[0] == REFUSED and "no backup of that name" in str(header[3])
