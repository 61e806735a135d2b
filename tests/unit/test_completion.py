"""covers: cli/completion.py: scripts for three shells, and which commands, options and keys they are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.shell_completion import ShellComplete

from chp_client.cli import completion
from chp_client.cli import store as store_module
from chp_client.cli.app import chp
from tests.talk import run
from tests.unit.cli_standin import Shared, StandIn


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    made = Shared()
    monkeypatch.setattr(store_module, "make_clone", lambda settings, subtrees: StandIn(made, subtrees))
    monkeypatch.delenv("CHP_SERVERS", raising=False)
    return made


def offered(*args: str) -> list[str]:
    """Return the completions of the last word."""
    found = ShellComplete(chp, {}, "chp", "_CHP_COMPLETE").get_completions(list(args[:-1]), args[-1])
    return [str(each.value) for each in found]


def test_commands_and_options_are_offered() -> None:
    assert offered("sta") == ["status"]
    assert "--tree" in offered("ls", "--t")
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_the_help_lists_every_command() -> None:
    assert not chp.commands.keys() - set(chp.list_commands(Context(chp)))


@pytest.mark.parametrize("words", [("get",), ("get", "/x"), ("set",), ("del",), ("history",)])
def test_keys_are_offered_where_a_key_is_asked_for(shared: Shared, words: tuple[str, ...]) -> None:
    for key in ("/a/1", "/a/2", "/b/1"):
        shared.put(key, b"")
    assert offered(*words, "/a") == ["/a/1", "/a/2"]
    assert shared.closed == 1


def test_folders_are_offered_in_place_of_too_many_keys(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "WORDS_MAX", 4)
    for key in ("/a/b/1", "/a/b/2", "/a/b/3", "/a/c", "/a/d/1", "/a/d/2"):
        shared.put(key, b"")
    assert offered("get", "/") == ["/a/b/", "/a/c", "/a/d/"]
    assert offered("get", "/a/b") == ["/a/b/1", "/a/b/2", "/a/b/3"]


def test_no_key_is_offered_without_a_pair_or_with_bad_settings(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    shared.synced = False
    monkeypatch.setattr(store_module, "why_no_server", lambda *_: "no server", raising=False)
    assert offered("get", "/") == []
    monkeypatch.setenv("CHP_SERVERS", "non/sense")
    assert offered("get", "/") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_each_shell_asks_chp(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0 and f"_CHP_COMPLETE={shell}_complete" in done.stdout


def test_an_unknown_shell_is_refused_by_name() -> None:
    done = run("completion", "tcsh")
    assert done.exit_code == 2 and "'tcsh'" in done.stderr and "'fish'" in done.stderr


def test_bash_completes_words_with_the_script(tmp_path: Path) -> None:
    """A bash that reads the script completes words by its function."""
    program = tmp_path / "chp"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m chp_client.cli "$@"\n')
    program.chmod(0o755)
    asked = 'COMP_WORDS=(chp sta); COMP_CWORD=1; _chp_completion chp; echo "${COMPREPLY[@]}"\n'
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = 'eval "$(chp completion bash)"\n' + asked
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environ, check=True)
    assert done.stdout == "status\n", done.stderr
