"""Tests that a subtree moves from one pair to another by the commands of docs/operations/growing.md.

covers: the page; `chp dump`, `load`, `ls` and `access` at two pairs with keys, and a Clone that gets a mount
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chp_client import Clone, Refused
from chp_server.testing import Pair
from tests.talk import PATIENT, WAIT_S, run, synced, until
from tests.wire import keys

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "growing.md").read_text(encoding="utf-8")
ROOT, BOB = keys.new_pair(), keys.new_pair()
RULES = """
[roles.writers]
read = [""]
write = [""]
[users.root]
admin = ["access", "status"]
read = [""]
write = [""]
[users.bob]
roles = ["writers"]
"""


def commands() -> dict[str, list[str]]:
    """Return step -> commands of the page."""
    section = PAGE.partition("## Move a subtree to another pair\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d\. \*\*(.*?)\*\*(.*?)(?=^\d\. |^- )", section, re.M | re.S)
    return {name: re.findall(r"^ +\$ (chp .*)$", text, re.M) for name, text in steps}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start two pairs with keys and rules, and write the client files of root and of bob."""
    base = tmp_path_factory.mktemp("moving")
    (base / "rules.toml").write_text(RULES)
    with contextlib.ExitStack() as stack:
        known: dict[str, dict[str, bytes]] = {}
        pairs: dict[str, Pair] = {}
        for name in ("old", "new"):
            pair = keys.pair_with_keys(base / name, ("root", ROOT), ("bob", BOB), **PATIENT)
            pairs[name] = stack.enter_context(pair)
            known[name] = keys.known(pair)
            file = keys.client_file(base / f"{name}.toml", ROOT, known[name])
            keys.client_file(base / f"bob-{name}.toml", BOB, known[name])
            assert run("access", "apply", str(base / "rules.toml"), "--client-file", str(file)).exit_code == 0
        both = keys.client_file(base / "bob-both.toml", BOB, {**known["old"], **known["new"]})
        mounts = f'[mounts]\n"/" = {pairs["old"].servers}\n"/rates/" = {pairs["new"].servers}\n'.replace("'", '"')
        both.write_text(f"{both.read_text()}\n{mounts}")
        yield base


def do(folder: Path, command: str) -> str:
    """Run a command of the page, or two joined by a pipe, and return the output of the last one."""
    given: bytes | None = None
    for part in command.split(" | "):
        words = [str(folder / word) if word.endswith(".toml") else word for word in part.split()[1:]]
        done = run(*words, stdin=given)
        assert done.exit_code == 0, f"{command}: {done.output}"
        given = done.stdout_bytes
    return done.stdout


def test_the_page_on_moving_has_the_tested_steps() -> None:
    assert [(name, len(found)) for name, found in commands().items()] == [
        ("Freeze.", 1), ("Copy.", 1), ("Compare.", 2), ("Flip.", 0), ("Clean up", 1)
    ]  # fmt: skip


def test_a_subtree_moves_while_programs_read(folder: Path) -> None:
    steps = commands()
    held = {f"/rates/{i}": b"%d" % i for i in range(20)}
    with Clone(client_file=folder / "bob-old.toml") as before:
        before.set_many({**held, "/config/a": b"1"}).wait(WAIT_S)
        before.set("/rates/short", b"ends", ttl=1000).wait(WAIT_S)
        do(folder, steps["Freeze."][0])
        with pytest.raises(Refused, match="may not write '/rates/0'"):
            before.set("/rates/0", b"late").wait(WAIT_S)
        before.set("/config/a", b"2").wait(WAIT_S)
        do(folder, steps["Copy."][0])
        old, new = (do(folder, command) for command in steps["Compare."])
        assert old == new == "21\n"
        with synced(None, client_file=folder / "bob-both.toml") as after:
            assert dict(after.prefix("/rates/")) == {**held, "/rates/short": b"ends"} and after["/config/a"] == b"2"
            left = after.entry("/rates/short")
            assert left is not None and left.ttl is not None and 0 < left.ttl <= 1000
            after.set("/rates/0", b"new").wait(WAIT_S)
            assert after.mounts["/rates/"]["/rates/0"] == b"new" and before["/rates/0"] == b"0"
            do(folder, steps["Clean up"][0])
            until(lambda: not list(before.prefix("/rates/")))
            assert len(list(after.prefix("/rates/"))) == 21 and before["/config/a"] == b"2"


def test_revoking_the_freeze_lets_users_write_at_the_old_pair_again(folder: Path) -> None:
    [command] = re.findall(r"`(chp access revoke [^`]*)`", PAGE)
    do(folder, command.replace("chp access", "chp --client-file old.toml access"))
    with Clone(client_file=folder / "bob-old.toml", subtree=None) as before:
        before.set("/rates/back", b"1").wait(WAIT_S)
