"""covers: headers of messages: which there may be, how they travel, and who gets the messages without them."""

from __future__ import annotations

import pickle
from itertools import compress
from typing import Any

import pytest

from chp.batch import packb, unpackb
from chp.errors import BadFrame, BadInput
from chp.headers import Messages
from chp.topics import (
    NO_HEADERS,
    Headers,
    check_headers,
    column_of_headers,
    has_headers,
    pack_messages,
    unpack_with_headers,
)
from chp_client.topics.chunk import parts_of
from chp_client.topics.reader import ReadPosition
from chp_server.core.questions.message_pages import MessagePages, MessageRow, item_of
from chp_server.core.state.record_log import LoggedMessages

from .group_talk import GroupTalk

CARRIED: list[Headers] = [{"a": "1"}, {}, {"trace.parent-id_1": "ü", "b": ""}, {}]
BODY = pack_messages(["k", "l", "m", "n"], [b"1", b"2", b"3", b"4"], CARRIED)


def test_headers_travel_beside_their_messages() -> None:
    assert unpack_with_headers(BODY) == (["k", "l", "m", "n"], [b"1", b"2", b"3", b"4"], CARRIED)
    plain = pack_messages(None, [b"1"])
    assert plain == packb([None, [b"1"]]) and unpack_with_headers(plain) == (None, [b"1"], None)
    assert has_headers(BODY) and not has_headers(plain)
    (batch,) = ReadPosition(1, 3).take([0, 4, 7, 1000, [BODY]], None)
    assert batch.headers == CARRIED[1:3] and [each.headers for each in batch] == CARRIED[1:3]
    message = next(iter(batch))
    assert pickle.loads(pickle.dumps(message)) == message, "as programs of several processes need"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([("a", "b")], "a mapping"),
        ({f"h{i}": "" for i in range(33)}, "at most 32"),
        ({"A": "b"}, "not 'A'"),
        ({"": "b"}, "not ''"),
        ({".a": "b"}, "not '.a'"),
        ({"a" * 65: "b"}, "1 to 64"),
        ({"a\n": "b"}, "not 'a\\\\n'"),
        ({7: "b"}, "not 7"),
        ({"a": b"b"}, "is text, not b'b'"),
        ({"a": None}, "is text, not None"),
        ({"a": "\ud800"}, "no text that UTF-8 has"),
        ({"a": "ü" * 513}, "1026 bytes"),
        ({f"h{i}": "x" * 1022 for i in range(5)}, "5,120"),
    ],
)
def test_invalid_headers_are_refused_with_the_reason(headers: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        check_headers(headers)
    if not isinstance(headers, dict) or 7 in headers or "\ud800" in headers.values():
        return
    talk = GroupTalk()
    talk.set(b"p" * 16, 1, {}, publish=[["t", 1, packb([None, [b"1"], [headers]])]])
    talk.turn()
    ((_, code, _),) = talk.refusals(b"p" * 16)
    assert code == "bad" and "t" not in talk.core.state.topics.by_name, "a server refuses them too"


def test_headers_up_to_the_limits_are_accepted() -> None:
    most = {f"h{i:02}": "x" * 125 for i in range(32)}
    assert check_headers(most) == most and check_headers({"a": "x" * 1024, "b" * 64: ""})
    assert check_headers(None) is NO_HEADERS and check_headers({}) is NO_HEADERS
    assert column_of_headers([None, {}]) is None and column_of_headers([None, {"a": "b"}]) == [{}, {"a": "b"}]
    with pytest.raises(TypeError, match="make a dict"):
        NO_HEADERS["a"] = "b"  # type: ignore[index]
    every = column_of_headers([{"a": "1", "b": "2"}] * 65_536)
    assert unpack_with_headers(pack_messages(None, [b""] * 65_536, every))[2] == every, "a full batch is read"
    with pytest.raises(BadInput, match="publish them in parts"):
        column_of_headers([most] * 65_536)


@pytest.mark.parametrize("headers", [[{}], {}, [{}, 1], "ab", [{}, {}, {}]])
def test_a_headers_column_without_a_map_for_each_message_is_refused(headers: Any) -> None:
    with pytest.raises(BadFrame, match="headers"):
        unpack_with_headers(packb([None, [b"1", b"2"], headers]))


def test_a_member_gets_headers_but_an_older_member_does_not() -> None:
    row = LoggedMessages(1, 100, 5, 7, 1000, packb([pack_messages(None, [b"0"]), BODY]))
    pages, slots = MessagePages(), 0
    item, n = pages.item(MessageRow(row), (1 << 256) - 1, 0, 1 << 61)
    assert n == 5 and item == item_of(row)
    first = MessageRow(row)
    first.decode()
    for i in (2, 3):
        slots |= 1 << first.slots[i]
    item, n = pages.item(MessageRow(row), slots, 0, 1 << 61)
    start, count, number, ms, bodies, mask = unpackb(item, "an item")
    (part,) = parts_of(Messages(1, 105, 0, 105, [[b"", 0]], []), [[start, count, number, ms, bodies, mask]])
    assert part.headers == list(compress([{}, *CARRIED], mask)) and n == len(part.values) >= 2
    for plain in (item_of(row, plain=True), pages.item(MessageRow(row), slots, 0, 1 << 61, plain=True)[0]):
        assert not any(map(has_headers, unpackb(plain, "an item")[4])), "an older program would not read them"
    assert unpackb(item_of(row, plain=True), "an item")[4][1] == pack_messages(
        ["k", "l", "m", "n"], [b"1", b"2", b"3", b"4"]
    )


def test_headers_are_refused_by_a_mixed_pair_and_hidden_from_older_members() -> None:
    talk = GroupTalk()
    talk.set(b"p" * 16, 1, {}, publish=[["t", 4, BODY]])
    talk.turn()
    old, new = talk.member("old"), talk.member("new")
    for member, version in ((old, 4), (new, 5)):
        member.ask(chp=version)
    seen: dict[Any, list[bool]] = {}
    for _ in range(4):
        turn = talk.turn(0.1)
        for identity, frames in turn.deliveries:
            items = unpackb(frames[-1][-1], "an answer")[1:]
            seen.setdefault(identity, []).extend(has_headers(body) for item in items for body in item[4])
    assert set(seen[old.identity]) == {False} and set(seen[new.identity]) == {True}
    talk.core.committer.view.version = 4
    talk.set(b"p" * 16, 2, {}, publish=[["t", 4, BODY]])
    talk.turn()
    ((_, code, detail),) = talk.refusals(b"p" * 16)
    assert code == "bad" and "need version 5 on both" in str(detail)
