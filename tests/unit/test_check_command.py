"""`chp check`: a sound journal, a damaged one, none at all; for people and as JSON."""

import json
import shutil
from pathlib import Path
from time import monotonic

import pytest

from chp_server.core.state.journal import JournalDamaged
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.store_url import open_journal
from chp_server.tools.check_command import DAMAGED, USAGE, check, store_url
from tests.damage.test_sqlite_damage import filled, flip


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("/var/lib/chp", "sqlite:/var/lib/chp"),
        ("data", "sqlite:data"),
        ("sqlite:/x", "sqlite:/x"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("C:\\data", "sqlite:C:\\data"),
    ],
)
def test_store_url_turns_a_path_into_an_sqlite_url(where: str, url: str) -> None:
    assert store_url(where) == url


def test_a_sound_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "j")
    assert check([str(tmp_path / "j")]) == 0
    assert "sound" in capsys.readouterr().out


def test_a_damaged_journal_is_named_and_sets_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "sound")
    flip(filled(tmp_path / "j"), b"body 000007 ")
    assert check(["--json", str(tmp_path / "j"), str(tmp_path / "sound")]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["sound"], second["sound"]) == (False, True)
    assert second["rows"] == 20
    assert second["number"] == "1.20"
    assert first["problems"]


def test_a_journal_path_that_does_not_exist_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([str(tmp_path / "none")]) == 1
    assert "does not exist; name" in capsys.readouterr().err


@pytest.mark.parametrize(("args", "code"), [(["--help"], 0), ([], 2), (["--nonsense", "x"], 2)])
def test_help_and_wrong_use_have_exit_codes(args: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(args) == code
    capsys.readouterr()


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("mysql://u:secret@h/db", 2, "mysql://u:***@h/db is no store that can be checked"),
        ("memory:", 2, "is no store that can be checked"),
        ("postgresql://u:secret@127.0.0.1:1/db", 1, "postgresql://u:***@127.0.0.1:1/db: not checked: "),
    ],
)
def test_a_store_that_cannot_be_checked_is_not_called_damaged(
    url: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([url]) == code
    shown = "".join(capsys.readouterr())
    assert says in shown and "DAMAGED" not in shown and "secret" not in shown


def test_a_directory_without_a_journal_is_not_called_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "journal.sqlite does not exist; name" in shown.err


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "j.db").write_bytes(b"garbage " * 1000)
    assert check([str(tmp_path / "j.db")]) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_a_usage_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    check([])
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a journal as a kill leaves it, with all of it in the log."""
    journal = open_journal(f"sqlite:{tmp_path / 'live'}")
    journal.load()
    journal.append([LoggedRow(1, 1, b"one")])
    journal.sync()
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    journal.close()
    return tmp_path / "copy"


def test_a_missing_sqlite_log_is_named_in_plain_words(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "journal.sqlite-wal").unlink()
    assert check([str(copied)]) == DAMAGED
    said = capsys.readouterr().out
    assert "journal.sqlite-wal, its log, is missing or empty; put that back" in said and "Safety" not in said


def test_a_missing_database_beside_its_log_is_reported(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "journal.sqlite").unlink()
    assert check([str(copied)]) == DAMAGED
    said = capsys.readouterr().err
    assert "is gone, and journal.sqlite-wal and journal.sqlite.mark beside it tell that there was one" in said
    assert "--recover prefix" in said


def test_an_unreadable_database_says_that_recover_prefix_cannot_help(copied: Path) -> None:
    (copied / "journal.sqlite").write_bytes(b"garbage" * 4000)
    for recover in ("strict", "prefix"):
        with pytest.raises(JournalDamaged, match=r"with --recover prefix neither: move it .* away, and let the other"):
            open_journal(f"sqlite:{copied}", recover=recover)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_an_invalid_timeout_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["tcp://127.0.0.1:9", "--against", "tcp://127.0.0.1:9", f"--timeout={text}"]) == USAGE
    assert "--timeout" in capsys.readouterr().err


def test_unreachable_servers_are_reported_within_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    began = monotonic()
    assert check(["tcp://127.0.0.1:9", "--against", "tcp://127.0.0.1:9", "--timeout", "0.2"]) == DAMAGED
    said = capsys.readouterr().err
    assert "nobody takes connections at tcp://127.0.0.1:9 (waited 0.2 s, --timeout)" in said
    assert monotonic() - began < 40, "not the 60 s of before"
