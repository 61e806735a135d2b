"""`chp bench`: measure the speed of a live pair from this machine. It works under an empty prefix, and cleans up.

    set, one key a call      sets/s, until the last one is acknowledged
    set_many                 sets/s, until the last one is acknowledged
    one set awaited          from the call to its acknowledgement: p50, p99
    update to watcher        from the call here to the watcher in another process: p50, p99, at a steady pace

The watcher is a process of its own on this machine, as an application would be. Both processes read the same monotonic
clock. The figures hold for this client on this machine and network, with their other load.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click

from chp.errors import ChpError
from chp.keys import check_subtree

from ...clientfile import ClientFile
from ..data.write import delete_all
from ..faults import Misused, NoServer
from ..out import Out
from ..settings import CliSettings, command, duration, read_servers
from ..store import Store, reading, writing
from ..text import percentile, show_latency

# The measurements set at most this many distinct keys, which bounds the memory that the pair needs for them.
KEYS = 10_000
# A measurement reads the clock after this many calls.
CHECK_EVERY = 256
STAMP_BYTES = 8
WATCHER_S = 30.0
# At the end, the client waits up to this long, or up to a longer --timeout, for sets that are under way.
SETTLED_S = 10.0
# If the watcher's first argument begins with this text, it names a client file, not servers.
FILE = "file:"


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a measurement."""

    prefix: str
    seconds: float
    value: bytes
    batch: int
    pace: int

    def key(self, i: int) -> str:
        """Return one of the keys, by number."""
        return f"{self.prefix}{i % KEYS:05d}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a rate, or a latency with its percentiles."""

    name: str
    n: int
    per_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None

    def fields(self) -> dict[str, Any]:
        """Return a JSON object; latencies are in microseconds."""
        fields: dict[str, Any] = {"quantity": self.name, "n": self.n}
        if self.per_s is not None:
            fields["per_s"] = round(self.per_s)
        if self.p50_s is not None and self.p99_s is not None:
            fields |= {"p50_us": round(self.p50_s * 1e6), "p99_us": round(self.p99_s * 1e6)}
        return fields

    def row(self) -> tuple[str, str, str]:
        """Return the cells of a line."""
        if self.per_s is not None:
            return self.name, f"{self.per_s:,.0f} /s", ""
        return self.name, f"p50 {show_latency(self.p50_s or 0)}", f"p99 {show_latency(self.p99_s or 0)}"


def latency(name: str, took_s: list[float]) -> Figure:
    """Return the percentiles of the measured times."""
    took_s.sort()
    return Figure(name, len(took_s), p50_s=percentile(took_s, 50), p99_s=percentile(took_s, 99))


