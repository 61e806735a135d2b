"""Tests of a stranger on the network: what it hears of clients does not let it act as one (SPEC.md, sections 14, 19).

covers: sessions and leases, by hand and at real sockets.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from chp.limits import DEFAULT
from chp_server.core.updates import listeners
from chp_server.testing import Pair, TestServer
from tests.talk import WAIT_S, until
from tests.wire.hand import (
    BATCH,
    END,
    RECORDS,
    REFUSED,
    REPLY,
    SYNC,
    Hand,
    Session,
    arrived,
    parts_of,
    receive,
    topic,
)

UNGUESSED = b"\0\0\0\0"


@pytest.fixture
def stranger(hand: Hand) -> Iterator[Hand]:
    """Open another client of the same server."""
    with Hand(hand.address) as made:
        yield made


def overheard(stranger: Hand, victim: Session) -> set[bytes]:
    """Return each id of 16 bytes that a stranger hears of a session in topics, batches, resumes and feeds."""
    ear = stranger.subscriber(b"\x02")
    watched = stranger.follow("")
    revision = victim.put({"/known": b"1"})
    watched.until(lambda: "/known" in watched.values)
    found = {session for header in watched.batches for session, _ in header[5]}
    for options in ({"from": revision - 1}, {"from": revision - 1, "feed": True}):
        for header, *items in stranger.sync("", **options):
            found |= {session for (head, *_) in items if head[0] == BATCH for session, _ in head[5]}
            assert header[0] in (RECORDS, END)
    victim.put({"/known": b"2"})
    while (frames := receive(ear))[0][:2] != b"\x02@":
        pass
    found |= {bytes.fromhex(f[0][2:-1].decode()) for f in (frames, *arrived(ear)) if f[0][:2] == b"\x02@"}
    ear.close()
    return found


def forge(stranger: Hand, session: bytes, no: int, key: str) -> None:
    """Send a forged KVSET in the name of a session."""
    # Skip `Session.__init__`, because the stranger does not listen on the victim's own channel.
    name = Session.__new__(Session)
    name.id, name.no, name._collector = session, 0, stranger.collector()
    name.send([key], [b"forged"], None, no)


def handled(stranger: Hand) -> None:
    """Wait until the server has handled all messages of the stranger."""
    stranger.session().put({"/strangers/own": b""})


def test_a_stranger_cannot_set_in_the_name_of_an_overheard_session(hand: Hand, stranger: Hand) -> None:
    """Once the victim's next five sets counted as duplicates: they were acknowledged, and no server had them."""
    victim = hand.session()
    found = overheard(stranger, victim)
    assert found == {victim.public} and victim.id not in found
    for session in found:
        for no in range(3, 8):
            forge(stranger, session, no, "/forged")
    handled(stranger)
    acked = {i: victim.put({f"/mine/{i}": b"%d" % i}) for i in range(5)}
    replica = hand.follow("/mine/")
    assert replica.values == {f"/mine/{i}": b"%d" % i for i in range(5)}
    assert replica.revisions == {f"/mine/{i}": revision for i, revision in acked.items()}


def test_a_stranger_cannot_replace_an_overheard_session_by_a_later_one(hand: Hand, stranger: Hand) -> None:
    """A later session of a client replaces the earlier one, so only the client itself may be able to open it."""
    victim = hand.session()
    for session in overheard(stranger, victim):
        forge(stranger, session[:12] + b"\xff" * 4, 1, "/forged")
    handled(stranger)
    assert victim.put({"/mine": b"1"}) > 0
    assert not victim.refusals and hand.follow("").values["/mine"] == b"1"


def test_no_frame_of_a_server_has_a_secret_session_in_it(hand: Hand, stranger: Hand) -> None:
    """No message on any port has the secret while a client sets, is refused, takes a lease or begins anew."""
    ear = stranger.subscriber(b"")
    heard = [receive(ear)]
    victim = hand.session(b"12 bytes: it" + UNGUESSED)
    lease = b"a lease's name.."
    victim.put({"/leased": b"1"}, lease=[lease, 60_000], l=lease)
    victim.refused(victim.send(["/leased"], [b"x"], {"c": [[0], [1]]}))
    later = hand.session(b"12 bytes: it" + b"\0\0\0\1")
    later.put({"/later": b"1"})
    while not any(b"/later" in frame for frame in heard[-1]):
        heard.append(receive(ear))
    for frames in [*heard, *everything(stranger)]:
        assert not any(b"12 bytes: it" in frame or b"12 bytes: it".hex().encode() in frame for frame in frames)


