"""Count the calls of our functions that one KVSET costs, the files that these calls enter, and the hops between files.

    python benchmarks/journeys.py                    prints the table of the code that PYTHONPATH names
    python benchmarks/journeys.py --calls commits    prints each call of the steps that have this word in their name
    python benchmarks/journeys.py --quiet            counts turns of servers with ample room, and their `next_deadline`
    python benchmarks/journeys.py --clients          prints the table of a Clone's awaited set and of one HTTP PUT
    python benchmarks/journeys.py --bytecodes        prints the bytecodes of an awaited set on a durable pair

Two real `ServerCore`s are joined without sockets, threads or clocks: P is active, and B follows and is in sync. One
client listens to everything and to its own session. Each turn is counted whole: `begin_turn`, the messages of the peer,
`end_turn`, and `performing.steps` with ports that do nothing. Without --quiet this program does not ask for the next
deadline, and does not tell the servers how much room they have. So older commits look at everything in each turn.

With --clients, a lone server runs in a thread of this process that is not counted, and each thread of the client or the
gateway has a row: the calls until the answer is there, and some milliseconds more. As threads and heartbeats interfere,
a row is the median of 21 rounds.

With --bytecodes, a Clone and a durable pair run in threads of this process, and each bytecode is counted, also those of
other projects. A row of a server is the cheapest turn of its kind in 41 rounds, as heartbeats add to other turns. A row
of a client is the median.

Only functions that are defined below chp/, server/ and client/ count. A resumed generator counts as a call.
This program also runs against old commits, whose names differ; it tries both. See benchmarks/results/journeys.md.
"""

from __future__ import annotations

import argparse
import http.client
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from chp.batch import Segment
from chp.keys import RESERVED_KEY, channel_topic, public_session, session_topic
from chp.numbers import pack
from chp_server.cores import Cores

PACKAGES = ("chp", "chp_server", "chp_client")
SESSION = b"s" * 16
STEP_S = 0.001
PUT = b"PUT /v1/keys/a HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 1\r\n\r\n1"
# Each measurement of threads has this many rounds, with this pause before and after each round.
ROUNDS, PAUSE_S = 21, 0.02
WHOLE = "the whole life of one awaited KVSET"


@dataclass
class Journey:
    """The calls of one step, in their order, as (file, function)."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> int:
        """The number of files that the calls enter."""
        return len({file for file, _ in self.calls})

    @property
    def hops(self) -> int:
        """The number of neighbouring calls that are in different files."""
        return sum(a[0] != b[0] for a, b in zip(self.calls, self.calls[1:], strict=False))

    @property
    def most(self) -> str:
        """The three files that are entered most often from another file."""
        entered = Counter(b[0] for a, b in zip([("", ""), *self.calls], self.calls, strict=False) if a[0] != b[0])
        return ", ".join(f"{Path(file).stem} {times}" for file, times in entered.most_common(3))


def _file(frame: FrameType) -> str:
    """Return the path of a function of ours, from its package on; "" for a function of another project."""
    package, _, _ = frame.f_globals.get("__name__", "").partition(".")
    path = frame.f_code.co_filename
    # A dataclass makes functions without a file.
    at = path.rfind(f"/{package}/")
    return path[at:] if package in PACKAGES and at >= 0 else ""


# Cores is the harness of these measurements, and no part of a server.
HARNESS = ("/chp_server/cores.py",)


def _into(journey: Journey) -> Callable[[FrameType, str, Any], None]:
    """Return a profile function that notes each call in a journey."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (file := _file(frame)) and file not in HARNESS:
            journey.calls.append((file, frame.f_code.co_name))

    return profile


@contextmanager
def counted(journey: Journey) -> Iterator[None]:
    """Count the calls of this thread while the block runs."""
    sys.setprofile(_into(journey))
    try:
        yield
    finally:
        sys.setprofile(None)


# -- the two cores


class Nothing:
    """Ports that do nothing, and inboxes that are empty."""

    def __init__(self, pair: Cores) -> None:
        self._pair = pair

    def now(self) -> float:
        """Return the time of the pair."""
        return self._pair.now

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **more: None

    def acknowledge(self, acks: Any) -> None:
        """Take acknowledgements."""
        list(acks)


