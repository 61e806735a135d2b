"""Replicas that confirm, acknowledgements that count copies, and the promotion of a replica."""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import decode, packb
from chp.headers import Ack
from chp.messages import ICANHAZ
from chp.numbers import epoch_of
from chp.topics import pack_messages
from chp.versions import VERSION
from chp_server.core.core import PROMOTED_EPOCHS, CoreConfig, ServerCore
from chp_server.core.release import AckRelease
from chp_server.core.replica.upstream import NO_COPY
from chp_server.core.updates.acks import Acks
from chp_server.core.updates.turn import Append, ReadMessages, Remember
from chp_server.settings.sources import ConfigError, load

from .replicas import WithReplica

SESSION = b"s" * 12 + bytes(4)


class ThreeCopies(WithReplica):
    """A pair with `--copies`, and a replica R that confirms."""

    def __init__(self, copies: int = 3, **config: Any) -> None:
        super().__init__(confirms="R", copies=copies, **config)
        self.no = 0

    def publish(self, value: bytes) -> None:
        """Publish a message."""
        self.no += 1
        self.put("PB", SESSION, self.no, {}, publish=[["orders", 1, pack_messages(None, [value])]])

    def set(self, seconds: float = 0.5) -> list[tuple[int, int | None]]:
        """Set a key, let time pass, and return the durability and the copies of the acknowledgements that came."""
        self.no += 1
        said = len(self.said)
        self.put("PB", SESSION, self.no, {"/a": b"%d" % self.no})
        self.run(seconds)
        told = [decode(frames[4])[0] for _, frames in self.said[said:]]
        return [(each.durability, each.copies) for each in told if isinstance(each, Ack)]


def test_a_set_is_replicated_once_three_servers_have_synced_it() -> None:
    pair = ThreeCopies()
    assert pair.set() == [(2, 3)]
    assert pair.p.status()["copies"] == {"wanted": 3, "in_sync": 3}
    pair.cut.add("R")
    assert pair.set(0.4) == [], "the replica has not confirmed"
    pair.run(3.0)
    assert (
        pair.p.status()["copies"] == {"wanted": 3, "in_sync": 2} and pair.p.committer.counts["replicas_degraded"] == 1
    )
    assert pair.set() == [(1, 2)], "it is what it is worth"
    pair.cut.clear()
    pair.run(3.0)
    assert pair.set() == [(2, 3)]


def test_replicas_without_the_passive_do_not_make_a_set_replicated() -> None:
    pair = ThreeCopies()
    pair.stopped = "B"
    pair.run(5.0)
    assert [durability for durability, _ in pair.set(1.0)] == [1]
    assert pair.p.status()["copies"] == {"wanted": 3, "in_sync": 2}


def test_a_peer_with_another_number_of_copies_is_noticed() -> None:
    pair = ThreeCopies()
    peer = pair.p.pair.peer
    assert peer is not None and pair.p.link.differences(peer) == {}
    peer.settings.pop("copies")
    assert pair.p.link.differences(peer) == {"copies": [3, 2]}


def test_a_pair_without_copies_uses_the_plain_acknowledgement_code() -> None:
    pair = WithReplica(confirms="R")
    assert type(pair.p.release) is AckRelease and type(pair.p.committer.acks) is Acks
    assert pair.p.status()["copies"] is None
    assert [each["in_sync"] for each in pair.p.status()["replicas"]] == [True]


def test_a_journal_with_two_connections_is_one_copy() -> None:
    pair = ThreeCopies(copies=4)
    [stream] = pair.p.requests.replicas.streams.values()
    at = pair.p.state.proof()
    asked = {"chp": VERSION, "id": 9, "at": at, "below": [], "confirms": stream.journal}
    pair.p.request([b"another", ICANHAZ, b"\x02follow\x03", packb(asked)])
    pair.p.request([b"another", ICANHAZ, b"", packb({"chp": VERSION, "id": 9, "more": 0, "confirmed": at})])
    assert pair.p.requests.replicas.copies_of(at.number) == 1


def test_a_replica_that_confirms_has_the_messages_of_topics() -> None:
    pair = ThreeCopies()
    pair.publish(b"one")
    pair.run(0.5)
    pair.publish(b"two")
    appended = []
    for _ in range(4):
        pair.turn("P")
        turn = pair.replica_turn("R")
        appended += [op for op in turn.journal if isinstance(op, Append)]
    [append] = appended
    assert [(row.first, row.n) for row in append.messages] == [(1, 1)] and not pair.r.link.backfill.lacks


def test_a_replica_confirms_nothing_while_it_lacks_messages() -> None:
    pair = ThreeCopies()
    pair.publish(b"one")
    pair.run(1.0)
    # A new run begins with the whole state, and its journal has no messages.
    pair.start("R")
    asked, lacked = list[ReadMessages](), 0
    for _ in range(100):
        pair.run(0.05)
        asked += [read for read in pair.turns["P"][-1].reads if isinstance(read, ReadMessages)]
        if pair.r.link.backfill.lacks:
            lacked += 1
            assert pair.p.status()["copies"]["in_sync"] < 3
    assert lacked and asked[0].offset == 0
    # The journals of the pair, of which there are none here, lack the message too.
    assert pair.p.status()["copies"]["in_sync"] == 3


