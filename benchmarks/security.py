"""What keys and rules cost: sets to 1, 20 and 100 watchers, an awaited set, a check of rules, 500 clients at once.

set_many, awaited   without keys; with keys; with keys and rules, as in `sets` and `latency`
rules               the gate's check of a batch of 1,000 keys, alone: processor time of one thread
herd                from the first `Clone()` to the moment the last of 500 is synced: ten processes of fifty each
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from chp import keyfiles
from chp.access import Rules
from chp.batch import Segment
from chp_client.clientfile import ClientFile, text_of
from chp_client.port.admin import Admin

from .latency import Awaited
from .roles import Pipe, Role, closing_all
from .rounds import Round, in_turn, ratio, summary
from .servers import WAIT_S, ChpServer
from .sets import Lane
from .writers import clone_of

CASES = [(1, 600_000), (20, 100_000), (100, 30_000)]  # watchers, sets a round
HERD, PROCESSES = 500, 10
OPEN, KEYS, RULES = "chp", "chp, keys", "chp, keys and rules"
USER = {
    "read": [""],
    "write": ["/", "/pub/", "/k/"],
    "deny-read": ["/secret/"],
    "deny-write": ["/secret/", "/internal/"],
}
GIVEN: dict[str, Any] = {
    "roles": {},
    "users": {
        "bench": {"admin": ["access", "status"], "read": [""], "write": [""], "deny-write": ["/secret/", "/internal/"]},
        **{f"user-{i}": USER for i in range(20)},
    },
}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all cases."""
    cases = {f"set_many, 100 bytes, {n} watcher{'s' * (n > 1)}": sets(n, many, quick) for n, many in CASES}
    cases["one set awaited"] = awaited(quick)
    cases["a check of rules, of a key in a batch of 1,000"] = checked()
    cases[f"{HERD} clients that start at once"] = herd(quick)
    return {"title": "What keys and rules cost", "unit": "sets/s", "cases": cases}


class Keyed:
    """A server without keys, with keys, or with keys and rules; `place` is its address, or its client file."""

    def __init__(self, kind: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="chp-bench-")
        self.server, self.place = self._with_keys() if kind != OPEN else self._without()
        if kind == RULES:
            with Admin(ClientFile.read(self.place), WAIT_S) as admin:
                admin.ask(self.server.address, "access", rules=GIVEN, on=0)

    def _without(self) -> tuple[ChpServer, str]:
        server = ChpServer()
        return server, server.address

    def _with_keys(self) -> tuple[ChpServer, str]:
        base = Path(self._scratch.name)
        (base / "clients").mkdir()
        ours, theirs = (keyfiles.KeyPair(*zmq.curve_keypair()) for _ in range(2))
        for path, text in (
            (base / "server.secret", keyfiles.secret_text("server", ours)),
            (base / "clients" / "bench.pub", keyfiles.public_text("bench", theirs.public)),
        ):
            path.touch(mode=0o600)
            path.write_text(text)
        server = ChpServer(keys=base)
        file = base / "bench.toml"
        file.touch(mode=0o600)
        file.write_text(text_of("bench", theirs, {server.address: ours.public}))
        return server, str(file)

    def close(self) -> None:
        """End the server, and delete the keys."""
        self.server.close()
        self._scratch.cleanup()


