"""Whether a client that writes much leaves other clients their share: their awaited sets and updates, beside a flood.

A lone server, in memory. The flood: one client sets 200,000 keys a second, in batches of 10,000 keys with values of 100
bytes. It has 200,000 different keys. Meanwhile a second client sets one key and waits, again and again. A third client
makes an update every 5 ms. A fourth client holds everything, and notes how old each of these updates is when it
arrives. The same is measured without the flood.

A durable pair. One client writes as fast as it can, in batches of 1,000 keys with values of 100 bytes. Meanwhile
another client sets one key and waits, again and again. The ratios compare these waits with the waits without the
flood, and the flood's rate with its rate without the other client.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .roles import Meter, Pipe, Role, closing_all
from .rounds import Round, in_turn, ratio, summary
from .servers import ChpPair, ChpServer, status, wait_in_sync

RATE, BATCH = 200_000, 10_000
VALUE = b"v" * 100
SECONDS = (10.0, 2.0)  # whole, quick


def run(quick: bool = False) -> dict[str, Any]:
    """Measure both parts, with and without the flood in turn."""
    rounds = 2 if quick else 5
    with closing_all() as keep:
        server = keep(ChpServer())
        roles = {
            "flood": keep(Role(flooding, port=server.port)),
            "awaited": keep(Role(awaiting, addresses=[server.address])),
            "seen": keep(Role(watching, port=server.port)),
        }
        for role in roles.values():
            role.hear()
        kinds = {"quiet": False, "beside 200,000/s": True}
        acts = {name: lambda flood=flood: _round(roles, SECONDS[quick], flood=flood) for name, flood in kinds.items()}
        results = in_turn(acts, rounds)
    cases = {}
    for what, title in (("awaited", "one awaited set"), ("seen", "an update until one that holds everything sees it")):
        raw = {f"chp {name}": [each[what] for each in made] for name, made in results.items()}
        cases[title] = {"contenders": {name: summary(made) for name, made in raw.items()}, "raw": raw}
    cases["one awaited set on a durable pair"] = durable(quick=quick)
    return {"title": "Fairness", "unit": "us", "cases": cases}


QUIET, BESIDE, ALONE = "chp quiet", "chp beside a writer flat out", "the writer alone"


def durable(*, quick: bool) -> dict[str, Any]:
    """Return the waits of a client on a durable pair, without and beside a writer flat out, and that writer's rate."""
    with closing_all() as keep:
        pair = keep(ChpPair(sync="always"))
        wait_in_sync(pair)
        flood = keep(Role(filling, addresses=pair.addresses))
        awaited = keep(Role(awaiting, addresses=pair.addresses))
        for role in (flood, awaited):
            role.hear()
        seconds = SECONDS[quick]
        acts: dict[str, Callable[[], Round]] = {
            QUIET: lambda: _durable_round(pair, None, awaited, seconds),
            BESIDE: lambda: _durable_round(pair, flood, awaited, seconds),
            ALONE: lambda: _durable_round(pair, flood, None, seconds),
        }
        # The first round fills the map.
        _durable_round(pair, flood, awaited, seconds)
        results = in_turn(acts, 2 if quick else 5)
    case: dict[str, Any] = {"contenders": {name: summary(made) for name, made in results.items()}, "raw": results}
    case["ratio_p50_us"] = ratio(results, "p50_us", BESIDE, QUIET)
    case["ratio_p99_us"] = ratio(results, "p99_us", BESIDE, QUIET)
    case["ratio_rate"] = ratio(results, "flood_rate", BESIDE, ALONE)
    return case


def _durable_round(pair: ChpPair, flood: Role | None, awaited: Role | None, seconds: float) -> Round:
    degraded = status(pair.servers[0].address)["counts"].get("degraded", 0)
    if flood is not None:
        flood.say(go=True)
        time.sleep(0.5)
    meter = Meter(active=pair.servers[0], passive=pair.servers[1])
    figures: Round = {}
    if awaited is not None:
        figures = awaited.ask(seconds=seconds)
    else:
        time.sleep(seconds)
    if flood is not None:
        used = meter.read(1)
        answer = flood.ask(go=False)
        figures["flood_rate"] = answer["rate"]
        figures |= {name.replace("_us", "_share"): us / seconds / 1e6 for name, us in used.items()}
        figures["only_journaled"] = answer["only_journaled"]
    figures["degraded"] = status(pair.servers[0].address)["counts"].get("degraded", 0) - degraded
    return figures


