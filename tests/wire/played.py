"""The messages of the vectors of CHP/2. Real cores send them to each other, and the test sets their clock.

    session()     the worked session of spec/client.md, between a client's core and a server's core
    vectors()     all vectors: name -> the frames of one message, or the body of a journal's row
    refused()     invalid messages; `verdict` tells the code of their REFUSED, or that they were counted
    files()       the vectors as spec/vectors has them: file -> vectors

No vector is written by hand. `pytest --rewrite tests/wire/test_golden_chp2.py` writes the files and the session's page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

import msgpack

from chp.batch import Segment, encode, packb, split
from chp.columns import (
    ABORT,
    ACK,
    CANCEL,
    COMMIT,
    CONDITIONS,
    DELETES,
    EXPECT,
    GROUP,
    JOIN,
    LEASE,
    LEASED,
    NACK,
    ONCE,
    PUBLISH,
    REFRESH,
    SCHEDULE,
    STAGE,
    TOPIC,
    TTLS,
    UNLEASE,
    UNLESS_NEWER,
)
from chp.headers import KIND_NAMES, REPLICATED, Ack
from chp.keys import OLDEST_HELD, RESERVED_KEY, public_session, session_topic
from chp.limits import DEFAULT, Limits
from chp.numbers import number, pack
from chp.topics import ALL_SLOTS, pack_messages, pack_slots, slots_of, unpack_slots
from chp.versions import VERSION
from chp_client.core.core import ClientCore
from chp_client.core.events import State
from chp_server.core.core import CoreConfig, ServerCore
from chp_server.core.pair.binary_star import PairEvent
from chp_server.core.snapshots import Snapshotter
from chp_server.core.state.journal import Options
from chp_server.core.updates.channels import greeting
from chp_server.core.updates.turn import Append, ReadMessages, Turn
from chp_server.store.memory_store import MemoryStore, MessageShelf
from tests.wire.vectors import Vector

Frames = list[bytes]
SESSION, OTHER_SESSION = bytes(range(12)) + bytes(4), bytes(range(0x50, 0x5C)) + bytes(4)
LEASE_ID, TRANSACTION = bytes(range(0x20, 0x30)), bytes(range(0x30, 0x40))
SERVER, PEER = bytes(range(0x10, 0x20)), bytes(range(0x40, 0x50))
SECRETS = bytes(range(0x70, 0x80)), bytes(range(0x80, 0x90))
WALL_S = 1_795_246_000.0
STEP_S = 0.25
WHO = b"client"
OWN = session_topic(public_session(SESSION))


class Servers:
    """A lone server or a pair of cores. `turns` has their last turns."""

    def __init__(self, *, pair: bool = False, limits: Limits = DEFAULT) -> None:
        self.now = 0.0
        config = CoreConfig(name="a", has_peer=pair, durability=1, scrub_s=STEP_S)
        configs = [replace(config, secret=SECRETS[0]), replace(config, primary=False, name="b", secret=SECRETS[1])]
        ids = [SERVER, PEER] if pair else [SERVER]
        self.cores = [ServerCore(c, i, self.now, limits) for c, i in zip(configs, ids, strict=False)]
        self.linked = True
        self.turns: list[Turn] = []
        # The rows of the first server's journal.
        self.rows: list[bytes] = []
        # The messages of the first server's journal.
        self._shelf = MessageShelf()
        self.to_peer: list[tuple[int, Frames]] = []
        self._mail: list[list[Frames]] = [[], []]
        while not self.active or (pair and not self.cores[0].pair.in_sync()):
            self.turn()

    @property
    def active(self) -> ServerCore | None:
        """The first server once it is active, else None."""
        return self.cores[0] if self.cores[0].active else None

    def turn(self, say: Callable[[ServerCore], object] = lambda _core: None, *, beat: bool = True) -> Turn:
        """Let each server take a turn, call `say` in the turn of the first server, and return that turn."""
        self.now += STEP_S if beat else 0.001
        self.turns = []
        for i, core in enumerate(self.cores):
            core.begin_turn(self.now, WALL_S + self.now)
            mail, self._mail[i] = self._mail[i], []
            for frames in mail:
                core.peer_message(frames)
            if i == 0:
                say(core)
            turn = core.end_turn()
            # There is no journal, so a state that was taken over needs no writing.
            core.pair.replacing = None
            self._journal(core, turn)
            self.to_peer += [(i, frames) for frames in (*turn.to_peer, *turn.opened, *turn.confirm)]
            if self.linked:
                self._mail[1 - i] += [*turn.to_peer, *turn.opened, *turn.confirm]
            self.turns.append(turn)
        self.rows += [op.body for op in self.turns[0].journal if isinstance(op, Append)]
        return self.turns[0]

    def _journal(self, core: ServerCore, turn: Turn) -> None:
        """Keep the messages of a turn, and answer its reads of messages."""
        for op in turn.journal:
            if isinstance(op, Append):
                self._shelf.keep(op.messages)
        for read in turn.reads:
            if isinstance(read, ReadMessages):
                core.page(read, self._shelf.read(*astuple(read)))

    def settle(self, say: Callable[[ServerCore], object]) -> Turn:
        """Take a turn, and further turns until both servers of a pair took part. Return the first server's output."""
        turn = self.turn(say, beat=False)
        for _ in range(3 * (len(self.cores) - 1)):
            more = self.turn(beat=False)
            turn.publish += more.publish
            turn.acks += more.acks
        return turn

    def ask(self, subtree: bytes, **options: Any) -> list[Frames]:
        """Send an ICANHAZ, and return the messages of its answer in order."""
        frames = [WHO, b"ICANHAZ?", subtree, packb({"chp": VERSION, "id": 1, **options})]
        first = self.turn(lambda core: core.request(frames), beat=False)
        return answers(first) + [f for _ in range(3) for f in answers(self.turn(beat=False))]


