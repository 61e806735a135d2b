"""covers: `chp check --against SERVER` (against.py) compares a journal or a server with a running server."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import Clone
from chp_server.testing import Pair, TestServer, free_port
from chp_server.tools.against import Compared, Contents, Difference, HeldContents, NoContents, compare, compared
from chp_server.tools.check_command import check
from tests.talk import WAIT_S, synced


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Pair]:
    """Start a pair with journals and some keys, in sync and without a scrub."""
    stores = f"sqlite:{tmp_path / 'a'}", f"sqlite:{tmp_path / 'b'}"
    with Pair(store=stores, scrub_s=0.0) as made, synced(made.servers) as clone:
        while clone.set_many({f"/k/{i}": b"%d" % i for i in range(300)}).wait(WAIT_S).durability != "replicated":
            pass
        clone.set("/ttl", b"1", ttl=600).wait(WAIT_S)
        clone.delete_many(["/k/7"]).wait(WAIT_S)
        yield made


def active(pair: Pair) -> tuple[TestServer, TestServer]:
    """Return the active server and the other one."""
    one, two = sorted((pair.primary, pair.backup), key=lambda s: not (s.server is not None and s.server.core.active))
    return one, two


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_journals_and_servers_of_a_pair_are_equal(
    filled: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serves, follows = active(filled)
    for where in (str(tmp_path / "a"), str(tmp_path / "b"), follows.address, serves.address):
        for against in (serves.address, follows.address):
            assert check(["--json", where, "--against", against]) == 0
            said = told(capsys)
            assert (said["compared"], said["differences"], said["left_out"]) == (300, 0, 0)


def test_keys_that_differ_are_named(filled: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serves, follows = active(filled)
    assert follows.server is not None
    held = follows.server.core.state.map
    held.values["/k/5"] = b"x"
    held.values["/other"], held.revisions["/other"] = held.values.pop("/k/6"), held.revisions.pop("/k/6")
    del held.deadlines["/ttl"]
    assert check([follows.address, "--against", serves.address]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "301 keys compared" in lines[0] and "4 differ" in lines[0]
    assert lines[1] == "  '/k/5': another value"
    assert "'/k/6': only" in lines[2] and "'/other': only" in lines[3] and "'/ttl': no ttl" in lines[4]
    assert check([str(tmp_path / "a"), "--against", serves.address]) == 0


def test_an_older_journal_is_compared_as_far_as_it_goes(
    filled: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serves, _ = active(filled)
    old = tmp_path / "old"
    old.mkdir()
    db, copy = sqlite3.connect(tmp_path / "a" / "journal.sqlite"), sqlite3.connect(old / "journal.sqlite")
    db.backup(copy)
    db.close()
    copy.close()
    with Clone(filled.servers) as clone:
        clone.set_many({"/k/1": b"new", "/new": b"1"}).wait(WAIT_S)
        clone.delete_many(["/k/2"]).wait(WAIT_S)
    assert check(["--json", str(old), "--against", serves.address]) == 0
    said = told(capsys)
    assert (said["compared"], said["left_out"]) == (298, 3) and said["number"] != said["against_number"]


def test_a_journal_is_not_compared_with_a_server_of_another_store(
    filled: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TestServer(role="alone", store="memory:", bind=f"tcp://127.0.0.1:{free_port()}") as other:
        assert check([str(tmp_path / "a"), "--against", other.address]) == 1
    assert "two pairs, or one of them was begun anew" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["tcp://127.0.0.1:9"], 2, "say with --against"),
        (["tcp://127.0.0.1:9", "--against", "tcp://127.0.0.1:9", "--timeout", "0.2"], 1, "nobody takes connections at"),
        (["tcp://127.0.0.1:9", "--against", "non/sense"], 1, "write tcp://HOST:PORT"),
        (["data", "--against", "tcp://h:1", "--timeout", "soon"], 2, "not a number of seconds above 0"),
    ],
)
def test_chp_check_names_the_reason_if_it_cannot_compare(
    args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(args) == code
    assert said in capsys.readouterr().err


def contents(number: int, **keys: int) -> Contents:
    return Contents(
        f"at {number}", number, b"s", {key: HeldContents(revision, 0, False) for key, revision in keys.items()}
    )


@pytest.mark.parametrize(
    ("one", "other", "keys", "left_out", "differing"),
    [
        (contents(5, a=1, b=5), contents(5, a=1, b=5), 2, 0, []),
        # The key was set between the two numbers.
        (contents(5, a=1), contents(7, a=6), 0, 1, []),
        # The key may have been deleted between the two numbers.
        (contents(5, a=1), contents(7), 0, 1, []),
        # The older copy lacks a key that was set before its number.
        (contents(5), contents(7, a=4), 1, 0, ["a"]),
        (contents(7, a=4), contents(5), 1, 0, ["a"]),
        (contents(5, a=1), contents(7, a=2), 1, 0, ["a"]),
        (contents(5, a=1), contents(5), 1, 0, ["a"]),
    ],
)
def test_compare_leaves_out_keys_that_changed_between_two_numbers(
    one: Contents, other: Contents, keys: int, left_out: int, differing: list[str]
) -> None:
    found = compare(one, other)
    assert (found.keys, found.left_out, [d.key for d in found.differing]) == (keys, left_out, differing)


def test_a_difference_that_vanishes_in_a_second_comparison_is_not_reported() -> None:
    one, seen = contents(5, a=1), [contents(7, a=8)]
    found: Compared = compared(one, contents(7, a=2), seen.pop)
    assert found.differing == [] and not seen
    found = compared(contents(5, a=1), contents(5, a=2), lambda: pytest.fail("both are of one number"))
    assert found.differing == [Difference("a", "revision 0.1, not 0.2")]
    with pytest.raises(NoContents, match="two pairs"):
        compared(one, Contents("x", 5, b"t"), lambda: one)
