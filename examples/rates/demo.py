"""The whole thing at work: real exchange rates, computed by Spark, in the memory of every application.

    feeder -> files -> Spark job -> Clone -> active server -> 3 applications, each with a Clone
                                              |  (passive server: holds the same)     and the console, in a browser

Half-way the active server is killed (SIGKILL). The passive takes over, and nothing that was published is lost. The
killed server is started again and catches up. At the end three things are compared, key by key: what Spark published,
what each application holds, and what each server holds. To read both servers, the demo reads the active one and stops
it; then the other server takes over again and is read too. The last line is

    demo: N published, A applications agree, L lost, failover took S s

The exit status is 0 only if all agree and nothing is lost. The failover is measured from the SIGKILL until the last
application has received a key that was set after the SIGKILL. The demo takes about a minute and leaves no process,
port or file. On a terminal it waits for Enter before it ends, so that the user can look at the console.
"""

import argparse
import json
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from chp_client import Clone
from chp_client.port.admin import Admin, AdminReply

from ..orders import demo as orders
from ..replicas import demo as replicas
from .application import MARK
from .display import Plain, display
from .processes import Failed, Family, Process, free_ports, server_command

APPLICATIONS = {"desk": "/rates/", "euro-prices": "/rates/EUR/", "dollar-prices": "/rates/USD/"}
# The currency of Bulgaria ends in these days, because the country joins the euro.
FIRST_DAY, DAYS, PACE = "2025-12-08", 100, 3.0
KILL_AT_DAY, RESTART_AT_DAY = 40, 65
# A start may take this long, because the disk may be cold, and Java may start for the first time.
START_S = 120.0
STEP_S = 60.0
EVERY_S = 0.4
# While the demo waits and shows nothing else, it prints a line at this interval.
PROGRESS_S = 4.0
# The demo waits at most this long for Enter, because the user may have left the terminal.
LOOK_S = 600.0