def answers(turn: Turn) -> list[Frames]:
    """Return the messages that a turn sends on P."""
    return [frames for _, messages in (*turn.deliveries, *turn.replies) for frames in messages]


def kvset(no: int, keys: list[str], values: list[bytes], extras: Any = None, session: bytes = SESSION) -> Frames:
    """Return a KVSET of CHP/2."""
    return [RESERVED_KEY, pack(no), session, b"", Segment(keys, values, extras).encode()]


def only(kind: int, messages: list[Frames], topic: bytes = b"") -> Frames:
    """Return the only message of a kind, on a topic if one is given."""
    (found,) = [f for f in messages if split(f[-1])[0][0] == kind and (not topic or f[0] == topic)]
    return found


# -- the worked session


class Followed:
    """A client's core that follows a lone server. `said` has the messages between them, in order."""

    def __init__(self, subtree: str) -> None:
        self.servers = Servers()
        self.servers.turn(lambda core: core.collect(kvset(1, ["/r/a"], [b"1"], session=OTHER_SESSION)))
        self.client = ClientCore(SESSION, [subtree], ["tcp://a:5556"], self.servers.now, chance=lambda: 0.5)
        self.topic = b"\x02" + subtree.encode() + b"\x03"
        self.said: list[Frames] = []
        self.talk()
        self.client.on_link(0, True, self.servers.now)
        self.talk(5)

    def talk(self, times: int = 1) -> None:
        """Exchange messages `times` times, the last time after the interval of a heartbeat."""
        for left in reversed(range(times)):
            turn = self.servers.turn(self._say, beat=not left)
            for frames in [f for f in turn.publish + turn.acks if f[0] in (self.topic, OWN)]:
                self._hear(self.client.on_update, frames)
            for frames in answers(turn):
                self._hear(self.client.on_reply, frames)

    def _say(self, core: ServerCore) -> None:
        effects = self.client.take()
        self.said += [frames for _, frames in effects.request + effects.publish]
        for _, topic in effects.subscribe:
            core.subscription([WHO, b"\x01" + topic])
        for _, frames in effects.request:
            core.request([WHO, *frames])
        for _, frames in effects.publish:
            core.collect(frames)

    def _hear(self, on: Callable[[int, Frames, float], None], frames: Frames) -> None:
        self.said.append(frames)
        on(0, frames, self.servers.now)


def session() -> list[Frames]:
    """Return twelve messages: a client joins, sets a key, is acknowledged, misses another client's set, and resumes."""
    with_it = Followed("/r/")
    before = len(with_it.said)
    # HEARTBEATs are left out.
    with_it.said = [f for f in with_it.said if f[0] == b"ICANHAZ?" or split(f[-1])[0][0] != 2]
    assert len(with_it.said) == 5 < before, "greeted twice, asked, and answered"
    own = Segment(["/r/b"], [b"2"], None)
    with_it.client.subscriptions.show(own)
    with_it.client.submit(own, "own", with_it.servers.now)
    with_it.said, joined = [], with_it.said
    with_it.talk(1)
    with_it.said, set_and_acked = [], [f for f in with_it.said if f[0] == RESERVED_KEY or split(f[-1])[0][0] != 2]
    lost = kvset(2, ["/r/a"], [b"3"], session=OTHER_SESSION)
    # The publication of this set reaches no client.
    with_it.servers.turn(lambda core: core.collect(lost), beat=False)
    with_it.talk()
    with_it.talk(2)
    heard = [f for f in with_it.said if f[0] == b"ICANHAZ?" or split(f[-1])[0][0] != 2]
    noticed = next(f for f in with_it.said if split(f[-1])[0][0] == 2)
    assert with_it.client.shown == {"/r/a": b"3", "/r/b": b"2"} and with_it.client.state is State.SYNCED
    return [*joined, *set_and_acked, noticed, *heard]


# -- the other vectors


