"""`chp access` on a pair with keys: what it shows, changes, and says when it can't (SPEC.md, section 36).

covers: client/chp_client/cli/servers/access.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests import talk
from tests.wire import keys

ROOT, BOB = keys.new_pair(), keys.new_pair()
RULES = """
[roles.reader]
read = ["/pub/"]
deny-read = ["/pub/internal/"]

[users.root]
admin = ["access", "status"]
read = [""]
write = [""]

[users.bob]
roles = ["reader"]
"""
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a pair with keys, and write the client files of root and bob."""
    folder = tmp_path_factory.mktemp("access")
    with keys.pair_with_keys(folder, ("root", ROOT), ("bob", BOB)) as pair:
        servers = keys.known(pair)
        for name, key in (("root", ROOT), ("bob", BOB)):
            keys.client_file(folder / f"{name}.toml", key, servers)
        yield folder


@pytest.fixture
def run(base: Path) -> Run:
    """Return a function that runs `chp access` as a user."""
    return lambda who, *words: talk.run("access", words[0], "--client-file", str(base / f"{who}.toml"), *words[1:])


def test_rules_are_applied_shown_granted_tested_and_revoked(run: Run, base: Path) -> None:
    assert run("root", "show").output == "there are no rules: every admitted client may do everything\n"
    assert run("bob", "test", "bob", "write", "/x").output == "bob may write /x\n"
    refused = run("root", "grant", "bob", "read", "/pub/")
    assert refused.exit_code == 4 and "chp access grant root admin access" in refused.output

    (base / "rules.toml").write_text(RULES)
    dry = run("root", "apply", str(base / "rules.toml"), "--dry-run")
    assert dry.exit_code == 0 and "+ user bob roles reader" in dry.output.splitlines()
    assert "no rules" in run("root", "show").output
    done = run("root", "apply", str(base / "rules.toml"))
    assert done.output == dry.output, done.output
    assert run("root", "apply", str(base / "rules.toml")).output == "nothing changes\n"

    shown_lines = run("root", "show").output.splitlines()
    assert "role reader deny-read /pub/internal/" in shown_lines
    assert shown_lines[-1].startswith("# no rule names `consume`: `read` of a topic allows its groups")
    shown = json.loads(run("root", "show", "bob", "--json").output)
    assert shown["users"] == {"bob": {"roles": ["reader"]}} and shown["number"] > 0
    assert run("root", "test", "bob", "read", "/pub/x").exit_code == 0
    assert run("root", "test", "bob", "read", "/pub/").exit_code == 1

    assert run("root", "grant", "bob", "write", "/pub/bob/", "/inbox/").output == (
        "+ user bob write /inbox/\n+ user bob write /pub/bob/\n"
    )
    assert run("root", "test", "bob", "write", "/inbox/").output == "bob may write /inbox/\n"
    assert run("root", "revoke", "bob", "write", "/inbox/").output == "- user bob write /inbox/\n"
    assert run("root", "revoke", "--role", "reader", "deny-read", "/pub/internal/").exit_code == 0
    assert run("root", "test", "bob", "read", "/pub/").exit_code == 0
    assert run("root", "user", "carol", "--role", "reader").output == "+ user carol roles reader\n"
    assert run("root", "user", "carol", "--remove").output == "- user carol roles reader\n"

    denied = run("bob", "show")
    assert denied.exit_code == 4 and "ask root" in denied.output and denied.output.count("\n") == 1

    for command in ("status", "leases", "clients"):
        result = talk.run(command, "--client-file", str(base / "bob.toml"))
        assert result.exit_code == 4 and "denied" in result.output and "UNREACHABLE" not in result.output, command


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[users.bob", "is not TOML"),
        ("[users.bob]\nread = ['/pub']", "'/pub/'"),
        ("[groups.bob]", "'roles'"),
        (None, "No such file"),
    ],
)
def test_an_invalid_rules_file_is_refused_by_name(run: Run, tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "wrong.toml"
    if text is not None:
        file.write_text(text)
    result = run("root", "apply", str(file))
    assert result.exit_code == 2 and says in result.output and "wrong.toml" in result.output


def test_read_allows_no_groups_after_the_first_consume_rule(run: Run, base: Path) -> None:
    (base / "rules.toml").write_text(RULES.replace('read = ["/pub/"]', 'read = ["/pub/", "/.chp/topics/"]'))
    assert run("root", "apply", str(base / "rules.toml")).exit_code == 0
    group = "/.chp/topics/orders/billing/"
    assert run("root", "test", "bob", "consume", group).output == f"bob may consume {group}\n"
    granted = run("root", "grant", "root", "consume", "/.chp/topics/")
    assert granted.output.splitlines()[0] == "+ user root consume /.chp/topics/"
    assert granted.output.splitlines()[1].startswith("# from now on rules name `consume`")
    assert run("root", "show").output.splitlines()[-1].startswith("# rules name `consume`")
    assert run("root", "test", "bob", "consume", group).exit_code == 1
    assert run("root", "test", "root", "consume", group).exit_code == 0
    assert json.loads(run("root", "show", "--json").output)["names_consume"] is True
    assert "# from now on no rule names" in run("root", "revoke", "root", "consume", "/.chp/topics/").output


def test_granting_an_unknown_admin_command_is_refused(run: Run) -> None:
    refused = run("root", "grant", "bob", "admin", "swich")
    assert refused.exit_code == 2 and "did you mean switch?" in refused.output
    assert "swich" not in run("root", "show").output


def test_a_dry_run_tells_what_would_be_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "nobody.toml"
    file.write_text("")
    told = run("root", "apply", str(file), "--dry-run")
    assert told.exit_code == 2 and "no user could change these rules" in told.output
    file.write_text(RULES + "#" * (1 << 20))
    told = run("root", "apply", str(file), "--dry-run")
    assert told.exit_code == 2 and "more than 1048576 bytes" in told.output, "half of a file is no file of rules"
