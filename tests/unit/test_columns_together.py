"""covers: which columns of a segment exclude each other, and which ones a reader ignores."""

from __future__ import annotations

from typing import Any

import pytest

from chp.batch import packb, segment_of
from chp.errors import BadFrame
from chp.numbers import pack
from chp.topics import pack_messages
from tests.wire.played import LEASE_ID, TRANSACTION, Followed, Servers, kvset, verdict

TOLD = [["orders", 1, pack_messages(None, [b"1"])]]
STAGED = [TRANSACTION, "0.0"]
COMMIT = [TRANSACTION, "", 1, [], None]
SLOTS = b"\xff" * 32


@pytest.mark.parametrize(
    "extras",
    [
        {"topic": ["orders", {}], "publish": TOLD},
        {"topic": ["orders", {}], "stage": STAGED},
        {"group": ["orders", "g", {}], "publish": TOLD},
        {"group": ["orders", "g", {}], "topic": ["orders", {}]},
        {"group": ["orders", "g", {}], "stage": STAGED},
        {"join": ["orders", "g", LEASE_ID, ""], "stage": STAGED},
        {"ack": [["orders", "g", LEASE_ID, [[SLOTS, 0, 1]]]], "stage": STAGED},
        {"ack": [["orders", "g", LEASE_ID, [[SLOTS, 0, 1]]]], "commit": COMMIT},
        {"expect": [["/a", 0]], "stage": STAGED},
        {"once": ["job", 1, False], "stage": STAGED},
        {"once": ["job", 1, False], "commit": COMMIT},
        {"publish": [["orders", 2, pack_messages(None, [b"1"])]]},
        {"publish": [["orders", 1, b"\x92\xc0\x91\xa11"]]},
        {"publish": [["orders", 1, b"\x92\x92\xa1a\xa1b\x91\xc4\x011"]]},
        {"publish": [["orders", 0, b"\x92\xc0\x90"]]},
    ],
    ids=" ".join,
)
def test_columns_that_exclude_each_other_or_are_malformed_are_refused(extras: dict[str, Any]) -> None:
    assert verdict("kvset", kvset(1, [], [], extras)) == "bad"


@pytest.mark.parametrize(
    ("keys", "extras"),
    [
        ([], {"publish": TOLD, "stage": STAGED}),
        (["/a"], {"publish": TOLD, "expect": [["/b", 0]], "once": ["job", 1, True]}),
        ([], {"group": ["orders", "g", {}]}),
        (["/a"], {"stage": STAGED, "n": [[0], [1]], "t": 1000}),
    ],
    ids=" ".join,
)
def test_columns_that_may_be_combined_are_taken(keys: list[str], extras: dict[str, Any]) -> None:
    assert verdict("kvset", kvset(1, keys, [b"1"] * len(keys), extras)) == "taken"


def test_an_attempt_that_a_commit_does_not_name_is_dropped() -> None:
    server = Servers()
    for no, (key, attempt) in enumerate((("/a", "0.0"), ("/b", "0.1"), ("/c", "0.1")), 1):
        frames = kvset(no, [key], [b"1"], {"stage": [TRANSACTION, attempt]})
        server.turn(lambda core, frames=frames: core.collect(frames))  # type: ignore[misc]
    assert not server.cores[0].state.map.revisions
    commit = kvset(4, [], [], {"commit": [TRANSACTION, "job", 1, [["0.1", 2]], None]})
    server.turn(lambda core: core.collect(commit))
    assert set(server.cores[0].state.map.revisions) == {"/b", "/c"}


@pytest.mark.parametrize("runs", [[], [[5, 2]], [[5, 0], [6, 1]], [[5, 1], [6, 1]], [[-1, 1]]])
def test_revision_runs_that_do_not_match_the_keys_are_refused(runs: list[list[int]]) -> None:
    assert segment_of([["/a"], [b"1"], {"r": [[5, 1]]}]).keys == ["/a"]
    with pytest.raises(BadFrame):
        segment_of([["/a"], [b"1"], {"r": runs}])


def test_a_reader_ignores_columns_that_it_does_not_know() -> None:
    followed = Followed("/r/")
    (channel,) = followed.client.copy_channels.all
    at = channel.at
    header = [1, at, at + 1, at + 1, 0, [], False]
    columns = {"colour": "blue", "c": [[0], [7]], "u": [b"", b""], "ended": True, "d": [1]}
    body = packb([header, [["/r/new", "/r/a"], [b"1", b"ignored"], columns]])
    followed.client.on_update(0, [followed.topic, pack(at + 1), b"", b"", body], followed.servers.now)
    assert followed.client.shown == {"/r/new": b"1"} and channel.at == at + 1
    assert followed.client.stats["garbage"] == 0
