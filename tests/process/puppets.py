"""Clones in processes of their own, which a test can stop, continue and ask.

    with Puppet(servers) as reader:            # python -m tests.process.puppets tcp://a:5556 {}
        reader.stop_process(); ...; reader.continue_process()
        assert reader.ask("content", at_least=number) == digest_of(expected)

A puppet reads commands, one line of JSON each, and answers with one line each. The load it writes is plain arithmetic:
update j sets key j mod `KEYS`, or deletes it if j falls in the last tenth of its block. One update takes one number of
the server's sequence, so what a copy must hold at any number is known without asking anybody: `expected`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chp.numbers import sequence_of
from chp_client import Clone, Lagging
from chp_client.clone.base import internals
from tests.talk import WAIT_S, until

ROOT = Path(__file__).parents[2]
# of each block of updates the rest are deletes; no common factor, so each key gets both
KEYS, BLOCK, SETS = 2999, 500, 450
BASE = "/base"  # set first, alone: its number is that of the load's beginning


def expected(updates: int, pad: int = 0) -> dict[str, bytes]:
    """What so many updates of the load leave."""
    held = {}
    for r in range(KEYS):
        j = updates - 1 - (updates - 1 - r) % KEYS
        if j >= 0 and j % BLOCK < SETS:
            held[f"/k/{r}"] = value_of(j, pad)
    return held


def value_of(j: int, pad: int) -> bytes:
    """The value that update j sets."""
    return b"%d" % j + b"." * pad


def digest_of(content: dict[str, bytes]) -> str:
    """A digest of keys and values."""
    return hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()


class Puppet:
    """The test's end: one process."""

    def __init__(self, servers: str | Sequence[str], **settings: Any) -> None:
        where = servers if isinstance(servers, str) else ",".join(servers)
        argv = [sys.executable, "-m", "tests.process.puppets", where, json.dumps(settings)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, act: str, **given: Any) -> None:
        """Give a command; `answer` waits for what it says."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"act": act, **given}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What it says to the oldest command not answered yet."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"a puppet ended with {self.process.wait()}"
        said = json.loads(line)
        assert "error" not in said, said["error"]
        return said["said"]

    def ask(self, act: str, **given: Any) -> Any:
        """Both."""
        self.tell(act, **given)
        return self.answer()

    def stop_process(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def continue_process(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def rss_mb(self) -> float:
        """Its resident memory."""
        return rss_mb(self.process.pid)

    def __enter__(self) -> Self:
        self.ask("ready")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# -- the process


class Acts:
    """What a puppet can do; each public method is a command."""

    def __init__(self, servers: str, settings: dict[str, Any]) -> None:
        self._servers = servers
        self._settings = settings
        self._clone = Clone(servers, **settings)
        self._ending = threading.Event()
        self._updates = self._base = 0
        self._writer: threading.Thread | None = None
        self._watchers: list[Watcher] = []

    def ready(self) -> None:
        """Wait until synced."""
        self._clone.wait_until_synced(WAIT_S)

    def write(self, pad: int = 0) -> int:
        """Begin the load; the sequence of its base."""
        ack = self._clone.set(BASE, b"").wait(WAIT_S)
        self._writer = threading.Thread(target=self._write, args=(pad,), daemon=True)
        self._writer.start()
        return ack.sequence

    def _write(self, pad: int) -> None:
        while not self._ending.is_set():
            block = range(self._updates, self._updates + BLOCK)
            keys = [f"/k/{j % KEYS}" for j in block]
            self._clone.set_many((keys[:SETS], [value_of(j, pad) for j in block[:SETS]]))
            self._clone.delete_many(keys[SETS:])
            self._updates += BLOCK

    def written(self) -> int:
        """How many updates have been made."""
        return self._updates

    def end(self) -> int:
        """End the load; how many updates it was, all acknowledged now."""
        self._ending.set()
        if self._writer is not None:
            self._writer.join()
        self._clone.flush(WAIT_S)
        return self._updates

    def content(self, at_least: int = 0) -> dict[str, Any]:
        """What is held once it is complete up to a sequence, and is known to be equal to the server's map."""
        clone = self._clone

        def complete() -> bool:
            return sequence_of(clone.verify(contents=False).compared_at) >= at_least and clone.state == "SYNCED"

        until(complete, f"{at_least} to be reached; {clone!r} {clone.stats}")
        return {"digest": digest_of(dict(clone)), "keys": len(clone), "ok": clone.verify().ok, "stats": clone.stats}

    def join(self, times: int, base: int, pad: int = 0) -> dict[str, int]:
        """Make so many Clones under load; each is compared with the load at its number, some again after a heartbeat.

        The end of a sync tells the server's fingerprint at its number; a copy that differs counts a mismatch.
        """
        counts = {"joins": 0, "mismatches": 0, "keys": 0}
        for i in range(times):
            with Clone(self._servers, subtree="/k/" if i % 2 else "") as clone:
                clone.wait_until_synced(WAIT_S)
                counts["keys"] += exact(clone, base, pad)
                if i % 10 == 0:
                    until(partial(compared_since, clone, clone.revision), "a heartbeat to compare with")
                    exact(clone, base, pad)
                assert clone.verify().ok
                counts["joins"] += 1
                counts["mismatches"] += clone.stats.get("mismatches", 0)
        return counts

    def watch(self, watchers: int) -> None:
        """Begin to watch, each with a Clone of its own and default settings."""
        self._watchers = [Watcher(Clone(self._servers)) for _ in range(watchers)]
        for watcher in self._watchers:
            watcher.clone.wait_until_synced(WAIT_S)
            watcher.start()

    def watched(self, keys: int) -> list[dict[str, Any]]:
        """What each watcher has seen, once its Clone holds so many keys and it has been told of them."""
        return [watcher.result(keys) for watcher in self._watchers]


