"""A stranger on the network: nothing that it hears of others lets it act as they (SPEC.md, sections 14 and 19).

covers: sessions and leases, by hand and at real sockets.
"""

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from tests.wire.hand import BATCH, END, RECORDS, Hand, Session, arrived, receive

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
