"""The configuration of `chp-server`: where each value comes from, which wins, and whether they agree.

    flag  >  environment CHP_SERVER_*  >  TOML file (--config)  >  default

The settings themselves are the table in `settings.py`. Here they are gathered from the four sources, read,
and checked against each other; the result is a frozen `Config`. All that is wrong is reported at once, each
line with the setting, the value, where it came from, and the remedy. A key or variable that is no setting
is an error too: a misspelt one would otherwise be a default in disguise. An empty environment variable
counts as not set.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from chp import addresses
from chp.errors import ChpError

from .flags import FILE_VARIABLE, Flags, parse_flags, suggest
from .readers import PORTS, is_loopback, split_endpoint, without_password
from .settings import BY_NAME, SETTINGS, Setting

PREFIX = "CHP_SERVER_"
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ANY_HOSTS = frozenset({"*", "0.0.0.0", "[::]"})


class ConfigError(ChpError):
    """The configuration can't be used. `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, repr=False)
class Config:
    """Everything an operator can say. Durations in seconds, sizes in bytes; None is "none" or "never"."""

    role: str = "alone"
    bind: str = "tcp://127.0.0.1:5556"
    ipc: str | None = None
    keys: str | None = None
    plain_bind: str | None = None
    insecure: bool = False
    peer: str | None = None
    arbiter: str | None = None
    bootstrap: bool = False
    name: str = "alone-5556"
    data: str = "chp-data/alone-5556"
    backup_dir: str = "chp-data/alone-5556/backups"
    store: str = "memory:"
    sync: str = "always"
    recover: str = "strict"
    retain_s: float = 3600.0
    retain_bytes: int = 16 << 20
    heartbeat_s: float = 0.25
    peer_timeout_s: float = 1.0
    solo_wait_s: float | None = 3.0
    replica_timeout_s: float = 2.0
    scrub_s: float = 600.0
    pending_bytes_max: int = 64 << 20
    max_memory: int | None = None
    max_keys: int = 0
    min_free_disk: int | None = None
    metrics: str | None = None
    audit: str | None = None
    log_format: str = "text"
    log_level: str = "info"

    def endpoint(self, offset: int) -> str:
        """The address to bind for P+offset: 0 snapshots, 1 updates, 2 sets, 3 the peer."""
        return _offset(self.bind, offset)

    def peer_endpoint(self, offset: int) -> str | None:
        """The peer's address for P+offset, or None for a server that runs alone."""
        return None if self.peer is None else _offset(self.peer, offset)

    @property
    def ipc_address(self) -> str:
        """The address of the files beside the ports, where `ipc` names their directory."""
        return f"ipc://{self.ipc}/{split_endpoint(self.bind)[1]}"

    @property
    def exposed(self) -> bool:
        """Whether other hosts can reach it without a key, so that whoever does may do everything."""
        return self.keys is None and not is_loopback(self.bind)

    def __repr__(self) -> str:
        said = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return without_password(f"Config({', '.join(said)})")

    def describe(self) -> dict[str, object]:
        """What the log says of it at the start."""
        return {
            "role": self.role, "bind": self.bind, "peer": self.peer or "none",
            **({"ipc": self.ipc_address} if self.ipc else {}),
            **({"keys": self.keys} if self.keys else {}),
            **({"plain_bind": self.plain_bind} if self.plain_bind else {}),
            "store": without_password(self.store), "heartbeat_s": self.heartbeat_s,
        }  # fmt: skip


class SettingValue(NamedTuple):
    """A value as it was given, and where."""

    raw: object
    source: str


class LoadedConfig(NamedTuple):
    """A configuration, and where each value that is no default came from."""

    config: Config
    sources: dict[str, str]
    show_config: bool = False