def everything(stranger: Hand) -> Iterator[list[bytes]]:
    """Yield the answers of the snapshot port to all kinds of questions."""
    questions: list[dict[str, Any]] = [{"from": 0}, {"from": (1 << 48) + 1}, {"from": (1 << 48) + 1, "feed": True}]
    for question in questions:
        for parts in stranger.sync("", **question):
            yield [msgpack.packb(parts)]
    dealer = stranger.dealer()
    for command in (b"status", b"leases"):
        stranger.ask(dealer, b"\x02" + command + b"\x03")
        yield receive(dealer)


def test_a_session_with_the_highest_count_is_served(hand: Hand) -> None:
    """After this session its client needs a new client id. Until then the session works like any other."""
    victim = hand.session(b"an end of it" + b"\xff" * 4)
    assert victim.put({"/last": b"1"}) > 0
    assert victim.put({"/last": b"2"}) > 0 and not victim.refusals


def test_a_client_cannot_use_or_end_the_lease_of_another_client(hand: Hand, stranger: Hand) -> None:
    """All clients can read a lease's name beside its keys. Once a stranger's `unlease` by name deleted the keys."""
    lease = b"a lease's name.."
    holder, other = hand.session(b"twelve bytes" + bytes(4)), stranger.session()
    holder.put({"/held": b"1"}, lease=[lease, 60_000], l=lease)
    for extras in ({"unlease": lease}, {"lease": [lease, 1]}, {"l": lease}, {"lease": [lease, 1], "l": lease}):
        keys = ["/held"] if "l" in extras else []
        code, detail = other.refused(other.send(keys, [b"x"] * len(keys), extras))
        assert code == "lease" and "another client's" in detail, extras
    assert hand.follow("").values == {"/held": b"1"}
    later = hand.session(holder.id[:12] + b"\0\0\0\1")
    later.put({"/held": b"2"}, l=lease)
    later.put({}, lease=[lease, 50_000])
    later.put({}, unlease=lease)
    assert hand.follow("").values == {} and not later.refusals


def test_a_client_cannot_name_the_owner_of_a_lease(hand: Hand, stranger: Hand) -> None:
    lease = b"a lease's name.."
    victim, other = hand.session(), stranger.session()
    victim.put({"/held": b"1"}, lease=[lease, 60_000], l=lease)
    for name in (lease, b"another's name.."):
        code, detail = other.refused(other.send([], [], {"lease": [name, 60_000, victim.public[:12]]}))
        assert code == "bad" and "owner" in detail
    assert len(listed(hand)) == 1


def test_a_lease_keeps_its_owner_over_a_failover(pair: Pair) -> None:
    """Records and states have owners, so the new active knows the owner of the lease."""
    lease = b"a lease's name.."
    with Hand(pair.primary.address) as before, Hand(pair.backup.address) as after:
        until(lambda: before.status()["in_sync"], "in sync")
        holder = before.session()
        holder.put({"/held": b"1"}, lease=[lease, 600_000], l=lease)
        pair.backup.restart()
        until(lambda: before.status()["in_sync"] and after.status()["number"] == before.status()["number"], "caught up")
        pair.primary.kill()
        # Each question is a vote.
        until(lambda: after.sync("")[-1][0][0] != REFUSED, "the other one to serve")
        assert [found["owner"] for found in listed(after)] == [holder.public[:12].hex()]
        other = after.session()
        assert other.refused(other.send([], [], {"unlease": lease}))[0] == "lease"
        later = after.session(holder.id)
        later.no = holder.no
        later.put({}, unlease=lease)
        assert after.follow("").values == {}


class Liar:
    """A connection to P+1 without libzmq. It may cancel subscriptions that it never had, which libzmq never does."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._socket = socket.create_connection((host, int(port) + 1), WAIT_S)
        self._socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31))
        ready = b"\x05READY\x0bSocket-Type" + (3).to_bytes(4) + b"SUB"
        self._socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        self._hear(b"\x05READY")

    def say(self, *events: bytes) -> None:
        """Send events of a subscriber, and wait until the server has heard them."""
        own = b"\x02@" + os.urandom(16).hex().encode() + b"\x03"
        for event in (*events, b"\x01" + own):
            self._socket.sendall(b"\x00" + bytes([len(event)]) + event)
        self._hear(own)

    def _hear(self, wanted: bytes) -> None:
        heard = b""
        while wanted not in heard:
            came = self._socket.recv(1 << 16)
            assert came, "the server ended the connection"
            heard += came

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@pytest.mark.parametrize("times", [1, 3])
def test_cancelling_a_missing_subscription_harms_no_reader(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Such a cancel once ended the channel: its reader was STALE for 20 s, and a CHP/1 reader heard nothing more."""
    monkeypatch.setattr(listeners, "LINGER_S", 0.0)
    reader, plain, writer = hand.follow("/a/"), hand.listen(b"/a/"), hand.session()
    liar = Liar(hand.address)
    liar.say(*[b"\x00" + topic("/a/"), b"\x00/a/"] * times)
    liar.say(b"\x01" + topic("/a/"), *[b"\x00" + topic("/a/"), b"\x00/a/"] * times)
    reader.until_compared()
    writer.put({"/a/1": b"1"})
    reader.until(lambda: "/a/1" in reader.values)
    while receive(plain)[0] != b"/a/1":
        pass
    assert hand.status()["channels"] == {"/a/": 1} and hand.status()["chp1_subscriptions"] == 1
    liar.close()