def test_questions_for_messages_are_bounded_by_credit() -> None:
    pair = ThreeCopies()
    pair.publish(b"one")
    pair.run(0.5)
    replicas = pair.p.requests.replicas
    [(identity, stream)] = replicas.streams.items()
    pair.cut.add("R")
    told = {"chp": VERSION, "id": stream.request_id, "more": 0, "lack": packb([1, 0, 1])}
    for _ in range(100):
        for _ in range(3):
            pair.p.request([identity, ICANHAZ, b"", packb(told)])
        assert len(pair.turn("P").reads) <= 1
    assert stream.credit == 0 and replicas.under_way == stream.under_way > 0


@pytest.mark.parametrize("lack", [packb([1, 2]), packb(["a", 1, 2]), packb(7), b"\xc1"])
def test_a_question_for_messages_that_is_ill_formed_is_counted(lack: bytes) -> None:
    pair = ThreeCopies()
    [(identity, stream)] = pair.p.requests.replicas.streams.items()
    pair.p.request([identity, ICANHAZ, b"", packb({"chp": VERSION, "id": stream.request_id, "more": 0, "lack": lack})])
    assert pair.p.committer.counts["garbage_snapshot"] == 1


def test_a_position_of_another_history_ends_the_stream() -> None:
    pair = ThreeCopies()
    [(identity, stream)] = pair.p.requests.replicas.streams.items()
    store, number, opener, digest = pair.p.state.proof()
    told = {"chp": VERSION, "id": stream.request_id, "more": 0, "confirmed": [store, number, opener, digest ^ 1]}
    pair.p.request([identity, ICANHAZ, b"", packb(told)])
    assert not pair.p.requests.replicas.streams
    assert "a replica differs" in [fact.event for fact in pair.turn("P").facts]


def test_a_replica_that_goes_while_its_records_are_read_leaves_no_work() -> None:
    pair = WithReplica()
    replicas = pair.p.requests.replicas
    [identity] = replicas.streams
    replicas.reads = replicas.more = pair.p.requests.awake = True
    pair.p.requests.gone(identity)
    pair.turn("P")
    assert pair.p.next_deadline() > pair.now


def test_a_replica_behind_a_replica_is_no_copy() -> None:
    pair = WithReplica(row=True, confirms="R2")
    pair.run(1.0)
    assert pair.replicas["R2"].upstream.ends == NO_COPY


def test_a_promoted_server_opens_an_epoch_far_above_the_pairs_epoch() -> None:
    pair = ThreeCopies()
    pair.set()
    epoch = epoch_of(pair.r.state.number)
    core = ServerCore(CoreConfig(name="new", durability=1, promote=True), b"n" * 16, pair.now)
    core.committer.committed.state = pair.r.state
    core.promote("replica")
    core.begin_turn(pair.now, pair.now)
    turn = core.end_turn()
    assert core.active and epoch + PROMOTED_EPOCHS < epoch_of(core.state.number) <= epoch + PROMOTED_EPOCHS + 2
    assert core.state.store == pair.p.state.store
    assert isinstance(turn.journal[-1], Remember), "a server that dies before it is promoted again"
    assert "promoted" in [fact.event for fact in turn.facts]


PAIR = ["--primary", "--peer", "tcp://127.0.0.1:5566"]
REPLICA = ["--replica", "--upstream", "tcp://127.0.0.1:5556", "--bind", "tcp://127.0.0.1:7000"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*REPLICA, "--confirms"], "it needs a journal; add --data DIR"),
        (["--confirms", "--data", "d"], "only a replica has it; add --replica"),
        ([*REPLICA, "--confirms", "--data", "d", "--sync", "off"], "a replica that confirms syncs always"),
        ([*PAIR, "--copies", "1"], "give 2 to 8"),
        ([*PAIR, "--copies", "9"], "give 2 to 8"),
        (["--copies", "3"], "a server alone has 1; add --peer"),
        ([*PAIR, "--copies", "3", "--store", "memory:"], "copies are on disk; add --data DIR"),
        ([*REPLICA, "--copies", "3"], "give it to the servers of the pair"),
        ([*REPLICA, "--promote", "--data", "d"], "leave --replica and --upstream out"),
        (["--promote", "--store", "memory:"], "add --data with the directory of the replica"),
        (["--promote", "--bootstrap"], "give one of the two"),
    ],
)
def test_bad_settings_for_copies_or_replicas_are_refused_in_a_line(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(argv, {})
    [line] = [each for each in error.value.problems if said in each]
    assert "\n" not in line


def test_a_replica_that_confirms_has_sync_always_by_default() -> None:
    config = load([*REPLICA, "--confirms", "--data", "d"], {}).config
    assert (config.sync, config.store) == ("always", "sqlite:d")
    assert load([*PAIR, "--copies", "3"], {}).config.copies == 3
