"""Tests of the audit: the user, the act, its number and its outcome, as JSON lines (docs/operations.md).

covers: access/audit.py, questions/audit_log.py, --audit; keys and addresses by ZAP's metadata; a file that is moved
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from chp import keyfiles
from chp.batch import packb
from chp.keys import channel_topic
from chp.messages import ICANHAZ
from chp_client import Clone, Refused
from chp_client.clientfile import ClientFile
from chp_client.port.admin import Admin
from chp_server.access.audit import Audit
from chp_server.core.updates.turn import Fact
from chp_server.exits import CannotStart
from chp_server.testing import TestServer
from tests.talk import WAIT_S, until
from tests.wire import keys
from tests.wire.hand import at

ROOT, BOB, EVE = keys.new_pair(), keys.new_pair(), keys.new_pair()
RULES = {
    "roles": {},
    "users": {"root": {"admin": ["access", "status", "backup"], "read": [""]}, "bob": {"read": ["/pub/"]}},
}
Lines = list[dict[str, Any]]


class Audited:
    """A server with keys and an audit."""

    def __init__(self, base: Path, server: TestServer) -> None:
        self.server, self.path = server, base / "audit.jsonl"
        self.key = keys.public_of(base / "a")
        known = {server.address: self.key}
        self.files = {
            name: ClientFile.read(keys.client_file(base / f"{name}.toml", pair, known))
            for name, pair in (("root", ROOT), ("bob", BOB))
        }

    def lines(self, **wanted: Any) -> Lines:
        """Return the lines that have these fields."""
        said = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in said if wanted.items() <= line.items()]

    def one(self, **wanted: Any) -> dict[str, Any]:
        """Wait for a line with these fields, and return the first one."""
        until(lambda: self.lines(**wanted), f"a line with {wanted}")
        return self.lines(**wanted)[0]

    def ask(self, user: str, command: str, **options: Any) -> dict[str, Any]:
        """Send an admin command of a user."""
        with Admin(self.files[user], WAIT_S) as admin:
            return admin.ask(self.server.address, command, **options).facts


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Audited]:
    a, _ = keys.pair_of_directories(tmp_path, ("root", ROOT), ("bob", BOB))
    settings: dict[str, Any] = {
        "keys": str(a),
        "audit": str(tmp_path / "audit.jsonl"),
        "backup_dir": str(tmp_path / "backups"),
    }
    with TestServer(**settings) as server:
        yield Audited(tmp_path, server)


def key_of(pair: keyfiles.KeyPair) -> str:
    """Return a public key as lines show it."""
    return pair.public.decode()[: keyfiles.SHOWN]


def test_an_admin_command_is_audited_with_user_number_and_verdict(audited: Audited) -> None:
    audited.ask("root", "backup", name="before.db")
    line = audited.one(audit="admin", what="backup before.db")
    assert {**line, "time": 0, "number": 0} == {
        "time": 0, "server": "alone-5556", "audit": "admin", "user": "root", "key": key_of(ROOT),
        "address": "127.0.0.1", "number": 0, "what": "backup before.db", "verdict": "done",
    }  # fmt: skip
    with pytest.raises(Refused):
        audited.ask("root", "backup", name="../before.db")
    assert audited.one(what="backup ../before.db")["verdict"].startswith("refused: a backup has a name")
    with pytest.raises(Refused):
        audited.ask("root", "nonsense")
    assert "is not known" in audited.one(what="nonsense")["verdict"]


def test_a_change_of_rules_is_audited_line_by_line_with_its_number(audited: Audited) -> None:
    number = audited.ask("root", "access", rules=RULES, on=0)["number"]
    line = audited.one(audit="access")
    assert line["user"] == "root" and line["what"][0] == "+ user bob read /pub/" and line["verdict"] == "done"
    assert line["number"] == f"{number >> 48}.{number & (1 << 48) - 1}"
    assert audited.one(audit="admin", what="access")["verdict"] == "done"


def test_denials_at_every_port_are_audited_and_a_flood_is_counted(audited: Audited) -> None:
    audited.ask("root", "access", rules=RULES, on=0)
    with pytest.raises(Refused):
        audited.ask("bob", "switch")
    assert audited.one(audit="denied", user="bob", key=key_of(BOB))["what"] == "admin 'switch'"
    with zmq.Context() as context:
        with keys.socket(context, zmq.SUB, BOB, audited.key) as sub:
            sub.connect(at(audited.server.address, 1))
            sub.subscribe(channel_topic("/secret/"))
            sub.recv_multipart()
        until(lambda: "/secret/" in audited.lines(audit="denied", user="bob")[-1]["what"], "it is told")
        with Clone(audited.files["bob"], subtree=None) as bob, pytest.raises(Refused):
            bob.set("/secret/x", b"1").wait(WAIT_S)
        wanted = "may not write '/secret/x'"
        until(lambda: wanted in audited.lines(audit="denied", user="bob")[-1]["what"], "it is told")
        with keys.socket(context, zmq.DEALER, BOB, audited.key) as dealer:
            dealer.connect(at(audited.server.address, 0))
            for i in range(200):
                dealer.send_multipart([ICANHAZ, b"/secret/", packb({"chp": 4, "id": i + 1, "from": 0})])
            for _ in range(200):
                dealer.recv_multipart()
    assert len(audited.lines(audit="denied", user="bob")) <= 10
    audited.server.kill()
    counted = sum(line.get("more", 0) for line in audited.lines(audit="denied", user="bob"))
    assert counted + len([x for x in audited.lines(audit="denied", user="bob") if "verdict" in x]) >= 203


def test_new_and_unknown_keys_are_audited(audited: Audited) -> None:
    audited.ask("bob", "status")
    assert audited.one(audit="key", user="bob")["key"] == key_of(BOB)
    audited.ask("bob", "status")
    assert len(audited.lines(audit="key", user="bob")) == 1
    with zmq.Context() as context, keys.socket(context, zmq.DEALER, EVE, audited.key) as eve:
        eve.connect(at(audited.server.address, 0))
        line = audited.one(audit="denied", key=key_of(EVE))
        assert "not known" in line["verdict"] and line["address"] == "127.0.0.1" and "user" not in line


def test_the_audit_file_has_no_secrets_or_values(audited: Audited) -> None:
    with Clone(audited.files["root"]) as root:
        root.set("/pub/a", b"a-value-that-is-nobody's").wait(WAIT_S)
    audited.ask("root", "access", rules=RULES, on=0)
    text = audited.path.read_text()
    assert "a-value" not in text and ROOT.secret.decode() not in text
    assert os.stat(audited.path).st_mode & 0o077 == 0


def test_a_moved_audit_file_is_opened_anew(audited: Audited) -> None:
    audited.ask("root", "backup", name="one.db")
    moved = audited.path.rename(audited.path.with_name("audit.1"))

    def rotated() -> bool:
        audited.ask("root", "leases")
        return audited.path.exists()

    until(rotated, "a new file")
    assert audited.one(what="leases")["user"] == "root" and "one.db" in moved.read_text()


def test_the_audit_goes_to_standard_error_if_its_file_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    audit = Audit("-", "b")
    audit.note(Fact("warning", "denied", {"user": "bob", "what": "read '/x/'"}), 3 << 48 | 7)
    audit.note(Fact("info", "active", {}), 1)
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert {**said, "time": 0} == {
        "time": 0, "server": "b", "audit": "denied", "user": "bob", "number": "3.7", "what": "read '/x/'",
        "verdict": "denied",
    }  # fmt: skip


def test_an_audit_file_that_cannot_be_opened_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"no-such/audit\.jsonl"):
        Audit(str(tmp_path / "no-such" / "audit.jsonl"), "b")


def test_admin_commands_are_audited_without_keys(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    server = TestServer(audit=str(path))
    server.config = replace(server.config, name="lone")
    with server, Admin([server.address], WAIT_S) as admin:
        admin.ask(server.address, "leases")
    assert [json.loads(line)["what"] for line in path.read_text().splitlines()] == ["leases"]
