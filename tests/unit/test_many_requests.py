"""Hundreds of requests for a copy cost one look at all keys a subtree and turn, and never hold up a turn."""

import msgpack
import pytest

from chp.batch import split
from chp.hashmap import Hashmap
from chp.keys import RESERVED_KEY
from chp.messages import KTHXBAI
from chp_server import requests, state
from chp_server.core import CoreConfig, ServerCore
from chp_server.image import Image
from chp_server.turn import Turn

REQUESTS = 300


def icanhaz(reader: int, subtree: bytes = b"") -> list[bytes]:
    return [b"%d" % reader, b"ICANHAZ?", subtree, msgpack.packb({"chp": 3, "id": reader})]


def kvset(no: int) -> list[bytes]:
    return [RESERVED_KEY, no.to_bytes(8), b"s" * 16, b"", msgpack.packb([[f"/{no}"], [b"v"], None])]


def ends(turns: list[Turn]) -> dict[int, int]:
    """The number of keys that each reader was told at the end."""
    headers = [split(m[4])[0] for turn in turns for _, messages in turn.replies for m in messages]
    return {header[1]: header[3] for header in headers if header[0] == 5}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    subtrees: list[str] = []

    def image(hashmap: Hashmap, subtree: str, number: int) -> Image:
        subtrees.append(subtree)
        return Image(hashmap, subtree, number)

    monkeypatch.setattr(state, "Image", image)
    return subtrees


def test_those_of_one_turn_share_an_image(made: list[str]) -> None:
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
    assert made == ["", "/none/"]
    assert ends(_without_plain(turns)) == {**dict.fromkeys(range(REQUESTS), 2), REQUESTS: 0, REQUESTS + 1: 2}


def test_those_of_many_subtrees_are_begun_a_few_a_turn_and_again_asked_for_cost_nothing(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a map of a million keys and a Clone of 64 subtrees, or 64 of one each, would hold up the server for long.

    A client on a busy machine may ask again before it is answered: it must not find the queue the longer for it.
    """
    monkeypatch.setattr(requests, "LOOKED_AT_MAX", 20)
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0)
    core.begin_turn(0.1, 1e9)
    for no in range(1, 11):
        core.collect(kvset(no))
    for reader in range(60):  # ten subtrees, and each asked for six times
        core.request(icanhaz(reader, b"/%d/" % (reader % 10)))
    turns, looks = [], []
    for at in range(6):
        before = len(made)
        turns.append(core.end_turn())
        looks.append(len(made) - before)
        assert core.next_deadline() <= core.now or not len(core.requests.syncs), "it goes on at once"
        core.begin_turn(0.2 + at, 1e9)
    assert looks == [2, 2, 2, 2, 2, 0]
    assert len(ends(turns)) == 60


def test_the_resumes_of_a_subtree_share_its_fingerprint_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LOOKED_AT_MAX", 2)
    core = ServerCore(CoreConfig(), b"i" * 16, 0.0)
    core.begin_turn(0.1, 1e9)
    after = core.state.number
    core.collect(kvset(1))
    core.collect(kvset(2))
    for reader in range(40):
        options = {"chp": 3, "id": reader, "from": after, "proof": [core.state.store, core.server]}
        core.request([b"%d" % reader, b"ICANHAZ?", b"/%d/" % (reader % 2), msgpack.packb(options)])
    answered = []
    for at in range(4):
        answered.append(len(ends([core.end_turn()])))
        core.begin_turn(0.2 + at, 1e9)
    assert answered[:2] == [20, 20]


def _without_plain(turns: list[Turn]) -> list[Turn]:
    for turn in turns:
        plain = [(i, messages) for i, messages in turn.replies if i == b"plain"]
        assert not plain or all(m[0] in (b"/1", b"/2", KTHXBAI) for _, messages in plain for m in messages)
        turn.replies = [(i, messages) for i, messages in turn.replies if i != b"plain"]
    return turns
