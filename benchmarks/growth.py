"""How cost grows with the map: 10 thousand to 10 million keys of 8 bytes with values of 100, on a durable pair.

filling      `set_many` of 10,000, on both disks before it is acknowledged
first sync   a Clone of everything, from its start to its last key
recovery     after a kill -9 of the passive: from its new start to its first answer, with all keys of its journal
back         from this answer until it is in sync
memory       by how many bytes (PSS) a key a process has grown: each server (with its log), and the Clone

All figures but memory are in microseconds a key. So a cost that grows as the map does is the same at each size.
"""

from __future__ import annotations

import time
from typing import Any

from .roles import Pipe, Role, closing_all
from .servers import ChpPair, status, wait_in_sync

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
QUICK = (10_000, 100_000)
BATCH = 10_000
WAIT_S = 900.0
CASES = {
    "filling": "filling, on both disks before it is acknowledged",
    "sync": "first sync of a Clone of everything",
    "recovery": "recovery of the passive from its journal, to its first answer",
    "back": "from there until it is in sync",
}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure one round for each size."""
    cases: dict[str, Any] = {text: {"contenders": {}} for text in CASES.values()}
    memory: dict[str, Any] = {"contenders": {}}
    for keys in QUICK if quick else SIZES:
        found = _measure(keys)
        for name, text in CASES.items():
            seconds = found[name]
            cases[text]["contenders"][f"chp, {keys:,}"] = {"us_a_key": seconds / keys * 1e6, "seconds": seconds}
        for who in ("active", "passive", "clone"):
            grown = found[f"{who}_bytes"]
            memory["contenders"][f"{who}, {keys:,}"] = {"bytes_a_key": grown / keys, "mib": grown / (1 << 20)}
        print(f"  {keys:,}: {found}", flush=True)
    cases["memory, beyond that of the process without keys"] = memory
    return {"title": "How cost grows with the map", "unit": "", "cases": cases}


def _measure(keys: int) -> dict[str, float]:
    with closing_all() as keep:
        pair = keep(ChpPair(sync="always", up_s=WAIT_S))
        wait_in_sync(pair)
        empty = [server.memory_bytes() for server in pair.servers]
        filler = keep(Role(filling, addresses=pair.addresses))
        filler.hear()
        filling_s = filler.ask(WAIT_S, keys=keys)["took_s"]
        filler.close()
        wait_in_sync(pair, WAIT_S)
        active = next(i for i in (0, 1) if status(pair.addresses[i], 60_000)["state"] == "active")
        grown = [server.memory_bytes() - before for server, before in zip(pair.servers, empty, strict=True)]
        joiner = keep(Role(joining, addresses=pair.addresses))
        joiner.hear()
        before = joiner.memory_bytes()
        sync_s = joiner.ask(WAIT_S, keys=keys)["took_s"]
        clone = joiner.memory_bytes() - before
        joiner.close()
        recovery_s, back_s = _recover(pair, 1 - active, keys)
    return {
        "filling": filling_s, "sync": sync_s, "recovery": recovery_s, "back": back_s, "active_bytes": grown[active],
        "passive_bytes": grown[1 - active], "clone_bytes": clone,
    }  # fmt: skip


def _recover(pair: ChpPair, i: int, keys: int) -> tuple[float, float]:
    pair.servers[i].kill()
    pair.servers[i].close()
    begin = time.monotonic()
    pair.restart(i)
    said = status(pair.addresses[i], round(WAIT_S * 1000))
    answered = time.monotonic()
    if said["keys"] != keys:
        raise RuntimeError(f"{said['keys']} keys came back of {keys}")
    wait_in_sync(pair, WAIT_S)
    return answered - begin, time.monotonic() - answered


def filling(pipe: Pipe, addresses: list[str]) -> None:
    """Fill the pair."""
    from chp_client import Clone

    clone = Clone(addresses, subtree=None)
    pipe.say(up=True)
    keys, value = pipe.hear()["keys"], b"v" * 100
    begin = time.monotonic()
    for at in range(0, keys, BATCH):
        clone.set_many(([f"/{i:07d}" for i in range(at, at + BATCH)], [value] * BATCH))
    clone.flush(timeout=WAIT_S)
    pipe.say(took_s=time.monotonic() - begin)
    pipe.hear()


def joining(pipe: Pipe, addresses: list[str]) -> None:
    """Join with a Clone of everything."""
    from chp_client import Clone

    pipe.say(up=True)
    keys = pipe.hear()["keys"]
    begin = time.monotonic()
    clone = Clone(addresses)
    clone.wait_until_synced(timeout=WAIT_S)
    took_s = time.monotonic() - begin
    assert len(clone) == keys
    pipe.say(took_s=took_s)
    pipe.hear()
