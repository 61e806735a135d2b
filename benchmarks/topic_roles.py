"""Publishers and consumers of topics of a pair, or of Redis Streams, each in a process of its own (topics.py).

Before a round begins, they make everything ready: messages, topics, groups, members.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from .latency import KEYS as AWAITED_KEYS
from .roles import Pipe

SIZE, BATCH, KEYS = 100, 1000, 5000
# Without keys, this many values are distinct, and then they repeat.
CYCLE = 100_000
PACE_S = 0.001
# Redis' publisher sends this many batches in one pipeline, like a window.
AHEAD = 10
# A consumer has everything if all is published and it gets nothing for this long.
IDLE_S = 0.5
# A worker leaves if it gets nothing for this long. It waits so long because slots may still move to it.
WORKER_IDLE_S = 10.0
_STAMP = struct.Struct("<d")


def publisher(pipe: Pipe, kind: str, address: str) -> None:
    """Publish batches of 1,000; answer with the rate until the last acknowledgement."""
    store = STORES[kind](address)
    pipe.say(up=True)
    for words in iter(pipe.hear, None):
        if "gone" in words:
            store.remove(words["gone"])
            pipe.say(gone=True)
            continue
        topic, n = words["topic"], words["messages"]
        store.make(topic, words["groups"])
        work = _work(n, words["keys"])
        publish = store.publish_singly if words["singly"] else store.publish
        pipe.say(ready=True)
        pipe.hear()
        begin = time.monotonic()
        publish(topic, work)
        end = time.monotonic()
        pipe.say(begin=begin, end=end, rate=n / (end - begin))


def _work(n: int, keys: int) -> list[tuple[list[bytes], list[str] | None]]:
    values = [(b"%010d" % i).ljust(SIZE, b".") for i in range(min(n, n if keys else CYCLE))]
    names = [f"user-{i:05d}" for i in range(keys)]
    parts = itertools.cycle(range(0, len(values), BATCH))
    starts = list(itertools.islice(parts, n // BATCH))
    return [
        (values[at : at + BATCH], [names[i % keys] for i in range(at, at + BATCH)] if keys else None) for at in starts
    ]


def consumer(pipe: Pipe, kind: str, address: str) -> None:
    """Take and acknowledge messages until all are published and none comes; answer with their count, and the time of
    the last acknowledgement."""
    store = STORES[kind](address)
    pipe.say(up=True)
    while True:
        words = pipe.hear()
        store.join(words["topic"], words["group"])
        pipe.say(joined=True)
        count, seen = 0, list[tuple[Any, list[bytes]]]()
        acknowledge = store.step if words["steps"] else store.acknowledge
        for keys, values in _taken(store, pipe, acknowledge):
            count += len(values)
            if words["keyed"]:
                seen.append((keys, values))
        last = store.leave()
        pipe.say(count=count, last=last, in_order=in_order(seen))


def _taken(store: Any, pipe: Pipe, acknowledge: Callable[[], None]) -> Iterator[tuple[Any, list[bytes]]]:
    idle_since, ending = time.monotonic(), False
    while True:
        columns = store.take()
        now = time.monotonic()
        if columns[1]:
            yield columns
            acknowledge()
            idle_since = now
        elif ending and now - idle_since > IDLE_S:
            return
        if not ending and pipe.waiting():
            ending = bool(pipe.hear())
            idle_since = now


def in_order(seen: list[tuple[list[str], list[bytes]]]) -> bool:
    """Return whether the numbers of each key only rise."""
    last: dict[str, bytes] = {}
    for keys, values in seen:
        for key, value in zip(keys, values, strict=True):
            if value <= last.get(key, b""):
                return False
            last[key] = value
    return True


class Topics:
    """A pair, as this benchmark uses it."""

    def __init__(self, address: str) -> None:
        from chp_client import Clone

        self.clone = Clone(address.split(","), subtree=None)
        self.consumer: Any = None
        self.batch: Any = None
        self.last = 0.0

    def make(self, topic: str, groups: list[str]) -> None:
        """Make a topic that drops what all groups have acknowledged; the topic `backlog` keeps everything."""
        found = self.clone.topic(topic)
        found.create("acknowledged" if topic != "backlog" else "all", timeout=30)
        for group in groups:
            found.subscribe(group, "begin", timeout=30)

    def remove(self, topic: str) -> None:
        """Remove the topic."""
        self.clone.topic(topic).remove(timeout=60)

    def publish(self, topic: str, work: list[tuple[list[bytes], list[str] | None]]) -> None:
        """Publish all of it, and wait for acknowledgements of both servers."""
        put = self.clone.topic(topic).publish_many
        tickets = [put(values, keys, timeout=120) for values, keys in work]
        worth = {ticket.wait(120).durability for ticket in tickets}
        assert worth == {"replicated"}, f"acknowledged as {worth}, which is not what is measured here"

    def publish_singly(self, topic: str, work: list[tuple[list[bytes], list[str] | None]]) -> None:
        """Publish all of it with a call for each message, and wait for both servers."""
        put, ticket = self.clone.topic(topic).publish, None
        for values, _ in work:
            for value in values:
                ticket = put(value, timeout=120)
        self.clone.flush(timeout=120)
        assert ticket is not None
        assert ticket.wait(120).durability == "replicated", "it was not acknowledged as what is measured here"

    def join(self, topic: str, group: str) -> None:
        """Become a member."""
        self.consumer = self.clone.topic(topic).consumer(group)

    def take(self) -> tuple[Any, list[bytes]]:
        """Return the next messages, or nothing after a while."""
        self.batch = self.consumer.take(timeout=0.1)
        return (None, []) if self.batch is None else (self.batch.keys, self.batch.values)

    def acknowledge(self) -> None:
        """Acknowledge the batch that was taken last."""
        self.batch.done().on_settled(self._settled)

    def step(self) -> None:
        """Acknowledge the batch, set its last result and publish all results, in one record."""
        out = self.batch.values
        ack = self.batch.commit({"/steps/last": out[-1]}, publish={"out": out}, timeout=60)
        assert ack.durability == "replicated", ack
        self.last = time.monotonic()

    def _settled(self, ticket: Any) -> None:
        assert ticket.ack is not None and ticket.ack.durability == "replicated", str(ticket.error)
        self.last = time.monotonic()

    def leave(self) -> float:
        """Close the consumer; return the time when the last acknowledgement came."""
        self.clone.flush(timeout=60)
        self.consumer.close()
        return self.last


class Streams:
    """Redis Streams, with the methods of `Topics`."""

    def __init__(self, address: str) -> None:
        import redis

        self.client = redis.Redis("127.0.0.1", int(address))
        self.name = f"c{time.monotonic_ns()}"
        self.topic = self.group = ""
        self.ids: list[bytes] = []
        self.values: list[bytes] = []
        self.last = 0.0

    def make(self, topic: str, groups: list[str]) -> None:
        """Make a stream with its groups."""
        for group in groups:
            self.client.xgroup_create(topic, group, id="0", mkstream=True)

    def remove(self, topic: str) -> None:
        """Remove the topic."""
        self.client.delete(topic)

    def publish(self, topic: str, work: list[tuple[list[bytes], list[str] | None]]) -> None:
        """Publish all of it; Redis answers when it is on disk."""
        for at in range(0, len(work), AHEAD):
            pipeline = self.client.pipeline(transaction=False)
            for values, keys in work[at : at + AHEAD]:
                for i, value in enumerate(values):
                    pipeline.xadd(topic, {b"v": value} if keys is None else {b"k": keys[i], b"v": value})
            pipeline.execute()

    def publish_singly(self, topic: str, work: list[tuple[list[bytes], list[str] | None]]) -> None:
        """Publish all of it; a command of Redis is one message in any case."""
        self.publish(topic, work)

    def join(self, topic: str, group: str) -> None:
        """Become a member."""
        self.topic, self.group = topic, group

    def take(self) -> tuple[Any, list[bytes]]:
        """Return the next messages, or nothing after a while."""
        found: Any = self.client.xreadgroup(self.group, self.name, {self.topic: ">"}, count=BATCH, block=100)
        rows: list[Any] = next(iter(found.values()))[0] if isinstance(found, dict) and found else []
        if isinstance(found, list):
            rows = found[0][1] if found else []
        self.ids, self.values = [row[0] for row in rows], [row[1][b"v"] for row in rows]
        return None, self.values

    def acknowledge(self) -> None:
        """Acknowledge the messages that were taken last."""
        self.client.xack(self.topic, self.group, *self.ids)
        self.last = time.monotonic()

    def step(self) -> None:
        """Acknowledge the batch, set its last result and publish all results, in one transaction."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.xack(self.topic, self.group, *self.ids)
        pipeline.set("/steps/last", self.values[-1])
        for value in self.values:
            pipeline.xadd("out", {"v": value})
        pipeline.execute()
        self.last = time.monotonic()

    def leave(self) -> float:
        """Return the time when the last acknowledgement came."""
        return self.last


