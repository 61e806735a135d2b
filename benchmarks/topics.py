"""Topics on a durable pair beside Redis Streams: messages published, acknowledged and consumed, each acknowledged too.

    1 + 1, 1 + 10     one publisher (`publish_many` of 1,000), one consumer; or ten that share a group, with 5,000 keys
    singly            the first of these by `publish`, one message a call
    10 groups         one publisher, and ten groups of one consumer: the rate counts what was delivered
    steps             each batch's acknowledgement is one record with a key and as many messages to another topic, and
                      is awaited before the next batch is taken; with Redis a MULTI of XACK, SET and XADDs
    two partitions    1,000 messages with two keys through a group of two, as a source asks: its bound is one second
    rebalance         members of a group go from one to ten and back beside 100,000 messages/s: the longest silence
    uneven            three members, one of them ten times slower: their rate as a part of the sum of their own rates
    drain             a backlog that was published while no consumer was there, and the servers' memory with it
    scheduled         a million messages wait, and some of them are due at 10,000/s: how late each is published, and
                      what the servers cost while all wait, beside a topic where none waits
    latency           from `publish` at 1,000/s to the handler, beside one durable set after another on the same pair

Messages have 100 bytes. Each server of the pair has a journal with --sync always. Redis has appendfsync always, one
disk, and no replica. A rate counts from the first `publish` until the last acknowledgement of publisher and consumers.
Every round asserts that all messages came, once, and that those of each key came in order. Redis promises no order of
keys, so its order is not checked.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from .roles import Meter, Process, Role, closing_all
from .rounds import Round, in_turn, percentiles, ratio, summary
from .servers import ChpPair, Redis, redis_program, wait_in_sync
from .topic_roles import awaiter, consumer, flow, handler, member, pacer, publisher, scheduler, worker


@dataclass(frozen=True)
class Kind:
    """A kind of case: what it does, and the number of messages of a round for us and for Redis."""

    messages: int
    redis_messages: int
    groups: int = 1
    consumers: int = 1  # in each
    keys: int = 0
    singly: bool = False
    steps: bool = False


TWO_PARTITIONS = "1,000 messages, two keys, two consumers in a group, within a second"
CASES = {
    "1 producer, 1 consumer": Kind(1_000_000, 50_000),
    "1 producer, one message a call, 1 consumer": Kind(500_000, 50_000, singly=True),
    "1 producer, 10 consumers in a group, 5,000 keys in order": Kind(500_000, 50_000, consumers=10, keys=5000),
    TWO_PARTITIONS: Kind(1000, 1000, consumers=2, keys=2),
    "1 producer, 10 groups, delivered": Kind(300_000, 10_000, groups=10),
    "1 consumer, each batch one record: done, a key, as many messages": Kind(300_000, 50_000, steps=True),
}
BACKLOG = (5_000_000, 300_000)  # whole, quick
# Redis keeps its backlog in memory, so its backlog is smaller.
BACKLOG_REDIS = (200_000, 50_000)
# The messages that are scheduled, and the seconds in which 10,000 of them are due each second.
SCHEDULED = ((1_000_000, 20), (100_000, 3))
DUE_A_SECOND, IDLE_S = 10_000, 10.0
HANDLED, SET, SET_BESIDE = "chp publish to handler", "chp set", "chp set, beside 1,000 messages/s"
_topics = itertools.count(1)


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    cases = {name: _case(kind, quick) for name, kind in CASES.items()}
    cases[f"a backlog of {BACKLOG[quick]:,}, drained"] = drained(quick)
    cases[f"{SCHEDULED[quick][0]:,} scheduled, and 10,000/s due"] = scheduled(quick)
    cases["publish to handler at 1,000/s, and awaited sets"] = latency(quick)
    cases["a group from 1 to 10 and back to 1 member, the longest silence"] = rebalanced(quick)
    cases["3 members, one ten times slower: their rate as a part of the sum"] = uneven(quick)
    return {"title": "Topics, durable on both disks", "unit": "messages/s", "cases": cases}


def _case(kind: Kind, quick: bool) -> dict[str, Any]:
    share, rounds = (10, 2) if quick and kind.messages > 1000 else (1, 5)
    with closing_all() as keep:
        lanes = {store: keep(Lane(store, kind)) for store in ("chp", "redis") if _is_there(store)}
        for lane in lanes.values():
            # The first round warms everything up.
            lane.round(20_000)
        sizes = {"chp": kind.messages // share, "redis": kind.redis_messages // share}
        work = {store: partial(lane.round, sizes[store]) for store, lane in lanes.items()}
        results = in_turn(work, rounds)
    return _compared(results)


def _is_there(store: str) -> bool:
    return store == "chp" or redis_program() is not None


def _compared(results: dict[str, list[Round]]) -> dict[str, Any]:
    case: dict[str, Any] = {"contenders": {who: summary(rounds) for who, rounds in results.items()}, "raw": results}
    if "redis" in results:
        case["ratio_to_redis_streams"] = ratio(results, "rate", "chp", "redis")
    return case


def _started(store: str) -> tuple[Any, str, dict[str, Process]]:
    """Return a store, the address to connect to, and its processes."""
    if store == "redis":
        redis = Redis("--appendonly", "yes", "--appendfsync", "always")
        return redis, str(redis.port), {"server": redis}
    pair = ChpPair(sync="always")
    wait_in_sync(pair)
    return pair, ",".join(pair.addresses), dict(zip(("server", "backup"), pair.servers, strict=True))


class Lane:
    """A store, a publisher and its consumers, kept running over the rounds."""

    def __init__(self, store: str, kind: Kind) -> None:
        self.store, self.kind = store, kind
        self.server, address, processes = _started(store)
        self.names = [f"g{g}" for g in range(kind.groups)]
        self.consumers = [
            (name, Role(consumer, kind=store, address=address)) for name in self.names for _ in range(kind.consumers)
        ]
        self.publisher = Role(publisher, kind=store, address=address)
        for role in (self.publisher, *(role for _, role in self.consumers)):
            role.hear()
        self._processes = processes | {"publisher": self.publisher}

    def round(self, messages: int) -> Round:
        """Return one measurement."""
        kind, topic = self.kind, f"t{next(_topics)}"
        self.publisher.ask(messages=messages, keys=kind.keys, singly=kind.singly, topic=topic, groups=self.names)
        for name, role in self.consumers:
            role.ask(topic=topic, group=name, keyed=kind.keys > 0 and self.store == "chp", steps=kind.steps)
        meter = Meter(**self._processes)
        each = Meter(**{f"consumer{i}": role for i, (_, role) in enumerate(self.consumers)})
        published = self.publisher.ask(300, go=True)
        for _, role in self.consumers:
            role.say(all=True)
        took = [role.hear(120) for _, role in self.consumers]
        self.publisher.ask(gone=topic)
        return figures(published, took, messages * kind.groups) | meter.read(messages) | {
            "consumers_cpu_us": sum(each.read(messages).values())
        }  # fmt: skip

    def close(self) -> None:
        """End all."""
        for process in (self.publisher, *(role for _, role in self.consumers), self.server):
            process.close()


def figures(published: Round, took: list[Round], due: int) -> Round:
    """Return the figures of a round. Raise AssertionError if a message was lost, came twice or out of order."""
    counts = [each["count"] for each in took]
    assert sum(counts) == due, f"{sum(counts):,} messages were consumed, and {due:,} were due: {counts}"
    assert all(each["in_order"] for each in took), "messages of a key came out of their order"
    seconds = max(published["end"], *(each["last"] for each in took)) - published["begin"]
    return {
        "rate": due / seconds,
        "seconds": seconds,
        "published_rate": published["rate"],
        "shares": max(counts) / max(1, min(counts)),
    }


# -- a backlog


def drained(quick: bool) -> dict[str, Any]:
    """Publish a backlog before any consumer comes; then let several groups drain it, one after the other."""
    rounds = 2 if quick else 5
    with closing_all() as keep:
        lanes = {store: keep(Backlog(store, quick, rounds)) for store in ("chp", "redis") if _is_there(store)}
        results = in_turn({store: lane.round for store, lane in lanes.items()}, rounds)
        case = _compared(results)
        for store, lane in lanes.items():
            case["contenders"][store] |= lane.filled
    return case


class Backlog:
    """A backlog of messages, and by how much the memory of each server grew with it."""

    def __init__(self, store: str, quick: bool, rounds: int) -> None:
        self.server, address, processes = _started(store)
        self.messages = (BACKLOG if store == "chp" else BACKLOG_REDIS)[quick]
        self.groups = iter([f"g{i}" for i in range(rounds)])
        self.publisher, self.consumer = (Role(role, kind=store, address=address) for role in (publisher, consumer))
        self.publisher.hear()
        self.consumer.hear()
        before = {name: process.memory_bytes() for name, process in processes.items()}
        names = [f"g{i}" for i in range(rounds)]
        self.publisher.ask(messages=self.messages, keys=0, singly=False, topic="backlog", groups=names)
        published = self.publisher.ask(600, go=True)
        self.filled: Round = {"messages": self.messages, "published_rate": published["rate"]}
        for name, process in processes.items():
            self.filled[f"{name}_grew_mb"] = (process.memory_bytes() - before[name]) / 1e6

    def round(self) -> Round:
        """Let one group take the whole backlog, and return the figures."""
        begin = time.monotonic()
        self.consumer.ask(topic="backlog", group=next(self.groups), keyed=False, steps=False)
        took = self.consumer.ask(300, all=True)
        return figures({"begin": begin, "end": begin, "rate": self.filled["published_rate"]}, [took], self.messages)

    def close(self) -> None:
        """End all."""
        for process in (self.publisher, self.consumer, self.server):
            process.close()


# -- messages that wait for their time


def scheduled(quick: bool) -> dict[str, Any]:
    """Schedule messages of which some are due later at a pace; return how late these were published."""
    messages, due_s = SCHEDULED[quick]
    with closing_all() as keep:
        pair, address, processes = _started("chp")
        keep(pair)
        role = keep(Role(scheduler, address=address))
        role.hear()
        waits = {"chp, none waits": _idle(processes)}
        begin = time.monotonic()
        role.ask(600, messages=messages - due_s * DUE_A_SECOND)
        took_s = time.monotonic() - begin
        waits[f"chp, {messages:,} wait"] = _idle(processes)
        meter = Meter(**processes)
        figures = role.ask(300, pace=DUE_A_SECOND, seconds=due_s) | meter.read(due_s * DUE_A_SECOND)
    figures["scheduled_rate"] = (messages - due_s * DUE_A_SECOND) / took_s
    return {"contenders": {"chp, due": figures, **waits}, "raw": {}}


def _idle(processes: dict[str, Process]) -> Round:
    """Return the processor time of the servers while nothing happens, in milliseconds a second."""
    time.sleep(1.0)
    meter = Meter(**processes)
    time.sleep(IDLE_S)
    return {
        f"{name}_idle_ms_a_s": us / IDLE_S / 1e3 for name, us in zip(processes, meter.read(1).values(), strict=True)
    }


# -- how long one message takes


def latency(quick: bool) -> dict[str, Any]:
    """Measure `publish` to the handler, and an awaited set, on one pair in turn; for Redis, XADD to its reader."""
    messages, rounds = (500, 2) if quick else (3000, 5)
    with closing_all() as keep:
        pair, address, _ = _started("chp")
        keep(pair)
        handled, awaited = keep(Handled("chp", address)), keep(Awaited(address))
        contenders: dict[str, Any] = {HANDLED: handled, SET: awaited, SET_BESIDE: Beside(handled, awaited)}
        if _is_there("redis"):
            redis, port, _ = _started("redis")
            keep(redis)
            contenders["redis XADD to reader"] = keep(Handled("redis", port))
        for lane in contenders.values():
            lane.round(200)
        results = in_turn({name: partial(lane.round, messages) for name, lane in contenders.items()}, rounds)
    case: dict[str, Any] = {"contenders": {who: summary(each) for who, each in results.items()}, "raw": results}
    for name, key in ((SET, "ratio_to_awaited_sets"), (SET_BESIDE, "ratio_to_awaited_sets_beside")):
        case[key] = ratio(results, "p50_us", HANDLED, name)
    return case


class Handled:
    """A publisher that keeps a pace, and a consumer."""

    def __init__(self, store: str, address: str) -> None:
        self.consumer = Role(handler, kind=store, address=address)
        self.consumer.hear()
        self.publisher = Role(pacer, kind=store, address=address)
        self.publisher.hear()

    def round(self, messages: int) -> Round:
        """Return one measurement."""
        self.consumer.say(messages=messages)
        self.publisher.ask(messages=messages)
        return percentiles(self.consumer.hear()["took"])

    def close(self) -> None:
        """End both."""
        self.publisher.close()
        self.consumer.close()


class Beside:
    """Awaited sets while 1,000 messages a second are published."""

    def __init__(self, handled: Handled, awaited: Awaited) -> None:
        self._handled, self._awaited = handled, awaited

    def round(self, messages: int) -> Round:
        """Return one measurement."""
        self._handled.consumer.say(messages=messages)
        self._handled.publisher.say(messages=messages)
        took = self._awaited.round(messages // 10)
        self._handled.publisher.hear()
        self._handled.consumer.hear()
        return took


class Awaited:
    """A client that awaits one set after another."""

    def __init__(self, address: str) -> None:
        self.client = Role(awaiter, address=address)
        self.client.hear()

    def round(self, sets: int) -> Round:
        """Return one measurement."""
        return percentiles(self.client.ask(sets=sets)["took"])

    def close(self) -> None:
        """End it."""
        self.client.close()


# -- members that come and go


def rebalanced(quick: bool) -> dict[str, Any]:
    """Run one member, then ten, then one. Return the longest time without a delivery of the steady messages."""
    rounds = 2 if quick else 5
    with closing_all() as keep:
        pair, address, _ = _started("chp")
        keep(pair)
        changing = keep(Changing(address))
        changing.round(steady=True)
        work = {"chp, always 1 member": partial(changing.round, steady=True), "chp, 1 to 10 to 1": changing.round}
        results = in_turn(work, rounds)
    return {"contenders": {who: summary(each) for who, each in results.items()}, "raw": results}


class Changing:
    """Ten programs that may be members, and a publisher that keeps a pace."""

    def __init__(self, address: str) -> None:
        self.members = [Role(member, address=address) for _ in range(10)]
        self.publisher = Role(flow, address=address)
        for role in (self.publisher, *self.members):
            role.hear()

    def round(self, *, steady: bool = False) -> Round:
        """Run one member for 3 s, ten for 3 s, one for 3 s; raise AssertionError unless every message comes once."""
        topic = f"t{next(_topics)}"
        self.publisher.ask(topic=topic)
        first, *others = self.members
        first.ask(topic=topic)
        self.publisher.say(go=True)
        time.sleep(3)
        coming = [] if steady else others
        for role in coming:
            role.say(topic=topic)
        time.sleep(3)
        for role in coming:
            role.hear()
            role.say(all=False)
        took = [role.hear() for role in coming]
        time.sleep(3)
        published = self.publisher.ask(stop=True)
        took.append(first.ask(60, all=True))
        assert sum(each["count"] for each in took) == published["count"], "a message was lost, or came twice"
        times = sorted(at for each in took for at in each["times"] if at <= published["end"])
        silences = [after - before for before, after in itertools.pairwise(times)]
        return {"longest_silence_ms": max(silences) * 1e3, "messages": published["count"], "rate": published["rate"]}

    def close(self) -> None:
        """End all."""
        for role in (self.publisher, *self.members):
            role.close()


# -- members of different speed


# The messages that each member does in a second, the number of keys, and the seconds of work for all of them together.
SPEEDS, UNEVEN_KEYS = (1000, 1000, 100), 5000
WORK_S = (40, 20)  # whole, quick


def uneven(quick: bool) -> dict[str, Any]:
    """Let three members share a backlog. Return their rate as a part of the sum of their own rates."""
    with closing_all() as keep:
        pair, address, _ = _started("chp")
        keep(pair)
        lane = keep(Uneven(address, WORK_S[quick]))
        results = in_turn({"chp": lane.round}, 1 if quick else 3)
    return {"contenders": {who: summary(each) for who, each in results.items()}, "raw": results}


class Uneven:
    """Members that take different times for a message."""

    def __init__(self, address: str, work_s: int) -> None:
        self.members = [Role(worker, address=address, rate=rate) for rate in SPEEDS]
        self.publisher = Role(publisher, kind="chp", address=address)
        for role in (self.publisher, *self.members):
            role.hear()
        self._messages = work_s * sum(SPEEDS) // 1000 * 1000

    def round(self) -> Round:
        """Return one measurement; raise AssertionError unless every message is handled once."""
        topic = f"t{next(_topics)}"
        self.publisher.ask(messages=self._messages, keys=UNEVEN_KEYS, singly=False, topic=topic, groups=["g"])
        self.publisher.ask(300, go=True)
        for role in self.members:
            role.ask(topic=topic)
        begin = time.monotonic()
        for role in self.members:
            role.say(go=True)
        took = [role.hear(600) for role in self.members]
        self.publisher.ask(gone=topic)
        counts = [each["count"] for each in took]
        assert sum(counts) == self._messages, f"{sum(counts):,} of {self._messages:,} messages were done: {counts}"
        rate = self._messages / (max(each["last"] for each in took) - begin)
        return {"part_of_sum": rate / sum(SPEEDS), "rate": rate, "slow_did": counts[-1], "messages": self._messages}

    def close(self) -> None:
        """End all."""
        for role in (self.publisher, *self.members):
            role.close()
