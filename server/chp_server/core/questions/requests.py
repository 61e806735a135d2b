"""The messages of the snapshot port P, and the streams that answer them (SPEC.md, section 17).

    ICANHAZ? subtree                           CHP/1: a snapshot as KVSYNCs and KTHXBAI
    ICANHAZ? subtree {id, from, ...}           CHP/2: a resume after `from` if the log reaches back, or else a snapshot
    ICANHAZ? subtree {id, from, feed}          the feed after `from`, never a snapshot instead
    ICANHAZ? subtree {id, from, feed, probe}   how far a feed after `from` would reach: numbers only
    ICANHAZ? subtree {id, image, ...}          a snapshot in parts, for several readers (image_numbers.py)
    ICANHAZ? subtree {id, more}                credit for more chunks
    ICANHAZ? subtree {id, topic, ...}          messages of a topic, or its facts (topic_readers.py)
    ICANHAZ? STX command ETX {id, ...}         an admin command: status, switch, leases, clients, access, ...
    ICANHAZ? STX client ETX {id, ...}          a client's report about itself (clients.py); no answer
    ICANHAZ? STX follow ETX {id, at, ...}      a replica's question for all records, also future ones (replicas.py)

A request for a copy is also the client's vote in Binary Star: it makes a passive take over if its peer is silent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import count
from typing import Any

from chp import columns, headers
from chp.access import TOPICS, VOUCH
from chp.batch import Segment, decode_options, encode, peek_id
from chp.digest import NOTHING
from chp.errors import BadFrame, BadInput
from chp.keys import ETX, STX, check_subtree
from chp.messages import ICANHAZ, parse_icanhaz
from chp.numbers import describe, epoch_of, pack
from chp.versions import spoken, unspoken

from ..asks import Ask, Asking, RiseAbove, Vote
from ..pair.pair_state import PairView
from ..peer.peerlink import PeerLink
from ..state.commit_record import in_memory
from ..state.history import Position
from ..state.image import Image
from ..state.leases import listed
from ..updates.authorizer import Authorizer
from ..updates.commit import Committer
from ..updates.turn import Copy, CurrentTurn, Frames, JournalRead, Read, ReadMessages, ReadOldest
from .access_changes import AccessChanges
from .audit_log import AuditLog, PendingCommand, named
from .clients import TELLS, Clients
from .feeds import Feeds
from .image_numbers import Alive, ImageNumbers
from .replicas import Replicas
from .syncs import (
    Syncs,
    SyncStream,
    chp1_parts,
    gathered,
    packed,
    reply,
    resume_parts,
    slice_parts,
    snapshot_parts,
    with_ttls_left,
)
from .topic_readers import TopicReaders, of_member

STATUS, FOLLOW = STX + b"status" + ETX, STX + b"follow" + ETX
# The credit of an answer of one message. A stream ends only while it has credit, so it would idle for a minute with 1.
ONE_ANSWER = 2
# If the map has at most this many keys, they are counted in the turn of the question; else in later turns.
COUNTED_AT_ONCE = 50_000
# The keys of a larger map are counted by slices of names, this many in a turn.
COUNTED_SLICES = 8
TOO_LATE = "the servers have no image at this number any more: it was not read in time, or too much changed since"
# A reader may have records that a replica lacks yet. The replica waits this long, in seconds, for them before it
# answers. They nearly always come within milliseconds.
AWAITED_S = 0.5
BEHIND = "this replica lacks records that the reader has; ask again, or ask another server"
Options = dict[str, Any]
# The user that asked, and the number of the rules at that time.
Asked = tuple[str, int]


class Requests:
    """The handlers of the snapshot port, and the streams that answer."""

    def __init__(
        self,
        turn: CurrentTurn,
        pair: PairView,
        committer: Committer,
        authorizer: Authorizer,
        link: PeerLink,
        *,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._turn, self._pair, self._link, self._status_now = turn, pair, link, status
        self._committer, self._committed = committer, committer.committed
        self.authorizer, limits = authorizer, committer.limits
        self.changes = AccessChanges(turn, pair, committer, authorizer)
        # Returns the shell's own facts for the status; the shell sets this function.
        self.shell_facts: Callable[[], dict[str, Any]] = lambda: {"journal": {}, "turns": {}}
        self._trail = AuditLog()
        # The number of the rules by which the readers of topics were admitted.
        self._rules = 0
        # True if a request came in this turn, or a stream is under way.
        self.awake = False
        self.syncs = Syncs(limits)
        self.numbers = ImageNumbers(limits)
        # The answers to plans that wait until the passive confirms a number: number, stream, subtree, user and rules.
        self.owed: deque[tuple[int, SyncStream, str, Asked]] = deque()
        self.feeds = Feeds(self._committed)
        self.readers = TopicReaders(turn, pair, committer, authorizer)
        self.clients = Clients()
        self.replicas = Replicas(turn, self._committed, self.feeds.pages, pair.config, link.sets)
        # On a replica: the connections whose questions it has passed to the active.
        self.passed: set[bytes] = set()
        # On a replica: passes a user's read of records that are not here to the active. Returns False if it can't.
        self.passes: Callable[[bytes, str, str, Options], bool] | None = None
        self._alive = Alive(limits)
        # The reactor sets these two: the readers whose sockets are full, and the bytes that may still be queued.
        self.blocked: set[bytes] = set()
        self.room = 1 << 62
        # The images of this turn, by subtree: hundreds of requests for one subtree cost one image.
        self._fresh: dict[str, Image] = {}
        self._admin: dict[str, Callable[[bytes, Options], Asking | None]] = {
            "status": self._status,
            "switch": self._switch,
            "leases": self._leases,
            "clients": self._clients,
            "backup": lambda identity, options: self._copies("backup", identity, options),
            "restore": lambda identity, options: self._copies("restore", identity, options),
            "access": self._access,
        }

    def message(self, frames: list[bytes]) -> Asking:
        """Handle a message of the snapshot port: the identity of the connection, then the request."""
        identity, *request = frames
        self.awake = True
        self._heed_rules()
        match request:
            case [command, subtree, options] if command == ICANHAZ:
                yield from self._extended(identity, subtree, options)
            case _:
                yield from self._chp1(identity, parse_icanhaz(request))

    def _chp1(self, identity: bytes, subtree: str) -> Asking:
        if (yield from self._vote(partial(self._denies_copy, identity, 0, subtree))) and self._pair.serving:
            self._open(
                SyncStream(identity, 0, self._chp1_copy(subtree), 1 << 30, False, self._turn.now, subtree),
                subtree,
                self._asked,
            )

    def _vote(self, denied: Callable[[], bool], seen: int = 0) -> Generator[Ask, None, bool]:
        """Check the caller's rights, cast its vote above the epoch it has `seen`, and check again.

        Becoming active may load new rules.
        """
        if denied():
            return False
        if seen:
            self._pair.epochs.client_saw(seen)
            yield RiseAbove(seen)
        yield Vote()
        return not self._pair.serving or not denied()

    def _chp1_copy(self, subtree: str) -> Iterator[list[Frames]]:
        yield from chp1_parts(self._image_of(subtree), subtree, self._turn.wall_s, lambda: self._turn.now)

    def _extended(self, identity: bytes, subtree_frame: bytes, options_frame: bytes) -> Asking:
        try:
            options = decode_options(options_frame)
        except BadFrame as error:
            if (request_id := peek_id(options_frame)) is not None:
                self.refuse(identity, request_id, str(error))
            raise
        if type(options) is not dict or type(options.get("id")) is not int:
            raise BadFrame("the options of ICANHAZ? are a msgpack map with an 'id', a number")
        version = options.get("chp")
        if not spoken(version):
            self.refuse(identity, options["id"], f"can't answer this client: {unspoken(version)}")
            raise BadFrame(f"can't answer a client: {unspoken(version)}")
        if subtree_frame == TELLS:
            self.clients.told(identity, options, self.authorizer.speaker, self._turn.now)
        elif subtree_frame == FOLLOW:
            yield from self._follow(identity, options)
        elif subtree_frame[:1] == STX and subtree_frame[-1:] == ETX:
            yield from self._administer(identity, subtree_frame[1:-1].decode("ascii", "replace"), options)
        elif "more" in options:
            self._grant(identity, options)
        elif "topic" in options or "topics" in options:
            if (yield from self._vote(partial(self._denies_topic, identity, options))):
                self.readers.ask(identity, options)
        else:
            try:
                yield from self._sync(identity, _subtree(subtree_frame), options)
            except BadInput as error:
                self._answer(identity, headers.Refused(options["id"], "bad", str(error)))
                raise

    def _grant(self, identity: bytes, options: Options) -> None:
        more = options["more"]
        if type(more) is int and more > 0:
            self.syncs.grant(identity, options["id"], more, self._turn.now)
            self.readers.grant(identity, options["id"], more)
        self.replicas.told(identity, options)

    # -- replicas

    def _follow(self, identity: bytes, options: Options) -> Asking:
        """Let a replica follow; refuse one that this server itself follows."""
        pair, state, request_id = self._pair, self._committed.state, options["id"]
        at, below = Position.of(options.get("at")), options.get("below", [])
        if type(below) is not list or not all(type(each) is bytes for each in below):
            raise BadFrame("the 'below' of a replica lists the servers that follow it")
        if self.replicas.server in below:
            self._answer(identity, headers.Refused(request_id, "loop", pair.config.name))
            return
        seen = epoch_of(at.number) if at.store == state.store != b"" else 0
        if not (yield from self._vote(partial(self._denies_following, identity, request_id), seen)):
            return
        state = self._committed.state
        if not pair.serving:
            self.replicas.note_below(below)
            self._answer(identity, headers.Refused(request_id, "passive", int(pair.bstate)))
        elif at.store not in (b"", state.store):
            self._answer(identity, headers.Refused(request_id, "store", state.store))
        elif self.replicas.full(identity):
            self._answer(identity, headers.Refused(request_id, "busy", self._committer.limits.replicas_max))
        else:
            self._committer.commit(self._turn)
            self.replicas.open(identity, options, at, self.authorizer.speaker)

    def _denies_following(self, identity: bytes, request_id: int) -> bool:
        why = self.authorizer.undone(self._committed.state.access, VOUCH)
        return self._denies(identity, request_id, why, "follow as a replica")

    # -- copies

    def _sync(self, identity: bytes, subtree: str, options: Options) -> Asking:
        pair, committed = self._pair, self._committed
        request_id = options["id"]
        after, credit = _number(options, "from", 0, least=-(1 << 63)), _number(options, "credit", 8, least=1)
        session_id = options.get("session") or b""
        if type(session_id) is not bytes:
            raise BadFrame("the 'session' of ICANHAZ? is bytes")
        if not self.authorizer.owns(committed.state.access, session_id):
            # A caller may not learn what the session of another user has done, nor end its copies.
            session_id = b""
        if options.get("inspect") is True:
            self._inspect(identity, subtree, request_id, credit)
            return
        meant, proof = options.get("store"), _proof(options)
        if "image" in options:
            after = _number(options, "image", 0)
        seen = epoch_of(after) if proof[0] == committed.state.store != b"" else 0
        if not (yield from self._vote(partial(self._denies_copy, identity, request_id, subtree), seen)):
            return
        if not pair.serving:
            self._answer(identity, headers.Refused(request_id, "passive", int(pair.bstate)))
            return
        self._committer.commit(self._turn)
        if meant not in (None, committed.state.store):
            self._answer(identity, headers.Refused(request_id, "store", committed.state.store))
            return
        if "image" in options:
            self._image(identity, subtree, options, credit)
            return
        if options.get("feed"):
            self._feed(identity, after, subtree, options, credit)
        else:
            self._copy_or_pass(identity, (after, proof), subtree, options, session_id=session_id, credit=credit)

    def _copy_or_pass(
        self,
        identity: bytes,
        at: tuple[int, list[bytes]],
        subtree: str,
        options: Options,
        *,
        session_id: bytes,
        credit: int,
    ) -> None:
        """Send what changed since a number, or a snapshot; a replica may pass the question to the active."""
        (after, proof), request_id, resumes = at, options["id"], options.get("resume") is True
        waits, indices = self._is_ahead(after, proof), count()
        if waits is None and self._lacks(after, proof) and self._passes(identity, subtree, options):
            return
        if resumes and waits is None and not self._resumes(after, proof):
            self._answer(identity, self._no_resume(request_id))
            return
        copy = self._copy(at, subtree, request_id, session_id, indices, only_resume=resumes)
        whose = (session_id, subtree) if session_id else None
        wants = None if after and not subtree else subtree
        empty = partial(self._empty, request_id, after, proof, indices)
        self._stream(identity, request_id, copy, credit, subtree, wants=wants, copy=whose, empty=empty, waits=waits)

    def _is_ahead(self, after: int, proof: list[bytes] | None) -> Callable[[], bool] | None:
        """Return a function that tells whether a reader's answer must wait; None if it need not wait at all.

        It waits at most `AWAITED_S` for records that the reader has and this replica lacks yet.
        """
        committed, turn = self._committed, self._turn
        if not self._knows_more(after, proof):
            return None
        until = turn.now + AWAITED_S
        return lambda: after > committed.state.number and turn.now < until

    def _knows_more(self, after: int, proof: list[bytes] | None) -> bool:
        """Return True if this is a replica, and a reader has records of the same history that the replica lacks."""
        state = self._committed.state
        if not self._pair.config.replica or proof is None or after <= state.number or proof[0] != state.store:
            return False
        return epoch_of(after) > state.epoch or proof == state.whose(state.number)

    def _lacks(self, after: int, proof: list[bytes]) -> bool:
        """Return True if a number is in our history, and not all records after it are in memory."""
        state = self._committed.state
        ours = 0 < after < state.number and state.is_ours(after, proof)
        return ours and not self._committed.log.reaches(after)

    def _passes(self, identity: bytes, subtree: str, options: Options) -> bool:
        """Pass a read to the active, if this is a replica and the active may have the records; else return False."""
        return self.passes is not None and self.passes(identity, self.authorizer.speaker, subtree, options)

    def _inspect(self, identity: bytes, subtree: str, request_id: int, credit: int) -> None:
        """Send a copy for a comparison. A passive sends it too, at its own number; the request is no vote."""
        pair = self._pair
        if self._denies_copy(identity, request_id, subtree):
            return
        if pair.bstate not in (headers.State.ACTIVE, headers.State.PASSIVE):
            self._answer(identity, headers.Refused(request_id, "passive", int(pair.bstate)))
            return
        self._committer.commit(self._turn)
        indices, nobody = count(), [b"", b""]
        copy = self._copy((0, nobody), subtree, request_id, b"", indices)
        empty = partial(self._empty, request_id, 0, nobody, indices)
        self._stream(identity, request_id, copy, credit, subtree, wants=subtree, empty=empty)

    def _stream(
        self,
        identity: bytes,
        request_id: int,
        parts: Iterator[list[Frames]],
        credit: int,
        subtree: str,
        *,
        wants: str | None = None,
        copy: tuple[bytes, str] | None = None,
        empty: Callable[[], Frames] | None = None,
        waits: Callable[[], bool] | None = None,
    ) -> None:
        stream = self._stream_of(identity, request_id, parts, credit)
        stream.wants, stream.copy, stream.empty, stream.waits = wants, copy, empty, waits
        self._open(stream, subtree, self._asked)

    def _stream_of(self, identity: bytes, request_id: int, parts: Iterator[list[Frames]], credit: int) -> SyncStream:
        credit, now = min(credit, self._committer.limits.sync_credit_max), self._turn.now
        return SyncStream(identity, request_id, parts, credit, True, now, said=now)

    @property
    def _asked(self) -> Asked:
        return self.authorizer.speaker, self._committed.state.access.changed

    def _empty(self, request_id: int, after: int, proof: list[bytes], indices: Iterator[int]) -> Frames:
        """Return an empty chunk to send while the answer is prepared.

        Its kind, RECORDS or SYNC, is that of the chunks that will probably follow.
        """
        state, index = self._committed.state, next(indices)
        header: headers.Header = headers.Sync(request_id, index)
        if self._resumes(after, proof):
            header = headers.Records(request_id, index, state.opener_of(after))
        return reply(pack(state.number), encode(header))

    def _resumes(self, after: int, proof: list[bytes]) -> bool:
        """Return True if `after` is in our history, and the log has all records after it.

        A server that has just loaded a whole state has an empty log, but no record is missing after its own number.
        """
        state, log = self._committed.state, self._committed.log
        return after > 0 and state.is_ours(after, proof) and (after == state.number or log.reaches(after))

    def _copy(
        self,
        at: tuple[int, list[bytes]],
        subtree: str,
        request_id: int,
        session_id: bytes,
        indices: Iterator[int],
        *,
        only_resume: bool = False,
    ) -> Iterator[list[Frames]]:
        """Yield a resume after a number, if its proof holds. Else yield a snapshot, or with `only_resume` a refusal.

        The answer shows the state at the time when its first part is made, not when the request came.
        """
        committer, committed = self._committer, self._committed
        # Wait until a large commit is applied: the copy would have all of it, but the digest only what was published.
        while committed.busy:
            yield []
        session = committed.state.sessions.get(session_id)
        session_no = session.no if session else None
        if self._knows_more(*at):
            # A snapshot of this replica would take the reader back to an older number.
            yield [reply(pack(committed.state.number), encode(headers.Refused(request_id, "busy", BEHIND)))]
            return
        if self._resumes(*at):
            yield from self._resume(at[0], subtree, request_id, session_no, indices)
            return
        if only_resume:
            yield [reply(pack(committed.state.number), encode(self._no_resume(request_id)))]
            return
        committer.counts["snapshots"] += 1
        image = self._image_of(subtree)
        end = [session_no, False, *committed.channels.digest_of(subtree), committed.state.whose(image.number)]
        yield from snapshot_parts(image, request_id, end, committer.limits, lambda: self._turn.now, indices=indices)

    def _no_resume(self, request_id: int) -> headers.Refused:
        """Return the refusal for a reader that cannot resume and wants no snapshot."""
        committed = self._committed
        return headers.Refused(request_id, "retained", committed.log.oldest or committed.state.number)

    def _may_begin(self, subtree: str) -> bool:
        """Return True if a copy may begin: no large commit is being applied, and an image exists or can be made."""
        if self._committed.busy:
            return False
        return subtree in self._fresh or not (self._committed.state.gathering or self._crowded)

    @property
    def _crowded(self) -> bool:
        """True if the images in memory are so large that no other one may be made."""
        state = self._committed.state
        return not state.deferred and self._alive.full(len(state.map))

    def _image_of(self, subtree: str) -> Image:
        """Return an image of a subtree as it is now; one pass over the map makes the images of all waiting streams."""
        if subtree not in self._fresh:
            committed = self._committed
            made = committed.state.images({subtree, *self.syncs.wanted(self.blocked)} - self._fresh.keys())
            for image in made.values():
                self._alive.add(image)
            self._fresh |= made
            committed.channels.measure_by(self._fresh)
        return self._fresh[subtree]

    def _resume(
        self, after: int, subtree: str, request_id: int, session_no: int | None, indices: Iterator[int]
    ) -> Iterator[list[Frames]]:
        committer, committed = self._committer, self._committed
        committer.counts["resumes"] += 1
        number, records = committed.state.number, committed.log.after(after, 1 << 62)
        digest, whose = committed.channels.digest_of(subtree), committed.state.whose(number)
        fingerprint = committed.channels.fingerprint_of(subtree, committed.state.map)
        if fingerprint is None:
            image = self._image_of(subtree)
            yield from gathered(image)
            fingerprint = image.fingerprint()
        end = headers.Kthxbai(request_id, number, *fingerprint, session_no, True, *digest, whose)
        yield from resume_parts(
            in_memory(records, committer.limits.part_bytes),
            after,
            subtree,
            end,
            committer.limits,
            opener=committed.state.opener_of,
            indices=indices,
            as_of_now=lambda segment, revision: with_ttls_left(segment, revision, committed.state.map, self._turn.now),
        )

    # -- images

    def _image(self, identity: bytes, subtree: str, options: Options, credit: int) -> None:
        prefix = options.get("prefix", subtree)
        if type(prefix) is not str or not prefix.startswith(subtree):
            raise BadFrame("the 'prefix' of an image is text that begins with its subtree")
        if self._committed.state.deferred:
            # A look at the map now would apply all of the commit in this turn, which takes too long.
            self._busy(identity, options["id"], "a large commit is being applied; ask again in a moment")
        elif options["image"] == 0:
            self._plan(identity, subtree, prefix, options)
        else:
            self._part_of_image(identity, subtree, prefix, options, credit)

    def _plan(self, identity: bytes, subtree: str, prefix: str, options: Options) -> None:
        """Keep the present number for a read; the answer waits until the passive keeps it too."""
        turn, committer, state = self._turn, self._committer, self._committed.state
        user, request_id = self.authorizer.speaker, options["id"]
        number = state.number
        if number not in state.undo:
            forgets = self.numbers.making_room(state.undo.numbers, turn.now, user)
            if forgets is None:
                most = committer.limits.image_numbers_max
                text = f"{most} reads are planned, and no user has more; ask again when one is done"
                self._busy(identity, request_id, text)
                return
            if committer.room.read_only:
                # There is no room for a record, so the passive does not keep the number.
                state.undo.drop(forgets)
                state.undo.keep(number, turn.now)
            else:
                committer.add_segment(Segment([], [], {columns.IMAGES: [True, forgets]}), turn.now)
                committer.commit(turn)
                number = state.number
        self.numbers.plan(number, turn.now, user)
        facts = {"number": number, "store": state.store, "opener": state.opener_of(number)}
        parts = self._planned(request_id, facts, prefix if options.get("count") is True else None)
        committer.acks.owe(number)
        self.owed.append((number, self._stream_of(identity, request_id, parts, ONE_ANSWER), subtree, self._asked))

    def _planned(self, request_id: int, facts: dict[str, Any], prefix: str | None) -> Iterator[list[Frames]]:
        """Yield the answer to a plan, with the count of the keys of a prefix if one is given."""
        state = self._committed.state
        keys = state.map_so_far.values
        if prefix == "":
            facts["keys"] = len(keys)
        elif prefix is not None and len(keys) <= COUNTED_AT_ONCE:
            facts["keys"] = sum(key.startswith(prefix) for key in keys)
        elif prefix is not None:
            names = state.names()
            while not names.done:
                yield []
            facts["keys"] = 0
            for i, some in enumerate(names.names):
                facts["keys"] += sum(key.startswith(prefix) for key in some)
                if i % COUNTED_SLICES == COUNTED_SLICES - 1:
                    yield []
        yield [reply(pack(facts["number"]), encode(headers.Reply(request_id, facts)))]

    def tell_plans(self, upto: int) -> None:
        """Send the answers to plans whose number is at most `upto`: everything up to there is acknowledged."""
        while self.owed and self.owed[0][0] <= upto:
            _, stream, subtree, asked = self.owed.popleft()
            stream.touched = stream.said = self._turn.now
            self._open(stream, subtree, asked)
            self.awake = True

    def _part_of_image(self, identity: bytes, subtree: str, prefix: str, options: Options, credit: int) -> None:
        """Send a part of the image at a number; the first question for a part makes the image."""
        turn, state, limits = self._turn, self._committed.state, self._committer.limits
        request_id, number = options["id"], options["image"]
        parts, part = options.get("parts", 1), options.get("part")
        if type(parts) is not int or not 0 < parts <= limits.image_parts_max:
            raise BadFrame(f"the 'parts' of an image are a number from 1 to {limits.image_parts_max}")
        if type(part) is not int or not 0 <= part < parts:
            raise BadFrame(f"the 'part' of an image is a number from 0 to {parts - 1}")
        if number > state.number and _proof(options)[0] == state.store:
            self._busy(identity, request_id, f"this server is at {describe(state.number)}; ask again in a moment")
            return
        if not state.is_ours(number, _proof(options)):
            text = "the servers have another history: this number was never theirs, or a split has ended it"
            self._answer(identity, headers.Refused(request_id, "image", text))
            return
        image = self.numbers.image(number, prefix, parts)
        if image is None:
            if number in state.undo and self._crowded:
                self._busy(identity, request_id, self._alive.why())
                return
            image = state.image_at(number, prefix, parts)
            if image is None:
                self._answer(identity, headers.Refused(request_id, "image", TOO_LATE))
                return
            self._committer.counts["images"] += 1
            for each in image.parts:
                self._alive.add(each)
            self.numbers.begin(image, turn.now, self.authorizer.speaker)
        form = packed if options.get("packed") else Segment.encode
        end, indices = [None, False, *NOTHING, state.whose(number)], count()
        found = self.numbers.part(image, part, turn.now)
        sent = slice_parts(found, request_id, end, limits, lambda: turn.now, form=form, indices=indices)
        empty = partial(self._no_items, request_id, number, indices)
        self._stream(identity, request_id, sent, credit, subtree, empty=empty)

    def _no_items(self, request_id: int, number: int, indices: Iterator[int]) -> Frames:
        """Return an empty chunk to send while the image is gathered."""
        return reply(pack(number), encode(headers.Sync(request_id, next(indices))))

    def _busy(self, identity: bytes, request_id: int, why: str) -> None:
        """Refuse a question for want of room, and say so in the log."""
        self._answer(identity, headers.Refused(request_id, "busy", why))
        self._turn.effects.fact("image refused", "warning", **self.authorizer.who(), why=why)

    def forget_numbers(self) -> None:
        """On the active, write a record that ends the kept numbers whose time is over."""
        state, now = self._committed.state, self._turn.now
        if state.undo.numbers and (over := self.numbers.over(state.undo.numbers, now)):
            self._committer.add_segment(Segment([], [], {columns.IMAGES: [False, over]}), now)

    def _forget_images(self) -> None:
        """Log which numbers the undo log has lost, and forget images of numbers that are not kept any more.

        A server that follows also drops the numbers that it has kept for too long.
        """
        undo, limits, now = self._committed.state.undo, self._committer.limits, self._turn.now
        if undo.lost:
            lost, undo.lost = undo.lost, []
            why = f"more than {limits.undo_bytes_max >> 20} MiB changed since it was planned"
            self._turn.effects.fact("image lost", "warning", number=", ".join(map(describe, lost)), why=why)
        if undo.numbers and (self._pair.config.replica or not self._pair.serving):
            undo.drop(undo.older_than(now - limits.image_kept_s_max))
        self.numbers.forget(undo.numbers, now)

    # -- the feed

    def _feed(self, identity: bytes, after: int, subtree: str, options: Options, credit: int) -> None:
        request_id, feeds = options["id"], self.feeds
        whose = _proof(options) if "proof" in options else None
        if "probe" in options:
            most, at = _number(options, "probe", 0), _number(options, "at", 0)
            passes = self._passes_feed(identity, subtree, options, after, whose)
            probe = feeds.probe(request_id, after, whose, most=most, at=at, passes=passes)
            self._stream(identity, request_id, probe, ONE_ANSWER, subtree, waits=self._is_ahead(after, whose))
        else:
            until = _number(options, "until", max(after, self._committed.state.number))
            indices = count()
            passes = self._passes_feed(identity, subtree, options, after, whose)
            records = feeds.records(
                request_id, after, whose, subtree=subtree, until=until, indices=indices, passes=passes
            )
            empty = partial(self._no_records, request_id, after, indices)
            waits = self._is_ahead(after, whose)
            self._stream(identity, request_id, records, credit, subtree, empty=empty, waits=waits)

    def _passes_feed(
        self, identity: bytes, subtree: str, options: Options, after: int, whose: list[bytes] | None
    ) -> Callable[[], bool]:
        """Return a function that passes a feed to the active, for the user of the message in hand.

        It returns False if `after` is not in this server's history, or if the feed can't be passed.
        """
        user = self.authorizer.speaker

        def passes() -> bool:
            state = self._committed.state
            ours = after == 0 or state.is_ours(after, state.whose(after) if whose is None else whose)
            if self.passes is None or not (ours or self._knows_more(after, whose)):
                return False
            return self.passes(identity, user, subtree, options)

        return passes

    def _no_records(self, request_id: int, after: int, indices: Iterator[int]) -> Frames:
        """Return an empty chunk to send while records are read from the journal."""
        state = self._committed.state
        return reply(pack(state.number), encode(headers.Records(request_id, next(indices), state.opener_of(after))))

    def _open(self, stream: SyncStream, subtree: str, asked: Asked) -> None:
        if self._pair.config.keyed:
            # The parts are made later, so the stream remembers the user and the number of the rules at the question.
            stream.parts = self._while_allowed(stream, stream.parts, subtree, *asked)
        stream.user, most = asked[0], self._committer.limits.syncs_max
        if not self.syncs.open(stream) and stream.counted:
            self._answer(stream.identity, headers.Refused(stream.request_id, "busy", most))
        for lost in self.syncs.take_lost():
            if lost.counted:
                self._answer(lost.identity, headers.Refused(lost.request_id, "busy", most))

    def _while_allowed(
        self, stream: SyncStream, parts: Iterator[list[Frames]], subtree: str, user: str, asked_at: int
    ) -> Iterator[list[Frames]]:
        """Yield the parts of an answer to a user, until new rules deny the user the rest."""
        for part in parts:
            state = self._committed.state
            if state.access.changed != asked_at and (why := self.authorizer.unread(state.access, user, subtree)):
                if stream.request_id:
                    yield [reply(pack(state.number), encode(headers.Refused(stream.request_id, "access", why)))]
                return
            yield part

    def _answer(self, identity: bytes, header: headers.Reply | headers.Refused) -> None:
        self._audit_answer(identity, header)
        self._turn.effects.replies.append((identity, [reply(pack(self._committed.state.number), encode(header))]))

    def pump(self) -> None:
        """Let each stream that has credit send a part. The open record is committed by now, so all show one number."""
        turn = self._turn
        self._heed_rules()
        if self.syncs:
            pressed = self._crowded
            for identity, part in self.syncs.pump(self.blocked, self._may_begin, turn.now, self.room, pressed=pressed):
                turn.effects.replies.append((identity, part))
        if self.syncs or self.replicas.reads:
            turn.effects.reads += self.feeds.pages.due()
        self._fresh.clear()
        self.readers.pump(self.blocked, lacks=self._link.backfill.waits(turn.effects))
        self.awake = bool(self.syncs or self.readers or self.replicas.reads or self.replicas.more)

    def page(self, read: JournalRead, found: Any) -> None:
        """Take what the journal has for a read of the last turn."""
        self.awake = True
        if isinstance(read, Read | ReadOldest):
            self.replicas.more |= self.replicas.reads
            self.feeds.pages.came(read, found)
        elif isinstance(read, ReadMessages):
            self.readers.pages.came(read, found)

    def _heed_rules(self) -> None:
        """Remove all readers of topics if the rules have changed; those that may still read ask again."""
        changed = self._committed.state.access.changed
        if changed != self._rules:
            self._rules = changed
            self.readers.clear()

    def forget(self) -> None:
        """Drop images whose time is over, and forget clients whose reports have stopped."""
        self._forget_images()
        self.clients.forget(self._turn.now)
        if self.replicas:
            self.replicas.beat(self.blocked)

    def clear(self) -> None:
        """Drop all streams, images, readers, reports and answers that wait: this server no longer serves."""
        self.syncs.clear()
        self.numbers.clear()
        self.owed.clear()
        self.feeds.pages.clear()
        self.readers.clear()
        self.clients.clear()
        self.replicas.clear()
        self.changes.owed.clear()

    @property
    def ready(self) -> bool:
        """True if a stream could send more, so the next turn should begin at once."""
        if self.replicas.more or self.readers.ready(self.blocked):
            return True
        return bool(self.syncs) and self.room > 0 and self.syncs.ready(self.blocked)

    def serves(self, identity: bytes) -> bool:
        """Return True if this connection has a stream or reads a topic, even if nothing is queued for it now."""
        served = any(each.serves(identity) for each in (self.syncs, self.readers, self.replicas))
        return served or identity in self.passed

    def gone(self, identity: bytes) -> None:
        """Forget an ended connection."""
        self.syncs.close(identity)
        self.readers.gone(identity)
        self.replicas.gone(identity)
        self.passed.discard(identity)
        self.blocked.discard(identity)

    # -- admin

    def _administer(self, identity: bytes, command: str, options: Options) -> Asking:
        handler, why = self._admin.get(command), self.authorizer.undone(self._committed.state.access, command)
        if self._denies(identity, options["id"], why, f"admin {command!r:.40}"):
            return
        if self._pair.config.audited:
            self._audit(
                self._trail.asks(
                    identity, options["id"], PendingCommand(self.authorizer.who(), named(command, options))
                ),
                "none",
            )
        try:
            if handler is None:
                known = ", ".join(sorted(self._admin))
                raise BadInput(f"admin command {command!r:.40} is not known; try {known}")
            if (command == "restore" or "end" in options) and (why := self._committer.room.read_only):
                raise BadInput(why)
            yield from handler(identity, options) or ()
        except BadInput as error:
            self.refuse(identity, options["id"], str(error))

    def _audit_answer(self, identity: bytes, header: headers.Reply | headers.Refused) -> None:
        asked = self._trail.answered(identity, header.number if isinstance(header, headers.Refused) else header.request)
        self._audit(asked, f"refused: {header.detail!s:.200}" if isinstance(header, headers.Refused) else "done")

    def _audit(self, asked: PendingCommand | None, verdict: str) -> None:
        if asked is not None:
            told = {**asked.who, "number": self._committed.state.number, "what": asked.what, "verdict": verdict}
            self._turn.effects.fact("admin", "audit", **told)

    def _status(self, identity: bytes, options: Options) -> None:
        self.answer(identity, options["id"], self._status_now())

    def _copies(self, command: str, identity: bytes, options: Options) -> None:
        self._turn.effects.copies.append(Copy(command, identity, options))

    def _switch(self, identity: bytes, options: Options) -> Asking:
        """Hand over to the passive; refuse if this server itself took over less than `switch_pace_s` ago."""
        committer = self._committer
        wait_s = self._link.handed_over_at + committer.limits.switch_pace_s - self._turn.now
        if options.get("force") is True:
            self.answer(identity, options["id"], (yield from self._link.force()))
        elif wait_s > 0:
            text = f"a hand-over was {committer.limits.switch_pace_s - wait_s:.1f} s ago; ask again in {wait_s:.1f} s"
            self._answer(identity, headers.Refused(options["id"], "busy", text))
        else:
            self.answer(identity, options["id"], self._link.switch())

    def _leases(self, identity: bytes, options: Options) -> None:
        """List the open leases, or end one."""
        turn, committer = self._turn, self._committer
        leases = self._committed.state.leases
        name, after = options.get("end"), options.get("after", b"")
        if name is not None and (type(name) is not bytes or name not in leases):
            raise BadInput("no lease of that name is open; `chp leases` lists the open ones")
        if name is not None and not self._pair.serving:
            raise BadInput("this server is not active; end the lease on the active server")
        if type(after) is not bytes:
            raise BadInput("'after' is the name of a lease, 16 bytes")
        if name is None:
            self.answer(identity, options["id"], listed(leases, after, turn.now))
            return
        facts = {columns.LEASE: name.hex(), **leases[name].facts(turn.now)}
        committer.commit(turn)
        committer.close_lease(name, turn.now)
        committer.commit(turn)
        turn.effects.fact("lease ended", "warning", **facts, because="an operator")
        self.answer(identity, options["id"], facts)

    def _clients(self, identity: bytes, options: Options) -> None:
        self.answer(identity, options["id"], self.clients.listed(options.get("after", 0), self._turn.now))

    def _access(self, identity: bytes, options: Options) -> None:
        """Show the rules of access, or replace them."""
        if "rules" in options:
            self.changes.replace(identity, options)
        else:
            self.changes.make_secret()
            self.answer(identity, options["id"], self.changes.told())

    def _denies_copy(self, identity: bytes, request_id: int, subtree: str) -> bool:
        authorizer = self.authorizer
        why = authorizer.unread(self._committed.state.access, authorizer.speaker, subtree)
        return self._denies(identity, request_id, why, f"read {subtree!r}")

    def _denies_topic(self, identity: bytes, options: Options) -> bool:
        """Refuse a question about topics that the rules deny. A member needs rights to its group and to its lease."""
        topic, group = (f"{options.get(name, '')!s:.200}" for name in ("topic", "group"))
        if not of_member(options):
            return self._denies_copy(identity, options["id"], f"{TOPICS}{topic}/" if "topic" in options else TOPICS)
        state, member = self._committed.state, options.get("member")
        lease = state.leases.get(member) if type(member) is bytes else None
        why = self.authorizer.unconsumed(state.access, topic, group, lease)
        return self._denies(identity, options["id"], why, f"consume by group {group!r} of topic {topic!r}")

    def deny(self, what: str) -> None:
        """Count and log that the rules deny something to the user of the message in hand."""
        self._committer.counts["denied"] += 1
        self._turn.effects.fact("denied", "warning", **self.authorizer.who(), what=what)

    def _denies(self, identity: bytes, request_id: int, why: str, what: str) -> bool:
        """Return True if there is a reason `why` to deny; refuse the request, unless it is of CHP/1 and has no id."""
        if why:
            self.deny(what)
            if request_id:
                self._answer(identity, headers.Refused(request_id, "access", why))
        return bool(why)

    def answer(self, identity: bytes, request_id: int, facts: dict[str, Any]) -> None:
        """Answer an admin command with named values."""
        self._answer(identity, headers.Reply(request_id, facts))

    def promise(self, identity: bytes, request_id: int, facts: dict[str, Any]) -> None:
        """Answer an admin command in order with acknowledgements, once its change is replicated."""
        header = headers.Reply(request_id, facts)
        self._audit_answer(identity, header)
        told = reply(pack(self._committed.state.number), encode(header))
        self._turn.effects.promises.append((identity, [told]))

    def refuse(self, identity: bytes, request_id: int, text: str) -> None:
        """Refuse a request with a text."""
        self._answer(identity, headers.Refused(request_id, "bad", text))


def asks_status(frames: list[bytes]) -> bool:
    """Return True if a message is the admin command `status`."""
    return len(frames) == 4 and frames[2] == STATUS


def _number(options: Options, name: str, default: int, least: int = 0) -> int:
    value = options.get(name, default)
    if type(value) is not int or value < least:
        raise BadFrame(f"the {name!r} of ICANHAZ? is a number, {least} or above")
    return value


def _proof(options: Options) -> list[bytes]:
    """Return the proof of `from`: its store and the opener of its epoch; both are empty if the caller gave none."""
    proof = options.get("proof", [b"", b""])
    if type(proof) is not list or list(map(type, proof)) != [bytes, bytes]:
        raise BadFrame("the 'proof' of ICANHAZ? is what KTHXBAI told: two times bytes")
    return proof


def _subtree(frame: bytes) -> str:
    try:
        return check_subtree(frame.decode())
    except UnicodeDecodeError:
        raise BadFrame("the subtree of ICANHAZ? is UTF-8") from None
