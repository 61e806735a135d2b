"""covers: js/chp/core.js: which server the browser's client follows, and when it opens a new session, in Node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chp.batch import packb
from tests.wire.node import Program, node
from tests.wire.test_js_vectors import HELPERS, SESSION

pytestmark = [node, pytest.mark.slow]

GREETING, ACK, REFUSED = 0, 6, 7
BACKUP, ACTIVE = 1, 3
UPDATES, COLLECTOR = 1, 2
PUBLIC = bytes(16)
CHANNEL, OWN = b"\x02/r/\x03", b"\x02@" + PUBLIC.hex().encode() + b"\x03"

CORE = (
    HELPERS
    + """
const core = new Core({ session: bytes(await hear()), publicId: new Uint8Array(16), subtree: "/r/" });
const no = (frame) => Number(new DataView(frame.buffer, frame.byteOffset).getBigUint64(0));
const request = (frames) => unpack(frames[2]);
core.opened(2, 0);
for (;;) {
  const [what, now, ...rest] = await hear();
  if (what === "set") core.submit([rest[0]], [new Uint8Array(1)], null, rest[0], now);
  else if (what === "receive") core.receive(rest[0], rest[1], rest.slice(2).map(bytes), now);
  else core.timer(now);
  const { send } = core.take(), to = (wanted) => send.filter(([, port]) => port === wanted);
  say({
    sent: to(2).map(([server, , frames]) => [server, no(frames[1]), hex(frames[3])]),
    asked: to(0).map(([server, , frames]) => [server, request(frames).credit, String(request(frames).from)]),
    sessions: core.stats.sessions,
  });
}
"""
)


def number_of(epoch: int, n: int) -> int:
    return (epoch << 48) + n


class Talk:
    """A core in Node, with two servers that the test plays."""

    def __init__(self, program: Program) -> None:
        self._program = program
        program.tell(SESSION.hex())
        for server in (0, 1):
            self.receive(0, server, COLLECTOR, b"\x01")

    def ask(self, what: str, now: int, *rest: Any) -> Any:
        self._program.tell([what, now, *rest])
        return self._program.hear()

    def timer(self, now: int) -> Any:
        return self.ask("timer", now)

    def receive(self, now: int, server: int, port: int, *frames: bytes) -> Any:
        return self.ask("receive", now, server, port, *(frame.hex() for frame in frames))

    def told(self, now: int, server: int, where: bytes, number: int, *header: Any) -> Any:
        body = packb([list(header)])
        return self.receive(now, server, UPDATES, where, number.to_bytes(8, "big"), b"", b"", body)

    def greet(self, now: int, server: int, state: int, number: int) -> list[Any]:
        """Let a server greet both channels, and return the questions that the core asks then."""
        header = (GREETING, 6, state, number, 250, bytes([server]) * 16)
        return [ask for where in (OWN, CHANNEL) for ask in self.told(now, server, where, number, *header)["asked"]]

    def join(self) -> None:
        """Follow server 0 in epoch 5, with a copy that is empty."""
        assert [each[0] for each in self.greet(0, 0, ACTIVE, number_of(5, 9))] == [0]
        self.greet(0, 1, BACKUP, number_of(4, 2))

    def refused(self, now: int, server: int, no: int, wanted: int) -> Any:
        return self.told(now, server, OWN, number_of(5, 9), REFUSED, no, "expected", wanted)


@pytest.fixture
def talk(tmp_path: Path) -> Any:
    with Program(tmp_path, CORE) as program:
        yield Talk(program)


def test_the_client_follows_the_server_that_acknowledges_in_a_higher_epoch(talk: Talk) -> None:
    talk.join()
    talk.ask("set", 10, "/r/1")
    said = talk.told(20, 1, OWN, number_of(6, 1), ACK, [[1, 1, number_of(6, 1)]], 1)
    assert [each[0] for each in said["asked"]] == [1], "it follows the server that acknowledged"
    assert talk.greet(30, 0, ACTIVE, number_of(5, 12)) == [], "the server of the lower epoch is not followed again"


def test_a_server_of_a_lower_epoch_is_followed_a_second_after_a_vote(talk: Talk) -> None:
    talk.join()
    # Server 1 starts again, and has lost all that it knew of epoch 5.
    talk.receive(4000, 1, COLLECTOR, b"\x00")
    talk.timer(4500)
    talk.receive(5000, 1, COLLECTOR, b"\x01")
    assert talk.greet(5010, 1, ACTIVE, number_of(4, 2)) == [], "it was not told of epoch 5 yet"
    assert [each[0] for each in talk.timer(5100)["asked"]] == [1], "the vote tells it"
    assert talk.greet(5900, 1, ACTIVE, number_of(4, 2)) == []
    assert talk.greet(6200, 1, ACTIVE, number_of(4, 2)) == [[1, 16, "0"]], "nobody rose above epoch 5"


def test_a_lower_epoch_server_is_followed_in_the_end_without_a_vote(talk: Talk) -> None:
    talk.join()
    talk.receive(100, 1, COLLECTOR, b"\x00")
    for now in (5000, 20_000, 34_000):
        talk.timer(now)
        assert talk.greet(now, 1, ACTIVE, number_of(4, 2)) == [], "its port P+2 is down, so no vote reaches it"
    assert talk.greet(35_500, 1, ACTIVE, number_of(4, 2)) == [[1, 16, "0"]]


def test_refusals_of_later_batches_do_not_hide_refusals_of_the_oldest_batch(talk: Talk) -> None:
    talk.join()
    for no in (1, 2, 3):
        talk.ask("set", 10, f"/r/{no}")
    talk.told(20, 0, OWN, number_of(5, 10), ACK, [[1, 1, number_of(5, 10)]], 1)
    for now in (100, 3000, 6000):
        talk.refused(now, 0, 3, 1)
        sessions = talk.refused(now + 10, 0, 2, 1)["sessions"]
    assert sessions == 2


def test_only_refusals_of_the_oldest_batch_open_a_new_session(talk: Talk) -> None:
    talk.join()
    for no in (1, 2, 3):
        talk.ask("set", 10, f"/r/{no}")
    talk.told(20, 0, OWN, number_of(5, 10), ACK, [[1, 1, number_of(5, 10)]], 1)
    said = talk.refused(100, 0, 2, 1)
    assert said["sent"] == [[0, 2, "01"], [0, 3, ""]], "the oldest batch is marked"
    for now in (3000, 6000, 9000, 12_000):
        assert talk.refused(now, 0, 3, 1)["sessions"] == 1, "a later batch may have waited since before the mark"
    assert talk.refused(15_000, 0, 2, 1)["sessions"] == 1
    said = talk.refused(18_000, 0, 2, 1)
    assert said["sessions"] == 2, "the third refusal of the oldest batch"
