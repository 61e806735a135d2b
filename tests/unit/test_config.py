"""Tests of the server's configuration: the four sources, their order, and one message for each mistake."""

from dataclasses import fields
from pathlib import Path

import pytest

from chp_server.core.core import CoreConfig
from chp_server.settings.config import SETTINGS, Config
from chp_server.settings.readers import is_loopback, without_password
from chp_server.settings.sources import ConfigError, load, show

PAIR = ["--primary", "--bind", "tcp://*:5556", "--insecure", "--peer", "tcp://b:5566"]


def problems(*argv: str, **environ: str) -> tuple[str, ...]:
    """Return the problems of a command line and its environment variables."""
    with pytest.raises(ConfigError) as caught:
        load(argv, environ)
    return caught.value.problems


def test_the_core_has_a_slice_of_the_settings() -> None:
    config = Config(role="backup", peer="tcp://b:1", heartbeat_s=0.125, scrub_s=7.0, max_keys=0, name="n")
    core = CoreConfig.of(config, secret=b"s", durability=1, disk_free_min=2)
    both = {field.name for field in fields(CoreConfig)} & {field.name for field in fields(Config)}
    assert both == {
        "name", "heartbeat_s", "peer_timeout_s", "solo_wait_s", "replica_timeout_s", "slow_peer_s", "bootstrap",
        "scrub_s", "retain_s", "retain_bytes", "replica", "readers_max", "copies", "confirms", "promote",
    }  # fmt: skip
    assert {name: getattr(core, name) for name in both} == {name: getattr(config, name) for name in both}
    assert (core.primary, core.has_peer, core.keys_max, core.disk_free_min) == (False, True, None, 2)


def test_each_setting_has_a_default_in_words() -> None:
    for setting in SETTINGS:
        assert setting.default_shown not in ("", "None"), setting.name


def test_defaults_by_role() -> None:
    alone = load([], {}).config
    assert (alone.role, alone.bind, alone.peer) == ("alone", "tcp://127.0.0.1:5556", None)
    assert (alone.name, alone.data, alone.store) == ("alone-5556", "chp-data/alone-5556", "sqlite:chp-data/alone-5556")
    backup = load(["--backup", "--peer", "tcp://localhost:5556"], {}).config
    assert (backup.role, backup.bind, backup.name) == ("backup", "tcp://127.0.0.1:5566", "backup-5566")
    assert backup.endpoint(3) == "tcp://127.0.0.1:5569"
    assert backup.peer_endpoint(1) == "tcp://localhost:5557"
    assert alone.peer_endpoint(3) is None
    replica = load(["--replica", "--upstream", "tcp://a:5556, tcp://b:5566"], {}).config
    assert (replica.name, replica.store, replica.sync) == ("replica-5576", "memory:", "interval")
    assert replica.upstreams == ["tcp://a:5556", "tcp://b:5566"]
    assert load(["--replica", "--upstream", "tcp://a:5556", "--data", "d"], {}).config.store == "sqlite:d"


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "chp.toml"
    file.write_text('heartbeat_s = 0.1\nsync = "off"\nlog_level = "debug"\nmetrics = 9556\n')
    environ = {"CHP_SERVER_SYNC": "interval", "CHP_SERVER_LOG_LEVEL": "error", "CHP_SERVER_PEER": ""}
    loaded = load(["--config", str(file), "--log-level", "warning"], environ)
    config = loaded.config
    assert (config.heartbeat_s, config.sync, config.log_level) == (0.1, "interval", "warning")
    assert config.metrics == "127.0.0.1:9556"
    assert loaded.sources == {
        "heartbeat_s": str(file),
        "metrics": str(file),
        "sync": "CHP_SERVER_SYNC",
        "log_level": "--log-level",
    }
    assert load([], {**environ, "CHP_SERVER_CONFIG": str(file)}).config.heartbeat_s == 0.1