class Demo:
    """One run of the demo, step by step; every wait has a time limit."""

    def __init__(self, family: Family, folder: Path, shown: Plain) -> None:
        self.family, self.folder, self.shown = family, folder, shown
        self.taken: set[int] = set()  # ports
        self.ports = {role: free_ports(4, self.taken) for role in ("primary", "backup")}
        self.servers = {role: f"tcp://127.0.0.1:{port}" for role, port in self.ports.items()}
        self.applications: dict[str, Process] = {}
        self.expected_dead: set[str] = {"feeder"}
        self.last_line = ""
        self.console = ""

    def run(self) -> int:
        """Run all steps in order; return the exit status."""
        servers = ",".join(self.servers.values())
        self.shown.say(f"start two servers, {len(APPLICATIONS)} applications and Spark (which takes half a minute)")
        running = {role: self.start_server(role) for role in self.servers}
        self.start_console(servers)
        feeder, job = self.start_feeder(), self.start_job(servers)
        for name, subtree in APPLICATIONS.items():
            arguments = ("--servers", servers, "--subtree", subtree, "--leash")
            self.applications[name] = self.family.python(name, "examples.rates.application", *arguments)
        with Clone(self.servers.values(), subtree="/rates/", name="demo") as clone:
            self.wait(lambda: clone.state == "SYNCED", "the servers to serve", START_S)
            self.wait(self.applications_synced, "the applications to be in sync", START_S)
            self.shown.say(f"both servers and {len(self.applications)} applications run; Spark starts")
            self.wait(lambda: bool(job.said("ready")), "the Spark job to start", START_S)
            self.shown.say("Spark is there and reads the backlog")
            self.watch(clone, lambda: bool(job.said("batch")), START_S, "Spark's first figures")
            feeder.order("go")
            self.watch(clone, lambda: fed(feeder) >= KILL_AT_DAY)
            failover_s = self.kill(running["primary"], clone)
            self.watch(clone, lambda: fed(feeder) >= RESTART_AT_DAY)
            running["primary"] = self.restart()
            self.watch(clone, lambda: bool(feeder.said("done")))
            published = self.finish(job)
            self.watch(clone, lambda: subset(clone.snapshot(), "/rates/") == published, 10.0, None)
        return self.verdict(published, running, failover_s)

    # -- the parts

    def start_server(self, role: str) -> Process:
        """Start the primary or the backup."""
        other = "backup" if role == "primary" else "primary"
        data = ["--data", str(self.folder / role), "--log-format", "json"]
        flags = [f"--{role}", "--bind", self.servers[role], "--peer", self.servers[other], *data]
        return self.family.start(role, [*server_command(), *flags])

    def start_console(self, servers: str) -> None:
        """Serve the console while the demo runs. If its packages are not installed, go on without a console."""
        if not all(map(find_spec, ("starlette", "uvicorn"))):
            return
        listen = f"127.0.0.1:{free_ports(1, self.taken)}"
        self.console = f"http://{listen}/"
        self.family.python("console", "chp_client.gateway", "--servers", servers, "--listen", listen)
        self.expected_dead.add("console")
        self.shown.say(f"the console is at {self.console} until the demo ends")

    def start_job(self, servers: str) -> Process:
        """Start the Spark job. Its start takes a while; then the job waits for files with days of rates."""
        work = ("--work", str(self.folder / "work"), "--ledger", str(self.folder / "ledger.json"))
        return self.family.python(
            "job", "examples.rates.job", str(self.folder / "days"), "--servers", servers, *work, "--leash"
        )

    def start_feeder(self) -> Process:
        """Start the feeder. It drops the backlog at once, and then, after an order, one day at a time."""
        pace = ("--hold", "--from", FIRST_DAY, "--days", str(DAYS), "--pace", str(PACE), "--leash")
        return self.family.python("feeder", "examples.rates.feeder", str(self.folder / "days"), *pace)

    def applications_synced(self) -> bool:
        """Return whether every application holds its subtree."""
        return all(process.said("state SYNCED") for process in self.applications.values())

    # -- the steps

    def kill(self, active: Process, clone: Clone) -> float:
        """Kill the active server. Return the seconds until every application has a key that was set after the kill."""
        self.expected_dead.add(active.name)
        self.shown.say(f"kill -9 the active server ({active.name}, {clone.active})")
        killed_at = time.monotonic()
        active.kill()
        mark = f"mark {killed_at}"
        for subtree in APPLICATIONS.values():
            clone.set(subtree + MARK, f"{killed_at}".encode())
        processes = self.applications.values()
        self.watch(clone, lambda: all(p.said(mark) for p in processes), STEP_S, "the applications after the failover")
        failover_s = max(p.said(mark)[0][0] for p in processes) - killed_at
        self.shown.say(f"every application goes on with {clone.active} after {failover_s:.2f} s")
        clone.delete_many([subtree + MARK for subtree in APPLICATIONS.values()])
        return failover_s

    def restart(self) -> Process:
        """Start the killed server again, and see it catch up."""
        self.shown.say("start the killed server again")
        process = self.start_server("primary")
        self.expected_dead.discard("primary")
        self.wait(lambda: self.in_sync("primary"), "the restarted server to catch up")
        self.shown.say("it has caught up and is passive")
        return process

    def in_sync(self, role: str) -> bool:
        """Return whether this server says that it is passive and holds what the other one holds."""
        with Admin([self.servers[role]], timeout_s=0.5) as admin:
            answer = admin.ask_all("status")[self.servers[role]]
        return isinstance(answer, AdminReply) and answer.facts["state"] == "passive" and bool(answer.facts["in_sync"])

    def finish(self, job: Process) -> dict[str, str]:
        """Let Spark finish what has arrived. Return what it published and the pair acknowledged."""
        self.shown.say("the last day is out; Spark finishes")
        job.order("finish")
        self.expected_dead.add("job")
        self.wait(lambda: bool(job.said("done")) or not job.running(), "the Spark job to finish")
        ledger = self.folder / "ledger.json"
        if not ledger.exists():
            raise Failed("the Spark job failed", job.tail())
        published: dict[str, str] = json.loads(ledger.read_text())
        self.shown.say(f"{len(published)} aggregates published in {len(job.said('batch'))} batches")
        return published

    def verdict(self, published: dict[str, str], running: dict[str, Process], failover_s: float) -> int:
        """Compare what applications and servers hold, make the last line, and return the exit status."""
        holders: dict[str, tuple[str, dict[str, str]]] = {}
        for name, subtree in APPLICATIONS.items():
            holders[name] = subtree, self.ask_application(name, subset(published, subtree))
        agree = sum(held == subset(published, subtree) for subtree, held in holders.values())
        holders["server backup"] = "/rates/", self.read_server("backup")
        self.wait(lambda: self.in_sync("primary"), "the passive server to hold everything")
        self.expected_dead.add("backup")
        running["backup"].terminate()
        running["backup"].end()
        holders["server primary"] = "/rates/", self.read_server("primary")
        lost: set[str] = set()
        for name, (subtree, held) in holders.items():
            wrong = differences(subset(published, subtree), held)
            self.shown.say(f"{name}: holds {len(held)} of {len(subset(published, subtree))}, {len(wrong)} differ")
            lost |= wrong
        self.last_line = (
            f"demo: {len(published)} published, {agree} applications agree, {len(lost)} lost, "
            f"failover took {failover_s:.1f} s"
        )
        return 0 if published and not lost and agree == len(APPLICATIONS) else 1

    def look(self) -> None:
        """On a terminal, keep the console until the user presses Enter."""
        if self.console and sys.stdin.isatty() and sys.stdout.isatty():
            self.shown.say(f"all is counted; the console is still at {self.console}: press Enter to end")
            select.select([sys.stdin], [], [], LOOK_S)

    def ask_application(self, name: str, wanted: dict[str, str]) -> dict[str, str]:
        """Return what an application holds. Ask again for a while if that is not what it should be."""
        process = self.applications[name]
        held: dict[str, str] = {}
        deadline = time.monotonic() + 10
        while held != wanted and time.monotonic() < deadline:
            held = self.report(process)
        return held

    def report(self, process: Process) -> dict[str, str]:
        """Return what an application says that it holds now."""
        seen = len(process.said("items"))
        process.order("report")
        self.wait(lambda: len(process.said("items")) > seen, f"{process.name} to report")
        return subset(json.loads(process.said("items")[-1][1].removeprefix("items ")), "")

    def read_server(self, role: str) -> dict[str, str]:
        """Return what one server holds, by a fresh Clone that knows no other server."""
        with Clone([self.servers[role]], subtree="/rates/", name="check") as clone:
            clone.wait_until_synced(timeout=STEP_S)
            return subset(clone.snapshot(), "/rates/")

    # -- waiting

    def watch(
        self, clone: Clone, until: Callable[[], bool], timeout_s: float = STEP_S, what: str | None = "the feeder"
    ) -> None:
        """Show the rates until `until()` is true."""

        def seen() -> bool:
            role = next((role for role, address in self.servers.items() if address == clone.active), "none")
            self.shown.show(clone.snapshot(), f"{len(clone)} figures, active server: {role}, {clone.state}")
            return until()

        self.wait(seen, what, timeout_s, quiet=True)

    def wait(
        self, until: Callable[[], bool], what: str | None, timeout_s: float = STEP_S, *, quiet: bool = False
    ) -> None:
        """Wait until `until()` is true. Raise `Failed` if a process ends, or at the timeout unless `what` is None."""
        began = told = time.monotonic()
        deadline = began + timeout_s
        while not until():
            if not quiet and what is not None and time.monotonic() - told >= PROGRESS_S:
                told = time.monotonic()
                self.shown.say(f"waiting for {what} ({told - began:.0f} s)")
            for process in self.family.dead(but=self.expected_dead):
                raise Failed(f"{process.name} has ended", process.tail())
            if time.monotonic() > deadline:
                if what is None:
                    return
                raise Failed(f"waited {timeout_s:.0f} s for {what}", self.family.tails())
            time.sleep(EVERY_S)