def vectors() -> dict[str, Frames]:
    """Return all vectors by name."""
    names = (
        "greeting-of-our-own-channel", "greeting-of-the-subtree", "icanhaz-for-all", "sync", "kthxbai", "kvset",
        "update", "ack", "heartbeat-that-shows-a-gap", "icanhaz-for-what-was-missed", "records", "kthxbai-of-a-resume",
    )  # fmt: skip
    told = {f"session-{i}-{name}": f for i, (name, f) in enumerate(zip(names, session(), strict=True), 1)}
    of_clients = {**told, **_of_a_pair(), **_questions(), **_of_a_large_record(), **_of_steps()}
    of_topics = {**_of_a_topic(), **_of_a_group(), **_of_a_group_that_counts()}
    return {**of_clients, **dict(_of_the_link()), **_of_a_journal(), **of_topics}


def _questions() -> dict[str, Frames]:
    """Return the questions on P that the session, topics and groups do not show."""
    store = {"proof": [SERVER, SERVER]}
    asked: dict[str, dict[str, Any]] = {
        "icanhaz-two-chunks-more": {"more": 2},
        "icanhaz-a-vote": {"credit": 1},
        "icanhaz-a-feed": {"feed": True, "from": number(1, 3), **store, "until": number(1, 6), "credit": 8},
        "icanhaz-a-probe": {"feed": True, "from": number(1, 3), **store, "probe": 0},
        "icanhaz-an-inspection": {"inspect": True, "credit": 8},
        "icanhaz-a-plan": {"image": 0, "prefix": "/b", "count": True},
        "icanhaz-a-part": {"image": number(1, 8), **store, "prefix": "/b", "part": 0, "parts": 2, "credit": 8},
        "icanhaz-a-packed-part": {"image": number(1, 8), **store, "part": 0, "packed": True},
    }
    found = {name: _question(b"", 1, options) for name, options in asked.items()}
    told = {"name": "rates", "program": "rates.py", "state": "SYNCED", "every_ms": 5000}
    at = {"at": [SERVER, number(1, 3), SERVER, 0], "below": [OTHER_SESSION[:12] + b"rep1"], "name": "r1", "credit": 32}
    found["icanhaz-to-follow"] = _question(b"\x02follow\x03", 3, {**at, "whole": False})
    found["icanhaz-more-of-a-replica"] = _question(
        b"", 3, {"more": 16, "readers": 250, "hops": 1, "number": number(1, 9)}
    )
    found |= {
        "icanhaz-to-follow-and-confirm": _question(b"\x02follow\x03", 3, {**at, "whole": False, "confirms": SERVER}),
        "icanhaz-what-a-replica-confirms": _question(
            b"", 3, {"more": 0, "confirmed": [SERVER, number(1, 9), SERVER, 7]}
        ),
        "icanhaz-messages-that-a-replica-lacks": _question(b"", 3, {"more": 0, "lack": packb([1, 0, 5])}),
        "ack-of-three-copies": greeting(OWN, number(1, 3), encode(Ack([[1, 1, number(1, 2)]], REPLICATED, None, 3))),
    }
    return {**found, "icanhaz-what-a-client-tells-of-itself": _question(b"\x02client\x03", 2, told)}


def _question(subtree: bytes, request: int, options: dict[str, Any]) -> Frames:
    return [b"ICANHAZ?", subtree, packb({"chp": VERSION, "id": request, **options})]


def _own_sets() -> dict[str, Frames]:
    b_is = {CONDITIONS: [[0], [number(1, 2)]]}
    sets: dict[str, tuple[list[str], list[bytes], Any]] = {
        "kvset-of-two-keys": (["/a", "/b"], [b"1", b"22"], None),
        "kvset-a-delete-and-a-ttl-of-2-5-s": (["/a", "/c"], [b"", b"x"], {DELETES: [0], TTLS: [[1], [2500]]}),
        "kvset-only-if-b-still-has-revision-1-2": (["/b"], [b"3"], b_is),
        "kvset-a-lease-of-10-s-with-one-key": (["/who/1"], [b"here"], {LEASE: [LEASE_ID, 10_000], LEASED: LEASE_ID}),
        "kvset-staged-then-committed": (["/t/1"], [b"v"], {STAGE: [TRANSACTION, "0.0"]}),
        "kvset-staged-more-of-the-attempt": (["/t/2"], [b"w"], {STAGE: [TRANSACTION, "0.0"]}),
        "kvset-the-commit": ([], [], {COMMIT: [TRANSACTION, "job", 7, [["0.0", 2]], None]}),
    }
    return {name: kvset(no, *what) for no, (name, what) in enumerate(sets.items(), 1)}


