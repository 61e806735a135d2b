"""Binary Star: which of two servers serves, as a table (SPEC.md, section 21; the ZeroMQ Guide, chapter 4).

Four states. PRIMARY and BACKUP are those of a server that has started and not yet decided; ACTIVE serves, PASSIVE
follows. *Primary* and *backup* are configuration; a server keeps its role whatever its state.

The Guide's machine decides by state alone, and so a primary that restarts quickly becomes active with an empty map.
Here a server that is not active also tells its number, and the one that is ahead becomes active; between equals, the
primary. Two actives on meeting end as one: the higher epoch stays.

    PRIMARY, BACKUP --- peer not active and behind, or nobody there for solo_wait_s ---> ACTIVE
    PRIMARY, BACKUP --- peer active ---------------------------------------------------> PASSIVE
    PASSIVE ----------- peer silent and a client asks (its vote), peer not active and behind, hand-over ---> ACTIVE
    ACTIVE ------------ peer active with a higher epoch, the arbiter's lease lost -------> PASSIVE
"""

from __future__ import annotations

from enum import IntEnum

from chp.headers import State


class PairEvent(IntEnum):
    """What may happen to a server, seen from it."""

    PEER_BEHIND = 1  # the peer is not active, and we are to go first
    PEER_AHEAD = 2  # the peer is not active, and it is to go first
    PEER_ACTIVE_HIGHER = 3  # the peer is active, in an epoch above ours
    PEER_ACTIVE_LOWER = 4  # the peer is active, in an epoch below ours
    VOTE_PEER_SILENT = 5  # a client asks to be served, and the peer is gone (liveness.py)
    VOTE_PEER_ALIVE = 6  # a client asks to be served, while the peer lives
    ALONE = 7  # nobody there for solo_wait_s after the start (liveness.py), and no client has seen a higher epoch
    HANDOVER = 8  # the active asks us to take over (`chp switch`)
    LEASE_LOST = 9  # the arbiter's lease is over, or in doubt
    FORCED = 10  # a person says so, whatever the arbiter's set (`chp switch --force`)


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
    """The state after `event`; an event the table does not name for a state changes nothing."""
    return TABLE.get((state, event), state)


def peer_event(
    *, peer_state: State, peer_number: int, peer_epoch: int, number: int, epoch: int, primary: bool
) -> PairEvent:
    """What a peer's word about itself means to us. Ties go to the primary; both sides reach the same answer."""
    if peer_state is State.ACTIVE:
        return PairEvent.PEER_ACTIVE_HIGHER if peer_epoch > epoch else PairEvent.PEER_ACTIVE_LOWER
    behind = peer_number < number or (peer_number == number and primary)
    return PairEvent.PEER_BEHIND if behind else PairEvent.PEER_AHEAD


def diagram() -> str:
    """The table as lines of text, for SPEC.md and for `describe`."""
    return "\n".join(f"{s.name:8} {e.name:20} -> {t.name}" for (s, e), t in TABLE.items())
