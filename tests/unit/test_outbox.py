"""Tests that the outbox cuts a large segment into batches, in order, within limits, with its columns; and of echoes."""

from dataclasses import replace
from typing import Any

import pytest

from chp.batch import Segment
from chp.errors import BadValue
from chp.keys import public_session
from chp.limits import DEFAULT, Limits
from chp_client.core.outbox import Outbox, cut, echoed, size_of

# The bytes for items, beside those that a batch keeps for its header.
ROOM = 1000
FEW = replace(DEFAULT, batch_items_max=4)
SMALL = replace(DEFAULT, batch_bytes_max=65_536 + ROOM)


def parts(segment: Segment, limits: Limits) -> list[Segment]:
    return cut(segment, size_of(segment), limits)


def segment(n: int, size: int = 1, **extras: Any) -> Segment:
    return Segment([f"/{i}" for i in range(n)], [bytes(size) for _ in range(n)], extras or None)


@pytest.mark.parametrize(("n", "sizes"), [(0, [0]), (4, [4]), (5, [4, 1]), (9, [4, 4, 1])])
def test_no_part_has_more_items_than_a_batch_may_have(n: int, sizes: list[int]) -> None:
    whole = segment(n)
    got = parts(whole, FEW)
    assert [len(part.keys) for part in got] == sizes
    assert [key for part in got for key in part.keys] == whole.keys
    assert len(got) > 1 or got[0] is whole


@pytest.mark.parametrize("letter", ["k", "\U0001f511"])
def test_no_part_exceeds_the_bytes_of_a_batch_except_a_single_item(letter: str) -> None:
    keys = [f"/{letter * 50}{i}" for i in range(40)]
    values = [bytes(3 * ROOM if i == 7 else 20) for i in range(40)]
    got = parts(Segment(keys, values), SMALL)
    assert [key for part in got for key in part.keys] == keys
    assert [value for part in got for value in part.values] == values
    for part in got:
        assert len(part.keys) == 1 or len("".join(part.keys).encode()) + sum(map(len, part.values)) <= ROOM
    assert len(got) < 20, "and each has about as many as it may"


def test_deletes_and_ttls_stay_with_their_keys() -> None:
    got = parts(segment(9, d=[0, 5], t=[[1, 4, 8], [10, 40, 80]]), FEW)
    assert [part.extras for part in got] == [
        {"d": [0], "t": [[1], [10]]},
        {"d": [1], "t": [[0], [40]]},
        {"t": [[0], [80]]},
    ]
    assert [part.extras for part in parts(segment(9, t=70, d=[8]), FEW)] == [{"t": 70}, {"t": 70}, {"t": 70, "d": [0]}]


def test_echoed_accepts_only_the_exact_bytes_of_the_batches() -> None:
    outbox = Outbox(b"s" * 16)
    batches = [outbox.add(segment(n), None, True) for n in (1, 3)]
    assert not echoed(batches, b"head", 4), "none of it was sent"
    body = b"head" + b"".join(batch.encode() for batch in batches)
    assert echoed(batches, body, 4)
    for other in (body[:-1] + b"!", b"head" + b"!" + body[5:], body + b"!", body[:-1]):
        assert not echoed(batches, other, 4)
    assert not echoed(batches[:1], body, 4) and not echoed(batches[::-1], body, 4)


def test_a_conditional_set_is_not_cut() -> None:
    with pytest.raises(BadValue, match="must fit one batch"):
        parts(segment(5, c=[[0], [1]]), FEW)


def test_reopen_counts_the_session_up_and_changes_the_client_after_the_last() -> None:
    """Otherwise the count would begin at 0 again, and a server refuses a session below a known one for ever."""
    outbox = Outbox(b"s" * 12 + b"\xff\xff\xff\xfe")
    outbox.reopen()
    assert outbox.session == b"s" * 12 + b"\xff" * 4
    outbox.reopen()
    assert outbox.session[:12] != b"s" * 12 and outbox.session[12:] == bytes(4)
    assert outbox.session[:12] not in (outbox.public[:12], public_session(b"s" * 16)[:12]), "nor one that others know"
    assert outbox.public == public_session(outbox.session)


@pytest.mark.parametrize("conditional", [True, False])
def test_no_cut_batch_exceeds_the_bytes_that_a_server_takes(conditional: bool) -> None:
    """A server answers nothing to a frame of more than 17 MiB; of what `cut` lets pass none has so many."""
    n, most, every = DEFAULT.batch_items_max, 1 << 62, list(range(DEFAULT.batch_items_max))
    ends = {"c": [every, [most] * n]} if conditional else {"d": every[::2]}
    room = DEFAULT.batch_bytes_max - 65_536 - 64 - sum(len(f"/{i}") + 8 for i in every)
    whole = Segment([f"/{i}" for i in every], [bytes(room // n)] * n, {"t": [every, [300_000_000_000] * n], **ends})
    try:
        got = parts(whole, DEFAULT)
    except BadValue:
        assert conditional
        return
    assert max(len(part.encode()) for part in got) <= DEFAULT.body_bytes_max
