"""The status of a server: one map of facts, for `chp status`, metrics and logs.

The facts may change with the version. Reading them changes nothing. Pure.
"""

from __future__ import annotations

from typing import Any

from chp.numbers import describe, epoch_of, sequence_of

from ..context import ServerContext
from ..peer.handshake import differences
from ..peer.peerlink import PeerLink
from .requests import Requests

EPOCHS_SHOWN = 50
# Each group takes three series of the metrics.
GROUPS_SHOWN = 100
# A server counts as throttled for so long.
THROTTLED_S = 1.0


def status_of(ctx: ServerContext, link: PeerLink, requests: Requests, **told: Any) -> dict[str, Any]:
    """Return the facts of a server; `told` are those of its shell."""
    state, commits, config = ctx.state, ctx.commits, ctx.config
    role = "primary" if config.primary else "backup"
    return {
        "name": config.name,
        "server": ctx.server.hex(),
        "store": ctx.state.store.hex(),
        "role": role if config.has_peer else "alone",
        "insecure": config.exposed,
        "access": None if state.access.rules is None else {"number": describe(state.access.changed)},
        "state": ctx.bstate.name.lower(),
        "since_s": round(ctx.now - ctx.since, 3),
        "uptime_s": round(ctx.now - ctx.started, 3),
        "wall_ms": round(ctx.wall * 1000),
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
        "chp1_subscriptions": sum(commits.channels.listeners.counts[prefix] for prefix in commits.channels.chp1),
        "clients": len(requests.clients),
        "syncs": len(requests.syncs),
        "images": len(requests.images),
        "topics": requests.readers.status(link.filler.lacks),
        "groups": state.topics.groups_shown(GROUPS_SHOWN, round(ctx.wall * 1000)),
        "pending": len(ctx.pending),
        "pending_bytes": ctx.pending.bytes,
        "log_records": len(commits.log),
        "log_bytes": commits.log.bytes,
        "waiting_acks": len(ctx.committer.acks.waiting),
        "in_sync": ctx.in_sync(),
        "in_sync_since_s": round(ctx.now - link.in_sync_since, 3),
        "throttled": ctx.active and ctx.now - ctx.sets.throttled_at < THROTTLED_S,
        "waiting_sets": len(ctx.sets.queue),
        "waiting_sets_bytes": ctx.sets.queue.bytes,
        "waits_for": link.waits_for,
        "epochs": _epochs(ctx),
        "room": ctx.room.status(len(state.map)),
        "peer": _peer_status(ctx),
        "arbiter": ctx.arbitration.status(),
        "scrub": link.scrubber.status(ctx.now),
        "misfit": None if link.misfit is None else link.misfit.status(ctx.now),
        **told,
        "counts": {**ctx.counts, **commits.counts, **_turned_away(ctx, requests)},
    }


def _epochs(ctx: ServerContext) -> list[dict[str, Any]]:
    """Return the latest epochs, the newest first: which server opened each, why, and when by that server's clock."""
    newest = sorted(ctx.state.history.items(), reverse=True)[:EPOCHS_SHOWN]
    return [
        {"epoch": i, "last": describe(e.last), "name": e.name, "because": e.because, "wall_ms": e.wall_ms,
         "opener": e.opener.hex()}
        for i, e in newest
    ]  # fmt: skip


def _turned_away(ctx: ServerContext, requests: Requests) -> dict[str, int]:
    """Return the counts of what was refused or dropped for lack of room, without those that are zero."""
    counts = {
        "channels_refused": ctx.commits.channels.refused,
        "requests_refused": requests.syncs.refused,
        "readers_dropped": requests.syncs.dropped,
        "pending_dropped": ctx.pending.dropped,
    }
    return {name: count for name, count in counts.items() if count}


def _peer_status(ctx: ServerContext) -> dict[str, Any] | None:
    peer = ctx.peer
    if peer is None:
        return None
    return {
        "name": peer.name,
        "alive": ctx.alive(),
        "state": peer.state.name.lower(),
        "number": describe(peer.number),
        "room": peer.room,
        "store": peer.at.store.hex(),
        "version": peer.version,
        "settings_differ": differences(ctx, peer),
        "silent_s": round(ctx.now - peer.heard, 3),
        "turn_ms": peer.turn_ms,
    }
