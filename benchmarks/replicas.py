"""Replicas: 3,000 raw readers and 20 Clones at three of them, 300 Clones that start at once, one more hop, and moves.

Readers. 3,000 raw readers and 20 Clones are at three replicas of a pair in memory, and 10 sets are made a second. The
ratio compares the processor time of the pair with its time when there is no replica, and three readers are at the
active. Each reader counts the records, and compares its bytes. Each Clone compares its contents.

A start. 300 Clones join three replicas that have just begun; the snapshots of the pair and of the replicas are counted.

A hop. One process hears the active, a replica, and a replica of this replica. It notes how much later records come.

Moves. 600 Clones are at the first of three replicas, and then the other two begin. Ten seconds later their readers are
counted, with the snapshots that were taken, and the longest time for which a Clone was not known to be current.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from itertools import pairwise
from typing import Any
from zlib import crc32

from .raw_readers import RawReader, came, parsed, raw_readers
from .roles import Meter, Pipe, Role, closing_all
from .rounds import Round, percentiles, ratio, summary
from .servers import ChpPair, ChpServer, free_port, status, wait_in_sync

# whole, quick
SECONDS, READERS, CLONES = (60.0, 5.0), (1000, 100), (20, 6)
STARTS, MOVED, HOP_S = (300, 30), (600, 60), (60.0, 5.0)
REPLICAS, DIRECT, RATE = 3, 3, 10
CLONES_A_PROCESS = 50
EVEN_S, WAIT_S = 10.0, 60.0
AT_REPLICAS, AT_THE_ACTIVE = "readers at three replicas", "three direct readers"


def run(quick: bool = False) -> dict[str, Any]:
    """Measure the four cases. One that can't be measured is named, and the others are kept."""
    measures = {
        f"{REPLICAS * READERS[quick]:,} raw readers and {CLONES[quick]} Clones, {RATE} sets/s": _readers,
        f"{STARTS[quick]} Clones that start at three replicas at once": _start,
        "how much later a record comes, for each hop": _hops,
        f"{MOVED[quick]} Clones at one of three replicas": _moves,
    }
    cases: dict[str, Any] = {}
    for name, measure in measures.items():
        try:
            cases[name] = measure(quick)
        except RuntimeError as error:
            print(f"  {name} FAILED: {error}", file=sys.stderr, flush=True)
    if not cases:
        raise RuntimeError("no case could be measured")
    return {"title": "Replicas", "unit": "us", "cases": cases}


def replica(pair: ChpPair, upstream: list[str] | None = None, **settings: Any) -> ChpServer:
    """Start a replica of a pair, and wait until it serves."""
    made = ChpServer(free_port(), replica="yes", upstream=",".join(upstream or pair.addresses), **settings)
    until = time.monotonic() + WAIT_S
    while status(made.address)["state"] != "active":
        if time.monotonic() > until:
            raise RuntimeError(f"a replica does not serve: {status(made.address)}")
        time.sleep(0.05)
    return made


def _pair(keep: Any) -> ChpPair:
    pair: ChpPair = keep(ChpPair(store="memory:"))
    wait_in_sync(pair)
    return pair


def _case(**contenders: Round) -> dict[str, Any]:
    raw = {name.replace("_", " "): [found] for name, found in contenders.items()}
    return {"contenders": {name: summary(found) for name, found in raw.items()}, "raw": raw}


# -- readers


def _readers(quick: bool) -> dict[str, Any]:
    """Return what the pair pays for readers at replicas, beside three direct ones; raise if anything is lost."""
    with closing_all() as keep:
        pair = _pair(keep)
        writer = keep(Role(setting, addresses=pair.addresses))
        writer.hear()
        direct = keep(Role(raw_readers, ports=[pair.ports[0] + 1], each=DIRECT))
        direct.hear()
        before = _heard(pair, writer, direct, None, SECONDS[quick])
        direct.close()
        replicas = [keep(replica(pair)) for _ in range(REPLICAS)]
        raw = keep(Role(raw_readers, ports=[each.port + 1 for each in replicas], each=READERS[quick]))
        lists = [[replicas[i % REPLICAS].address] for i in range(CLONES[quick])]
        clones = keep(Role(following, lists=lists))
        for role in (raw, clones):
            role.hear()
        found = _heard(pair, writer, raw, clones, SECONDS[quick])
    raws = {AT_REPLICAS: [found], AT_THE_ACTIVE: [before]}
    case: dict[str, Any] = {"contenders": {name: summary(each) for name, each in raws.items()}, "raw": raws}
    case["ratio_pair_cpu"] = ratio(raws, "pair_cpu_ms_a_s", AT_REPLICAS, AT_THE_ACTIVE)
    return case