def _of_a_pair() -> dict[str, Frames]:
    """Return messages that clients hear from two servers that are in sync."""
    pair, sets = Servers(pair=True), _own_sets()
    pair.turn(lambda core: core.subscription([WHO, b"\x01\x02/\x03"]))
    out = dict(sets)
    first = pair.settle(lambda core: core.collect(sets["kvset-of-two-keys"]))
    out["ack-of-the-first-kvset-replicated"] = only(6, first.acks, OWN)
    pair.settle(lambda core: core.collect(sets["kvset-a-delete-and-a-ttl-of-2-5-s"]))
    pair.settle(lambda core: core.collect(kvset(1, ["/b"], [b"4"], session=OTHER_SESSION)))
    refused = pair.settle(lambda core: core.collect(sets["kvset-only-if-b-still-has-revision-1-2"]))
    out["refused-b-has-another-revision"] = only(7, refused.acks, OWN)
    gap = pair.settle(lambda core: core.collect(kvset(6, ["/a"], [b"5"])))
    out["refused-expected"] = only(7, gap.acks, OWN)
    unknown = pair.settle(lambda core: core.collect(kvset(3, ["/a"], [b"5"], session=LEASE_ID[:12] + bytes(4))))
    out["refused-session"] = only(7, unknown.acks)
    pair.cores[1].request([WHO, b"ICANHAZ?", b"", packb({"chp": VERSION, "id": 1})])
    pair.turn()
    out["refused-passive"] = only(7, answers(pair.turns[1]))
    return {**out, **_of_questions(pair)}


def _of_questions(pair: Servers) -> dict[str, Frames]:
    pair.settle(lambda core: core.subscription([WHO, b"\x01\x02/\x03"]))
    feed = pair.ask(b"", feed=True, **{"from": number(1, 3)}, credit=8)
    probe = pair.ask(b"", feed=True, probe=0, **{"from": number(1, 3)})
    plan = pair.ask(b"", image=0, prefix="/b", count=True)
    kept = split(only(8, plan)[-1])[0][2]
    proof = [kept["store"], kept["opener"]]
    part_of = pair.ask(b"", image=kept["number"], proof=proof, prefix="/b", part=0, parts=2, credit=8)
    packed = pair.ask(b"", image=kept["number"], proof=proof, prefix="/b", part=0, packed=True)
    other = pair.ask(b"", image=kept["number"] - 1, proof=proof, part=0)
    return {
        "reply-to-a-plan": only(8, plan),
        "kthxbai-of-a-part": only(5, part_of),
        "refused-a-number-that-is-not-kept": only(7, other),
        "records-of-a-feed": only(4, feed),
        "kthxbai-of-a-feed": only(5, feed),
        "reply-to-a-probe": only(8, probe),
        "sync-packed": only(3, packed),
    }


def _ignored() -> dict[str, Frames]:
    """Return valid sets with superfluous parts, which a server ignores."""
    plain = kvset(1, ["/a"], [b"1"])
    return {
        "kvset-with-something-in-frame-3": [*plain[:3], b"\x02", plain[4]],
        "kvset-of-a-session-whose-count-begins-with-ff": [*plain[:2], SESSION[:12] + b"\xff" * 4, *plain[3:]],
        "kvset-a-delete-with-a-value": kvset(1, ["/a"], [b"1"], {DELETES: [0]}),
    }


def _of_steps() -> dict[str, Frames]:
    """Return sets with conditions, leases and transactions of all kinds, and the answers of a lone server."""
    lone = Servers()
    sets: dict[str, tuple[list[str], list[bytes], Any]] = {
        "kvset-of-nothing": ([], [], None),
        "kvset-once": (["/n"], [b"1"], {ONCE: ["job", 1, True]}),
        "kvset-once-of-a-version-that-is-done": (["/n"], [b"2"], {ONCE: ["job", 1, True]}),
        "kvset-once-of-a-version-that-is-not-next": (["/n"], [b"2"], {ONCE: ["job", 3, True]}),
        "kvset-expect-no-such-key": (["/n"], [b"2"], {EXPECT: [["/gone", 0]]}),
        "kvset-left-out-if-newer": (["/n"], [b"0"], {UNLESS_NEWER: [[0], [number(1, 2)]]}),
        "kvset-a-lease-without-keys": ([], [], {LEASE: [LEASE_ID, 10_000]}),
        "kvset-a-refresh": ([], [], {REFRESH: LEASE_ID}),
        "kvset-an-unlease": ([], [], {UNLEASE: LEASE_ID}),
        "kvset-staged-and-never-committed": (["/t/1"], [b"v"], {STAGE: [TRANSACTION, "0.0"]}),
        "kvset-an-abort": ([], [], {ABORT: TRANSACTION}),
    }
    out, said = {}, {}
    for no, (name, what) in enumerate(sets.items(), 1):
        out[name] = frames = kvset(no, *what)
        said[name] = lone.turn(lambda core, frames=frames: core.collect(frames)).acks  # type: ignore[misc]
    other = kvset(3, ["/n"], [b"9"], session=OTHER_SESSION)
    other[3] = OLDEST_HELD
    skipped = lone.turn(lambda core: core.collect(other)).acks
    return {
        **out,
        **_ignored(),
        "kvset-the-oldest-that-is-held": other,
        "ack-of-a-version-that-is-done": only(6, said["kvset-once-of-a-version-that-is-done"], OWN),
        "refused-count": only(7, said["kvset-once-of-a-version-that-is-not-next"], OWN),
        "ack-of-the-oldest-that-is-held": only(6, skipped),
    }


