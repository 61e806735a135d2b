"""covers: which columns of a segment exclude each other, by what a server that is asked says."""

from __future__ import annotations

from typing import Any

import pytest

from chp.topics import pack_messages
from tests.wire.played import LEASE_ID, TRANSACTION, kvset, verdict

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
def test_what_does_not_go_together_is_refused(extras: dict[str, Any]) -> None:
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
def test_what_goes_together_is_done(keys: list[str], extras: dict[str, Any]) -> None:
    assert verdict("kvset", kvset(1, keys, [b"1"] * len(keys), extras)) == "taken"
