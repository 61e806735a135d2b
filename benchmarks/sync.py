"""Getting what is there: the first sync of many keys while updates go on, and a resume after missed updates.

first sync   100,000 and 1,000,000 keys of 100 bytes, 10,000 updates a second going on; from `Clone(...)` to
             SYNCED, compared with the server's fingerprint; beside Redis HGETALL, and SCAN + MGET, into a dict
             (whose copies do not show a single moment). A Clone of a subtree, a tenth of the keys, joins too
resume       a copy of 100,000 keys missed 10,000 updates; from its request until the answer, up to KTHXBAI, is applied
             (frames by hand, so that no reconnecting is in the figure)
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import zmq

from .roles import Pipe, Role, chosen_tree, closing_all, programs_of
from .rounds import Round, in_turn, summary
from .servers import ChpServer, Redis, redis_program

BATCH = 10_000
VALUE = b"v" * 100
SUBTREES = 10


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    cases = {}
    for keys, rounds in ((100_000, 5), (1_000_000, 5)) if not quick else ((100_000, 2),):
        with closing_all() as keep:
            contenders = {"chp": keep(Filled("chp", keys)), "chp a subtree": keep(Filled("chp", keys, "/k/3/"))}
            if redis_program():
                contenders["redis HGETALL"] = keep(Filled("hash", keys))
                contenders["redis SCAN+MGET"] = keep(Filled("scan", keys))
            results = in_turn({name: lane.round for name, lane in contenders.items()}, rounds)
        cases[f"first sync of {keys:,} keys"] = {
            "contenders": {name: summary(rounds) for name, rounds in results.items()},
            "raw": results,
        }
    cases["resume after 10,000 missed updates"] = resume(2 if quick else 5)
    return {"title": "First sync and resume", "unit": "s", "cases": cases}


class Filled:
    """A store with keys, and a program that goes on updating them."""

    def __init__(self, kind: str, keys: int, subtree: str = "") -> None:
        self.kind, self.keys, self.subtree, self.tree = kind, keys, subtree, chosen_tree()
        self.server: Any = ChpServer() if kind == "chp" else Redis()
        self.updater = Role(updater, kind=kind, port=self.server.port, keys=keys)
        self.updater.hear(300)

    def round(self) -> Round:
        """Return one measurement of a process that joins and ends."""
        with programs_of(self.tree):
            keys = self.keys // SUBTREES if self.subtree else self.keys
            joiner_role = Role(joiner, kind=self.kind, port=self.server.port, keys=keys, subtree=self.subtree)
        try:
            joiner_role.hear()
            self.updater.ask(go=True)
            before = self.server.cpu_s()
            answer = joiner_role.ask(go=True)
            server_s = self.server.cpu_s() - before
            self.updater.ask(go=False)
        finally:
            joiner_role.close()
        return {**answer, "server_cpu_s": server_s}

    def close(self) -> None:
        """End both."""
        self.updater.close()
        self.server.close()


def updater(pipe: Pipe, kind: str, port: int, keys: int) -> None:
    """Fill the store; then make 10,000 updates a second between the parent's start and stop."""
    names = [f"/k/{i % SUBTREES}/{i:06d}" for i in range(keys)]
    put = _putter(kind, port)
    for at in range(0, keys, BATCH):
        part = names[at : at + BATCH]
        put(part, [VALUE] * len(part), at + BATCH >= keys)
    pipe.say(up=True)
    poller = zmq.Poller()
    poller.register(0, zmq.POLLIN)
    at, going = 0, False
    while True:
        if poller.poll(10 if going else None):
            going = pipe.hear()["go"]
            pipe.say(going=going)
        if going:
            at = (at + 100) % (keys - 100)
            put(names[at : at + 100], [b"%d" % at + VALUE[:92]] * 100, False)


def _putter(kind: str, port: int) -> Any:
    if kind == "chp":
        from chp_client import Clone

        clone = Clone(f"tcp://127.0.0.1:{port}", subtree=None)

        def put(keys: list[str], values: list[bytes], last: bool) -> None:
            clone.set_many((keys, values))
            if last:
                clone.flush(timeout=120)

        return put
    import redis

    client = redis.Redis("127.0.0.1", port)
    if kind == "hash":
        return lambda keys, values, last: client.hset("all", mapping=dict(zip(keys, values, strict=True)))
    return lambda keys, values, last: client.mset(dict(zip(keys, values, strict=True)))


def joiner(pipe: Pipe, kind: str, port: int, keys: int, subtree: str) -> None:
    """Get everything, or a subtree, into a dict; answer with how long it took."""
    from chp_client import Clone

    client: Any = None
    if kind != "chp":
        import redis

        client = redis.Redis("127.0.0.1", port)
        client.ping()
    pipe.say(up=True)
    pipe.hear()
    cpu, begin = sum(os.times()[:2]), time.monotonic()
    if kind == "chp":
        clone = Clone(f"tcp://127.0.0.1:{port}", subtree=subtree)
        clone.wait_until_synced(timeout=120)
        held: Any = clone
    elif kind == "hash":
        held = {key.decode(): value for key, value in client.hgetall("all").items()}
    else:
        held = {}
        cursor = -1
        while cursor:
            cursor, found = client.scan(max(cursor, 0), count=10_000)
            if found:
                held.update(zip([key.decode() for key in found], client.mget(found), strict=True))
    seconds, cpu = time.monotonic() - begin, sum(os.times()[:2]) - cpu
    if len(held) != keys:
        raise RuntimeError(f"{len(held)} keys arrived of {keys}")
    pipe.say(seconds=seconds, client_cpu_s=cpu, keys_a_second=keys / seconds)


def resume(rounds: int) -> dict[str, Any]:
    """Measure, with frames by hand, how long it takes to ask for the changes after a number and to apply them."""
    with closing_all() as keep:
        server = keep(ChpServer())
        filler = keep(Role(updater, kind="chp", port=server.port, keys=100_000))
        filler.hear()
        at = _resume(server, 0, {})["number"]
        results = []
        for _ in range(rounds):
            filler.ask(go=True)
            while _resume(server, at, {})["updates"] < 10_000:
                time.sleep(0.2)
            filler.ask(go=False)
            time.sleep(0.3)
            result = _resume(server, at, {})
            at = result.pop("number")
            results.append(result)
    return {"contenders": {"chp": summary(results)}, "raw": {"chp": results}}


def _resume(server: ChpServer, at: int, held: dict[str, bytes]) -> dict[str, Any]:
    import msgpack

    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(server.address)
        options = {"chp": 3, "id": 1, "from": at, "session": b"\0" * 16, "credit": 64}
        begin, updates = time.monotonic(), 0
        dealer.send_multipart([b"ICANHAZ?", b"", msgpack.packb(options)])
        while True:
            header, *items = msgpack.unpackb(dealer.recv_multipart()[4])
            if header[0] == 5:
                return {"seconds": time.monotonic() - begin, "updates": updates, "number": header[2]}
            segments = items if header[0] == 3 else [segment for item in items for segment in item[1:]]
            for keys, values, _ in segments:
                held.update(zip(keys, values, strict=True))
                updates += len(keys)
            dealer.send_multipart([b"ICANHAZ?", b"", msgpack.packb({"chp": 3, "id": 1, "more": 1})])


def median_s(rounds: list[Round]) -> float:
    """Return the median of the seconds."""
    return statistics.median(float(r["seconds"]) for r in rounds)
