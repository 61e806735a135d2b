"""A program that publishes, reads, consumes and commits, and prints each call, each answer and all that it gets.

    python -m tests.process.topic_worker tcp://a:5556,tcp://b:5566 NAME SEED

Threads share a Clone: a publisher, one that makes conditional steps, one that counts versions with `once`, a reader,
and a member of each group. The line `drain` on the standard input ends the writers. The others go on until the input
ends. tests/process/topic_rules.py has the rules of what is printed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from chp.errors import ChpError
from chp_client import Clone, Conflict, Fenced, NoSuchGroup, NoSuchTopic, Refused, Ticket
from chp_client.topics.batch import Batch
from tests.talk import WAIT_S

from .topic_rules import BEFORE, DONE, EFFECTS, LATER, MAIN, STEPS, STRICT, VERSIONS, receipt

KEYS = 12
# The mean pause between two calls of a thread.
PACE_S = 0.06
# A stop of 2.5 s outlasts a member's lease.
TTL_S = 1.5
STEP_KEY = "/shared/step"
# The shares of a member's batches. In the first share one message becomes a dead letter. The second share is handed
# back. After the third share the member leaves the group.
REJECTED, HANDED_BACK, LEAVES = 0.05, 0.04, 0.03
# With these codes nothing of a write was done. With any other one its outcome is unknown.
NOT_DONE = ("revision", "fenced", "count")


class Notes:
    """The lines that this process prints, which name each write."""

    def __init__(self, name: str) -> None:
        self._name, self._lock, self._n = name, threading.Lock(), 0

    def say(self, *what: Any) -> None:
        """Print one line."""
        with self._lock:
            print(json.dumps(what), flush=True)

    def call(self, thread: str, **of: Any) -> str:
        """Print that a write begins, and return its name. The name replaces each `@` in the texts of `of`."""
        with self._lock:
            self._n += 1
            name = f"{self._name}.{self._n}"
            said = json.dumps(of).replace("@", name)
            print(f'["call", {json.dumps(f"{self._name}/{thread}")}, "{name}", {time.monotonic()}, {said}]', flush=True)
        return name

    def answer(self, name: str, ticket: Ticket) -> str:
        """Wait for the outcome of a write, and print it."""
        try:
            outcome = ticket.wait(WAIT_S).durability
        except Refused as refused:
            outcome = "refused" if refused.code in NOT_DONE else "unknown"
            self.say("refused", name, refused.code)
        except (ChpError, TimeoutError) as error:
            outcome = "unknown"
            self.say("refused", name, repr(error))
        self.say("answer", name, time.monotonic(), outcome)
        return outcome


class Worker:
    """The threads of this process."""

    def __init__(self, clone: Clone, name: str, seed: int) -> None:
        self.clone, self.name, self.notes = clone, name, Notes(name)
        self.seed = seed
        self.draining, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        """Run all threads until the standard input ends."""
        jobs: list[tuple[str, Callable[[random.Random], None]]] = [
            ("publish", self._publish), ("step", self._step), ("strict", self._count_strictly),
            ("count", self._count), ("read", self._read),
        ]  # fmt: skip
        jobs += [(group, partial(self._consume, group)) for group in (EFFECTS, LATER, BEFORE)]
        threads = [threading.Thread(target=self._guard, args=job, daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for line in sys.stdin:
            if line.strip() == "drain":
                self.draining.set()
        self.draining.set()
        self.ended.set()
        for thread in threads:
            thread.join(2 * WAIT_S)
        self.notes.say("end", not any(thread.is_alive() for thread in threads))

    def _guard(self, name: str, job: Callable[[random.Random], None]) -> None:
        try:
            job(random.Random(f"{self.seed} {name}"))
        except Exception as error:
            self.notes.say("error", name, repr(error))

    def _more(self, chance: random.Random) -> bool:
        return not self.draining.wait(chance.random() * 2 * PACE_S)

    # -- writers

    def _publish(self, chance: random.Random) -> None:
        topic = self.clone.topic(MAIN)
        while self._more(chance):
            sent: list[tuple[str, Ticket]] = []
            for _ in range(chance.randrange(1, 5)):
                n = chance.choice((1, 1, 1, 2, 8))
                keys = [f"k{chance.randrange(KEYS)}" for _ in range(n)] if chance.random() < 0.8 else None
                pairs = [(None if keys is None else keys[i], f"@.{i}") for i in range(n)]
                name = self.notes.call("publish", publish={MAIN: pairs})
                values = [f"{name}.{i}".encode() for i in range(n)]
                if n == 1:
                    ticket = topic.publish(values[0], None if keys is None else keys[0], timeout=WAIT_S)
                else:
                    ticket = topic.publish_many(values, keys, timeout=WAIT_S)
                sent.append((name, ticket))
            for name, ticket in sent:
                self.notes.answer(name, ticket)

    def _step(self, chance: random.Random) -> None:
        """Replace the value of a key that all processes use, unless another one was faster, and publish the step."""
        while self._more(chance):
            held = self.clone.entry(STEP_KEY)
            if held is not None and int(held.revision) <= 1:
                continue
            after = "" if held is None else held.value.decode()
            name = self.notes.call("step", publish={STEPS: [(None, "@")], MAIN: [("step", "@")]}, after=after)
            with suppress(Conflict):
                transaction = self.clone.transaction(WAIT_S)
                transaction.set(STEP_KEY, name.encode(), if_revision=0 if held is None else held.revision)
                transaction.publish(STEPS, name.encode())
                transaction.publish(MAIN, name.encode(), key="step")
                self.notes.answer(name, transaction.send())

    def _version(self, thread: str, application: str, version: int, *, strict: bool) -> tuple[str, Any]:
        name = self.notes.call(
            thread, publish={VERSIONS: [(None, f"{application} {version} @")]}, sets={"/w/@": "@"},
            once=[application, version],
        )  # fmt: skip
        transaction = self.clone.transaction(WAIT_S)
        transaction.once(application, version, strict=strict)
        transaction.set(f"/w/{name}", name.encode())
        transaction.publish(VERSIONS, f"{application} {version} {name}".encode())
        ticket = transaction.send()
        return self.notes.answer(name, ticket), ticket.error

    def _count_strictly(self, chance: random.Random) -> None:
        """Do the next version of an application that all processes count."""
        version = 1
        while self._more(chance):
            outcome, error = self._version("strict", f"{STRICT}1", version, strict=True)
            if isinstance(error, Refused) and error.code == "count":
                version = int(error.detail) + 1 if isinstance(error.detail, int) else version + 1
            elif outcome != "unknown":
                version += 1

    def _count(self, chance: random.Random) -> None:
        """Do the versions of an own application one after the other, each until it is acknowledged."""
        version = 1
        while self._more(chance):
            outcome, _ = self._version("count", f"app{self.name}", version, strict=False)
            # Now and then the thread repeats a version that was done.
            if outcome != "unknown" and chance.random() < 0.8:
                version += 1

    # -- readers

    def _read(self, chance: random.Random) -> None:
        following = 0
        while not self.ended.wait(chance.random() * 4 * PACE_S):
            with suppress(NoSuchTopic, ChpError):
                for batch in self.clone.topic(MAIN).read(following or "begin", wait=False):
                    placed = [(m.offset, m.key, m.value.decode()) for m in batch]
                    self.notes.say("read", f"{self.name}/read", MAIN, placed, batch.missed)
                    following = batch.offsets[-1] + 1

    def _consume(self, group: str, chance: random.Random) -> None:
        """Be a member, again and again."""
        while not self.ended.is_set():
            joined = time.monotonic()
            try:
                before = "before" if group == BEFORE else "after"
                topic = self.clone.topic(MAIN)
                prefetch = chance.choice((1, 8))
                with topic.consumer(group, ttl=TTL_S, ack=before, prefetch=prefetch, name=self.name) as consumer:
                    self._be_member(group, consumer.take, joined, chance)
            # No server serves, or the lease was lost: the member begins anew.
            except (NoSuchGroup, NoSuchTopic, ChpError, TimeoutError) as error:
                self.notes.say("anew", group, repr(error))
                self.ended.wait(0.1)

    def _be_member(
        self, group: str, take: Callable[[float], Batch | None], joined: float, chance: random.Random
    ) -> None:
        member = ""
        while not self.ended.is_set():
            asked = time.monotonic()
            batch = take(0.5)
            if batch is None:
                continue
            now = batch.whose[2].hex()
            if member not in ("", now):
                joined = asked
            member = now
            placed = [(m.offset, m.key, m.value.decode()) for m in batch]
            self.notes.say("given", group, member, joined, time.monotonic(), placed)
            time.sleep(chance.random() * 0.02)
            luck = chance.random()
            if luck < HANDED_BACK and group != BEFORE:
                # The member leaves, and does not acknowledge the batch in its hands.
                return
            if group == EFFECTS:
                self._commit(batch, member, placed, chance)
            elif group == LATER:
                name = self.notes.call("later", ack=[group, member, list(batch.offsets)])
                self.notes.answer(name, batch.done())
            if luck > 1 - LEAVES:
                return

    def _commit(self, batch: Batch, member: str, placed: list[Any], chance: random.Random) -> None:
        """Commit a receipt for each message and a key, and put a message aside now and then."""
        aside = set()
        if chance.random() < REJECTED:
            aside = {chance.choice(placed)[0]}
        receipts = [(None, receipt(offset, value, "@")) for offset, _, value in placed if offset not in aside]
        letters = [(key, receipt(offset, value, "@")) for offset, key, value in placed if offset in aside]
        publish = {DONE: receipts, batch.dead_topic: letters}
        name = self.notes.call(
            "effects", publish={topic: some for topic, some in publish.items() if some}, sets={"/w/@": "@"},
            ack=[EFFECTS, member, list(batch.offsets)],
        )  # fmt: skip
        for offset in aside:
            batch.reject(offset, name)
        sets = {f"/w/{name}": name.encode()}
        values = {DONE: [value.replace("@", name).encode() for _, value in receipts]} if receipts else {}
        with suppress(Fenced):
            self.notes.answer(name, batch.committing(sets, deletes=(), publish=values, timeout=WAIT_S))


def main(servers: str, name: str, seed: str) -> None:
    """Work until the standard input ends."""
    with Clone(servers.split(",")) as clone:
        clone.wait_until_synced(WAIT_S)
        Worker(clone, name, int(seed)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
