"""Two hosts on one machine, a and b. Each has its own network, `/etc` and `/var`, and a wire joins them.

They are made of Linux's namespaces, which needs root. `why_not` says what is missing for that. The files that a host
writes to `/etc` and `/var` lie in memory. Files, network and processes are gone when the host ends. One process holds
the namespaces, and ends when its standard input does. There is no sshd, so `scp` is a stand-in on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

COMMAND_S = 60.0
NEEDED = ("unshare", "nsenter", "ip", "mount", "runuser", "useradd")
ADDRESSES = {4: {"a": "10.78.0.1/24", "b": "10.78.0.2/24"}, 6: {"a": "fd00:78::1/64", "b": "fd00:78::2/64"}}
_HOLD = """set -e
room=$1
mount -t tmpfs chp-test "$room"
cover() {
  mkdir -p "$room/new$1" "$room/work$1"
  mount -t overlay chp-test -o "lowerdir=$1,upperdir=$room/new$1,workdir=$room/work$1" "$1"
}
cover /etc
cover /var
shift
for closed; do cover "$closed"; chmod a+x "$closed"; done
ip link set lo up
echo ready
exec cat
"""
_SCP = """#!/bin/sh
# scp FILE HOST:PATH
host=${2%%:*} path=${2#*:}
[ -d "$path" ] && path=$path/$(basename "$1")
[ -r "$1" ] || { echo "scp: stat local \\"$1\\": No such file or directory" >&2; exit 1; }
exec nsenter -t "$(cat "$(dirname "$0")/$host.pid")" -m sh -c 'cat > "$0"' "$path" < "$1"
"""


def why_not() -> str:
    """Return why this machine cannot simulate two hosts, or "" if it can."""
    if os.geteuid() != 0:
        return "two hosts in namespaces need root"
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        return f"two hosts in namespaces need {', '.join(missing)}"
    tried = "mount -t tmpfs chp-test /mnt && mkdir /mnt/u /mnt/w && mount -t overlay chp-test -o "
    tried += "lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc && ip link add chp-test type veth"
    argv = ["unshare", "--net", "--mount", "sh", "-c", tried]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def closed() -> list[str]:
    """Return the directories that other users than root cannot enter, and which the hosts must open for them."""
    needed = [Path(sys.executable).resolve(), Path(sys.prefix), Path(__file__).resolve()]
    above = {str(parent) for path in needed for parent in path.parents if not parent.stat().st_mode & 0o001}
    return sorted(above, key=len)


class Host:
    """A host. Commands run there as root, each in the directory where the one before has ended."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self._bin = name, directory
        (room := directory / name).mkdir()
        argv = ["unshare", "--net", "--mount", "sh", "-c", _HOLD, "hold", str(room), *closed()]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._holder.pid
        (directory / f"{name}.pid").write_text(str(self.pid))
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def wait(self) -> None:
        """Wait until the host is there."""
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", f"host {self.name} did not start"

    def _argv(self, command: str) -> list[str]:
        there = self._bin / f"{self.name}.pwd"
        command = f"cd $(cat {there} || echo /) 2>/dev/null; trap 'pwd > {there}' EXIT; {command}"
        return ["nsenter", "-t", str(self.pid), "--net", "--mount", "sh", "-c", command]

    @property
    def _environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CHP_")}
        path = f"{self._bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**kept, "PATH": path, "HOME": "/root"}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        argv, env = self._argv(command), self._environ
        return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, timeout=COMMAND_S, check=False)

    def start(self, command: str) -> None:
        """Run a command beside others, until the host ends."""
        said = self._bin / f"{self.name}.{len(self._started)}.log"
        with said.open("wb") as log:
            process = subprocess.Popen(
                self._argv(command), env=self._environ, cwd="/", stdout=log, stderr=log, start_new_session=True
            )
        self._started.append((process, said))

    def said(self) -> str:
        """Return the output of the started commands."""
        return "".join(path.read_text() for _, path in self._started)

    def ended(self) -> list[int | None]:
        """Return the exit codes of the started commands, with None for one that runs."""
        return [process.poll() for process, _ in self._started]

    def end(self) -> None:
        """End the host, and all commands that run there."""
        for process, _ in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process, _ in self._started:
            process.wait(COMMAND_S)
        self._holder.communicate(timeout=COMMAND_S)


class TwoHosts:
    """The hosts a and b, which resolve each other's names to addresses of one kind."""

    def __init__(self, directory: Path, kind: int = 4) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        (scp := directory / "scp").write_text(_SCP)
        scp.chmod(0o755)
        self.a, self.b = Host("a", directory), Host("b", directory)
        self._kind = kind

    def __enter__(self) -> Self:
        for host in (self.a, self.b):
            host.wait()
        self._do(f"ip link add eth0 netns {self.a.pid} type veth peer name eth0 netns {self.b.pid}")
        known = ADDRESSES[self._kind]
        names = "".join(f"{address.partition('/')[0]} {name}\\n" for name, address in known.items())
        for host in (self.a, self.b):
            said = host.run(
                f"printf '{names}' >> /etc/hosts && ip addr add {known[host.name]} dev eth0 "
                f"{'nodad' if self._kind == 6 else ''} && ip link set eth0 up"
            )
            assert said.returncode == 0, said.stderr
        return self

    def __getitem__(self, name: str) -> Host:
        return {"a": self.a, "b": self.b}[name]

    @staticmethod
    def _do(command: str) -> None:
        subprocess.run(command.split(), check=True, timeout=COMMAND_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in (self.a, self.b):
            host.end()
