"""A stranger on the network: nothing that it hears of others lets it act as they (SPEC.md, sections 14 and 19).

covers: sessions and leases, by hand and at real sockets.
"""

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from chp_server.testing import Pair
from tests.wire.hand import BATCH, END, RECORDS, REFUSED, REPLY, Hand, Session, arrived, parts_of, receive, until

UNGUESSED = b"\0\0\0\0"


@pytest.fixture
def stranger(hand: Hand) -> Iterator[Hand]:
    """Another client of the same server."""
    with Hand(hand.address) as made:
        yield made


def overheard(stranger: Hand, victim: Session) -> set[bytes]:
    """Every id of 16 bytes that a stranger hears of a session: in topics, in batches, resumes and feeds."""
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
    """A KVSET in the name of a session."""
    name = Session.__new__(Session)  # of the victim's own channel the stranger needs nothing
    name.id, name.no, name._collector = session, 0, stranger.collector()
    name.send([key], [b"forged"], None, no)


def handled(stranger: Hand) -> None:
    """The server has seen all that the stranger sent until now."""
    stranger.session().put({"/strangers/own": b""})


def test_who_reads_a_session_from_the_wire_can_not_set_in_its_place(hand: Hand, stranger: Hand) -> None:
    """The five sets that followed were duplicates once: acknowledged, and on no server."""
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


def test_who_counts_up_a_session_read_from_the_wire_does_not_silence_it(hand: Hand, stranger: Hand) -> None:
    """A later session of the same client takes the place of the one before: only the client can open it."""
    victim = hand.session()
    for session in overheard(stranger, victim):
        forge(stranger, session[:12] + b"\xff" * 4, 1, "/forged")
    handled(stranger)
    assert victim.put({"/mine": b"1"}) > 0
    assert not victim.refusals and hand.follow("").values["/mine"] == b"1"


def test_no_frame_of_a_server_has_a_secret_session_in_it(hand: Hand, stranger: Hand) -> None:
    """All that its ports say to anybody, while a client sets, is refused, takes a lease and begins another session."""
    ear = stranger.subscriber(b"")
    victim = hand.session(b"12 bytes: it" + UNGUESSED)
    lease = b"a lease's name.."
    victim.put({"/leased": b"1"}, lease=[lease, 60_000], l=lease)
    victim.refused(victim.send(["/leased"], [b"x"], {"c": [[0], [1]]}))
    later = hand.session(b"12 bytes: it" + b"\0\0\0\1")
    later.put({"/later": b"1"})
    heard = [*arrived(ear), *everything(stranger)]
    assert len(heard) > 10
    for frames in heard:
        assert not any(b"12 bytes: it" in frame or b"12 bytes: it".hex().encode() in frame for frame in frames)


def everything(stranger: Hand) -> Iterator[list[bytes]]:
    """What the snapshot port answers to all kinds of questions."""
    questions: list[dict[str, Any]] = [{"from": 0}, {"from": (1 << 48) + 1}, {"from": (1 << 48) + 1, "feed": True}]
    for question in questions:
        for parts in stranger.sync("", **question):
            yield [msgpack.packb(parts)]
    dealer = stranger.dealer()
    for command in (b"status", b"leases"):
        stranger.ask(dealer, b"\x02" + command + b"\x03")
        yield receive(dealer)


def test_a_session_of_the_last_count_is_heard_and_served(hand: Hand) -> None:
    """Its client has to be another one after that; until then nothing is special about it."""
    victim = hand.session(b"an end of it" + b"\xff" * 4)
    assert victim.put({"/last": b"1"}) > 0
    assert victim.put({"/last": b"2"}) > 0 and not victim.refusals


def test_a_lease_is_its_clients_alone(hand: Hand, stranger: Hand) -> None:
    """Its name stands beside its keys for all to read; a stranger's `unlease` of it deleted them once."""
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


def test_nobody_names_the_owner_of_a_lease_itself(hand: Hand, stranger: Hand) -> None:
    lease = b"a lease's name.."
    victim, other = hand.session(), stranger.session()
    victim.put({"/held": b"1"}, lease=[lease, 60_000], l=lease)
    for name in (lease, b"another's name.."):
        code, detail = other.refused(other.send([], [], {"lease": [name, 60_000, victim.public[:12]]}))
        assert code == "bad" and "owner" in detail
    assert len(listed(hand)) == 1


def test_a_lease_stays_its_clients_on_the_other_server(pair: Pair) -> None:
    """Owners are in records and in the state that a server catches up by; the new active knows whose the lease is."""
    lease = b"a lease's name.."
    with Hand(pair.primary.address) as before, Hand(pair.backup.address) as after:
        until(lambda: before.status()["in_sync"], "in sync")
        holder = before.session()
        holder.put({"/held": b"1"}, lease=[lease, 600_000], l=lease)
        pair.backup.restart()
        until(lambda: before.status()["in_sync"] and after.status()["number"] == before.status()["number"], "caught up")
        pair.primary.kill()
        until(lambda: after.sync("")[-1][0][0] != REFUSED, "the other one to serve")  # each a vote
        assert [found["owner"] for found in listed(after)] == [holder.public[:12].hex()]
        other = after.session()
        assert other.refused(other.send([], [], {"unlease": lease}))[0] == "lease"
        later = after.session(holder.id)
        later.no = holder.no
        later.put({}, unlease=lease)
        assert after.follow("").values == {}


def listed(hand: Hand, **options: object) -> list[dict[str, Any]]:
    """What `chp leases` is told."""
    dealer = hand.dealer()
    hand.ask(dealer, b"\x02leases\x03", **options)
    header = parts_of(receive(dealer))[0]
    assert header[0] == REPLY, header
    return list(header[2]["leases"])
