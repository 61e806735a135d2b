"""Hundreds of requests for a copy in one turn cost one look at all keys, and each is answered as of its own place."""

import msgpack
import pytest

from chp.batch import split
from chp.keys import RESERVED_KEY
from chp.messages import KTHXBAI
from chp_server import requests
from chp_server.core import CoreConfig, ServerCore
from chp_server.syncs import Image
from chp_server.turn import Turn

REQUESTS = 300


def icanhaz(reader: int, subtree: bytes = b"") -> list[bytes]:
    return [b"%d" % reader, b"ICANHAZ?", subtree, msgpack.packb({"chp": 2, "id": reader})]


def kvset(no: int) -> list[bytes]:
    return [RESERVED_KEY, no.to_bytes(8), b"s" * 16, b"", msgpack.packb([[f"/{no}"], [b"v"], None])]


def ends(turns: list[Turn]) -> dict[int, int]:
    """The number of keys that each reader was told at the end."""
    headers = [split(m[4])[0] for turn in turns for _, messages in turn.replies for m in messages]
    return {header[1]: header[3] for header in headers if header[0] == 5}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    subtrees: list[str] = []

    def image(hashmap: object, subtree: str, number: int) -> Image:
        subtrees.append(subtree)
        return Image(hashmap, subtree, number)  # type: ignore[arg-type]

    monkeypatch.setattr(requests, "Image", image)
    return subtrees


def test_those_of_one_turn_and_number_share_an_image(made: list[str]) -> None:
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
    assert made == ["", "/none/", ""]
    assert ends(_without_plain(turns)) == {
        **dict.fromkeys(range(REQUESTS), 1),
        REQUESTS: 0,
        REQUESTS + 1: 2,
    }


def _without_plain(turns: list[Turn]) -> list[Turn]:
    for turn in turns:
        plain = [(i, messages) for i, messages in turn.replies if i == b"plain"]
        assert not plain or all(m[0] in (b"/1", KTHXBAI) for _, messages in plain for m in messages)
        turn.replies = [(i, messages) for i, messages in turn.replies if i != b"plain"]
    return turns
