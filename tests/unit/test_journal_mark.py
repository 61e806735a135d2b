"""covers: journal_mark.py: a mark that is damaged is refused, never taken for none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chp_server.core.state.journal import JournalDamaged, JournalError, Options
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.sql.journal_mark import JournalMark, MarkFile, mark_path, read_mark
from chp_server.store.store_url import open_journal
from chp_server.tools.check_command import DAMAGED, check

STORE = b"s" * 16


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Make a closed journal with two rows."""
    made = open_journal(f"sqlite:{tmp_path}")
    made.load()
    made.append([LoggedRow(1, 1, b"one"), LoggedRow(2, 2, b"two")])
    made.sync()
    made.close()
    return tmp_path / "journal.sqlite"


def damages(path: Path) -> dict[str, bytes]:
    whole = path.read_bytes()
    flipped = {f"octet {at}": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (0, 9, 30, 50, 66, 75)}
    return {"empty": b"", "cut": whole[:70], "zeros": bytes(len(whole)), **flipped}


def test_a_damaged_mark_is_refused_with_the_remedy(journal: Path) -> None:
    path = mark_path(journal)
    for what, data in damages(path).items():
        path.write_bytes(data)
        with pytest.raises(JournalDamaged, match=r"journal.sqlite.mark is damaged.*--recover prefix") as refused:
            open_journal(f"sqlite:{journal.parent}", catch_up=True)
        assert refused.value.place == "the mark", what
        assert path.read_bytes() == data, "a refusal changes nothing"


def test_an_unreadable_mark_is_refused(journal: Path) -> None:
    mark_path(journal).unlink()
    mark_path(journal).mkdir()
    with pytest.raises(JournalError, match="can't be read"):
        open_journal(f"sqlite:{journal.parent}")


def test_chp_check_reports_a_damaged_mark(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark_path(journal).write_bytes(b"?")
    assert check([str(journal.parent)]) == DAMAGED
    assert "mark is damaged" in capsys.readouterr().out


def test_recover_prefix_accepts_the_journal_and_makes_the_mark_anew(journal: Path) -> None:
    mark_path(journal).write_bytes(b"?")
    opened = open_journal(f"sqlite:{journal.parent}", recover="prefix")
    assert "journal.sqlite.mark was damaged, and is made anew" in opened.load().report
    opened.close()
    mark = read_mark(journal)
    assert mark is not None and mark.number == 2
    open_journal(f"sqlite:{journal.parent}").close()


def test_a_half_written_new_mark_is_ignored_and_removed(journal: Path) -> None:
    Path(f"{mark_path(journal)}.new").write_bytes(b"half")
    opened = open_journal(f"sqlite:{journal.parent}")
    opened.load()
    opened.close()
    assert not Path(f"{mark_path(journal)}.new").exists()
    mark = read_mark(journal)
    assert mark is not None and mark.number == 2


def test_the_mark_of_a_remote_journal_is_certain_only_with_sync_always(tmp_path: Path) -> None:
    """A database on another machine may lose what was not synced, however long this one runs."""
    for sync, certain in (("always", True), ("interval", False)):
        path = tmp_path / sync
        mark = JournalMark("there", path, Options(sync=sync), owned=True, same_host=False)
        mark.follow(STORE, 7, 0)
        mark.close()
        found = read_mark(path)
        assert found is not None and (found.number, found.certain) == (7, certain)
        MarkFile(path, STORE, sync, 7).close()
        here = read_mark(path)
        assert here is not None and here.certain, "this machine has not been started since"
        assert os.stat(mark_path(path)).st_mode & 0o777 == 0o600
