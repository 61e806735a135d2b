"""What `chp status`, metrics and logs are told of a server: one map; what it holds may change with the version.

Pure: it looks, and changes nothing.
"""

from __future__ import annotations

from typing import Any

from chp.numbers import describe, epoch_of, sequence_of

from ..peer.meeting import differences
from ..peer.peerlink import PeerLink
from ..standing import Standing
from .requests import Requests

EPOCHS_SHOWN = 50
GROUPS_SHOWN = 100  # each is three series of the metrics


def status_of(here: Standing, link: PeerLink, requests: Requests, **told: Any) -> dict[str, Any]:
    """What a server is and does; `told` is what its shell has to say."""
    state, commits, config = here.state, here.commits, here.config
    role = "primary" if config.primary else "backup"
    return {
        "name": config.name,
        "server": here.server.hex(),
        "store": here.state.store.hex(),
        "role": role if config.has_peer else "alone",
        "insecure": config.exposed,
        "access": None if state.access.rules is None else {"number": describe(state.access.changed)},
        "state": here.bstate.name.lower(),
        "since_s": round(here.now - here.since, 3),
        "uptime_s": round(here.now - here.started, 3),
        "wall_ms": round(here.wall * 1000),
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
        "groups": state.topics.groups_shown(GROUPS_SHOWN, round(here.wall * 1000)),
        "pending": len(here.pending),
        "pending_bytes": here.pending.bytes,
        "log_records": len(commits.log),
        "log_bytes": commits.log.bytes,
        "waiting_acks": len(here.committer.acks.waiting),
        "in_sync": here.in_sync(),
        "in_sync_since_s": round(here.now - link.in_sync_since, 3),
        "waits_for": link.waits_for,
        "epochs": _epochs(here),
        "room": here.room.status(len(state.map)),
        "peer": _peer_status(here),
        "arbiter": here.arbitration.status(),
        "scrub": link.scrubber.status(),
        "misfit": None if link.misfit is None else link.misfit.status(here.now),
        **told,
        "counts": {**here.counts, **commits.counts, **_turned_away(here, requests)},
    }


def _epochs(here: Standing) -> list[dict[str, Any]]:
    """The latest epochs: who opened them, when by its own clock, and why; the newest first."""
    newest = sorted(here.state.history.items(), reverse=True)[:EPOCHS_SHOWN]
    return [
        {"epoch": i, "last": describe(e.last), "name": e.name, "because": e.because, "wall_ms": e.wall_ms,
         "opener": e.opener.hex()}
        for i, e in newest
    ]  # fmt: skip


def _turned_away(here: Standing, requests: Requests) -> dict[str, int]:
    """What was not taken for want of room, or given up; as in the other counts, only what has happened."""
    counts = {
        "channels_refused": here.commits.channels.refused,
        "requests_refused": requests.syncs.refused,
        "readers_dropped": requests.syncs.dropped,
        "pending_dropped": here.pending.dropped,
    }
    return {name: count for name, count in counts.items() if count}


def _peer_status(here: Standing) -> dict[str, Any] | None:
    peer = here.peer
    if peer is None:
        return None
    return {
        "name": peer.name,
        "alive": here.alive(),
        "state": peer.state.name.lower(),
        "number": describe(peer.number),
        "room": peer.room,
        "store": peer.at.store.hex(),
        "version": peer.version,
        "settings_differ": differences(here, peer),
        "silent_s": round(here.now - peer.heard, 3),
        "turn_ms": peer.turn_ms,
    }
