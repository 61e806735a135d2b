"""A test of everything together: an hour of all that applications and operators do, on a pair with keys.

    python -m tests.process.everything --minutes 60        (`make test-long` does it in parts; three prove little)

These parts work all the time, each at a pace, on a pair with keys, journals and small disks:

    maps        Two writers set their own keys. The acknowledged value, or a later one, is there at the end.
    accounts    Transfers change two keys under conditions. The sum is the same for each reader at any time.
    counter     Four threads raise it. Each acknowledged addition counts once.
    lock        Three processes write to a resource that checks fencing tokens.
    topic       One reader reads each published message once and in order, over all failovers.
    group       Two members share the topic. Each message is acknowledged with its receipt in one record.
    gateway     A client PUTs by HTTP, and a reader of events has the servers' contents at the end.
    Spark       A process writes a data frame and reads it back, again and again, if Spark is installed.

Meanwhile faults come in an order that the seed gives: kill -9 of the active or of both, a stop, a hand-over, an upgrade
of one server after the other, a full disk (if a file system can be mounted), a change of a client's key, and a backup
that is restored into another server. Cuts of links are tested in tests/net.

With --base DIR a run leaves the journals, and what it knows of them, in that directory. A later run with the same
directory starts the pair on those journals and goes on: its accounts include all that the earlier runs were promised.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from chp_client import Clone, Conflict, Refused, Unanswered
from chp_client.clientfile import ClientFile
from chp_client.clone.base import internals
from chp_client.port.admin import Admin, AdminError, AdminReply
from chp_client.recipes import Counter
from chp_server.testing import free_port
from tests.talk import WAIT_S, until
from tests.wire import keys

from .cluster import ServerProcess
from .puppets import rss_mb

ROOT = Path(__file__).parents[2]
KEYS, ACCOUNTS, MONEY = 2_000, 10, 1_000
DISK = "96m"
# The median memory of a process may grow by this many MiB from the second third of the samples to the last third. A
# killed server begins anew with little memory.
GROWTH_MB_MAX = 32.0
REST_S = 3.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Pair:
    """A pair of processes with keys and journals, and with a disk each if one can be mounted."""

    def __init__(self, base: Path) -> None:
        self.base, self.root = base, keys.new_pair()
        shutil.rmtree(base / "keys", ignore_errors=True)
        self.folders = keys.pair_of_directories(base / "keys", ("root", self.root))
        at = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        self.backups = [base / f"backups-{role}" for role in ("primary", "backup")]
        self.both = [
            ServerProcess(
                base, role, at[i], at[1 - i], "--keys", str(self.folders[i]), "--heartbeat-s", "0.1",
                "--peer-timeout-s", "1", "--backup-dir", str(self.backups[i]), "--retain-bytes", str(4 << 20),
                "--retain-memory-bytes", str(4 << 20),
            )
            for i, role in enumerate(("primary", "backup"))
        ]  # fmt: skip
        self.public = dict(zip(at, map(keys.public_of, self.folders), strict=True))
        self.path = keys.client_file(base / "root.toml", self.root, self.public)
        self.file = ClientFile.read(self.path)
        self.disks = [server.data for server in self.both if mounted(server.data)]
        # Put the journals of an earlier run into the data directories.
        for server in self.both:
            if (kept := self._kept(server)).exists():
                shutil.copytree(kept, server.data, dirs_exist_ok=True)

    def _kept(self, server: ServerProcess) -> Path:
        return self.base / "kept" / server.role

    def keep(self) -> None:
        """End the servers, and copy their journals for the next run, because a mounted disk loses its files."""
        for server in self.both:
            server.kill()
            shutil.rmtree(self._kept(server), ignore_errors=True)
            shutil.copytree(server.data, self._kept(server))

    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each server that answers."""
        with Admin(self.file, 2.0) as admin:
            return [answer.facts for answer in admin.ask_all("status").values() if isinstance(answer, AdminReply)]

    def prints(self) -> set[str]:
        """Return the different fingerprints of the servers."""
        return {json.dumps(status["fingerprint"]) for status in self.statuses()}

    def active(self) -> ServerProcess:
        """Wait for an active server, and return it."""
        found: list[ServerProcess] = []

        def look() -> bool:
            with Admin(self.file, 2.0) as admin:
                told = {at: a.facts for at, a in admin.ask_all("status").items() if isinstance(a, AdminReply)}
            found[:] = [s for s in self.both if told.get(s.address, {}).get("state") == "active"]
            return len(found) == 1

        until(look, "an active")
        return found[0]

    def wait_in_sync(self) -> None:
        """Wait until both servers answer and are in sync."""
        until(lambda: [s["in_sync"] for s in self.statuses()] == [True, True], "the pair to be in sync", 180)

    def __enter__(self) -> Self:
        for server in self.both:
            server.start()
        self.wait_in_sync()
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self.both:
            server.kill()
        for disk in self.disks:
            subprocess.run(["umount", "-l", str(disk)], check=False)
        for server in self.both:
            shutil.rmtree(server.data, ignore_errors=True)