def _of_a_large_record() -> dict[str, Frames]:
    """Return the two published parts of a commit, and its record. A limit of one byte a part splits the commit."""
    lone, sets = Servers(limits=replace(DEFAULT, part_bytes=1)), _own_sets()
    lone.turn(lambda core: core.subscription([WHO, b"\x01\x02/t/\x03"]))
    names = ("kvset-staged-then-committed", "kvset-staged-more-of-the-attempt", "kvset-the-commit")
    for no, name in enumerate(names, 1):
        turn = lone.turn(lambda core, no=no, name=name: core.collect([RESERVED_KEY, pack(no), *sets[name][2:]]))  # type: ignore[misc]
    # A record of staged batches is published in the turns to come.
    turn.publish += lone.turn().publish
    first, last = (f for f in turn.publish if f[-1] and split(f[-1])[0][0] == 1)
    return {"update-with-more": first, "update-the-last-of-it": last, "journal-a-commit": [lone.rows[-1]]}


def _of_the_link() -> Iterator[tuple[str, Frames]]:
    """Yield the messages between two servers: catching up, a set, the scrub, and the suffix of one."""
    pair = Servers(pair=True)
    pair.settle(lambda core: core.collect(kvset(1, ["/a"], [b"1"])))
    for _ in range(4):
        pair.turn()
    said = pair.to_peer
    yield "peer-want", _first(said, b"WANT")
    yield "peer-record", next(f for _, f in said if f[0] == b"RECORD" and b"/a" in f[1])
    yield "peer-confirm", next(f for i, f in reversed(said) if f[0] == b"CONFIRM" and i == 1)
    yield "peer-state", next(f for i, f in reversed(said) if f[0] == b"STATE" and i == 0)
    yield "peer-scrub", next(f for _, f in said if f[0] == b"SCRUB" and b"/a" in f[1])
    yield "peer-scrub-the-totals", next(f for _, f in reversed(said) if f[0] == b"SCRUB" and b"/a" not in f[1])
    yield "peer-scrubbed", _first(said, b"SCRUBBED")
    yield from _of_a_suffix(pair)


def _first(said: list[tuple[int, Frames]], kind: bytes) -> Frames:
    return next(f for _, f in said if f[0] == kind)


def _of_a_suffix(pair: Servers) -> Iterator[tuple[str, Frames]]:
    """Yield the messages of a replay: the link is cut, both servers serve, and then they meet."""
    pair.linked = False
    for _ in range(6):
        pair.turn()
    pair.turn(lambda core: core.collect(kvset(2, ["/a"], [b"2"])))
    pair.cores[1].do(PairEvent.VOTE_PEER_SILENT)
    pair.turn()
    pair.linked, pair.to_peer = True, []
    for _ in range(8):
        pair.turn()
    yield "peer-sync", _first(pair.to_peer, b"SYNC")
    yield "peer-end-of-a-state", _first(pair.to_peer, b"END")
    yield "peer-replay", _first(pair.to_peer, b"REPLAY")
    yield "peer-replayed", _first(pair.to_peer, b"REPLAYED")


class Chunks(MemoryStore):
    """A journal that keeps the chunks of its last snapshot."""

    def begin_snapshot(self, number: int) -> None:
        """Begin a snapshot, and forget the chunks of the one before."""
        super().begin_snapshot(number)
        self.chunks: Frames = []

    def put_snapshot(self, body: bytes) -> None:
        """Put a chunk, and keep it."""
        super().put_snapshot(body)
        self.chunks.append(body)


def _of_a_journal() -> dict[str, Frames]:
    """Return the rows of a journal, and the snapshot of the same state."""
    lone, journal = Servers(), Chunks("memory:", Options())

    def two(core: ServerCore) -> None:
        core.collect(kvset(1, ["/a"], [b"1"], {TTLS: 60_000}))
        core.collect(kvset(1, ["/b"], [b"2"], session=OTHER_SESSION))

    lone.turn(two, beat=False)
    snapshots = Snapshotter(journal, DEFAULT)
    snapshots.begin(lone.cores[0])
    while snapshots.busy:
        snapshots.step(lone.cores[0])
    epoch, record = lone.rows
    return {
        "journal-epoch": [epoch],
        "journal-two-sessions": [record],
        "journal-chunk": [journal.chunks[0]],
        "journal-the-rest": [journal.chunks[-1]],
    }