def test_each_setting_has_three_spellings(tmp_path: Path) -> None:
    values = {
        "role": "primary", "bind": "tcp://*:7000", "peer": "tcp://b:7000", "arbiter": "etcds://z:2181/chp",
            "arbiter_ca": "ca.pem", "arbiter_cert": "cert.pem", "arbiter_key": "key.pem",
        "name": "n", "data": "d", "store": "sqlite:j", "sync": "off", "recover": "prefix", "retain_s": "1",
        "retain_bytes": "1KiB", "retain_memory_bytes": "2KiB", "heartbeat_s": "0.1", "peer_timeout_s": "0.2",
        "solo_wait_s": "never",
        "replica_timeout_s": "3", "slow_peer_s": "5", "pending_bytes_max": "2M", "scrub_s": "60",
        "metrics": "0.0.0.0:1",
        "log_format": "json", "log_level": "debug", "bootstrap": "yes",
        "max_memory": "1GiB", "max_keys": "1000", "min_free_disk": "1MiB",
        "insecure": "yes", "backup_dir": "b", "ipc": "/run/chp", "keys": "k", "plain_bind": "tcp://127.0.0.1:7100",
        "audit": "/var/log/chp/audit.jsonl", "readers_max": "500", "copies": "3",
    }  # fmt: skip
    # A replica is no part of a pair, and its promotion opens no store, so their settings are tried apart.
    of_a_replica = {"replica": "yes", "upstream": "tcp://a:1", "confirms": "yes", "data": "d"}
    flags = [word for name, value in of_a_replica.items() for word in (f"--{name}", value)]
    apart = load(flags, {}).config
    assert apart == load([], {f"CHP_SERVER_{name.upper()}": value for name, value in of_a_replica.items()}).config
    assert load(["--promote"], {}).config == load([], {"CHP_SERVER_PROMOTE": "yes"}).config
    tried = [s for s in SETTINGS if s.name not in ("replica", "upstream", "confirms", "promote")]
    assert values.keys() == {s.name for s in tried}
    by_flag = load([word for s in tried for word in (s.flag, values[s.name])], {}).config
    by_variable = load([], {s.variable: values[s.name] for s in tried}).config
    (tmp_path / "all.toml").write_text("".join(f'{name} = "{text}"\n' for name, text in values.items()))
    by_file = load(["--config", str(tmp_path / "all.toml")], {}).config
    assert by_flag == by_variable == by_file
    assert (by_flag.solo_wait_s, by_flag.retain_bytes, by_flag.pending_bytes_max) == (None, 1024, 2 << 20)


