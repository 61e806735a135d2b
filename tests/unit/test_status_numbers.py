"""Tests that no number which a client or a peer names breaks the status. covers: commit.py, scrub.py and history.py"""

from __future__ import annotations

import msgpack
import pytest

from chp.batch import Segment
from chp.errors import BadFrame
from chp.keys import ETX, OLDEST_HELD, RESERVED_KEY, STX
from chp.messages import ICANHAZ
from chp.numbers import pack
from chp.versions import VERSION
from chp_server.core.peer.scrub import Scrub
from chp_server.core.state.history import EpochEntry, from_list, to_list

from .server_talk import Talk

HUGE = 2**64 - 1
FINE = EpochEntry(5, 7, b"o" * 16, "primary", "started", 1000)


def test_the_status_is_answered_after_sessions_skip_all_possible_batches() -> None:
    talk = Talk()
    for session in (b"1" * 16, b"2" * 16, b"3" * 16):
        talk.core.collect([RESERVED_KEY, pack(HUGE), session, OLDEST_HELD, Segment(["/a"], [b"1"], None).encode()])
        talk.turn()
    question = msgpack.packb({"chp": VERSION, "id": 1})
    talk.core.request([b"operator", ICANHAZ, STX + b"status" + ETX, question])
    assert len(talk.turn().replies) == 1


@pytest.mark.parametrize(("keys", "differences"), [(HUGE, 1), (1, HUGE), (1, -1)])
def test_a_scrub_answer_with_impossible_counts_is_refused(keys: int, differences: int) -> None:
    scrub = Scrub(60.0, 0.25)
    with pytest.raises(BadFrame, match="two numbers up to 4096"):
        scrub.answered(msgpack.packb([0, keys, ["/a"], differences, True]), 1.0)
    assert scrub.last.keys == scrub.last.differences == 0


@pytest.mark.parametrize("field", range(len(FINE)))
def test_a_malformed_history_is_refused(field: int) -> None:
    assert from_list(to_list({1: FINE})) == {1: FINE}
    bad = [*FINE[:field], None, *FINE[field + 1 :]]
    with pytest.raises(ValueError, match="has no epoch 1 with"):
        from_list([[1, *bad]])
    with pytest.raises(ValueError, match="has no epoch None"):
        from_list([[None, *FINE]])
