"""Tests of images and bounded feeds by hand: all parts show one number, although sets go on meanwhile."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest

from chp.limits import Limits
from chp_client.errors import Unanswered
from chp_client.port import ask as ask_port
from chp_client.port.ask import QuestionPort
from chp_server.testing import Pair, TestServer
from tests.talk import until
from tests.wire.hand import END, REFUSED, REPLY, Hand, parts_of, receive


@pytest.fixture
def hand() -> Iterator[Hand]:
    limits = Limits(image_numbers_max=2, sync_chunk_items=10)
    with TestServer(limits, heartbeat_s=0.05) as server, Hand(server.address) as made:
        yield made


def ask(hand: Hand, subtree: str = "", **options: Any) -> list[Any]:
    dealer = hand.dealer()
    hand.ask(dealer, subtree, **options)
    header: list[Any] = parts_of(receive(dealer))[0]
    dealer.close()
    return header


def plan(hand: Hand, **options: Any) -> dict[str, Any]:
    """Plan a read; return the options of the questions for its parts."""
    kind, _, facts = ask(hand, image=0, **options)
    assert kind == REPLY, facts
    return {"image": facts["number"], "proof": [facts["store"], facts["opener"]], **options}


def read(hand: Hand, planned: dict[str, Any], part: int, parts: int) -> tuple[dict[str, bytes], int]:
    *chunks, ((kind, _, number, count, *_),) = hand.sync(**planned, part=part, parts=parts)
    assert kind == END
    found = {
        key: value for _, *items in chunks for keys, values, _ in items for key, value in zip(keys, values, strict=True)
    }
    assert len(found) == count
    return found, number


def test_parts_are_disjoint_and_of_one_number() -> None:
    with TestServer(Limits(sync_chunk_items=10)) as server, Hand(server.address) as hand:
        session = hand.session()
        before = {f"/a/{i}": b"%d" % i for i in range(101)}
        session.put(before)
        session.put({"/b/1": b"x"})
        planned = plan(hand, prefix="/a")
        session.put({"/a/5": b"changed", "/a/new": b"new"})
        parts = [read(hand, planned, i, 3) for i in (2, 0, 1)]
        assert {number for _, number in parts} == {planned["image"]}
        assert sum(len(found) for found, _ in parts) == 101
        assert {k: v for found, _ in parts for k, v in found.items()} == before
        assert read(hand, planned, 1, 3) == parts[2], "a part may be read again"


def test_an_image_counts_toward_the_byte_limit_only_once_read() -> None:
    """A plan only keeps a number. The first read of it makes an image. The limit applies to the keys of all images."""
    with TestServer(Limits(images_bytes_max=10 * 57 * 50, images_maps_max=0)) as server, Hand(server.address) as hand:
        session, planned = hand.session(), []
        for i in range(60):
            session.put({f"/a/{n}": b"%d" % (i % 10) for n in range(10)})
            planned.append(plan(hand, prefix="/a"))
        for i, each in enumerate(planned):
            *_, (header, *_) = hand.sync(**each, part=0)
            assert header[0] == (END if i < 50 else REFUSED), i
            if header[0] == REFUSED:
                assert header[2] == "busy"
                break
        assert i == 50


def test_the_client_logs_once_that_the_server_has_no_room_for_images(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ask_port, "BUSY_S", 0.2)
    with TestServer(Limits(images_bytes_max=5, images_maps_max=0)) as server, Hand(server.address) as hand:
        hand.session().put({f"/{n}": b"" for n in range(10)})
        planned = plan(hand)
        assert len(read(hand, planned, 0, 1)[0]) == 10
        with QuestionPort([server.address], 1.0) as port, pytest.raises(Unanswered, match="last: busy"):
            list(port.stream("", **planned, prefix="/0", part=0))
    said = [record.getMessage() for record in caplog.records if "is busy" in record.getMessage()]
    assert len(said) == 1 and "the images that are read hold" in said[0]


def test_a_finished_read_makes_room_for_another_kept_number(hand: Hand) -> None:
    session, planned = hand.session(), []
    for i in range(3):
        session.put({"/a": b"%d" % i})
        if i < 2:
            planned.append(plan(hand))
    assert ask(hand, image=0)[2] == "busy"
    assert hand.status()["image_numbers"] == 2
    assert read(hand, planned[0], 0, 1)[0] == {"/a": b"0"}
    assert ask(hand, image=0)[0] == REPLY, "one that was read to the end makes room"
    until(lambda: ask(hand, **planned[0], part=0)[2] == "image", "it is gone")
    assert read(hand, planned[1], 0, 1)[0] == {"/a": b"1"}


@pytest.mark.parametrize(
    "options",
    [
        {"image": b"short"},
        {"image": bytes(16)},
        {"image": -1},
        {"parts": 0},
        {"parts": 1 << 20},
        {"prefix": "/x"},
        {"prefix": 3},
        {"part": 1},
        {"part": "0"},
    ],
)
def test_ill_formed_requests_are_refused(hand: Hand, options: dict[str, Any]) -> None:
    header = ask(hand, "/a/", **{**plan(hand), "part": 0, **options})
    assert header[0] == REFUSED and header[2] == "bad"


def test_a_probe_ends_at_the_end_of_a_record(hand: Hand) -> None:
    session = hand.session()
    numbers = [session.put({f"/{n}/{i}": b"" for i in range(10)}) + 9 for n in range(5)]
    first = ask(hand, "", **{"from": 0, "feed": True, "probe": 0})[2]
    assert first["number"] == first["newest"] == numbers[-1] and first["oldest"] == 0
    for most, end in ((1, 1), (10, 1), (19, 1), (20, 2), (39, 3), (40, 4), (10**9, 4)):
        said = ask(hand, "", **{"from": numbers[0], "feed": True, "probe": most})[2]
        assert said["number"] == numbers[end], most
    *chunks, ((kind, _, number, *_),) = hand.sync("", **{"from": numbers[0], "feed": True, "until": numbers[2]})
    assert kind == END and number == numbers[2]
    assert [record[0][3] for chunk in chunks for record in chunk[1:]] == numbers[1:3]
    assert ask(hand, "", **{"from": numbers[-1] + 5, "feed": True, "probe": 0})[2] == "retained", "not in the history"
    assert ask(hand, "", **{"from": numbers[0], "feed": True, "probe": -1})[2] == "bad"


def test_a_request_for_another_store_is_refused(hand: Hand) -> None:
    hand.session().put({"/a": b"1"})
    probe = {"from": 0, "feed": True, "probe": 0}
    store = ask(hand, "", **probe)[2]["store"]
    assert ask(hand, "", **{**probe, "store": store})[0] == REPLY
    other = {"from": 5 << 48 | 7, "store": b"x" * 16}
    several: list[dict[str, Any]] = [{"feed": True, "probe": 0}, {"feed": True}, {"image": 0}, {}]
    for options in several:
        kind, _, code, detail = ask(hand, "", **{**options, **other})
        assert (kind, code, detail) == (REFUSED, "store", store), options
    assert hand.status()["epoch"] == 1, "nor does its number count for anything"


def test_the_store_id_survives_failover_and_restart(tmp_path: Any) -> None:
    stores = tuple(f"sqlite:{tmp_path / name}" for name in ("a", "b"))
    with (
        Pair(store=stores, heartbeat_s=0.1, peer_timeout_s=0.5, solo_wait_s=0.5) as pair,
        Hand(pair.primary.address) as hand,
        Hand(pair.backup.address) as other,
    ):
        until(lambda: hand.status()["state"] == "active" and hand.status()["in_sync"], "in sync")
        store = hand.status()["store"]
        assert len(store) == 32
        hand.session().put({"/a": b"1"})
        until(lambda: other.status()["store"] == store, "the passive knows it")
        pair.primary.kill()
        until(lambda: ask(other, "", **{"from": 0, "feed": True, "probe": 0})[0] == REPLY, "taken over")
        assert other.status()["store"] == store
        pair.backup.restart()
        assert other.status()["store"] == store


def test_a_packed_part_has_the_contents_of_the_plain_part(hand: Hand) -> None:
    items = {f"/a/{i}" + "é" * (i % 3): b"x" * i for i in range(25)}
    hand.session().put(items, t=[[0], [60_000]])
    planned = plan(hand)
    found: dict[str, bytes] = {}
    for part in (0, 1):
        options = {**planned, "part": part, "parts": 2}
        *chunks, _ = hand.sync(**options, packed=True)
        for plain, (_, (keys, values, extras)) in zip(hand.sync(**options), chunks, strict=False):
            names, column = cut(keys, extras.pop("k")), cut(values, extras.pop("v"))
            assert [[key.decode() for key in names], column] == plain[1][:2] and extras.keys() == plain[1][2].keys()
            found |= {key.decode(): value for key, value in zip(names, column, strict=True)}
    assert found == items


def cut(octets: bytes, lengths: bytes) -> list[bytes]:
    sizes = [int.from_bytes(lengths[i : i + 4], "little") for i in range(0, len(lengths), 4)]
    ends = list(accumulate(sizes))
    assert ends[-1] == len(octets)
    return [octets[end - size : end] for end, size in zip(ends, sizes, strict=True)]