def test_readers_that_leave_end_only_their_own_subscriptions(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reuses descriptors at once. A server must not take the end of one connection for that of the next."""
    monkeypatch.setattr(listeners, "LINGER_S", 0.0)
    reader, others = hand.follow("/a/"), [Liar(hand.address)]
    for i in range(100):
        others[-1].say(b"\x01" + topic("/a/"), b"\x01" + topic(f"/{i}/"), b"\x01/a/")
        others.append(Liar(hand.address))
        if i % 3:
            others.pop(0).close()
    others.pop().say(b"\x01" + topic("/a/"))
    for other in others:
        other.close()
    reader.until_compared()
    until(lambda: hand.status()["channels"] == {"/a/": 1} and not hand.status()["chp1_subscriptions"], "they have left")
    hand.session().put({"/a/1": b"1"})
    reader.until(lambda: "/a/1" in reader.values)


def listed(hand: Hand, **options: object) -> list[dict[str, Any]]:
    """Return the leases as `chp leases` gets them."""
    dealer = hand.dealer()
    hand.ask(dealer, b"\x02leases\x03", **options)
    header = parts_of(receive(dealer))[0]
    assert header[0] == REPLY, header
    return list(header[2]["leases"])


def test_a_second_switch_soon_after_the_first_is_refused(pair: Pair) -> None:
    """Each hand-over is a gap for all clients, and repeated requests once made 37 of them in 15 s."""
    with Hand(pair.primary.address) as one, Hand(pair.backup.address) as two:
        until(lambda: one.status()["in_sync"], "a pair in sync")
        assert admin(one, "switch")[0] == REPLY
        until(lambda: two.status()["state"] == "active" and two.status()["in_sync"], "the other one to serve, in sync")
        kind, _, code, detail = admin(two, "switch")
        assert (kind, code) == (REFUSED, "busy") and "ask again in" in detail


def admin(hand: Hand, command: str, **options: object) -> list[Any]:
    """Send an admin command, and return the header of the answer."""
    dealer = hand.dealer()
    hand.ask(dealer, f"\x02{command}\x03", **options)
    header = parts_of(receive(dealer))[0]
    assert isinstance(header, list)
    return header


def test_one_client_cannot_take_all_staged_commits() -> None:
    limits = replace(DEFAULT, staged_commits_max=3, staged_commits_of_one_max=2)
    with TestServer(limits) as server, Hand(server.address) as hand:
        one, two = hand.session(), hand.session()
        for name in (b"1" * 16, b"2" * 16, b"1" * 16):
            one.put({"/a": b"x"}, stage=[name, "part"])
        code, detail = one.refused(one.send(["/a"], [b"x"], {"stage": [b"3" * 16, "part"]}))
        assert code == "busy" and "2 staged commits open, its share" in detail
        two.put({"/a": b"x"}, stage=[b"3" * 16, "part"])
        one.put({}, abort=b"1" * 16)
        one.put({"/a": b"x"}, stage=[b"4" * 16, "part"])


def test_one_connection_cannot_take_all_snapshots() -> None:
    limits = replace(DEFAULT, syncs_max=3, syncs_of_one_max=2)
    with TestServer(limits) as server, Hand(server.address) as hand:
        hand.session().put({f"/{i}": b"x" * 1000 for i in range(5000)})  # several chunks
        greedy, other = hand.dealer(), hand.dealer()
        for _ in range(2):
            hand.ask(greedy, "", credit=1)
        third, fourth = hand.ask(greedy, "", credit=1), hand.ask(other, "", credit=1)
        while (header := parts_of(receive(greedy))[0])[0] != REFUSED:
            assert header[1] != third
        assert header[1:3] == [third, "busy"]
        assert parts_of(receive(other))[0][:2] == [SYNC, fourth]
