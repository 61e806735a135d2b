"""Histories of real runs: four processes set, count and read, with the time of each call and answer; they are judged.

    with Recorders(pair.servers, keys) as recorders:      # python -m tests.process.histories tcp://a:5556 p1 7
        ... kill, stop, cut ...
        history = recorders.end()
    assert not history.wrong()

A process prints a line when it calls and one when it is answered, by a clock that all processes of a machine share; one
call after the other, so what has no answer when it ends is the last. A conditional set names what its process saw the
key have, and a read follows a `clone.sync()`. At the end a new Clone reads every key. What was acknowledged by both
servers was done; what by one alone, may have been parted with: that is accounted for elsewhere (tests/sim/accounts.py),
and here nobody is sure of it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chp.numbers import UNKNOWN
from chp_client import Clone, Conflict, Refused
from tests.talk import WAIT_S, until

from .linearizable import CAS, NEVER, READ, SET, Call, wrong

ROOT = Path(__file__).parents[2]
KEYS = ("/h/1", "/h/2", "/h/3")
PROCESSES = 4
PACE_S = 0.01  # a few hundred calls a second: enough for a dozen in every fault, and few enough to be judged
READ_SHARE = 0.3  # of the calls
READS = 5  # before a read is given up: others set the key all the time, or one server is alone
PENDING = 1  # the revision of an own set that is not confirmed


@dataclass
class History:
    """What processes wrote down, and what was there at the end."""

    calls: dict[str, list[Call]] = field(default_factory=dict)  # by key
    outcomes: Counter[str] = field(default_factory=Counter)

    def wrong(self) -> str:
        """The first key whose calls no register would allow; empty if there is none."""
        for key, calls in sorted(self.calls.items()):
            if said := wrong(calls):
                return f"{key}: {said}"
        return ""

    @staticmethod
    def of(lines: dict[str, list[list[Any]]]) -> History:
        """Of the lines of each process."""
        history, made = History(), [call for name, said in lines.items() for call in _calls(name, said)]
        values = {(call["key"], call["revision"]): call["value"] for call in made if "revision" in call}
        for call in made:
            history.outcomes[call["outcome"]] += 1
            if call["outcome"] != "conflict" and (call["kind"] != READ or call["outcome"] == "read"):
                seen = values.get((call["key"], call["if_revision"]), call["expected"])
                history.calls.setdefault(call["key"], []).append(_as_call(call, seen))
        return history

    def read(self, servers: Sequence[str], keys: Sequence[str]) -> None:
        """What a client that comes now is given."""
        called = time.monotonic()
        with Clone(list(servers)) as clone:
            clone.wait_until_synced(WAIT_S)
            found = {key: clone.get(key) for key in keys}
        for key, value in found.items():
            seen = None if value is None else value.decode()
            self.calls.setdefault(key, []).append(Call("end", READ, seen, called, time.monotonic()))


def _calls(name: str, lines: list[list[Any]]) -> list[dict[str, Any]]:
    """The calls of one process, each with its answer: "unknown" where there is none."""
    calls: list[dict[str, Any]] = []
    for what, *rest in lines:
        if what == "call":
            called, kind, key, value, if_revision, expected = rest
            calls.append(
                {"process": name, "called": called, "kind": kind, "key": key, "value": value, "outcome": "unknown"}
                | {"if_revision": if_revision, "expected": expected}
            )
        elif what == "read":
            answered, value = rest
            calls[-1] |= {"answered": answered, "outcome": "read", "value": value}
        else:
            answered, outcome, revision = rest
            calls[-1] |= {"answered": answered, "outcome": outcome}
            if revision is not None:
                calls[-1]["revision"] = revision
    return calls


def _as_call(said: dict[str, Any], seen: str | None) -> Call:
    """With the value that its condition named, if it had one."""
    answered = said["answered"] if said["outcome"] in ("replicated", "read") else NEVER
    expected = seen if said["kind"] == CAS else None
    return Call(said["process"], said["kind"], said["value"], said["called"], answered, expected)


class Recorders:
    """The processes, for the time of the block."""

    def __init__(self, servers: Sequence[str], *, prefixes: Sequence[Sequence[str]] = ((),), seed: int = 0) -> None:
        """`prefixes`: commands that a process is started by, in turn, such as one that puts it on another host."""
        self.servers = list(servers)
        self.lines: dict[str, list[list[Any]]] = {}
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._starts = [(f"p{i}", list(prefixes[i % len(prefixes)]), seed * PROCESSES + i) for i in range(PROCESSES)]

    def __enter__(self) -> Self:
        for name, prefix, seed in self._starts:
            argv = [*prefix, sys.executable, "-m", "tests.process.histories", ",".join(self.servers), name, str(seed)]
            process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(process)
            self.lines[name] = []
            reader = threading.Thread(target=self._read, args=(process, self.lines[name]), daemon=True)
            reader.start()
            self._readers.append(reader)
        self.go_on()
        return self

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: list[list[Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(json.loads(line))

    def go_on(self, answers: int = 5) -> None:
        """Wait until every process has had some more answers."""
        before = {name: len(lines) for name, lines in self.lines.items()}
        until(
            lambda: all(len(lines) >= before[name] + 2 * answers for name, lines in self.lines.items()),
            "the recording processes to go on",
        )

    def end(self, on: Callable[[Callable[[], None]], None] = lambda work: work()) -> History:
        """Let them finish what they are at; `on` does the last read where the servers can be reached."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process, reader in zip(self._processes, self._readers, strict=True):
            assert process.wait(WAIT_S + 10) == 0, "a recording process met an error"
            reader.join()
        history = History.of(self.lines)
        on(lambda: history.read(self.servers, KEYS))
        return history

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


