"""Tests that a connection can cancel only its own subscriptions, and that they end with it.

covers: listeners.py, the subscriptions of channels.py and core.py.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from chp.batch import GREETING, HEARTBEAT, REFUSED, split
from chp.keys import channel_topic, session_topic
from chp.limits import DEFAULT
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.updates import channels as channels_module
from chp_server.core.updates import listeners as module
from chp_server.core.updates.listeners import LINGER_S, LINGERING_MAX, HeartbeatInterval, Listeners

A, B = b"10", b"11"  # connections
TOPIC = channel_topic("/a/")


class Server(ServerCore):
    """A core in the middle of a turn, and what it publishes."""

    def __init__(self, **limits: int) -> None:
        super().__init__(CoreConfig(), b"i" * 16, 0.0, replace(DEFAULT, **limits))
        self.begin_turn(0.1, 1e9)
        self.end_turn()

    def hears(self, *messages: list[bytes], at: float = 0.2) -> list[tuple[bytes, int]]:
        """Return the topics and kinds that a turn with these events publishes."""
        self.begin_turn(at, 1e9)
        for frames in messages:
            self.subscription(frames)
        published = self.end_turn().publish
        return [(m[0], split(m[4])[0][0]) for m in published if m[0][:1] == b"\x02"]

    def kept(self) -> dict[str, int]:
        return self.status()["channels"]  # type: ignore[no-any-return]


def joins(who: bytes, topic: bytes = TOPIC) -> list[bytes]:
    return [who, b"\x01" + topic]


def cancels(who: bytes, topic: bytes = TOPIC) -> list[bytes]:
    return [who, b"\x00" + topic]


def test_a_cancel_without_a_subscription_changes_nothing() -> None:
    server = Server()
    server.hears(joins(A), joins(A, b"/a/"))
    server.hears(
        *[cancels(B)] * 3, *[cancels(B, b"/a/")] * 3, cancels(B, b"/never/"), cancels(b""), cancels(b"", b"/a/")
    )
    server.hears(at=100.0)
    assert server.kept() == {"/a/": 1} and server.status()["chp1_subscriptions"] == 1


def test_a_repeated_subscription_is_greeted_but_not_counted_twice() -> None:
    server = Server()
    assert server.hears(joins(A)) == server.hears(joins(A)) == [(TOPIC, GREETING)]
    assert server.kept() == {"/a/": 1}
    server.hears(cancels(A), joins(B), cancels(B), cancels(B), joins(A))
    assert server.kept() == {"/a/": 1}


def test_an_ended_connection_drops_only_its_own_subscriptions() -> None:
    server = Server()
    server.hears(joins(A), joins(B), joins(A, channel_topic("/b/")), joins(A, b"/plain"))
    server.hears([A], cancels(b""), cancels(b"", channel_topic("/b/")))
    server.hears(at=0.2 + LINGER_S)
    assert server.kept() == {"/a/": 1} and server.status()["chp1_subscriptions"] == 0
    assert not server.committer.committed.channels.chp1


def test_a_channel_lingers_for_a_reader_that_comes_back() -> None:
    server = Server()
    server.hears(joins(A))
    channel = server.committer.committed.channels.by_topic[TOPIC]
    server.hears([A], at=1.0)
    server.hears(at=0.9 + LINGER_S)
    assert server.kept() == {"/a/": 0}
    server.hears(joins(B), at=0.95 + LINGER_S)
    server.hears(at=1.5 + LINGER_S)
    assert server.committer.committed.channels.by_topic[TOPIC] is channel and server.kept() == {"/a/": 1}
    server.hears([B], at=10.0)
    server.hears(at=10.0 + LINGER_S)
    assert server.kept() == {}


def test_lingering_channels_are_bounded_and_make_room_for_new_ones() -> None:
    listeners = Listeners(DEFAULT)
    for i in range(LINGERING_MAX + 5):
        listeners.join(b"%d" % i, b"t%d" % i)
        listeners.gone(b"%d" % i, 0.0)
    assert listeners.abandoned(0.0) == [b"t%d" % i for i in range(5)]
    server = Server(channels_max=2)
    server.hears(joins(A), joins(A, channel_topic("/b/")), [A], joins(B, channel_topic("/c/")))
    assert server.kept() == {"/c/": 1}


def test_the_channels_of_one_connection_are_bounded() -> None:
    server = Server(topics_of_one_max=2)
    topics = [channel_topic(f"/{name}/") for name in "abc"]
    said = server.hears(*(joins(A, topic) for topic in topics))
    assert said == [(topics[0], GREETING), (topics[1], GREETING), (topics[2], REFUSED)]
    assert server.hears(joins(B, topics[2])) == [(topics[2], GREETING)]
    assert server.hears(joins(A, topics[1])) == [(topics[1], GREETING)], "which it has"
    assert server.hears(cancels(A, topics[0]), joins(A, topics[2])) == [(topics[2], GREETING)]
    own = session_topic(b"s" * 16)
    assert server.hears(joins(A, own)) == [(own, GREETING)], "its own channel is no channel of a subtree"


def test_a_connection_with_too_many_prefixes_gets_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(topics_of_one_max=2)
    server.hears(*(joins(A, prefix) for prefix in (b"/1", b"/2", b"/3", b"/4")))
    assert list(server.committer.committed.channels.chp1) == [b"/1", b"/2", b""]
    monkeypatch.setattr(channels_module, "PREFIXES_MAX", 4)
    server.hears(joins(B, b"/5"), joins(b"12", b"/6"), joins(b"13", b"/6"), joins(b"14", b"x" * 1025))
    assert list(server.committer.committed.channels.chp1) == [b"/1", b"/2", b"", b"/5"]
    server.hears([A], [B], [b"12"])
    server.hears(at=0.2 + LINGER_S)
    assert list(server.committer.committed.channels.chp1) == [b""], "the last of them wants /6, so everything"


def test_listeners_are_counted_once_for_each_topic() -> None:
    listeners = Listeners(DEFAULT)
    for who in (A, B):
        for topic in (TOPIC, channel_topic("/b/")):
            listeners.join(who, topic)
            listeners.join(who, topic)
    assert listeners.total == 4
    listeners.leave(A, TOPIC, 1.0)
    assert listeners.total == 3
    listeners.gone(B, 1.0)
    assert listeners.total == 1 == sum(listeners.counts.values())


def test_subscriptions_of_one_turn_share_one_greeting_per_channel() -> None:
    server, own = Server(), session_topic(b"s" * 16)
    assert server.hears(joins(A), joins(B), joins(A, own), joins(b"c")) == [(TOPIC, GREETING), (own, GREETING)]
    assert server.hears(joins(b"d")) == [(TOPIC, GREETING)]


BEAT_S = 0.25
# A monotonic clock begins with the machine.
UPTIME_S = 1e6


def gaps(pace: HeartbeatInterval, listening: list[int], channels: int = 7) -> list[tuple[float, float]]:
    """Return the gap before each HEARTBEAT except a channel's first, and the interval that the one before had told."""
    topics = [channel_topic(f"/{i}/") for i in range(channels)]
    heard: dict[bytes, tuple[float, float]] = {}
    out = []
    for beat, n in enumerate(listening):
        for topic in pace.share(topics, topics, n, UPTIME_S + beat * BEAT_S):
            if topic in heard:
                out.append((beat * BEAT_S - heard[topic][0], heard[topic][1]))
            heard[topic] = beat * BEAT_S, pace.told_s
    return out


