"""Every setting of `chp-server`, once: its name, group, default, how it is read, and what the help says.

The one name gives the three spellings: `heartbeat_s` is the flag --heartbeat-s, the environment variable
CHP_SERVER_HEARTBEAT_S and the key heartbeat_s of the TOML file. `config.py` decides which of them wins and
checks the rules that bind two settings together; here is only what one setting says by itself.
"""

from dataclasses import dataclass

from . import readers as read
from .readers import Reader

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is shown by the help as `shown`, when it depends on other settings."""

    name: str
    group: str
    metavar: str
    default: object
    read: Reader
    help: str
    shown: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "CHP_SERVER_" + self.name.upper()

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    @property
    def default_shown(self) -> str:
        return self.shown or ("no" if self.default is False else str(self.default))


_PAIR, _STATE, _TIME, _LOOK = "the pair", "state on disk", "time and room", "looking at it"

# fmt: off
SETTINGS = (
    Setting("role", _PAIR, "ROLE", "alone", read.one_of("primary", "backup", "alone"),
            "primary, backup, or alone; --primary and --backup are short for it. A primary "
            "without --peer runs alone too"),
    Setting("bind", _PAIR, "tcp://HOST:P", None, read.endpoint(wildcard=True),
            "where to listen: snapshots at P, updates at P+1, sets at P+2, the peer at P+3",
            shown="tcp://127.0.0.1:5556, or tcp://127.0.0.1:5566 for a backup"),
    Setting("peer", _PAIR, "tcp://HOST:P", None, read.endpoint(wildcard=False),
            "the other server's --bind, as seen from here", shown="none: run alone"),
    Setting("ipc", _PAIR, "DIR", None, read.directory,
            "also listen on files in this directory, named P, P+1 and P+2: programs of this host and user give "
            "ipc://DIR/P and save a part of each round trip", shown="none: ports only"),
    Setting("keys", _PAIR, "DIR", None, read.path,
            "let in only who has a key, encrypted: DIR has server.secret (`chp keygen server`), peer.pub, and "
            "clients/NAME.pub for each who may connect", shown="none: no encryption"),
    Setting("plain_bind", _PAIR, "tcp://127.0.0.1:Q", None, read.endpoint(wildcard=False),
            "with --keys, also listen at Q, Q+1 and Q+2 for programs of this host that have no key, such as those of "
            "RFC 12", shown="none"),
    Setting("insecure", _PAIR, "yes|no", False, read.switch,
            "without --keys, let other hosts reach this server (--bind tcp://*:P, or an address): all that reach it "
            "may read, set, replace and hand over"),
    Setting("arbiter", _PAIR, "zk://HOST:PORT/PATH", None, read.arbiter,
            "a ZooKeeper that decides who may be active, so that a cut link between the two "
            "can't make both active", shown="none: the two and their clients decide"),
    Setting("bootstrap", _PAIR, "yes|no", False, read.switch,
            "open a new store if this server holds none and does not hear its peer. Without it an empty "
            "server waits for its peer, which may hold the store; two that are empty need it not"),
    Setting("name", _PAIR, "NAME", None, read.name,
            "how this server calls itself in logs, status and greetings",
            shown="the role and port, such as primary-5556"),

    Setting("data", _STATE, "DIR", None, read.path,
            "directory for the journal and whatever else must outlive the process", shown="chp-data/NAME"),
    Setting("backup_dir", _STATE, "DIR", None, read.path,
            "directory of the backups that `chp backup` makes and `chp restore` reads: they know no other",
            shown="backups in the data directory"),
    Setting("store", _STATE, "URL", None, read.store,
            "memory: (nothing is kept), sqlite:PATH, or postgresql://USER@HOST/DATABASE",
            shown="SQLite in the data directory"),
    Setting("sync", _STATE, "WHEN", "always", read.one_of("always", "interval", "off"),
            "when the journal is forced to disk: always (before anything is acknowledged), interval "
            "(a power cut may cost the last moments), off (the system decides)"),
    Setting("recover", _STATE, "HOW", "strict", read.one_of("strict", "prefix"),
            "what to do with a damaged journal: strict (say where, and exit 6), prefix (serve what "
            "precedes the damage, and keep the rest aside)"),
    Setting("retain_s", _STATE, "SECONDS", 3600.0, read.seconds(0, 3_153_600_000),
            "how long past updates are kept for those who come back", shown="3600: an hour"),
    Setting("retain_bytes", _STATE, "BYTES", 16 * MIB, read.size(0),
            "how much of them, whichever ends first; 1GiB is understood", shown="16MiB"),

    Setting("heartbeat_s", _TIME, "SECONDS", 0.25, read.seconds(0.01, 60),
            "how often the active is heard on each channel, and the peers by each other (HUGZ, for "
            "CHP/1 clients, is once a second)"),
    Setting("peer_timeout_s", _TIME, "SECONDS", 1.0, read.seconds(0.02, 3600),
            "silence after which the peer counts as gone, three times as long while the connection "
            "to it stands; at least two heartbeats"),
    Setting("solo_wait_s", _TIME, "SECONDS|never", 3.0, read.seconds_or_never(0, 86_400),
            "how long a starting server waits for its peer before it serves from its own journal; "
            "never waits for ever"),
    Setting("replica_timeout_s", _TIME, "SECONDS", 2.0, read.seconds(0.01, 3600),
            "how long the active holds acknowledgements for a passive that does not confirm, before "
            "it goes on alone"),
    Setting("scrub_s", _TIME, "SECONDS", 600.0, read.seconds(0, 31_536_000),
            "in how long the two servers compare their contents once, key by key, while they serve; "
            "0 never does"),
    Setting("pending_bytes_max", _TIME, "BYTES", 64 * MIB, read.size(MIB),
            "what a passive holds of sets it has not yet seen published", shown="64MiB"),

    Setting("max_memory", _TIME, "BYTES", None, read.size(0),
            "resident memory from which on sets are refused, while deletes and reads go on; 0 is no bound",
            shown="80 % of what the process may have"),
    Setting("max_keys", _TIME, "N", 0, read.count, "keys that the map may have", shown="no bound"),
    Setting("min_free_disk", _TIME, "BYTES", None, read.size(0),
            "what stays free where the journal is: below it sets are refused, while deletes and reads go on",
            shown="64MiB, or a sixteenth of a small disk"),

    Setting("metrics", _LOOK, "[HOST:]PORT", None, read.metrics,
            "serve Prometheus metrics there; a bare port is on loopback", shown="none"),
    Setting("audit", _LOOK, "FILE|-", None, read.audit,
            "add a JSON line to this file (-: standard error) for each operator's command, change of the rules, denial "
            "and new key: who, what, number, verdict; a file that is moved away is opened anew", shown="none"),
    Setting("log_format", _LOOK, "FORMAT", "text", read.one_of("text", "json"),
            "text for people, json for machines; one line a fact, on standard error"),
    Setting("log_level", _LOOK, "LEVEL", "info", read.one_of("debug", "info", "warning", "error"),
            "debug, info, warning or error"),
)
# fmt: on
BY_NAME = {setting.name: setting for setting in SETTINGS}
