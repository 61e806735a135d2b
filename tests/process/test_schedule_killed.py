"""covers: scheduled messages while the active is killed with -9: each is published once, and none before its time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from chp_client import Clone, Unanswered
from tests.talk import WAIT_S, until

from .cluster import ProcessPair, ServerProcess

pytestmark = pytest.mark.slow
TOPIC, A_BATCH = "reminders", 5000
# A busy machine can schedule at least this many messages a second. The first message is due after all are scheduled.
SCHEDULED_A_SECOND = 5000
# The long proof waits up to this many seconds, because its machine does other work too.
PATIENCE_S = 300.0


def active_of(pair: ProcessPair) -> ServerProcess:
    """Wait until there is one active server, and return it. A busy server may answer late."""
    end = time.monotonic() + PATIENCE_S
    while (active := pair.active()) is None:
        assert time.monotonic() < end, "no server is active"
        time.sleep(0.1)
    return active


@pytest.mark.parametrize(
    ("messages", "a_second", "kills"),
    [
        pytest.param(2000, 250, 1, marks=pytest.mark.timeout(300)),
        pytest.param(1_000_000, 2500, 20, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_each_scheduled_message_is_published_once_over_kills_of_the_active(
    tmp_path: Path, messages: int, a_second: int, kills: int
) -> None:
    with ProcessPair(tmp_path) as pair, Clone(pair.servers, subtree=None) as clone:
        topic = clone.topic(TOPIC)
        topic.create(timeout=WAIT_S)
        begin = datetime.now(UTC) + timedelta(seconds=1 + messages / SCHEDULED_A_SECOND)
        due = [begin + timedelta(seconds=i / a_second) for i in range(messages)]
        for at in range(0, messages, A_BATCH):
            with clone.transaction() as t:
                for i, moment in enumerate(due[at : at + A_BATCH], at):
                    t.schedule(TOPIC, b"%d" % i, at=moment, name=f"m{i}")

        def published() -> int:
            try:
                return int(topic.facts(WAIT_S)["next"])
            except Unanswered:
                return 0

        for n in range(kills):
            more = messages * (n + 1) // (kills + 2)
            until(lambda more=more: published() >= more, "more to be published", timeout_s=600)  # type: ignore[misc]
            active = active_of(pair)
            active.kill()
            until(lambda: published() > 0, "the other server", timeout_s=PATIENCE_S)
            active.start()
            until(pair.in_sync, "the pair is in sync", timeout_s=PATIENCE_S)
        until(lambda: published() >= messages, published, timeout_s=600)
        assert topic.scheduled(1) == []
        seen = [False] * messages
        for batch in topic.read(wait=False):
            for value in map(int, batch.values):
                assert not seen[value], f"message {value} was published twice"
                seen[value] = True
                # The times of published messages are whole milliseconds, so a message may seem a little early.
                early = due[value].timestamp() - batch.time
                assert early < 0.002, f"message {value} was published {early:.3f} s before its time"
        assert all(seen), "none is lost"
