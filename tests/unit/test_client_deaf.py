"""A client that hears nothing on P+1 of servers that live connects its SUB sockets anew, and not before."""

from chp_client.core.core import Timing
from tests.unit.client_frames import PASSIVE, Talk, n

DEAF_S = Timing().deaf_s


class Deaf(Talk):
    """A talk that also gathers the servers whose P+1 is to be connected anew, with the times."""

    def take(self) -> None:
        taken = self.core.take()
        self.anew = [*getattr(self, "anew", []), *((i, round(self.now)) for i in taken.reconnect)]
        self.core.take = lambda: taken  # type: ignore[method-assign]
        try:
            super().take()
        finally:
            del self.core.take


def joined(servers: int = 1) -> Deaf:
    talk = Deaf(servers=servers)
    for i in range(servers):
        talk.up(i)
        talk.greet(PASSIVE if i else 3, told=n(1), server=i)
    return talk


def test_a_client_reconnects_repeatedly_to_a_live_silent_server() -> None:
    talk = joined()
    talk.wait(DEAF_S - 0.1)
    assert talk.anew == []
    talk.wait(3 * DEAF_S)
    assert [i for i, _ in talk.anew] == [0, 0, 0]
    assert all(b - a >= DEAF_S for (_, a), (_, b) in zip(talk.anew, talk.anew[1:], strict=False))


def test_a_client_stops_reconnecting_once_the_server_is_heard() -> None:
    talk = joined()
    talk.wait(2 * DEAF_S)
    known = len(talk.anew)
    talk.greet(told=n(1))
    talk.heartbeat(n(1))
    assert known and talk.core.active is talk.core.links[0]
    talk.wait(DEAF_S / 2)
    assert len(talk.anew) == known


def test_a_quiet_passive_is_not_reconnected_at_once_at_a_failover() -> None:
    talk = joined(servers=2)
    for _ in range(20):
        talk.wait(DEAF_S / 4)
        talk.heartbeat(n(1))
    # The client hears silence, and votes.
    talk.wait(DEAF_S - 0.1)
    assert talk.anew == []
    talk.wait(DEAF_S)
    assert {i for i, _ in talk.anew} == {0, 1}


def test_a_server_that_is_gone_is_left_to_libzmq() -> None:
    talk = joined()
    talk.down()
    talk.wait(5 * DEAF_S)
    assert talk.anew == []
