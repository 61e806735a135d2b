"""Many channels at once over a large map: their fingerprints are taken a few at a time, and each in its turn."""

from dataclasses import replace

import msgpack
import pytest

from chp.batch import GREETING, HEARTBEAT, REFUSED, Segment, split
from chp.keys import RESERVED_KEY, channel_topic
from chp.limits import DEFAULT
from chp.numbers import pack
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.updates import channels

SESSION = b"s" * 16
KEYS = [f"/{i % 10}/{i}" for i in range(100)]
TOPICS = [channel_topic(f"/{i}/") for i in range(10)]


def kinds(core: ServerCore, now: float) -> dict[bytes, list[object]]:
    """Return the header on each channel in one heartbeat interval."""
    core.begin_turn(now, 1e9 + now)
    core.heartbeats.beat_now()
    return {m[0]: split(m[4])[0] for m in core.end_turn().publish if m[0] in TOPICS}


def test_channels_and_requests_beyond_the_limit_are_counted() -> None:
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0, replace(DEFAULT, channels_max=2, syncs_max=1))
    core.begin_turn(0.1, 1e9)
    for topic in TOPICS:
        core.subscription([b"1", b"\x01" + topic])
    for request in (1, 2, 3):
        core.request([b"reader", b"ICANHAZ?", b"", msgpack.packb({"chp": 3, "id": request})])
    said = [(m[0], split(m[4])[0][0]) for m in core.end_turn().publish if m[0] in TOPICS]
    assert {topic for topic, kind in said if kind == REFUSED} == set(TOPICS[2:])
    assert {topic for topic, kind in said if kind != REFUSED} == set(TOPICS[:2])
    counts = core.status()["counts"]
    assert (counts["channels_refused"], counts["requests_refused"]) == (len(TOPICS) - 2, 2)


@pytest.fixture
def core() -> ServerCore:
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0)
    core.begin_turn(0.1, 1e9)
    body = Segment(KEYS, [b"v"] * len(KEYS), None).encode()
    core.collect([RESERVED_KEY, pack(1), SESSION, b"", body])
    core.end_turn()
    return core


def test_a_channel_is_greeted_until_its_fingerprint_is_known(core: ServerCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "LOOKED_AT_MAX", 3 * len(KEYS))
    core.begin_turn(0.2, 1e9)
    for topic in TOPICS:
        core.subscription([b"1", b"\x01" + topic])
    core.end_turn()
    counts = []
    for beat in range(4):
        said = kinds(core, 1.0 + beat)
        assert said.keys() == set(TOPICS), "each hears that the active lives"
        beats = [header for header in said.values() if header[0] == HEARTBEAT]
        assert all(header[4] == 10 for header in beats)
        assert all(header[0] == GREETING for header in said.values() if header not in beats)
        counts.append(len(beats))
    assert counts == [3, 10, 10, 10], "a pass over the map is made for those that had to wait"


def test_channels_that_lose_their_fingerprints_take_turns(core: ServerCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "LOOKED_AT_MAX", 2 * len(KEYS))
    core.begin_turn(0.2, 1e9)
    for topic in TOPICS:
        core.subscription([b"1", b"\x01" + topic])
    core.end_turn()
    heard: set[bytes] = set()
    for beat in range(5):
        for channel in core.committer.committed.channels.by_topic.values():
            channel.known = False
        heard |= {topic for topic, header in kinds(core, 1.0 + beat).items() if header[0] == HEARTBEAT}
    assert heard == set(TOPICS)


def test_every_update_is_published_for_too_many_prefixes(core: ServerCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PREFIXES_MAX", 5)
    core.begin_turn(0.2, 1e9)
    for i in range(6):
        core.subscription([b"1", b"\x01/p%d/" % i])
    core.collect([RESERVED_KEY, pack(2), SESSION, b"", Segment(["/p3/a", "/q"], [b"v"] * 2, None).encode()])
    published = [m[0] for m in core.end_turn().publish]
    assert {b"/p3/a", b"/q"} <= set(published), "the socket sorts out who wants which"
