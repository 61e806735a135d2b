"""covers: replies.py: readers that ask and read nothing cost bounded memory, and the server serves others meanwhile."""

import os
from dataclasses import replace

from chp.limits import DEFAULT
from chp_server.testing import TestServer
from tests.talk import until
from tests.wire.hand import ICANHAZ, Hand, parts_of, receive

MIB = 1 << 20
LIMITS = replace(DEFAULT, reader_bytes_max=8 * MIB, sync_turn_bytes=4 * MIB, syncs_of_one_max=100)


def largest_unsent(server: TestServer) -> int:
    """Wait until a reader's queue is full, and return the largest number of bytes that were held for a reader."""
    assert server.server is not None
    core, replies = server.server.core, server.server.replies
    until(lambda: core.requests.blocked, "it is full")
    return replies.largest


def nothing_waits(server: TestServer) -> bool:
    """Return True if the server has dropped all waiting messages."""
    assert server.server is not None
    return not server.server.replies.waits


def test_unread_snapshots_take_a_bounded_amount_of_memory() -> None:
    with TestServer(LIMITS, heartbeat_s=0.1) as server, Hand(server.address) as hand:
        session = hand.session()
        for i in range(16):
            session.put({f"/{i}": os.urandom(MIB)})
        for ask in ("classic", "chp2"):
            with Hand(server.address) as other:
                deaf = other.dealer(RCVHWM=1, RCVBUF=4096)
                for _ in range(50):
                    if ask == "classic":
                        deaf.send_multipart([ICANHAZ, b""])
                    else:
                        other.ask(deaf, "", credit=64)
                bound = LIMITS.reader_bytes_max + LIMITS.sync_turn_bytes + 3 * MIB
                assert largest_unsent(server) <= bound
                assert len(hand.snapshot()[0]) == 16, "others are served"
                assert hand.sync()[-1][0][3] == 16
            until(lambda: nothing_waits(server), "it has left")


def test_a_slow_reader_of_large_values_gets_all_of_them() -> None:
    with TestServer(LIMITS, heartbeat_s=0.1) as server, Hand(server.address) as hand:
        session = hand.session()
        values = {f"/{i}": os.urandom(MIB) for i in range(40)}
        for key, value in values.items():
            session.put({key: value})
        dealer = hand.dealer(RCVHWM=1, RCVBUF=4096)
        hand.ask(dealer, "", credit=64)
        largest_unsent(server)
        found: dict[str, bytes] = {}
        while (parts := parts_of(receive(dealer)))[0][0] == 3:
            found.update(zip(parts[1][0], parts[1][1], strict=True))
        assert found == values


def test_one_connection_cannot_have_more_snapshots_than_its_limit() -> None:
    with TestServer(LIMITS, heartbeat_s=0.1) as server, Hand(server.address) as hand:
        session = hand.session()
        session.put({"/a": os.urandom(2 * MIB), "/b": os.urandom(2 * MIB)})
        dealer = hand.dealer()
        for _ in range(LIMITS.syncs_of_one_max + 5):
            hand.ask(dealer, "", credit=1)
        refused = 0
        while refused < 5:
            header = parts_of(receive(dealer))[0]
            refused += header[0] == 7 and header[2] == "busy"
        assert hand.status()["syncs"] == LIMITS.syncs_of_one_max
        assert hand.sync()[-1][0][3] == 2


def test_many_unread_connections_share_bounded_memory_and_are_cut_off() -> None:
    """More connections get less memory each. Under pressure the server cuts readers that take nothing off sooner."""
    limits = replace(LIMITS, readers_bytes_max=24 * MIB, reader_pressed_s_max=1.0)
    with TestServer(limits, heartbeat_s=0.1) as server, Hand(server.address) as hand, Hand(server.address) as other:
        session = hand.session()
        for i in range(16):
            session.put({f"/{i}": os.urandom(MIB)})
        assert server.server is not None
        core, replies, most = server.server.core, server.server.replies, 0
        deaf = [other.dealer(RCVHWM=1, RCVBUF=4096) for _ in range(12)]
        for each in deaf:
            for _ in range(20):
                other.ask(each, "", credit=64)
            until(lambda: core.requests.blocked, "one is full")
            most = max(most, replies.waits)
            assert len(hand.snapshot()[0]) == 16, "others are served"
        assert most <= limits.readers_bytes_max + limits.sync_turn_bytes
        until(lambda: core.committer.counts["readers_given_up"], "they are cut off")
        until(lambda: replies.waits <= limits.readers_bytes_max // 2, "and what waited for them is let go")
        assert hand.sync()[-1][0][3] == 16