STORES: dict[str, Callable[[str], Any]] = {"chp": Topics, "redis": Streams}


# -- how long one message takes


def awaiter(pipe: Pipe, address: str) -> None:
    """Set and wait, again and again."""
    from chp_client import Clone

    clone = Clone(address.split(","))
    clone.wait_until_synced(timeout=30)
    pipe.say(up=True)
    while True:
        took = []
        for i in range(pipe.hear()["sets"]):
            begin = time.monotonic()
            clone.set(AWAITED_KEYS[i % len(AWAITED_KEYS)], b"%d" % i + b"." * 90).wait(30)
            took.append(time.monotonic() - begin)
        pipe.say(took=took)


def pacer(pipe: Pipe, kind: str, address: str) -> None:
    """Publish 1,000 messages a second, each with the moment when it is published."""
    put: Callable[[bytes], object]
    if kind == "chp":
        from chp_client import Clone

        put = Clone(address.split(","), subtree=None).topic("paced").publish
    else:
        import redis

        client = redis.Redis("127.0.0.1", int(address))
        put = partial(_xadd, client)
    pipe.say(up=True)
    while True:
        messages, due = pipe.hear()["messages"], time.monotonic()
        for _ in range(messages):
            due += PACE_S
            time.sleep(max(0.0, due - time.monotonic()))
            put(_STAMP.pack(time.monotonic()).ljust(SIZE, b"."))
        pipe.say(done=True)


