"""Replicas at work: a pair, two replicas, and readers that choose among them. Each of them may die.

    writer -> active server -> replica r1 -> readers
                   |        -> replica r2 -> readers
             passive server

Each reader is given all four addresses, and reads at one replica. A replica is killed (SIGKILL): its readers resume at
the other one, and the pair makes no snapshot for them. Then the active server is killed: the passive takes over, and
replicas and readers go on. Each killed server is started again. At the end everything is counted: what was
acknowledged, what each reader holds, and what the pair and each replica hold. The last line is

    demo: N sets acknowledged, R readers agree, 0 lost, a replica's death took S s, a failover took S s

The exit status is 0 only if all of this is true. The demo takes about half a minute, and leaves no process, port or
file.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

from chp_client import Clone
from chp_client.port.admin import Admin, AdminReply

from ..rates.application import MARK
from ..rates.display import Plain
from ..rates.processes import Failed, Family, Process, free_ports, server_command

SUBTREE, READERS, REPLICAS, KEYS = "/load/", 8, ("r1", "r2"), 500
STEP_S = 60.0
EVERY_S = 0.05
PACE_S = 2.0


class Demo:
    """One run of the demo, step by step; every wait has a time limit."""

    def __init__(self, family: Family, folder: Path, shown: Plain) -> None:
        self.family, self.folder, self.shown = family, folder, shown
        taken: set[int] = set()
        self.servers = {name: f"tcp://127.0.0.1:{free_ports(4, taken)}" for name in ("primary", "backup", *REPLICAS)}
        self.pair = [self.servers["primary"], self.servers["backup"]]
        self.running = {name: self.start_server(name) for name in self.servers}
        self.readers: list[Process] = []
        self.acknowledged: dict[str, str] = {}
        self.sets = 0
        self.last_line = ""

    def start_server(self, name: str) -> Process:
        """Start a server of the pair, or a replica."""
        if name in REPLICAS:
            part = ["--replica", "--upstream", ",".join(self.pair), "--name", name]
        else:
            part = [f"--{name}", "--peer", self.servers["backup" if name == "primary" else "primary"]]
        data = ["--data", str(self.folder / name)]
        return self.family.start(name, [*server_command(), *part, "--bind", self.servers[name], *data])

    def run(self) -> int:
        """Run all steps in order; return the exit status."""
        self.shown.say(f"start two servers, two replicas and {READERS} readers")
        everything = ",".join(self.servers.values())
        with Clone(self.pair, SUBTREE, name="writer") as clone:
            clone.wait_until_synced(STEP_S)
            self.write(clone, 1.0)
            self.wait(lambda: all(self.load(name) is not None for name in REPLICAS), "the replicas")
            words = ("--servers", everything, "--subtree", SUBTREE, "--leash")
            self.readers = [
                self.family.python(f"reader-{i}", "examples.rates.application", *words) for i in range(READERS)
            ]
            self.wait(lambda: all(each.said("state SYNCED") for each in self.readers), "the readers")
            self.write(clone, PACE_S)
            self.shown.say("readers: " + ", ".join(f"{self.load(name)} at {name}" for name in REPLICAS))
            replica_s = self.kill(clone, max(REPLICAS, key=lambda name: self.load(name) or 0))
            failover_s = self.kill(clone, "primary")
            self.write(clone, PACE_S)
            clone.flush(STEP_S)
            return self.tell(replica_s, failover_s)

    def write(self, clone: Clone, seconds: float) -> None:
        """Set keys for a time, and note what was acknowledged."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.sets += 1
            key, value = f"{SUBTREE}{self.sets % KEYS}", str(self.sets)
            clone.set(key, value.encode()).wait(STEP_S)
            self.acknowledged[key] = value

    def load(self, name: str) -> int | None:
        """Return how many readers a replica has; None if it does not serve."""
        with Admin([self.servers[name]], timeout_s=1.0) as admin:
            answer = admin.ask_all("status")[self.servers[name]]
        serves = isinstance(answer, AdminReply) and answer.facts["state"] == "active"
        return int(answer.facts["replica"]["readers"]) if serves and isinstance(answer, AdminReply) else None

    def kill(self, clone: Clone, name: str) -> float:
        """Kill a server and start it again. Return the seconds until each reader had a key set after the kill."""
        self.shown.say(f"kill -9 of {name}")
        began = time.monotonic()
        self.running[name].kill()
        clone.set(SUBTREE + MARK, f"{began}".encode()).wait(STEP_S)
        mark = f"mark {began}"
        self.wait(lambda: all(each.said(mark) for each in self.readers), f"the readers after the end of {name}")
        took = max(each.said(mark)[0][0] for each in self.readers) - began
        self.shown.say(f"all readers go on after {took:.2f} s; start {name} again")
        self.running[name] = self.start_server(name)
        self.write(clone, PACE_S)
        return took

    def tell(self, replica_s: float, failover_s: float) -> int:
        """Count what readers and servers hold, and make the last line; return 0 if all is right, else 1."""
        held = {f"reader {i}": self.report(each) for i, each in enumerate(self.readers)}
        held |= {name: self.read([self.servers[name]]) for name in REPLICAS}
        held["the pair"] = self.read(self.pair)
        lost: set[str] = set()
        for name, items in held.items():
            wrong = {key for key, value in self.acknowledged.items() if items.get(key) != value}
            lost |= wrong
            self.shown.say(f"{name} holds {len(items)} of {len(self.acknowledged)}, {len(wrong)} differ")
        agree = sum(held[f"reader {i}"] == self.acknowledged for i in range(READERS))
        self.last_line = (
            f"demo: {self.sets} sets acknowledged, {agree} readers agree, {len(lost)} lost, "
            f"a replica's death took {replica_s:.1f} s, a failover took {failover_s:.1f} s"
        )
        return 0 if agree == READERS and not lost else 1

    def report(self, reader: Process) -> dict[str, str]:
        """Return what a reader holds; ask again for a while if that is not what it should be."""
        items: dict[str, str] = {}
        deadline = time.monotonic() + 10
        while items != self.acknowledged and time.monotonic() < deadline:
            items = self.report_once(reader)
        return items

    def report_once(self, reader: Process) -> dict[str, str]:
        """Return what a reader says that it holds now."""
        seen = len(reader.said("items"))
        reader.order("report")
        self.wait(lambda: len(reader.said("items")) > seen, f"{reader.name} to report")
        return without_mark(json.loads(reader.said("items")[-1][1].removeprefix("items ")))

    def read(self, servers: list[str]) -> dict[str, str]:
        """Return what these servers hold, by a fresh Clone."""
        with Clone(servers, SUBTREE, name="check") as clone:
            clone.wait_until_synced(STEP_S)
            return without_mark({key: value.decode() for key, value in clone.snapshot().items()})

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait until `until()` is true."""
        deadline = time.monotonic() + STEP_S
        while not until():
            if time.monotonic() > deadline:
                raise Failed(f"waited {STEP_S:.0f} s for {what}", self.family.tails())
            time.sleep(EVERY_S)


def without_mark(items: dict[str, str]) -> dict[str, str]:
    """Return the items without the demo's own mark."""
    return {key: value for key, value in items.items() if not key.endswith(MARK)}
