"""The snapshot port: who asks for a copy, for what was missed, for the feed of changes, or for an admin command.

    ICANHAZ? subtree                           CHP/1: KVSYNCs and KTHXBAI
    ICANHAZ? subtree {id, from, ...}           CHP/2: what follows on `from` if that is history we still hold, else all
    ICANHAZ? subtree {id, from, feed}          the records after `from`, never a snapshot instead
    ICANHAZ? subtree {id, from, feed, probe}   how far a feed after `from` reaches: the numbers alone
    ICANHAZ? subtree {id, image, ...}          a snapshot in slices, for several readers (images.py)
    ICANHAZ? subtree {id, more}                room for more chunks
    ICANHAZ? STX command ETX {id, ...}         status, switch, leases, backup, restore

A request for a copy is also the vote of Binary Star: a passive whose peer is silent takes over on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from chp import columns, headers
from chp.batch import Segment, encode, peek, unpackb
from chp.digest import NOTHING
from chp.errors import BadFrame, BadInput
from chp.keys import ETX, STX, check_subtree
from chp.messages import ICANHAZ, parse_icanhaz
from chp.numbers import describe, epoch_of, pack, sequence_of
from chp.unpacking import QUESTION
from chp.versions import spoken, unspoken

from .commit import HEADER_BYTES_MAX
from .history import opener_of
from .image import Image
from .images import Alive, Images, packed
from .leases import listed
from .recordlog import Record
from .syncs import Stream, Syncs, gathered, plain_parts, reply, resume_parts, snapshot_parts
from .turn import Frames, Turn

if TYPE_CHECKING:
    from .core import ServerCore

FEED_PAGE_BYTES = 4 << 20
STATUS = STX + b"status" + ETX
Options = dict[str, Any]


class Requests:
    """What the snapshot port is asked, and the streams that answer."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.syncs = Syncs(core.limits)
        self.images = Images(core.limits)
        self._alive = Alive(core.limits)
        self.blocked: set[bytes] = set()  # readers that have no room; the reactor keeps this ...
        self.room = 1 << 62  # ... and this: how many bytes all that waits for readers may still grow by
        self._fresh: dict[str, Image] = {}  # of this turn: who asks for the same, and in hundreds, costs one
        self.admin: dict[str, Callable[[bytes, Options], None]] = {
            "status": lambda identity, options: self.answer(identity, options["id"], core.status()),
            "switch": self._switch,
            "leases": self._leases,
        }  # the shell adds those that touch files; each answers when it is done

    def message(self, frames: list[bytes]) -> None:
        """A message from the snapshot port: identity, then the request."""
        identity, *request = frames
        match request:
            case [command, subtree, options] if command == ICANHAZ:
                self._extended(identity, subtree, options)
            case _:
                self._plain(identity, parse_icanhaz(request))

    def by_operator(self, frames: list[bytes]) -> None:
        """Only what asks for a status, while a turn waits for room in the journal; others ask again."""
        if len(frames) == 4 and frames[2] == STATUS:
            self._core.request(frames)

    def take_aside(self) -> Turn:
        """What came of those, and of subscriptions: answers and greetings, which change nothing."""
        core = self._core
        turn, core.turn = core.turn, Turn()
        return turn

    def _plain(self, identity: bytes, subtree: str) -> None:
        core = self._core
        if not core.vote():
            return
        self._open(Stream(identity, 0, self._classic(subtree), 1 << 30, False, core.now, subtree))

    def _classic(self, subtree: str) -> Iterator[list[Frames]]:
        core = self._core
        yield from plain_parts(self._image_of(subtree), subtree, core.wall, lambda: core.now)

    def _extended(self, identity: bytes, subtree_frame: bytes, options_frame: bytes) -> None:
        options = unpackb(options_frame, "the options of ICANHAZ?", QUESTION)
        if type(options) is not dict or type(options.get("id")) is not int:
            raise BadFrame("the options of ICANHAZ? are a msgpack map with an 'id', a number")
        version = options.get("chp")
        if not spoken(version):
            self.refuse(identity, options["id"], f"can't answer this client: {unspoken(version)}")
            raise BadFrame(f"a client asks, and can't be answered: {unspoken(version)}")
        if subtree_frame[:1] == STX and subtree_frame[-1:] == ETX:
            self._administer(identity, subtree_frame[1:-1].decode("ascii", "replace"), options)
        elif "more" in options:
            more = options["more"]
            if type(more) is int and more > 0:
                self.syncs.grant(identity, options["id"], more, self._core.now)
        else:
            try:
                self._sync(identity, _subtree(subtree_frame), options)
            except BadInput as error:
                self._answer(identity, headers.Refused(options["id"], "bad", str(error)))
                raise

    # -- copies

    def _sync(self, identity: bytes, subtree: str, options: Options) -> None:
        core, request_id = self._core, options["id"]
        after, credit = options.get("from", 0), options.get("credit", 8)
        if type(after) is not int or type(credit) is not int or credit < 1:
            raise BadFrame("'from' and 'credit' of ICANHAZ? are numbers, the credit at least 1")
        session_id = options.get("session") or b""
        if type(session_id) is not bytes:
            raise BadFrame("the 'session' of ICANHAZ? is bytes")
        if options.get("inspect") is True:
            self._inspect(identity, subtree, request_id, credit)
            return
        meant, proof = options.get("store"), _proof(options)
        if proof[0] == core.state.store != b"":
            core.rise_above(epoch_of(after))
        if not core.vote():
            self._answer(identity, headers.Refused(request_id, "passive", int(core.bstate)))
            return
        core.commit()
        if meant not in (None, core.state.store):
            self._answer(identity, headers.Refused(request_id, "store", core.state.store))
            return
        if "image" in options:
            self._image(identity, subtree, options, credit)
            return
        if options.get("feed") and "probe" in options:
            self._probe(identity, after, options)
            return
        if not options.get("feed"):
            copy = self._copy(after, proof, subtree, request_id, session_id)
            self._stream(identity, request_id, copy, credit, None if after and not subtree else subtree)
        elif (parts := self._feed(after, subtree, options)) is None:
            self._answer(identity, headers.Refused(request_id, "retained", self._oldest()))
        else:
            self._stream(identity, request_id, parts, credit)

    def _inspect(self, identity: bytes, subtree: str, request_id: int, credit: int) -> None:
        """A copy for who compares: of a passive too, as of its number, and no vote."""
        core = self._core
        if core.bstate not in (headers.State.ACTIVE, headers.State.PASSIVE):
            self._answer(identity, headers.Refused(request_id, "passive", int(core.bstate)))
            return
        core.commit()
        copy = self._copy(0, [b"", b""], subtree, request_id, b"")
        self._stream(identity, request_id, copy, credit, subtree)

    def _stream(
        self,
        identity: bytes,
        request_id: int,
        parts: Iterator[list[Frames]],
        credit: int,
        wants: str | None = None,
    ) -> None:
        core = self._core
        self._open(Stream(identity, request_id, parts, min(credit, core.limits.sync_credit_max), True, core.now, wants))

    def _whose(self, number: int) -> list[Any]:
        """What proves a number: the store, and who opened its epoch. A reader that goes on from there repeats it."""
        return [self._core.state.store, self._opener_of(number)]

    def _opener_of(self, number: int) -> bytes:
        return opener_of(self._core.state.history, number)

    def _is_ours(self, after: int, proof: list[bytes]) -> bool:
        """Whether what a reader has is part of our history, as far as a number and whose it is can tell."""
        epoch = self._core.state.history.get(epoch_of(after))
        return epoch is not None and after <= epoch.last and proof == self._whose(after)

    def _copy(
        self, after: int, proof: list[bytes], subtree: str, request_id: int, session_id: bytes
    ) -> Iterator[list[Frames]]:
        """What follows on `after`, or all: as of when its first part is asked for, not sooner."""
        core = self._core
        session = core.state.sessions.get(session_id)
        session_no = session.no if session else None
        if after and self._is_ours(after, proof) and core.commits.log.reaches(after):
            yield from self._resume(after, subtree, request_id, session_no)
            return
        core.counts["snapshots"] += 1
        image = self._image_of(subtree)
        end = [session_no, False, *core.commits.channels.digest_of(subtree), self._whose(image.number)]
        yield from snapshot_parts(image, request_id, end, core.limits, lambda: core.now)

    def _may_begin(self, subtree: str) -> bool:
        """Whether a copy of a subtree may begin: the map is as it is said to be, and there is or can be an image."""
        if self._core.state.late:
            return False
        return subtree in self._fresh or not (self._core.state.gathering or self._crowded)

    @property
    def _crowded(self) -> bool:
        """Whether so many images are being read that no other can be made."""
        state = self._core.state
        return not state.late and self._alive.full(len(state.map))

    def _image_of(self, subtree: str) -> Image:
        """The subtree as it is now; one pass over the map is made, for all who wait for one."""
        if subtree not in self._fresh:
            core = self._core
            made = core.state.images({subtree, *self.syncs.wanted(self.blocked)} - self._fresh.keys())
            for image in made.values():
                self._alive.add(image)
            self._fresh |= made
            core.commits.channels.measure_by(self._fresh)
        return self._fresh[subtree]

    def _resume(self, after: int, subtree: str, request_id: int, session_no: int | None) -> Iterator[list[Frames]]:
        core = self._core
        core.counts["resumes"] += 1
        number, records = core.state.number, core.commits.log.after(after, 1 << 62)
        digest, whose = core.commits.channels.digest_of(subtree), self._whose(number)
        fingerprint = core.commits.channels.fingerprint_of(subtree, core.state.map)
        if fingerprint is None:
            image = self._image_of(subtree)
            yield from gathered(image)
            fingerprint = image.fingerprint()
        end = headers.Kthxbai(request_id, number, *fingerprint, session_no, True, *digest, whose)
        yield from resume_parts(iter(records), after, subtree, end, core.limits, opener=self._opener_of)

    # -- images

    def _image(self, identity: bytes, subtree: str, options: Options, credit: int) -> None:
        core, request_id, name = self._core, options["id"], options["image"]
        if type(name) is not bytes or len(name) != 16:
            raise BadFrame("the 'image' of ICANHAZ? is its name, 16 bytes")
        if "part" not in options:
            self._make_image(identity, subtree, options)
            return
        image = self.images.part(name, options["part"], core.now) if type(options["part"]) is int else None
        if image is None:
            text = "it is not kept here, not whole yet, or has no such part"
            self._answer(identity, headers.Refused(request_id, "image", text))
        else:
            form = packed if options.get("packed") else Segment.encode
            end = [None, False, *NOTHING, self._whose(image.number)]
            parts = snapshot_parts(image, request_id, end, core.limits, lambda: core.now, form=form)
            self._stream(identity, request_id, parts, credit)

    def _make_image(self, identity: bytes, subtree: str, options: Options) -> None:
        core, request_id, limits = self._core, options["id"], self._core.limits
        prefix, parts = options.get("prefix", subtree), options.get("parts", 1)
        if type(prefix) is not str or not prefix.startswith(subtree):
            raise BadFrame("the 'prefix' of an image is text that begins with its subtree")
        if type(parts) is not int or not 0 < parts <= limits.image_parts_max:
            raise BadFrame(f"the 'parts' of an image are a number from 1 to {limits.image_parts_max}")
        image = self.images.get(options["image"])
        if image is None:
            if not self.images.make_room(core.now):
                text = f"{limits.images_max} images are being read; ask again when one is done"
                self._answer(identity, headers.Refused(request_id, "busy", text))
                return
            core.counts["images"] += 1
            image = self.images.same(core.state.number, prefix)
            if image is None and self._crowded:
                text = "the server holds as many images as it may; ask again when one is done"
                self._answer(identity, headers.Refused(request_id, "busy", text))
                return
            if image is None:
                image = core.state.image(prefix)
                self._alive.add(image)
        self.images.keep(options["image"], image, parts, core.now)
        self._stream(identity, request_id, self._about(image, request_id), 1)

    def _about(self, image: Image, request_id: int) -> Iterator[list[Frames]]:
        yield from gathered(image)
        facts = {"number": image.number, "keys": image.size, "store": self._core.state.store}
        yield [reply(pack(image.number), encode(headers.Reply(request_id, facts)))]

    # -- the feed

    def _oldest(self) -> int:
        """The lowest number after which everything is still here."""
        start = self._core.commits.log.start
        return 0 if self._page(0, 1) is not None else self._core.state.number if start is None else start

    def _probe(self, identity: bytes, after: int, options: Options) -> None:
        """Where a feed after `after` would end if it had about `probe` numbers, at least a record; 0 is no bound."""
        core, most, request_id = self._core, _number(options, "probe", 0), options["id"]
        number = newest = core.state.number
        if after and (not self._is_fed(after, options) or self._page(after, 1) is None):
            self._answer(identity, headers.Refused(request_id, "retained", self._oldest()))
            return
        if most and sequence_of(newest) - sequence_of(after) > most:
            number = self._boundary(after, newest, most)
        oldest, opener = self._oldest(), self._opener_of
        facts = {"number": number, "newest": newest, "oldest": oldest, "store": core.state.store}
        self.answer(identity, request_id, {**facts, "opener": opener(number), "oldest_opener": opener(oldest)})

    def _boundary(self, after: int, newest: int, most: int) -> int:
        best = after
        for record in self._records(after, newest):
            peeked = peek(record.body, HEADER_BYTES_MAX)
            if peeked is None or (isinstance(peeked[0], headers.Batch) and peeked[0].more):
                continue  # more of this record follows
            if best > after and sequence_of(record.last) - sequence_of(after) > most:
                break
            best = record.last
        return best

    def _feed(self, after: int, subtree: str, options: Options) -> Iterator[list[Frames]] | None:
        """The records after `after`, out of the log or of the journal; None if neither reaches back to it."""
        core, request_id = self._core, options["id"]
        if (after and not self._is_fed(after, options)) or self._page(after) is None:
            return None
        core.counts["feeds"] += 1
        until = min(_number(options, "until", core.state.number), core.state.number)
        end = headers.Kthxbai(request_id, until, 0, 0, None, True, *NOTHING, self._whose(until))
        records = self._records(after, until)
        return resume_parts(records, after, subtree, end, core.limits, opener=self._opener_of)

    def _is_fed(self, after: int, options: Options) -> bool:
        """Whether a feed can go on from a number: the store was compared, its epoch's opener is if the reader knows."""
        return self._is_ours(after, _proof(options) if "proof" in options else self._whose(after))

    def _records(self, after: int, until: int) -> Iterator[Record]:
        while after < until:
            page = self._page(after)
            if not page:
                raise BadInput(f"the records after {describe(after)} are not retained any more; raise --retain-bytes")
            for record in page:
                if record.first > until:
                    return
                yield record
                after = record.last

    def _page(self, after: int, bytes_max: int = FEED_PAGE_BYTES) -> list[Record] | None:
        core = self._core
        if core.commits.log.reaches(after):
            return core.commits.log.after(after, bytes_max)
        rows = core.read_journal(after, bytes_max)
        return None if rows is None else [Record(row.first - 1, row.first, row.last, row.body) for row in rows]

    def _open(self, stream: Stream) -> None:
        if not self.syncs.open(stream) and stream.counted:
            self._answer(stream.identity, headers.Refused(stream.request_id, "busy", self._core.limits.syncs_max))

    def _answer(self, identity: bytes, header: headers.Header) -> None:
        core = self._core
        core.turn.replies.append((identity, [reply(pack(core.state.number), encode(header))]))

    def pump(self) -> None:
        """Let each stream that has room send a part; nothing is open, so that all are of one number."""
        core = self._core
        self.images.expire(core.now)
        if self.syncs:
            pressed = self._crowded
            for identity, part in self.syncs.pump(self.blocked, self._may_begin, core.now, self.room, pressed=pressed):
                core.turn.replies.append((identity, part))
        self._fresh.clear()

    def clear(self) -> None:
        """Drop all that is under way or kept: the server no longer serves."""
        self.syncs.clear()
        self.images.clear()

    @property
    def ready(self) -> bool:
        """Whether a stream could send now."""
        return bool(self.syncs) and self.room > 0 and self.syncs.ready(self.blocked)

    def gone(self, identity: bytes) -> None:
        """A reader has left."""
        self.syncs.close(identity)
        self.blocked.discard(identity)

    # -- admin

    def _administer(self, identity: bytes, command: str, options: Options) -> None:
        handler = self.admin.get(command)
        try:
            if handler is None:
                known = ", ".join(sorted(self.admin))
                raise BadInput(f"admin command {command!r:.40} is not known; try {known}")
            if (command == "restore" or "end" in options) and (why := self._core.room.read_only):
                raise BadInput(why)
            handler(identity, options)
        except BadInput as error:
            self.refuse(identity, options["id"], str(error))

    def _switch(self, identity: bytes, options: Options) -> None:
        """Hand over, but not again and again: the other server, or this one, has just taken over."""
        core = self._core
        wait_s = core.link.handed_over_at + core.limits.switch_pace_s - core.now
        if options.get("force") is True:
            self.answer(identity, options["id"], core.link.force())
        elif wait_s > 0:
            text = f"a hand-over was {core.limits.switch_pace_s - wait_s:.1f} s ago; ask again in {wait_s:.1f} s"
            self._answer(identity, headers.Refused(options["id"], "busy", text))
        else:
            self.answer(identity, options["id"], core.link.switch())

    def _leases(self, identity: bytes, options: Options) -> None:
        """List them, or end one."""
        core, leases = self._core, self._core.state.leases
        name, after = options.get("end"), options.get("after", b"")
        if name is not None and (type(name) is not bytes or name not in leases):
            raise BadInput("no lease of that name is open; `chp leases` lists them")
        if name is not None and not core.serving:
            raise BadInput("this server is not active; end a lease on the one that is")
        if type(after) is not bytes:
            raise BadInput("'after' is the name of a lease, 16 bytes")
        if name is None:
            self.answer(identity, options["id"], listed(leases, after, core.now))
            return
        facts = {columns.LEASE: name.hex(), **leases[name].facts(core.now)}
        core.commit()
        core.commits.close_lease(name, core.now)
        core.commit()
        core.turn.fact("lease ended", "warning", **facts, because="an operator")
        self.answer(identity, options["id"], facts)

    def answer(self, identity: bytes, request_id: int, facts: dict[str, Any]) -> None:
        """What an admin command did."""
        self._answer(identity, headers.Reply(request_id, facts))

    def refuse(self, identity: bytes, request_id: int, text: str) -> None:
        """Why an admin command was not done."""
        self._answer(identity, headers.Refused(request_id, "bad", text))


def _number(options: Options, name: str, default: int) -> int:
    value = options.get(name, default)
    if type(value) is not int or value < 0:
        raise BadFrame(f"the {name!r} of ICANHAZ? is a number, 0 or above")
    return value


def _proof(options: Options) -> list[bytes]:
    """Of `from`: the store and the opener of its epoch, as a KTHXBAI told them; two empty ones if there are none."""
    proof = options.get("proof", [b"", b""])
    if type(proof) is not list or list(map(type, proof)) != [bytes, bytes]:
        raise BadFrame("the 'proof' of ICANHAZ? is what KTHXBAI told: two times bytes")
    return proof


def _subtree(frame: bytes) -> str:
    try:
        return check_subtree(frame.decode())
    except UnicodeDecodeError:
        raise BadFrame("the subtree of ICANHAZ? is UTF-8") from None
