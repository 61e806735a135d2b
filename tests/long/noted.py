"""A plugin of pytest that notes each test in a file, and leaves out those that the file has as passed.

pytest -p tests.long.noted --done FILE
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .state import note, passed


class Noted:
    """The outcome of each test of a run, noted when the test has ended."""

    def __init__(self, done: Path) -> None:
        self._done = done
        self._left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out the tests that passed in an earlier run."""
        before = passed(self._done)
        out = [item for item in items if item.nodeid in before]
        items[:] = [item for item in items if item.nodeid not in before]
        self._left_out = len(out)
        config.hook.pytest_deselected(items=out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test, and note its outcome."""
        self._said = "ok"
        taken = yield
        note(self._done, item.nodeid, self._said)
        return taken

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the report of a phase of the test."""
        if report.skipped:
            self._said = "skipped"
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._said = f"{report.when}: {crash.message if crash else report.longrepr}".splitlines()[0]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let a run end well if all of its tests had passed before."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._left_out:
            session.exitstatus = pytest.ExitCode.OK


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the file."""
    parser.addoption("--done", type=Path, required=True, help="the file of the tests that ran")


def pytest_configure(config: pytest.Config) -> None:
    """Note the outcomes of this run."""
    config.pluginmanager.register(Noted(config.getoption("--done")))