# -- in the process


def _say(*what: Any) -> None:
    print(json.dumps(what), flush=True)


def _one_call(clone: Clone, rng: random.Random, value: str) -> None:
    key = rng.choice(KEYS)
    held = clone.entry(key)
    count = rng.random() < 0.7 and (held is None or int(held.revision) != PENDING)
    revision = 0 if held is None else int(held.revision)
    seen = None if held is None else held.value.decode()
    _say("call", time.monotonic(), CAS if count else SET, key, value, revision, seen)
    try:
        ticket = clone.set(key, value.encode(), if_revision=revision if count else None)
        ack = ticket.wait(WAIT_S)
        _say("answer", time.monotonic(), ack.durability, int(ack.revision))
    except Conflict:
        _say("answer", time.monotonic(), "conflict", None)
    except (Refused, TimeoutError):  # parted, or not known
        _say("answer", time.monotonic(), "unknown", None)


def _one_read(clone: Clone, rng: random.Random) -> None:
    """After a `sync` that both servers have: a value whose revision is not above that of its acknowledgement."""
    key = rng.choice(KEYS)
    _say("call", time.monotonic(), READ, key, None, 0, None)
    try:
        for _ in range(READS):
            ack = clone.sync(WAIT_S)
            held = clone.entry(key)
            if ack.durability == "replicated" and (held is None or UNKNOWN < held.revision <= ack.revision):
                _say("read", time.monotonic(), None if held is None else held.value.decode())
                return
    except (Refused, TimeoutError):
        pass
    _say("answer", time.monotonic(), "unread", None)


def main(servers: str, name: str, seed: str) -> None:
    """Call until the standard input ends."""
    ended = threading.Event()

    def end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=end, daemon=True).start()
    rng, n = random.Random(int(seed)), 0
    with Clone(servers.split(",")) as clone:
        clone.wait_until_synced(WAIT_S)
        while not ended.is_set():
            n += 1
            if rng.random() < READ_SHARE:
                _one_read(clone, rng)
            else:
                _one_call(clone, rng, f"{name}.{n}")
            time.sleep(rng.random() * 2 * PACE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
