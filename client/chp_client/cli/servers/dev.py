"""`chp dev`: a pair to try things on, in the foreground; Ctrl-C or a closed terminal ends it.

    ready: a primary (process 4711) and a backup (process 4712); Ctrl-C ends both
    console: http://127.0.0.1:8080
    try: chp set /hello world; chp watch /

The servers are processes of their own, so a failover can be tried: kill -9 one server by its process number, and
`chp dev` starts it again. The data are in a temporary directory. With --verbose each line of a log is shown, after the
program's name. Each child's standard input is a pipe that only `chp dev` holds open. If `chp dev` is killed, the pipe
ends, and the child ends too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click

from ...port.admin import Admin
from .. import pair
from ..faults import OK, Misused, NotFound, RefusedByServer
from ..out import Out
from ..settings import CliSettings, command

COLOURS = {"primary": "green", "backup": "cyan", "gateway": "magenta"}
# `chp dev` looks for children that have ended this often, in seconds, and starts them again.
AGAIN_S = 2.0
LOOK_S = 0.1
READY_S = 30.0
# A child has this many seconds to end after SIGTERM; then it is killed.
END_S = 5.0
# This many last lines of a log are shown if its program does not start.
LINES = 20
# Each child runs this program. It runs the module that its arguments name, and ends when its standard input ends.
HELD = f"""\
import os, runpy, signal, sys, threading
def end():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait({END_S})
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=end, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
# The backup's first port is APART above the primary's. Each server has EACH ports in a row.
APART, EACH = 10, 4
DEFAULT_PORT = 5556