def fed(feeder: Process) -> int:
    """Return the number of days that the feeder has dropped."""
    return len(feeder.said("day"))


def subset(items: "dict[str, str] | dict[str, bytes]", subtree: str) -> dict[str, str]:
    """Return the items of a subtree as text, without the demo's own marks."""
    return {
        key: value.decode() if isinstance(value, bytes) else value
        for key, value in items.items()
        if key.startswith(subtree) and not key.endswith(MARK)
    }


def differences(wanted: dict[str, str], held: dict[str, str]) -> set[str]:
    """Return the keys that are missing, different, or should not be there."""
    return {key for key in wanted.keys() | held.keys() if wanted.get(key) != held.get(key)}


class Ended(BaseException):
    """The exception that a signal raises to end the demo."""


def main() -> int:
    """Run the demo; return 0 if everything agrees, 1 if not, 128 + signal if a signal interrupted it."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="make demo", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("rates", "topics", "replicas"),
        default="rates",
        help="topics: orders, a group, and kills; replicas: readers of two replicas, and kills",
    )
    what = parser.parse_args().what

    def end(number: int, _frame: FrameType | None) -> None:
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Further signals must not interrupt the end.
            signal.signal(other, signal.SIG_IGN)
        raise Ended(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    folder = Path(tempfile.mkdtemp(prefix="chp-demo-"))
    last_line, status = "", 1
    try:
        with Family(folder) as family, display() as shown:
            demo: Demo | orders.Demo | replicas.Demo
            if what == "rates":
                demo = Demo(family, folder, shown)
            elif what == "topics":
                demo = orders.Demo(family, folder, Plain())
            else:
                demo = replicas.Demo(family, folder, Plain())
            status = demo.run()
            last_line = demo.last_line
            if isinstance(demo, Demo):
                demo.look()
    except Failed as error:
        print(error.said, file=sys.stderr)
        last_line = f"demo: failed: {error}"
    except Ended as ended:
        status = 128 + int(ended.args[0])
        last_line = f"demo: interrupted by {signal.Signals(ended.args[0]).name}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(last_line, flush=True, file=sys.stdout if status in (0, 1) else sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