def test_the_shown_configuration_can_be_read_again(tmp_path: Path) -> None:
    loaded = load([*PAIR, "--solo-wait-s", "never"], {"CHP_SERVER_SYNC": "off"})
    (tmp_path / "shown.toml").write_text(show(loaded))
    assert load(["--config", str(tmp_path / "shown.toml")], {}).config == loaded.config
    assert "# --peer" in show(loaded) and "# CHP_SERVER_SYNC" in show(loaded) and "# default" in show(loaded)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--primry"], ["unknown flag --primry; did you mean --primary?"]),
        (["--hartbeat-s=3"], ["unknown flag --hartbeat-s; did you mean --heartbeat-s?"]),
        (["--xyzzy"], ["unknown flag --xyzzy; see chp-server --help"]),
        (["--heart", "1"], ["unknown flag --heart"]),
        (["extra"], ["'extra' is not expected"]),
        (["--bind"], ["--bind", "expected one argument"]),
        (["--primary", "--backup"], ["--backup", "not allowed with", "--primary"]),
        (["--primary", "--role", "backup"], ["--role and --primary are both given"]),
        (["--role", "boss"], ["role = boss (from --role)", "primary, backup, alone"]),
        (["--bind", "5556"], ["bind = 5556 (from --bind)", "tcp://HOST:PORT"]),
        (["--bind", "tcp://::1:5556"], ["bind = tcp://::1:5556", "tcp://HOST:PORT"]),
        (["--bind", "tcp://[::]:5556"], ["bind = tcp://[::]:5556", "no keys"]),
        (["--primary", "--peer", "tcp://[::]:5566"], ["peer", "wildcard can't be connected to"]),
        (["--primary", "--bind", "tcp://[::1]:1", "--peer", "tcp://[::1]:4"], ["peer", "this server itself"]),
        (["--bind", "tcp://*:65533"], ["bind", "from 1 to 65532"]),
        (["--bind", "tcp://*:0"], ["bind", "from 1 to 65532"]),
        (["--primary", "--peer", "tcp://*:5566"], ["peer", "wildcard can't be connected to"]),
        (["--peer", "tcp://127.0.0.1:5566"], ["peer", "add --primary or --backup"]),
        (["--backup"], ["role = backup", "--peer tcp://HOST:P"]),
        (["--primary", "--peer", "tcp://localhost:5559"], ["peer", "this server itself", "tcp://127.0.0.1:5556"]),
        (["--bind", "tcp://*:5556"], ["bind = tcp://*:5556 (from --bind)", "no keys", "--keys DIR", "--insecure"]),
        (["--plain-bind", "tcp://127.0.0.1:7000"], ["plain_bind", "without --keys"]),
        (["--keys", "k", "--plain-bind", "tcp://10.0.0.7:7000"], ["plain_bind", "this host only"]),
        (["--keys", "k", "--plain-bind", "tcp://127.0.0.1:5558"], ["plain_bind", "touches tcp://127.0.0.1:5556"]),
        (["--keys", "k", "--backup", "--peer", "tcp://b:1"], ["peer = tcp://b:1", "'tcp://*:5566' or"]),
        (["--bind", "tcp://10.0.0.7:5556"], ["bind = tcp://10.0.0.7:5556", "--insecure"]),
        (["--bind", "tcp://*:5556", "--insecure", "no"], ["bind = tcp://*:5556", "--insecure"]),
        (
            ["--primary", "--peer", "tcp://b:5566"],
            ["peer = tcp://b:5566", "--bind 'tcp://*:5556' and --keys", "--insecure"],
        ),
        (["--backup", "--peer", "tcp://10.0.0.7:5556"], ["peer = tcp://10.0.0.7:5556", "another host"]),
        (["--insecure", "perhaps"], ["insecure = perhaps", "yes or no"]),
        (["--primary", "--bind", "tcp://h:1", "--peer", "tcp://h:1", "--insecure"], ["this server itself"]),
        (["--store", "mysql://x"], ["store = mysql://x", "memory:, sqlite:PATH or postgresql://"]),
        (["--store", "mysql://u:secret@x"], ["u:***@x"]),
        (["--sync", "often"], ["sync = often", "always, interval, off"]),
        (["--recover", "guess"], ["recover = guess", "strict, prefix"]),
        (["--heartbeat-s", "soon"], ["heartbeat_s = soon (from --heartbeat-s)", "a number of seconds"]),
        (["--heartbeat-s", "-1"], ["heartbeat_s = -1", "from 0.01 to 60"]),
        (["--heartbeat-s", "nan"], ["heartbeat_s = nan", "from 0.01 to 60"]),
        (["--heartbeat-s", "2"], ["peer_timeout_s = 1.0 (from default)", "at least 4", "heartbeat_s = 2"]),
        (["--peer-timeout-s", "0.3"], ["peer_timeout_s = 0.3 (from --peer-timeout-s)", "at least 0.5"]),
        ([*PAIR, "--solo-wait-s", "0.1"], ["solo_wait_s = 0.1", "at least 0.5", "never"]),
        (["--solo-wait-s", "nie"], ["solo_wait_s = nie", "or 'never'"]),
        (["--arbiter", "zk://localhost"], ["arbiter", "zk://HOST:PORT/PATH"]),
        (["--arbiter", "zk://z:2181/chp"], ["arbiter", "a server alone needs none"]),
        ([*PAIR, "--arbiter", "etcd://localhost/chp"], ["arbiter", "etcd://HOST:PORT/PATH"]),
        ([*PAIR, "--arbiter", "etcd://e:0/chp"], ["arbiter", "etcd://HOST:PORT/PATH"]),
        ([*PAIR, "--arbiter", "etcd://bob@e:2379/chp"], ["arbiter", "USER:PASSWORD@"]),
        ([*PAIR, "--arbiter", "zk://bob:pw@z:2181/chp"], ["arbiter", "only etcd://"]),
        ([*PAIR, "--arbiter", "etcd://e:2379/chp", "--arbiter-ca", "ca.pem"], ["arbiter_ca", "etcds://"]),
        ([*PAIR, "--arbiter", "etcds://e:2379/chp", "--arbiter-key", "k.pem"], ["arbiter_key", "--arbiter-cert"]),
        ([*PAIR, "--arbiter", "zk://z:2181/chp?session_s=abc"], ["arbiter", "?session_s=SECONDS"]),
        ([*PAIR, "--arbiter", "zk://z:2181/chp?sesion_s=5"], ["arbiter", "?session_s=SECONDS"]),
        ([*PAIR, "--arbiter", "zk://z:2181/chp?session_s=0"], ["arbiter", "?session_s=SECONDS"]),
        (["--retain-s", "-1"], ["retain_s = -1", "from 0 to 3153600000"]),
        (["--metrics", "here"], ["metrics = here", "9556"]),
        (["--metrics", "no such:9100"], ["metrics = no such:9100", "HOST:PORT"]),
        (["--retain-bytes", "much"], ["retain_bytes = much", "64MiB"]),
        (["--retain-bytes", "1.5G"], ["retain_bytes = 1.5G", "a whole number", "K, M, G and T"]),
        (["--retain-bytes", "8EiB"], ["retain_bytes = 8EiB", "K, M, G and T"]),
        (
            ["--store", "memory:", "--retain-bytes", "1MiB"],
            ["retain_bytes = 1048576 (from --retain-bytes)", "no journal", "give --retain-memory-bytes"],
        ),
        (["--retain-memory-bytes", "1GiB", "--max-memory", "1GiB"], ["retain_memory_bytes", "raise --max-memory"]),
        (["--pending-bytes-max", "1"], ["pending_bytes_max = 1", "at least 1048576"]),
        (["--name", "a b"], ["name = a b", "letters"]),
        (["--log-format", "xml"], ["log_format = xml", "text, json"]),
        (["--config", "/no/such.toml"], ["config file /no/such.toml (from --config)", "check the path"]),
    ],
)
def test_a_wrong_flag_names_setting_value_source_and_remedy(argv: list[str], words: list[str]) -> None:
    (problem,) = problems(*argv)
    for word in words:
        assert word in problem
    assert "secret" not in problem


