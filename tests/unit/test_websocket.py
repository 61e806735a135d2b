"""covers: gateway/channels: a WebSocket's bytes, what may pass from one to the pair, and what its sockets hear."""

from __future__ import annotations

import asyncio
from functools import partial
from struct import pack
from typing import Any

import pytest
import zmq
import zmq.asyncio

from chp.access import Rules
from chp.batch import Segment, packb
from chp.keys import public_session, session_topic
from chp.messages import ICANHAZ
from chp.topics import is_keyed_lease
from chp_client.gateway.access.caller import Caller
from chp_client.gateway.channels import websocket
from chp_client.gateway.channels.admission import COLLECTOR, UPDATES, AllowedMessages, P
from chp_client.gateway.channels.connection import subscribe
from chp_client.gateway.channels.websocket import Broken, FrameReader, accepted, framed, put, taken
from chp_client.topics.stateless_member import member_of

MASK = b"\x37\xfa\x21\x3d"


def masked(opcode: int, payload: bytes, *, last: bool = True) -> bytes:
    """Return a frame as a client sends it, with a mask."""
    size = len(payload)
    head = bytes([(0x80 if last else 0) | opcode])
    head += (
        bytes([0x80 | size])
        if size < 126
        else b"\xfe" + pack(">H", size)
        if size < 65536
        else b"\xff" + pack(">Q", size)
    )
    return head + MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))


