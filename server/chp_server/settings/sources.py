"""The sources of the settings of `chp-server`: where each value comes from, which wins, and whether they agree.

    flag  >  environment CHP_SERVER_*  >  TOML file (--config)  >  default

All that is wrong is reported at once, each line with the setting, the value, where it came from, and the remedy. An
unknown key or variable is an error too: otherwise a misspelt setting would silently keep its default. An empty
environment variable counts as not set.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chp import addresses
from chp.errors import ChpError
from chp.limits import DEFAULT

from .config import BY_NAME, PREFIX, SETTINGS, Config
from .flags import FILE_VARIABLE, Flags, parse_flags, suggest
from .readers import NEVER, PORTS, is_loopback, split_endpoint, without_password

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ANY_HOSTS = frozenset({"*", "0.0.0.0", "[::]"})


class ConfigError(ChpError):
    """An error: the configuration can't be used. `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class SettingValue(NamedTuple):
    """A value as it was given, and its source."""

    raw: object
    source: str


class LoadedConfig(NamedTuple):
    """A configuration, and the source of each value that is no default."""

    config: Config
    sources: dict[str, str]
    show_config: bool = False


def load(argv: Sequence[str], environ: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration from all sources, or raise `ConfigError` with all that is wrong.

    --help and --version print and raise SystemExit(0), as argparse does.
    """
    problems: list[str] = []
    flags = parse_flags(argv, problems)
    given = {**_from_file(_file_name(flags, environ), problems), **_from_environment(environ, problems)}
    given |= {name: SettingValue(text, source) for name, (text, source) in flags.given.items()}
    values = {"store": "", **_read(given, problems)}
    if problems:
        raise ConfigError(problems)
    config = Config(**values)
    sources = {name: value.source for name, value in given.items()}
    if problems := [_problem(name, getattr(config, name), sources.get(name, "default"), remedy)
                    for name, remedy in _disagreements(config)]:  # fmt: skip
        raise ConfigError(problems)
    return LoadedConfig(config, sources, flags.show_config)


def show(loaded: LoadedConfig) -> str:
    """Return the configuration as a TOML file that can be used, each line with its source (--show-config)."""
    lines = []
    for setting in SETTINGS:
        value = getattr(loaded.config, setting.name)
        if value is None and NEVER in setting.metavar:
            value = NEVER
        shown = without_password(value) if isinstance(value, str) else value
        line = f"# {setting.name} is not set" if value is None else f"{setting.name} = {json.dumps(shown)}"
        lines.append(f"{line:<44} # {loaded.sources.get(setting.name, 'default')}")
    return "\n".join(lines)


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
        if isinstance(table[key], dict):
            remedy = "is a table, and settings are not grouped; remove the line, and keep the settings below it"
            problems.append(f"[{key}] in {name} {remedy}")
        else:
            problems.append(f"{key} in {name} is no setting; remove it{suggest(key.replace('-', '_'), list(BY_NAME))}")
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


def _read(given: Mapping[str, SettingValue], problems: list[str]) -> dict[str, Any]:
    """Return the values that the settings' own readers make of text."""
    values: dict[str, Any] = {}
    for name, (raw, source) in given.items():
        setting = BY_NAME[name]
        wrong = isinstance(raw, bool) and not setting.is_switch
        if wrong or not isinstance(raw, str | int | float):
            remedy = f"a {type(raw).__name__} can't be used; give {setting.metavar}"
            problems.append(_problem(name, raw, source, remedy))
            continue
        try:
            values[name] = setting.read(str(raw))
        except ValueError as error:
            problems.append(_problem(name, raw, source, str(error)))
    return values


def _problem(name: str, value: object, source: str, remedy: str) -> str:
    return f"{name} = {without_password(str(value)):.200} (from {source}): {remedy}"


def _disagreements(config: Config) -> list[tuple[str, str]]:
    """Return (setting, remedy) for each setting that does not go with another one."""
    found = []
    bind, peer, heartbeat = config.bind, config.peer, config.heartbeat_s
    if config.exposed and not config.insecure:
        found.append(("bind", "other hosts could reach that, and all that do may read, set and replace everything, "
                              "since there are no keys; add --keys DIR (`chp keygen server` makes them), give a "
                              "loopback address such as tcp://127.0.0.1:5556, or, on a network you trust, add "
                              "--insecure"))  # fmt: skip
    if peer and is_loopback(bind) and not is_loopback(peer):
        needs = "" if config.keys else " and --keys DIR, or --insecure on a network you trust,"
        found.append(("peer", f"that is another host, which can't reach this server at {bind}; add --bind "
                              f"'tcp://*:{split_endpoint(bind)[1]}'{needs} "
                              "or name the peer by 127.0.0.1 if it is on this host"))  # fmt: skip
    if config.plain_bind and (why := _plain_problem(bind, config.plain_bind, config.keys)):
        found.append(("plain_bind", why))
    if config.ipc:
        try:
            addresses.parse(config.ipc_address)
        except ValueError as error:
            found.append(("ipc", f"an address there {error}; give another directory"))
    if config.store.startswith("memory:") and config.retain_bytes != Config.retain_bytes:
        found.append(("retain_bytes", "a server with --store memory: has no journal that could keep them; give "
                                      "--retain-memory-bytes, which says what memory keeps"))  # fmt: skip
    given = config.retain_memory_bytes != Config.retain_memory_bytes
    if given and config.max_memory and config.retain_memory_bytes >= config.max_memory:
        found.append(("retain_memory_bytes", f"the server may use max_memory = {config.max_memory} for everything; "
                                             "give less, or raise --max-memory"))  # fmt: skip
    if config.role == "alone" and peer:
        found.append(("peer", "a server with a peer has a role; add --primary or --backup"))
    if config.role == "backup" and not peer:
        found.append(("role", "a backup has a peer; add --peer tcp://HOST:P, or leave --backup out to run alone"))
    if peer and _overlap(bind, peer):
        found.append(("peer", f"that is this server itself ({bind} and the {PORTS - 1} ports after it); "
                              "name the other one"))  # fmt: skip
    twice = f"give at least {2 * heartbeat:g}, twice heartbeat_s = {heartbeat:g}"
    if config.peer_timeout_s < 2 * heartbeat:
        found.append(("peer_timeout_s", f"one late heartbeat would be a failover; {twice}"))
    if peer and config.solo_wait_s is not None and config.solo_wait_s < 2 * heartbeat:
        found.append(("solo_wait_s", f"the peer would not be heard before; {twice}, or {NEVER}"))
    found += _arbiter_problems(config)
    found += _replica_problems(config)
    found += _copies_problems(config)
    return found


def _replica_problems(config: Config) -> Iterator[tuple[str, str]]:
    if config.upstream and not config.replica:
        yield "upstream", "only a replica has it; add --replica, or name the other server of a pair by --peer"
    if not config.replica:
        return
    if not config.upstream:
        yield "replica", "name the servers of the pair: --upstream tcp://HOST:P,tcp://HOST:P"
    for name in ("peer", "arbiter", "bootstrap"):
        if getattr(config, name):
            yield name, "a replica follows a pair, and is no part of it; leave it out, or leave --replica out"
    if config.role != "alone":
        yield "role", "a replica is neither primary nor backup; leave it out, or leave --replica out"
    for name in ("plain_bind", "ipc"):
        if config.keys and getattr(config, name):
            yield name, "a replica with keys can't vouch for programs without one; leave it out"
    for each in config.upstreams:
        if _overlap(config.bind, each):
            yield "upstream", f"{each} is this replica itself ({config.bind} and the ports after it); name others"


def _copies_problems(config: Config) -> Iterator[tuple[str, str]]:
    most = DEFAULT.copies_max
    if config.confirms and not config.replica:
        yield "confirms", "only a replica has it; add --replica --upstream A,B, or leave it out"
    elif config.confirms and config.store.startswith("memory:"):
        yield "confirms", "it needs a journal; add --data DIR"
    elif config.confirms and config.sync != "always":
        yield "sync", "a replica that confirms syncs always; leave it out, or leave --confirms out"
    if not 2 <= config.copies <= most:
        yield "copies", f"give 2 to {most}: a pair has 2, and each replica that confirms is one more"
    elif config.copies > 2 and config.replica:
        yield "copies", "a replica sends no acknowledgements of its own; give it to the servers of the pair"
    elif config.copies > 2 and not config.peer:
        yield "copies", "a server alone has 1; add --peer and replicas with --confirms, or leave it out"
    elif config.copies > 2 and config.store.startswith("memory:"):
        yield "copies", "copies are on disk; add --data DIR, or leave it out"
    if config.promote and config.replica:
        yield "promote", "a replica is promoted by a start as a server of its own; leave --replica and --upstream out"
    elif config.promote and config.bootstrap:
        yield "promote", "it keeps the store of the journal, and --bootstrap opens a new one; give one of the two"
    elif config.promote and config.store.startswith("memory:"):
        yield "promote", "there is no journal to serve from; add --data with the directory of the replica"


def _arbiter_problems(config: Config) -> Iterator[tuple[str, str]]:
    if config.arbiter and not config.peer:
        yield "arbiter", "a server alone needs none; leave it out, or add --peer"
    for name in ("arbiter_ca", "arbiter_cert", "arbiter_key"):
        if getattr(config, name) and not (config.arbiter or "").startswith("etcds://"):
            yield name, "only an arbiter etcds://HOST:PORT/PATH uses it; leave it out, or give that"
    if config.arbiter_key and not config.arbiter_cert:
        yield "arbiter_key", "a key needs its certificate; add --arbiter-cert"


def _plain_problem(bind: str, plain: str, keys: str | None) -> str:
    if not keys:
        return "without --keys every port takes programs that have none; leave it out"
    if not is_loopback(plain):
        return "programs without a key are admitted from this host only; give tcp://127.0.0.1:PORT"
    if abs(split_endpoint(plain)[1] - split_endpoint(bind)[1]) < PORTS:
        return f"that touches {bind} and the {PORTS - 1} ports after it; give a port {PORTS} away, or further"
    return ""


def _overlap(bind: str, peer: str) -> bool:
    """Return True if the peer is on this host, as its name tells, and its four ports overlap with this server's."""
    host, port = split_endpoint(bind)
    peer_host, peer_port = split_endpoint(peer)
    on_this_host = peer_host == host or (peer_host in _LOCAL_HOSTS and host in _ANY_HOSTS | _LOCAL_HOSTS)
    return on_this_host and abs(port - peer_port) < PORTS
