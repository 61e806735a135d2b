"""Bursts of commands: the faults of a few seconds of a plan, and what clients do meanwhile.

    split           each server has half of the clients, and a client's link to the other server heals before the link
                    between the peers
    healed          the links of a split heal in any order, and a client may reach both servers before these reach each
                    other
    both_stopped    both servers are stopped for longer than a heartbeat, and go on in any order
    full_disks      disks are full while members of groups have messages in hand, and a server may die meanwhile
    key_removed     a client's key is removed while the client's session, leases and members live; the client may come
                    back with another key
    flooded         a user opens more sessions than the tables hold while clients wait for answers
    intruded        a user tries to take what members of groups have in hand, and their leases
    held            slow members have messages in hand while the active changes; then all is quiet for a while
    crowded         a program subscribes to more channels than it may have, again and again
    late_answers    a server is stopped before it sends answers that its passive has confirmed, and its lease ends

Bursts draw from a generator of their own. So a plan keeps its other commands when a burst is added.
"""

from __future__ import annotations

import random
from collections.abc import Callable

KEYS = ("/a/1", "/a/2", "/a/3", "/b/1", "/b/2", "/lin/x", "/lin/y")
TX_KEYS = ("/x/1", "/x/2", "/x/3", "/b/1")
LEASE_KEYS = ("/l/1", "/l/2", "/l/3")
POINTS = ("saves", "to_peer", "journal", "sync", "publish", "acks", "promises", "confirm", "replies", "end")
Burst = Callable[[random.Random, list[str]], list[str]]


def sent(rng: random.Random, names: list[str]) -> str:
    """Return a command by which a client sends a batch."""
    name = rng.choice(names)
    return rng.choice((
        f"publish {name} t 3", f"publish {name} t 3", f"once {name} {rng.choice(TX_KEYS)}",
        f"set {name} {rng.choice(KEYS)}", f"cset {name} /lin/x", f"reonce {name}", f"retx {name}",
        f"tx {name} +message {rng.choice(TX_KEYS)}",
    ))  # fmt: skip


def split(rng: random.Random, names: list[str]) -> list[str]:
    """Return the commands of one split, which lasts 0.5 to 7 s."""
    first = rng.choice("PB")
    sides = {name: first if i % 2 == 0 else "PB"[first == "P"] for i, name in enumerate(names)}
    out = _parted(rng, sides)
    moved = rng.sample(names, rng.randint(1, len(names)))
    counts = {name: rng.choice(("", "once", "tx")) for name in moved}
    for name in moved:
        out += [f"{counts[name]} {name} {rng.choice(TX_KEYS)}", "tick 0.05"] if counts[name] else []
        out += [f"cut {sides[name]}>{name}", *(sent(rng, [name]) for _ in range(rng.randint(1, 3)))]
    out.append(f"tick {rng.choice((0.03, 0.1)):.2f}")
    for name in moved:
        other = "PB"[sides[name] == "P"]
        out += [f"rejoin {name} {other}", f"tick {rng.choice((0.03, 0.3, 1.2)):.2f}", sent(rng, [name])]
        out += [f"re{counts[name]} {name}"] if counts[name] else []
    out += [f"tick {rng.choice((0.002, 0.03, 0.5, 2.0)):.3f}", "heal P>B", "heal B>P"]
    return [*out, f"tick {rng.choice((0.03, 0.5)):.2f}", "heal *", f"tick {rng.choice((0.3, 2.0)):.1f}"]


def _parted(rng: random.Random, sides: dict[str, str]) -> list[str]:
    out = ["tick 0.6", "split " + " ".join(f"{name}={side}" for name, side in sides.items())]
    for _ in range(rng.randint(1, 4)):
        out += [sent(rng, list(sides)) for _ in range(rng.randint(1, 3))]
        out.append(f"tick {rng.choice((0.03, 0.3, 0.8, 1.5)):.2f}")
    return out