def _xadd(client: Any, value: bytes) -> object:
    return client.xadd("paced", {b"v": value})


def handler(pipe: Pipe, kind: str, address: str) -> None:
    """Tell how old each message was when it came."""
    store = STORES[kind](address)
    store.make("paced", ["g"])
    store.join("paced", "g")
    pipe.say(up=True)
    while True:
        messages, took = pipe.hear()["messages"], list[float]()
        while len(took) < messages:
            columns = store.take()
            now = time.monotonic()
            took += [now - _STAMP.unpack_from(value)[0] for value in columns[1]]
            if columns[1]:
                store.acknowledge()
        pipe.say(took=took)


# -- messages that wait for their time


def scheduler(pipe: Pipe, address: str) -> None:
    """Schedule messages for tomorrow; or at a pace, and then answer with how late the pair published the messages."""
    from chp_client import Clone

    clone = Clone(address.split(","), subtree=None)
    pipe.say(up=True)
    for words in iter(pipe.hear, None):
        if "pace" not in words:
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            _schedule(clone, [tomorrow] * words["messages"])
            pipe.say(done=True)
            continue
        pace, n = words["pace"], words["pace"] * words["seconds"]
        topic = clone.topic("scheduled")
        # Scheduling takes a while. A message that is due meanwhile would count as late.
        begin = datetime.now(UTC) + timedelta(seconds=3 + n / 4000)
        _schedule(clone, [begin + timedelta(seconds=i / pace) for i in range(n)])
        assert datetime.now(UTC) < begin, "the messages were due before all were scheduled"
        end = time.monotonic() + 120
        while topic.facts()["next"] < n:
            assert time.monotonic() < end, "not all messages that are due were published"
            time.sleep(0.2)
        late, seen = list[float](), set[bytes]()
        for batch in topic.read(wait=False):
            late += [batch.time - float(value.split()[0]) for value in batch.values]
            seen.update(batch.values)
        assert len(late) == len(seen) == n, (
            f"{len(late):,} messages were published, {len(seen):,} different ones of {n:,}"
        )
        # The pair keeps times in whole milliseconds, so a message may seem early by up to 1 ms.
        assert min(late) > -0.0011, "a message was published before its time"
        late.sort()
        pipe.say(p50_us=late[n // 2] * 1e6, p99_us=late[n * 99 // 100] * 1e6, latest_ms=late[-1] * 1e3)


def _schedule(clone: Any, moments: list[datetime]) -> None:
    """Schedule a message for each moment, with the moment as its value."""
    for at in range(0, len(moments), 10 * BATCH):
        with clone.transaction() as t:
            for i, moment in enumerate(moments[at : at + 10 * BATCH], at):
                t.schedule("scheduled", b"%.6f %d" % (moment.timestamp(), i), at=moment)


# -- members that come and go


def flow(pipe: Pipe, address: str) -> None:
    """Publish a hundred batches of 1,000 a second, between the parent's start and stop."""
    from chp_client import Clone

    clone = Clone(address.split(","), subtree=None)
    (work,) = _work(BATCH, KEYS)
    pipe.say(up=True)
    while True:
        topic = clone.topic(pipe.hear()["topic"])
        topic.create("acknowledged", timeout=30)
        topic.subscribe("g", "begin", timeout=30)
        pipe.say(ready=True)
        pipe.hear()
        count, begin = 0, time.monotonic()
        while not pipe.waiting():
            topic.publish_many(*work, timeout=60)
            count += BATCH
            time.sleep(max(0.0, begin + count / 1e5 - time.monotonic()))
        clone.flush(timeout=60)
        end = time.monotonic()
        pipe.hear()
        pipe.say(count=count, end=end, rate=count / (end - begin))


def member(pipe: Pipe, address: str) -> None:
    """Take and acknowledge messages until the parent says to leave, or says that no more are published and all have
    come. Answer with the times at which messages came."""
    store = Topics(address)
    pipe.say(up=True)
    while True:
        store.join(pipe.hear()["topic"], "g")
        pipe.say(joined=True)
        count, times = 0, list[float]()
        until: dict[str, Any] = {}
        while not until or (until["all"] and time.monotonic() - times[-1] < IDLE_S):
            _, values = store.take()
            if values:
                store.acknowledge()
                count += len(values)
                times.append(time.monotonic())
            if not until and pipe.waiting():
                until = pipe.hear()
        store.leave()
        pipe.say(count=count, times=times)


def worker(pipe: Pipe, address: str, rate: int) -> None:
    """Take messages, and work 1 / `rate` seconds on each, until no more come for a while."""
    store = Topics(address)
    pipe.say(up=True)
    while True:
        store.join(pipe.hear()["topic"], "g")
        pipe.say(joined=True)
        pipe.hear()
        count, last = 0, time.monotonic()
        while time.monotonic() - last < WORKER_IDLE_S:
            _, values = store.take()
            if values:
                time.sleep(len(values) / rate)
                store.acknowledge()
                count += len(values)
                last = time.monotonic()
        pipe.say(count=count, last=store.leave())
