"""Commands of other packages: found by entry point, listed, given their arguments as they are."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from chp_client.cli import plugins
from tests.talk import run


def greet(args: list[str]) -> int:
    """Greet the given words."""
    print("hello", *args)
    return 3


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "greet": EntryPoint("greet", "tests.unit.test_cli_plugins:greet", plugins.GROUP),
        "broken": EntryPoint("broken", "no.such.module:thing", plugins.GROUP),
        "get": EntryPoint("get", "no.such.module:thing", plugins.GROUP),
    }
    monkeypatch.setattr(plugins, "_found", lambda: made)


def test_help_lists_plug_ins_after_the_built_in_commands() -> None:
    shown = run("--help").stdout
    words = " ".join(shown.split())
    assert "greet Greet the given words." in words
    assert "broken (can't be loaded)" in words
    assert shown.index("restore") < shown.index("greet")


def test_a_plug_in_gets_all_arguments_and_returns_the_exit_code() -> None:
    result = run("greet", "--help", "-x", "--", "you")
    assert result.stdout.startswith("hello --help -x")
    assert result.exit_code == 3


def test_a_broken_plug_in_is_reported_when_it_is_called() -> None:
    result = run("broken", "x")
    assert result.exit_code == 4
    assert "'broken' of no.such.module:thing can't be loaded" in result.stderr


def test_a_misspelt_plug_in_is_suggested_and_hides_no_built_in_command() -> None:
    assert "did you mean `chp greet`" in run("gret").stderr
    assert "Print the values of keys" in run("get", "--help").stdout


def test_json_may_stand_before_a_plug_in_too() -> None:
    assert run("--json", "greet", "you").stdout == "hello --json you\n"


def test_a_plug_in_needs_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHP_SERVERS", "non/sense")
    assert run("greet").stdout == "hello\n"