def test_each_beat_has_a_heartbeat_of_each_channel_while_few_listen() -> None:
    few = int(BEAT_S * module.HEARTBEATS_A_SECOND)
    found = gaps(HeartbeatInterval(BEAT_S), [few] * 20)
    assert len(found) == 19 * 7 and set(found) == {(BEAT_S, BEAT_S)}


def test_heartbeats_become_rarer_with_more_listeners_up_to_a_bound() -> None:
    found = gaps(HeartbeatInterval(BEAT_S), [module.HEARTBEATS_A_SECOND] * 100)[-20:]
    assert all(told == 1.0 and gap <= 1.0 for gap, told in found)
    found = gaps(HeartbeatInterval(BEAT_S), [100 * module.HEARTBEATS_A_SECOND] * 100)[-20:]
    assert all(told == module.PACE_S_MAX and gap <= module.PACE_S_MAX for gap, told in found)
    assert min(gap for gap, _ in found) > 1.0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("listening", "every_s"), [(100, BEAT_S), (600, 0.5), (1000, 1.0), (10_000, 2.0)])
def test_the_interval_grows_also_if_all_listen_to_few_channels(channels: int, listening: int, every_s: float) -> None:
    found = gaps(HeartbeatInterval(BEAT_S), [listening] * 100, channels)[-5:]
    assert {gap for gap, _ in found} == {every_s}


