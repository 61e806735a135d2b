"""What replicas may cost: places of followers, bytes that are under way to them, connections of passed questions."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

from chp.batch import encode, packb, peek, peek_answer
from chp.headers import REPLY, Refused, Reply
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp.versions import VERSION
from chp_server.core.core import ServerCore
from chp_server.core.questions.requests import FOLLOW
from chp_server.core.updates.turn import Fact, Turn
from chp_server.ports.replies import Replies

from .replicas import WithReplica

SESSION = b"s" * 12 + bytes(4)


class WithFacts(WithReplica):
    """A pair and its replicas, whose facts are kept."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self.facts: list[tuple[str, Fact]] = []
        super().__init__(limits)

    def sent(self, name: str, turn: Turn) -> None:
        """Keep the facts of a turn, and carry its messages."""
        self.facts += [(name, fact) for fact in turn.facts]
        super().sent(name, turn)

    def facts_of(self, name: str, event: str) -> list[Fact]:
        """Return the facts of a server with this name."""
        return [fact for who, fact in self.facts if (who, fact.event) == (name, event)]


def follow(core: ServerCore, *who: bytes) -> None:
    """Ask as replicas that have nothing, and have credit for many chunks."""
    for each in who:
        asked = {"chp": VERSION, "id": 1, "at": [b"", 0, b"", 0], "below": [], "name": "f", "credit": 64}
        core.request([each, ICANHAZ, FOLLOW, packb(asked)])


def report(core: ServerCore, *who: bytes, more: int) -> None:
    """Report as replicas do, and grant chunks."""
    for each in who:
        core.request([each, ICANHAZ, b"", packb({"chp": VERSION, "id": 1, "more": more, "number": 0})])


def test_a_replica_at_a_full_upstream_asks_again_and_logs_once() -> None:
    pair = WithFacts(replace(DEFAULT, replicas_max=1))
    pair.upstream["R2"] = ("P", "B")
    second = pair.start("R2")
    pair.run(5.0)
    assert second.upstream.ends == "" and not second.active
    (fact,) = pair.facts_of("R2", "upstream is full")
    assert "(1)" in fact.fields["why"] and "asks again" in fact.fields["why"]
    pair.p.requests.replicas.clear()
    del pair.replicas["R"]
    pair.run(2.0)
    assert second.active and len(pair.facts_of("R2", "upstream is full")) == 1


def test_a_follower_that_does_not_report_loses_its_place() -> None:
    pair = WithFacts(replace(DEFAULT, follower_idle_s_max=5.0))
    follow(pair.p, b"f")
    pair.run(6.0)
    assert [fact.fields["name"] for fact in pair.facts_of("P", "a replica lost its place")] == ["f"]
    assert not pair.p.requests.replicas.serves(b"f") and len(pair.p.requests.replicas) == 1


def test_a_follower_that_grants_no_credit_loses_its_place() -> None:
    pair = WithFacts(replace(DEFAULT, follower_idle_s_max=5.0))
    follow(pair.p, b"f")
    for _ in range(12):
        report(pair.p, b"f", more=0)
        pair.run(0.5)
    assert not pair.p.requests.replicas.serves(b"f")
    assert pair.r.active and len(pair.p.requests.replicas) == 1


def test_bytes_under_way_are_bounded_for_each_follower_and_for_all() -> None:
    limits = replace(
        DEFAULT, replicas_max=8, sync_chunk_bytes=1000, follower_bytes_max=10_000, followers_bytes_max=40_000
    )
    pair = WithFacts(limits)
    idle = [b"f%d" % n for n in range(7)]
    follow(pair.p, *idle)
    pair.run(0.2)
    before = len(pair.replied)
    for no in range(1, 81):
        pair.put("PB", SESSION, no, {"/k": bytes(900)})
        pair.run(0.05)
    sent = dict.fromkeys(idle, 0)
    for _, who, frames in pair.replied[before:]:
        if who in sent:
            sent[who] += len(frames[4])
    assert all(1000 < size < 14_000 for size in sent.values()), sent
    assert sum(sent.values()) < 45_000
    assert pair.r.active and pair.r.state.number == pair.p.state.number, "a replica that takes its chunks goes on"
    replicas = pair.p.requests.replicas
    assert replicas.under_way == sum(sum(stream.sizes) for stream in replicas.streams.values())
    report(pair.p, *idle, more=64)
    pair.run(0.2)
    assert all(stream.under_way > 0 for who, stream in replicas.streams.items() if who in sent), "they get the rest"


