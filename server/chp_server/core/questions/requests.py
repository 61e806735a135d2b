"""The snapshot port: who asks for a copy, for what was missed, for the feed of changes, or for an admin command.

    ICANHAZ? subtree                           CHP/1: KVSYNCs and KTHXBAI
    ICANHAZ? subtree {id, from, ...}           CHP/2: what follows on `from` if that is history we still hold, else all
    ICANHAZ? subtree {id, from, feed}          the records after `from`, never a snapshot instead
    ICANHAZ? subtree {id, from, feed, probe}   how far a feed after `from` reaches: the numbers alone
    ICANHAZ? subtree {id, image, ...}          a snapshot in slices, for several readers (images.py)
    ICANHAZ? subtree {id, more}                room for more chunks
    ICANHAZ? subtree {id, topic, ...}          messages of a topic, or its facts (topics/readers.py)
    ICANHAZ? STX command ETX {id, ...}         status, switch, leases, clients, access, backup, restore
    ICANHAZ? STX client ETX {id, ...}          a client tells of itself (clients.py); no answer

A request for a copy is also the vote of Binary Star: a passive whose peer is silent takes over on it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import count
from typing import Any

from chp import columns, headers
from chp.batch import Segment, encode, unpackb
from chp.digest import NOTHING
from chp.errors import BadFrame, BadInput
from chp.keys import ETX, STX, check_subtree
from chp.messages import ICANHAZ, parse_icanhaz
from chp.numbers import epoch_of, pack
from chp.unpacking import QUESTION
from chp.versions import spoken, unspoken

from ..peer.peerlink import PeerLink
from ..standing import Ask, Asking, RiseAbove, Standing, TellStatus, Vote
from ..state.image import Image
from ..state.leases import listed
from ..updates.gate import TOPICS
from ..updates.turn import Copy, Frames
from .changes import Changes
from .clients import TELLS, Clients
from .feeds import Feeds
from .images import Alive, Images, packed
from .readers import Readers
from .syncs import Stream, Syncs, chp1_parts, gathered, reply, resume_parts, snapshot_parts, with_ttls_left
from .trail import Asked, Trail, named

STATUS = STX + b"status" + ETX
Options = dict[str, Any]


class Requests:
    """What the snapshot port is asked, and the streams that answer."""

    def __init__(self, here: Standing, link: PeerLink, changes: Changes) -> None:
        self._here, self._link, self._changes = here, link, changes
        self._trail = Trail()
        self._rules = 0  # the number of those that readers of topics were let in by
        self.syncs = Syncs(here.limits)
        self.images = Images(here.limits)
        self.feeds = Feeds(here)
        self.readers = Readers(here)
        self.clients = Clients()
        self._alive = Alive(here.limits)
        self.blocked: set[bytes] = set()  # readers that have no room; the reactor keeps this ...
        self.room = 1 << 62  # ... and this: how many bytes all that waits for readers may still grow by
        self._fresh: dict[str, Image] = {}  # of this turn: who asks for the same, and in hundreds, costs one
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
        """A message from the snapshot port: identity, then the request."""
        identity, *request = frames
        match request:
            case [command, subtree, options] if command == ICANHAZ:
                yield from self._extended(identity, subtree, options)
            case _:
                yield from self._chp1(identity, parse_icanhaz(request))

    def _chp1(self, identity: bytes, subtree: str) -> Asking:
        if (yield from self._vote(identity, 0, subtree)) and self._here.serving:
            self._open(Stream(identity, 0, self._chp1_copy(subtree), 1 << 30, False, self._here.now, subtree), subtree)

    def _vote(self, identity: bytes, request_id: int, subtree: str, seen: int = 0) -> Generator[Ask, None, bool]:
        """Whether who asks may read that, and votes, above what it has `seen`; and again: a vote may bring rules."""
        if self._denies_copy(identity, request_id, subtree):
            return False
        if seen:
            yield RiseAbove(seen)
        yield Vote()
        return not self._here.serving or not self._denies_copy(identity, request_id, subtree)

    def _chp1_copy(self, subtree: str) -> Iterator[list[Frames]]:
        yield from chp1_parts(self._image_of(subtree), subtree, self._here.wall, lambda: self._here.now)

    def _extended(self, identity: bytes, subtree_frame: bytes, options_frame: bytes) -> Asking:
        options = unpackb(options_frame, "the options of ICANHAZ?", QUESTION)
        if type(options) is not dict or type(options.get("id")) is not int:
            raise BadFrame("the options of ICANHAZ? are a msgpack map with an 'id', a number")
        version = options.get("chp")
        if not spoken(version):
            self.refuse(identity, options["id"], f"can't answer this client: {unspoken(version)}")
            raise BadFrame(f"a client asks, and can't be answered: {unspoken(version)}")
        if subtree_frame == TELLS:
            self.clients.told(identity, options, self._here.gate.speaker, self._here.now)
        elif subtree_frame[:1] == STX and subtree_frame[-1:] == ETX:
            yield from self._administer(identity, subtree_frame[1:-1].decode("ascii", "replace"), options)
        elif "more" in options:
            more = options["more"]
            if type(more) is int and more > 0:
                self.syncs.grant(identity, options["id"], more, self._here.now)
                self.readers.grant(identity, options["id"], more)
        elif "topic" in options or "topics" in options:
            of = f"{TOPICS}{options['topic']!s:.200}/" if "topic" in options else TOPICS
            if (yield from self._vote(identity, options["id"], of)):
                self.readers.ask(identity, options)
        else:
            try:
                yield from self._sync(identity, _subtree(subtree_frame), options)
            except BadInput as error:
                self._answer(identity, headers.Refused(options["id"], "bad", str(error)))
                raise

    # -- copies

    def _sync(self, identity: bytes, subtree: str, options: Options) -> Asking:
        here, request_id = self._here, options["id"]
        after, credit = _number(options, "from", 0, least=-(1 << 63)), _number(options, "credit", 8, least=1)
        session_id = options.get("session") or b""
        if type(session_id) is not bytes:
            raise BadFrame("the 'session' of ICANHAZ? is bytes")
        if not here.gate.owns(here.state.access, session_id):
            session_id = b""  # how much others have done is theirs to know, and which copies they get
        if options.get("inspect") is True:
            self._inspect(identity, subtree, request_id, credit)
            return
        meant, proof = options.get("store"), _proof(options)
        seen = epoch_of(after) if proof[0] == here.state.store != b"" else 0
        if not (yield from self._vote(identity, request_id, subtree, seen)):
            return
        if not here.serving:
            self._answer(identity, headers.Refused(request_id, "passive", int(here.bstate)))
            return
        here.commit()
        if meant not in (None, here.state.store):
            self._answer(identity, headers.Refused(request_id, "store", here.state.store))
            return
        if "image" in options:
            self._image(identity, subtree, options, credit)
            return
        if options.get("feed"):
            self._feed(identity, after, subtree, options, credit)
            return
        indices = count()
        copy = self._copy((after, proof), subtree, request_id, session_id, indices)
        whose, wants = (session_id, subtree) if session_id else None, None if after and not subtree else subtree
        empty = partial(self._empty, request_id, after, proof, indices)
        self._stream(identity, request_id, copy, credit, subtree, wants=wants, copy=whose, empty=empty)

    def _inspect(self, identity: bytes, subtree: str, request_id: int, credit: int) -> None:
        """A copy for who compares: of a passive too, as of its number, and no vote."""
        here = self._here
        if self._denies_copy(identity, request_id, subtree):
            return
        if here.bstate not in (headers.State.ACTIVE, headers.State.PASSIVE):
            self._answer(identity, headers.Refused(request_id, "passive", int(here.bstate)))
            return
        here.commit()
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
    ) -> None:
        credit, now = min(credit, self._here.limits.sync_credit_max), self._here.now
        stream = Stream(identity, request_id, parts, credit, True, now, wants, copy=copy, empty=empty, said=now)
        self._open(stream, subtree)

    def _empty(self, request_id: int, after: int, proof: list[bytes], indices: Iterator[int]) -> Frames:
        """Return a chunk of nothing, of the kind that is likely to follow: the answer is being prepared."""
        state = self._here.state
        index = next(indices)
        header: headers.Header = headers.Sync(request_id, index)
        if self._resumes(after, proof):
            header = headers.Records(request_id, index, state.opener_of(after))
        return reply(pack(state.number), encode(header))

    def _resumes(self, after: int, proof: list[bytes]) -> bool:
        """Return True if what follows on a number is in the log, and the number is of our history."""
        here = self._here
        return after > 0 and here.state.is_ours(after, proof) and here.commits.log.reaches(after)

    def _copy(
        self, at: tuple[int, list[bytes]], subtree: str, request_id: int, session_id: bytes, indices: Iterator[int]
    ) -> Iterator[list[Frames]]:
        """What follows on a number, with its proof, or all: as of when its first part is asked for, not sooner."""
        here = self._here
        session = here.state.sessions.get(session_id)
        session_no = session.no if session else None
        if self._resumes(*at):
            yield from self._resume(at[0], subtree, request_id, session_no, indices)
            return
        here.counts["snapshots"] += 1
        image = self._image_of(subtree)
        end = [session_no, False, *here.commits.channels.digest_of(subtree), here.state.whose(image.number)]
        yield from snapshot_parts(image, request_id, end, here.limits, lambda: here.now, indices=indices)

    def _may_begin(self, subtree: str) -> bool:
        """Whether a copy of a subtree may begin: the map is as it is said to be, and there is or can be an image."""
        if self._here.state.deferred:
            return False
        return subtree in self._fresh or not (self._here.state.gathering or self._crowded)

    @property
    def _crowded(self) -> bool:
        """Whether so many images are being read that no other can be made."""
        state = self._here.state
        return not state.deferred and self._alive.full(len(state.map))

    def _image_of(self, subtree: str) -> Image:
        """The subtree as it is now; one pass over the map is made, for all who wait for one."""
        if subtree not in self._fresh:
            here = self._here
            made = here.state.images({subtree, *self.syncs.wanted(self.blocked)} - self._fresh.keys())
            for image in made.values():
                self._alive.add(image)
            self._fresh |= made
            here.commits.channels.measure_by(self._fresh)
        return self._fresh[subtree]

    def _resume(
        self, after: int, subtree: str, request_id: int, session_no: int | None, indices: Iterator[int]
    ) -> Iterator[list[Frames]]:
        here = self._here
        here.counts["resumes"] += 1
        number, records = here.state.number, here.commits.log.after(after, 1 << 62)
        digest, whose = here.commits.channels.digest_of(subtree), here.state.whose(number)
        fingerprint = here.commits.channels.fingerprint_of(subtree, here.state.map)
        if fingerprint is None:
            image = self._image_of(subtree)
            yield from gathered(image)
            fingerprint = image.fingerprint()
        end = headers.Kthxbai(request_id, number, *fingerprint, session_no, True, *digest, whose)
        yield from resume_parts(
            iter(records),
            after,
            subtree,
            end,
            here.limits,
            opener=here.state.opener_of,
            indices=indices,
            as_of_now=lambda segment, revision: with_ttls_left(segment, revision, here.state.map, here.now),
        )

    # -- images

    def _image(self, identity: bytes, subtree: str, options: Options, credit: int) -> None:
        here, request_id, name = self._here, options["id"], options["image"]
        if type(name) is not bytes or len(name) != 16:
            raise BadFrame("the 'image' of ICANHAZ? is its name, 16 bytes")
        if here.config.keyed:  # it is who asked for it, of the subtree that was asked for, who may read it
            name = b"\0".join([name, here.gate.speaker.encode(), subtree.encode()])
        if "part" not in options:
            self._make_image(identity, subtree, name, options)
            return
        image = self.images.part(name, options["part"], here.now) if type(options["part"]) is int else None
        if image is None:
            text = "it is not kept here, not whole yet, or has no such part"
            self._answer(identity, headers.Refused(request_id, "image", text))
        else:
            form = packed if options.get("packed") else Segment.encode
            end = [None, False, *NOTHING, here.state.whose(image.number)]
            parts = snapshot_parts(image, request_id, end, here.limits, lambda: here.now, form=form)
            self._stream(identity, request_id, parts, credit, subtree)

    def _make_image(self, identity: bytes, subtree: str, name: bytes, options: Options) -> None:
        here, request_id, limits = self._here, options["id"], self._here.limits
        prefix, parts = options.get("prefix", subtree), options.get("parts", 1)
        if type(prefix) is not str or not prefix.startswith(subtree):
            raise BadFrame("the 'prefix' of an image is text that begins with its subtree")
        if type(parts) is not int or not 0 < parts <= limits.image_parts_max:
            raise BadFrame(f"the 'parts' of an image are a number from 1 to {limits.image_parts_max}")
        if (image := self.images.get(name)) is None:
            if not self.images.make_room(here.now):
                text = f"{limits.images_max} images are being read; ask again when one is done"
                self._answer(identity, headers.Refused(request_id, "busy", text))
                return
            here.counts["images"] += 1
            image = self.images.same(here.state.number, prefix)
            if image is None and self._crowded:
                text = "the server holds as many images as it may; ask again when one is done"
                self._answer(identity, headers.Refused(request_id, "busy", text))
                return
            if image is None:
                image = here.state.image(prefix)
                self._alive.add(image)
        self.images.keep(name, image, parts, here.now)
        self._stream(identity, request_id, self._about(image, request_id), 1, subtree)

    def _about(self, image: Image, request_id: int) -> Iterator[list[Frames]]:
        yield from gathered(image)
        facts = {"number": image.number, "keys": image.size, "store": self._here.state.store}
        yield [reply(pack(image.number), encode(headers.Reply(request_id, facts)))]

    # -- the feed

    def _feed(self, identity: bytes, after: int, subtree: str, options: Options, credit: int) -> None:
        request_id, feeds = options["id"], self.feeds
        whose = _proof(options) if "proof" in options else None
        if "probe" in options:
            most, at = _number(options, "probe", 0), _number(options, "at", 0)
            probe = feeds.probe(request_id, after, whose, most=most, at=at)
            self._stream(identity, request_id, probe, 1, subtree)
        else:
            until = _number(options, "until", self._here.state.number)
            indices = count()
            records = feeds.records(request_id, after, whose, subtree=subtree, until=until, indices=indices)
            empty = partial(self._no_records, request_id, after, indices)
            self._stream(identity, request_id, records, credit, subtree, empty=empty)

    def _no_records(self, request_id: int, after: int, indices: Iterator[int]) -> Frames:
        """Return a chunk of nothing, while records are read."""
        state = self._here.state
        return reply(pack(state.number), encode(headers.Records(request_id, next(indices), state.opener_of(after))))

    def _open(self, stream: Stream, subtree: str) -> None:
        if self._here.config.keyed:
            asked = self._here.gate.speaker, self._here.state.access.changed  # now: the first part comes later
            stream.parts = self._while_allowed(stream, stream.parts, subtree, *asked)
        if not self.syncs.open(stream) and stream.counted:
            self._answer(stream.identity, headers.Refused(stream.request_id, "busy", self._here.limits.syncs_max))

    def _while_allowed(
        self, stream: Stream, parts: Iterator[list[Frames]], subtree: str, user: str, asked_at: int
    ) -> Iterator[list[Frames]]:
        """The parts of an answer to a user, until other rules than those it was asked under deny what is left of it."""
        for part in parts:
            state = self._here.state
            if state.access.changed != asked_at and (why := self._here.gate.unread(state.access, user, subtree)):
                if stream.request_id:
                    yield [reply(pack(state.number), encode(headers.Refused(stream.request_id, "access", why)))]
                return
            yield part

    def _answer(self, identity: bytes, header: headers.Reply | headers.Refused) -> None:
        here = self._here
        self._audit_answer(identity, header)
        here.turn.replies.append((identity, [reply(pack(here.state.number), encode(header))]))

    def pump(self) -> None:
        """Let each stream that has room send a part; nothing is open, so that all are of one number."""
        here = self._here
        if here.state.access.changed != self._rules:
            self._rules = here.state.access.changed
            self.readers.clear()  # who may still read asks again
        self.images.expire(here.now)
        self.clients.forget(here.now)
        if self.syncs:
            pressed = self._crowded
            for identity, part in self.syncs.pump(self.blocked, self._may_begin, here.now, self.room, pressed=pressed):
                here.turn.replies.append((identity, part))
            here.turn.reads += self.feeds.pages.due()
        self._fresh.clear()
        self.readers.pump(self.blocked, lacks=self._link.filler.waits)

    def clear(self) -> None:
        """Drop all that is under way or kept: the server no longer serves."""
        self.syncs.clear()
        self.images.clear()
        self.feeds.pages.clear()
        self.readers.clear()
        self.clients.clear()

    @property
    def ready(self) -> bool:
        """Whether a stream could send now."""
        if self.readers.ready(self.blocked):
            return True
        return bool(self.syncs) and self.room > 0 and self.syncs.ready(self.blocked)

    def serves(self, identity: bytes) -> bool:
        """Whether something for this reader is under way, though nothing waits for it now."""
        return self.syncs.serves(identity) or self.readers.serves(identity)

    def gone(self, identity: bytes) -> None:
        """A reader has left."""
        self.syncs.close(identity)
        self.readers.gone(identity)
        self.blocked.discard(identity)

    # -- admin

    def _administer(self, identity: bytes, command: str, options: Options) -> Asking:
        handler, here = self._admin.get(command), self._here
        if self._denies(
            identity, options["id"], here.gate.undone(here.state.access, command), f"admin {command!r:.40}"
        ):
            return
        if here.config.audited:
            self._audit(
                self._trail.asks(identity, options["id"], Asked(here.gate.who(), named(command, options))), "none"
            )
        try:
            if handler is None:
                known = ", ".join(sorted(self._admin))
                raise BadInput(f"admin command {command!r:.40} is not known; try {known}")
            if (command == "restore" or "end" in options) and (why := here.room.read_only):
                raise BadInput(why)
            yield from handler(identity, options) or ()
        except BadInput as error:
            self.refuse(identity, options["id"], str(error))

    def _audit_answer(self, identity: bytes, header: headers.Reply | headers.Refused) -> None:
        asked = self._trail.answered(identity, header.number if isinstance(header, headers.Refused) else header.request)
        self._audit(asked, f"refused: {header.detail!s:.200}" if isinstance(header, headers.Refused) else "done")

    def _audit(self, asked: Asked | None, verdict: str) -> None:
        if asked is not None:
            told = {**asked.who, "number": self._here.state.number, "what": asked.what, "verdict": verdict}
            self._here.turn.fact("admin", "audit", **told)

    def _status(self, identity: bytes, options: Options) -> Asking:
        yield TellStatus(identity, options["id"])

    def _copies(self, command: str, identity: bytes, options: Options) -> None:
        self._here.turn.copies.append(Copy(command, identity, options))

    def _switch(self, identity: bytes, options: Options) -> Asking:
        """Hand over, but not again and again: the other server, or this one, has just taken over."""
        here = self._here
        wait_s = self._link.handed_over_at + here.limits.switch_pace_s - here.now
        if options.get("force") is True:
            self.answer(identity, options["id"], (yield from self._link.force()))
        elif wait_s > 0:
            text = f"a hand-over was {here.limits.switch_pace_s - wait_s:.1f} s ago; ask again in {wait_s:.1f} s"
            self._answer(identity, headers.Refused(options["id"], "busy", text))
        else:
            self.answer(identity, options["id"], self._link.switch())

    def _leases(self, identity: bytes, options: Options) -> None:
        """List them, or end one."""
        here, leases = self._here, self._here.state.leases
        name, after = options.get("end"), options.get("after", b"")
        if name is not None and (type(name) is not bytes or name not in leases):
            raise BadInput("no lease of that name is open; `chp leases` lists them")
        if name is not None and not here.serving:
            raise BadInput("this server is not active; end a lease on the one that is")
        if type(after) is not bytes:
            raise BadInput("'after' is the name of a lease, 16 bytes")
        if name is None:
            self.answer(identity, options["id"], listed(leases, after, here.now))
            return
        facts = {columns.LEASE: name.hex(), **leases[name].facts(here.now)}
        here.commit()
        here.committer.close_lease(name, here.now)
        here.commit()
        here.turn.fact("lease ended", "warning", **facts, because="an operator")
        self.answer(identity, options["id"], facts)

    def _clients(self, identity: bytes, options: Options) -> None:
        self.answer(identity, options["id"], self.clients.listed(options.get("after", 0), self._here.now))

    def _access(self, identity: bytes, options: Options) -> None:
        """Tell the rules, or give others in their place."""
        if "rules" in options:
            self._changes.replace(identity, options)
        else:
            self.answer(identity, options["id"], self._changes.told())

    def _denies_copy(self, identity: bytes, request_id: int, subtree: str) -> bool:
        gate = self._here.gate
        why = gate.unread(self._here.state.access, gate.speaker, subtree)
        return self._denies(identity, request_id, why, f"read {subtree!r}")

    def _denies(self, identity: bytes, request_id: int, why: str, what: str) -> bool:
        """Whether the rules deny it: then that is said, but to who asks as in CHP/1, which has no word for it."""
        if why:
            self._here.deny(what)
            if request_id:
                self._answer(identity, headers.Refused(request_id, "access", why))
        return bool(why)

    def answer(self, identity: bytes, request_id: int, facts: dict[str, Any]) -> None:
        """What an admin command did."""
        self._answer(identity, headers.Reply(request_id, facts))

    def promise(self, identity: bytes, request_id: int, facts: dict[str, Any]) -> None:
        """The same of one that is done as a set is: it leaves as an acknowledgement does."""
        here, header = self._here, headers.Reply(request_id, facts)
        self._audit_answer(identity, header)
        told = reply(pack(here.state.number), encode(header))
        here.turn.promises.append((identity, [told]))

    def refuse(self, identity: bytes, request_id: int, text: str) -> None:
        """Why an admin command was not done."""
        self._answer(identity, headers.Refused(request_id, "bad", text))


def asks_status(frames: list[bytes]) -> bool:
    """Whether this is an operator's question for the status."""
    return len(frames) == 4 and frames[2] == STATUS


def _number(options: Options, name: str, default: int, least: int = 0) -> int:
    value = options.get(name, default)
    if type(value) is not int or value < least:
        raise BadFrame(f"the {name!r} of ICANHAZ? is a number, {least} or above")
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
