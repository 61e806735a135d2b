"""covers: cli/servers/dev.py: when `chp dev` starts an ended server again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from chp_client.cli.out import Out
from chp_client.cli.servers import dev


class Clock:
    """The time, which goes by while `chp dev` waits; it is the event of Ctrl-C too."""

    def __init__(self, end_at: float) -> None:
        self.now, self._end_at = 0.0, end_at

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self._end_at


class Mortal(dev.Child):
    """A server that ends at some moments."""

    def __init__(self, out: Out, clock: Clock, *ends: float) -> None:
        super().__init__(out, "primary", [], {}, False)
        self._clock, self._ends = clock, list(ends)
        self.starts: list[float] = []

    def start(self) -> None:
        self.starts.append(self._clock.now)

    def has_ended(self) -> int | None:
        # An end counts for the run that was started before it.
        over = [end for end in self._ends if self.starts[-1] <= end <= self._clock.now]
        return -9 if over else None


@pytest.mark.parametrize("end", [0.05, 1.0, 1.95])
def test_an_ended_server_is_started_again_two_seconds_later(end: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(end_at=20.0)

    @contextlib.contextmanager
    def interrupted() -> Iterator[Any]:
        yield clock

    monkeypatch.setattr(dev, "_interrupted", interrupted)
    monkeypatch.setattr(dev, "_until_ready", lambda *_: False)
    monkeypatch.setattr(dev, "time", clock)
    out = Out()
    child = Mortal(out, clock, end, end + 10)
    dev._serve(out, [child], [], [""])
    first, *again = child.starts
    assert first == 0 and len(again) == 2
    for ended, started in zip((end, end + 10), again, strict=True):
        assert dev.AGAIN_S <= started - ended < dev.AGAIN_S + 3 * dev.LOOK_S