def _of_a_topic() -> dict[str, Frames]:
    """Return the messages about a topic that is made, gets two messages, and is read without a group."""
    lone = Servers()
    told = pack_messages(["alice", "carol"], [b"3 apples", b"1 pear"])
    later = pack_messages(["alice"], [b"pay order 7"])
    made = {
        "kvset-a-topic": kvset(1, [], [], {TOPIC: ["orders", {"keep": "size", "max_messages": 1000}]}),
        "kvset-messages-for-a-topic": kvset(2, [], [], {PUBLISH: [["orders", 2, told]]}),
        "kvset-a-schedule": kvset(
            3, [], [], {SCHEDULE: [["orders", "remind-7", 1_893_456_000_000, 0, "/orders/7", later]]}
        ),
    }
    traced = pack_messages(None, [b"2 plums"], [{"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}])
    for frames in made.values():
        lone.turn(lambda core, frames=frames: core.collect(frames))  # type: ignore[misc]
    asked = {
        "icanhaz-facts-of-a-topic": _question(b"", 1, {"topic": "orders", "facts": True}),
        "icanhaz-topics": _question(b"", 2, {"topics": ""}),
        "icanhaz-groups-of-a-topic": _question(b"", 3, {"topic": "orders", "groups": ""}),
        "icanhaz-scheduled-messages": _question(b"", 5, {"topic": "orders", "scheduled": ""}),
        "icanhaz-messages-of-a-topic": _question(b"", 4, {"topic": "orders", "after": 0, "credit": 8}),
    }
    answered: dict[str, list[Frames]] = {}
    for name, frames in asked.items():
        turn = lone.turn(lambda core, frames=frames: core.request([WHO, *frames]))  # type: ignore[misc]
        answered[name] = [*answers(turn), *(f for _ in range(6) for f in answers(lone.turn()))]
    messages, none_now = answered["icanhaz-messages-of-a-topic"][:2]
    (facts,), (topics,), (groups,), (scheduled,) = [answered[name] for name in list(asked)[:4]]
    none = kvset(4, [], [], {CANCEL: [["orders", "none"]]})
    refused = lone.turn(lambda core: core.collect(none)).acks
    return {
        **made, **asked,
        "kvset-messages-with-headers-for-a-topic": kvset(3, [], [], {PUBLISH: [["orders", 1, traced]]}),
        "reply-facts-of-a-topic": facts,
        "reply-topics": topics,
        "reply-groups-of-a-topic": groups,
        "kvset-a-cancellation": none,
        "refused-no-such-name": only(7, refused),
        "reply-scheduled-messages": scheduled,
        "messages-for-a-reader": messages,
        "messages-none-now": none_now,
    }  # fmt: skip


def _of_a_group_that_counts() -> dict[str, Frames]:
    """Return the messages of a group that counts deliveries, to a member that gives one back and gets it again."""
    lone, topic = Servers(), ["orders", "billing"]
    told = pack_messages(["alice", "carol"], [b"3 apples", b"1 pear"])
    for frames in (
        kvset(1, [], [], {GROUP: [*topic, {"start": 0, "max_deliveries": 5}]}),
        kvset(2, [], [], {LEASE: [LEASE_ID, 10_000], JOIN: [*topic, LEASE_ID, "host:1"]}),
        kvset(3, [], [], {PUBLISH: [["orders", 2, told]]}),
    ):
        lone.turn(lambda core, frames=frames: core.collect(frames))  # type: ignore[misc]
    options = {"chp": VERSION, "id": 7, "topic": "orders", "group": "billing", "member": LEASE_ID, "credit": 8}
    asked = [WHO, b"ICANHAZ?", b"", packb(options)]
    lone.turn(lambda core: core.request(asked))
    lone.turn()
    slot = pack_slots(1 << slots_of(["carol"], 1, 1)[0])
    others, whose = pack_slots(ALL_SLOTS & ~unpack_slots(slot)), [*topic, LEASE_ID]
    back = kvset(4, [], [], {ACK: [[*whose, [[others, 0, 2]]]], NACK: [[*whose, [[slot, 0, 2, "no stock"]]]]})
    told_of = answers(lone.turn(lambda core: core.collect(back)))
    told_of = [*told_of, *(f for _ in range(4) for f in answers(lone.turn()))]
    messages = next(f for f in told_of if len(split(f[-1])) > 1)
    return {"kvset-a-message-that-a-member-gives-back": back, "messages-for-a-member-that-counts": messages}


def _of_a_group() -> dict[str, Frames]:
    """Return the messages about a group with two members, of which one gets a message and acknowledges it."""
    lone = Servers()
    other, topic = LEASE_ID[::-1], ["orders", "billing"]
    made = {
        "kvset-a-group": kvset(1, [], [], {GROUP: [*topic, {"start": 0}]}),
        "kvset-a-member": kvset(3, [], [], {JOIN: [*topic, LEASE_ID, "host:1"]}),
    }
    lease = kvset(2, [], [], {LEASE: [LEASE_ID, 10_000]})
    told = pack_messages(["alice", "carol"], [b"3 apples", b"1 pear"])
    for frames in (
        made["kvset-a-group"], lease, made["kvset-a-member"],
        kvset(1, [], [], {LEASE: [other, 10_000]}, session=OTHER_SESSION),
        kvset(2, [], [], {JOIN: [*topic, other, "host:2"]}, session=OTHER_SESSION),
        kvset(4, [], [], {PUBLISH: [["orders", 2, told]]}),
    ):  # fmt: skip
        lone.turn(lambda core, frames=frames: core.collect(frames))  # type: ignore[misc]
    options = {"chp": VERSION, "id": 7, "topic": "orders", "group": "billing", "member": LEASE_ID, "credit": 8}
    asked = [WHO, b"ICANHAZ?", b"", packb(options)]
    told_of = [*answers(lone.turn(lambda core: core.request(asked))), *answers(lone.turn()), *answers(lone.turn())]
    messages = next(f for f in told_of if len(split(f[-1])) > 1)
    (_, _, upto, _, _, spans, _), *_ = split(messages[-1])
    ack = {ACK: [[*topic, LEASE_ID, [[slots, after, upto] for slots, after in spans]]]}
    done, again = kvset(5, ["/totals/carol"], [b"1"], ack), kvset(6, ["/totals/carol"], [b"2"], ack)
    lone.turn(lambda core: core.collect(done))
    places = _question(b"", 8, {"topic": "orders", "facts": True, "group": "billing"})
    ((_, (reached,)),) = lone.turn(lambda core: core.request([WHO, *places])).promises
    refused = lone.turn(lambda core: core.collect(again))
    return {
        **made,
        "icanhaz-of-a-member": asked[1:],
        "messages-for-a-member": messages,
        "kvset-an-acknowledgement-with-a-key": done,
        "icanhaz-places-of-a-group": places,
        "reply-places-of-a-group": reached,
        "refused-fenced": only(7, refused.acks, OWN),
    }


# -- what is refused


def refused() -> dict[str, tuple[str, Frames]]:
    """Return invalid messages: name -> (parser, frames). `verdict` tells what becomes of them."""
    fine = Segment(["/a"], [b"1"], None).encode()
    bodies: dict[str, Any] = {
        "not-msgpack": b"\xc1",
        "two-objects": fine + fine,
        "an-extension-type": b"\x93\x91\xa2/a\x91\xd4\x01\x00\xc0",
        "fewer-values-than-keys": [["/a", "/b"], [b"1"], None],
        "a-key-that-is-bytes": [[b"/a"], [b"1"], None],
        "a-value-that-is-text": [["/a"], ["1"], None],
        "an-empty-key": [[""], [b"1"], None],
        "a-key-of-ours": [["\x02/\x03"], [b"1"], None],
        "a-command-as-a-key": [["HUGZ"], [b"1"], None],
        "an-unknown-column": [["/a"], [b"1"], {"zz": 1}],
        "a-column-of-the-servers": [["/a"], [b"1"], {"r": [[5, 1]]}],
        "an-item-that-is-not-there": [["/a"], [b""], {"d": [1]}],
        "an-item-deleted-twice": [["/a"], [b""], {"d": [0, 0]}],
        "a-ttl-of-0": [["/a"], [b"1"], {"t": 0}],
        "a-lease-of-15-bytes": [["/a"], [b"1"], {"l": bytes(15)}],
        "a-lease-that-is-not-there": [["/a"], [b"1"], {"l": LEASE_ID}],
        "a-commit-with-keys": [["/a"], [b"1"], {"commit": [TRANSACTION, "job", 7, [], None]}],
        "a-commit-of-what-is-not-here": [[], [], {"commit": [TRANSACTION, "job", 7, [["0.0", 1]], None]}],
    }
    out = {name: ("kvset", kvset_of(body)) for name, body in bodies.items()}
    out["four-frames"] = "kvset", kvset_of(fine)[:4]
    out["batch-0"] = "kvset", [RESERVED_KEY, pack(0), *kvset_of(fine)[2:]]
    out["a-session-of-15-bytes"] = "kvset", [*kvset_of(fine)[:2], SESSION[:15], *kvset_of(fine)[3:]]
    questions: dict[str, tuple[bytes, Any]] = {
        "no-map": (b"", []),
        "without-an-id": (b"", {"chp": VERSION}),
        "another-version": (b"", {"chp": 2, "id": 1}),
        "a-subtree-without-its-slash": (b"/r", {"chp": VERSION, "id": 1}),
        "credit-0": (b"", {"chp": VERSION, "id": 1, "credit": 0}),
        "a-session-that-is-text": (b"", {"chp": VERSION, "id": 1, "session": "me"}),
        "a-proof-of-one": (b"", {"chp": VERSION, "id": 1, "proof": [b""]}),
        "an-image-with-a-name": (b"", {"chp": VERSION, "id": 1, "image": bytes(16)}),
        "an-unknown-command": (b"\x02reboot\x03", {"chp": VERSION, "id": 1}),
    }
    out |= {n: ("icanhaz", [b"ICANHAZ?", subtree, packb(what)]) for n, (subtree, what) in questions.items()}
    topic = b"\x02/\x03"
    updates: dict[str, Frames] = {
        "a-kind-that-is-not-known": [topic, pack(0), b"", b"", packb([[99]])],
        "a-body-without-a-header": [topic, pack(0), b"", b"", packb([])],
        "a-batch-whose-number-is-text": [topic, pack(0), b"", b"", packb([[1, "0", 1, 1, 0, [], False]])],
        "a-number-below-0": [topic, pack(0), b"", b"", packb([[1, -1, 1, 1, 0, [], False]])],
        "three-bytes-of-number": [topic, b"\0\0\0", b"", b"", packb([[99]])],
    }
    return out | {name: ("update", frames) for name, frames in updates.items()}


def kvset_of(body: Any) -> Frames:
    """Return batch 1 of a session, with a body that may be invalid."""
    return [RESERVED_KEY, pack(1), SESSION, b"", body if isinstance(body, bytes) else packb(body)]


def verdict(parser: str, frames: Frames) -> str:
    """Return the code of a refusal, "counted" if the message was dropped silently, or "taken"."""
    if parser == "update":
        client = Followed("/").client
        client.on_update(0, frames, 10.0)
        return "counted" if client.stats["garbage"] == 1 else "taken"
    lone = Servers()

    def hear(core: ServerCore) -> None:
        if parser == "kvset":
            core.collect(frames)
        else:
            core.request([WHO, *frames])

    turn = lone.turn(hear, beat=False)
    told = [split(f[-1])[0] for f in [*turn.acks, *answers(turn)]]
    garbage = sum(n for name, n in lone.cores[0].committer.counts.items() if name.startswith("garbage"))
    return str(told[0][2]) if told and told[0][0] == 7 else "counted" if garbage == 1 and not told else "taken"


# -- as files


def files() -> dict[str, list[Vector]]:
    """Return the vectors of CHP/2 as spec/vectors has them."""
    found: dict[str, list[Vector]] = {}
    for name, frames in vectors().items():
        message, port, direction = _what_it_is(name, frames)
        vector = Vector(name, message, port, direction, frames, _decoded(frames[-1]), "taken")
        found.setdefault(_file_of(name, message), []).append(vector)
    for name, (parser, frames) in refused().items():
        message = parser.upper()
        told = verdict(parser, frames)
        vector = Vector(f"{parser}-{name}", message, *PORTS[message], frames, _decoded(frames[-1]), told)
        found.setdefault("refused.json", []).append(vector)
    return found


def _decoded(frame: bytes) -> Any:
    """Return the decoded frame, or None if JSON cannot express it."""
    with suppress(ValueError, msgpack.UnpackException):
        found = msgpack.unpackb(frame)
        return found if isinstance(found, list | dict) and b"\xd4" not in frame else None
    return None


PORTS = {
    "ICANHAZ": ("P", "client to server"),
    "KVSET": ("P+2", "client to server"),
    "UPDATE": ("P+1", "server to client"),
}
ON_UPDATES = {"GREETING", "UPDATE", "HEARTBEAT", "ACK"}
# The vectors name a BATCH of the servers UPDATE, because clients call their own sets a batch.
NAMES = ["UPDATE" if name == "BATCH" else name for name in KIND_NAMES]


def _what_it_is(name: str, frames: Frames) -> tuple[str, str, str]:
    if name.startswith("journal-"):
        return NAMES[split(frames[-1])[0][0]], "journal", "server to file"
    if name.startswith("peer-"):
        return frames[0].decode(), "P+3", "server to server"
    if frames[0] == b"ICANHAZ?":
        return "ICANHAZ", *PORTS["ICANHAZ"]
    if len(frames[2]) == 16:
        return "KVSET", *PORTS["KVSET"]
    message = NAMES[split(frames[-1])[0][0]]
    on_updates = message in ON_UPDATES or (message == "REFUSED" and frames[0] != RESERVED_KEY)
    return message, "P+1" if on_updates else "P", "server to client"


# These vectors refuse questions. The other vectors with REFUSED refuse sets.
OF_QUESTIONS = ("refused-passive", "refused-a-number-that-is-not-kept")


def _file_of(name: str, message: str) -> str:
    if name.startswith(("session-", "peer-", "journal-")):
        return name.partition("-")[0] + ".json"
    if message == "MESSAGES" or any(word in name for word in ("topic", "group", "member", "acknowledgement", "fenced")):
        return "topics.json"
    if message in ("KVSET", "ACK") or (message == "REFUSED" and name not in OF_QUESTIONS):
        return "sets.json"
    return "updates.json" if message == "UPDATE" else "questions.json"


# -- as the page shows them


def block(frames: Frames) -> str:
    """Return frames in hexadecimal, sixteen bytes a line, and the decoded last frame if it is msgpack."""
    lines = []
    for i, frame in enumerate(frames):
        rows = [frame[at : at + 16].hex(" ") for at in range(0, len(frame), 16)] or ["-"]
        lines += [f"{i}: {rows[0]}", *(f"   {row}" for row in rows[1:])]
    with suppress(ValueError, msgpack.UnpackException):
        lines.append(f"= {msgpack.unpackb(frames[-1])!r}")
    return "".join(line + "\n" for line in lines)
