"""A channel by itself: what it makes of a batch is a matter of epochs and numbers."""

from collections import Counter

import pytest

from chp.batch import Segment
from chp.headers import Batch, Kthxbai, header_of
from chp.limits import DEFAULT
from chp_client.core.copy.channel import BatchVerdict, CopyChannel

EPOCH = 1 << 48
ITEMS = [[["/a"], [b"1"], None]]


@pytest.fixture
def channel() -> CopyChannel:
    made = CopyChannel("", {}, Counter(), DEFAULT, lambda after, upto: [])
    made.at, made.live = 2 * EPOCH | 5, True
    return made


@pytest.mark.parametrize(
    ("prev", "first", "verdict", "held"),
    [
        # This batch was seen already.
        (2 * EPOCH | 4, 2 * EPOCH | 5, BatchVerdict.FINE, {}),
        # This batch comes from a stale server.
        (1 * EPOCH | 8, 1 * EPOCH | 9, BatchVerdict.FINE, {}),
        # The history may have changed.
        (3 * EPOCH | 5, 3 * EPOCH | 6, BatchVerdict.RESUME, {}),
        # There is a hole before this batch.
        (2 * EPOCH | 6, 2 * EPOCH | 7, BatchVerdict.RESUME, {}),
        (2 * EPOCH | 5, 2 * EPOCH | 6, BatchVerdict.FINE, {"/a": b"1"}),
        # The numbers between belong to other subtrees.
        (2 * EPOCH | 1, 2 * EPOCH | 7, BatchVerdict.FINE, {"/a": b"1"}),
    ],
)
def test_a_batch_is_applied_only_if_it_follows_the_position(
    channel: CopyChannel, prev: int, first: int, verdict: BatchVerdict, held: dict[str, bytes]
) -> None:
    header = Batch(prev, first, first, 0, [], False)
    assert channel.on_batch(header, ITEMS, size=10, crc=0, session=b"s" * 16, now=0.0) is verdict
    assert channel.replica.shown == held and channel.at == (first if held else 2 * EPOCH | 5)


def test_a_channel_that_is_not_complete_yet_holds_batches_back(channel: CopyChannel) -> None:
    channel.live = False
    header = Batch(2 * EPOCH | 5, 2 * EPOCH | 6, 2 * EPOCH | 6, 0, [], False)
    assert channel.on_batch(header, ITEMS, size=10, crc=0, session=b"s" * 16, now=0.0) is BatchVerdict.FINE
    assert channel.replica.shown == {} and channel.at == 2 * EPOCH | 5


def test_unknown_fields_of_a_later_version_in_a_header_are_ignored(channel: CopyChannel) -> None:
    header = header_of([1, 2 * EPOCH | 5, 2 * EPOCH | 6, 2 * EPOCH | 6, 0, [], False, None, "new"])
    assert isinstance(header, Batch)
    assert channel.on_batch(header, ITEMS, size=10, crc=0, session=b"s" * 16, now=0.0) is BatchVerdict.FINE
    assert channel.replica.shown == {"/a": b"1"}


def test_an_answered_own_set_that_was_lost_is_not_shown_for_ever() -> None:
    """The server's answer was lost with its suffix; the next server says that the batch is over, and lacks it."""
    made = CopyChannel("", {}, Counter(), DEFAULT, lambda after, upto: [], unanswered=lambda: [2])
    made.at, made.live = 2 * EPOCH | 5, True
    own = Segment(["/a"], [b"own"], None)
    made.replica.show(own)
    made.replica.pending.add(own.keys, 1)
    session = made.ask(1, 0, made.at, 0.0).session = b"s" * 16
    end = Kthxbai(1, 3 * EPOCH | 9, 0, 0, 1, True, proof=[b"", b""])
    assert made.on_kthxbai(end, session, 0.0) is BatchVerdict.REFETCH
    made.ask(2, 0, 0, 0.0).session = session
    assert made.on_kthxbai(end._replace(resumed=False), session, 0.0) is BatchVerdict.FINE
    assert made.replica.shown == {}


def test_a_lost_own_set_between_unanswered_ones_is_not_shown_for_ever() -> None:
    """An active answered 2 and not 1, and was lost with both; the next one answers 1 while the copy is on its way."""
    unanswered = [1, 3]
    made = CopyChannel("", {}, Counter(), DEFAULT, lambda after, upto: [], unanswered=lambda: unanswered)
    made.at, made.live = 2 * EPOCH | 5, True
    for no, keys in enumerate((["/x"], ["/a", "/again"], ["/again"]), 1):
        made.replica.show(Segment(keys, [b"own"] * len(keys), None))
        made.replica.pending.add(keys, no)
    session = made.ask(1, 0, made.at, 0.0).session = b"s" * 16
    unanswered.remove(1)
    end = Kthxbai(1, 3 * EPOCH | 9, 0, 0, 1, True, proof=[b"", b""])
    assert made.on_kthxbai(end, session, 0.0) is BatchVerdict.REFETCH
    made.ask(2, 0, 0, 0.0).session = session
    assert made.on_kthxbai(end._replace(resumed=False), session, 0.0) is BatchVerdict.FINE
    assert "/a" not in made.replica.shown
    assert made.replica.shown["/again"] == b"own" and made.replica.pending.keys() == {"/again"}


def test_a_later_epochs_snapshot_leaves_only_unanswered_own_sets_pending() -> None:
    made = CopyChannel("", {}, Counter(), DEFAULT, lambda after, upto: [], unanswered=lambda: [2])
    made.at, made.live = 2 * EPOCH | 5, True
    for no, key in enumerate(("/answered", "/open"), 1):
        made.replica.show(Segment([key], [b"own"], None))
        made.replica.pending.add([key], no)
    session = made.ask(1, 0, 0, 0.0).session = b"s" * 16
    made.on_kthxbai(Kthxbai(1, 3 * EPOCH | 9, 0, 0, None, False, proof=[b"", b""]), session, 0.0)
    assert made.replica.pending.keys() == {"/open"}