def test_the_handshake_and_the_frames_are_those_of_the_rfc() -> None:
    assert accepted(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "RFC 6455, section 1.3"
    assert list(FrameReader().feed(bytes.fromhex("818537fa213d7f9f4d5158"))) == [(1, b"Hello")], "section 5.7"
    assert framed(1, b"Hello") == bytes.fromhex("810548656c6c6f")
    assert framed(2, bytes(256))[:4] == bytes.fromhex("827e0100")
    assert framed(2, bytes(65536))[:10] == bytes.fromhex("827f0000000000010000")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
def test_a_message_comes_whole_however_it_is_cut(size: int) -> None:
    payload = bytes(i & 255 for i in range(size))
    sent = masked(2, payload[: size // 2], last=False) + masked(9, b"ping") + masked(0, payload[size // 2 :])
    reader, found = FrameReader(), list[tuple[int, bytes]]()
    step = max(1, len(sent) // 50)
    for i in range(0, len(sent), step):
        found += reader.feed(sent[i : i + step])
    assert found == [(9, b"ping"), (2, payload)], "a control frame may come between two pieces"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (framed(2, b"x"), websocket.BROKEN),
        (masked(3, b"x"), websocket.BROKEN),
        (b"\xc2" + masked(2, b"x")[1:], websocket.BROKEN),
        (masked(0, b"x"), websocket.BROKEN),
        (masked(2, b"x", last=False) + masked(2, b"y"), websocket.BROKEN),
        (masked(9, b"x" * 126), websocket.BROKEN),
        (masked(9, b"x", last=False), websocket.BROKEN),
        (b"\x82\xff" + pack(">Q", websocket.MESSAGE_BYTES_MAX + 1), websocket.LARGE),
        (b"\x82\xff" + pack(">Q", 1 << 63), websocket.LARGE),
    ],
)
def test_an_invalid_client_frame_is_refused(sent: bytes, code: int) -> None:
    with pytest.raises(Broken) as refused:
        list(FrameReader().feed(sent))
    assert refused.value.code == code and refused.value.reason


def test_pieces_without_an_end_are_bounded() -> None:
    reader, piece = FrameReader(), masked(0, bytes(1 << 20), last=False)
    list(reader.feed(masked(2, b"", last=False)))
    with pytest.raises(Broken) as refused:
        for _ in range(20):
            list(reader.feed(piece))
    assert refused.value.code == websocket.LARGE


def test_a_port_message_is_packed_and_unpacked() -> None:
    assert taken(put(1, 2, [b"a", b"", b"ccc"])) == (1, 2, [b"a", b"", b"ccc"]) and taken(b"\0\3") == (0, 3, [])
    for wrong in (b"", b"\0", b"\0\0\0", put(0, 0, [b"abc"])[:-1], put(0, 0, [b""] * 17)):
        with pytest.raises(Broken):
            taken(wrong)


def asks(subtree: str | bytes, **options: Any) -> list[bytes]:
    named = subtree if isinstance(subtree, bytes) else subtree.encode()
    return [ICANHAZ, named, packb({"chp": 4, "id": 1, **options})]


def sets(*keys: str, **extras: Any) -> list[bytes]:
    body = Segment(list(keys), [b"1"] * len(keys), extras or None).encode()
    return [b"\x02\x03", bytes(8), bytes(16), b"", body]


SESSION = b"0123456789ab" + bytes(4)
OPEN = AllowedMessages(("",), True)
PART = AllowedMessages(("/rates/",), True)


@pytest.mark.parametrize(
    ("allowed", "port", "frames"),
    [
        (OPEN, P, asks("", **{"from": 7}, credit=8)),
        (PART, P, asks("/rates/EUR/")),
        (PART, P, asks("/else/", more=8)),
        (OPEN, P, asks(b"\x02client\x03", name="me")),
        (PART, UPDATES, [b"\1\2/rates/\3"]),
        (PART, UPDATES, [b"\0\2/.chp/pulse/\3"]),
        (OPEN, UPDATES, [b"\1" + session_topic(public_session(SESSION)), SESSION]),
        (PART, COLLECTOR, sets("/rates/a", c=[[0], [0]])),
        (OPEN, COLLECTOR, sets()),
    ],
)
def test_copies_channels_and_sets_of_served_subtrees_are_allowed(
    allowed: AllowedMessages, port: int, frames: list[bytes]
) -> None:
    assert allowed.why_not(port, frames) == ""


@pytest.mark.parametrize(
    ("allowed", "port", "frames", "why"),
    [
        (OPEN, P, asks(b"\x02switch\x03"), "operators"),
        (OPEN, P, asks(b"\x02restore\x03", name="x"), "operators"),
        (OPEN, P, asks("", feed=True), "only copies"),
        (OPEN, P, asks("", topic="t"), "only copies"),
        (OPEN, P, asks("", image=0), "only copies"),
        (PART, P, asks(""), "not served"),
        (PART, P, asks("/else/"), "not served"),
        (OPEN, P, asks("no-slash"), "slash"),
        (OPEN, P, asks(b"\xff"), "utf-8"),
        (OPEN, P, [ICANHAZ, b"", b"\xc1"], ""),
        (OPEN, P, [ICANHAZ, b"", b"\x90"], "a map"),
        (OPEN, P, [ICANHAZ, b""], "no message"),
        (OPEN, 3, asks(""), "no message"),
        (PART, UPDATES, [b"\1\2/else/\3"], "not served"),
        (OPEN, UPDATES, [b"\1/rates/"], "a channel"),
        (OPEN, UPDATES, [b"\1\2@00\3"], "32"),
        (OPEN, UPDATES, [b"\1" + session_topic(public_session(bytes(16)))], "was not shown"),
        (OPEN, UPDATES, [b"\1" + session_topic(public_session(bytes(16))), SESSION], "another's"),
        (OPEN, P, asks("", session=public_session(bytes(16))), "another's"),
        (OPEN, P, asks("", session=7), "another's"),
        (OPEN, UPDATES, [b"\2x"], "no message"),
        (PART, COLLECTOR, sets("/rates/a", "/else"), "not served"),
        (OPEN, COLLECTOR, sets(stage=[bytes(16), "0.0"]), "stage"),
        (OPEN, COLLECTOR, sets(publish=[]), "publish"),
        (AllowedMessages(("",), False), COLLECTOR, sets("/a"), "read-only"),
        (OPEN, COLLECTOR, [b"/a", bytes(8), b"", b"", b"1"], "no message"),
        (OPEN, COLLECTOR, [*sets("/a")[:4], b"\xc1"], ""),
    ],
)
def test_other_messages_are_refused(allowed: AllowedMessages, port: int, frames: list[bytes], why: str) -> None:
    said = allowed.why_not(port, frames)
    assert said and why in said


def test_a_user_is_held_to_the_rules() -> None:
    rules = Rules.of(
        {
            "users": {
                "ann": {"read": ["/a/", "/b/"], "write": ["/a/"], "deny-read": ["/b/secret/"]},
                "bob": {"read": [""]},
            }
        }
    )
    ann, bob = AllowedMessages(("",), True, Caller("ann", rules)), AllowedMessages(("",), True, Caller("bob", rules))
    assert (
        ann.why_not(P, asks("/a/")) == ""
        and "may not read" in ann.why_not(P, asks("/b/"))
        and bob.why_not(P, asks("")) == ""
    )
    assert "may not read" in ann.why_not(UPDATES, [b"\1\2/b/\3"])
    assert ann.why_not(COLLECTOR, sets("/a/x")) == "" and "may not write" in ann.why_not(
        COLLECTOR, sets("/a/x", "/b/x")
    )
    assert "anything" in bob.why_not(COLLECTOR, sets())
    secret = Rules.of({"users": {"cat": {"read": ["/a/"], "write": ["/"]}}})
    cat = AllowedMessages(("",), True, Caller("cat", secret))
    assert cat.why_not(COLLECTOR, sets("/b")) == "" and cat.why_not(COLLECTOR, sets("/a/x", c=[[0], [0]])) == ""
    assert "condition" in cat.why_not(COLLECTOR, sets("/b", c=[[0], [0]])), "its revision would be told"


@pytest.mark.parametrize("secret", [b"", b"of the pair"])
def test_a_set_that_names_the_lease_of_a_group_member_is_refused(secret: bytes) -> None:
    member = member_of(secret, "t", "g", "ann", "worker")
    one = AllowedMessages(("",), True, is_member=partial(is_keyed_lease, secret))
    for columns in ({"lease": [member, 9]}, {"refresh": member}, {"unlease": member}, {"l": member}):
        assert "open one of your own" in one.why_not(COLLECTOR, sets("/a", **columns)), columns
    for mine in ({"lease": [SESSION, 9], "l": SESSION}, {"refresh": SESSION}, {"unlease": SESSION}):
        assert one.why_not(COLLECTOR, sets("/a", **mine)) == "", "the servers know whose it is"
    assert "open one of your own" in one.why_not(COLLECTOR, sets(lease=[SESSION, 9, b"anybody:"]))


def test_the_lease_of_a_member_depends_on_each_name_and_the_secret() -> None:
    named = {
        member_of(secret, *names)
        for secret in (b"", b"one", b"two")
        for names in (("t", "g", "ann", "m"), ("t", "g", "bob", "m"), ("t", "h", "ann", "m"), ("t", "g", "ann", "n"))
    }
    assert len(named) == 12 and {len(lease) for lease in named} == {16}
    assert [is_keyed_lease(b"one", lease) for lease in named].count(True) == 4


def test_a_client_may_ask_for_its_session_only_after_showing_it() -> None:
    one = AllowedMessages(("",), True)
    public = public_session(SESSION)
    assert "was not shown" in one.why_not(P, asks("", session=public))
    assert one.why_not(UPDATES, [b"\1" + session_topic(public), SESSION]) == ""
    assert one.why_not(P, asks("", session=public)) == ""
    later = public[:12] + b"\0\0\0\1"
    assert one.why_not(UPDATES, [b"\1" + session_topic(later)]) == "", "a later one of the same client"
    for i in range(100):
        one.why_not(UPDATES, [b"\1x", bytes([i]) * 16])
    assert len(one.shown) <= 64


def test_a_waiting_message_is_read_after_a_new_subscription() -> None:
    asyncio.run(_subscribe_while_something_comes())


async def _subscribe_while_something_comes() -> None:
    other = zmq.Context()
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as sub, other.socket(zmq.XPUB) as pub:
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        sub.connect(f"tcp://127.0.0.1:{port}")
        subscribe(sub, b"\1a")
        assert pub.recv() == b"\1a"
        heard = asyncio.ensure_future(sub.recv())
        await asyncio.sleep(0.01)
        pub.send(b"a word")
        fd = zmq.Poller()
        fd.register(sub.fileno(), zmq.POLLIN)
        assert fd.poll(30_000), "it is there, and asyncio has not seen it yet"
        subscribe(sub, b"\1b")
        assert await asyncio.wait_for(heard, 30) == b"a word"
    other.term()
