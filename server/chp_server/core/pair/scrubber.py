"""The scrub at work: when a slice goes out, who answers, and what a difference leads to (scrub.py has the rest)."""

from __future__ import annotations

from typing import Any

from chp.headers import State
from chp.numbers import describe

from ..standing import Standing
from .follow import Follower
from .scrub import Found, Scrub


class Scrubber:
    """One server's part in it, whichever it is."""

    def __init__(self, here: Standing) -> None:
        self._here = here
        self._scrub = Scrub(here.config.scrub_s, here.config.heartbeat_s)

    def go_on(self, follower: Follower) -> None:
        """The next slice, if one is due and the passive is, or will be, where we are when it comes."""
        here = self._here
        if not follower.in_sync:
            self._scrub.stop()
        elif follower.position == here.state.number and not here.state.deferred and self._scrub.due(here.now):
            said = self._scrub.next(here.state, here.now)
            if said is not None:
                here.turn.to_peer.append(said)

    def on_scrub(self, body: bytes) -> bool:
        """The active's slice; whether our contents are not the active's."""
        here = self._here
        if here.bstate is not State.PASSIVE:
            return False
        if here.commits.followed != here.state.number:  # parts of a record are here, and its last is not
            return False
        answer, found = self._scrub.compare(here.state, body, here.now)
        if answer is not None:
            here.turn.to_peer.append(answer)  # before the question for all
        if found is not None:
            self._tell(found)
        return found is not None

    def on_scrubbed(self, body: bytes) -> None:
        """What the passive made of a slice of ours."""
        here = self._here
        found = self._scrub.answered(body, here.now) if here.active else None
        if found is not None:
            self._tell(found)
            self._scrub.stop()

    def _tell(self, found: Found) -> None:
        here = self._here
        here.counts["scrub_differences"] += found.differences
        keys = ", ".join(found.named) or "keys that only one of the two has"
        here.turn.fact("contents differ", "warning", number=describe(here.state.number), keys=keys, of=found.keys)

    def status(self) -> dict[str, Any]:
        """For `chp status` and metrics."""
        return self._scrub.status(self._here.now)