def load(argv: Sequence[str], environ: Mapping[str, str]) -> LoadedConfig:
    """The configuration from all sources; `ConfigError` with all that is wrong.

    --help and --version print and raise SystemExit(0), as argparse does.
    """
    problems: list[str] = []
    flags = parse_flags(argv, problems)
    given = {**_from_file(_file_name(flags, environ), problems), **_from_environment(environ, problems)}
    given |= {name: SettingValue(text, source) for name, (text, source) in flags.given.items()}
    values = _read(given, problems)
    _fill_in(values)
    if not problems:
        problems += _disagreements(values, given)
    if problems:
        raise ConfigError(problems)
    config = Config(**{field.name: values[field.name] for field in fields(Config)})
    return LoadedConfig(config, {name: given[name].source for name in given}, flags.show_config)


def show(loaded: LoadedConfig) -> str:
    """The configuration as a TOML file that can be used, each line with its source (--show-config)."""
    lines = []
    for setting in SETTINGS:
        value = getattr(loaded.config, setting.name)
        if value is None:
            value = "never" if setting.name == "solo_wait_s" else ""
        shown = without_password(value) if isinstance(value, str) else value
        text = json.dumps(shown)
        line = f"{setting.name} = {text}" if value != "" else f"# {setting.name} is not set"
        lines.append(f"{line:<44} # {loaded.sources.get(setting.name, 'default')}")
    return "\n".join(lines)


# -- the sources


def _file_name(flags: Flags, environ: Mapping[str, str]) -> tuple[str, str] | None:
    if flags.config is not None:
        return flags.config, "--config"
    name = environ.get(FILE_VARIABLE)
    return (name, FILE_VARIABLE) if name else None


def _from_file(name_source: tuple[str, str] | None, problems: list[str]) -> dict[str, SettingValue]:
    if name_source is None:
        return {}
    name, source = name_source
    try:
        table = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"config file {name} (from {source}) can't be read: {error.strerror}; check the path")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"config file {name} (from {source}) is not TOML: {error}; write lines of name = value")
        return {}
    for key in table.keys() - BY_NAME.keys():
        what = "is a table, and settings are not grouped" if isinstance(table[key], dict) else "is no setting"
        problems.append(f"{key} in {name} {what}; remove it{suggest(key.replace('-', '_'), list(BY_NAME))}")
    return {key: SettingValue(value, name) for key, value in table.items() if key in BY_NAME}


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, SettingValue]:
    known = {setting.variable: setting.name for setting in SETTINGS}
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        if variable not in known:
            nearest = suggest(variable, list(known))
            problems.append(f"environment variable {variable} is no setting; unset it{nearest}")
        elif text:
            found[known[variable]] = SettingValue(text, variable)
    return found


# -- reading and checking


def _read(given: Mapping[str, SettingValue], problems: list[str]) -> dict[str, Any]:
    """Each setting has the type that its own reader makes of text."""
    values: dict[str, Any] = {setting.name: setting.default for setting in SETTINGS}
    for name, (raw, source) in given.items():
        setting = BY_NAME[name]
        wrong = isinstance(raw, bool) and not setting.is_switch
        if wrong or not isinstance(raw, str | int | float):
            kind = type(raw).__name__
            problems.append(_problem(setting, raw, source, f"a {kind} can't be used; give {setting.metavar}"))
            continue
        try:
            values[name] = setting.read(str(raw))
        except ValueError as error:
            problems.append(_problem(setting, raw, source, str(error)))
    return values


def _problem(setting: Setting, raw: object, source: str, remedy: str) -> str:
    return f"{setting.name} = {without_password(str(raw)):.200} (from {source}): {remedy}"


def _fill_in(values: dict[str, Any]) -> None:
    """The defaults that depend on other settings."""
    role = str(values["role"])
    values["bind"] = values["bind"] or f"tcp://127.0.0.1:{5566 if role == 'backup' else 5556}"
    values["name"] = values["name"] or f"{role}-{split_endpoint(str(values['bind']))[1]}"
    values["data"] = values["data"] or f"chp-data/{values['name']}"
    values["backup_dir"] = values["backup_dir"] or str(Path(str(values["data"])) / "backups")
    values["store"] = values["store"] or f"sqlite:{values['data']}"


