"""The journal of a busy application, with transactions, messages and groups that acknowledge.

    busy = fill(folder / "journal.sqlite", 8 << 20)        A new journal with at least so many bytes of records.
    busy = shared(tmp_path_factory)                        A copy of the journal that all processes of a run share.
    with TestServer(store=busy.store) as server: ...

Each transaction sets two keys, publishes four messages, and counts one version. Each of three groups acknowledges now
and then. A server's core makes the records without sockets, so that a log of minutes takes seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from chp.topics import ALL_SLOTS, pack_messages, pack_slots
from chp_server.core.state.record_log import LoggedRow
from chp_server.store.store_url import open_journal
from tests.unit.group_talk import GroupTalk
from tests.unit.server_talk import ONE

TOPIC, GROUPS = "orders", ("billing", "shipping", "audit")
# The number of transactions between two acknowledgements.
EVERY = 8
A_TURN = 400
MESSAGES = [[TOPIC, 4, pack_messages(None, [b"paid", b"packed", b"sent", b"told"])]]
# Each transaction writes its number to this key.
LAST = "/o/last"
# Eight times the size of a chunk (Limits.sync_chunk_bytes), so that each reader gets several chunks.
SHARED_BYTES = 8 << 20


@dataclass(frozen=True)
class Busy:
    """The contents of the journal: transactions 1, 2, 3 and so on, where n sets /o/(n % 1000) and `LAST` to n."""

    store: str
    number: int
    transactions: int


def fill(store: Path, record_bytes: int) -> Busy:
    """Make records of at least this many bytes, and put them into a new journal."""
    talk = GroupTalk()
    talk.publish(TOPIC, [b"first"])
    members = [talk.member(group, TOPIC, ask=False) for group in GROUPS]
    done, log = 0, talk.core.committer.committed.log
    talk.turn(0.0)
    acked = dict.fromkeys(GROUPS, 0)
    while log.bytes < record_bytes:
        for _ in range(A_TURN):
            done += 1
            values = {f"/o/{done % 1000}": b"%016d" % done, LAST: b"%016d" % done}
            talk.set(ONE, done, values, once=["app", done, False], publish=MESSAGES)
            if done % EVERY == 0:
                member = members[done // EVERY % len(members)]
                moves = [[pack_slots(ALL_SLOTS), acked[member.group], 4 * done]]
                member.no += 1
                talk.set(member.session, member.no, {}, ack=[[TOPIC, member.group, member.lease, moves]])
                acked[member.group] = 4 * done
        talk.turn(0.0)
        assert not talk.refusals(ONE) and not any(talk.refusals(member.session) for member in members)
    journal = open_journal(f"sqlite:{store}", sync="off")
    journal.load()
    journal.append([LoggedRow(record.first, record.last, record.body) for record in log.after(0, 1 << 62)])
    journal.sync()
    journal.close()
    return Busy(f"sqlite:{store}", talk.core.state.number, done)


def shared(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    """Return a copy of the shared journal, which the first process that asks makes."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made, facts = root / "busy-log", root / "busy-log.json"
    with open(root / "busy-log.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not facts.exists():
            facts.write_text(json.dumps(asdict(fill(made, SHARED_BYTES))))
    own = tmp_path_factory.mktemp("busy") / "journal.sqlite"
    shutil.copytree(made, own)
    return replace(Busy(**json.loads(facts.read_text())), store=f"sqlite:{own}")