def _round(roles: dict[str, Role], seconds: float, *, flood: bool) -> dict[str, Round]:
    if flood:
        roles["flood"].say(go=True)
        time.sleep(0.5)
    for name in ("awaited", "seen"):
        roles[name].say(seconds=seconds)
    figures = {name: roles[name].hear() for name in ("awaited", "seen")}
    if flood:
        figures["awaited"]["flood_rate"] = roles["flood"].ask(go=False)["rate"]
    return figures


def _figures(took: list[float]) -> Round:
    ordered = sorted(took)
    p50, p99, p999 = (ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e6 for q in (0.5, 0.99, 0.999))
    return {"p50_us": p50, "p99_us": p99, "p999_us": p999, "n": len(took)}


def flooding(pipe: Pipe, port: int) -> None:
    """Set keys at `RATE` until the parent says stop; answer with the rate that was reached."""
    from chp_client import Clone

    clone = Clone(f"tcp://127.0.0.1:{port}", subtree=None)
    work = [([f"/flood/{i * BATCH + j:08d}" for j in range(BATCH)], [VALUE] * BATCH) for i in range(20)]
    pipe.say(up=True)
    while True:
        pipe.hear()
        begin = due = time.monotonic()
        n = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            clone.set_many(work[n % len(work)])
            n, due = n + 1, max(due + BATCH / RATE, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))
        pipe.hear()
        pipe.say(rate=n * BATCH / (time.monotonic() - begin))
        clone.flush(timeout=60)


def filling(pipe: Pipe, addresses: list[str]) -> None:
    """Set keys as fast as the window allows until the parent says stop; answer with the acknowledged rate."""
    from chp_client import Clone

    clone = Clone(addresses, subtree=None)
    work = [([f"/fill/{i * 1000 + j:08d}" for j in range(1000)], [VALUE] * 1000) for i in range(1000)]
    n, pending = 0, deque[Any]()
    pipe.say(up=True)
    while True:
        pipe.hear()
        begin, done, only_journaled = time.monotonic(), 0, 0
        while not pipe.waiting():
            pending.append(clone.set_many(work[n % len(work)]))
            n += 1
            while pending and pending[0].done:
                only_journaled += pending.popleft().wait(0).durability != "replicated"
                done += 1
        seconds = time.monotonic() - begin
        pipe.hear()
        clone.flush(timeout=60)
        pending.clear()
        pipe.say(rate=done * 1000 / seconds, only_journaled=only_journaled)


def awaiting(pipe: Pipe, addresses: list[str]) -> None:
    """Set one key and wait, again and again."""
    from chp_client import Clone

    clone = Clone(addresses, subtree="/awaited/")
    clone.wait_until_synced(timeout=60)
    pipe.say(up=True)
    while True:
        seconds = pipe.hear()["seconds"]
        until = time.monotonic() + seconds
        took = []
        while (begin := time.monotonic()) < until:
            clone.set("/awaited/x", VALUE).wait(60)
            took.append(time.monotonic() - begin)
            time.sleep(0.002)
        pipe.say(**_figures(took))


def watching(pipe: Pipe, port: int) -> None:
    """Hold everything, and note how old the updates of a second Clone are when they arrive."""
    from chp_client import Clone

    address = f"tcp://127.0.0.1:{port}"
    everything, other = Clone(address), Clone(address, subtree=None)
    everything.wait_until_synced(timeout=60)
    took: list[float] = []
    made: dict[bytes, float] = {}

    def look() -> None:
        for change in everything.watch("/seen/", start="end"):
            begin = made.pop(change.value, None)
            if begin is not None:
                took.append(time.monotonic() - begin)

    threading.Thread(target=look, daemon=True).start()
    pipe.say(up=True)
    i = 0
    while True:
        seconds = pipe.hear()["seconds"]
        until = time.monotonic() + seconds
        took.clear()
        while time.monotonic() < until:
            i += 1
            made[b"%d" % i] = time.monotonic()
            other.set("/seen/x", b"%d" % i)
            time.sleep(0.005)
        time.sleep(0.5)
        pipe.say(**_figures(took))