def _disagreements(values: Mapping[str, object], given: Mapping[str, SettingValue]) -> list[str]:
    """What two settings say to each other that can't be."""

    def line(name: str, remedy: str) -> str:
        source = given[name].source if name in given else "default"
        return _problem(BY_NAME[name], values[name], source, remedy)

    found = []
    role, bind, peer = values["role"], str(values["bind"]), values["peer"]
    heartbeat = float(str(values["heartbeat_s"]))
    if not is_loopback(bind) and not values["keys"] and not values["insecure"]:
        found.append(line("bind", "other hosts could reach that, and all that do may read, set and replace everything, "
                                  "since there are no keys; add --keys DIR (`chp keygen server` makes them), give a "
                                  "loopback address such as tcp://127.0.0.1:5556, or, on a network you trust, add "
                                  "--insecure"))  # fmt: skip
    if peer and is_loopback(bind) and not is_loopback(str(peer)):
        door = "" if values["keys"] else " and --keys DIR, or --insecure on a network you trust,"
        found.append(line("peer", f"that is another host, which can't reach this server at {bind}; add --bind "
                                  f"'tcp://*:{split_endpoint(bind)[1]}'{door} "
                                  "or name the peer by 127.0.0.1 if it is on this host"))  # fmt: skip
    if values["plain_bind"] is not None:
        found += [line("plain_bind", why) for why in _plain_problems(bind, str(values["plain_bind"]), values["keys"])]
    if values["ipc"]:
        try:
            addresses.parse(f"ipc://{values['ipc']}/{split_endpoint(bind)[1]}")
        except ValueError as error:
            found.append(line("ipc", f"an address there {error}; give another directory"))
    if role == "alone" and peer:
        found.append(line("peer", "a server with a peer has a role; add --primary or --backup"))
    if role == "backup" and not peer:
        found.append(line("role", "a backup has a peer; add --peer tcp://HOST:P, or leave --backup out to run alone"))
    if peer and _overlap(bind, str(peer)):
        found.append(line("peer", f"that is this server itself ({bind} and the {PORTS - 1} ports after it); "
                                  "name the other one"))  # fmt: skip
    if float(str(values["peer_timeout_s"])) < 2 * heartbeat:
        found.append(line("peer_timeout_s", "one late heartbeat would be a failover; give at least "
            f"{2 * heartbeat:g}, "
                                            f"twice heartbeat_s = {heartbeat:g}"))  # fmt: skip
    solo = values["solo_wait_s"]
    if peer and solo is not None and float(str(solo)) < 2 * heartbeat:
        found.append(line("solo_wait_s", "the peer would not be heard before; give at least "
            f"{2 * heartbeat:g}, "
                                         f"twice heartbeat_s = {heartbeat:g}, or never"))  # fmt: skip
    if values["arbiter"] and not peer:
        found.append(line("arbiter", "a server alone needs none; leave it out, or add --peer"))
    return found


def _plain_problems(bind: str, plain: str, keys: object) -> list[str]:
    if not keys:
        return ["without --keys every port takes programs that have none; leave it out"]
    if not is_loopback(plain):
        return ["programs without a key are let in from this host only; give tcp://127.0.0.1:PORT"]
    if abs(split_endpoint(plain)[1] - split_endpoint(bind)[1]) < PORTS:
        return [f"that touches {bind} and the {PORTS - 1} ports after it; give a port {PORTS} away, or further"]
    return []


def _overlap(bind: str, peer: str) -> bool:
    """Whether the peer's four ports are on this host (as far as the words tell) and touch ours."""
    host, port = split_endpoint(bind)
    peer_host, peer_port = split_endpoint(peer)
    ctx = peer_host == host or (peer_host in _LOCAL_HOSTS and (host in _ANY_HOSTS or host in _LOCAL_HOSTS))
    return ctx and abs(port - peer_port) < PORTS


def _offset(endpoint: str, offset: int) -> str:
    host, port = split_endpoint(endpoint)
    return f"tcp://{host}:{port + offset}"
