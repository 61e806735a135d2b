"""The upstream of a replica: the servers that it follows, and to which it passes what it does not answer itself.

    QUESTIONS    P of each server: `follow` goes to one of them, and its answer is all that the replica holds
    UPDATES      P+1: HUGZ, which tells who is active, and the own channels of the replica's clients
    SETS         P+2: KVSETs go to each server, as a client sends them
    PASSED       P again: a connection for each client that asks what only the active answers

A message to or from a server begins with its line: one of these, the place of the server in `--upstream`, and for
PASSED the identity of the client's connection. The replica asks one server at a time. While no server answers, it asks
one after the other, and each question counts as a vote there, like that of any client.

A replica that confirms (`--confirms`) gets the messages of topics too, and asks for those that it lacks. It confirms
what its journal has, and nothing while messages are missing. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from chp import headers
from chp.batch import decode, encode, items_of, packb, peek_answer
from chp.digest import NOTHING
from chp.errors import BadFrame
from chp.headers import Access, Batch, Commit, Epoch, name_of
from chp.limits import Limits
from chp.messages import ICANHAZ
from chp.numbers import describe, epoch_of, pack, unpack
from chp.unpacking import WHOLE_STATE
from chp.versions import VERSION

from ..pair.follow import Loader
from ..peer.backfill import Backfill
from ..questions.replicas import HOPS_MAX
from ..questions.requests import FOLLOW, Requests
from ..questions.syncs import reply
from ..state.history import Position
from ..state.missing_messages import Spans
from ..state.state import ReplicatedState
from ..updates.authorizer import VOUCHED, Signed, signer
from ..updates.committed import Committed
from ..updates.turn import CurrentTurn, DropAfter, Frames, ReadSpans, Replace
from .age import Age
from .own_channels import OwnChannels, header_in
from .passed_reads import PassedRead, PassedReads

QUESTIONS, UPDATES, SETS, PASSED = b"P", b"U", b"C", b"Q"
HUGZ = b"HUGZ"
LONG_AGO = float("-inf")
# At most this many chunks are under way; the replica grants more when half of them have come.
CREDIT = 32
# A server whose last HUGZ came at most this many seconds ago may still be active: HUGZ comes once a second.
HUGZ_S = 2.5
# A replica reports to upstream this often, in seconds.
REPORT_S = 1.0
# Upstream counts as silent after `timeout_s` without a word. After this part of that time the replica asks again.
ASK_AGAIN = 0.6
# After this many seconds without a server that serves, the log says why.
TROUBLE_S = 5.0
# The next turn is planned this much after a time, so that the time has passed by then.
A_LITTLE = 0.001
# The connection of a client is kept this many seconds after its last answer, as a program may ask again at once.
PASSED_KEPT_S = 2.0
# At most this many questions of a client wait for the end of their answers. Beyond that, the oldest counts as given up.
PASSED_QUESTIONS_MAX = 128
# An answer has no more messages after one of these.
LAST_KINDS = frozenset({headers.REPLY, headers.REFUSED, headers.KTHXBAI})
BUSY = (
    "{0} clients of this replica ask the active, and that is the most: ask again later, at another replica, or at a "
    "server of the pair"
)
LOOP = "{0} follows this replica, so both would wait for each other: give --upstream the servers of the pair"
TOO_FAR = (
    "the servers at --upstream are {0} replicas away from the pair, and {0} is the most: follow a server nearer to it"
)
OTHER_STORE = (
    "the servers at --upstream hold the store {0}, and this replica's data are of the store {1}: give --upstream the "
    "servers of that pair, or an empty --data"
)
NO_SOURCE = "the replica is looking for a server that serves, and the records are there alone: ask again"
FULL = (
    "as many replicas follow upstream as it lets follow ({0}); this one is PASSIVE and asks again until there is room: "
    "end a replica that is not needed, or give --upstream a replica that follows the pair"
)
NO_ANSWER = (
    "no server answers there: start the pair, or give --upstream the --bind address of each of its servers; with keys, "
    "look whether DIR/upstreamN.pub are theirs, and whether they know the key of this replica"
)
NONE_ACTIVE = "servers answer there, and none of them is active: look at the pair with `chp status`"
NO_COPY = (
    "the server at --upstream counts no copies: it is a replica, or of an older version; give --upstream the servers "
    "of the pair, or leave --confirms out"
)
OLD = "the server at --upstream does not know replicas ({0}): bring the pair to this version first"


def line(kind: bytes, place: int) -> bytes:
    """Return the line to a server: the kind of socket, and the place of the server in `--upstream`."""
    return kind + bytes([place])


def vouching(user: str, frames: list[bytes]) -> list[bytes]:
    """Return a message with its user in front, if its connection has shown a key."""
    return [VOUCHED, user.encode(), *frames] if user else frames


def without_digest(body: bytes) -> bytes:
    """Return the body of a KTHXBAI with a digest that the client takes over from the replica's next HEARTBEAT.

    The digest of upstream is of upstream's channel. The client listens to this replica's channel. It began later, so
    its first BATCH names another number before it, and has another digest.
    """
    header, items = decode(body)
    if not isinstance(header, headers.Kthxbai):
        return body
    since, digest = NOTHING
    return encode(header._replace(since=since, digest=digest), [packb(item) for item in items])


@dataclass(slots=True)
class PassedClient:
    """A client that has a connection of its own to a server, and the questions whose answers have not ended."""

    place: int
    questions: dict[int, None] = field(default_factory=dict)
    # When the last of its answers ended.
    answered_at: float = 0.0
    # True if it has asked for nothing but records that are not here; the connection then ends with the last answer.
    reads_only: bool = True


class Upstream:
    """The servers that a replica follows, and what the replica knows of them."""

    def __init__(
        self,
        turn: CurrentTurn,
        committed: Committed,
        requests: Requests,
        greeting: Callable[[], bytes],
        *,
        servers: int,
        timeout_s: float,
        backfill: Backfill | None = None,
        journal: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._turn, self._committed, self._requests = turn, committed, requests
        # The missing messages of a replica that confirms; None for any other, which keeps no messages.
        self._backfill, self._journal = backfill, journal
        # The number that was confirmed last.
        self.confirmed = 0
        # A whole state that is to be taken over, and the last number of the common history. The state waits until the
        # journal has told which topic messages it has up to that number; these stay.
        self.taking: tuple[ReplicatedState, int] | None = None
        self._timeout_s, self.servers = timeout_s, servers
        # The server that answers `follow`; None while none does.
        self.source: int | None = None
        # The last question: to which server, its id, when it was sent, and the next chunk of its answer.
        self._target, self._request, self._asked_at, self._chunk = servers - 1, 0, LONG_AGO, 0
        # When a server last refused to be followed because it is not active.
        self._passive_at = LONG_AGO
        # The number of questions since a server last answered.
        self._tries = 0
        # The time of the last word of the source, and its hops from the pair.
        self._heard, self.hops = LONG_AGO, 0
        self._age = Age(turn.now)
        # Once the replica has this number, it has all that it lacked when it began to follow. None while this number is
        # not known.
        self._goal: int | None = None
        self._loader: Loader | None = None
        # True if upstream no longer has the records that this replica lacks, or if staged parts are missing here. The
        # replica then asks for the whole state.
        self._whole = False
        # For each server: when its last HUGZ came, and the number there.
        self._hugz = [(LONG_AGO, 0)] * servers
        # Chunks that came since credit was granted, their bytes, and the time of the next report.
        self._taken, self._taken_bytes, self._report_at = 0, 0, LONG_AGO
        self.own = OwnChannels(turn, committed, greeting, self._subscribe, servers)
        # The clients that have a connection of their own to a server.
        self._passed: dict[bytes, PassedClient] = {}
        # The reads of these clients for records that this replica does not have.
        self._reads = PassedReads()
        # This function answers a question that upstream refuses; the core sets it.
        self.answer_here: Callable[[Frames], None] = lambda frames: None
        # At most this many clients have such a connection, as the files of this process allow; the shell sets it.
        self.passed_max = self._limits.passed_max
        # True while a state that was taken over is not in the journal yet.
        self.replaces = False
        # True if this turn opened an epoch, so that all channels are greeted.
        self.greets = False
        # True if this turn made the data of this replica newer. A heartbeat then tells the new age at once.
        self.lives = False
        # The wall clock of the active, as upstream last told it.
        self.wall_ms = 0
        # True once this replica was in sync: after that an upstream that does not fit is only logged.
        self.was_in_sync = False
        # The reason why this replica can't follow; the shell then ends it.
        self.ends = ""
        # The last reason in the log why upstream does not fit; and True once the log says that upstream is full.
        self._said, self._said_full = "", False

    @property
    def _limits(self) -> Limits:
        return self._committed.limits

    # -- what the core asks

    @property
    def in_sync(self) -> bool:
        """True if this replica holds what upstream held a moment ago."""
        there = self._goal is not None and self._committed.state.number >= self._goal
        there = there and self._loader is None and self.taking is None and not self.replaces
        return there and self.silent_s <= self._timeout_s

    @property
    def silent_s(self) -> float:
        """The seconds since the last word of upstream."""
        return self._turn.now - self._heard

    def age_ms(self) -> int:
        """Return how long ago the active had no more than this replica holds, through all replicas between."""
        return max(0, round((self._turn.now - self._age.current_at) * 1000))

    def trouble(self) -> str:
        """Return why no server is followed; "" if one is, or if the log has the reason."""
        if self.source is not None or self._said_full or self._said:
            return ""
        return NONE_ACTIVE if self._turn.now - self._passive_at < TROUBLE_S else NO_ANSWER

    def next_at(self) -> float:
        """Return when the next turn is due if no message comes."""
        now, timeout_s = self._turn.now, self._timeout_s
        times = [self._asked_at + timeout_s / 2] if self.source is None else [self._report_at]
        times += self._heard + timeout_s * ASK_AGAIN + A_LITTLE, self._heard + timeout_s + A_LITTLE
        return min((at for at in times if at > now), default=now + timeout_s / 4)

    # -- what is passed to upstream

    def pass_set(self, frames: list[bytes]) -> None:
        """Pass a KVSET to each server of the pair that has greeted, as its client would send it."""
        sent = vouching(signer(frames), frames)
        places = [i for i in range(self.servers) if self.own.takes_sets(i, self.source)]
        self._turn.effects.to_peer += [[line(SETS, i), *sent] for i in places]

    def pass_question(self, identity: bytes, user: str, request: list[bytes], request_id: int) -> None:
        """Pass a user's question to the active, by a connection for this client alone."""
        client = self._passed.get(identity)
        place = self.source if client is None else client.place
        if place is None or not self.in_sync:
            self._refuse(identity, headers.Refused(request_id, "passive", int(headers.State.PASSIVE)))
        elif client is None and not self._has_place():
            self._refuse(identity, headers.Refused(request_id, "busy", BUSY.format(self.passed_max)))
        else:
            self._pass(identity, place, user, request, request_id).reads_only = False

    def _pass(self, identity: bytes, place: int, user: str, request: list[bytes], request_id: int) -> PassedClient:
        client = self._passed.get(identity)
        if client is None:
            client = self._passed[identity] = PassedClient(place)
            self._requests.passed.add(identity)
        client.questions[request_id] = None
        if len(client.questions) > PASSED_QUESTIONS_MAX:
            del client.questions[next(iter(client.questions))]
        self._turn.effects.to_peer.append([line(PASSED, place) + identity, *vouching(user, request)])
        return client

    def pass_read(self, identity: bytes, user: str, subtree: str, options: dict[str, Any]) -> bool:
        """Pass a user's question for records that are not here; return False if this replica has to answer it."""
        if not self.in_sync:
            return False
        client, request_id = self._passed.get(identity), options["id"]
        place = self.source if client is None else client.place
        # No server is followed. The client asks again after the refusal.
        if place is None:
            self._refuse(identity, headers.Refused(request_id, "busy", NO_SOURCE))
            return True
        if client is None and not self._has_place():
            self._refuse(identity, headers.Refused(request_id, "busy", BUSY.format(self.passed_max)))
            return True
        read, request = PassedRead(subtree, self._turn.now), [ICANHAZ, subtree.encode(), packb(options)]
        if not options.get("feed"):
            read.question = Signed([identity, *request], user)
            request[2] = packb({**options, "resume": True})
        if not self._reads.begin(identity, request_id, read, self._limits.syncs_of_one_max):
            return False
        self._pass(identity, place, user, request, request_id)
        return True

    def _has_place(self) -> bool:
        """Make room for one more client, in place of one that has all its answers; return False if there is none."""
        if len(self._passed) < self.passed_max:
            return True
        answered = next((identity for identity, client in self._passed.items() if not client.questions), None)
        if answered is not None:
            self._close(answered)
        return answered is not None

    def _on_passed(self, identity: bytes, frames: list[bytes]) -> None:
        """Give a client its answer, and note if that was the last message of it.

        If upstream can't resume a copy either, this replica answers with a snapshot.
        """
        unanswered = self._reads.heard(identity, frames)
        client, peeked = self._passed.get(identity), peek_answer(frames[-1])
        if peeked is not None and peeked[0] == headers.KTHXBAI:
            frames = [*frames[:-1], without_digest(frames[-1])]
        if unanswered is None:
            self._turn.effects.replies.append((identity, [frames]))
        if client is not None and peeked is not None and peeked[0] in LAST_KINDS:
            client.questions.pop(peeked[1], None)
            client.answered_at = self._turn.now
            if client.reads_only and not client.questions:
                self._close(identity)
        if unanswered is not None:
            self.answer_here(unanswered)

    def pass_more(self, identity: bytes, user: str, request: list[bytes]) -> None:
        """Pass a grant of credit, if this client has asked the active."""
        if identity in self._passed:
            sent = vouching(user, request)
            self._turn.effects.to_peer.append([line(PASSED, self._passed[identity].place) + identity, *sent])

    def _refuse(self, identity: bytes, refused: headers.Refused) -> None:
        told = reply(pack(self._committed.state.number), encode(refused))
        self._turn.effects.replies.append((identity, [told]))

    def _close(self, identity: bytes) -> None:
        """End a client's connection to a server."""
        place = self._passed.pop(identity).place
        self._requests.passed.discard(identity)
        self._reads.forget(identity)
        self._turn.effects.to_peer.append([line(PASSED, place) + identity])

    # -- own channels

    def subscription(self, frames: list[bytes]) -> bool:
        """Take an event of P+1; return True if it is of an own channel, which upstream has."""
        return self.own.event(frames, self.source)

    def _subscribe(self, topic: bytes, what: bytes) -> None:
        self._turn.effects.to_peer += [[line(UPDATES, i), what + topic] for i in range(self.servers)]

    # -- what comes from upstream

    def message(self, frames: list[bytes], from_line: bytes) -> None:
        """Take a message that came by a line; raise `BadFrame` if it is malformed."""
        kind, place = from_line[:1], from_line[1]
        if kind == PASSED:
            self._on_passed(from_line[2:], frames)
        elif len(frames) != 5:
            raise BadFrame("a message of upstream has five frames")
        elif kind == UPDATES:
            self._on_update(place, frames)
        elif kind == QUESTIONS:
            try:
                self._on_answer(place, frames[4])
            except BadFrame:
                # The rest of this answer is worth nothing: the replica asks again after a while.
                self.source = self._loader = None
                self._request += 1
                raise

    def _on_update(self, place: int, frames: list[bytes]) -> None:
        topic = frames[0]
        if topic == HUGZ:
            self._hugz[place] = self._turn.now, unpack(frames[1])
            return
        self.own.heard(place, frames, self.source)

    def _on_answer(self, place: int, body: bytes) -> None:
        header = header_in(body)
        if header is None or place != self._target or headers.request_of(header) != self._request:
            return
        if isinstance(header, headers.Refused):
            self._on_refused(header)
            return
        self._heard, self._tries = self._turn.now, 0
        if isinstance(header, headers.Reply):
            self._on_life(place, decode(body)[0])
        elif isinstance(header, headers.Sync | headers.Records):
            if header.chunk != self._chunk:
                raise BadFrame(f"chunk {self._chunk} of upstream was due, and {header.chunk} came")
            self._chunk += 1
            self._taken += 1
            self._taken_bytes += len(body)
            if isinstance(header, headers.Sync):
                self._on_state_chunk(body)
            elif self._backfill is None:
                for item in items_of(body):
                    self._on_record(item)
            else:
                items = items_of(body)
                for item, messages in zip_longest(items[::2], items[1::2], fillvalue=b""):
                    self._on_record(item, messages)

    def _on_refused(self, refused: headers.Refused) -> None:
        self.source = None
        if refused.code == "passive":
            # The server speaks only for itself. The replica asks the next server at once, and all again after a while.
            self._heard, self._tries, self._passive_at = LONG_AGO, max(1, self._tries), self._turn.now
            if self._tries <= self.servers:
                self._asked_at = LONG_AGO
        elif refused.code == "retained":
            self._asked_at, self._whole = LONG_AGO, True
        elif refused.code == "busy":
            if not self._said_full:
                self._said_full = True
                why = FULL.format(refused.detail)
                self._turn.effects.fact("upstream is full", "warning", server=self._target, why=why)
        elif refused.code == "loop":
            self._misfit(LOOP.format(refused.detail))
        elif refused.code == "store" and isinstance(refused.detail, bytes):
            self._misfit(OTHER_STORE.format(refused.detail.hex(), self._committed.state.store.hex()))
        else:
            why = OLD if refused.code == "bad" else f"upstream refuses ({refused.code}): {{0}}"
            self._misfit(why.format(refused.detail))

    def _misfit(self, why: str) -> None:
        """End a replica whose upstream can't be right; one that was in sync goes on with its other servers."""
        if why != self._said:
            self._said = why
            self._turn.effects.fact("upstream does not fit", "warning", server=self._target, why=why)
        if not self.was_in_sync:
            self.ends = why

    def _on_life(self, place: int, header: headers.Header) -> None:
        facts = header.facts if isinstance(header, headers.Reply) else {}
        if type(facts.get("fill")) is bytes and self._backfill is not None:
            self._backfill.on_fill(facts["fill"], self._turn.effects)
            self._taken += 1
            self._taken_bytes += len(facts["fill"])
            return
        number, hops, age = (facts.get(name) for name in ("number", "hops", "age"))
        if type(number) is not int or type(hops) is not int or type(age) is not int:
            raise BadFrame("a sign of life has number, hops and age")
        wall_ms = facts.get("wall_ms")
        self.wall_ms = wall_ms if type(wall_ms) is int and wall_ms >= 0 else 0
        self.hops, held = hops + 1, self._committed.state.number
        self.lives |= self._age.word(number, age / 1000, self.wall_ms / 1000, self._turn.now, held)
        if self.hops > HOPS_MAX:
            self.source = self._goal = None
            self._misfit(TOO_FAR.format(HOPS_MAX))
        elif self._backfill is not None and facts.get("confirms") is not True:
            self.source = self._goal = None
            self._misfit(NO_COPY)
        elif self.source is None:
            self.source, self._goal, self._said_full = place, number, False
            self._turn.effects.fact("follows", server=place, number=describe(number), hops=self.hops)
            self.own.followed(place)
            for identity in [each for each, client in self._passed.items() if client.place != place]:
                # The client asks again, as it does after any failover.
                self._close(identity)

    def _on_state_chunk(self, body: bytes) -> None:
        self._loader = self._loader or Loader(self._limits)
        self._loader.add(body, self._turn.arrival)

    def _on_record(self, body: bytes, messages: bytes = b"") -> None:
        turn, committed = self._turn, self._committed
        header, items = decode(body, WHOLE_STATE)
        if isinstance(header, headers.StateHead):
            self._take_over(body)
            return
        if not isinstance(header, Batch | Epoch | Access | Commit):
            raise BadFrame(f"a {name_of(header)} came where a record was due")
        if header.last <= committed.followed:
            return
        if header.prev != committed.followed:
            raise BadFrame(f"a record came that follows on {describe(header.prev)}, not {describe(committed.followed)}")
        try:
            publish = None if self.replaces else turn.effects.publish
            record = committed.follow_decoded(header, items, body, turn.arrival, publish=publish)
        except BadFrame:
            # Other batches are staged here than the active has committed.
            self._whole = True
            raise
        # The messages of topics stay with the pair, unless this replica is a further copy.
        if self._backfill is not None:
            record.messages = self._backfill.came(messages)
        committed.keep(record, turn.effects)
        committed.followed_uuids()
        self.greets |= isinstance(header, Epoch)
        self.lives |= self._age.holds(committed.state.number)

    def _take_over(self, body: bytes) -> None:
        """Replace all that this replica holds by the state that has come."""
        turn, committed = self._turn, self._committed
        loader, self._loader = self._loader or Loader(self._limits), None
        after = loader.finish(body, turn.arrival)
        if self._backfill is not None and self.taking is None:
            # Topic messages of the common history stay in the journal, which first tells which ones it has. What
            # upstream sends meanwhile waits (core.py).
            shared = 0 if self.replaces else after.common_number(committed.state.history)
            self.taking = after, shared
            turn.effects.reads.append(ReadSpans(shared))
            return
        self._take_state(after, 0)

    def take_spans(self, spans: Spans) -> None:
        """Take over the whole state that waits, now that the journal has told which messages it has."""
        if self.taking is not None and self._backfill is not None:
            (after, shared), self.taking = self.taking, None
            self._take_state(after, shared)
            self._backfill.replaced(spans)

    def _take_state(self, after: ReplicatedState, shared: int) -> None:
        turn, committed = self._turn, self._committed
        # Until the journal has the new state, this replica publishes nothing, as a passive does not.
        self.replaces = True
        before, committed.state, self._whole = committed.state, after, False
        committed.begin_anew(before)
        turn.effects.journal.append(Replace(after.number, shared))
        self._goal, self.greets = max(self._goal or 0, after.number), True
        self.lives |= self._age.holds(after.number)
        turn.effects.fact("caught_up", number=describe(after.number), keys=len(after.map), by="snapshot")

    # -- the end of a turn

    def end_turn(self, server: bytes, name: str, readers: int) -> None:
        """Ask a server to be followed if none answers, or another one is active; grant credit, and report."""
        turn, now = self._turn, self._turn.now
        self.own.release()
        self.was_in_sync = self.was_in_sync or self.in_sync
        self._close_passed()
        if self.source is not None and self.silent_s > self._timeout_s * ASK_AGAIN:
            self.source = None
        newer = self._newer()
        if newer is not None and newer != self.source:
            self.source = None
        if self.source is None:
            if now - self._asked_at >= self._timeout_s / 2:
                self._ask(self._next(newer), server, name)
        elif self._has_taken_half or now >= self._report_at:
            told = {"id": self._request, "chp": VERSION, "more": self._taken, "readers": readers, "hops": self.hops}
            told["number"] = self._committed.state.number
            turn.effects.to_peer.append([line(QUESTIONS, self._target), ICANHAZ, b"", packb(told)])
            # The active gives up a silent replica that confirms as soon as a silent passive. So it reports more often.
            report_s = REPORT_S if self._backfill is None else min(REPORT_S, self._timeout_s / 4)
            self._taken, self._taken_bytes, self._report_at = 0, 0, now + report_s

    @property
    def _has_taken_half(self) -> bool:
        """True if half of the chunks have come, or half of the bytes that upstream surely sends ahead."""
        return self._taken >= CREDIT // 2 or self._taken_bytes >= self._limits.sync_chunk_bytes // 2

    def _close_passed(self) -> None:
        """End the connections of clients that are gone, or that have had all their answers for a while."""
        now, passed = self._turn.now, self._requests.passed
        for identity, client in list(self._passed.items()):
            if identity not in passed or (not client.questions and now - client.answered_at > PASSED_KEPT_S):
                self._close(identity)

    def _newer(self) -> int | None:
        """Return a server that is active in an epoch above ours; None if none was heard."""
        heard = [(number, i) for i, (at, number) in enumerate(self._hugz) if self._turn.now - at < HUGZ_S]
        number, place = max(heard, default=(0, 0))
        return place if epoch_of(number) > self._committed.state.epoch else None

    def _next(self, newer: int | None) -> int:
        """Return the server to ask: one that is known to be active first, and the others in turn."""
        self._tries += 1
        if newer is not None and self._tries % 2:
            return newer
        if self._tries == 1 and self._goal is not None:
            # The connection may have broken: the same server is asked once more.
            return self._target
        return (self._target + 1) % self.servers

    def _ask(self, place: int, server: bytes, name: str) -> None:
        committed, turn = self._committed, self._turn
        if committed.drop_partial():
            if self._backfill is not None:
                self._backfill.dropped()
            turn.effects.journal.append(DropAfter(committed.state.number))
        self._target, self._request, self._asked_at = place, self._request + 1, turn.now
        self._chunk = self._taken = self._taken_bytes = self.confirmed = 0
        self._loader = self.taking = None
        self._age.ask(turn.now)
        at: Position = committed.state.proof()
        below: Sequence[bytes] = [server, *self._requests.replicas.below()]
        asked = {"chp": VERSION, "id": self._request, "at": at, "below": below, "name": name, "credit": CREDIT}
        asked["whole"] = self._whole
        if self._backfill is not None:
            asked["confirms"] = self._journal()
        turn.effects.to_peer.append([line(QUESTIONS, place), ICANHAZ, FOLLOW, packb(asked)])

    def confirm(self, confirm: list[Frames]) -> None:
        """Confirm what the journal has once this turn is synced, and ask for messages that are missing."""
        backfill, number = self._backfill, self._committed.state.number
        waits = self._loader is not None or self.taking is not None or self._whole or self.replaces
        if backfill is None or self.source is None or waits:
            return
        told = {"id": self._request, "chp": VERSION, "more": 0}
        question = backfill.question(self._turn.now)
        if question is not None:
            confirm.append([line(QUESTIONS, self._target), ICANHAZ, b"", packb({**told, "lack": question[1]})])
        elif number != self.confirmed and not backfill.lacks:
            self.confirmed = number
            proof: Position = self._committed.state.proof()
            confirm.append([line(QUESTIONS, self._target), ICANHAZ, b"", packb({**told, "confirmed": proof})])

    def status(self) -> dict[str, Any]:
        """Return the facts for the status."""
        return {"hops": self.hops, "age": self.age_ms(), "source": self.source, "ends": self.ends}
