"""Topics at work: two shops publish orders, and three clerks of one group share them. Both sides survive kills.

    shops -> topic "orders" -> active server -> group "clerks": ann, bob, eve -> topic "done"
                                    |                                        -> topic "orders.clerks.dead"
                              passive server

One order kills each clerk that handles it (`os._exit`). The pair counts these deaths, and after three it puts the order
aside. Half-way the active server is killed (SIGKILL); the passive takes over, and the killed one catches up. At the end
the results are counted: each order once, in order by customer. The last line is

    demo: N orders, N done once and in order, 1 put aside after 3 deaths, 0 lost, failover took S s

The exit status is 0 only if all of this is true. The demo takes about half a minute, and leaves no process, port or
file.
"""

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from chp_client import Clone

from ..rates.display import Plain
from ..rates.processes import Failed, Family, Process, free_ports, server_command
from .worker import DONE, GROUP, ORDERS, POISON

SHOPS, CLERKS, EACH = ("shop-1", "shop-2"), ("ann", "bob", "eve"), 3000
DEATHS, RETRY_S = 3, 0.2
DEAD = f"{ORDERS}.{GROUP}.dead"
STEP_S = 90.0
EVERY_S = 0.05


class Demo:
    """One run of the demo, step by step; every wait has a time limit."""

    def __init__(self, family: Family, folder: Path, shown: Plain) -> None:
        self.family, self.folder, self.shown = family, folder, shown
        taken: set[int] = set()
        self.servers = {role: f"tcp://127.0.0.1:{free_ports(4, taken)}" for role in ("primary", "backup")}
        self.running = {role: self.start_server(role) for role in self.servers}
        self.clerks: dict[str, Process] = {}
        self.deaths = 0
        self.last_line = ""

    def start_server(self, role: str) -> Process:
        """Start the primary or the backup."""
        other = "backup" if role == "primary" else "primary"
        flags = [f"--{role}", "--bind", self.servers[role], "--peer", self.servers[other]]
        return self.family.start(role, [*server_command(), *flags, "--data", str(self.folder / role)])

    def start_worker(self, role: str, name: str) -> Process:
        """Start a shop or a clerk."""
        words = ("--servers", ",".join(self.servers.values()), "--name", name, "--orders", str(EACH))
        return self.family.python(name, "examples.orders.worker", role, *words)

    def run(self) -> int:
        """Run all steps in order; return the exit status."""
        self.shown.say("start two servers, two shops and three clerks")
        with Clone(self.servers.values(), None, codec="json", name="demo") as clone:
            clone.topic(ORDERS).subscribe(GROUP, "begin", max_deliveries=DEATHS, retry_after_s=RETRY_S, timeout=STEP_S)
            self.clerks = {name: self.start_worker("clerk", name) for name in CLERKS}
            self.wait(lambda: all(clerk.said("ready") for clerk in self.clerks.values()), "the clerks")
            shops = [self.start_worker("shop", name) for name in SHOPS]
            total = EACH * len(SHOPS)
            done = self.follow(clone)
            self.wait(lambda: done() > total // 4, "a quarter of the orders")
            clone.topic(ORDERS).publish(POISON, key="the poison").wait(STEP_S)
            self.shown.say(f"{done()} orders done; now one that kills each clerk that handles it")
            self.wait(lambda: self.deaths > 0, "the first death")
            failover_s = self.kill_the_active(clone)
            self.wait(lambda: all(shop.said("published") for shop in shops), "the shops")
            self.wait(lambda: done() >= total, "the last order")
            self.wait(lambda: bool(self.dead(clone)), "the order that kills to be put aside")
            return self.tell(clone, total, failover_s)

    def follow(self, clone: Clone[Any]) -> Callable[[], int]:
        """Return a function that tells how many orders are done."""

        def done() -> int:
            found = [topic for topic in clone.topics(STEP_S) if topic["name"] == DONE]
            return int(found[0]["next"]) if found else 0

        return done

    def kill_the_active(self, clone: Clone[Any]) -> float:
        """Kill the active server, start it again, and return how long nothing was acknowledged."""
        clone.flush(STEP_S)
        active = next(iter(self.running))
        self.shown.say(f"kill -9 of the {active} server, which is active")
        began = time.monotonic()
        self.running[active].kill()
        clone.topic("demo").publish("after the kill").wait(STEP_S)
        took = time.monotonic() - began
        self.shown.say(f"the other server has taken over after {took:.1f} s")
        self.running[active] = self.start_server(active)
        return took

    def dead(self, clone: Clone[Any]) -> list[dict[str, Any]]:
        """Return the messages that were put aside."""
        if DEAD not in {topic["name"] for topic in clone.topics(STEP_S)}:
            return []
        with Clone(self.servers.values(), None, codec="msgpack") as reader:
            return [letter for batch in reader.topic(DEAD).read(wait=False) for letter in batch.values]

    def tell(self, clone: Clone[Any], total: int, failover_s: float) -> int:
        """Count the results, and make the last line; return 0 if all is right, else 1."""
        results = [row for batch in clone.topic(DONE).read(wait=False) for row in batch.values]
        at = {(row["key"], row["offset"]) for row in results}
        order = {key: [row["offset"] for row in results if row["key"] == key] for key, _ in at}
        right = all(found == sorted(found) for found in order.values())
        shares = ", ".join(f"{name} {sum(row['by'] == name for row in results)}" for name in CLERKS)
        letters, twice, lost = self.dead(clone), len(results) - len(at), total - len(at)
        self.shown.say(f"orders by clerk: {shares}; the clerks died {self.deaths} times")
        ordered = "in order" if right else "NOT in order"
        self.last_line = (
            f"demo: {total} orders, {len(at)} done once and {ordered}, {len(letters)} put aside after "
            f"{letters[0]['tries'] if letters else 0} deaths, {lost} lost, failover took {failover_s:.1f} s"
        )
        return 0 if right and not twice and not lost and len(letters) == 1 else 1

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait until `until()` is true. Meanwhile restart clerks that have died, as a supervisor would."""
        deadline = time.monotonic() + STEP_S
        for _ in count():
            if until():
                return
            for name, clerk in self.clerks.items():
                if not clerk.running():
                    self.deaths += 1
                    self.shown.say(f"clerk {name} died of an order, and is started again")
                    self.clerks[name] = self.start_worker("clerk", name)
            if time.monotonic() > deadline:
                raise Failed(f"waited {STEP_S:.0f} s for {what}", self.family.tails())
            time.sleep(EVERY_S)