def exact(clone: Clone, base: int, pad: int) -> int:
    """Assert that a Clone holds exactly what the load had left at its number; how many keys."""
    with internals(clone).mailbox.lock:
        at, content = sequence_of(clone.revision), clone.snapshot()
    assert content.pop(BASE, b"") == b""
    wanted = expected(at - base, pad)
    differing = [key for key in content.keys() | wanted.keys() if content.get(key) != wanted.get(key)]
    assert not differing, (
        f"at {at - base}: {len(differing)} keys differ, such as {sorted(differing)[:3]}; {clone.stats}"
    )
    return len(content)


class Watcher(threading.Thread):
    """Counts the changes of one Clone."""

    def __init__(self, clone: Clone) -> None:
        super().__init__(daemon=True)
        self.clone = clone
        self.seen: set[str] = set()
        self.changes = 0
        self.in_order = True
        self.lagging = False
        self._watch = clone.watch()

    def run(self) -> None:
        revision = 0
        try:
            for changes in self._watch.batches():
                self.seen.update(changes.keys)
                revisions = [revision, *changes.revisions]
                self.in_order = self.in_order and revisions == sorted(revisions)
                revision = revisions[-1]
                self.changes += len(changes)  # the last: who waits for it may read the others
        except Lagging:
            self.lagging = True

    def result(self, keys: int) -> dict[str, Any]:
        """What was seen of so many keys."""
        clone = self.clone
        until(lambda: len(clone) == keys and clone.verify(contents=False).ok, f"{keys} keys; {clone!r} {clone.stats}")
        until(lambda: self.lagging or self.changes >= keys, f"changes of {keys} keys, not {self.changes}")
        until(lambda: clone.verify(contents=False).compared_at >= clone.revision > 0, "a comparison")
        return {
            "seen": len(self.seen), "changes": self.changes, "lagging": self.lagging, "in_order": self.in_order,
            "digest": digest_of(dict(clone)), "stats": clone.stats,
        }  # fmt: skip


def compared_since(clone: Clone, revision: int) -> bool:
    """Whether a heartbeat confirmed what the Clone holds after a revision."""
    return clone.verify(contents=False).compared_at > revision


def main() -> None:
    """The process: a command a line until the input ends."""
    acts = Acts(sys.argv[1], json.loads(sys.argv[2]))
    for line in sys.stdin:
        given = json.loads(line)
        act: Callable[..., Any] = getattr(acts, given.pop("act"))
        try:
            said: dict[str, Any] = {"said": act(**given)}
        except BaseException as error:
            said = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(said), flush=True)


def sleep_until(moment: float) -> None:
    """Let time pass: a process is stopped meanwhile, so there is no condition to wait for."""
    time.sleep(max(0.0, moment - time.monotonic()))


if __name__ == "__main__":
    main()
