"""A CHP/1 client that gets more updates during a snapshot than it may hold back asks for another one."""

from chp_client.core.events import State
from tests.unit.test_client_chp1 import Chp1Talk

UPDATES = {f"/{i}": b"x" * 100 for i in range(5, 15)}


def test_a_chp1_client_asks_for_another_snapshot_after_an_overflow() -> None:
    talk = Chp1Talk(limits={"join_buffer_bytes": 1000})
    talk.found()
    for number, (key, value) in enumerate(UPDATES.items(), 5):
        talk.kvpub(key, number, value)
    talk.answer(4, ("/a", 4, b"1"))
    assert talk.core.state is not State.SYNCED and talk.core.stats["join_overflows"] == 1
    assert len(talk.chp1_asked) == 2, "it has asked again"
    talk.answer(14, ("/a", 4, b"1"), *((key, 14, value) for key, value in UPDATES.items()))
    assert talk.core.state is State.SYNCED and talk.map == {"/a": b"1", **UPDATES}