def mounted(path: Path) -> bool:
    """Mount a small file system, and return True if that worked."""
    path.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        argv = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(path)]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return False


class Work:
    """The threads that work all the time, with what was acknowledged to them. `errors` must stay empty."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.ending = pair, threading.Event()
        # This is set once the last message is published. Readers end after that message, maybe later than `ending`.
        self.published_all = threading.Event()
        self.errors: list[str] = []
        # key -> [last value that was acknowledged, last value that was set]
        self.maps: dict[str, list[int]] = {}
        self.added = self.unsure = 0
        self.published: list[bytes] = []
        self.maybe: set[bytes] = set()
        self.read: list[bytes] = []
        self.transfers = self.looks = self.anew = 0
        self._threads: list[threading.Thread] = []

    def carried(self) -> dict[str, Any]:
        """Return what the next run has to know."""
        return {
            "maps": self.maps, "added": self.added, "unsure": self.unsure,
            "published": [message.decode() for message in self.published],
            "maybe": sorted(message.decode() for message in self.maybe),
        }  # fmt: skip

    def carry_on(self, said: dict[str, Any]) -> None:
        """Go on from what an earlier run knew. Its messages are read again, and all must be there."""
        self.maps, self.added, self.unsure = said["maps"], said["added"], said["unsure"]
        self.published = [message.encode() for message in said["published"]]
        self.maybe = {message.encode() for message in said["maybe"]}

    def start(self) -> None:
        """Open the accounts, unless an earlier run did, and start all threads."""
        with self.clone("/accounts/") as clone:
            clone.wait_until_synced(WAIT_S)
            if not len(clone):
                clone.set_many({f"/accounts/{i}": b"%d" % MONEY for i in range(ACCOUNTS)}).wait(WAIT_S)
        jobs: list[Callable[[], None]] = [lambda: self._map("a"), lambda: self._map("b"), self._transfer, self._look]
        jobs += [self._count] * 4 + [self._publish, self._subscribe]
        jobs += [partial(self._handle, "m0"), partial(self._handle, "m1")]
        self._threads = [threading.Thread(target=self._guard, args=(job,), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let each thread finish its current work and end."""
        self.ending.set()
        for thread in self._threads:
            thread.join(3 * WAIT_S)
        assert not self.errors, self.errors[:3]
        assert not any(thread.is_alive() for thread in self._threads), "one waits for something that does not come"

    def clone(self, subtree: str | None) -> Clone:
        """Return a Clone with a key that the servers admit."""
        return Clone(self.pair.file, subtree)

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self.errors.append(repr(error))

    def _rest(self, seconds: float) -> bool:
        return not self.ending.wait(seconds)

    def _map(self, name: str) -> None:
        chance = random.Random(name)
        with self.clone(f"/map/{name}/") as clone:
            n = max((last for _, last in self.maps.values()), default=0)
            while self._rest(0.05):
                n += 1
                named = [f"/map/{name}/{chance.randrange(KEYS)}" for _ in range(50)]
                for key in named:
                    self.maps.setdefault(key, [0, 0])[1] = n
                if self._settled(partial(clone.set_many, dict.fromkeys(named, b"%d" % n))):
                    for key in named:
                        self.maps[key][0] = n

    def _settled(self, act: Callable[[], Any]) -> bool:
        """Return True if a set was acknowledged, or False if a server without room refused it."""
        try:
            act().wait(2 * WAIT_S)
        except Refused as refused:
            if refused.code != "full":
                raise
            return False
        return True

    def _transfer(self) -> None:
        chance = random.Random(2)
        with self.clone("/accounts/") as clone:
            clone.wait_until_synced(WAIT_S)
            while self._rest(0.05):
                one, two = (clone.entry(f"/accounts/{i}") for i in chance.sample(range(ACCOUNTS), 2))
                assert one is not None and two is not None, "no account is ever closed"
                values = [b"%d" % (int(one.value) - 1), b"%d" % (int(two.value) + 1)]
                on = [0, 1], [int(one.revision), int(two.revision)]
                with suppress(Conflict):
                    self.transfers += self._settled(
                        partial(internals(clone).writer.put_columns, [one.key, two.key], values, [], ([], []), on)
                    )

    def _look(self) -> None:
        with self.clone("/accounts/") as clone:
            clone.wait_until_synced(WAIT_S)
            while self._rest(0.02):
                total = sum(map(int, clone.snapshot().values()))
                assert total == ACCOUNTS * MONEY, f"somebody saw {total}"
                self.looks += 1

    def _count(self) -> None:
        with self.clone("/count/") as clone:
            clone.wait_until_synced(WAIT_S)
            counter = Counter(clone, "/count/it")
            while self._rest(0.1):
                try:
                    counter.add(timeout=2 * WAIT_S)
                    self.added += 1
                except (Refused, TimeoutError) as error:
                    self.unsure += not (isinstance(error, Refused) and error.code == "full")

    def _publish(self) -> None:
        with self.clone(None) as clone:
            topic = clone.topic("everything")
            n = max(map(int, self.maybe), default=0)
            while self._rest(0.05):
                n += 1
                message = b"%d" % n
                self.maybe.add(message)
                if self._settled(partial(topic.publish, message)):
                    self.published.append(message)
        self.published_all.set()

    def _subscribe(self) -> None:
        until(lambda: self.published or self.ending.is_set(), "the first message")
        with self.clone(None) as clone:
            after = -1
            while not (self.published_all.is_set() and self.read and self.read[-1:] == self.published[-1:]):
                for batch in clone.topic("everything").read(after + 1, wait=False):
                    self.read += batch.values
                    after = batch.offsets[-1]
                self.ending.wait(0.1)
                if self.ending.is_set():
                    time.sleep(0.1)

    def _handle(self, name: str) -> None:
        """Run a member of the group, which begins anew when it has to. At the end it handles what is left."""
        until(lambda: self.published or self.ending.is_set(), "the first message")
        with self.clone(None) as clone:
            while not (self.published_all.is_set() and self._all_handled(clone)):
                try:
                    with clone.topic("everything").consumer("workers", ttl=5.0, name=name) as consumer:
                        while (batch := consumer.take(2.0)) is not None or not self.ending.is_set():
                            if batch is not None:
                                last = {f"/handled/{name}": b"%d" % batch.offsets[-1]}
                                batch.commit(last, publish={"receipts": batch.values}, timeout=2 * WAIT_S)
                except (Refused, Unanswered, TimeoutError) as error:
                    if isinstance(error, Refused) and error.code not in ("full", "fenced", "lease"):
                        raise
                    self.anew += 1

    def _all_handled(self, clone: Clone) -> bool:
        published, handled = (int(clone.topic(name).facts()["next"]) for name in ("everything", "receipts"))
        return published == handled

    def check(self, fresh: Clone) -> None:
        """Check that all accounts agree with the copy of a new Clone."""
        for key, (acked, last) in self.maps.items():
            found = int(fresh.get(key, b"0"))
            assert acked <= found <= last, f"{key} is {found}, acknowledged {acked}, set {last}"
        total = int(fresh["/count/it"])
        assert self.added <= total <= self.added + self.unsure, (
            f"counted {total}, {self.added} and {self.unsure} unsure"
        )
        assert sum(int(fresh[f"/accounts/{i}"]) for i in range(ACCOUNTS)) == ACCOUNTS * MONEY
        assert len(self.read) == len(set(self.read)), "a message was read twice"
        numbers = list(map(int, self.read))
        assert numbers == sorted(numbers) and set(self.published) <= set(self.read) <= self.maybe
        receipts = [value for batch in fresh.topic("receipts").read(wait=False) for value in batch.values]
        assert len(receipts) == len(set(receipts)), "a message was handled twice"
        assert set(receipts) == set(self.read), "a message was not handled"


