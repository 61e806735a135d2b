"""`chp dev`: a pair to try things on, in the foreground; Ctrl-C or a closed terminal ends it.

    primary | active ...              each line of either server's log, with its name, coloured on a terminal
    backup  | passive ...
    gateway | http://127.0.0.1:8080   the console, if the extra `gateway` is installed

The servers are processes of their own, so a failover can be tried: kill -9 one by its number, which is told, and it is
started again. Their data lie in a temporary directory. Each child's standard input is a pipe that only `chp dev` holds:
its end, which the kernel brings about if `chp dev` is killed, ends the child.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import click

from ..faults import Misused, NotFound
from ..out import Out
from ..settings import CliSettings, examples, pass_settings

COLOURS = {"primary": "green", "backup": "cyan", "gateway": "magenta"}
AGAIN_S = 2.0  # until one that has ended is started again: long enough to see the other take over
END_S = 5.0  # for one that was told to end
# What a child runs: the module that its arguments name, until the pipe that is its standard input ends.
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
APART, EACH = 10, 4  # the backup's port is the primary's and ten; a server has four in a row


class Child:
    """A program of the pair, and its log."""

    def __init__(self, out: Out, name: str, argv: list[str], environ: dict[str, str]) -> None:
        self._out, self.name, self._argv, self._environ = out, name, argv, environ
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, in a group of its own: Ctrl-C is for us, who end the children in their order."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", HELD, *self._argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE, env=self._environ, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._show, args=(self.process,), daemon=True).start()
        self.say(f"process {self.process.pid}")

    def say(self, text: str) -> None:
        """Write a line with its name before it. If the terminal is closed, nothing is written, and nothing raised."""
        with contextlib.suppress(OSError):
            self._out.line(f"{self._out.style(f'{self.name:7} |', fg=COLOURS[self.name])} {text}")

    def _show(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None, "it was asked for"
        for line in process.stdout:
            self.say(line.decode(errors="replace").rstrip())

    def has_ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        return None if self.process is None else self.process.poll()

    def end(self) -> None:
        """Tell it to end, and see to it."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@click.command(short_help="Run a pair to try things on, until Ctrl-C.", epilog=examples("""
    chp dev                   # on the ports that a Clone() looks at
    chp dev --port 7000       # it says which CHP_SERVERS to export
    chp dev --no-console
"""))  # fmt: skip
@click.option(
    "--port", default=5556, show_default=True, type=click.IntRange(1024, 65_000),
    help="The primary's first port of four; the backup's is ten above.",
)  # fmt: skip
@click.option("--console-port", default=8080, show_default=True, type=click.IntRange(1024, 65_535))
@click.option("--console/--no-console", default=True, help="Serve the console too, if chp-gateway is installed.")
@pass_settings
def dev(settings: CliSettings, port: int, console_port: int, console: bool) -> None:
    """Run a primary and a backup on this machine, with temporary data, their logs here; Ctrl-C ends both.

    So does a terminal that is closed, and kill -9 of this command. With nohup it outlives the terminal.

    One that ends by itself, as by kill -9, is started again two seconds later.
    """
    if importlib.util.find_spec("chp_server") is None:
        raise NotFound("the server is not installed here: pip install chp-clone")
    wanted = [p + i for p in (port, port + APART) for i in range(EACH)]
    _check_free(wanted)
    console = console and _console_is_there(settings.out)
    if console:
        _check_free([console_port])
    with tempfile.TemporaryDirectory(prefix="chp-dev-") as data:
        _serve(settings.out, _children(settings.out, Path(data), port, console_port if console else None))


def _check_free(ports: list[int]) -> None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a moment ago is free
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise Misused(f"port {port} is not free ({error.strerror}); give another by --port") from None


def _console_is_there(out: Out) -> bool:
    there = all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn", "httptools"))
    if not there:
        out.line("no console: pip install 'chp-clone[gateway]' brings it")
    return there


def _children(out: Out, data: Path, port: int, console: int | None) -> list[Child]:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")}
    addresses = [f"tcp://127.0.0.1:{p}" for p in (port, port + APART)]
    found = []
    for i, role in enumerate(("primary", "backup")):
        argv = ["chp_server.main", f"--{role}", "--bind", addresses[i], "--peer", addresses[1 - i]]
        found.append(Child(out, role, [*argv, "--data", str(data / role), "--name", role], environ))
    if console is not None:
        argv = ["chp_client.gateway", "--servers", ",".join(addresses), "--listen", f"127.0.0.1:{console}", "--write"]
        found.append(Child(out, "gateway", argv, environ))
    out.line(f"export CHP_SERVERS={','.join(a.removeprefix('tcp://') for a in addresses)}   # for other terminals")
    return found


def _serve(out: Out, children: list[Child]) -> None:
    with _interrupted() as stop:
        try:
            for child in children:
                child.start()
            while not stop.wait(AGAIN_S):
                for child in children:
                    if (code := child.has_ended()) is not None:
                        child.say(f"ended with {code}; started again")
                        child.start()
        finally:
            for child in reversed(children):
                child.end()
    with contextlib.suppress(OSError):
        out.line("ended, and its data are gone")


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, and the end of the terminal, unless that is ignored (nohup)."""
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
