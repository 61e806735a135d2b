"""What `chp status`, metrics and logs are told of a server: one map; what it holds may change with the version.

Pure: it looks, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chp.numbers import describe, epoch_of, sequence_of

from .meeting import differences

if TYPE_CHECKING:
    from .core import ServerCore

EPOCHS_SHOWN = 50


def status_of(core: ServerCore) -> dict[str, Any]:
    """What a server is and does."""
    state, commits, config, link = core.state, core.commits, core.config, core.link
    role = "primary" if config.primary else "backup"
    return {
        "name": config.name,
        "server": core.server.hex(),
        "store": core.state.store.hex(),
        "role": role if config.has_peer else "alone",
        "insecure": config.exposed,
        "state": core.bstate.name.lower(),
        "since_s": round(core.now - core.since, 3),
        "uptime_s": round(core.now - core.started, 3),
        "epoch": epoch_of(state.number),
        "sequence": sequence_of(state.number),
        "number": describe(state.number),
        "keys": len(state.map),
        "fingerprint": f"{state.map.fingerprint()[1]:016x}",
        "sessions": len(state.sessions),
        "leases": len(state.leases),
        "transactions": len(state.staging.transactions),
        "staged_bytes": state.staging.bytes,
        "channels": commits.channels.shown(),
        "plain_subscriptions": sum(commits.channels.listeners.counts[prefix] for prefix in commits.channels.plain),
        "syncs": len(core.requests.syncs),
        "images": len(core.requests.images),
        "pending": len(core.pending),
        "pending_bytes": core.pending.bytes,
        "log_records": len(commits.log),
        "log_bytes": commits.log.bytes,
        "waiting_acks": len(commits.answers.waiting),
        "in_sync": link.in_sync(),
        "in_sync_since_s": round(core.now - link.in_sync_since, 3),
        "waits_for": core.waits_for,
        "epochs": _epochs(core),
        "room": core.room.status(len(state.map)),
        "peer": _peer_status(core),
        "arbiter": core.arbitration.status(),
        "scrub": core.link.scrubber.status(),
        "misfit": None if link.misfit is None else link.misfit.status(core.now),
        "journal": core.journal_stats(),
        "turns": core.turn_facts(),
        "counts": {**core.counts, **commits.counts, **_turned_away(core)},
    }


def _epochs(core: ServerCore) -> list[dict[str, Any]]:
    """The latest epochs: who opened them, when by its own clock, and why; the newest first."""
    newest = sorted(core.state.history.items(), reverse=True)[:EPOCHS_SHOWN]
    return [
        {"epoch": i, "last": describe(e.last), "name": e.name, "because": e.because, "wall_ms": e.wall_ms,
         "opener": e.opener.hex()}
        for i, e in newest
    ]  # fmt: skip


def _turned_away(core: ServerCore) -> dict[str, int]:
    """What was not taken for want of room, or given up; as in the other counts, only what has happened."""
    counts = {
        "channels_refused": core.commits.channels.refused,
        "requests_refused": core.requests.syncs.refused,
        "readers_dropped": core.requests.syncs.dropped,
        "pending_dropped": core.pending.dropped,
    }
    return {name: count for name, count in counts.items() if count}


def _peer_status(core: ServerCore) -> dict[str, Any] | None:
    link, peer = core.link, core.link.peer
    if peer is None:
        return None
    return {
        "name": peer.name,
        "alive": link.alive(),
        "state": peer.state.name.lower(),
        "number": describe(peer.number),
        "room": peer.room,
        "store": peer.at.store.hex(),
        "version": peer.version,
        "settings_differ": differences(core, peer),
        "silent_s": round(core.now - peer.heard, 3),
        "turn_ms": peer.turn_ms,
    }
