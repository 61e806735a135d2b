"""Histories of topics and groups on real servers, with faults of the servers and of the programs.

    python -m tests.process.topic_histories --minutes 20 --seed 7        seeds from 7 on, each a history of some rounds

Processes of tests/process/topic_worker.py publish, read, consume and commit. Meanwhile the faults of each round come in
an order that the seed gives. At the end the writers stop, the groups handle what is left, and the topics are read by a
new client. tests/process/topic_rules.py judges the history.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgpack

from chp_client import Clone
from tests.talk import WAIT_S, until

from .cluster import ProcessPair
from .faults import SERVER_FAULTS, equal
from .topic_rules import EFFECTS, GROUPS, MAIN, NEVER, Given, History, Message, Read, Write, receipt, wrong

ROOT = Path(__file__).parents[2]
PROCESSES = 3
# A program is stopped for this many seconds, which is longer than the lease of its members.
STOP_S = 2.5


class Workers:
    """The programs, for the time of the block. Each may be killed and started again under a new name."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        prefixes: Sequence[Sequence[str]] = ((),),
        seed: int = 0,
        processes: int = PROCESSES,
    ) -> None:
        """Prepare the programs. Each command of `prefixes` starts one of them in turn, such as on another host."""
        self.servers, self.seed = list(servers), seed
        # The lines of each process that was ever started.
        self.lines: dict[str, list[list[Any]]] = {}
        self.running: dict[str, subprocess.Popen[str]] = {}
        self._prefixes = [list(prefixes[i % len(prefixes)]) for i in range(processes)]
        self._readers: list[threading.Thread] = []
        self._starts = 0

    def _start(self, place: int) -> None:
        name = f"p{place}-{self._starts}"
        self._starts += 1
        argv = [sys.executable, "-m", "tests.process.topic_worker", ",".join(self.servers), name]
        argv = [*self._prefixes[place], *argv, str(self.seed * 1000 + self._starts)]
        process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running[name], self.lines[name] = process, []
        reader = threading.Thread(target=self._read, args=(process, self.lines[name]), daemon=True)
        reader.start()
        self._readers.append(reader)

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: list[list[Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            # The last line of a process that was killed may be cut.
            if line.endswith("\n"):
                lines.append(json.loads(line))

    def __enter__(self) -> Self:
        for place in range(len(self._prefixes)):
            self._start(place)
        self.go_on()
        return self

    def go_on(self, answers: int = 5) -> None:
        """Wait until each program has some more answers, and has got more messages."""
        before = {name: self._progress(name) for name in self.running}

        def moved() -> bool:
            now = {name: self._progress(name) for name in before}
            return all(now[name][0] >= a + answers and now[name][1] > g for name, (a, g) in before.items())

        until(moved, lambda: f"the programs to go on: {before}, now {[self._progress(n) for n in before]}")

    def _progress(self, name: str) -> tuple[int, int]:
        count = Counter(line[0] for line in self.lines[name][:])
        return count["answer"], count["given"]

    def kill(self, chance: random.Random) -> None:
        """Kill a program, and start another one in its place."""
        name = chance.choice(sorted(self.running))
        process = self.running.pop(name)
        process.kill()
        process.wait()
        time.sleep(chance.choice((0.0, 0.5)))
        self._start(int(name[1 : name.index("-")]))

    def stop(self, chance: random.Random) -> None:
        """Stop a program for so long that its members are taken for dead."""
        process = self.running[chance.choice(sorted(self.running))]
        process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_S)
        process.send_signal(signal.SIGCONT)

    def end(self, *, split: bool = False, on: Callable[[Callable[[], None]], None] = lambda work: work()) -> History:
        """Let the writers end and the groups handle what is left, and return the history.

        `on` runs the last reads on a host that reaches the servers.
        """
        for process in self.running.values():
            assert process.stdin is not None
            process.stdin.write("drain\n")
            process.stdin.flush()
        history = History(split=split)
        on(self._drained)
        for name, process in self.running.items():
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(3 * WAIT_S) == 0, f"{name} met an error"
        for reader in self._readers:
            reader.join()
        note(history, self.lines)
        on(lambda: read(history, self.servers))
        return history

    def _drained(self) -> None:
        """Wait until all groups have handled everything."""
        with Clone(self.servers, None) as clone:
            topic = clone.topic(MAIN)

            def done() -> bool:
                groups = {group["name"]: group["lag"] for group in topic.groups(WAIT_S)}
                return set(groups) == set(GROUPS) and not any(groups.values())

            until(done, lambda: f"the groups to handle all: {topic.groups(WAIT_S)}", 3 * WAIT_S)
        # The members of the group `before` get messages a moment after these are acknowledged.
        time.sleep(1.0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def note(history: History, lines: dict[str, list[list[Any]]]) -> None:
    """Add what the programs printed. A program that met an unexpected error makes the history useless."""
    for name, said in lines.items():
        writes: dict[str, Write] = {}
        for what, *rest in said:
            if what == "call":
                thread, call, called, of = rest
                writes[call] = _write(thread, call, called, of)
            elif what == "answer":
                call, answered, outcome = rest
                writes[call].answered, writes[call].outcome = answered, outcome
            elif what == "refused":
                call, code = rest
                writes[call].code = code
            elif what == "given":
                group, member, joined, time_, messages = rest
                history.given.append(Given(group, member, joined, time_, [(o, k, v) for o, k, v in messages]))
            elif what == "read":
                thread, topic, messages, missed = rest
                history.reads.append(Read(thread, topic, [(o, k, v) for o, k, v in messages], missed))
            else:
                assert what != "error", f"{name} met an error: {rest}"
                assert what != "end" or rest[0], f"a thread of {name} hangs"
        history.writes += writes.values()


def _write(thread: str, name: str, called: float, of: dict[str, Any]) -> Write:
    publish = {topic: [(key, value) for key, value in some] for topic, some in of.get("publish", {}).items()}
    ack, once = of.get("ack"), of.get("once")
    return Write(
        thread, name, called, publish, of.get("sets", {}), tuple(ack) if ack else None, tuple(once) if once else None,
        of.get("after"), NEVER,
    )  # fmt: skip


def read(history: History, servers: Sequence[str]) -> None:
    """Read all topics and keys, by a client that comes now."""
    with Clone(list(servers)) as clone:
        clone.wait_until_synced(WAIT_S)
        clone.sync(WAIT_S)
        for facts in clone.topics():
            name = facts["name"]
            log = history.logs.setdefault(name, [])
            for batch in clone.topic(name).read(wait=False):
                assert not batch.missed, f"{name} lacks {batch.missed} messages"
                for m in batch:
                    log.append(Message(m.offset, m.key, _text(name, m.value), int(m.revision)))
            assert len(log) == facts["next"], f"{name} has {len(log)} messages of {facts['next']}"
        history.keys = {key: clone[key].decode() for key in clone if key.startswith("/w/")}


def _text(topic: str, value: bytes) -> str:
    """Return a value as text. The text of a dead letter has the form of a receipt."""
    if topic == f"{MAIN}.{EFFECTS}.dead":
        letter = msgpack.unpackb(value)
        return receipt(letter["offset"], letter["value"].decode(), letter["why"])
    return value.decode()


def outcomes(history: History) -> dict[str, int]:
    """Count the outcomes of the writes, the messages, and what was given and read."""
    count = Counter(write.outcome for write in history.writes)
    count["messages"] = len(history.logs.get(MAIN, ()))
    count["effects"] = len(history.logs.get("done", ()))
    count["dead"] = len(history.logs.get(f"{MAIN}.{EFFECTS}.dead", ()))
    count["given"] = sum(len(given.messages) for given in history.given)
    count["read"] = sum(len(read.messages) for read in history.reads)
    return dict(count)


def judge(history: History, folder: Path) -> dict[str, int]:
    """Return the outcomes of a history. If the history breaks a rule, keep it in a file and raise AssertionError."""
    found, told = wrong(history), outcomes(history)
    if found:
        file = folder / "wrong-history.pickle"
        file.write_bytes(pickle.dumps(history))
        raise AssertionError("\n".join([*found, f"{told}; the history is in {file}"]))
    return told


def worker_killed(workers: Workers, _pair: ProcessPair, chance: random.Random) -> None:
    """Kill a program."""
    workers.kill(chance)


def worker_stopped(workers: Workers, _pair: ProcessPair, chance: random.Random) -> None:
    """Stop a program."""
    workers.stop(chance)


Fault = Callable[[Workers, ProcessPair, random.Random], None]


def of_servers(fault: Callable[[ProcessPair, random.Random], None]) -> Fault:
    """Return a fault of the servers as one that a round can cause."""
    return lambda _workers, pair, chance: fault(pair, chance)


FAULTS: tuple[Fault, ...] = (*map(of_servers, SERVER_FAULTS), worker_killed, worker_stopped)


def hit(workers: Workers, pair: ProcessPair, faults: Sequence[Fault], rounds: int, chance: random.Random) -> None:
    """Cause so many rounds of faults, and let all go on after each."""
    for _ in range(rounds):
        for fault in chance.sample(faults, len(faults)):
            fault(workers, pair, chance)
            workers.go_on()
            pair.wait_in_sync()


def recorded(
    pair: ProcessPair, rounds: int, seed: int, faults: Sequence[Fault] = FAULTS, processes: int = PROCESSES
) -> History:
    """Return a history of so many rounds, each with all faults."""
    with Workers(pair.servers, seed=seed, processes=processes) as workers:
        hit(workers, pair, faults, rounds, random.Random(seed))
        history = workers.end()
    equal(pair.both)
    return history


def main() -> None:
    """Record and judge histories until the time is over, and print a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each seed, with all faults each")
    parser.add_argument("--output", type=Path, default=Path(), help="the folder for a wrong history")
    given = parser.parse_args()
    end, seed = time.monotonic() + 60 * given.minutes, given.seed
    while time.monotonic() < end or seed == given.seed:
        with tempfile.TemporaryDirectory() as base, ProcessPair(Path(base)) as pair:
            history = recorded(pair, given.rounds, seed)
        print(json.dumps({"seed": seed, **judge(history, given.output)}), flush=True)
        seed += 1


if __name__ == "__main__":
    main()
