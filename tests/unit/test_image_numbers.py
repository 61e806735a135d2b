"""An image is a number: what changed since is undone, on either server. covers: undo_log.py, image_numbers.py."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from zlib import crc32

import msgpack
import pytest

from chp.batch import Segment, decode, packb
from chp.headers import Kthxbai, Refused, Reply, Sync, request_of
from chp.limits import DEFAULT, Limits
from chp.messages import ICANHAZ
from chp_server.core.questions import requests
from chp_server.core.state import undo_log
from chp_server.core.state.image import PartedImage
from chp_server.core.state.state import ReplicatedState
from chp_server.core.updates.authorizer import Signed
from chp_server.cores import Cores
from tests.unit.replicas import WithReplica

SLICE = 50
SMALL = replace(DEFAULT, gather_items_max=SLICE, gather_quiet_times=1)
WRITER = b"w" * 16


def filled(keys: int) -> ReplicatedState:
    state = ReplicatedState(SMALL)
    for i in range(keys):
        state.apply(Segment([f"/{'ab'[i % 2]}/{i}"], [b"%d" % i], None), i + 1, 0.0)
        state.number = i + 1
    return state


def content(state: ReplicatedState, prefix: str = "") -> list[tuple[str, bytes, int]]:
    items = [(key, value, state.map.revisions[key]) for key, value in state.map.values.items()]
    return sorted(item for item in items if item[0].startswith(prefix))


def held(image: PartedImage) -> list[tuple[str, bytes, int]]:
    return sorted(item for part in image.parts for item in part.items())


def kept(state: ReplicatedState, number: int, *forgets: int) -> int:
    state.apply(Segment([], [], {"images": [True, list(forgets)]}), number, 0.0)
    state.number = number
    return number


@pytest.mark.parametrize("seed", range(30))
def test_an_image_at_an_earlier_number_shows_the_map_at_that_number(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_log, "COLUMN_KEYS_MAX", 40)
    chance, state, numbers = random.Random(seed), filled(6 * SLICE + 7), count(10_000)
    was: dict[int, list[tuple[str, bytes, int]]] = {}

    def write() -> None:
        i, n = chance.randrange(500), chance.randrange(1, 9)
        keys = [f"/{'ab'[j % 2]}/{j}" for j in range(i, i + n)]
        deletes = {"d": list(range(n))} if chance.random() < 0.4 else None
        state.apply(Segment(keys, [b"new%d" % state.number] * n, deletes), next(numbers), 0.0, deferred=seed % 3 == 0)

    for _ in range(chance.randrange(1, 5)):
        was[kept(state, next(numbers))] = content(state)
        for _ in range(chance.randrange(40)):
            write()
    state.undo.check()
    images = []
    for number in chance.sample(list(was), len(was)):
        prefix, parts = chance.choice(["", "/a/", "/b/1"]), chance.randrange(1, 5)
        image = state.image_at(number, prefix, parts)
        assert image is not None
        images.append((image, [item for item in was[number] if item[0].startswith(prefix)]))
        for _ in range(chance.randrange(20)):
            write()
            state.gather()
    state.undo.drop(list(was)[:1])
    while state.gathering:
        write()
        state.gather()
    for image, items in images:
        assert held(image) == items
        for i, part in enumerate(image.parts):
            assert all(crc32(key.encode()) % len(image.parts) == i for key, _, _ in part.items())
    state.undo.drop(was)
    state.undo.check()
    assert not state.undo.layers and not state.undo.bytes


def test_an_image_at_an_earlier_number_has_the_keys_deleted_since() -> None:
    state = filled(3 * SLICE)
    was, number = content(state), kept(state, 1000)
    keys = list(state.map.values)
    state.apply(Segment(keys, [b""] * len(keys), {"d": list(range(len(keys)))}), 1001, 0.0)
    image = state.image_at(number, "", 3)
    state.gather_all()
    assert image is not None and held(image) == was and image.parts[0].ready


def test_a_full_undo_log_loses_the_oldest_number() -> None:
    state = ReplicatedState(replace(SMALL, undo_bytes_max=100 * undo_log.ENTRY_BYTES))
    state.apply(Segment([f"/{i}" for i in range(150)], [b""] * 150), 1, 0.0)
    first = kept(state, 2)
    state.apply(Segment([f"/{i}" for i in range(60)], [b""] * 60), 3, 0.0)
    second = kept(state, 4)
    state.apply(Segment([f"/{i}" for i in range(60)], [b""] * 60), 5, 0.0)
    assert state.undo.lost == [first] and list(state.undo.numbers) == [second]
    assert state.image_at(first, "", 1) is None and state.image_at(second, "", 1) is not None
    state.apply(Segment([f"/{i}" for i in range(150)], [b""] * 150), 6, 0.0)
    assert state.undo.lost == [first, second] and not state.undo.layers
    state.undo.check()


class Reader:
    """A reader of images at the servers of a pair."""

    def __init__(self, cores: Cores, user: str = "") -> None:
        self.cores, self.user, self._ids = cores, user, count(1)

    def answers(self, to: str, **options: Any) -> list[tuple[Any, list[Any]]]:
        """Ask a question; return the messages of its answer so far."""
        request_id = next(self._ids)
        reader = b"reader" + self.user.encode()
        frames = [reader, ICANHAZ, b"", packb({"chp": 5, "id": request_id, "from": 0, "credit": 64, **options})]
        turns = len(self.cores.turns[to])
        self.cores.cores[to].request(Signed(frames, self.user))
        self.cores.run(1.0)
        return [
            (header, items)
            for turn in self.cores.turns[to][turns:]
            for identity, messages in (*turn.promises, *turn.replies)
            for header, items in (decode(frames[-1]) for frames in messages)
            if identity == reader and request_of(header) == request_id
        ]

    def plan(self, to: str = "P", **options: Any) -> dict[str, Any]:
        ((header, _),) = self.answers(to, image=0, **options)
        assert isinstance(header, Reply), header
        return header.facts

    def part(self, plan: dict[str, Any], part: int, parts: int, to: str = "P", **options: Any) -> dict[str, bytes]:
        proof = [plan["store"], plan["opener"]]
        told = self.answers(to, image=plan["number"], proof=proof, part=part, parts=parts, **options)
        *chunks, (end, _) = told
        assert isinstance(end, Kthxbai) and end.number == plan["number"], told
        assert [header.chunk for header, _ in chunks] == list(range(len(chunks)))
        items: list[Any] = [item for header, items in chunks if isinstance(header, Sync) for item in items]
        found = {key: value for keys, values, _ in items for key, value in zip(keys, values, strict=True)}
        assert len(found) == end.keys
        return found

    def refused(self, to: str = "P", **options: Any) -> tuple[str, str]:
        ((header, _),) = self.answers(to, **options)
        assert isinstance(header, Refused), header
        return header.code, str(header.detail)


def cores_of(keys: int = 7 * SLICE, limits: Limits = SMALL, **config: Any) -> Cores:
    cores = Cores(limits, **config)
    cores.put("PB", WRITER, 1, {f"/a/{i}": b"%d" % i for i in range(keys)})
    cores.run(0.5)
    return cores


def test_a_failover_in_the_middle_of_a_read_changes_no_row() -> None:
    cores, was = cores_of(), {f"/a/{i}": b"%d" % i for i in range(7 * SLICE)}
    reader = Reader(cores)
    plan = reader.plan(count=True)
    assert plan["keys"] == 7 * SLICE and plan["number"] == cores.p.state.number == cores.b.state.number
    cores.put("PB", WRITER, 2, {"/a/1": b"later", "/a/2": None, "/new": b"later"})
    cores.run(0.5)
    first = [reader.part(plan, i, 4) for i in (0, 1)]
    cores.put("PB", WRITER, 3, {f"/a/{i}": None for i in range(100)})
    cores.run(0.5)
    cores.stopped = "P"
    cores.run(5.0)
    cores.vote("B")
    cores.put("B", WRITER, 4, {f"/a/{i}": b"much later" for i in range(50, 200)})
    cores.run(0.5)
    again = [reader.part(plan, i, 4, to="B") for i in range(4)]
    assert again[:2] == first, "a part has the same keys at both servers"
    assert {key: value for part in again for key, value in part.items()} == was
    assert sum(map(len, again)) == len(was)


def test_a_plan_is_answered_once_the_passive_keeps_its_number() -> None:
    cores = cores_of()
    cores.linked = False
    reader = Reader(cores)
    cores.p.request([b"r", ICANHAZ, b"", msgpack.packb({"chp": 5, "id": 9, "from": 0, "image": 0})])
    assert not cores.turn("P").replies
    assert not cores.p.requests.syncs and cores.p.requests.owed
    cores.run(10.0)
    assert not cores.p.requests.owed, "the active went on alone"
    cores.linked = True
    cores.run(3.0)
    assert list(cores.b.state.undo.numbers) == list(cores.p.state.undo.numbers), "the record came with the resume"
    assert len(reader.part(reader.plan(), 0, 1)) == 7 * SLICE


def test_a_plan_keeps_only_a_number_until_its_time_is_over() -> None:
    cores = cores_of(limits=replace(SMALL, image_idle_s_max=5.0))
    reader = Reader(cores)
    numbers = {reader.plan()["number"] for _ in range(3)}
    assert len(numbers) == 1, "nothing changed between the three"
    assert cores.p.requests.numbers.images == 0 and cores.p.state.undo.bytes == 0
    cores.run(6.0)
    assert not cores.p.state.undo.numbers and not cores.b.state.undo.numbers
    number = cores.p.state.number
    cores.put("PB", WRITER, 2, {"/a/1": b""})
    cores.run(5.0)
    assert cores.p.state.number == number + 1, "the end of numbers is one record"


def test_a_number_is_freed_soon_after_each_of_its_plans_is_read() -> None:
    cores = cores_of(limits=replace(SMALL, image_done_s_max=3.0, image_idle_s_max=20.0))
    reader = Reader(cores)
    plan = reader.plan()
    assert reader.plan()["number"] == plan["number"]
    for part in range(2):
        reader.part(plan, part, 2)
    cores.run(5.0)
    assert reader.part(plan, 0, 2), "the second plan was not read"
    reader.part(plan, 1, 2)
    cores.run(5.0)
    assert not cores.p.state.undo.numbers and cores.p.requests.numbers.images == 0
    code, why = reader.refused(image=plan["number"], proof=[plan["store"], plan["opener"]], part=0, parts=2)
    assert code == "image" and "not read in time" in why


def test_a_number_of_another_history_is_refused() -> None:
    cores = cores_of()
    reader = Reader(cores)
    plan = reader.plan()
    code, why = reader.refused(image=plan["number"], proof=[plan["store"], b"x" * 16], part=0)
    assert code == "image" and "another history" in why


@pytest.mark.parametrize(
    "options",
    [
        {"part": 1},
        {"part": 2, "parts": 2},
        {"part": 0, "parts": 0},
        {"part": 0, "parts": 4097},
        {"part": b"0"},
        {"part": 0, "prefix": 7},
        {},
        {"image": -1, "part": 0},
    ],
)
def test_ill_formed_questions_are_refused(options: dict[str, Any]) -> None:
    cores = Cores()
    reader = Reader(cores)
    plan = reader.plan()
    proof = [plan["store"], plan["opener"]]
    code, _ = reader.refused(**{"image": plan["number"], "proof": proof, **options})
    assert code == "bad"


def test_a_busy_refusal_and_the_log_name_the_images_in_memory() -> None:
    cores = cores_of(limits=replace(SMALL, images_bytes_max=1000, images_maps_max=1))
    reader = Reader(cores)
    plan = reader.plan()
    reader.part(plan, 0, 2)
    for no in range(2, 4):
        cores.put("PB", WRITER, no, {"/a/1": b"%d" % no})
        cores.run(0.5)
    other = reader.plan()
    code, why = reader.refused(image=other["number"], proof=[other["store"], other["opener"]], part=0)
    assert code == "busy" and "/ at 1." in why and "ask again" in why
    facts = [fact for turn in cores.turns["P"] for fact in turn.facts if fact.event == "image refused"]
    assert [fact.fields["why"] for fact in facts] == [why]
    assert reader.part(plan, 1, 2), "what is held goes on"


def test_the_user_with_most_kept_numbers_makes_room_for_another_user() -> None:
    cores = cores_of(limits=replace(SMALL, image_numbers_max=4), keyed=True)
    alice, bob = Reader(cores, "alice"), Reader(cores, "bob")
    plans = []
    for no in range(2, 6):
        plans.append(alice.plan()["number"])
        cores.put("PB", WRITER, no, {"/a/1": b"%d" % no})
        cores.run(0.2)
    assert alice.refused(image=0)[0] == "busy"
    assert bob.plan()["number"] not in plans
    assert list(cores.p.state.undo.numbers)[:3] == plans[1:] and len(cores.b.state.undo.numbers) == 4


def test_the_keys_of_a_prefix_are_counted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "COUNTED_AT_ONCE", 10)
    monkeypatch.setattr(requests, "COUNTED_SLICES", 2)
    cores = cores_of()
    assert Reader(cores).plan(count=True, prefix="/a/1")["keys"] == 111
    assert "keys" not in Reader(cores).plan()


def test_a_server_without_room_plans_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = cores_of()
    monkeypatch.setattr(type(cores.p.committer.room), "read_only", "the disk is full")
    number = cores.p.state.number
    reader = Reader(cores)
    plan = reader.plan()
    assert plan["number"] == number == cores.p.state.number
    assert len(reader.part(plan, 0, 1)) == 7 * SLICE


def test_an_image_question_is_refused_busy_while_a_commit_is_deferred() -> None:
    cores = cores_of()
    reader = Reader(cores)
    plan = reader.plan()
    proof = [plan["store"], plan["opener"]]
    state, at = cores.p.state, cores.p.state.number + 1
    state.apply(Segment(["/a/1"], [b"later"]), at, 0.0, deferred=True)
    asked = [b"r", ICANHAZ, b"", packb({"chp": 5, "id": 9, "image": plan["number"], "proof": proof, "part": 0})]
    cores.p.request(asked)
    assert state.deferred, "the question has put none of it into the map"
    ((_, (frames,)),) = cores.p.end_turn().replies
    refused = decode(frames[-1])[0]
    assert isinstance(refused, Refused) and refused.code == "busy"
    cores.run(0.5)
    assert not state.deferred and reader.part(plan, 0, 1)["/a/1"] == b"1"


def numbers_of(cores: Cores) -> Iterator[list[int]]:
    for core in (cores.p, cores.b):
        yield list(core.state.undo.numbers)


def test_a_passive_drops_a_kept_number_after_image_kept_s_max() -> None:
    cores = cores_of(limits=replace(SMALL, image_kept_s_max=30.0))
    plan = Reader(cores).plan()
    cores.run(31.0)
    assert list(numbers_of(cores)) == [[plan["number"]], []]


def test_a_replica_forwards_a_plan_and_answers_the_parts() -> None:
    pair = WithReplica(SMALL)
    pair.put("PB", WRITER, 1, {f"/a/{i}": b"%d" % i for i in range(100)})
    pair.run(0.5)
    pair.r.request([b"c", ICANHAZ, b"", packb({"chp": 5, "id": 1, "image": 0})])
    pair.run(0.5)
    (told,) = pair.answers_to(b"c")
    assert isinstance(told, Reply)
    plan, reader = told.facts, [b"c", ICANHAZ, b""]
    assert pair.r.state.number == plan["number"] and list(pair.r.state.undo.numbers) == [plan["number"]]
    pair.put("PB", WRITER, 2, {"/a/1": b"later", "/a/2": None})
    pair.run(0.5)
    part = {"chp": 5, "image": plan["number"], "proof": [plan["store"], plan["opener"]], "part": 0, "credit": 9}
    pair.r.request([*reader, packb({**part, "id": 2})])
    pair.run(0.5)
    *_, end = pair.answers_to(b"c")
    assert isinstance(end, Kthxbai) and (end.number, end.keys) == (plan["number"], 100)
    pair.r.request([*reader, packb({**part, "id": 3, "image": plan["number"] + 9})])
    pair.run(0.5)
    *_, refused = pair.answers_to(b"c")
    assert isinstance(refused, Refused) and refused.code == "busy", "the replica does not have that number yet"