def _heard(pair: ChpPair, writer: Role, raw: Role, clones: Role | None, seconds: float) -> Round:
    meter = Meter(active=pair.servers[0], passive=pair.servers[1], readers=raw)
    raw.ask(begin=True)
    meter.start()
    sets = writer.ask(seconds + WAIT_S, seconds=seconds)
    used = meter.read(1)
    time.sleep(2.0)
    told = raw.ask()
    if (told["records"], told["most"], told["holes"], told["contents"]) != (sets["sets"], sets["sets"], 0, 1):
        raise RuntimeError(f"{sets['sets']} sets were made, and the readers heard {told}")
    if clones is not None:
        copies = clones.ask()
        if copies["contents"] != [sets["contents"]]:
            raise RuntimeError(f"the Clones do not hold what was written: {copies}, {sets}")
    pair_ms = (used["active_cpu_us"] + used["passive_cpu_us"]) / 1000
    return {
        "pair_cpu_ms_a_s": pair_ms / seconds, "readers_cpu_ms_a_s": used["readers_cpu_us"] / 1000 / seconds,
        "sets": sets["sets"], "records_a_reader": told["records"], "holes": told["holes"],
    }  # fmt: skip


def setting(pipe: Pipe, addresses: list[str]) -> None:
    """Set a key as often and as long as is asked for; tell how many sets were made, and the contents."""
    from chp_client import Clone

    clone = Clone(addresses)
    clone.wait_until_synced(WAIT_S)
    pipe.say(up=True)
    made = 0
    while True:
        asked = pipe.hear()
        seconds, rate = asked["seconds"], asked.get("rate", RATE)
        begun, first = time.monotonic(), made
        while (late := time.monotonic() - begun) < seconds:
            clone.set(f"/bench/{made % 100}", b"%d" % made).wait(WAIT_S)
            made += 1
            time.sleep(max(0.0, (made - first) / rate - late))
        pipe.say(sets=made - first, contents=contents(clone))


def contents(clone: Any) -> int:
    """Return a sum over what a Clone holds."""
    return crc32(repr(sorted(clone.items())).encode())


# -- Clones


def following(pipe: Pipe, lists: list[list[str]]) -> None:
    """Follow the servers of each list with a Clone; tell what these Clones hold, and what they took to get it."""
    from chp_client import Clone

    clones = [Clone(servers) for servers in lists]
    longest = [0.0]
    for clone in clones:
        clone.wait_until_synced(2 * WAIT_S)

    def look() -> None:
        while True:
            longest[0] = max(longest[0], *(clone.staleness_s for clone in clones))
            time.sleep(0.1)

    threading.Thread(target=look, daemon=True).start()
    pipe.say(up=len(clones))
    while True:
        if pipe.hear().get("begin"):
            longest[0] = 0.0
        pipe.say(
            contents=sorted({contents(clone) for clone in clones}),
            snapshots=sum(clone.stats["resyncs_snapshot"] for clone in clones),
            resumes=sum(clone.stats.get("resyncs_resumed", 0) for clone in clones),
            stale_s=longest[0],
        )


def _clones(keep: Any, n: int, servers: list[list[str]]) -> list[Role]:
    lists = [servers[i % len(servers)] for i in range(n)]
    parts = [lists[at : at + CLONES_A_PROCESS] for at in range(0, n, CLONES_A_PROCESS)]
    return [keep(Role(following, lists=part)) for part in parts]


def _start(quick: bool) -> dict[str, Any]:
    """Return who made the snapshots when hundreds of Clones joined three new replicas."""
    with closing_all() as keep:
        pair = _pair(keep)
        writer = keep(Role(setting, addresses=pair.addresses))
        writer.hear()
        writer.ask(seconds=2.0)
        before = status(pair.addresses[0])["counts"]["snapshots"]
        replicas = [keep(replica(pair)) for _ in range(REPLICAS)]
        begun = time.monotonic()
        for role in _clones(keep, STARTS[quick], [[each.address] for each in replicas]):
            role.hear(4 * WAIT_S)
        seconds = time.monotonic() - begun
        by_pair = status(pair.addresses[0])["counts"]["snapshots"] - before
        by_replicas = sum(status(each.address)["counts"]["snapshots"] for each in replicas)
    return _case(clones={"seconds": seconds, "snapshots_by_the_pair": by_pair, "snapshots_by_replicas": by_replicas})


