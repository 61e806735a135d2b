"""Tests of a channel that the server has no room for: the client reports it, and asks ever later until there is room.

covers: REFUSED `busy` on a subtree's topic (SPEC.md, section 15), in the client's core.
"""

from chp.versions import VERSION
from tests.unit.client_frames import ACTIVE, Talk, message, n, own_topic, topic

NO_ROOM = "too many channels"


class Refusing(Talk):
    """A server that greets our own channel, and has no room for the subtrees that it is told."""

    def __init__(self, *subtrees: str) -> None:
        self.asked: list[float] = []
        self.anew: list[int] = []
        self.warned: list[str] = []
        self.full: set[str] = set()
        super().__init__(*subtrees)

    def take(self) -> None:
        effects = self.core.take()
        self.warned += effects.warnings
        self.anew += effects.reconnect
        full = {topic(subtree) for subtree in self.full}
        asked = [name for _, name in effects.subscribe if name in full]
        self.core.take = lambda: effects  # type: ignore[method-assign]
        try:
            super().take()
        finally:
            del self.core.take
        for name in asked:
            self.asked.append(self.now)
            self.update(message(name, n(1), [7, 0, "busy", NO_ROOM]))

    def greet_own(self) -> None:
        self.update(message(own_topic(), n(1), [0, VERSION, ACTIVE, n(1), 250, b"S" * 16, "server0"]))

    def greet_on(self, subtree: str) -> None:
        self.update(message(topic(subtree), n(1), [0, VERSION, ACTIVE, n(1), 250, b"S" * 16, "server0"]))


def refused() -> Refusing:
    talk = Refusing("/a/")
    talk.full = {"/a/"}
    talk.up()
    talk.greet_own()
    talk.update(message(topic("/a/"), n(1), [7, 0, "busy", NO_ROOM]))
    return talk


def test_a_refused_channel_is_logged_once_and_described() -> None:
    talk = refused()
    talk.wait(20.0)
    assert talk.warned == [f"tcp://server0:5556 refused the subscription of '/a/', busy: {NO_ROOM}; trying on"]
    assert f"refused: the subscription of '/a/', busy: {NO_ROOM}" in talk.core.describe(talk.now)


def test_a_refused_channel_is_retried_ever_later_on_one_connection() -> None:
    talk = refused()
    talk.wait(120.0)
    waits = [b - a for a, b in zip(talk.asked, talk.asked[1:], strict=False)]
    assert waits == sorted(waits) and waits[0] < 3 and 25 < waits[-1] < 35, waits
    assert len(talk.asked) < 12
    assert talk.anew == [], "a server that answers is not deaf"


def test_a_refused_channel_is_joined_once_the_server_has_room() -> None:
    talk = refused()
    talk.wait(5.0)
    talk.full = set()
    talk.greet_on("/a/")
    talk.snapshot(n(1), {"/a/x": (b"1", n(1))})
    assert talk.map == {"/a/x": b"1"}
    assert "refused" not in talk.core.describe(talk.now)
    talk.full = {"/a/"}
    talk.update(message(topic("/a/"), n(1), [7, 0, "busy", NO_ROOM]))
    assert len(talk.warned) == 2, "it is news again"


def test_one_refused_channel_of_two_leaves_the_other_current() -> None:
    talk = Refusing("/a/", "/b/")
    talk.full = {"/b/"}
    talk.up()
    talk.greet_own()
    talk.greet_on("/a/")
    talk.snapshot(n(1), {"/a/x": (b"1", n(1))})
    talk.update(message(topic("/b/"), n(1), [7, 0, "busy", NO_ROOM]))
    for _ in range(40):
        talk.wait(0.25)
        talk.heartbeat(n(1), on="/a/")
    assert talk.map == {"/a/x": b"1"} and 1 <= len(talk.asked) <= 6
    assert "'/b/', busy" in talk.core.describe(talk.now)