@command()
@duration("--seconds", default="2s", help="The time for each quantity.")
@click.option(
    "--value-bytes", type=click.IntRange(STAMP_BYTES, 1 << 20), default=100, show_default=True, help="Of each value."
)
@click.option("--batch", type=click.IntRange(1, 65_536), default=1000, show_default=True, help="Keys in one set_many.")
@click.option("--pace", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Sets/s to the watcher.")
@click.option("--prefix", help="An empty subtree to work in.  [default: /chp-bench-<random>/]")
def bench(
    settings: CliSettings, *, seconds: float, value_bytes: int, batch: int, pace: int, prefix: str | None
) -> None:
    """Measure the live pair.

    Measure sets/s, the latency of an awaited set, and the latency from an update to a watcher.

    Examples:
        chp bench                          # about ten seconds
        chp bench --seconds 10 --value-bytes 1000
        chp bench --json | tee bench.jsonl
    """
    value = secrets.token_bytes(value_bytes - STAMP_BYTES)
    plan = Plan(_prefix(prefix), seconds, value, min(batch, KEYS), pace)
    _must_be_empty(settings, plan.prefix)
    settings.out.note(f"measuring under {plan.prefix}; if this is killed: chp del --prefix {plan.prefix}")
    try:
        for measure in (_one_a_call, _set_many, _awaited):
            with writing(settings) as store, _settled(store):
                _show(settings.out, measure(store, plan))
        with writing(settings) as store, _watcher(settings, plan) as watcher, _settled(store):
            _show(settings.out, _to_watcher(store, plan, watcher))
    finally:
        _clean_up(settings, plan.prefix)


@contextmanager
def _settled(store: Store) -> Iterator[None]:
    """Wait for all sets at the end, also after Ctrl-C, so that none arrives after the keys were deleted."""
    try:
        yield
    finally:
        with suppress(ChpError, TimeoutError):
            store.clone.flush(timeout=max(store.settings.timeout_s, SETTLED_S))


def _prefix(given: str | None) -> str:
    prefix = f"/chp-bench-{secrets.token_hex(4)}/" if given is None else given
    try:
        return check_subtree(prefix)
    except ValueError as error:
        raise Misused(str(error)) from None


def _must_be_empty(settings: CliSettings, prefix: str) -> None:
    with reading(settings, [prefix]) as store:
        n = len(store.keys(prefix))
    if n or not prefix:
        raise Misused(f"--prefix {prefix or repr('')} holds {n:,} keys, which would be deleted; give one that is empty")


def _clean_up(settings: CliSettings, prefix: str) -> None:
    with reading(settings, [prefix]) as store:
        keys = store.keys(prefix)
    if keys:
        delete_all(settings, keys)


def _show(out: Out, figure: Figure) -> None:
    name, first, second = figure.row()
    out.answer(figure.fields(), f"{name:<28}{first:>14}{second:>14}".rstrip())


# -- the quantities


def _acknowledged(store: Store, name: str, seconds: float, send: Callable[[int], int], every: int) -> Figure:
    """Call `send(i)` for `seconds`, then wait for the last acknowledgement. Return the rate of keys.

    `send` returns the number of keys that it sent. The clock is read after `every` calls.
    """
    n = i = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(every):
            n += send(i)
            i += 1
    store.clone.flush(timeout=max(store.settings.timeout_s, seconds * 5))
    return Figure(name, n, per_s=n / (time.perf_counter() - began))


def _one_a_call(store: Store, plan: Plan) -> Figure:
    put, key, value = store.clone.set, plan.key, b"\0" * STAMP_BYTES + plan.value

    def send(i: int) -> int:
        put(key(i), value)
        return 1

    return _acknowledged(store, "set, one key a call", plan.seconds, send, CHECK_EVERY)


def _set_many(store: Store, plan: Plan) -> Figure:
    value = b"\0" * STAMP_BYTES + plan.value
    batches = [{plan.key(i): value for i in range(start, start + plan.batch)} for start in range(0, KEYS, plan.batch)]

    def send(i: int) -> int:
        store.set_many(batches[i % len(batches)])
        return plan.batch

    return _acknowledged(store, f"set_many of {plan.batch:,}", plan.seconds, send, 1)


def _awaited(store: Store, plan: Plan) -> Figure:
    took: list[float] = []
    value = b"\0" * STAMP_BYTES + plan.value
    until = time.perf_counter() + plan.seconds
    while (began := time.perf_counter()) < until:
        store.set(plan.key(len(took)), value)
        took.append(time.perf_counter() - began)
    return latency("one set awaited", took)


def _to_watcher(store: Store, plan: Plan, watcher: subprocess.Popen[str]) -> Figure:
    n = max(1, round(plan.seconds * plan.pace))
    pause = threading.Event()
    began = time.monotonic()
    for i in range(n):
        left = began + i / plan.pace - time.monotonic()
        if left > 0:
            pause.wait(left)
        store.clone.set(plan.key(i), time.monotonic_ns().to_bytes(STAMP_BYTES) + plan.value)
    store.set(f"{plan.prefix}end", b"")
    seen = _line_of(watcher)
    return latency(f"update to watcher, {plan.pace:,}/s", [ns / 1e9 for ns in json.loads(seen)])


@contextmanager
def _watcher(settings: CliSettings, plan: Plan) -> Iterator[subprocess.Popen[str]]:
    client = settings.client
    servers = f"{FILE}{client.path}" if client else ",".join(settings.servers)
    program = f"from {__name__} import watch; watch()"
    words = [sys.executable, "-c", program, servers, str(settings.timeout_s), plan.prefix]
    watcher = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        # The first line says that the watcher is ready.
        _line_of(watcher)
        yield watcher
    finally:
        watcher.terminate()
        watcher.wait()
        if watcher.stdout is not None:
            watcher.stdout.close()


def _line_of(watcher: subprocess.Popen[str]) -> str:
    """Return the watcher's next line; raise a fault if there is none within `WATCHER_S`."""
    timer = threading.Timer(WATCHER_S, watcher.kill)
    timer.start()
    try:
        line = watcher.stdout.readline() if watcher.stdout is not None else ""
    finally:
        timer.cancel()
    if not line:
        raise NoServer(f"the watcher saw nothing for {WATCHER_S:g} s, or ended; see `chp status`")
    return line


# -- the watcher's process


def watch() -> None:
    """Watch a prefix until its key `end` is set, and print the latencies in nanoseconds as a JSON array.

    The arguments of the process are servers, timeout and prefix. Print `ready` once the prefix is synced. The first 8
    bytes of each value are the monotonic time of its set, in nanoseconds.
    """
    servers, timeout_s, prefix = sys.argv[1:]
    path = servers.removeprefix(FILE)
    named = ClientFile.read(path) if servers.startswith(FILE) else read_servers(servers)
    took: list[int] = []
    with reading(CliSettings(named, named=True, timeout_s=float(timeout_s)), [prefix]) as store:
        print("ready", flush=True)
        for changes in store.changes(prefix, "end"):
            now = time.monotonic_ns()
            for change in changes:
                if change.key == f"{prefix}end":
                    print(json.dumps(took), flush=True)
                    return
                if change.value:
                    took.append(now - int.from_bytes(change.value[:STAMP_BYTES]))


COMMANDS = (bench,)
