"""The settings of `chp-server`: each field of `Config` is a setting, with its default, help and bounds.

The name of a field gives three spellings. `heartbeat_s` is the flag --heartbeat-s, the environment variable
CHP_SERVER_HEARTBEAT_S and the key heartbeat_s of the TOML file. `sources.py` decides which of them wins, and checks the
rules that bind two settings together.

Pure: the core takes its defaults from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from . import readers as read
from .readers import Reader, is_loopback, split_endpoint, without_password

PREFIX = "CHP_SERVER_"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of one setting: what the help, the page of settings and an error say of it."""

    name: str
    default: object
    group: str
    metavar: str
    read: Reader
    help: str
    shown: str = ""

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """True if the flag may stand without a value."""
        return isinstance(self.default, bool)

    @property
    def default_shown(self) -> str:
        """The default in words: `shown`, if it depends on other settings or on the machine."""
        return self.shown or ("no" if self.default is False else str(self.default))


def _setting(group: str, metavar: str, default: object, reader: Reader, *texts: str) -> Any:
    """Return the field of a setting; `texts` are its help and, if it needs one, the default in words."""
    about = {"group": group, "metavar": metavar, "read": reader}
    return field(default=default, metadata={**about, **dict(zip(("help", "shown"), texts, strict=False))})


_PAIR, _STATE, _TIME, _LOOK = "the pair", "state on disk", "time and room", "looking at it"