def test_extra_beats_do_not_send_more_heartbeats_on_one_channel() -> None:
    pace, topics = HeartbeatInterval(BEAT_S), [channel_topic("")]
    told = [at for at in range(1000) if pace.share(topics, topics, 10_000, UPTIME_S + at / 10)][1:]
    assert {after - before for before, after in pairwise(told)} <= {18, 19, 20}


def test_no_heartbeat_gap_reaches_four_times_the_interval_told_before() -> None:
    crowd = [1, 5000, 1, 300, 2000, 40, 10_000, 700]
    found = gaps(HeartbeatInterval(BEAT_S), [n for n in crowd for _ in range(23)])
    assert max(gap / told for gap, told in found) < 4, "four of them are silence"


def test_a_heartbeat_tells_the_interval_until_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEATS_A_SECOND", 4)
    server = Server()
    topics = [channel_topic(f"/{i}/") for i in range(4)]
    server.hears(*([b"%d" % i, b"\x01" + topic] for i, topic in enumerate(topics)))
    told = []
    for beat in range(2, 40):
        server.begin_turn(beat * BEAT_S, 1e9)
        published = [split(m[4])[0] for m in server.end_turn().publish if m[0] in topics]
        told.append([header[6] for header in published if header[0] == HEARTBEAT])
    assert next(row for row in told if row) == [1000] * 4, "all are told of the longer one before it counts"
    assert set(map(tuple, told[8:])) == {(1000,)}


def test_a_refusal_is_repeated_a_few_times_with_the_next_beats() -> None:
    core = Server(topics_of_one_max=1)
    core.hears([A, b"\1" + TOPIC], [A, b"\1" + channel_topic("/b/")], [A, b"\1" + channel_topic("/c/")])
    said: list[bytes] = []
    for beat in range(10):
        core.begin_turn(1.0 + beat, 1e9)
        core.heartbeats.beat_now()
        told = [frames for frames in core.end_turn().publish if frames[0][:1] == b"\2"]
        said += [frames[0] for frames in told if split(frames[4])[0][0] == REFUSED]
    assert sorted(said) == [channel_topic(name) for name in ("/b/", "/c/") for _ in range(module.REFUSED_TIMES)]


@pytest.mark.parametrize("then", [b"\0" + channel_topic("/b/"), None])
def test_a_refusal_is_not_repeated_after_a_cancel_or_disconnect(then: bytes | None) -> None:
    core = Server(topics_of_one_max=1)
    core.hears([A, b"\1" + TOPIC], [A, b"\1" + channel_topic("/b/")])
    core.hears([A] if then is None else [A, then])
    core.begin_turn(1.0, 1e9)
    core.heartbeats.beat_now()
    assert REFUSED not in [split(frames[4])[0][0] for frames in core.end_turn().publish if frames[0][:1] == b"\2"]


def test_a_refusal_is_not_repeated_on_a_channel_with_other_listeners() -> None:
    core = Server(topics_of_one_max=1)
    core.hears([A, b"\1" + TOPIC], [A, b"\1" + channel_topic("/b/")], [B, b"\1" + channel_topic("/b/")])
    core.begin_turn(1.0, 1e9)
    core.heartbeats.beat_now()
    assert REFUSED not in [split(frames[4])[0][0] for frames in core.end_turn().publish if frames[0][:1] == b"\2"]


def test_repeated_refusals_are_bounded_at_each_beat() -> None:
    listeners = Listeners(DEFAULT)
    for i in range(500):
        listeners.refuse(b"%d" % (i % 7), b"topic %d" % i)
    rounds, times = [listeners.refused_again() for _ in range(40)], module.REFUSED_TIMES
    assert max(map(len, rounds)) == module.REFUSED_AGAIN
    assert {topic: sum(found.count(topic) for found in rounds) for topic in rounds[0]} == dict.fromkeys(
        rounds[0], times
    )
    assert sum(map(len, rounds)) == times * 500