class Joined:
    """The pair, and one client that writes."""

    def __init__(self, *, quiet: bool) -> None:
        from chp_server.core import performing

        self._performing = performing
        self.pair, self.no, self._quiet = Cores(), 0, quiet
        self._ports = Nothing(self.pair)
        for core in self.pair.cores.values() if quiet else ():
            core.measured(_usage())
        topics = channel_topic(""), session_topic(public_session(SESSION))
        for topic in topics:
            self.pair.p.subscription([b"client", b"\x01" + topic])
        self.pair.run(1.0)
        # The quiet state begins after some turns of plain sets only.
        for _ in range(5):
            for _, do in self.life():
                do()

    def turn(self, name: str) -> Any:
        """Take a whole turn of one server, as the reactor does."""
        core = self.pair.cores[name]
        turn = self.pair.turn(name)
        for _ in self._performing.steps(core, turn, self._ports):
            pass
        if self._quiet:
            core.next_deadline()
        return turn

    def life(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the steps of one awaited KVSET, each to be called before the next is asked for."""
        self.no += 1
        frames = self._frames()
        self.pair.now += STEP_S
        yield "collect", lambda: self.pair.p.collect(frames)
        yield "the active's turn, which commits", lambda: self.turn("P")
        yield "the passive's turn, which follows", lambda: self.turn("B")
        self.pair.now += STEP_S
        yield "the active's turn, which hears the confirmation", lambda: self.turn("P")
        self.pair.now += STEP_S
        yield "an idle turn of the active", lambda: self.turn("P")

    def set(self) -> None:
        """Send the next KVSET to the active."""
        self.no += 1
        self.pair.now += STEP_S
        self.pair.p.collect(self._frames())

    def _frames(self) -> list[bytes]:
        """Return the KVSET of the next batch: one key and its value."""
        body = Segment([f"/a/{self.no % 100}"], [b"%d" % self.no]).encode()
        return [RESERVED_KEY, pack(self.no), SESSION, b"", body]


def _usage() -> Any:
    """Return what a shell reports if it has measured plenty of memory and disk."""
    try:
        return import_module("chp_server.core.updates.resource_limits").ResourceUsage()
    except ImportError:
        return import_module("chp_server.core.committer.room").Measured()


def of_cores(*, quiet: bool) -> dict[str, Journey]:
    """Return the journey of each step of one awaited KVSET."""
    joined, found = Joined(quiet=quiet), dict[str, Journey]()
    for step, do in joined.life():
        with counted(found.setdefault(step, Journey())):
            do()
    found[WHOLE] = Journey([call for journey in found.values() for call in journey.calls])
    for _ in range(2):
        joined.set()
        with counted(both := Journey()):
            joined.turn("P")
        joined.turn("B")
    found["the active's turn under load, which commits and hears"] = both
    return found


# -- clients


class Threads:
    """The journey of the thread that called `watch`, and of each thread that started afterwards."""

    def __init__(self) -> None:
        self._on = False
        self._journeys: dict[str, Journey] = {}

    def watch(self) -> None:
        """Watch this thread, and all threads that start from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def end(self) -> None:
        """Stop watching this thread, and do not watch threads that start from now on."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self._on and event == "call" and (file := _file(frame)):
            name = threading.current_thread().name
            self._journeys.setdefault(name, Journey()).calls.append((file, frame.f_code.co_name))

    def journeys(self, do: Callable[[], object]) -> dict[str, Journey]:
        """Call `do` in several rounds, and return the median journey of each thread."""
        rounds: dict[str, list[Journey]] = {}
        for _ in range(ROUNDS):
            time.sleep(PAUSE_S)
            self._journeys, self._on = {}, True
            do()
            time.sleep(PAUSE_S)
            self._on = False
            for name, journey in self._journeys.items():
                rounds.setdefault(name, []).append(journey)
        often = {name: found for name, found in rounds.items() if len(found) > ROUNDS // 2}
        return {name: sorted(found, key=lambda each: len(each.calls))[len(found) // 2] for name, found in often.items()}


def of_clients() -> dict[str, Journey]:
    """Return the journeys of the threads of a Clone and of a gateway, in which one value is set and awaited."""
    from chp_client import Clone
    from chp_client.gateway.main import arguments, server_of
    from chp_server.testing import TestServer

    found: dict[str, Journey] = {}
    with TestServer() as server:
        threads = Threads()
        threads.watch()
        try:
            with Clone(server.address, name="journeys") as clone:
                clone.set("/a", b"0").wait(timeout=10)
                told = threads.journeys(lambda: clone.set("/a", b"1").wait(timeout=10))
            found |= {f"Clone.set(...).wait(), {_of(name)}": journey for name, journey in told.items()}
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            given = ["--servers", server.address, "--listen", f"127.0.0.1:{port}"]
            gateway = server_of(arguments().parse_args(given))
            thread = threading.Thread(target=gateway.run, args=([listener],), name="loop", daemon=True)
            thread.start()
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            while _status(connection, b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") != 200:
                time.sleep(PAUSE_S)
            told = threads.journeys(lambda: _status(connection, PUT % port))
            found |= {f"PUT /v1/keys/a, {_of(name)}": journey for name, journey in told.items() if name != "MainThread"}
            connection.close()
            gateway.handle_exit(15, None)
            thread.join(20)
        finally:
            threads.end()
    return found


# -- bytecodes

# The kinds of turns of the servers, by a function that each kind enters.
KINDS = {
    "PeerLink._on_confirm": "hears the confirmation",
    "PeerLink._on_record": "follows the record",
    "PendingList.keep": "keeps the set",
    "Committer.collect": "commits the set",
}
# A turn that enters one of these does other work too.
OTHERS = {
    "HeartbeatTimer.end_turn",
    "DiskMonitor.look",
    "Server._keep_house",
    "PeerLink._on_state",
    "PeerLink._on_scrubbed",
}
BEGINS = {"Server.turn", "short_turn"}
MAIN, AGENT = "MainThread", "chp-agent"
TURNS = 41


class Bytecodes:
    """The bytecodes and the calls of each turn of a thread, and of each round of the threads of a client."""

    def __init__(self) -> None:
        self.on = False
        self.turns: dict[str, list[tuple[Counter[str], Counter[str]]]] = {}

    def begin(self, thread: str) -> None:
        """Begin another turn of a thread."""
        self.turns.setdefault(thread, []).append((Counter(), Counter()))

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Count a call, and trace its bytecodes."""
        thread, name = threading.current_thread().name, frame.f_code.co_qualname
        module = frame.f_globals.get("__name__", "?")
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if name in BEGINS or thread not in self.turns:
            self.begin(thread)
        if self.on:
            self.turns[thread][-1][1][name] += 1

        def opcode(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode" and self.on:
                self.turns[thread][-1][0][module] += 1
            return opcode

        return opcode

    def rows(self) -> Iterator[tuple[str, Counter[str], int]]:
        """Yield a turn of each kind and a round of each thread of a client: name, bytecodes of each module, calls."""
        kinds: dict[str, list[tuple[Counter[str], Counter[str]]]] = {}
        for thread, turns in self.turns.items():
            server = thread in ("primary", "backup")
            for ops, calls in turns:
                if not server and thread != MAIN and not thread.startswith(AGENT):
                    continue
                did = sorted(what for name, what in KINDS.items() if name in calls)
                if ops and (not server or (did and not OTHERS & calls.keys())):
                    kinds.setdefault(f"{thread if server else _of(thread)} {' and '.join(did)}", []).append(
                        (ops, calls)
                    )
        for kind, turns in sorted(kinds.items()):
            turns.sort(key=lambda turn: turn[0].total())
            ops, calls = turns[0] if kind.startswith(("primary", "backup")) else turns[len(turns) // 2]
            yield kind, ops, calls.total()


def print_bytecodes() -> None:
    """Print the bytecodes of one awaited set on a durable pair, by turn and by module."""
    from chp_client import Clone
    from chp_server.testing import Pair

    counted = Bytecodes()
    threading.settrace(counted.trace)
    with tempfile.TemporaryDirectory() as files:
        stores = f"sqlite:{files}/primary", f"sqlite:{files}/backup"
        with Pair(store=stores, sync="always") as pair, Clone(pair.servers, name="journeys") as clone:
            clone.set("/a", b"0").wait(timeout=60)
            sys.settrace(counted.trace)
            for _ in range(TURNS):
                for thread in [MAIN, *(each.name for each in threading.enumerate() if each.name.startswith(AGENT))]:
                    counted.begin(thread)
                counted.on = True
                clone.set("/a", b"1").wait(timeout=60)
                time.sleep(PAUSE_S)
                counted.on = False
            sys.settrace(None)
            threading.settrace(None)
    print("| turn | bytecodes | calls | modules |")
    print("|---|---|---|---|")
    for kind, ops, calls in counted.rows():
        most = ", ".join(f"{module.rpartition('.')[2]} {n}" for module, n in ops.most_common(8))
        print(f"| {kind.strip()} | {ops.total()} | {calls} | {most} |")


def _of(thread: str) -> str:
    """Return the name of a thread in a row of the table."""
    return {MAIN: "the caller"}.get(thread, "the agent" if thread.startswith(AGENT) else f"the {thread}")


def _status(connection: socket.socket, request: bytes) -> int:
    """Send a request in one piece, and return the status of an answer that was read whole."""
    connection.sendall(request)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def main() -> None:
    """Print the table; with --calls, each call of a step too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", metavar="STEP", help="print each call of the steps whose name has this word")
    parser.add_argument("--quiet", action="store_true", help="nothing but sets came for some turns; see above")
    parser.add_argument("--clients", action="store_true", help="of a Clone and of a gateway")
    parser.add_argument("--bytecodes", action="store_true", help="of an awaited set on a durable pair")
    args = parser.parse_args()
    if args.bytecodes:
        print_bytecodes()
        return
    print("| step | calls | files | hops | entered most |")
    print("|---|---|---|---|---|")
    for step, journey in (of_clients() if args.clients else of_cores(quiet=args.quiet)).items():
        print(f"| {step} | {len(journey.calls)} | {journey.files} | {journey.hops} | {journey.most} |")
        if args.calls and args.calls in step:
            for file, function in journey.calls:
                print(f"    {file:60} {function}")


if __name__ == "__main__":
    main()