# fmt: off
@dataclass(frozen=True, repr=False)
class Config:
    """The configuration of one server: durations in seconds, sizes in bytes; None is "none" or "never".

    An empty `bind`, `name`, `data`, `backup_dir` or `store` is derived from the other settings. A `Config` that is made
    without `store` keeps nothing on disk; `chp-server` begins with an empty `store`.
    """

    role: str = _setting(_PAIR, "ROLE", "alone", read.one_of("primary", "backup", "alone"),
        "primary, backup, or alone; --primary and --backup are short for it. A primary without --peer runs alone too")
    bind: str = _setting(_PAIR, "tcp://HOST:P", "", read.endpoint(wildcard=True),
        "where to listen: snapshots at P, updates at P+1, sets at P+2, the peer at P+3",
        "tcp://127.0.0.1:5556, or tcp://127.0.0.1:5566 for a backup, or tcp://127.0.0.1:5576 for a replica")
    peer: str | None = _setting(_PAIR, "tcp://HOST:P", None, read.endpoint(wildcard=False),
        "the other server's --bind, as seen from here", "none: run alone")
    replica: bool = _setting(_PAIR, "yes|no", False, read.switch,
        "be a replica: follow the servers at --upstream, commit nothing, and serve readers with the numbers of the "
        "pair; see docs/operations/replicas.md")
    upstream: str | None = _setting(_PAIR, "A,B", None, read.upstream,
        "with --replica: the servers of the pair, or other replicas, as tcp://HOST:P with commas", "none")
    confirms: bool = _setting(_PAIR, "yes|no", False, read.switch,
        "with --replica and --data: sync the journal before telling the active how far it is, as the passive does, so "
        "that --copies may count this replica")
    copies: int = _setting(_PAIR, "N", 2, read.copies,
        "servers that have a set on disk before its acknowledgement says replicated: the active, the passive, and "
        "replicas that confirm; give both servers of the pair the same")
    promote: bool = _setting(_PAIR, "yes|no", False, read.switch,
        "serve from the journal of a replica, because both servers of the pair are gone; what the replica lacks is "
        "lost")
    readers_max: int = _setting(_PAIR, "N", 2000, read.count,
        "with --replica: with more readers, or above 80 % of a core, it asks the newest half to read at another "
        "replica of their list")
    ipc: str | None = _setting(_PAIR, "DIR", None, read.directory,
        "also listen on files in this directory, named P, P+1 and P+2: programs of this host and user give "
        "ipc://DIR/P and save a part of each round trip", "none: ports only")
    keys: str | None = _setting(_PAIR, "DIR", None, read.path,
        "admit only clients with a key, and encrypt: DIR has server.secret (`chp keygen server`), peer.pub, and "
        "clients/NAME.pub for each user who may connect", "none: no encryption")
    plain_bind: str | None = _setting(_PAIR, "tcp://127.0.0.1:Q", None, read.endpoint(wildcard=False),
        "with --keys, also listen at Q, Q+1 and Q+2 for programs of this host that have no key, such as those of "
        "RFC 12", "none")
    insecure: bool = _setting(_PAIR, "yes|no", False, read.switch,
        "without --keys, let other hosts reach this server (--bind tcp://*:P, or an address): every program that "
        "reaches it may read, set, replace and hand over")
    arbiter: str | None = _setting(_PAIR, "URL", None, read.arbiter,
        "a ZooKeeper (zk://HOST:PORT/PATH) or an etcd (etcd://HOST:PORT/PATH, or etcds:// by TLS) that decides which "
        "server may be active, so that a cut link between the two can't make both active",
        "none: the two servers and their clients decide")
    arbiter_ca: str | None = _setting(_PAIR, "FILE", None, read.path,
        "with etcds://: the certificates that sign those of etcd, as PEM", "those of the system")
    arbiter_cert: str | None = _setting(_PAIR, "FILE", None, read.path,
        "with etcds://: the certificate of this server, as PEM, if etcd wants one", "none")
    arbiter_key: str | None = _setting(_PAIR, "FILE", None, read.path,
        "with etcds://: the key of that certificate, as PEM", "in the file of the certificate")
    bootstrap: bool = _setting(_PAIR, "yes|no", False, read.switch,
        "open a new store if this server holds none and does not hear its peer. Without it an empty server waits for "
        "its peer, which may hold the store; two empty servers that hear each other do not need it")
    name: str = _setting(_PAIR, "NAME", "", read.name,
        "the name of this server in logs, status and greetings", "the role and port, such as primary-5556")

    data: str = _setting(_STATE, "DIR", "", read.path,
        "directory for the journal and whatever else must outlive the process", "chp-data/NAME")
    backup_dir: str = _setting(_STATE, "DIR", "", read.path,
        "directory of the backups that `chp backup` makes and `chp restore` reads; they use no other",
        "backups in the data directory")
    store: str = _setting(_STATE, "URL", "memory:", read.store,
        "memory: (nothing is kept), sqlite:PATH, or postgresql://USER@HOST/DATABASE", "SQLite in the data directory")
    sync: str = _setting(_STATE, "WHEN", "always", read.one_of("always", "interval", "off"),
        "when the journal is forced to disk: always (before anything is acknowledged), interval (a power cut may cost "
        "the last moments), off (the system decides)")
    recover: str = _setting(_STATE, "HOW", "strict", read.one_of("strict", "prefix"),
        "what to do with a damaged journal: strict (say where, and exit 6), prefix (serve what precedes the damage, "
        "and keep the rest aside)")
    retain_s: float = _setting(_STATE, "SECONDS", 86_400.0, read.seconds(0, 3_153_600_000),
        "how long the journal keeps past updates that a snapshot covers, for readers of changes", "86400: a day")
    retain_bytes: int = _setting(_STATE, "BYTES", 1024 * MIB, read.size(0),
        "bytes of past updates that the journal keeps at most, also if they are younger than retain_s; it keeps less "
        "while the disk is short", "1GiB")
    retain_memory_bytes: int = _setting(_STATE, "BYTES", 16 * MIB, read.size(0),
        "bytes of the latest updates that memory keeps, for clients and a peer that come back; a peer that was away "
        "for more takes the whole state, and its past for readers of changes begins anew; a server without a journal "
        "(--store memory:) has no others", "16MiB")

    heartbeat_s: float = _setting(_TIME, "SECONDS", 0.25, read.seconds(0.01, 60),
        "time between two heartbeats of the active on each channel, and of the peers to each other (HUGZ, for CHP/1 "
        "clients, is once a second)")
    peer_timeout_s: float = _setting(_TIME, "SECONDS", 1.0, read.seconds(0.02, 3600),
        "silence after which the peer counts as gone, three times as long while the connection to it stands; at least "
        "two heartbeats")
    solo_wait_s: float | None = _setting(_TIME, "SECONDS|never", 3.0, read.seconds_or_never(0, 86_400),
        "how long a starting server waits for its peer before it serves from its own journal; never waits for ever")
    replica_timeout_s: float = _setting(_TIME, "SECONDS", 2.0, read.seconds(0.01, 3600),
        "how long the active holds acknowledgements for a passive that does not confirm, before it goes on alone")
    slow_peer_s: float = _setting(_TIME, "SECONDS", 10.0, read.seconds(0.1, 3600),
        "how long the active waits with sets for a passive that confirms less than a tenth of what the active itself "
        "could do, before it goes on alone")
    scrub_s: float = _setting(_TIME, "SECONDS", 600.0, read.seconds(0, 31_536_000),
        "time in which the two servers compare their contents once, key by key, while they serve; 0 turns that off")
    pending_bytes_max: int = _setting(_TIME, "BYTES", 64 * MIB, read.size(MIB),
        "bytes of sets that a passive keeps until it sees them published", "64MiB")

    max_memory: int | None = _setting(_TIME, "BYTES", None, read.size(0),
        "resident memory from which on sets are refused, while deletes and reads go on; 0 is no bound",
        "80 % of what the process may have")
    max_keys: int = _setting(_TIME, "N", 0, read.count, "keys that the map may have", "no bound")
    min_free_disk: int | None = _setting(_TIME, "BYTES", None, read.size(0),
        "bytes that stay free on the journal's disk: with less, sets are refused, while deletes and reads go on",
        "64MiB, or a sixteenth of a small disk")

    metrics: str | None = _setting(_LOOK, "[HOST:]PORT", None, read.metrics,
        "serve Prometheus metrics there; a bare port is on loopback", "none")
    audit: str | None = _setting(_LOOK, "FILE|-", None, read.audit,
        "add a JSON line to this file (-: standard error) for each operator's command, change of the rules, denial "
        "and new key: who, what, number, verdict; a file that is moved away is opened anew", "none")
    log_format: str = _setting(_LOOK, "FORMAT", "text", read.one_of("text", "json"),
        "text for people, json for machines; one line a fact, on standard error")
    log_level: str = _setting(_LOOK, "LEVEL", "info", read.one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error")
    # fmt: on

    def __post_init__(self) -> None:
        kept = bool(self.data) or not self.replica
        self._derive("bind", f"tcp://127.0.0.1:{5566 if self.role == 'backup' else 5576 if self.replica else 5556}")
        self._derive("name", f"{'replica' if self.replica else self.role}-{split_endpoint(self.bind)[1]}")
        self._derive("data", f"chp-data/{self.name}")
        self._derive("backup_dir", f"{self.data.rstrip('/') or '/'}/backups")
        # A replica gets from the pair again what it loses. So it keeps a journal only if `data` is given, and syncs it
        # at intervals unless it confirms.
        self._derive("store", f"sqlite:{self.data}" if kept else "memory:")
        if self.replica and self.sync == "always" and not self.confirms:
            object.__setattr__(self, "sync", "interval")

    def _derive(self, name: str, value: str) -> None:
        if not getattr(self, name):
            object.__setattr__(self, name, value)

    def endpoint(self, offset: int) -> str:
        """Return the address to bind for P+offset: 0 snapshots, 1 updates, 2 sets, 3 the peer."""
        return _offset(self.bind, offset)

    def peer_endpoint(self, offset: int) -> str | None:
        """Return the peer's address for P+offset, or None for a server that runs alone."""
        return None if self.peer is None else _offset(self.peer, offset)

    @property
    def upstreams(self) -> list[str]:
        """The addresses of the servers that a replica follows."""
        return self.upstream.split(",") if self.upstream else []

    @property
    def ipc_address(self) -> str:
        """The address of the files beside the ports, if `ipc` names their directory."""
        return f"ipc://{self.ipc}/{split_endpoint(self.bind)[1]}"

    @property
    def exposed(self) -> bool:
        """True if programs on other hosts can reach this server without a key, and may do everything."""
        return self.keys is None and not is_loopback(self.bind)

    def __repr__(self) -> str:
        values = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
        return without_password(f"Config({', '.join(values)})")

    def describe(self) -> dict[str, object]:
        """Return the settings that the log names at the start."""
        optional = {"ipc": self.ipc and self.ipc_address, "keys": self.keys, "plain_bind": self.plain_bind}
        return {
            "role": "replica" if self.replica else self.role, "bind": self.bind,
            **({"upstream": self.upstream} if self.replica else {"peer": self.peer or "none"}),
            **{name: value for name, value in optional.items() if value},
            "store": without_password(self.store), "heartbeat_s": self.heartbeat_s,
        }  # fmt: skip


def _offset(endpoint: str, offset: int) -> str:
    host, port = split_endpoint(endpoint)
    return f"tcp://{host}:{port + offset}"


SETTINGS = tuple(Setting(each.name, each.default, **each.metadata) for each in fields(Config))
BY_NAME = {setting.name: setting for setting in SETTINGS}


def table() -> str:
    """Return the table of docs/settings.md; a test compares that page with it."""
    lines = ["| flag | value | default | bounds | |", "|---|---|---|---|---|"]
    for each in SETTINGS:
        value = f"`{each.metavar}`".replace("|", "\\|")
        lines.append(f"| `{each.flag}` | {value} | {each.default_shown} | {each.read.bounds} | {each.help} |")
    return "\n".join(lines)
