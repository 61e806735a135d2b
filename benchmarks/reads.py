"""Reads per second in one process: `clone.get` beside a plain dict's get and Redis GET."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from .roles import Pipe, Role, closing_all
from .rounds import in_turn, ratio, summary
from .servers import ChpServer, Redis, redis_program

KEYS = [f"/bench/{i:06d}" for i in range(10_000)]


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    share, rounds = (10, 2) if quick else (1, 5)
    with closing_all() as keep:
        server = keep(ChpServer())
        roles = {kind: keep(Role(reader, kind=kind, port=server.port)) for kind in ("chp", "dict")}
        if redis_program():
            roles["redis"] = keep(Role(reader, kind="redis", port=keep(Redis()).port))
        gets = {"chp": 5_000_000 // share, "dict": 5_000_000 // share, "redis": 20_000}
        for role in roles.values():
            role.hear()
        results = in_turn({name: partial(roles[name].ask, gets=gets[name]) for name in roles}, rounds)
    case = {"contenders": {name: summary(rounds) for name, rounds in results.items()}, "raw": results}
    case["ratio_to_dict"] = ratio(results, "rate", "chp", "dict")
    return {"title": "Reads", "unit": "gets/s", "cases": {"get of one of 10,000 keys": case}}


def reader(pipe: Pipe, kind: str, port: int) -> None:
    """Get values, again and again."""
    items = dict.fromkeys(KEYS, b"v" * 100)
    if kind == "chp":
        from chp_client import Clone

        clone = Clone(f"tcp://127.0.0.1:{port}")
        clone.wait_until_synced(timeout=30)
        clone.set_many(items).wait(30)
        get: Any = clone.get
    elif kind == "redis":
        import redis

        client = redis.Redis("127.0.0.1", port)
        client.mset(items)
        get = client.get
    else:
        get = items.get
    pipe.say(up=True)
    while True:
        gets = pipe.hear()["gets"]
        laps = gets // len(KEYS)
        begin = time.monotonic()
        for _ in range(laps):
            for key in KEYS:
                get(key)
        pipe.say(rate=laps * len(KEYS) / (time.monotonic() - begin))
