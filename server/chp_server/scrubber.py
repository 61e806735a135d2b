"""The scrub at work: when a slice goes out, who answers, and what a difference leads to (scrub.py has the rest)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chp.headers import State
from chp.numbers import describe

from .follow import Follower
from .scrub import Found, Scrub

if TYPE_CHECKING:
    from .core import ServerCore


class Scrubber:
    """One server's part in it, whichever it is."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._scrub = Scrub(core.config.scrub_s, core.config.heartbeat_s)

    def go_on(self, follower: Follower) -> None:
        """The next slice, if one is due and the passive is, or will be, where we are when it comes."""
        core = self._core
        if not follower.in_sync:
            self._scrub.stop()
        elif follower.position == core.state.number and not core.state.late and self._scrub.due(core.now):
            said = self._scrub.next(core.state, core.now)
            if said is not None:
                core.turn.to_peer.append(said)

    def on_scrub(self, body: bytes) -> None:
        """The active's slice; a difference makes us take its whole state."""
        core = self._core
        if core.bstate is not State.PASSIVE or core.link.loader is not None:
            return
        if core.commits.followed != core.state.number:  # parts of a record are here, and its last is not
            return
        answer, found = self._scrub.compare(core.state, body, core.now)
        if answer is not None:
            core.turn.to_peer.append(answer)  # before the question for all
        if found is not None:
            self._tell(found)
            core.link.want_whole()

    def on_scrubbed(self, body: bytes) -> None:
        """What the passive made of a slice of ours."""
        core = self._core
        found = self._scrub.answered(body, core.now) if core.active else None
        if found is not None:
            self._tell(found)
            self._scrub.stop()

    def _tell(self, found: Found) -> None:
        core = self._core
        core.counts["scrub_differences"] += found.differences
        keys = ", ".join(found.named) or "keys that only one of the two has"
        core.turn.fact("contents differ", "warning", number=describe(core.state.number), keys=keys, of=found.keys)

    def status(self) -> dict[str, Any]:
        """For `chp status` and metrics."""
        return self._scrub.status(self._core.now)