def test_an_unknown_variable_is_an_error() -> None:
    (problem,) = problems(CHP_SERVER_HARTBEAT_S="1")
    assert problem.endswith("CHP_SERVER_HARTBEAT_S is no setting; unset it; did you mean CHP_SERVER_HEARTBEAT_S?")
    assert load([], {"CHP_SERVERS": "tcp://a:1", "PATH": "x"}).config == load([], {}).config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hartbeat_s = 1", ["hartbeat_s in", "is no setting", "did you mean heartbeat_s?"]),
        ("heartbeat-s = 1", ["did you mean heartbeat_s?"]),
        ("[server]\nrole = 'alone'", ["[server] in", "is a table", "keep the settings below it"]),
        ("heartbeat_s = true", ["heartbeat_s = True", "a bool can't be used"]),
        ("sync = ['always']", ["sync", "a list can't be used"]),
        ("role = ", ["is not TOML"]),
        ("sync = 'often'", ["sync = often", "chp.toml", "always, interval, off"]),
    ],
)
def test_a_wrong_config_file_is_refused_with_the_mistake_named(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "chp.toml"
    file.write_text(text)
    (problem,) = problems("--config", str(file))
    for word in words:
        assert word in problem


def test_all_problems_are_told_at_once() -> None:
    found = problems("--primry", "--sync", "often", "--metrics", "x", CHP_SERVER_BIND="y", CHP_SERVER_Z="1")
    assert len(found) == 5


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_are_no_errors(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load([word], {})
    assert caught.value.code == 0
    assert "chp-server" in capsys.readouterr().out


def test_the_arbiter_setting_may_give_the_session_length() -> None:
    assert load([*PAIR, "--arbiter", "zk://z:2181/chp?session_s=5"], {}).config.arbiter == "zk://z:2181/chp?session_s=5"


def test_the_help_has_every_flag_default_example_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(["--help"], {})
    text = capsys.readouterr().out
    for setting in SETTINGS:
        metavar = f"[{setting.metavar}]" if setting.is_switch else setting.metavar
        assert f"  {setting.flag} {metavar}" in text
    for words in ("--primary", "examples:", "exit codes:\n  0 ", "\n  70 ", "CHP_SERVER_HEARTBEAT_S=0.5", "[0.25]"):
        assert words in text


@pytest.mark.parametrize("columns", [80, 100, 300])
def test_the_help_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        load(["--help"], {})
    assert max(map(len, capsys.readouterr().out.splitlines())) <= min(columns, 100)


def test_passwords_are_not_shown() -> None:
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert without_password("postgresql://me@host/db") == "postgresql://me@host/db"
    assert "secret" not in show(load(["--store", "postgresql://me:secret@host/db"], {}))


@pytest.mark.parametrize(
    ("argv", "exposed"),
    [
        ([], False),
        (["--bind", "tcp://localhost:7000"], False),
        (["--bind", "tcp://[::1]:7000"], False),
        (["--bind", "tcp://[::]:7000", "--insecure"], True),
        (["--bind", "tcp://127.0.0.2:7000"], False),
        (["--bind", "tcp://127.0.0.1:7000", "--insecure"], False),
        (["--bind", "tcp://*:7000", "--insecure"], True),
        (["--bind", "tcp://*:7000", "--keys", "k"], False),
        (["--primary", "--bind", "tcp://*:7000", "--insecure", "--peer", "tcp://127.0.0.1:7010"], True),
        (["--primary", "--peer", "tcp://127.0.0.1:5566"], False),
    ],
)
def test_a_server_is_exposed_only_if_insecure_and_bound_beyond_the_loopback(argv: list[str], exposed: bool) -> None:
    assert load(argv, {}).config.exposed == exposed


def test_addresses_that_only_look_like_the_loopback_are_not_loopback() -> None:
    assert not any(map(is_loopback, ("tcp://127.example.org:1", "tcp://127.0.0.1.example.org:1", "tcp://0.0.0.0:1")))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:p%20w@host/db",
        "postgresql://user:p@ss/w:rd@host/db?schema=chp",
        "postgresql://host/db?password=p%20w&schema=chp",
        "postgresql://host/db?schema=chp&PASSWORD=p@ss",
        "postgresql://user:secret@host/db?sslpassword=other",
    ],
)
def test_a_password_is_shown_nowhere(url: str) -> None:
    loaded = load(["--store", url], {})
    said = [
        show(loaded),
        repr(loaded),
        str(loaded.config.describe()),
        without_password(f"failed: {url}"),
        *problems(url),
    ]
    said += problems("--store", url, "--bind", "x") + problems("--store", url.replace("postgresql", "mysql"))
    for text in said:
        assert "***" in text or url.partition("://")[2] not in text
        assert not any(secret in text for secret in ("p%20w", "p@ss", "w:rd", "secret", "other"))
    assert loaded.config.store == url


@pytest.mark.parametrize("flag", ["--data", "--backup-dir"])
def test_an_empty_directory_setting_is_refused(flag: str) -> None:
    (problem,) = problems(flag, "")
    assert f"(from {flag})" in problem and "give a directory, or leave the setting out" in problem
