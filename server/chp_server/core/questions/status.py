"""The status of a server: one map of facts, for `chp status`, metrics and logs.

The facts may change with the version. Reading them changes nothing. Pure.
"""

from __future__ import annotations

from typing import Any

from chp.numbers import describe, epoch_of, sequence_of

from ..pair.pair_state import PairState
from ..peer.peerlink import PeerLink
from ..updates.commit import Committer
from ..updates.committed import Committed
from ..updates.turn import CurrentTurn
from .requests import Requests

EPOCHS_SHOWN = 50
# The status has at most this many groups, because each of them takes four series of the metrics.
GROUPS_SHOWN = 100
# A server counts as throttled for this many seconds after it last made sets wait for the passive.
THROTTLED_S = 1.0


def status_of(
    turn: CurrentTurn, pair: PairState, committer: Committer, link: PeerLink, requests: Requests
) -> dict[str, Any]:
    """Return the facts of a server, with those of its shell."""
    committed, config, pending = committer.committed, pair.config, link.pending
    state, channels = committed.state, committed.channels
    role = "primary" if config.primary else "backup"
    return {
        "name": config.name,
        "server": pair.server.hex(),
        "store": state.store.hex(),
        "role": role if config.has_peer else "alone",
        "insecure": config.exposed,
        "access": None if state.access.rules is None else {"number": describe(state.access.changed)},
        "state": pair.bstate.name.lower(),
        "since_s": round(turn.now - pair.since, 3),
        "uptime_s": round(turn.now - pair.started, 3),
        "wall_ms": round(turn.wall_s * 1000),
        "epoch": epoch_of(state.number),
        "sequence": sequence_of(state.number),
        "number": describe(state.number),
        "keys": len(state.map),
        "fingerprint": f"{state.map.fingerprint()[1]:016x}",
        "sessions": len(state.sessions),
        "leases": len(state.leases),
        "transactions": len(state.staging.transactions),
        "applications": len(state.staging.versions),
        "staged_bytes": state.staging.bytes,
        "channels": channels.shown(),
        "chp1_subscriptions": sum(channels.listeners.counts[prefix] for prefix in channels.chp1),
        "clients": len(requests.clients),
        "syncs": len(requests.syncs),
        "images": requests.numbers.images,
        "image_numbers": len(state.undo.numbers),
        "undo_bytes": state.undo.bytes,
        "topics": requests.readers.status(link.backfill.lacks),
        "groups": state.topics.groups_shown(GROUPS_SHOWN, round(turn.wall_s * 1000)),
        "pending": len(pending),
        "pending_bytes": pending.bytes,
        "log_records": len(committed.log),
        "log_bytes": committed.log.bytes,
        "waiting_acks": len(committer.acks.waiting),
        "in_sync": pair.in_sync(),
        "in_sync_since_s": round(turn.now - link.in_sync_since, 3),
        "copies": _copies(pair, requests),
        "throttled": pair.active and turn.now - link.sets.throttled_at < THROTTLED_S,
        "waiting_sets": len(link.sets.queue),
        "waiting_sets_bytes": link.sets.queue.bytes,
        "waits_for": link.waits_for,
        "epochs": _epochs(committed),
        "room": committer.room.status(len(state.map)),
        "peer": _peer_status(turn, pair, link),
        "arbiter": pair.arbitration.status(),
        "scrub": link.scrubber.status(turn.now),
        "replicas": requests.replicas.status(),
        "misfit": None if link.incompatible is None else link.incompatible.status(turn.now),
        **requests.shell_facts(),
        "counts": {**committer.counts, **_turned_away(committed, link, requests)},
    }


def _copies(pair: PairState, requests: Requests) -> dict[str, Any] | None:
    """Return the number of copies that an active with `--copies` wants, and of those in sync; else None."""
    if not pair.active or pair.config.replica or pair.config.copies == 2:
        return None
    in_sync = 1 + pair.in_sync() + requests.replicas.confirming_in_sync()
    return {"wanted": pair.config.copies, "in_sync": in_sync}


def _epochs(committed: Committed) -> list[dict[str, Any]]:
    """Return the latest epochs, the newest first: which server opened each, why, and when by that server's clock."""
    newest = sorted(committed.state.history.items(), reverse=True)[:EPOCHS_SHOWN]
    return [
        {"epoch": i, "last": describe(e.last), "name": e.name, "because": e.because, "wall_ms": e.wall_ms,
         "opener": e.opener.hex()}
        for i, e in newest
    ]  # fmt: skip


def _turned_away(committed: Committed, link: PeerLink, requests: Requests) -> dict[str, int]:
    """Return the counts of what was refused or dropped for lack of room, without those that are zero."""
    counts = {
        "channels_refused": committed.channels.refused,
        "requests_refused": requests.syncs.refused,
        "readers_dropped": requests.syncs.dropped,
        "pending_dropped": link.pending.dropped,
    }
    return {name: count for name, count in counts.items() if count}


def _peer_status(turn: CurrentTurn, pair: PairState, link: PeerLink) -> dict[str, Any] | None:
    peer = pair.peer
    if peer is None:
        return None
    return {
        "name": peer.name,
        "alive": pair.peer_lives(),
        "state": peer.state.name.lower(),
        "number": describe(peer.number),
        "room": peer.room,
        "store": peer.at.store.hex(),
        "version": peer.version,
        "settings_differ": link.differences(peer),
        "silent_s": round(turn.now - peer.heard, 3),
        "turn_ms": peer.turn_ms,
    }
