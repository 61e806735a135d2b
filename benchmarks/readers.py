"""10,000 readers: for real as far as this machine goes, and in the virtual network with the costs that were measured.

For real. Raw readers hear everything at ten replicas of a pair in memory. Their number grows, and then the sets a
second, until a reader lacks something, or is more than `BEHIND_MAX_S` late. The costs come from these steps: the
processor time of the replicas, divided by the messages that the readers got.

Virtual. 10,000 virtual readers are at the pair, or at 3, 5 or 10 replicas, with 20 sets a second. Production cores tell
how many messages each server sends, and the costs turn these into processor time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .raw_readers import raw_readers
from .replicas import replica, setting
from .roles import Meter, Pipe, Process, Role, closing_all
from .rounds import Round
from .servers import ChpPair, ChpServer, wait_in_sync
from .virtual_readers import VirtualReaders

REPLICAS = 10
# A step has the number of readers at all replicas, and the sets a second. The first step has one reader at each
# replica, and gives the load of a server without readers.
RATE, SLOW = 20, 2
STEPS = (
    (10, RATE), (300, SLOW), (1000, SLOW), (3000, SLOW), (6000, SLOW), (10_000, SLOW), (10_000, 10), (10_000, RATE),
    (10_000, 50), (10_000, 100),
)  # fmt: skip
QUICK = ((10, RATE), (300, SLOW), (1000, SLOW), (1000, RATE))
SECONDS = (5.0, 3.0)
ASKERS = 300
BEHIND_MAX_S, WAIT_S = 1.0, 60.0
# The steps end when less than this share of the sets of a step was acknowledged.
SETS_MIN = 0.8
SETTLED_S = 0.5
# No step begins later than this after the first one.
REAL_MAX_S = 120.0
LAYOUTS, VIRTUAL_S = (0, 3, 5, 10), 10.0
# whole, quick
VIRTUAL = (10_000, 1000)
Servers = dict[str, list[ChpServer]]


class Costs(NamedTuple):
    """The measured costs: microseconds of processor time, and shares of a core at 20 sets a second."""

    # The cost of a message to a reader that has all records before it.
    message_us: float
    # The cost of the question of a reader that joins, and of the answer.
    answer_us: float
    # The servers of a pair without replicas, a replica without readers, and the active's work for a replica.
    active: float
    passive: float
    replica: float
    feed: float


def run(quick: bool = False) -> dict[str, Any]:
    """Measure, and simulate with what was measured."""
    real, costs, end = _real(quick)
    virtual = {_name(replicas): simulated(replicas, VIRTUAL[quick], costs) for replicas in LAYOUTS}
    cases = {
        "raw readers at ten replicas": {"contenders": real, "end": end},
        f"{VIRTUAL[quick]:,} virtual readers, {RATE} sets a second": {"contenders": virtual},
        "costs": {"contenders": {"chp": costs._asdict()}},
    }
    return {"title": "10,000 readers", "unit": "us", "cases": cases, "markdown": markdown(cases)}


def _name(replicas: int) -> str:
    return f"{replicas} replicas" if replicas else "the pair alone"


# -- for real


def _real(quick: bool) -> tuple[dict[str, Round], Costs, str]:
    """Return what each step took, the costs, and why no further step was made."""
    with closing_all() as keep:
        pair: ChpPair = keep(ChpPair(store="memory:"))
        wait_in_sync(pair)
        writer = keep(Role(setting, addresses=pair.addresses))
        writer.hear()
        servers: Servers = {"active": pair.servers[:1], "passive": pair.servers[1:], "replicas": []}
        alone = _step(servers, writer, [], SECONDS[quick], RATE)
        replicas = servers["replicas"] = [keep(replica(pair)) for _ in range(REPLICAS)]
        answer_us = _answers_us(keep, replicas[0])
        roles: list[Role] = []
        found: dict[str, Round] = {}
        there, joins, end, until = 0, {}, "", time.monotonic() + REAL_MAX_S
        for readers, rate in QUICK if quick else STEPS:
            if readers > there:
                joins = _join(keep, replicas, roles, there, readers)
                there = readers
            step = _step(servers, writer, roles, SECONDS[quick], rate)
            found[f"{readers:,} readers, {rate} sets/s"] = step = {"sets_a_s": rate, **step, **joins}
            print(f"  {step}", flush=True)
            end = _end(step, SECONDS[quick]) or ("there was no time for more" if time.monotonic() > until else "")
            if end:
                break
    return found, _costs(alone, list(found.values()), answer_us), end or "each step kept up"


def _end(step: Round, seconds: float) -> str:
    """Return why no further step is tried, or "" if this one kept up."""
    if step["lost"]:
        return f"{step['lost']} readers lack something"
    if step["sets"] < SETS_MIN * step["sets_a_s"] * seconds:
        return f"only {step['sets'] / seconds:.1f} sets a second were acknowledged"
    late = step["behind_s"] > BEHIND_MAX_S
    return f"the last reader was {step['behind_s']:.1f} s behind" if late else ""


def _join(keep: Any, replicas: list[ChpServer], roles: list[Role], before: int, after: int) -> Round:
    """Let raw readers join those that are there, and return the greetings and the processor time that this took."""
    for role in roles:
        role.ask(begin=True)
    used, begun = -sum(server.cpu_s() for server in replicas), time.monotonic()
    ports, each = [server.port + 1 for server in replicas], (after - before) // len(replicas)
    roles.append(keep(Role(raw_readers, ports=ports, each=each)))
    roles[-1].hear()
    last = -1
    # Wait until no greeting comes any more.
    while last < (got := _told(roles, "greetings")):
        last = got
        time.sleep(SETTLED_S)
    used += sum(server.cpu_s() for server in replicas)
    return {"join_s": time.monotonic() - begun, "join_cpu_s": used, "greetings": got}


def _told(roles: list[Role], what: str) -> int:
    return sum(role.ask()[what] for role in roles)


def _step(servers: Servers, writer: Role, roles: list[Role], seconds: float, rate: int) -> Round:
    """Return what the servers and the readers took while keys were set, and how late the last reader was."""
    groups: dict[str, Sequence[Process]] = {**servers, "readers": roles}
    processes = {f"{name} {i}": each for name, group in groups.items() for i, each in enumerate(group)}
    for role in roles:
        role.ask(begin=True)
    meter, begun = Meter(**processes), time.monotonic()
    sets = writer.ask(seconds + WAIT_S, seconds=seconds, rate=rate)["sets"]
    written = time.monotonic()
    told = [role.ask() for role in roles]
    used, took_s = meter.read(1), time.monotonic() - begun
    messages = sum(each["messages"] for each in told)
    while any(each["records"] < sets for each in told) and time.monotonic() - written < 10 * BEHIND_MAX_S:
        told = [role.ask() for role in roles]
    behind_s = time.monotonic() - written
    lost = sum(each["holes"] + (each["records"] < sets) for each in told)
    shares: Round = {
        name: sum(used[f"{name} {i}_cpu_us"] for i in range(len(group))) / took_s / 1e6
        for name, group in groups.items()
    }
    return {**shares, "sets": sets, "messages_a_s": messages / took_s, "behind_s": behind_s, "lost": lost}


def _answers_us(keep: Any, server: ChpServer) -> float:
    """Return the processor time of a server for a question and its answer."""
    before = server.cpu_s()
    keep(Role(asking, address=server.address, clients=ASKERS)).hear()
    return (server.cpu_s() - before) / ASKERS * 1e6


def asking(pipe: Pipe, address: str, clients: int) -> None:
    """Ask for everything on `clients` connections, as new Clones do."""
    import zmq

    from chp_client.core.question import Question

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, clients + 10)
    questions = []
    for i in range(clients):
        socket = context.socket(zmq.DEALER)
        socket.connect(address)
        questions.append((socket, Question(i + 1, b"", {"from": 0, "credit": 4})))
        socket.send_multipart(questions[-1][1].frames)
    for socket, question in questions:
        while not question.over:
            question.hear(address, socket.recv_multipart())
    pipe.say(asked=clients)
    pipe.hear()


def _costs(alone: Round, steps: list[Round], answer_us: float) -> Costs:
    """Return the costs, from the steps that kept up: two at one rate with few and many readers, and one without."""
    empty, *rest = steps
    slow = [step for step in rest if step["sets_a_s"] == SLOW and not step["lost"]]
    if len(slow) < 2:
        raise RuntimeError("fewer than two steps kept up, so the cost of a message is not known")
    few, many = slow[0], slow[-1]
    message_us = (many["replicas"] - few["replicas"]) / (many["messages_a_s"] - few["messages_a_s"]) * 1e6
    return Costs(
        message_us=message_us,
        answer_us=answer_us,
        active=alone["active"],
        passive=alone["passive"],
        replica=empty["replicas"] / REPLICAS,
        feed=max(0.0, empty["active"] - alone["active"]) / REPLICAS,
    )


# -- virtual


def simulated(replicas: int, readers: int, costs: Costs) -> Round:
    """Return what servers send to virtual readers, its share of a core, and how many readers a lost replica moves."""
    virtual = VirtualReaders(replicas, readers, RATE)
    start, steady = virtual.start(), virtual.steady(VIRTUAL_S)

    def share(role: str, more: float = 1.0) -> float:
        return float(getattr(costs, role) + more * steady[f"{role}_to_readers_a_s"] * costs.message_us / 1e6)

    def seconds(joined: dict[str, int], used: float) -> float | None:
        work_us = joined["greetings_each"] * costs.message_us + joined["answers_each"] * costs.answer_us
        return work_us / 1e6 / (1 - used) if used < 1 else None

    shares = {"active": share("active") + replicas * costs.feed, "passive": share("passive")}
    found: Round = {**steady, **shares, **{f"start_{name}": n for name, n in start.items()}}
    if not replicas:
        return {**found, "start_s": seconds(start, shares["active"])}
    lost, after = virtual.lose(), share("replica", replicas / (replicas - 1))
    found |= {"replica": share("replica"), "replica_after_a_loss": after, "start_s": seconds(start, share("replica"))}
    return found | {f"loss_{name}": n for name, n in lost.items()} | {"loss_s": seconds(lost, after)}


# -- the tables


def markdown(cases: dict[str, Any]) -> list[str]:
    """Return the tables of docs/operations/growing.md, line by line."""
    real, virtual, costs = cases.values()
    (cost,) = costs["contenders"].values()
    return [
        "| readers at | readers, messages/s of each | share of a core: active, passive, each replica | "
        "snapshots by the pair, by replicas | a start | a lost replica moves | in sync again |",
        "|---|---|---|---|---|---|---|",
        *(_virtual_row(name, found) for name, found in virtual["contenders"].items()),
        "",
        f"A message costs {cost['message_us']:.1f} us, and a question with its answer {cost['answer_us']:.0f} us.",
        "",
        "| for real | messages/s | us a message | share of a core: active, passive, ten replicas, readers | behind |",
        "|---|---|---|---|---|",
        *(_real_row(name, step) for name, step in real["contenders"].items()),
        "",
        f"No further step was tried: {real['end']}.",
    ]


def _virtual_row(name: str, found: Round) -> str:
    role = "replica" if "replica" in found else "active"
    shares = ", ".join(_percent(found[each]) if each in found else "-" for each in ("active", "passive", "replica"))
    by_pair, moved, again = found["start_snapshots_by_the_pair"], "-", "-"
    by_replicas = found["start_snapshots"] if role == "replica" else 0
    if role == "replica":
        resumes, snapshots = found["loss_resumes"], found["loss_snapshots"]
        after = _percent(found["replica_after_a_loss"])
        moved = f"{found['loss_moved']:,} readers: {resumes:,} resumes, {snapshots:,} snapshots; then {after}"
        again = _seconds(found["loss_s"])
    each = f"{found['readers_each']:,}, {found[f'{role}_to_readers_a_s']:,.0f}"
    start = _seconds(found["start_s"])
    return f"| {name} | {each} | {shares} | {by_pair:,}, {by_replicas:,} | {start} | {moved} | {again} |"


def _real_row(name: str, step: Round) -> str:
    shares = ", ".join(_percent(step[role]) for role in ("active", "passive", "replicas", "readers"))
    us = step["replicas"] / step["messages_a_s"] * 1e6
    return f"| {name} | {step['messages_a_s']:,.0f} | {us:.1f} | {shares} | {step['behind_s']:.2f} s |"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"
