"""The commands that read and write, against a stand-in for the Clone: output, exit codes, errors in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from chp.numbers import number
from chp_client.cli import store as store_module
from chp_client.cli.app import chp
from chp_client.cli.data import write
from chp_client.cli.faults import Misused
from chp_client.cli.out import Out
from chp_client.errors import Refused
from tests.talk import run
from tests.unit.cli_standin import Shared, StandIn

pytestmark = pytest.mark.usefixtures("shared")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    made = Shared()
    monkeypatch.setattr(store_module, "make_clone", lambda settings, subtrees: StandIn(made, subtrees))
    monkeypatch.setattr(
        store_module, "why_no_server", lambda settings, if_heard="": "no server within 5 s; start chp-server"
    )
    monkeypatch.delenv("CHP_SERVERS", raising=False)
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Out, "terminal", property(lambda self: not self.json))
    monkeypatch.setenv("NO_COLOR", "1")


def one_line(result: Result) -> str:
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# -- get


def test_get_gives_exactly_the_bytes_to_a_pipe(shared: Shared) -> None:
    shared.put("/a/x", b"\x00\xff no line end")
    result = run("get", "/a/x")
    assert (result.exit_code, result.stdout_bytes) == (0, b"\x00\xff no line end")
    assert shared.opened == [["/a/"]]
    assert shared.closed == 1


@pytest.mark.usefixtures("terminal")
def test_get_ends_the_line_on_a_terminal_and_escapes(shared: Shared) -> None:
    shared.put("/a", b"one\ntwo\x1b[2J")
    assert run("get", "/a").stdout == "one\ntwo\\x1b[2J\n"
    assert run("get", "--raw", "/a").stdout_bytes == b"one\ntwo\x1b[2J"


def test_get_of_several_keys_has_a_line_each(shared: Shared) -> None:
    shared.put("/a/x", b"1")
    shared.put("/b/y", b"2")
    result = run("get", "/a/x", "/b/y")
    assert result.stdout == "/a/x\t1\n/b/y\t2\n"
    assert shared.opened == [["/a/", "/b/"]]


def test_get_in_json_has_revision_and_ttl(shared: Shared) -> None:
    shared.put("/a", b"\xff", ttl=12.3456)
    assert json.loads(run("get", "/a", "--json").stdout) == {
        "key": "/a", "base64": "/w==", "revision": "3.1", "ttl": 12.346
    }  # fmt: skip


def test_get_of_a_missing_key_fails_and_names_the_key(shared: Shared) -> None:
    shared.put("/a", b"1")
    result = run("get", "/a", "/b")
    assert (result.exit_code, result.stdout) == (1, "/a\t1\n")
    assert one_line(result) == "chp get: no key '/b'; `chp ls` lists what is there\n"


def test_get_without_the_first_slash_names_the_key_that_is_meant(shared: Shared) -> None:
    shared.put("/config/x", b"1")
    result = run("get", "config/x")
    assert result.exit_code == 1
    assert one_line(result) == "chp get: no key 'config/x'; did you mean /config/x?\n"


def test_no_server_has_its_own_exit_code(shared: Shared) -> None:
    shared.synced = False
    result = run("get", "/a")
    assert result.exit_code == 3
    assert one_line(result) == "chp get: no server within 5 s; start chp-server\n"
    assert shared.closed == 1


# -- set


def test_set_prints_nothing_to_a_pipe_and_reads_no_subtree(shared: Shared) -> None:
    result = run("set", "/a", "hello", "--ttl", "5m")
    assert (result.exit_code, result.output) == (0, "")
    assert (shared.entries["/a"].value, shared.entries["/a"].ttl) == (b"hello", 300)
    assert shared.opened == [[]]


@pytest.mark.usefixtures("terminal")
def test_set_prints_the_revision_on_a_terminal() -> None:
    assert run("set", "/a", "1").stdout == "set /a  revision 3.1, replicated\n"


def test_set_takes_bytes_from_standard_input_and_from_a_file(shared: Shared, tmp_path: Path) -> None:
    assert run("set", "/a", "-", stdin=b"\xff\n").exit_code == 0
    (tmp_path / "f").write_bytes(b"\x00file")
    assert run("set", "/b", "--file", str(tmp_path / "f")).exit_code == 0
    assert (shared.entries["/a"].value, shared.entries["/b"].value) == (b"\xff\n", b"\x00file")


def test_set_if_revision_succeeds_only_at_that_revision(shared: Shared) -> None:
    shared.put("/a", b"1")
    assert run("set", "/a", "2", "--if-revision", "3.1").exit_code == 0
    result = run("set", "/a", "3", "--if-revision", "3.1")
    assert result.exit_code == 4
    assert one_line(result) == "chp set: not set: '/a' is at revision 3.2; read it again and decide anew\n"
    assert "is at revision" in run("set", "/a", "3", "--if-revision", "0").stderr
    assert "'/new' is absent" in run("set", "/new", "3", "--if-revision", "3.1").stderr
    assert run("set", "/new", "3", "--if-revision", "0", "--json").stdout == (
        '{"key": "/new", "revision": "3.3", "durability": "replicated"}\n'
    )


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["set", "/a"], "either VALUE"),
        (["set", "/a", "1", "--file", "f"], "either VALUE"),
        (["set", "", "1"], "the key is empty"),
        (["set", "\x02x", "1"], "control character"),
        (["set", "HUGZ", "1"], "command of the protocol"),
        (["set", "/a" * 600, "1"], "1200 bytes"),
        (["set", "/a", "1", "--ttl", "nan"], "such as 30"),
        (["set", "/a", "1", "--ttl", "-3"], "such as 30"),
        (["set", "/a", "1", "--if-revision", "x"], "such as 1.42"),
        (["del", ""], "the key is empty"),
        (["del"], "Missing argument"),
        (["get"], "Missing argument"),
        (["watch", "--from", "yesterday"], "'yesterday' is not 'end', 'snapshot', 'begin' or a revision"),
        (["bench", "--prefix", "no-slash"], "must be '' or begin and end with '/'"),
        (["restore", "/etc/passwd"], "is a path"),
        (["backup", "../x.db"], "is a path"),
        (["ls", "--servers", "http://x:1"], "not tcp://host:port"),
        (["ls", "--servers", ",".join(f"a:{port}" for port in range(1, 18))], "17 servers named, more than 16"),
        (["ls", "--servers", "tcp://a:70000"], "has a port that is not one of 1 to 65533"),
        (["--servers", "tcp://::1:5556", "status"], "is not tcp://host:port"),
        (["ls", "--servers", "a:1,tcp://a:1"], "tcp://a:1 is named twice"),
        (["set", "/balance", "-5"], "if it is a value, put -- before it"),
        (["--nonsense"], "No such option"),
        (["status", "--nonsense"], "No such option"),
        (["lss"], "did you mean `chp ls`"),
        (["put", "/a", "1"], "did you mean `chp set`"),
        (["zzzzz"], "`chp --help` lists them"),
        (["topic", "lst"], "did you mean `chp topic ls`"),
        (["access", "zzzzz"], "`chp access --help` lists them"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(shared: Shared, args: list[str], says: str) -> None:
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert says in one_line(result)
    assert not shared.entries


def test_set_and_load_report_a_missing_file() -> None:
    for args in (["set", "/a", "--file", "/none"], ["load", "/none"]):
        result = run(*args)
        assert result.exit_code == 1
        assert "No such file" in one_line(result)


def test_set_without_an_acknowledgement_exits_with_code_3(shared: Shared) -> None:
    shared.acknowledges = False
    assert run("set", "/a", "1").exit_code == 3


# -- del


def test_del_succeeds_for_existing_and_missing_keys(shared: Shared) -> None:
    shared.put("/a", b"1")
    assert run("del", "/a", "/none").exit_code == 0
    assert shared.entries == {}
    assert shared.opened == [[]]


def test_del_of_a_folder_that_is_no_key_suggests_the_prefix_option(shared: Shared) -> None:
    for key in ("/d/a", "/d/b", "/e/a", "/f"):
        shared.put(key, b"1")
    two = run("del", "/f", "/d/")
    assert (two.exit_code, one_line(two)) == (
        1, "chp del: no key '/d/'; 2 keys begin with it: chp del --prefix /d/\n"
    )  # fmt: skip
    assert "1 key begins with it" in run("del", "/e/").stderr
    assert len(shared.entries) == 4
    assert run("del", "/nothing/").exit_code == 0
    shared.put("/d/", b"a key of that name")
    assert run("del", "/d/").exit_code == 0 and "/d/" not in shared.entries


def test_del_of_a_prefix_needs_yes_without_a_terminal(shared: Shared) -> None:
    for key in ("/a/x", "/a/y", "/b"):
        shared.put(key, b"1")
    result = run("del", "--prefix", "/a/")
    assert result.exit_code == 2
    assert "2 keys would be deleted, but there is no terminal to ask on; add --yes" in one_line(result)
    assert run("del", "--prefix", "/a/", "--dry-run").stdout == "/a/x\n/a/y\n"
    assert len(shared.entries) == 3
    assert json.loads(run("del", "--prefix", "/a/", "--yes", "--json").stdout) == {"deleted": 2}
    assert list(shared.entries) == ["/b"]


def test_del_of_a_prefix_asks_and_follows_the_answer(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chp_client.cli.data.write.can_ask", lambda: True)
    for answer, left, code in ((b"n\n", 1, 130), (b"y\n", 0, 0)):
        shared.put("/a/x", b"1")
        result = run("del", "--prefix", "/a/", stdin=answer)
        assert (result.exit_code, len(shared.entries)) == (code, left)
        assert "Delete 1 key under /a/?" in result.stderr


# -- ls


def test_ls_filters_counts_and_formats_keys(shared: Shared) -> None:
    for key in ("/b/x", "/a/y", "/a/x", "c"):
        shared.put(key, b"12345", ttl=60 if key == "/a/x" else None)
    assert run("ls").stdout == "/a/x\n/a/y\n/b/x\nc\n"
    assert run("ls", "/a/").stdout == "/a/x\n/a/y\n"
    assert run("ls", "/a/x").stdout == "/a/x\n"
    assert run("ls", "--count", "/a").stdout == "2\n"
    assert run("ls", "--limit", "2").stdout == "/a/x\n/a/y\n"
    assert run("ls", "--after", "/a/x", "--limit", "2").stdout == "/a/y\n/b/x\n"
    assert run("ls", "-l", "/", "--after", "/a/x").stdout == "3.2\t-\t5\t/a/y\n3.1\t-\t5\t/b/x\n"
    assert run("ls", "-l", "/a/").stdout == "3.3\t60.000\t5\t/a/x\n3.2\t-\t5\t/a/y\n"
    assert run("ls", "--tree", "--depth", "1").stdout == "/a/ (2)\n/b/ (1)\nc\n"
    assert run("ls", "/none/").stdout == ""
    assert [json.loads(line) for line in run("ls", "/a/", "--json").stdout.splitlines()] == [
        {"key": "/a/x", "revision": "3.3", "ttl": 60, "bytes": 5},
        {"key": "/a/y", "revision": "3.2", "bytes": 5},
    ]


def test_du_sums_bytes_and_keys_by_folder(shared: Shared) -> None:
    for key, size in (("/b/x", 1), ("/a/b/1", 10), ("/a/b/2", 20), ("/a/c", 100), ("c", 3)):
        shared.put(key, bytes(size))
    assert run("du").stdout == "146\t3\t/a/\n5\t1\t/b/\n4\t1\tc\n155\t5\tall\n"
    assert run("du", "/a/").stdout == "104\t1\t/a/c\n42\t2\t/a/b/\n146\t3\tall under '/a/'\n"
    assert run("du", "--depth", "2").stdout.splitlines()[:2] == ["104\t1\t/a/c", "42\t2\t/a/b/"]
    few = run("du", "--keys", "--limit", "1")
    assert few.stdout == "104\t1\t/a/c\n155\t5\tall\n" and "4 more; --limit 5" in few.stderr
    assert [json.loads(line) for line in run("du", "/a/", "--limit", "1", "--json").stdout.splitlines()] == [
        {"name": "/a/c", "bytes": 104, "keys": 1},
        {"prefix": "/a/", "bytes": 146, "keys": 3},
    ]


@pytest.mark.usefixtures("terminal")
def test_ls_long_is_aligned_on_a_terminal(shared: Shared) -> None:
    shared.put("/a", b"1" * 2048, ttl=90)
    assert run("ls", "-l").stdout == "REVISION     TTL     SIZE  KEY\n     3.1  1m 30s  2.0 KiB  /a\n"


# -- watch


def _change(key: str, value: bytes | None, sequence: int, *, expired: bool = False) -> Any:
    return SimpleNamespace(key=key, value=value, revision=number(3, sequence), expired=expired, mount="")


def test_watch_prints_sets_and_deletes(shared: Shared) -> None:
    shared.changes = [
        _change("/a", b"\xff1", 1), _change("/a", None, 2), _change("/b", b"", 3), _change("/b", None, 4, expired=True)
    ]  # fmt: skip
    assert run("watch", "--count", "2").stdout_bytes == b"set\t/a\t\xff1\ndel\t/a\n"
    assert [json.loads(line) for line in run("watch", "/", "--json", "--from", "3.7").stdout.splitlines()] == [
        {"op": "set", "key": "/a", "base64": "/zE=", "revision": "3.1"},
        {"op": "del", "key": "/a", "revision": "3.2"},
        {"op": "set", "key": "/b", "value": "", "revision": "3.3"},
        {"op": "del", "key": "/b", "expired": True, "revision": "3.4"},
    ]
    assert shared.opened == [[""], ("watch", "", "end"), ["/"], ("watch", "/", number(3, 7))]
    assert run("watch", "--count", "1").stdout_bytes == b"set\t/a\t\xff1\n"
    assert run("watch").stdout_bytes.splitlines()[-1] == b"del\t/b\texpired"


def test_watch_from_a_number_above_the_stores_number_is_refused(shared: Shared) -> None:
    assert run("watch", "--from", "3.1042").exit_code == 0
    result = run("watch", "--from", "3.1043")
    assert result.exit_code == 4 and "3.1043 is above the store's number 3.1042" in result.stderr
    assert ("watch", "", number(3, 1043)) not in shared.opened


def test_watch_refuses_old_start_words_and_names_the_new_ones(shared: Shared) -> None:
    for word, start in (("end", "end"), ("snapshot", "snapshot"), ("begin", "begin"), ("3.7", number(3, 7))):
        assert run("watch", "--from", word).exit_code == 0
        assert shared.opened[-1] == ("watch", "", start)
    for old, new in (("now", "end"), ("earliest", "begin"), ("latest", "end")):
        result = run("watch", "--from", old)
        assert result.exit_code == 2 and f"'--from': {old!r} is gone; use {new!r}" in one_line(result)
    for command in ("watch", "record"):
        result = run(command, *["there"][: command == "record"], "--start", "now")
        assert (result.exit_code, one_line(result)) == (2, f"chp {command}: --start is gone; use --from\n")
    assert "from begin, or from a revision" in one_line(run("replay", "there", "--from", "snapshot"))


def test_watch_refuses_a_pattern_unless_a_key_begins_with_it(shared: Shared) -> None:
    shared.put("/a/x", b"1")
    result = run("watch", "/a/*")
    assert (result.exit_code, one_line(result)) == (2, "chp watch: '/a/*': a watch is by prefix; use '/a/'\n")
    shared.put("/a/*", b"1")
    assert run("watch", "/a/*").exit_code == 0


def test_a_forced_switch_needs_one_of_the_servers_as_target() -> None:
    pair = ("--servers", "a:1,b:1")
    assert "name the one that is to serve with --to" in one_line(run("switch", "--force", *pair))
    assert "tcp://c:1 is none of the servers named" in one_line(run("switch", "--force", "--to", "tcp://c:1", *pair))
    assert "--to is for --force" in one_line(run("switch", "--to", "tcp://b:1", *pair))


# -- dump and load


def test_dump_and_load_bring_everything_back(shared: Shared, tmp_path: Path) -> None:
    values = {"/a": b"text", "/b": b"\x00\xff", "/c": b"", "/d\u2028": "käse\n".encode()}
    for key, value in values.items():
        shared.put(key, value, ttl=30.5 if key == "/b" else None)
    dumped = run("dump").stdout_bytes
    assert run("dump", "-o", str(tmp_path / "d")).exit_code == 0
    assert (tmp_path / "d").read_bytes() == dumped
    assert [p.name for p in tmp_path.iterdir()] == ["d"]
    shared.entries.clear()
    assert run("load", "-", stdin=dumped).exit_code == 0
    assert {k: e.value for k, e in shared.entries.items()} == values
    assert {k: e.ttl for k, e in shared.entries.items()} == {"/a": None, "/b": 30.5, "/c": None, "/d\u2028": None}


def test_load_names_the_line_that_is_nested_too_deeply() -> None:
    result = run("load", "-", stdin=b"[" * 100_000)
    assert result.exit_code == 2 and "line 1: not JSON" in result.stderr


def test_load_sends_portions_that_share_a_ttl(shared: Shared) -> None:
    lines = [json.dumps({"key": f"/{i}", "value": "x"}) for i in range(2500)]
    lines.append(json.dumps({"key": "/t", "value": "x", "ttl": 5}))
    result = run("load", "-", stdin="\n".join(lines).encode())
    assert shared.many == [(1000, None), (1000, None), (500, None), (1, 5.0)]
    assert "2,501 keys" in result.stderr
    assert "sets/s, replicated" in result.stderr
    assert json.loads(run("load", "-", "--json", stdin=lines[0].encode()).stdout)["keys"] == 1
    assert run("load", "-", "--ttl", "1m", stdin=lines[-1].encode()).exit_code == 0
    assert shared.many[-1] == (1, 60.0)


def test_load_dry_run_sets_nothing(shared: Shared) -> None:
    assert "1 key checked" in run("load", "-n", "-", stdin=b'{"key": "/a", "value": "1"}').stderr
    assert shared.entries == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"key": "/a", "val', "not JSON"),
        (b'["/a", "1"]', "not an object"),
        (b'{"key": "/a"}', "one of"),
        (b'{"value": "1"}', "a key is text"),
        (b'{"key": "", "value": "1"}', "the key is empty"),
        (b'{"key": "/a", "value": "1", "ttl": "5"}', "number of seconds"),
        (b'{"key": "/a", "value": "1", "ttl": -5}', "not a time to live"),
        (b'{"key": "/a", "value": "1", "ttl": NaN}', "not a time to live"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_load_names_the_line_that_is_wrong(line: bytes, says: str) -> None:
    result = run("load", "-", stdin=b'{"key": "/ok", "value": "1"}\n\n' + line + b"\n")
    assert result.exit_code == 2
    assert "-, line 3: " in one_line(result)
    assert says in result.stderr


def test_a_failed_dump_leaves_the_earlier_file_unchanged(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.put("/a", b"1")
    file = tmp_path / "d"
    run("dump", "-o", str(file))
    before = file.read_bytes()

    def full(stream: Any, items: Any, advance: Any) -> int:
        stream.write(b"half a line")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chp_client.cli.data.transfer._write_items", full)
    result = run("dump", "-o", str(file))
    assert result.exit_code == 1
    assert "No space left" in one_line(result)
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (before, [file])


def test_dump_writes_through_a_link_or_pipe_without_replacing_it(shared: Shared, tmp_path: Path) -> None:
    shared.put("/a", b"1")
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to("file")
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("dump", "-o", str(link)).exit_code == run("dump", "-o", str(fifo)).exit_code == 0
        assert os.read(reader, 4096) == (tmp_path / "file").read_bytes()
    finally:
        os.close(reader)
    assert link.is_symlink() and fifo.is_fifo()


def test_dump_to_a_missing_directory_fails_in_one_line(tmp_path: Path) -> None:
    result = run("dump", "-o", str(tmp_path / "no" / "d"))
    assert result.exit_code == 1
    assert "can't be written: No such file" in one_line(result)


def test_load_says_how_many_keys_are_set_before_a_wrong_line(shared: Shared) -> None:
    lines = b"".join(b'{"key": "/k/%d", "value": "v"}\n' % i for i in range(1500))
    wrong = run("load", "-", stdin=lines + b"nonsense\n")
    assert "-, line 1501: " in one_line(wrong) and "; 1,000 keys of the lines before it are set" in wrong.stderr
    assert len(shared.entries) == 1000
    assert "; nothing was set" in run("load", "-", stdin=b"nonsense\n").stderr


def test_load_says_how_many_keys_are_set_before_a_refusal(shared: Shared) -> None:
    lines = b"".join(b'{"key": "/k/%d", "value": "v"}\n' % i for i in range(2500))
    shared.refuses = {"/k/2000": Refused("disk: 1 MiB is free; free some", "full", None, "")}
    refused = run("load", "-", stdin=lines)
    assert refused.exit_code == 4
    assert one_line(refused).endswith("free some; 2,000 of the 2,500 keys sent are known to be set\n")
    shared.refuses = {"/k/0": Refused("user 'bob' may not", "access", None, "")}
    assert one_line(run("load", "-", stdin=lines)).endswith(
        "may not; 1,500 of the 2,500 keys sent are known to be set\n"
    )


# -- the shared options


def test_shared_options_stand_before_or_after(shared: Shared) -> None:
    shared.put("/a", b"1")
    assert run("--json", "get", "/a").stdout == run("get", "/a", "--json").stdout


@pytest.mark.parametrize(
    ("args", "environment", "expected"),
    [
        ([], None, ("tcp://127.0.0.1:5556", "tcp://127.0.0.1:5566")),
        ([], "tcp://e:1", ("tcp://e:1",)),
        (["--servers", "a:1, tcp://b:2"], "tcp://e:1", ("tcp://a:1", "tcp://b:2")),
    ],
)
def test_servers_come_from_the_option_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch, args: list[str], environment: str | None, expected: tuple[str, ...]
) -> None:
    seen: list[tuple[str, ...]] = []

    def make_clone(settings: Any, subtrees: list[str]) -> StandIn:
        seen.append(settings.servers)
        return StandIn(Shared(), subtrees)

    monkeypatch.setattr(store_module, "make_clone", make_clone)
    for line in ([*args, "ls"], ["ls", *args]):
        result = CliRunner(env={"CHP_SERVERS": environment}).invoke(chp, line, prog_name="chp")
        assert (result.exit_code, seen.pop()) == (0, expected)


def test_a_wrong_chp_servers_is_named_only_if_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHP_SERVERS", "non/sense")
    wrong = run("ls")
    assert wrong.exit_code == 2
    assert one_line(wrong).startswith("chp ls: CHP_SERVERS: 'non/sense' is not tcp://host:port")
    assert run("ls", "--servers", "a:1").exit_code == run("--servers", "a:1", "ls").exit_code == 0
    assert run("ls", "--help").exit_code == 0


# -- help, and life without click


def test_chp_without_arguments_shows_its_help() -> None:
    shown = run()
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "\n  get " in shown.stderr and "  Examples:\n" in shown.stderr
    for name, command in (("topic", "groups"), ("access", "grant")):
        shown = run(name)
        assert (shown.exit_code, shown.stdout) == (2, "") and f"\n  {command} " in shown.stderr


def test_the_help_fits_a_terminal_of_80_columns() -> None:
    for args in ([], *([name] for name in chp.commands)):
        assert max(map(len, run(*args, "--help").stdout.splitlines())) <= 80, args


def test_every_command_has_help_with_examples() -> None:
    for name in chp.commands:
        shown = run(name, "--help")
        assert shown.exit_code == 0
        assert "Examples:" in shown.stdout, name
    assert "Examples:" in run("--help").stdout


def test_without_click_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from chp_client import cli

    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "chp: click and rich not installed; run: pip install 'chp-clone[cli]'\n"


def test_a_broken_pipe_ends_the_command_quietly(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Out, data: bytes) -> None:
        raise BrokenPipeError

    shared.put("/a", b"1")
    monkeypatch.setattr(Out, "raw", gone)
    monkeypatch.setattr("chp_client.cli.app._forget_stdout", lambda: None)
    result = run("ls")
    assert (result.exit_code, result.output) == (141, "")
    assert shared.closed == 1


def test_a_full_disk_is_told_in_one_line(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Out, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    shared.put("/a", b"1")
    monkeypatch.setattr(Out, "raw", full)
    monkeypatch.setattr("chp_client.cli.app._forget_stdout", lambda: None)
    result = run("ls")
    assert (result.exit_code, result.stdout) == (1, "")
    assert one_line(result) == "chp ls: the answer can't be written: No space left on device\n"


def test_closed_streams_crash_no_command(shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(Misused, match="standard input is closed"):
        write.standard_input()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        chp.main(["ls"], "chp")
    assert ended.value.code == 0


def test_ctrl_c_is_quiet(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Out, data: bytes) -> None:
        raise KeyboardInterrupt

    shared.put("/a", b"1")
    monkeypatch.setattr(Out, "raw", interrupted)
    result = run("ls")
    assert (result.exit_code, result.output.strip()) == (130, "")
    assert shared.closed == 1


@pytest.mark.parametrize("command", ["ls", "dump"])
def test_ls_and_dump_say_if_no_key_has_the_prefix(shared: Shared, command: str) -> None:
    shared.put("/a", b"1")
    for prefix, said in (("nope", "no keys begin with 'nope'\n"), ("/nope/", "no keys begin with '/nope/'\n")):
        result = run(command, prefix)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", said)
    assert run(command, "/a").stderr == ""
    assert run(command, "nope", "--json").stderr == ""
