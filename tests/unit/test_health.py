"""covers: core/peer/health.py: which server serves when one of two has little room or can't do a set."""

import pytest

from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.peer.health import FAILURES_MAX, PACE_S
from chp_server.core.updates.resource_limits import MIB, ResourceUsage

PLENTY, TIGHT = ResourceUsage(disk_free=1000 * MIB), ResourceUsage(disk_free=70 * MIB)


class Two:
    """P and B, and a network without loss."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cores = [
            ServerCore(
                CoreConfig(primary=name == "P", has_peer=True, name=name, disk_free_min=64 * MIB),
                name.encode() * 16,
                0.0,
            )
            for name in "PB"
        ]
        self.boxes: list[list[list[bytes]]] = [[], []]
        self.seen = [PLENTY, PLENTY]
        self.go(3.0)

    def go(self, seconds: float) -> None:
        """Let both servers take turns of a tenth of a second."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            for i, core in enumerate(self.cores):
                core.begin_turn(self.now, self.now)
                core.measured(self.seen[i])
                inbox, self.boxes[i] = self.boxes[i], []
                for frames in inbox:
                    core.peer_message(frames)
                turn = core.end_turn()
                self.boxes[1 - i] += turn.to_peer + turn.opened + turn.confirm

    @property
    def active(self) -> str:
        """The names of the active servers."""
        return "".join(core.pair.config.name for core in self.cores if core.active)


@pytest.fixture
def two() -> Two:
    made = Two()
    assert made.active == "P" and made.cores[0].pair.in_sync()
    return made


def test_the_active_hands_over_while_it_still_has_some_room(two: Two) -> None:
    two.seen[0] = TIGHT
    two.go(1.0)
    assert two.active == "B"
    assert not two.cores[0].committer.room.why_not(1000), "nothing had to be refused"


def test_an_active_does_not_hand_over_to_a_passive_with_little_room(two: Two) -> None:
    two.seen[1] = TIGHT
    two.go(1.0)
    two.seen[0] = TIGHT
    two.go(2.0)
    assert two.active == "P"


def test_a_new_active_with_little_room_hands_back_only_after_pace_s(two: Two) -> None:
    two.seen[0] = TIGHT
    two.go(1.0)
    two.seen = [PLENTY, TIGHT]
    two.go(PACE_S / 2)
    assert two.active == "B"
    two.go(PACE_S)
    assert two.active == "P"


def test_an_active_whose_sets_fail_hands_over_and_stays_passive(two: Two) -> None:
    for _ in range(FAILURES_MAX):
        two.cores[0].link.health.failures += 1
    two.seen[1] = PLENTY
    two.go(1.0)
    assert two.active == "B" and "no set can be done" in two.cores[0].link.health.why
    two.seen[1] = TIGHT
    two.go(2 * PACE_S)
    assert two.active == "B"
