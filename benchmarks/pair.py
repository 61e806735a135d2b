"""The pair: what durability costs, how long a failover takes, how soon a million keys are back after a crash.

durable    set_many of 1,000, 100-byte values, journaled with --sync always on both servers and replicated before it
           is acknowledged; beside one Redis with appendfsync always: MSET of 1,000, and SETs pipelined by 1,000
copies     the same set_many of 1,000 at a pair, and at a pair with --copies 3 and a replica that confirms, on one disk
failover   kill -9 of the active while one set after another is awaited: from the last acknowledgement before the kill
           to the first after it, over 50 kills; the killed server is in sync again before the next kill. Idle: no
           other client sets anything; under load (20 kills): another client sets 200,000 keys a second by `set_many`
           of 1,000
recovery   kill -9 of a server with 1,000,000 keys in its journal; from its start to its first answer
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from .roles import Pipe, Role, closing_all
from .rounds import Round, in_turn, percentiles, ratio, summary
from .servers import ChpPair, ChpServer, Redis, ThreeCopies, redis_program, status, wait_in_sync
from .workload import batches

RECOVERED = (1_000_000, 100_000)  # whole, quick
LOAD = 200_000  # sets a second


def run(quick: bool = False) -> dict[str, Any]:
    """Measure all cases."""
    return {
        "title": "The pair",
        "unit": "",
        "cases": {
            "durable: set_many of 1,000, 100 bytes, on both disks (Redis: on its one)": durable(quick),
            "copies: set_many of 1,000, 100 bytes, on three disks, and on two": copies(quick),
            "failover: from the last acknowledgement before kill -9 to the first after": failover(quick),
            f"the same while another client sets {LOAD:,} keys a second": failover(quick, under_load=True),
            f"recovery of {RECOVERED[quick]:,} keys from the journal": recovery(quick),
        },
    }


# -- durable


def durable(quick: bool) -> dict[str, Any]:
    """Measure the rate of sets that are on both disks when they are acknowledged."""
    share, rounds = (5, 2) if quick else (1, 5)
    with closing_all() as keep:
        pair = keep(ChpPair(sync="always"))
        wait_in_sync(pair)
        roles = {"chp pair": (keep(Role(durable_writer, kind="chp", address=",".join(pair.addresses))), 400_000)}
        if redis_program():
            flags = ("--appendonly", "yes", "--appendfsync", "always")
            address = str(keep(Redis(*flags)).port)
            roles["redis MSET"] = (keep(Role(durable_writer, kind="mset", address=address)), 200_000)
            roles["redis pipelined"] = (keep(Role(durable_writer, kind="pipeline", address=address)), 50_000)
        for role, _ in roles.values():
            role.hear()
            role.ask(sets=10_000)
        sets = {name: max(10_000, n // share) for name, (_, n) in roles.items()}
        results = in_turn({name: partial(roles[name][0].ask, sets=sets[name]) for name in roles}, rounds)
    case: dict[str, Any] = {"contenders": {n: summary(rounds) for n, rounds in results.items()}, "raw": results}
    if "redis MSET" in results:
        case["ratio_to_redis"] = ratio(results, "rate", "chp pair", "redis MSET")
    return case


def copies(quick: bool) -> dict[str, Any]:
    """Measure the rate of sets that three servers have synced at the acknowledgement, beside the rate of two."""
    share, rounds = (5, 2) if quick else (1, 7)
    with closing_all() as keep:
        two, three = keep(ChpPair(sync="always")), keep(ThreeCopies(sync="always"))
        wait_in_sync(two)
        addresses = {"2 copies": two.addresses, "3 copies": three.addresses}
        roles = {
            name: keep(Role(durable_writer, kind="chp", address=",".join(each))) for name, each in addresses.items()
        }
        for role in roles.values():
            role.hear()
            role.ask(sets=10_000)
        results = in_turn({name: partial(role.ask, sets=400_000 // share) for name, role in roles.items()}, rounds)
    return {
        "contenders": {name: summary(rounds) for name, rounds in results.items()}, "raw": results,
        "ratio_to_2_copies": ratio(results, "rate", "3 copies", "2 copies"),
    }  # fmt: skip


def durable_writer(pipe: Pipe, kind: str, address: str) -> None:
    """Write batches of 1,000; answer with the rate until the last acknowledgement, and with its durability."""
    write = _chp_writer(address) if kind == "chp" else _redis_writer(kind, int(address))
    pipe.say(up=True)
    while True:
        sets = pipe.hear()["sets"]
        work = batches(sets, 100)
        begin = time.monotonic()
        worth = write(work)
        seconds = time.monotonic() - begin
        pipe.say(rate=sets / seconds, seconds=seconds, worth=worth)


def _chp_writer(addresses: str) -> Any:
    from chp_client import Clone

    clone = Clone(addresses.split(","))
    clone.wait_until_synced(timeout=60)

    def write(work: Any) -> str:
        tickets = [clone.set_many(columns) for columns in work]
        worth = sorted({ticket.wait(60).durability for ticket in tickets})
        if worth != ["replicated"]:
            raise RuntimeError(f"acknowledged as {worth}, which is not what is measured here")
        return worth[0]

    return write


def _redis_writer(kind: str, port: int) -> Any:
    import redis

    client = redis.Redis("127.0.0.1", port)

    def write(work: Any) -> str:
        if kind == "mset":
            # At most ten thousand sets are on their way at once, as in the window of a Clone.
            for at in range(0, len(work), 10):
                pipeline = client.pipeline(transaction=False)
                for keys, values in work[at : at + 10]:
                    pipeline.mset(dict(zip(keys, values, strict=True)))
                pipeline.execute()
        else:
            for keys, values in work:
                pipeline = client.pipeline(transaction=False)
                for key, value in zip(keys, values, strict=True):
                    pipeline.set(key, value)
                pipeline.execute()
        return "one disk"

    return write


# -- failover


def failover(quick: bool, *, under_load: bool = False) -> dict[str, Any]:
    """Measure the outage that a client sees."""
    kills = 3 if quick else 20 if under_load else 50
    outages, lost = [], 0
    with closing_all() as keep:
        pair = keep(ChpPair(sync="always"))
        wait_in_sync(pair)
        client = keep(Role(persistent, addresses=pair.addresses))
        client.hear()
        load = [keep(Role(flooder, addresses=pair.addresses))] if under_load else []
        for role in load:
            role.hear()
        for n in range(kills):
            active = next(i for i in (0, 1) if status(pair.addresses[i])["state"] == "active")
            for role in load:
                role.say(go=True)
            client.say(go=True)
            time.sleep(1.0 if load else 0.3)
            pair.servers[active].kill()
            answer = client.ask(60, killed=time.monotonic())
            outages.append(answer["outage"])
            lost += answer["lost"]
            for role in load:
                role.say(go=False)
                role.hear(60)
            pair.servers[active].close()
            pair.restart(active)
            wait_in_sync(pair)
            if n % 10 == 9:
                print(f"  {n + 1} kills", flush=True)
    figures: Round = {**percentiles(outages), "kills": kills, "lost": lost, "max_us": max(outages) * 1e6}
    return {"contenders": {"chp pair": figures}, "raw": {"outages_s": outages}}


def persistent(pipe: Pipe, addresses: list[str]) -> None:
    """Set and wait; told the moment of a kill, answer with the gap of acknowledgements around the kill."""
    from chp_client import Clone

    clone = Clone(addresses)
    clone.wait_until_synced(timeout=60)
    pipe.say(up=True)
    i = 0
    while True:
        pipe.hear()
        acknowledged: dict[str, bytes] = {}
        killed, times = float("inf"), [time.monotonic()]
        while times[-1] <= killed:
            i += 1
            key, value = f"/failover/{i % 1000}", b"%d" % i
            clone.set(key, value).wait(30)
            acknowledged[key] = value
            times.append(time.monotonic())
            if pipe.waiting():
                killed = pipe.hear()["killed"]
        last = max(at for at in times if at <= killed)
        pipe.say(
            outage=min(at for at in times if at > killed) - last,
            lost=sum(clone.get(k) != v for k, v in acknowledged.items()),
        )


def flooder(pipe: Pipe, addresses: list[str]) -> None:
    """Set `LOAD` keys a second until told to stop, and then wait until all is acknowledged."""
    from chp_client import Clone

    clone = Clone(addresses, subtree=None)
    work = batches(10_000, 100)
    pipe.say(up=True)
    while True:
        pipe.hear()
        due, i = time.monotonic(), 0
        while not pipe.waiting():
            # This call waits while the window is full.
            clone.set_many(work[i % len(work)])
            # After a delay, the client makes up for at most 0.1 s.
            i, due = i + 1, max(due + len(work[0][0]) / LOAD, time.monotonic() - 0.1)
            time.sleep(max(0.0, due - time.monotonic()))
        pipe.hear()
        clone.flush(timeout=60)
        pipe.say(batches=i)


# -- recovery


def recovery(quick: bool) -> dict[str, Any]:
    """Measure the time from the start of the process to its first answer, with everything in its map."""
    import tempfile

    keys, rounds = RECOVERED[quick], 2 if quick else 5
    results = []
    with tempfile.TemporaryDirectory(prefix="chp-bench-") as data, closing_all() as keep:
        server = keep(ChpServer(store="", data=data, sync="always"))
        filler = keep(Role(filler_role, address=server.address))
        filler.hear()
        filler.ask(300, keys=keys)
        filler.close()
        for _ in range(rounds):
            server.kill()
            begin = time.monotonic()
            server = keep(ChpServer(server.port, store="", data=data, sync="always"))
            said = status(server.address, 60_000)
            results.append({"seconds": time.monotonic() - begin, "keys": said["keys"]})
            if said["keys"] != keys:
                raise RuntimeError(f"{said['keys']} keys came back of {keys}")
    return {"contenders": {"chp": summary(results)}, "raw": {"chp": results}}


def filler_role(pipe: Pipe, address: str) -> None:
    """Fill a server."""
    from chp_client import Clone

    clone = Clone(address, subtree=None)
    pipe.say(up=True)
    keys = pipe.hear()["keys"]
    for at in range(0, keys, 10_000):
        clone.set_many(([f"/k/{i:07d}" for i in range(at, at + 10_000)], [b"v" * 100] * 10_000))
    clone.flush(timeout=300)
    pipe.say(done=True)
    pipe.hear()
