"""Hundreds of requests for a copy cost one look at all keys a subtree and turn, and never hold up a turn."""

from dataclasses import replace
from typing import Any
from weakref import WeakSet

import msgpack
import pytest

from chp.batch import split
from chp.hashmap import Hashmap
from chp.keys import RESERVED_KEY, channel_topic
from chp.limits import DEFAULT
from chp.messages import KTHXBAI
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.state import state
from chp_server.core.state.image import Gathering, Image
from chp_server.core.updates.turn import Turn

REQUESTS = 300


def icanhaz(reader: int, subtree: bytes = b"") -> list[bytes]:
    return [b"%d" % reader, b"ICANHAZ?", subtree, msgpack.packb({"chp": 3, "id": reader})]


def kvset(no: int) -> list[bytes]:
    return [RESERVED_KEY, no.to_bytes(8), b"s" * 16, b"", msgpack.packb([[f"/{no}"], [b"v"], None])]


def ends(turns: list[Turn]) -> dict[int, int]:
    """Return the number of keys that each reader heard at the end."""
    headers = [split(m[4])[0] for turn in turns for _, messages in turn.replies for m in messages]
    return {header[1]: header[3] for header in headers if header[0] == 5}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    passes: list[list[str]] = []

    def gathering(hashmap: Hashmap, images: dict[str, Image], *more: Any) -> Gathering:
        passes.append(sorted(images))
        return Gathering(hashmap, images, *more)

    monkeypatch.setattr(state, "Gathering", gathering)
    return passes


def test_requests_of_one_turn_share_an_image(made: list[list[str]]) -> None:
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0)
    turns = []
    core.begin_turn(0.1, 1e9)
    core.collect(kvset(1))
    for reader in range(REQUESTS):
        core.request(icanhaz(reader))
    core.request([b"plain", b"ICANHAZ?", b""])
    core.request(icanhaz(REQUESTS, b"/none/"))
    core.collect(kvset(2))
    core.request(icanhaz(REQUESTS + 1))
    for at in range(3):
        turns.append(core.end_turn())
        core.begin_turn(0.2 + at, 1e9)
    assert made == [["", "/none/"]]
    assert ends(_without_plain(turns)) == {**dict.fromkeys(range(REQUESTS), 2), REQUESTS: 0, REQUESTS + 1: 2}


def test_requests_of_many_subtrees_share_a_pass_over_the_map(made: list[list[str]]) -> None:
    """Else a map of a million keys and a Clone of 64 subtrees, or 64 of one each, would hold up the server for long.

    A client on a busy machine may ask again before it is answered: it must not find the queue the longer for it.
    """
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0)
    core.begin_turn(0.1, 1e9)
    for no in range(1, 11):
        core.collect(kvset(no))
    # Each of ten subtrees is asked for six times.
    for reader in range(60):
        core.request(icanhaz(reader, b"/%d/" % (reader % 10)))
    turns = []
    for at in range(2):
        turns.append(core.end_turn())
        core.begin_turn(0.2 + at, 1e9)
    assert made == [[f"/{i}/" for i in range(10)]]
    assert len(ends(turns)) == 60


def test_resumes_share_a_pass_and_need_no_pass_for_known_channels(
    made: list[list[str]],
) -> None:
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0)
    core.begin_turn(0.1, 1e9)
    after, whose = core.state.number, core.state.whose(core.state.number)
    core.collect(kvset(1))
    core.collect(kvset(2))
    for _ in range(2):
        for reader in range(40):
            options = {"chp": 3, "id": reader, "from": after, "proof": whose}
            core.request([b"%d" % reader, b"ICANHAZ?", b"/%d/" % (reader % 2), msgpack.packb(options)])
        assert len(ends([core.end_turn()])) == 40
        core.begin_turn(0.2, 1e9)
        for subtree in ("/0/", "/1/"):
            core.subscription([b"1", b"\1" + channel_topic(subtree)])
        core.heartbeats.tell_channels()
    assert made == [["/0/", "/1/"]]


def test_readers_that_stand_still_keep_a_bounded_number_of_keys_alive() -> None:
    """Each reader asks at another number and reads nothing, so its image keeps the lists and values of that number."""
    limits = replace(DEFAULT, images_bytes_max=1, images_maps_max=4, sync_chunk_items=1)
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0, limits)
    turns, at = [], 0.1
    for no in range(1, 11):
        core.begin_turn(at, 1e9)
        core.collect(kvset(no))
        core.end_turn()
    alive: WeakSet[Image] = core.requests._alive._images
    for no in range(11, 31):
        at += 0.1
        core.begin_turn(at, 1e9)
        core.collect(kvset(no))
        options = {"chp": 3, "id": no, "credit": 1}
        core.request([b"%d" % no, b"ICANHAZ?", b"", msgpack.packb(options)])
        turns.append(core.end_turn())
    most = limits.images_maps_max * len(core.state.map) + len(core.state.map)
    assert sum(image.size for image in alive) <= most, "410 without a bound"
    assert len(core.requests.syncs) == 20, "the others wait"
    core.begin_turn(at + limits.reader_pressed_s_max + 0.1, 1e9)
    core.request([b"new", b"ICANHAZ?", b"/30", msgpack.packb({"chp": 3, "id": 1, "credit": 9})])
    turns = [core.end_turn()]
    core.begin_turn(at + limits.reader_pressed_s_max + 0.2, 1e9)
    turns.append(core.end_turn())
    assert any(identity == b"new" for turn in turns for identity, _ in turn.replies), "who stands still makes room"


def _without_plain(turns: list[Turn]) -> list[Turn]:
    for turn in turns:
        plain = [(i, messages) for i, messages in turn.replies if i == b"plain"]
        assert not plain or all(m[0] in (b"/1", b"/2", KTHXBAI) for _, messages in plain for m in messages)
        turn.replies = [(i, messages) for i, messages in turn.replies if i != b"plain"]
    return turns