def healed(rng: random.Random, names: list[str]) -> list[str]:
    """Return the commands of a split whose links heal in any order, each direction of the peers' link by itself.

    The link that carries answers to a client breaks first, so the client sends batches again that its server has done.
    The client's link to the other server heals before, between or after the two directions of the peers' link. The
    client then hears both servers, or only the other one.
    """
    sides = {name: rng.choice("PB") for name in names}
    out = _parted(rng, sides)
    heals = [["heal P>B"], ["heal B>P"]]
    for name, side in sides.items():
        other = "PB"[side == "P"]
        again = rng.choice(("", "once", "tx"))
        out += [f"{again} {name} {rng.choice(TX_KEYS)}", "tick 0.05"] if again else []
        out += [f"cut {side}>{name}", *(sent(rng, [name]) for _ in range(rng.randint(1, 2)))]
        both = [f"heal {name}>{other}", f"heal {other}>{name}"]
        rng.shuffle(both)
        reached = rng.choice((both, [*both, f"heal {side}>{name}"], [f"rejoin {name} {other}"]))
        heals.append([*reached, f"tick {rng.choice((0.03, 0.3)):.2f}", f"re{again} {name}" if again else "tick 0.1"])
    rng.shuffle(heals)
    out.append(f"tick {rng.choice((0.03, 0.1)):.2f}")
    for each in heals:
        out += [*each, f"tick {rng.choice((0.002, 0.03, 0.4, 1.2)):.3f}", sent(rng, names)]
    return [*out, "tick 0.03", "heal *", f"tick {rng.choice((0.3, 2.0)):.1f}"]


