"""How long one client's work holds up all others: the server's longest turn, and a bystander's longest awaited set.

Each row is what an ordinary client may do with a large map: join it, or a subtree of it, alone or five at once; end a
lease of many keys; delete everything; commit staged rows; let a great many ttls end at one moment; set values of
16 MiB; back up, restore; open a thousand subtrees. The longest turn is processor time of the serving thread, as the
server itself counts it (`chp status`), so a busy machine does not change it. A bystander sets one key and waits, again
and again. In the first row no other client does anything.

The last case is the nightly reload of a table: all keys of a durable pair are set a second time, while another client
joins and the servers write snapshots of their journals. It is measured beside the first fill, in processor time.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from chp.batch import Segment
from chp.columns import STAGE

from .roles import Meter, Pipe, Role, closing_all
from .rounds import Round
from .servers import ChpPair, ChpServer, status, wait_in_sync

VALUE = b"v" * 100
BATCH = 10_000
SIZES = (3_000_000, 300_000)  # keys: whole, quick
LARGE = (16 << 20) - 1024
RELOADED = (1_000_000, 200_000)


def run(quick: bool = False) -> dict[str, Any]:
    """Measure each row on a server of its own."""
    keys = SIZES[quick]
    rows: list[tuple[str, Callable[[Role, int], object]]] = [
        ("nothing", lambda role, n: time.sleep(3)),
        ("a join of a subtree of all keys but one", lambda role, n: role.ask(300, act="join", subtrees=["/s/"])),
        ("a join of everything", lambda role, n: role.ask(300, act="join", subtrees=[""])),
        ("five joins at once", lambda role, n: role.ask(600, act="join", subtrees=["/s/"] * 5)),
        ("1,000 subtrees", lambda role, n: role.ask(600, act="subtrees")),
        ("a lease of a third of the keys is closed", lambda role, n: role.ask(600, act="lease", n=n // 3)),
        ("a third of the keys end by ttl at one moment", lambda role, n: role.ask(600, act="ttl", n=n // 3)),
        ("ten values of 16 MiB", lambda role, n: role.ask(300, act="large")),
        ("a commit of a third as many staged rows", lambda role, n: role.ask(300, act="commit", n=n // 3)),
        ("backup", lambda role, n: role.ask(600, act="admin", command="backup")),
        ("clear", lambda role, n: role.ask(600, act="clear")),
    ]
    cases = {f"{name}, {keys:,} keys": _row(keys, act) for name, act in rows}
    again = RELOADED[quick]
    cases[f"{again:,} keys set again in batches of 1,000 on a durable pair"] = _reload(again)
    return {"title": "The longest turn, and the longest awaited set of a bystander", "unit": "ms", "cases": cases}


def _row(keys: int, act: Callable[[Role, int], object]) -> dict[str, Any]:
    with closing_all() as keep, tempfile.TemporaryDirectory(prefix="chp-bench-") as scratch:
        server = keep(ChpServer(data=scratch))
        doer = keep(Role(client, port=server.port, fill=keys))
        doer.hear(600)
        bystander = keep(Role(bystanding, port=server.port))
        bystander.hear()
        before = _turns(server)
        bystander.say(go=True)
        began = time.monotonic()
        act(doer, keys)
        took_s = time.monotonic() - began
        bystander.say(go=False)
        figures = bystander.hear(300)
        after = _turns(server)
    more = after["longest_ms"] > before["longest_ms"]
    row: Round = {
        "longest_turn_ms": after["longest_ms"] if more else _bound(before, after),
        "turns_above_50_ms": _more(before, after)["50"],
        "filling_longest_turn_ms": before["longest_ms"],
        "bystander_longest_ms": figures["longest_ms"],
        "bystander_p50_us": figures["p50_us"],
        "p50_us": figures["longest_ms"] * 1000,
        "p99_us": figures["longest_ms"] * 1000,
        "took_s": took_s,
    }
    return {"contenders": {"chp": {"rounds": 1, **row}}, "raw": {"chp": [row]}, "did": after["longest_did"]}


def _reload(keys: int) -> dict[str, Any]:
    """Fill a durable pair, and set all of its keys again while another client joins."""
    made: dict[str, Round] = {}
    with closing_all() as keep:
        pair = keep(ChpPair(sync="always"))
        wait_in_sync(pair)
        writer = keep(Role(reloading, addresses=pair.addresses, keys=keys))
        writer.hear()
        bystander = keep(Role(bystanding, port=pair.ports[0]))
        bystander.hear()
        for name in ("first fill", "set again"):
            turns = [_turns(server) for server in pair.servers]
            meter = Meter(active=pair.servers[0], passive=pair.servers[1])
            bystander.say(go=True)
            took_s = writer.ask(600, joins=name == "set again")["took_s"]
            bystander.say(go=False)
            figures = bystander.hear(300)
            ended = [_turns(server) for server in pair.servers]
            made[name] = {
                "took_s": took_s,
                **{
                    name: us * keys / 1e6
                    for name, us in zip(("active_cpu_s", "passive_cpu_s"), meter.read(keys).values(), strict=True)
                },
                "turns_above_50_ms": _more(turns[0], ended[0])["50"],
                "passive_turns_above_50_ms": _more(turns[1], ended[1])["50"],
                "longest_turn_ms": ended[0]["longest_ms"],
                "bystander_p50_us": figures["p50_us"],
                "bystander_longest_ms": figures["longest_ms"],
                "p50_us": figures["p50_us"],
                "p99_us": figures["longest_ms"] * 1000,
            }
    raw = {name: [row] for name, row in made.items()}
    return {"contenders": {name: {"rounds": 1, **row} for name, row in made.items()}, "raw": raw}


def _turns(server: ChpServer) -> dict[str, Any]:
    facts: dict[str, Any] = status(server.address, 60_000)["turns"]
    return facts


def _more(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    return {ms: after["above_ms"][ms] - n for ms, n in before["above_ms"].items()}


def _bound(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the lowest bound of the histogram that no turn exceeded between two states."""
    return next(float(ms) for ms, n in _more(before, after).items() if n == 0)