class Child:
    """A child process (a server or the gateway), and its log."""

    def __init__(self, out: Out, name: str, argv: list[str], environ: dict[str, str], verbose: bool) -> None:
        self._out, self.name, self._argv, self._environ = out, name, argv, environ
        self._verbose = verbose
        self._log: deque[str] = deque(maxlen=LINES)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program in a process group of its own, so that Ctrl-C does not reach it."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", HELD, *self._argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE, env=self._environ, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        if self._verbose:
            self.say(f"process {self.number}")

    @property
    def number(self) -> int:
        """The number of the process."""
        return self.process.pid if self.process is not None else 0

    def say(self, text: str) -> None:
        """Write the program's name and a text as one line. Ignore the error if the terminal is closed."""
        with contextlib.suppress(OSError):
            self._out.line(f"{self._out.style(f'{self.name:7} |', fg=COLOURS[self.name])} {text}")

    def show_log(self) -> None:
        """Show the last lines of the log, unless --verbose has shown them already."""
        for line in [] if self._verbose else self._log:
            self.say(line)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        # A line of a server's log is: time, level, name of the server, text.
        own = re.compile(rf"^(\S+ [A-Z]+ +){self.name} |^chp-gateway: ")
        assert process.stdout is not None, "it was asked for"
        for line in process.stdout:
            text = own.sub(r"\1", line.decode(errors="replace").rstrip())
            self._log.append(text)
            if self._verbose:
                self.say(text)

    def has_ended(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return None if self.process is None else self.process.poll()

    def end(self) -> None:
        """End the program with SIGTERM, and kill it if it has not ended after `END_S`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@command(servers=False)
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(1024, 65_000),
    help="The primary's first port of four; the backup's is ten above.",
)  # fmt: skip
@click.option("--console-port", default=8080, show_default=True, type=click.IntRange(1024, 65_535))
@click.option("--console/--no-console", default=True, help="Serve the console too, if chp-gateway is installed.")
@click.option("-v", "--verbose", is_flag=True, help="Show the logs.")
def dev(settings: CliSettings, port: int, console_port: int, console: bool, verbose: bool) -> None:
    """Run a pair to try things on, until Ctrl-C.

    A primary and a backup run on this machine, with temporary data. Both end when this command ends, also if its
    terminal is closed or the command is killed. With nohup the command outlives the terminal. A server that ends by
    itself, or by kill -9, is started again within two seconds.

    Examples:
        chp dev                   # on the ports that a Clone() looks at
        chp dev --port 7000       # it says which CHP_SERVERS to export
        chp dev --verbose         # with the logs of both servers
        chp dev --no-console
    """
    if importlib.util.find_spec("chp_server") is None:
        raise NotFound("the server is not installed here: pip install chp-clone")
    _check_free([p + i for p in (port, port + APART) for i in range(EACH)])
    there = all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn", "httptools"))
    if console and there:
        _check_free([console_port])
    addresses = [f"tcp://127.0.0.1:{p}" for p in (port, port + APART)]
    export = f"export CHP_SERVERS={','.join(a.removeprefix('tcp://') for a in addresses)}; " * (port != DEFAULT_PORT)
    with tempfile.TemporaryDirectory(prefix="chp-dev-") as data:
        children = _children(settings.out, Path(data), addresses, console_port if console and there else None, verbose)
        where = "none: pip install 'chp-clone[gateway]' brings it" if console else "none, as asked for"
        _serve(settings.out, children, addresses, [
            f"console: http://127.0.0.1:{console_port}" if console and there else f"console: {where}",
            f"try: {export}chp set /hello world; chp watch /",
        ])  # fmt: skip


def _check_free(ports: list[int]) -> None:
    for port in ports:
        with socket.socket() as probe:
            # A port that was closed a moment ago is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise Misused(f"port {port} is not free ({error.strerror}); give another by --port") from None


def _children(out: Out, data: Path, addresses: list[str], console: int | None, verbose: bool) -> list[Child]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")}
    found = []
    for i, role in enumerate(("primary", "backup")):
        argv = ["chp_server.main", f"--{role}", "--bind", addresses[i], "--peer", addresses[1 - i]]
        found.append(Child(out, role, [*argv, "--data", str(data / role), "--name", role], environ, verbose))
    if console is not None:
        argv = ["chp_client.gateway", "--servers", ",".join(addresses), "--listen", f"127.0.0.1:{console}", "--write"]
        found.append(Child(out, "gateway", argv, environ, verbose))
    return found


def _serve(out: Out, children: list[Child], addresses: list[str], lines: list[str]) -> None:
    with _interrupted() as stop:
        try:
            for child in children:
                child.start()
            if _until_ready(children, addresses, lines[0], stop):
                primary, backup = (f"a {child.name} (process {child.number})" for child in children[:2])
                with contextlib.suppress(OSError):
                    out.lines([f"ready: {primary} and {backup}; Ctrl-C ends both", *lines])
            # When the end of each child was noticed.
            ends: dict[str, float] = {}
            while not stop.wait(LOOK_S):
                for child in children:
                    if (code := child.has_ended()) is None:
                        continue
                    now = time.monotonic()
                    if now - ends.setdefault(child.name, now) >= AGAIN_S:
                        del ends[child.name]
                        child.start()
                        child.say(f"ended with {code}; started again as process {child.number}")
        finally:
            for child in reversed(children):
                child.end()
    with contextlib.suppress(OSError):
        out.line("ended, and its data are gone")


def _until_ready(children: list[Child], addresses: list[str], console: str, stop: threading.Event) -> bool:
    """Wait until the pair is in sync and the console answers. Return False if the user ends the wait with Ctrl-C."""
    until = time.monotonic() + READY_S
    port = int(console.rpartition(":")[2]) if len(children) > len(addresses) else 0
    with Admin(addresses, timeout_s=LOOK_S * 5) as admin:
        while pair.verdict(pair.views(admin.ask_all("status"), named=True)).code != OK or (port and not _takes(port)):
            ended = next((child for child in children if child.has_ended() is not None), None)
            if ended is not None or time.monotonic() > until:
                late = ended or children[0]
                late.show_log()
                why = f"ended with {late.has_ended()}" if ended else f"is not in sync after {READY_S:g} s"
                raise RefusedByServer(f"the {late.name} {why}; see its log above")
            if stop.wait(LOOK_S):
                return False
    return True


def _takes(port: int) -> bool:
    """Return True if the console takes connections."""
    try:
        socket.create_connection(("127.0.0.1", port), LOOK_S).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C, SIGTERM and SIGHUP (a closed terminal) set. Under nohup, SIGHUP stays ignored."""
    stop, ends = threading.Event(), [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in ends}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


COMMANDS = (dev,)