def _moves(quick: bool) -> dict[str, Any]:
    """Return how even the loads are, after two empty replicas have begun beside a full one."""
    share = MOVED[quick] // REPLICAS
    with closing_all() as keep:
        pair = _pair(keep)
        ports = [free_port() for _ in range(REPLICAS)]
        servers = [f"tcp://127.0.0.1:{port}" for port in ports]

        def start(port: int, *upstream: str) -> ChpServer:
            most = max(1, share * 11 // 10)
            made: ChpServer = keep(ChpServer(port, replica="yes", upstream=",".join(upstream), readers_max=most))
            return made

        first = start(ports[0], *pair.addresses)
        # The other two replicas listen, but no server runs yet at their upstream address.
        idle = [start(port, f"tcp://127.0.0.1:{free_port()}") for port in ports[1:]]
        roles = _clones(keep, MOVED[quick], [servers])
        for role in roles:
            role.hear(6 * WAIT_S)
        before = status(first.address)["replica"]["readers"]
        for role in roles:
            role.ask(begin=True)
        begun = time.monotonic()
        for port, before_it in zip(ports[1:], idle, strict=True):
            before_it.kill()
            start(port, *pair.addresses)
        up_s = time.monotonic() - begun
        time.sleep(EVEN_S)
        loads = [status(each)["replica"]["readers"] for each in servers]
        told = [role.ask() for role in roles]
    figures: Round = {f"readers_{i + 1}": load for i, load in enumerate(loads)}
    figures |= {
        "readers_before": before, "furthest_from_even": max(abs(load / share - 1) for load in loads), "up_s": up_s,
        "snapshots": sum(each["snapshots"] for each in told), "resumes": sum(each["resumes"] for each in told),
        "stale_s": max(each["stale_s"] for each in told),
    }  # fmt: skip
    return _case(clones=figures)


# -- hops


def _hops(quick: bool) -> dict[str, Any]:
    """Return how much later a record comes at a replica than at the server that it follows."""
    with closing_all() as keep:
        pair = _pair(keep)
        near = keep(replica(pair))
        far = keep(replica(pair, [near.address]))
        writer = keep(Role(setting, addresses=pair.addresses))
        writer.hear()
        role = keep(Role(hearing, ports=[pair.ports[0] + 1, near.port + 1, far.port + 1]))
        role.hear()
        writer.ask(HOP_S[quick] + WAIT_S, seconds=HOP_S[quick])
        later = role.ask(end=True)["later"]
    found = {f"hop {i + 1}": [{**percentiles(each), "records": len(each)}] for i, each in enumerate(later)}
    return {"contenders": {name: summary(each) for name, each in found.items()}, "raw": found}


def hearing(pipe: Pipe, ports: list[int]) -> None:
    """Hear everything from each port; tell how much later each record came than from the port before."""
    readers = {reader.socket.fileno(): reader for reader in map(RawReader, ports)}
    poll = select.epoll()
    for fd, reader in readers.items():
        poll.register(fd, select.EPOLLIN)
        reader.subscribe()
    poll.register(0, select.EPOLLIN)
    at: list[dict[int, float]] = [{} for _ in ports]
    places = {fd: i for i, fd in enumerate(readers)}
    time.sleep(1.0)
    pipe.say(up=True)
    while True:
        for fd, _ in poll.poll():
            now = time.perf_counter()
            if fd == 0:
                pipe.hear()
                later = [[there[n] - here[n] for n in here.keys() & there.keys()] for here, there in pairwise(at)]
                pipe.say(later=later)
                continue
            reader = readers[fd]
            got = reader.rest + reader.socket.recv(1 << 18)
            used, messages, pongs = parsed(got)
            reader.rest = got[used:]
            for pong in pongs:
                reader.socket.sendall(pong)
            for _, number, _ in came(messages).records:
                at[places[fd]].setdefault(number, now)