def bystanding(pipe: Pipe, port: int) -> None:
    """Set one key and wait, again and again, until the parent says stop; answer with the longest wait."""
    from chp_client import Clone

    clone = Clone(f"tcp://127.0.0.1:{port}", subtree="/bystander/")
    clone.wait_until_synced(timeout=300)
    pipe.say(up=True)
    while True:
        pipe.hear()
        took = []
        while not select.select([sys.stdin], [], [], 0)[0]:
            begin = time.monotonic()
            clone.set("/bystander/x", VALUE).wait(300)
            took.append(time.monotonic() - begin)
        pipe.hear()
        ordered = sorted(took)
        pipe.say(longest_ms=round(ordered[-1] * 1000, 1), p50_us=round(ordered[len(ordered) // 2] * 1e6))


def reloading(pipe: Pipe, addresses: list[str], keys: int) -> None:
    """Set all keys at each message of the parent, beside a joining Clone if it says so; answer with the seconds."""
    from chp_client import Clone

    with Clone(addresses, subtree=None) as clone:
        pipe.say(up=True)
        while True:
            joins = pipe.hear()["joins"]
            others = [Clone(addresses)] if joins else []
            began = time.monotonic()
            for at in range(0, keys, 1000):
                clone.set_many(([f"/s/{i:08d}" for i in range(at, at + 1000)], [VALUE] * 1000))
            clone.flush(timeout=600)
            took_s = time.monotonic() - began
            for other in others:
                other.close()
            pipe.say(took_s=took_s)


def client(pipe: Pipe, port: int, fill: int) -> None:
    """Fill the map, then do what the parent says."""
    from chp_client import Clone

    address = f"tcp://127.0.0.1:{port}"
    with Clone(address, subtree=None) as clone:
        for at in range(0, fill, BATCH):
            n = min(BATCH, fill - at)
            clone.set_many(([f"/s/{i:08d}" for i in range(at, at + n)], [VALUE] * n))
        clone.set("/other", b"one")
        clone.flush(timeout=600)
        pipe.say(up=True)
        while True:
            words = pipe.hear()
            ACTS[words.pop("act")](address, clone, **words)
            pipe.say(done=True)


def _join(address: str, _: Any, subtrees: list[str], act: str = "") -> None:
    from chp_client import Clone

    clones = [Clone(address, subtree=subtree) for subtree in subtrees]
    for clone in clones:
        clone.wait_until_synced(timeout=600)
    for clone in clones:
        clone.close()


def _subtrees(address: str, clone: Any) -> None:
    from chp_client import Clone

    groups = [[f"/t{i + j}/" for j in range(50)] for i in range(0, 1000, 50)]
    clones = [Clone(address, subtrees=group) for group in groups]
    for each in clones:
        each.wait_until_synced(timeout=600)
    for at in range(0, 100_000, 1000):
        clone.set_many(([f"/s/{i:08d}" for i in range(at, at + 1000)], [VALUE] * 1000))
    clone.flush(timeout=600)
    for each in clones:
        each.close()


def _lease(_: str, clone: Any, n: int) -> None:
    lease = clone.lease(ttl=600)
    for at in range(0, n, BATCH):
        lease.set_many(([f"/l/{i:08d}" for i in range(at, at + BATCH)], [VALUE] * BATCH))
    clone.flush(timeout=600)
    lease.close()
    clone.flush(timeout=600)


def _ttl(_: str, clone: Any, n: int) -> None:
    until = time.monotonic() + 10 + n / 200_000
    for at in range(0, n, BATCH):
        keys = [f"/x/{i:08d}" for i in range(at, at + BATCH)]
        clone.set_many((keys, [VALUE] * BATCH), ttl=max(1.0, until - time.monotonic()))
    clone.flush(timeout=600)
    time.sleep(max(0.0, until - time.monotonic()) + 5)


def _large(_: str, clone: Any) -> None:
    for i in range(10):
        clone.set(f"/large/{i}", b"x" * LARGE)
    clone.flush(timeout=600)


def _commit(address: str, _: Any, n: int) -> None:
    from chp_client.spark import staging

    transaction, writer, tickets = os.urandom(16), staging.writer_of([address]), []
    for at in range(0, n, BATCH):
        keys = [f"/c/{i:08d}" for i in range(at, at + BATCH)]
        tickets.append(writer.put_encoded(Segment(keys, [VALUE] * BATCH, {STAGE: [transaction, "0"]}).encode(), 600))
    for ticket in tickets:
        ticket.wait(600)
    staging.commit([address], transaction, "", 1, [("0", len(tickets))], None, 600)
    time.sleep(5)


def _admin(address: str, _: Any, command: str) -> None:
    from chp_client.port.admin import Admin

    with Admin([address], timeout_s=600) as admin:
        admin.ask(address, command)


def _clear(address: str, _: Any) -> None:
    from chp_client import Clone

    with Clone(address) as everything:
        everything.wait_until_synced(timeout=600)
        everything.clear()
        everything.flush(timeout=600)


ACTS: dict[str, Any] = {
    "join": _join, "subtrees": _subtrees, "lease": _lease, "ttl": _ttl, "large": _large, "admin": _admin,
    "clear": _clear, "commit": _commit,
}  # fmt: skip