def both_stopped(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that stop both servers, between two turns or before a step of a turn. They go on in any order."""
    one, other = rng.sample("PB", 2)
    at = rng.choice(("", "", f" at {rng.choice(POINTS[:-1])}"))
    out = [sent(rng, names), f"pause {one}{at}", sent(rng, names), f"tick {rng.choice((0.002, 0.1, 0.5)):.3f}"]
    out += [f"pause {other}", sent(rng, names), f"tick {rng.choice((0.3, 0.8, 1.3, 3.6, 4.5))}", sent(rng, names)]
    one, other = rng.sample((one, other), 2)
    out += [f"resume {one}", f"tick {rng.choice((0, 0.05, 0.3, 1.3, 3.6))}", sent(rng, names), f"resume {other}"]
    return [*out, f"tick {rng.choice((0.1, 0.6))}", sent(rng, names)]


def full_disks(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that fill one disk or both while members of groups have messages in hand."""
    out = [f"publish {rng.choice(names)} t {rng.choice((2, 5))}" for _ in range(rng.randint(1, 3))]
    out.append(f"tick {rng.choice((0.03, 0.1, 0.2, 0.5))}")
    state = rng.choice(("low", "little", "little", "read-only"))
    out += [f"disk {name} {state}" for name in rng.choice(("P", "B", "PB", "PB", "PB"))]
    for _ in range(rng.randint(1, 3)):
        out += [sent(rng, names), f"tick {rng.choice((0.1, 0.3, 0.8))}"]
    if rng.random() < 0.4:
        name = rng.choice("PB")
        out += [f"crash {name}", f"tick {rng.choice((0.3, 1.5))}", f"start {name}", f"tick {rng.choice((0.1, 1.0))}"]
    healed = rng.sample("PB", 2)
    return [*out, f"disk {healed[0]} room", f"tick {rng.choice((0, 0.3, 1.0))}", f"disk {healed[1]} room", "tick 0.3"]


def key_removed(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that remove a client's key while its sets, leases and members are under way."""
    name = rng.choice(names)
    lease = f"K{name}"
    out = [f"lease {name} {lease} 3000", f"set {name} {rng.choice(LEASE_KEYS)} lease={lease}"]
    out += [sent(rng, [name]) for _ in range(rng.randint(1, 4))]
    out += [f"tick {rng.choice((0.002, 0.02, 0.3))}", f"unkey {name}"]
    for _ in range(rng.randint(2, 5)):
        out += [sent(rng, [name]), sent(rng, names), f"tick {rng.choice((0.1, 0.6, 1.2, 3.5))}"]
    if rng.random() < 0.3:
        died = rng.choice("PB")
        out += [f"crash {died}", f"tick {rng.choice((1.5, 4.0))}", f"start {died}"]
    return [*out, *([f"crash {name}", f"start {name}", "tick 0.5", sent(rng, [name])] if rng.random() < 0.6 else [])]


def flooded(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that open more sessions than the tables hold, while a client has not heard what became of a set.

    Before the flood, the client also counts a version. After the flood it counts that version again, and then the next
    version.
    """
    name = rng.choice(names)
    deaf = [f"P>{name}", f"B>{name}"] if rng.random() < 0.6 else []
    out = ["access open", "tick 0.3"]
    out += [f"once {name} {rng.choice(TX_KEYS)}", f"tx {name} {rng.choice(TX_KEYS)}", "tick 0.3"]
    out += [f"cut {way}" for way in deaf]
    out += [f"cset {name} {rng.choice(('/a/1', '/lin/x'))} =0", f"set {name} {rng.choice(KEYS)}", "tick 0.05"]
    for _ in range(rng.randint(1, 3)):
        out += [f"flood {rng.choice((20, 60))}", f"tick {rng.choice((0.05, 0.3))}"]
    out += [f"heal {way}" for way in deaf]
    return [*out, "tick 0.3", f"reonce {name}", f"retx {name}", "tick 0.1", f"once {name} /x/1"]


def intruded(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands by which a user tries to take what members of groups have in hand, also after a takeover."""
    out = ["access open", "tick 0.5"]
    for _ in range(rng.randint(2, 4)):
        out += [f"publish {rng.choice(names)} t {rng.choice((2, 5))}" for _ in range(rng.randint(1, 3))]
        out += [f"tick {rng.choice((0.05, 0.2, 0.6))}", "intrude", f"tick {rng.choice((0.05, 0.6))}"]
        if rng.random() < 0.3:
            name = rng.choice("PB")
            out += [f"crash {name}", f"tick {rng.choice((1.5, 4.0))}", "intrude", f"start {name}", "tick 1.0"]
    return out


def held(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that kill each server while slow members have messages in hand, and then let time pass."""
    out = ["start P", "start B", "heal *", *(f"consume {name} t {rng.choice('gh')}" for name in names), "tick 3.0"]
    for name in rng.sample("PB", 2):
        out += [f"slow {each}" for each in names]
        for _ in range(rng.randint(3, 6)):
            out += [f"publish {rng.choice(names)} t {rng.choice((2, 5))}", f"tick {rng.choice((0.1, 0.3))}"]
        out += [f"crash {name}", "tick 1.5", f"start {name}", "tick 8.0", *(f"quick {each}" for each in names)]
    return out


def crowded(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that break the connections of a program with too many channels. It then subscribes again."""
    out = []
    for _ in range(rng.randint(1, 3)):
        out += [f"reset crowd-{rng.choice('PB')}.upd", sent(rng, names), f"tick {rng.choice((0.05, 0.3, 1.2))}"]
    return out


def late_answers(rng: random.Random, names: list[str]) -> list[str]:
    """Return commands that stop a server before it sends answers, in a pair in sync, until its peer has the lease.

    Late answers of a server that is alone in the arbiter's set do no harm, because its peer can't become active.
    """
    name = rng.choice("PB")
    out = ["trust P", "trust B", "heal *", "start P", "start B", f"tick {rng.choice((2.0, 4.0))}"]
    out += [f"pause {name} at acks", sent(rng, names), sent(rng, names)]
    # The stopped server's session at the arbiter ends after 2 s. A vote then makes the passive active.
    out += ["tick 0.3", sent(rng, names), f"tick {rng.choice((3.6, 5.0))}", sent(rng, names), "tick 1.0"]
    return [*out, f"resume {name}", "tick 0.3"]
