"""Histories of real runs: four processes set, count and read, and note the time of each call and answer.

    with Recorders(pair.servers, keys) as recorders:      # python -m tests.process.histories tcp://a:5556 p1 7
        ... kill, stop, cut ...
        history = recorders.end()
    assert not history.wrong()

A process prints a line for each call and for each answer, by a clock that all processes of a machine share. It makes
one call after the other, so at its end only the last call can lack an answer. A conditional set names the value that
its process has seen. A read follows a `clone.sync()`. At the end a new Clone reads each key. A call that both servers
acknowledged was done. A call that a lone server acknowledged may be discarded after a split, so its outcome counts as
unknown here (tests/sim/accounts.py checks such calls). The outcome of a call that was refused as `parted` is unknown
too.
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
# The mean pause of a process between two calls. The few hundred calls a second give a dozen during each fault, and the
# search can still judge them.
PACE_S = 0.01
# The share of reads among the calls.
READ_SHARE = 0.3
# A read is tried this many times. A try fails if another process sets the key meanwhile, or if a server is alone.
READS = 5
# The revision of an own set that is not confirmed.
PENDING = 1


@dataclass
class History:
    """The calls that processes noted, and the values at the end."""

    # key -> its calls
    calls: dict[str, list[Call]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    def wrong(self) -> str:
        """Return a text about the first key whose calls are not linearizable, or ""."""
        for key, calls in sorted(self.calls.items()):
            if said := wrong(calls):
                return f"{key}: {said}"
        return ""

    @staticmethod
    def of(lines: dict[str, list[list[Any]]]) -> History:
        """Return the history that the lines of all processes describe."""
        history, made = History(), [call for name, said in lines.items() for call in _calls(name, said)]
        values = {(call["key"], call["revision"]): call["value"] for call in made if "revision" in call}
        for call in made:
            history.outcomes[call["outcome"]] += 1
            if call["outcome"] != "conflict" and (call["kind"] != READ or call["outcome"] == "read"):
                seen = values.get((call["key"], call["if_revision"]), call["expected"])
                history.calls.setdefault(call["key"], []).append(_as_call(call, seen))
        return history

    def read(self, servers: Sequence[str], keys: Sequence[str]) -> None:
        """Add the reads of a client that comes now."""
        called = time.monotonic()
        with Clone(list(servers)) as clone:
            clone.wait_until_synced(WAIT_S)
            found = {key: clone.get(key) for key in keys}
        for key, value in found.items():
            seen = None if value is None else value.decode()
            self.calls.setdefault(key, []).append(Call("end", READ, seen, called, time.monotonic()))


def _calls(name: str, lines: list[list[Any]]) -> list[dict[str, Any]]:
    """Return the calls of one process with their answers. A call without an answer has the outcome "unknown"."""
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
    """Return a `Call`, with the value that its condition named, if it had one."""
    answered = said["answered"] if said["outcome"] in ("replicated", "read") else NEVER
    expected = seen if said["kind"] == CAS else None
    return Call(said["process"], said["kind"], said["value"], said["called"], answered, expected)


class Recorders:
    """The recording processes, for the time of the block."""

    def __init__(self, servers: Sequence[str], *, prefixes: Sequence[Sequence[str]] = ((),), seed: int = 0) -> None:
        """Prepare the processes. Each command of `prefixes` starts one of them in turn, such as on another host."""
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
        """Wait until each process has some more answers."""
        before = {name: len(lines) for name, lines in self.lines.items()}
        until(
            lambda: all(len(lines) >= before[name] + 2 * answers for name, lines in self.lines.items()),
            "the recording processes to go on",
        )

    def end(self, on: Callable[[Callable[[], None]], None] = lambda work: work()) -> History:
        """Let each process finish its call, and return the history.

        `on` runs the last read on a host that reaches the servers.
        """
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
    except (Refused, TimeoutError) as error:
        _say("answer", time.monotonic(), outcome_of(error), None)


def outcome_of(error: Exception) -> str:
    """Return "conflict" for the error of a set that will never be done, or "unknown".

    A conditional set that is refused as `parted` may still be done, when the other server hands over its suffix.
    """
    return "conflict" if isinstance(error, Conflict) and error.code != "parted" else "unknown"


def _one_read(clone: Clone, rng: random.Random) -> None:
    """Read a key after a `sync` that both servers confirmed. A revision above that of the `sync` does not count."""
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
    """Make calls until the standard input ends."""
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
