"""covers: agent/measured.py: what `metrics=` is told, and that it harms nobody; the example of docs/metrics.md."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from chp_client import AsyncClone, Clone, Conflict
from chp_server.testing import TestServer

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Any]] = []
        self.seconds: list[float] = []

    def acknowledged(self, durability: str, seconds: float) -> None:
        self.rows.append(("acknowledged", durability))
        self.seconds.append(seconds)

    def refused(self, code: str) -> None:
        self.rows.append(("refused", code))

    def state(self, state: str) -> None:
        self.rows.append(("state", state))

    def changes(self, n: int) -> None:
        self.rows.append(("changes", n))


def test_what_it_is_told(lone: TestServer) -> None:
    told = Told()
    with Clone(lone.address, metrics=told) as clone:
        clone.wait_until_synced(WAIT_S)
        with clone.watch() as watch:
            clone.set_many({"/a": b"1", "/b": b"2"}).wait(WAIT_S)
            assert [watch.get(WAIT_S).key for _ in range(2)] == ["/a", "/b"]
        with pytest.raises(Conflict):
            clone.set("/a", b"2", if_revision=0).wait(WAIT_S)
    states = [value for what, value in told.rows if what == "state"]
    assert (states[0], states[-1]) == ("SYNCED", "CLOSED")
    assert ("acknowledged", "applied") in told.rows and ("refused", "revision") in told.rows
    assert sum(n for what, n in told.rows if what == "changes") == 2
    assert all(0 <= each < WAIT_S for each in told.seconds) and told.seconds


def test_one_that_raises_is_logged_once_and_harms_nobody(lone: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Told):
        def acknowledged(self, durability: str, seconds: float) -> None:
            raise ZeroDivisionError

    with Clone(lone.address, metrics=Wrong()) as clone:
        for _ in range(3):
            clone.set("/a", b"1").wait(WAIT_S)
    assert caplog.text.count("metrics of a Clone raised") == 1


def test_an_async_clone_has_them_too(lone: TestServer) -> None:
    told = Told()

    async def main() -> None:
        async with AsyncClone(lone.address, metrics=told) as clone:
            await clone.set("/a", b"1", timeout=WAIT_S)

    asyncio.run(main())
    assert ("acknowledged", "applied") in told.rows


def test_the_example_of_the_page(lone: TestServer) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    with Clone(lone.address, metrics=names["Told"]()) as clone:
        clone.set("/a", b"1").wait(WAIT_S)
        clone.wait_until_synced(WAIT_S)
    shown = prometheus.generate_latest().decode()
    assert 'clone_ack_seconds_count{durability="applied"} 1.0' in shown