def test_the_bytes_that_a_turn_sends_to_followers_are_bounded() -> None:
    pair = WithFacts(replace(DEFAULT, sync_turn_bytes=2000))
    idle = [b"f%d" % n for n in range(4)]
    follow(pair.p, *idle)
    pair.run(0.5)
    pair.put("PB", SESSION, 1, {"/k": bytes(1900)})
    sizes = []
    for _ in range(8):
        bodies = [frames[4] for _, messages in pair.turn("P").replies for frames in messages]
        sizes.append(sum(len(body) for body in bodies if len(body) > 1900))
    assert max(sizes) < 4500 and sum(sizes) > 5 * 1900


def ask_topics(pair: WithReplica, *who: bytes, **options: object) -> None:
    """Ask the replica for the list of topics, or what the options say, which only the active answers."""
    for each in who:
        asked = {"chp": VERSION, "id": 3, **(options or {"topics": ""})}
        pair.r.request([each, ICANHAZ, b"", packb(asked)])


def without_an_end(pair: WithReplica) -> None:
    """Let the active take questions about one topic, and answer none of them."""
    readers = pair.p.requests.readers
    ask = readers.ask

    def take(identity: bytes, options: dict[str, Any]) -> None:
        if "topic" not in options:
            ask(identity, options)

    readers.ask = take  # type: ignore[method-assign]


def test_a_clients_connection_to_the_active_ends_a_while_after_its_last_answer() -> None:
    pair = WithFacts()
    without_an_end(pair)
    ask_topics(pair, b"c1", b"c2", b"c3")
    ask_topics(pair, b"c2", id=4, topic="t")
    pair.run(1.0)
    assert pair.r.requests.passed == {b"c1", b"c2", b"c3"}, "a program may ask again at once"
    ask_topics(pair, b"c3")
    pair.run(1.5)
    assert pair.r.requests.passed == {b"c2", b"c3"}
    pair.run(1.5)
    assert pair.r.requests.passed == {b"c2"}, "its second answer has not ended"


def test_a_full_replica_drops_answered_clients_then_refuses_new_ones() -> None:
    pair = WithFacts()
    pair.r.upstream.passed_max = 2
    without_an_end(pair)
    ask_topics(pair, b"c1", topic="t")
    ask_topics(pair, b"c2")
    pair.run(0.3)
    ask_topics(pair, b"c3", topic="t")
    ask_topics(pair, b"c4")
    pair.run(0.3)
    assert pair.r.requests.passed == {b"c1", b"c3"}
    (refused,) = pair.answers_to(b"c4")
    assert isinstance(refused, Refused) and refused.code == "busy" and "2 clients of this replica" in refused.detail


def test_a_long_header_does_not_hide_the_end_of_an_answer() -> None:
    long = encode(Reply(1 << 40, {"topics": ["t" * 1000] * 9}))
    assert peek(long) is None and peek_answer(long) == (REPLY, 1 << 40)
    assert peek_answer(b"") is None and peek_answer(b"\xc0\x01") is None and peek_answer(b"\x91\x92\xa1a\x01") is None


def test_a_replica_forgets_a_client_that_left_before_its_answer_ended() -> None:
    pair = WithFacts()
    without_an_end(pair)
    ask_topics(pair, b"c", topic="t")
    replies = Replies(Mock(), DEFAULT, pair.r.requests)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        connection, _ = server.accept()
        replies.came(b"c", connection.fileno(), 1.0)
        replies.look(100.0)
        assert pair.r.requests.passed == {b"c"}
        connection.close()
        replies.look(101.0)
    assert not pair.r.requests.passed
    assert [b"Q\x00c"] in pair.replica_turn("R").to_peer, "the client's connection ends"
