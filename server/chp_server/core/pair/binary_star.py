"""Binary Star: the table that says which of two servers is active (SPEC.md, section 21; the ZeroMQ Guide, chapter 4).

There are four states. PRIMARY and BACKUP are the states of a server that has started and not yet
decided. An ACTIVE server serves clients, a PASSIVE one follows it. *Primary* and *backup* are also
the configured roles, which never change.

The Guide's machine decides by state alone, so a primary that restarts quickly becomes active with an empty map. Here a
server that is not active also tells its number, and the server that is ahead becomes active. If both have the same
number, the primary becomes active. If two actives meet, the one with the higher epoch stays active.

    PRIMARY, BACKUP --- peer not active and behind, or no peer for solo_wait_s ----------> ACTIVE
    PRIMARY, BACKUP --- peer active ---------------------------------------------------> PASSIVE
    PASSIVE ----------- peer silent and a client asks (its vote), peer not active and behind, hand-over ---> ACTIVE
    ACTIVE ------------ peer active with a higher epoch, the arbiter's lease lost -------> PASSIVE
"""

from __future__ import annotations

from enum import IntEnum

from chp.headers import State


class PairEvent(IntEnum):
    """An event of the pair, as one server sees it."""

    # The peer is not active, and this server goes first.
    PEER_BEHIND = 1
    # The peer is not active, and it goes first.
    PEER_AHEAD = 2
    # The peer is active, in a higher epoch.
    PEER_ACTIVE_HIGHER = 3
    # The peer is active, in a lower epoch.
    PEER_ACTIVE_LOWER = 4
    # A client asks to be served, and the peer is gone (liveness.py).
    VOTE_PEER_SILENT = 5
    # A client asks to be served, while the peer lives.
    VOTE_PEER_ALIVE = 6
    # No peer came for `solo_wait_s` after the start (liveness.py), and no client has seen a higher epoch.
    ALONE = 7
    # The active asks this server to take over (`chp switch`).
    HANDOVER = 8
    # The arbiter's lease is over, or in doubt.
    LEASE_LOST = 9
    # An operator forces this server, whatever the arbiter's set says (`chp switch --force`).
    FORCED = 10


TABLE: dict[tuple[State, PairEvent], State] = {
    (State.PRIMARY, PairEvent.PEER_BEHIND): State.ACTIVE,
    (State.PRIMARY, PairEvent.PEER_ACTIVE_HIGHER): State.PASSIVE,
    (State.PRIMARY, PairEvent.PEER_ACTIVE_LOWER): State.PASSIVE,
    (State.PRIMARY, PairEvent.ALONE): State.ACTIVE,
    (State.BACKUP, PairEvent.PEER_BEHIND): State.ACTIVE,
    (State.BACKUP, PairEvent.PEER_ACTIVE_HIGHER): State.PASSIVE,
    (State.BACKUP, PairEvent.PEER_ACTIVE_LOWER): State.PASSIVE,
    (State.BACKUP, PairEvent.ALONE): State.ACTIVE,
    (State.PRIMARY, PairEvent.FORCED): State.ACTIVE,
    (State.BACKUP, PairEvent.FORCED): State.ACTIVE,
    (State.PASSIVE, PairEvent.FORCED): State.ACTIVE,
    (State.ACTIVE, PairEvent.PEER_ACTIVE_HIGHER): State.PASSIVE,
    (State.ACTIVE, PairEvent.LEASE_LOST): State.PASSIVE,
    (State.PASSIVE, PairEvent.PEER_BEHIND): State.ACTIVE,
    (State.PASSIVE, PairEvent.VOTE_PEER_SILENT): State.ACTIVE,
    (State.PASSIVE, PairEvent.HANDOVER): State.ACTIVE,
}


def step(state: State, event: PairEvent) -> State:
    """Return the state after `event`; it is unchanged if the table has no such row."""
    return TABLE.get((state, event), state)


def peer_event(
    *, peer_state: State, peer_number: int, peer_epoch: int, number: int, epoch: int, primary: bool
) -> PairEvent:
    """Return the event that follows from the peer's report. The primary wins ties, so both servers agree."""
    if peer_state is State.ACTIVE:
        return PairEvent.PEER_ACTIVE_HIGHER if peer_epoch > epoch else PairEvent.PEER_ACTIVE_LOWER
    behind = peer_number < number or (peer_number == number and primary)
    return PairEvent.PEER_BEHIND if behind else PairEvent.PEER_AHEAD


def diagram() -> str:
    """Return the table as lines of text, for SPEC.md and for `describe`."""
    return "\n".join(f"{s.name:8} {e.name:20} -> {t.name}" for (s, e), t in TABLE.items())