def sets(n: int, many: int, quick: bool) -> dict[str, Any]:
    """Measure `set_many` to `n` watchers: without keys, with keys and, for one watcher, with keys and rules."""
    share, rounds = (5, 2) if quick else (1, 5)
    kinds = [OPEN, KEYS, RULES] if n == 1 else [OPEN, KEYS]
    with closing_all() as keep:
        lanes = {}
        for kind in kinds:
            keyed = keep(Keyed(kind))
            lanes[kind] = keep(
                Lane("chp", "many", n, 100, max(10_000, many // share), keyed=(keyed.server, keyed.place))
            )
            lanes[kind].round()
        results = in_turn({kind: lane.round for kind, lane in lanes.items()}, rounds)
    return _case(results, "rate", kinds)


def awaited(quick: bool) -> dict[str, Any]:
    """Measure one set after another, each awaited."""
    many, rounds = (500 if quick else 3000), 5
    with closing_all() as keep:
        lanes = {}
        for kind in (OPEN, KEYS, RULES):
            keyed = keep(Keyed(kind))
            lanes[kind] = keep(Awaited("chp", (keyed.server, keyed.place)))
            lanes[kind].round(200)
        results = in_turn({kind: partial(lane.round, many) for kind, lane in lanes.items()}, rounds)
    return _case(results, "p50_us", [OPEN, KEYS, RULES])


def _case(results: dict[str, list[Round]], key: str, kinds: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"contenders": {who: summary(rounds) for who, rounds in results.items()}, "raw": results}
    for kind in kinds[1:]:
        found[f"ratio_{kind.removeprefix('chp, ').replace(' ', '_')}_to_none"] = ratio(results, key, kind, OPEN)
    return found


def checked() -> dict[str, Any]:
    """Return the processor time of the authorizer's check of a batch of plain sets, for a user with several rules."""
    from chp.limits import DEFAULT
    from chp_server.core.state.access_state import AccessState
    from chp_server.core.state.staging import Staging
    from chp_server.core.updates.authorizer import check_batch

    granted, staging = AccessState(), Staging(DEFAULT)
    granted.rules = Rules.of(GIVEN)
    segment = Segment([f"/k/{i:07d}" for i in range(1000)], [b"v"] * 1000)
    rounds, many = [], 2000
    for _ in range(5):
        begin = time.thread_time()
        for _ in range(many):
            assert not check_batch(granted, "user-3", b"s" * 16, segment, staging)
        rounds.append({"us_a_key": (time.thread_time() - begin) / many / 1000 * 1e6})
    return {"contenders": {"chp": summary(rounds)}, "raw": {"chp": rounds}}


# -- many at once


def herd(quick: bool) -> dict[str, Any]:
    """Measure the herd without keys and with keys, each a few times."""
    with closing_all() as keep:
        lanes = {}
        for kind in (OPEN, KEYS):
            keyed = keep(Keyed(kind))
            clone = clone_of(keyed.place)
            clone.set_many({f"/k/{i}": b"v" * 100 for i in range(10_000)})
            clone.flush(timeout=WAIT_S)
            clone.close()
            lanes[kind] = Herd(keyed.place)
        results = in_turn({kind: lane.round for kind, lane in lanes.items()}, 1 if quick else 3)
    return _case(results, "seconds", [OPEN, KEYS])


class Herd:
    """Clients that all begin at once, and end again."""

    def __init__(self, place: str) -> None:
        self._place = place

    def round(self) -> Round:
        """Return one measurement."""
        role = Role(members, place=self._place, n=HERD // PROCESSES, processes=PROCESSES)
        try:
            role.hear()
            told = role.ask(go=True)
        finally:
            role.close()
        return {"seconds": told["end"] - told["begin"], "synced": told["synced"]}


def members(pipe: Pipe, place: str, n: int, processes: int) -> None:
    """Run `processes` processes of `n` Clones each; answer when the last Clone is synced."""
    lines = [_fork(place, n) for _ in range(processes)]
    pipe.say(up=True)
    pipe.hear()
    begin = time.monotonic()
    for line in lines:
        line.write("go\n")
        line.flush()
    answers = [json.loads(line.readline()) for line in lines]
    pipe.say(begin=begin, end=max(a["end"] for a in answers), synced=sum(a["synced"] for a in answers))
    pipe.hear()


def _fork(place: str, n: int) -> Any:
    import chp_client  # noqa: F401  (before the fork, so that what is measured is not Python's start)

    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        line = theirs.makefile("rw")
        line.readline()
        clones = [clone_of(place) for _ in range(n)]
        for clone in clones:
            clone.wait_until_synced(timeout=60)
        line.write(
            json.dumps({"end": time.monotonic(), "synced": sum(len(clone) == 10_000 for clone in clones)}) + "\n"
        )
        line.flush()
        line.readline()
        os._exit(0)
    theirs.close()
    return ours.makefile("rw")
