"""The settings of the server's core. The core hands them to its parts, which read no configuration themselves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from ..settings.config import BY_NAME, Config


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """The settings that the core needs, and values that the shell adds; times are in seconds."""

    primary: bool = True
    has_peer: bool = False
    # True for a replica, which follows a pair and commits nothing.
    replica: bool = Config.replica
    # True for a replica that confirms what its journal has synced.
    confirms: bool = Config.confirms
    # The number of servers that must have a set on disk before its acknowledgement says *replicated*.
    copies: int = Config.copies
    # True for a server that begins from the journal of a replica.
    promote: bool = Config.promote
    has_arbiter: bool = False
    name: str = ""
    # The secret of this run, which only the peer is told.
    secret: bytes = b""
    # True if the shell writes an audit of operators' commands.
    audited: bool = False
    # True if clients and the peer have keys, so that the sender of each message is known.
    keyed: bool = False
    # True if other hosts can reach this server without a key.
    exposed: bool = False
    heartbeat_s: float = Config.heartbeat_s
    peer_timeout_s: float = Config.peer_timeout_s
    solo_wait_s: float | None = Config.solo_wait_s
    bootstrap: bool = Config.bootstrap
    replica_timeout_s: float = Config.replica_timeout_s
    slow_peer_s: float = Config.slow_peer_s
    durability: int = 0
    scrub_s: float = Config.scrub_s
    retain_s: float = Config.retain_s
    retain_bytes: int = Config.retain_bytes
    readers_max: int = Config.readers_max
    keys_max: int | None = None
    disk_free_min: int = 0

    @classmethod
    def of(cls, config: Config, *, secret: bytes, durability: int, disk_free_min: int) -> Self:
        """Return the core's part of a server's settings."""
        return cls(
            primary=config.role != "backup",
            has_peer=config.peer is not None,
            has_arbiter=config.arbiter is not None,
            secret=secret,
            audited=config.audit is not None,
            keyed=config.keys is not None,
            exposed=config.exposed,
            durability=durability,
            keys_max=config.max_keys or None,
            disk_free_min=disk_free_min,
            **{each.name: getattr(config, each.name) for each in fields(cls) if each.name in BY_NAME},
        )