class Beside:
    """The processes that take part: contenders for a lock, a gateway and Spark."""

    def __init__(self, pair: Pair, *, spark: bool, put: dict[str, str]) -> None:
        self.pair, self.resource = pair, pair.base / "resource"
        self.resource.touch()
        # The last key that this run PUTs. The reader of events ends when it has seen this key.
        self._last = f"/http/last-{time.time_ns()}"
        self.port = free_port()
        file = str(pair.path)
        lockers = [["-m", "tests.process.contender", "lock", file, f"w{i}", str(self.resource)] for i in range(3)]
        gateway = [
            "-c",
            "from chp_client.gateway import main; main()",
            "--client-file",
            file,
            "--listen",
            f"127.0.0.1:{self.port}",
            "--anonymous",
            "gateway",
        ]
        jobs = [*lockers, gateway] + ([["-m", "tests.process.everything_spark", file]] if spark else [])
        self.logs = [pair.base / f"beside-{i}.log" for i in range(len(jobs))]
        self.processes = [self._start(job, log) for job, log in zip(jobs, self.logs, strict=True)]
        self.spark = self.processes[-1] if spark else None
        # The last body that this run or an earlier one PUT to each key.
        self.put = put
        self.errors: list[str] = []
        self.ending = threading.Event()
        # The keys and values that the gateway's events told.
        self.told: dict[str, str] = {}
        self.events = self.snapshots = 0
        self.closed = False
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._puts, self._events)]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _start(job: list[str], log: Path) -> subprocess.Popen[bytes]:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("CHP_")}
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *job], cwd=ROOT, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environ
            )

    def ask(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a request to the gateway, and return its status and body. The status is 0 while it does not answer."""
        url = f"http://127.0.0.1:{self.port}/v1/keys{key}"
        request = urllib.request.Request(url, data=body, method=method)
        try:
            with DIRECT.open(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, b""
        except OSError:
            return 0, b""

    def _puts(self) -> None:
        n = max(map(int, self.put.values()), default=0)
        while not self.ending.wait(0.1):
            n += 1
            key, body = f"/http/{n % 50}", f"{n}"
            status, _ = self.ask("PUT", key, body.encode())
            if status in (200, 201, 204):
                self.put[key] = body
            elif status not in (0, 500, 502, 503, 504, 507):
                self.errors.append(f"PUT {key}: {status}")
        until(lambda: self.ask("PUT", self._last, b"0")[0] in (200, 201, 204), "the last PUT")
        self.put[self._last] = "0"

    def _events(self) -> None:
        """Keep a copy by events, as a web page does. A new stream begins after the last number of the one before."""
        last = ""
        while not self.closed:
            headers = {"Last-Event-ID": last} if last else {}
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/watch?prefix=/http/", headers=headers)
            try:
                with DIRECT.open(request, timeout=30) as stream:
                    for line in stream:
                        name, _, said = line.decode().rstrip().partition(": ")
                        if name == "id":
                            last = said
                        elif name == "event" and said == "snapshot":
                            self.told.clear()
                            self.snapshots += 1
                        elif name == "data":
                            self._take(json.loads(said))
                        if self._last in self.told:
                            return
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)

    def _take(self, data: dict[str, Any]) -> None:
        self.events += 1
        for row in data.get("changes", ()):
            if "value" in row:
                self.told[row["key"]] = row["value"]
            else:
                self.told.pop(row["key"], None)

    def rows(self) -> list[tuple[int, str]]:
        """Return the lines that the holders of the lock wrote."""
        lines = self.resource.read_text().split("\n")[:-1]
        return [(int(token), name) for token, name in (line.split() for line in lines)]

    def end(self) -> None:
        """End the threads, check that no process has ended by itself, and let Spark finish."""
        self.ending.set()
        for thread in self._threads:
            thread.join(2 * WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads), "an event does not come"
        assert not self.errors, self.errors[:3]
        for process, log in zip(self.processes, self.logs, strict=True):
            assert process.poll() is None, log.read_text()[-3000:]
        if self.spark is not None:
            assert self.spark.stdin is not None
            self.spark.stdin.close()
            assert self.spark.wait(300) == 0, self.logs[-1].read_text()[-3000:]

    def check(self, fresh: Clone) -> None:
        """Check the gateway's keys, the copy by events, and that the lock's tokens rise and have one holder each."""
        for key, body in self.put.items():
            assert int(fresh[key]) >= int(body), f"{key} is {fresh[key]!r}, put {body}"
        there = {key: fresh[key].decode() for key in fresh if key.startswith("/http/")}
        differs = {key: (self.told.get(key), there.get(key)) for key in self.told.keys() | there.keys()}
        differs = {key: each for key, each in differs.items() if each[0] != each[1]}
        assert not differs, f"who reads events has another copy, after {self.snapshots} snapshots: {differs}"
        written = self.rows()
        assert [token for token, _ in written] == sorted(token for token, _ in written)
        assert len({token for token, _ in written}) == len(set(written)), "a token is one holder's"

    def close(self) -> None:
        """Kill the processes that are left."""
        self.closed = True
        self.ending.set()
        for process in self.processes:
            process.kill()
            process.wait()


class Faults:
    """The faults that hit the pair, one after the other."""

    def __init__(self, pair: Pair, work: Work, seed: int) -> None:
        self.pair, self.work, self.chance = pair, work, random.Random(seed)
        self.done: dict[str, int] = {}
        self._keys = 0

    def round(self, until: float) -> None:
        """Cause each fault once, in random order, as long as there is time."""
        acts = [self.kill, self.kill_both, self.stop, self.switch, self.upgrade, self.rotate_keys]
        acts += [self.backup_and_restore]
        acts += [self.fill_a_disk] if self.pair.disks else []
        for act in self.chance.sample(acts, len(acts)):
            if time.monotonic() > until and self.done:
                return
            act()
            self.done[act.__name__] = self.done.get(act.__name__, 0) + 1
            self.pair.wait_in_sync()
            assert not self.work.errors, self.work.errors[:3]
            time.sleep(REST_S)

    def kill(self) -> None:
        """Kill the active with SIGKILL, and start it again."""
        victim = self.pair.active()
        victim.kill()
        time.sleep(self.chance.choice((0.1, 2.0)))
        victim.start()

    def kill_both(self) -> None:
        """Kill both servers with SIGKILL, as a power failure does, and start them again."""
        for server in self.pair.both:
            server.kill()
        for server in self.chance.sample(self.pair.both, 2):
            server.start()

    def stop(self) -> None:
        """Stop the active for longer than its peer waits."""
        victim = self.pair.active()
        victim.signal(signal.SIGSTOP)
        time.sleep(2.5)
        victim.signal(signal.SIGCONT)

    def switch(self) -> None:
        """Let the active hand over."""
        with Admin(self.pair.file, 5.0) as admin, suppress(AdminError, Refused):
            admin.ask(self.pair.active().address, "switch")

    def upgrade(self) -> None:
        """End and start one server after the other, as the page of operations says."""
        for server in self.pair.both:
            assert server.process is not None
            server.signal(signal.SIGTERM)
            assert server.process.wait(WAIT_S) == 0, f"the {server.role} did not end as told"
            server.start()
            self.pair.wait_in_sync()

    def fill_a_disk(self) -> None:
        """Fill the active's disk for a while, as another program would."""
        disk = self.pair.active().data
        ballast = disk / "of-another-program"
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > 1 << 20:
                file.write(bytes(1 << 16))
        time.sleep(4.0)
        ballast.unlink()

    def rotate_keys(self) -> None:
        """Admit a user's new key beside the old one, and then remove the old one."""
        self._keys += 1
        old, new = keys.new_pair(), keys.new_pair()
        for name, pair in (("old", old), ("new", new)):
            for folder in self.pair.folders:
                keys.admit(folder, f"{name}{self._keys}", pair)
            path = keys.client_file(self.pair.base / f"{name}{self._keys}.toml", pair, self.pair.public)
            with Clone(subtree="/accounts/", client_file=path) as clone:
                clone.wait_until_synced(WAIT_S)
                assert len(clone) == ACCOUNTS
        for folder in self.pair.folders:
            (folder / "clients" / f"old{self._keys}.pub").unlink()
        with Clone(subtree="/accounts/", client_file=self.pair.base / f"old{self._keys}.toml") as clone:
            refused = _refused(clone)
        assert refused is not None and refused.code == "key", f"an old key is let in: {refused!r}"

    def backup_and_restore(self) -> None:
        """Restore a backup into another server, and check that it holds all that was acknowledged before."""
        before = {key: acked for key, (acked, _) in self.work.maps.items()}
        active = self.pair.active()
        name = f"b{self.done.get('backup_and_restore', 0)}.db"
        with Admin(self.pair.file, WAIT_S) as admin:
            said = admin.ask(active.address, "backup", name=name).facts
        place = self.pair.base / f"restored-{name}"
        place.mkdir()
        other = ServerProcess(place, "alone", f"tcp://127.0.0.1:{free_port()}", None)
        other.data.mkdir()
        shutil.move(said["path"], other.data / "journal.sqlite")
        other.start()
        try:
            with Clone([other.address]) as clone:
                clone.wait_until_synced(WAIT_S)
                assert all(int(clone.get(key, b"0")) >= acked for key, acked in before.items())
                assert sum(int(clone[f"/accounts/{i}"]) for i in range(ACCOUNTS)) == ACCOUNTS * MONEY
        finally:
            other.kill()
            shutil.rmtree(place)


def _refused(clone: Clone) -> Refused | None:
    """Return the refusal of a client, or None if the servers admit it."""
    try:
        clone.wait_until_synced(WAIT_S)
    except Refused as refused:
        return refused
    return None


class Memory(threading.Thread):
    """A thread that samples the memory of both servers and of this process in MiB."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self._pair, self.ending = pair, threading.Event()
        self.samples: dict[str, list[float]] = {}

    def run(self) -> None:
        while not self.ending.wait(2.0):
            pids = {server.role: server.process.pid for server in self._pair.both if server.process is not None}
            for name, pid in {**pids, "clients": os.getpid()}.items():
                with suppress(OSError, ValueError, IndexError):
                    self.samples.setdefault(name, []).append(rss_mb(pid))

    def growth(self) -> dict[str, float]:
        """Return the growth of each median from the second third to the last one."""
        found = {}
        for name, all_of in self.samples.items():
            third = max(1, len(all_of) // 3)
            last, middle = all_of[-third:], all_of[-2 * third : -third] or all_of
            found[name] = round(statistics.median(last) - statistics.median(middle), 1)
        return found


def run(base: Path, minutes: float, seed: int = 1) -> dict[str, Any]:
    """Run the whole test. Raise AssertionError if an account does not agree or memory grew.

    If an earlier run left its journals in `base`, go on from them.
    """
    end = time.monotonic() + 60 * minutes
    carried = base / "carried.json"
    before = json.loads(carried.read_text()) if carried.exists() else None
    with Pair(base) as pair:
        work, memory = Work(pair), Memory(pair)
        if before is not None:
            work.carry_on(before["work"])
        work.start()
        memory.start()
        beside = Beside(pair, spark=find_spec("pyspark") is not None, put=before["put"] if before is not None else {})
        try:
            faults = Faults(pair, work, seed)
            while time.monotonic() < end:
                faults.round(end)
            work.end()
            beside.end()
            memory.ending.set()
            pair.wait_in_sync()
            with Clone(pair.file) as fresh:
                fresh.wait_until_synced(WAIT_S)
                work.check(fresh)
                beside.check(fresh)
                assert fresh.verify(WAIT_S).ok, "the copy differs from the server's"
        finally:
            work.ending.set()
            beside.close()
        until(lambda: len(pair.prints()) == 1, "the servers to be equal, now that nobody sets")
        pair.keep()
    carried.write_text(
        json.dumps({"work": work.carried(), "put": beside.put, "runs": 1 + (before or {}).get("runs", 0)})
    )
    growth = memory.growth()
    assert max(growth.values()) <= GROWTH_MB_MAX, f"memory grew: {growth}"
    return {
        "minutes": minutes, "faults": faults.done, "keys": len(work.maps), "transfers": work.transfers,
        "looks": work.looks, "added": work.added, "unsure": work.unsure, "published": len(work.published),
        "began_anew": work.anew, "put": len(beside.put), "events": beside.events, "snapshots": beside.snapshots,
        "holders": len({token for token, _ in beside.rows()}), "growth_mb": growth,
        "spark": beside.logs[-1].read_text().count("wrote") if beside.spark else None,
        "runs_before": (before or {}).get("runs", 0),
    }  # fmt: skip


def check(result: dict[str, Any]) -> None:
    """Raise AssertionError if a run was too idle to prove anything."""
    enough = result["transfers"] > 50 and result["added"] > 50 and result["published"] > 50 and result["put"] > 10
    assert enough and result["holders"] > 10 and result["faults"] and result["spark"] != 0, json.dumps(result)


def main() -> None:
    """Run the test from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", type=Path, help="a directory from which a run goes on, and in which it leaves all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        result = run(given.base or Path(base), given.minutes, given.seed)
    print(json.dumps(result, indent=1))
    check(result)


if __name__ == "__main__":
    main()
