"""Bytes a key: 1,000,000 keys of 8 bytes with values of 100, in the server, in a Clone, in a plain dict, in Redis.

A figure is the growth of the process's memory (PSS) since before the keys came, divided by the number of keys. The
server's record log (64 MiB by default, for clients that come back) is reported separately, because it does not grow
with the keys.
"""

from __future__ import annotations

from typing import Any

from .roles import Pipe, Role, closing_all
from .servers import ChpServer, Redis, redis_program, status

BATCH = 10_000


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark: one round, because these figures do not depend on the machine's load."""
    keys = 100_000 if quick else 1_000_000
    out: dict[str, Any] = {}
    with closing_all() as keep:
        server = keep(ChpServer())
        before = server.memory_bytes()
        filler = keep(Role(holder, kind="fill", port=server.port))
        filler.hear()
        filler.ask(keys=keys)
        grown, log = server.memory_bytes() - before, status(server.address)["log_bytes"]
        out["server"] = {"bytes_a_key": grown / keys, "bytes_a_key_without_log": (grown - log) / keys, "log_bytes": log}
        out["client"] = _grown(keep(Role(holder, kind="chp", port=server.port)), keys)
        out["dict"] = _grown(keep(Role(holder, kind="dict", port=0)), keys)
        if redis_program():
            redis = keep(Redis())
            before = redis.memory_bytes()
            filler = keep(Role(holder, kind="redis", port=redis.port))
            filler.hear()
            filler.ask(keys=keys)
            out["redis"] = {"bytes_a_key": (redis.memory_bytes() - before) / keys}
    return {
        "title": "Memory: 8-byte keys, 100-byte values",
        "unit": "bytes a key",
        "cases": {f"{keys:,} keys": {"contenders": out}},
    }


def _grown(role: Role, keys: int) -> dict[str, float]:
    role.hear()
    before = role.memory_bytes()
    role.ask(keys=keys)
    return {"bytes_a_key": (role.memory_bytes() - before) / keys}


def holder(pipe: Pipe, kind: str, port: int) -> None:
    """Hold or set as many keys as the parent says."""
    if kind in ("fill", "redis"):
        put = _filler(kind, port)
        pipe.say(up=True)
        keys = pipe.hear()["keys"]
        for at in range(0, keys, BATCH):
            names = [f"/{i:07d}" for i in range(at, at + BATCH)]
            put(dict(zip(names, [b"%d" % i + b"." * (100 - len(str(i))) for i in range(at, at + BATCH)], strict=True)))
        put(None)
        pipe.say(done=True)
        pipe.hear()
    from chp_client import Clone

    pipe.say(up=True)
    keys = pipe.hear()["keys"]
    if kind == "chp":
        clone = Clone(f"tcp://127.0.0.1:{port}")
        clone.wait_until_synced(timeout=120)
        assert len(clone) == keys
    else:
        held = {f"/{i:07d}": b"%d" % i + b"." * (100 - len(str(i))) for i in range(keys)}
        assert len(held) == keys
    pipe.say(done=True)
    pipe.hear()


def _filler(kind: str, port: int) -> Any:
    if kind == "redis":
        import redis

        client = redis.Redis("127.0.0.1", port)
        return lambda items: items and client.mset(items)
    from chp_client import Clone

    clone = Clone(f"tcp://127.0.0.1:{port}", subtree=None)
    return lambda items: clone.set_many(items) if items else clone.flush(timeout=120)
