"""Clones in processes of their own, which a test can stop, continue and ask.

    with Puppet(servers) as reader:            # python -m tests.process.puppets tcp://a:5556 {}
        reader.stop_process(); ...; reader.continue_process()
        assert reader.ask("content", at_least=number) == digest_of(expected)

A puppet reads commands, one line of JSON each, and answers each with one line. The load that it writes is plain
arithmetic: update j sets key j mod `KEYS`, or deletes the key if j is in the last tenth of its block. Each update takes
one number of the server's sequence. So `expected` can compute the contents of a copy at any number.
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
# The first `SETS` updates of each block are sets and the rest are deletes. `KEYS` and `BLOCK` share no factor, so each
# key gets both.
KEYS, BLOCK, SETS = 2999, 500, 450
# This key is set first and alone, so its number is the beginning of the load.
BASE = "/base"


def expected(updates: int, pad: int = 0) -> dict[str, bytes]:
    """Return the contents after the first `updates` updates of the load."""
    held = {}
    for r in range(KEYS):
        j = updates - 1 - (updates - 1 - r) % KEYS
        if j >= 0 and j % BLOCK < SETS:
            held[f"/k/{r}"] = value_of(j, pad)
    return held


def value_of(j: int, pad: int) -> bytes:
    """Return the value that update j sets."""
    return b"%d" % j + b"." * pad


def digest_of(content: dict[str, bytes]) -> str:
    """Return a digest of keys and values."""
    return hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()


class Puppet:
    """A puppet as the test sees it: one process."""

    def __init__(self, servers: str | Sequence[str], **settings: Any) -> None:
        where = servers if isinstance(servers, str) else ",".join(servers)
        argv = [sys.executable, "-m", "tests.process.puppets", where, json.dumps(settings)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, act: str, **given: Any) -> None:
        """Give a command. `answer` waits for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"act": act, **given}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the oldest command that is not answered yet."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"a puppet ended with {self.process.wait()}"
        said = json.loads(line)
        assert "error" not in said, said["error"]
        return said["said"]

    def ask(self, act: str, **given: Any) -> Any:
        """Give a command, and return its answer."""
        self.tell(act, **given)
        return self.answer()

    def stop_process(self) -> None:
        """Stop the process with SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def continue_process(self) -> None:
        """Let the process go on with SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def rss_mb(self) -> float:
        """Return the resident memory of the puppet in MiB."""
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
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# -- the process


class Acts:
    """The commands of a puppet: each public method is one."""

    def __init__(self, servers: str, settings: dict[str, Any]) -> None:
        self._servers = servers
        self._settings = settings
        self._clone = Clone(servers, **settings)
        self._ending = threading.Event()
        self._updates = self._base = 0
        self._writer: threading.Thread | None = None
        self._watchers: list[Watcher] = []

    def ready(self) -> None:
        """Wait until the Clone is synced."""
        self._clone.wait_until_synced(WAIT_S)

    def write(self, pad: int = 0) -> int:
        """Begin the load, and return the sequence of its base."""
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
        """Return the number of updates so far."""
        return self._updates

    def end(self) -> int:
        """End the load, and return the number of its updates, which are all acknowledged."""
        self._ending.set()
        if self._writer is not None:
            self._writer.join()
        self._clone.flush(WAIT_S)
        return self._updates

    def content(self, at_least: int = 0) -> dict[str, Any]:
        """Return the contents, once the copy is complete up to a sequence and equal to the server's map."""
        clone = self._clone

        def complete() -> bool:
            return sequence_of(clone.verify(contents=False).compared_at) >= at_least and clone.state == "SYNCED"

        until(complete, f"{at_least} to be reached; {clone!r} {clone.stats}")
        return {"digest": digest_of(dict(clone)), "keys": len(clone), "ok": clone.verify().ok, "stats": clone.stats}

    def join(self, times: int, base: int, pad: int = 0) -> dict[str, int]:
        """Open this many Clones under load, and compare each with the load at its number, some again after a heartbeat.

        The end of a sync has the server's fingerprint at that number. A copy that differs from it counts a mismatch.
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
        """Begin to watch with so many watchers, each with its own Clone and default settings."""
        self._watchers = [Watcher(Clone(self._servers)) for _ in range(watchers)]
        for watcher in self._watchers:
            watcher.clone.wait_until_synced(WAIT_S)
            watcher.start()

    def watched(self, keys: int) -> list[dict[str, Any]]:
        """Return the results of each watcher, once it has seen changes of so many keys."""
        return [watcher.result(keys) for watcher in self._watchers]


def exact(clone: Clone, base: int, pad: int) -> int:
    """Check that a Clone holds exactly the load's contents at its number, and return the number of keys."""
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
    """A thread that counts the changes of one Clone."""

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
                # This is set last, so that a thread that waits for it may read the other results.
                self.changes += len(changes)
        except Lagging:
            self.lagging = True

    def result(self, keys: int) -> dict[str, Any]:
        """Return the results, once so many keys were seen."""
        clone = self.clone
        until(lambda: len(clone) == keys and clone.verify(contents=False).ok, f"{keys} keys; {clone!r} {clone.stats}")
        until(lambda: self.lagging or self.changes >= keys, f"changes of {keys} keys, not {self.changes}")
        until(lambda: clone.verify(contents=False).compared_at >= clone.revision > 0, "a comparison")
        return {
            "seen": len(self.seen), "changes": self.changes, "lagging": self.lagging, "in_order": self.in_order,
            "digest": digest_of(dict(clone)), "stats": clone.stats,
        }  # fmt: skip


def compared_since(clone: Clone, revision: int) -> bool:
    """Return True if a heartbeat has confirmed the Clone's contents after a revision."""
    return clone.verify(contents=False).compared_at > revision


def main() -> None:
    """Run commands, one on each line, until the input ends."""
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
