"""A channel by itself: what it makes of a batch is a matter of epochs and numbers."""

from collections import Counter

import pytest

from chp.limits import DEFAULT
from chp_client.channel import Channel, Verdict

EPOCH = 1 << 48


@pytest.fixture
def channel() -> Channel:
    made = Channel("", {}, Counter(), DEFAULT, lambda after, upto: [])
    made.at, made.live = 2 * EPOCH | 5, True
    return made


@pytest.mark.parametrize(
    ("prev", "first", "verdict", "held"),
    [
        (2 * EPOCH | 4, 2 * EPOCH | 5, Verdict.FINE, {}),  # seen already
        (1 * EPOCH | 8, 1 * EPOCH | 9, Verdict.FINE, {}),  # a stale server's
        (3 * EPOCH | 5, 3 * EPOCH | 6, Verdict.RESUME, {}),  # history may have changed
        (2 * EPOCH | 6, 2 * EPOCH | 7, Verdict.RESUME, {}),  # a hole
        (2 * EPOCH | 5, 2 * EPOCH | 6, Verdict.FINE, {"/a": b"1"}),
        (2 * EPOCH | 1, 2 * EPOCH | 7, Verdict.FINE, {"/a": b"1"}),  # what is between concerns others
    ],
)
def test_a_batch_is_applied_if_it_follows(
    channel: Channel, prev: int, first: int, verdict: Verdict, held: dict[str, bytes]
) -> None:
    parts = [[1, prev, first, first, 0, [], False], [["/a"], [b"1"], None]]
    assert channel.on_batch(parts, 10, 0, b"s" * 16, 0.0) is verdict
    assert channel.replica.shown == held and channel.at == (first if held else 2 * EPOCH | 5)


def test_a_channel_that_is_not_complete_yet_holds_batches_back(channel: Channel) -> None:
    channel.live = False
    parts = [[1, 2 * EPOCH | 5, 2 * EPOCH | 6, 2 * EPOCH | 6, 0, [], False], [["/a"], [b"1"], None]]
    assert channel.on_batch(parts, 10, 0, b"s" * 16, 0.0) is Verdict.FINE
    assert channel.replica.shown == {} and channel.at == 2 * EPOCH | 5


def test_what_a_later_version_adds_to_a_header_is_let_be(channel: Channel) -> None:
    parts = [[1, 2 * EPOCH | 5, 2 * EPOCH | 6, 2 * EPOCH | 6, 0, [], False, "new"], [["/a"], [b"1"], None]]
    assert channel.on_batch(parts, 10, 0, b"s" * 16, 0.0) is Verdict.FINE
    assert channel.replica.shown == {"/a": b"1"}
