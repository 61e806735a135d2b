"""covers: with an arbiter nothing acknowledged is lost, whichever of the links a-b, a-z, b-z are cut, and which way.

a and b are the servers, z is ZooKeeper or etcd, and a client on c hears both servers. It sets new keys and raises a
counter by conditional sets all the time. Each round cuts, lets timeouts and sessions pass, heals, and checks all
acknowledged sets. The whole matrix, with three rounds of each case, is `long`. A handful of cases is in each run.
"""

import threading
from itertools import combinations

import pytest

from chp.errors import ChpError
from chp_client import Clone
from chp_client.errors import Conflict
from tests.process.faults import equal
from tests.talk import WAIT_S, until

from .cutting import Net, NetPair
from .test_cuts import for_a_while

LINKS = ("ab", "az", "bz")
WAYS = {"both": ("{0}{1}", "{1}{0}"), "there": ("{0}{1}",), "back": ("{1}{0}",)}
SUBSETS = [links for n in (1, 2, 3) for links in combinations(LINKS, n)]
MATRIX = [(links, way) for links in SUBSETS for way in WAYS]
HANDFUL = [(("ab",), "both"), (("ab", "az"), "both"), (("ab", "bz"), "there"), (("az", "bz"), "back")]
# The seconds of a cut. They are more than a session and the timeouts. A session lasts longer than an active waits for
# its passive.
CUT_S = 5.5


class Client:
    """A client that sets new keys and raises a counter until it is told to end, and notes what was acknowledged."""

    def __init__(self, net: Net, pair: NetPair) -> None:
        self.setter, self.raiser = (net.on("c", lambda: Clone(pair.servers, silence_s=0.6)) for _ in range(2))
        self.acked: dict[str, bytes] = {}
        self.raised: list[int] = []
        self.error: Exception | None = None
        self.ending = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._sets, self._raises)]
        for clone in (self.setter, self.raiser):
            clone.wait_until_synced(WAIT_S)
        for thread in self._threads:
            thread.start()

    def _sets(self) -> None:
        n = 0
        while not self.ending.wait(0.005):
            n += 1
            try:
                self.setter.set(f"/k/{n}", b"%d" % n).wait(WAIT_S)
            except ChpError as error:
                self.error = error
                return
            self.acked[f"/k/{n}"] = b"%d" % n

    def _raises(self) -> None:
        while not self.ending.wait(0.005):
            entry = self.raiser.entry("/n")
            value, revision = (0, 0) if entry is None else (int(entry.value), entry.revision)
            try:
                self.raiser.set("/n", b"%d" % (value + 1), if_revision=revision).wait(WAIT_S)
            except Conflict:
                continue
            except ChpError as error:
                self.error = error
                return
            self.raised.append(value + 1)

    def go_on(self) -> None:
        """Wait until new sets and the counter are acknowledged again."""
        before = len(self.acked), len(self.raised)
        until(
            lambda: self.error or (len(self.acked) > before[0] + 2 and len(self.raised) > before[1] + 2),
            "both to go on",
        )

    def end(self) -> None:
        """End all calls, and check that none has failed."""
        self.ending.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        for clone in (self.setter, self.raiser):
            clone.close(1.0)
        assert self.error is None, self.error


def rounds(net: Net, pair: NetPair, links: tuple[str, ...], way: str, times: int) -> None:
    """Cut and heal this many times, and check that no acknowledged set is missing."""
    client = Client(net, pair)
    try:
        for _ in range(times):
            client.go_on()
            for link in links:
                for form in WAYS[way]:
                    net.cut(*form.format(*link))
            for _ in for_a_while(CUT_S):
                assert pair.states().count("active") <= 1
            net.heal()
            pair.wait_in_sync()
            client.go_on()
    finally:
        net.heal()
        client.end()
    pair.wait_in_sync()
    equal(pair.both)
    found = net.on("c", lambda: Clone(pair.servers))
    try:
        found.wait_until_synced(WAIT_S)
        lost = [key for key, value in client.acked.items() if found.get(key) != value]
        print(f"{'+'.join(links)} {way}: {len(client.acked)} sets, {len(client.raised)} raises, missing {len(lost)}")
        assert not lost, f"{len(lost)} of {len(client.acked)} acknowledged sets are missing, such as {lost[:3]}"
        assert len(set(client.raised)) == len(client.raised), "an acknowledged raise was done over another one"
        assert int(found["/n"]) >= max(client.raised), "acknowledged raises are missing"
    finally:
        found.close(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("links", "way"), HANDFUL, ids=["+".join(links) + "-" + way for links, way in HANDFUL])
def test_nothing_acknowledged_is_lost(net: Net, arbitrated: NetPair, links: tuple[str, ...], way: str) -> None:
    rounds(net, arbitrated, links, way, 1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("links", "way"), MATRIX, ids=["+".join(links) + "-" + way for links, way in MATRIX])
def test_nothing_acknowledged_is_lost_in_the_whole_matrix(
    net: Net, arbitrated: NetPair, links: tuple[str, ...], way: str
) -> None:
    rounds(net, arbitrated, links, way, 3)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_with_etcd(net: Net, arbitrated_by_etcd: NetPair) -> None:
    rounds(net, arbitrated_by_etcd, ("ab", "az"), "both", 1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("links", "way"), MATRIX, ids=["+".join(links) + "-" + way for links, way in MATRIX])
def test_nothing_acknowledged_is_lost_in_the_whole_matrix_with_etcd(
    net: Net, arbitrated_by_etcd: NetPair, links: tuple[str, ...], way: str
) -> None:
    rounds(net, arbitrated_by_etcd, links, way, 3)
