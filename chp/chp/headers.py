"""The headers of CHP/2 bodies by name: one NamedTuple a kind (SPEC.md, section 13).

    [1, prev, first, last, wall_ms, origins, more]   --header_of-->   Batch(prev, first, last, wall_ms, origins, more)
                                                     <--fields_of--

A header is read once, when it arrives. After `header_of` each field is there and has its type, and no number is
negative; no other code reads a field by its place. Fields beyond those known here are ignored, as SPEC.md asks of every
reader. To add one, append it to its class with a default: a body without it is still read, and None at the end is not
sent.

`describe(what)` is the one line that logs, transcripts and documents show; `what` says the items in words.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import product
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from .errors import BadFrame
from .numbers import SEQUENCE_MASK, describe

GREETING, BATCH, HEARTBEAT, SYNC, RECORDS, KTHXBAI, ACK, REFUSED, REPLY, EPOCH, STATE, MESSAGES, ACCESS = range(13)
MOVE, COMMIT = 13, 14
KIND_NAMES = (
    "GREETING", "BATCH", "HEARTBEAT", "SYNC", "RECORDS", "KTHXBAI", "ACK", "REFUSED", "REPLY", "EPOCH", "STATE",
    "MESSAGES", "ACCESS", "MOVE", "COMMIT",
)  # fmt: skip
APPLIED, JOURNALED, REPLICATED = range(3)
DURABILITY_NAMES = ("applied", "journaled", "replicated")


class State(IntEnum):
    """The state of a server; the numbers are those of the classic programs' peer messages."""

    PRIMARY = 1
    BACKUP = 2
    ACTIVE = 3
    PASSIVE = 4


class Greeting(NamedTuple):
    """The answer of a server to a subscription: facts about the server; `server` is a new id at each start.

    A replica adds the same map `replica` as to a `Heartbeat`. `store` is the id of the store that the server holds, if
    it has one: two servers with different stores are not of one pair.
    """

    version: int
    state: int
    number: int
    heartbeat_ms: int
    server: bytes
    name: str
    replica: dict[str, Any] | None = None
    store: bytes | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `GREETING ACTIVE 1.7`."""
        return _line("GREETING", what, state_name(self.state), describe(self.number))


class Batch(NamedTuple):
    """A record, or a part of one: the numbers first..last follow `prev`; `origins` are [session, batch number].

    `whose` maps segments to batches: [place in `origins` from 1, batch number, how many]. It is None for one batch.
    """

    prev: int
    first: int
    last: int
    wall_ms: int
    origins: list[Any]
    more: bool
    whose: list[Any] | None = None

    @property
    def span(self) -> str:
        """The numbers for people: `#1.7`, or `#1.7..9`."""
        upto = "" if self.first == self.last else f"..{self.last & SEQUENCE_MASK}"
        return f"#{describe(self.first)}{upto}"

    def after(self, prev: int, origins: list[Any]) -> Batch:
        """Return the header for a channel, with another previous number and fewer origins, and without `whose`."""
        return Batch(prev, self.first, self.last, self.wall_ms, origins, self.more)

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `BATCH #1.7..9 (after 1.6)`."""
        return _line("BATCH", self.span, what, f"(after {describe(self.prev)})")


class Heartbeat(NamedTuple):
    """A sign of life of the active; the number of `keys` and `revsum` are the channel's fingerprint at `channel_last`.

    `digest` covers what the channel carried after the number `since`. Both are 0 from a server that sends no digest.
    A replica adds a map: the `hops` to the pair, the `age` in ms of the active's last word, its `readers`, and the
    share of a core that it uses in thousandths (`cpu`).
    """

    state: int
    number: int
    channel_last: int
    keys: int
    revsum: int
    heartbeat_ms: int
    wall_ms: int
    since: int = 0
    digest: int = 0
    replica: dict[str, Any] | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `HEARTBEAT 1.9 channel 1.7`."""
        return _line("HEARTBEAT", what, describe(self.number), "channel", describe(self.channel_last))


class Sync(NamedTuple):
    """A chunk of a snapshot; in a journal `wall_ms` is the time from which its ttls count."""

    request: int
    chunk: int
    wall_ms: int | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs: `SYNC` and its segments."""
        return _line("SYNC", what)


class Records(NamedTuple):
    """A chunk of records: its items are whole BATCH bodies; the server `opener` opened the last item's epoch."""

    request: int
    chunk: int
    opener: bytes | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs: `RECORDS` and the records."""
        return _line("RECORDS", what)


class Kthxbai(NamedTuple):
    """The end of a snapshot or of a resume: it is complete up to `number`, with the fingerprint at that number.

    `proof` has the store, and the server that opened the number's epoch. A client sends it with `from` when it resumes.
    """

    request: int
    number: int
    keys: int
    revsum: int
    session_no: int | None
    resumed: bool
    since: int = 0
    digest: int = 0
    proof: list[Any] | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `KTHXBAI 1.7 resumed`."""
        return _line("KTHXBAI", what, describe(self.number), "resumed" if self.resumed else "")


class Ack(NamedTuple):
    """An acknowledgement of batches of a session: `runs` are [first batch, last batch, revision].

    `items` asks the client for batches of at most this many keys, because other clients wait meanwhile. `copies` is the
    number of servers that have the batches on disk; only a pair with `--copies` tells it.
    """

    runs: list[Any]
    durability: int
    items: int | None = None
    copies: int | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `ACK 1..3 5 replicated`."""
        runs = (f"{a}..{b}" if a != b else str(a) for a, b, *_ in self.runs)
        names = DURABILITY_NAMES
        worth = names[self.durability] if self.durability < len(names) else str(self.durability)
        items = f"at most {self.items} keys" if self.items is not None else ""
        return _line("ACK", what, *runs, worth, items, f"{self.copies} copies" if self.copies is not None else "")


class Refused(NamedTuple):
    """A refusal of a batch or a request; `number` is the batch's number, or the request's id."""

    number: int
    code: str
    detail: Any

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `REFUSED 5 revision {'/b': '1.4'}`."""
        detail = self.detail
        if isinstance(detail, dict):
            detail = {key: describe(n) if type(n) is int else n for key, n in detail.items()}
        elif self.code == "passive" and type(detail) is int:
            detail = state_name(detail)
        number = str(self.number) if self.number < 1 << 30 else ""
        return _line("REFUSED", what, number, self.code, str(detail))


class Reply(NamedTuple):
    """The answer to a question: a map whose names depend on the question."""

    request: int
    facts: dict[str, Any]

    def describe(self, what: str = "") -> str:
        """Return a line for logs: `REPLY` and the map."""
        return _line("REPLY", what, str(self.facts))


class Epoch(NamedTuple):
    """The first record of an epoch, by the server that opened it. It is in journals and between servers only.

    `because` tells people the reason. `store` is the id of the store: the server that opened its first epoch.
    """

    prev: int
    first: int
    last: int
    wall_ms: int
    server: bytes
    name: str
    because: str
    store: bytes

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `EPOCH #2.8`."""
        return _line("EPOCH", f"#{describe(self.first)}", what)


class StateHead(NamedTuple):
    """The last chunk of a state: all but the map, with totals of the chunks before it.

    A snapshot in an older journal has fewer totals, and no ages.
    """

    number: int
    keys: int | None = None
    revsum: int | None = None
    staged: int | None = None
    staged_bytes: int | None = None
    scheduled: int | None = None
    scheduled_bytes: int | None = None
    # The seconds since each application committed something, in the order of their versions.
    ages: list[int] | None = None

    @property
    def told(self) -> tuple[int, ...]:
        """The totals of the chunks that this header has."""
        return tuple(n for n in self[1:7] if n is not None)

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `STATE 1.7`."""
        return _line("STATE", what, describe(self.number))


class Access(NamedTuple):
    """A record of rules that `user` gave, owners of new sessions, or the secret; in journals and between servers only.

    An owner is [the first part of a public session, user]. Gateways make the names of group members with the secret. If
    `rules` is None or `secret` is empty, the former value stays.
    """

    prev: int
    first: int
    last: int
    wall_ms: int
    user: str
    owners: list[Any]
    rules: dict[str, Any] | None = None
    secret: bytes = b""

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `ACCESS #2.8`."""
        return _line("ACCESS", f"#{describe(self.first)}", what)


class Messages(NamedTuple):
    """Messages of a topic, from an offset on; without items, the topic has no more now.

    The items are [first offset, how many, number, wall_ms, [messages, ...]]; `first` is the topic's oldest offset, and
    `topic_next` the offset of the next message. For a member of a group, `spans` are [slots, from], and `proof`
    (number, store, opener) proves the last record. An item then has a sixth field if it lacks some of those messages: a
    byte for each message, 1 if it is there and 0 if not. If the group counts deliveries, `counted` has how often the
    message failed before, and how often it may be delivered. A message that failed comes alone.
    """

    request: int
    upto: int
    first: int
    topic_next: int
    spans: list[Any] | None = None
    proof: list[Any] | None = None
    counted: list[Any] | None = None

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `MESSAGES up to 17 of 42`."""
        return _line("MESSAGES", what, f"up to {self.upto} of {self.topic_next}")


class Move(NamedTuple):
    """A replica asks this client to follow another server, because it has too many readers.

    The replica sends this to `asked` of its `readers` at the same time, so each of them can tell how many should go.
    """

    readers: int
    asked: int

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `MOVE 300 of 600`."""
        return _line("MOVE", what, f"{self.asked} of {self.readers}")


class Commit(NamedTuple):
    """A commit that names the staged batches that it makes visible; in journals and between servers only.

    `parts` are [part, CRC-32 of its batches, numbers]. Each number is the first one of the record that has a batch.
    """

    prev: int
    first: int
    last: int
    wall_ms: int
    origins: list[Any]
    transaction: bytes
    application: str
    version: int
    parts: list[Any]

    def describe(self, what: str = "") -> str:
        """Return a line for logs, such as `COMMIT #1.7..9 of 2 parts (after 1.6)`."""
        upto = "" if self.first == self.last else f"..{self.last & SEQUENCE_MASK}"
        of = f"of {len(self.parts)} parts"
        return _line("COMMIT", f"#{describe(self.first)}{upto}", of, what, f"(after {describe(self.prev)})")


class ReplicaFacts(NamedTuple):
    """The facts that a replica adds to each GREETING and HEARTBEAT: its place, its age and its load.

    `hops` are the replicas from here to the pair, this one included. The last word of the active reached this replica
    `age_ms` ago. `cpu` is the share of a core that the replica used in the last second, in per mille.
    """

    hops: int
    age_ms: int
    readers: int
    cpu: int

    def sent(self) -> dict[str, Any]:
        """Return the map that a GREETING or a HEARTBEAT carries."""
        return {"hops": self.hops, "age": self.age_ms, "readers": self.readers, "cpu": self.cpu}


def replica_facts(given: dict[str, Any]) -> ReplicaFacts:
    """Read the map that a replica sent. Raise `BadFrame` if a field is missing or is no number."""
    named = map(given.get, ("hops", "age", "readers", "cpu"))
    fields = [field for field in named if type(field) is int and field >= 0]
    if len(fields) < len(ReplicaFacts._fields):
        raise BadFrame("a replica tells hops, age, readers and cpu, which are four numbers")
    return ReplicaFacts(*fields)


# The kinds stand in the order of their numbers.
Header = (
    Greeting
    | Batch
    | Heartbeat
    | Sync
    | Records
    | Kthxbai
    | Ack
    | Refused
    | Reply
    | Epoch
    | StateHead
    | Messages
    | Access
    | Move
    | Commit
)
H = TypeVar("H", bound=tuple[Any, ...])


def _line(*parts: str) -> str:
    return " ".join(filter(None, parts))


def state_name(state: int) -> str:
    """Return `ACTIVE` and so on; the number itself for a state that this version does not know."""
    return State(state).name if state in State._value2member_map_ else str(state)


class _Form(NamedTuple):
    """The form of a kind's fields, taken from its class.

    One look-up in `shapes` shows that each field has an allowed type. The minimum of the first `lead` fields shows that
    no number is negative, as most headers begin with their numbers.
    """

    cls: Any
    shapes: frozenset[tuple[type, ...]]
    lead: int
    most: int
    fewest: int
    # The allowed types of each field; an empty tuple allows any type.
    allowed: list[tuple[type, ...]]

    def check(self, fields: list[Any]) -> None:
        """Raise `BadFrame` that names what is wrong, if anything is."""
        name = KIND_NAMES[_KINDS[self.cls]]
        if len(fields) < self.fewest:
            raise BadFrame(f"a {name} header has {self.fewest + 1} fields, not {len(fields) + 1}")
        for field, thing, allowed in zip(self.cls._fields, fields, self.allowed, strict=False):
            if allowed and (type(thing) not in allowed or (type(thing) is int and thing < 0)):
                raise BadFrame(f"a {name} header has {thing!r:.40} as its {field}; see SPEC.md")


def _form(cls: Any) -> _Form:
    hints = get_type_hints(cls)
    allowed = [_allowed(hints[name]) for name in cls._fields]
    lead = next((i for i, types in enumerate(allowed) if types != (int,)), len(allowed))
    fewest = len(allowed) - len(cls._field_defaults)
    shapes = (shape for n in range(fewest, len(allowed) + 1) for shape in product(*allowed[:n]))
    seen_at_once = frozenset(shape for shape in shapes if lead and int not in shape[lead:])
    return _Form(cls, seen_at_once, lead, len(allowed), fewest, allowed)


def _allowed(hint: Any) -> tuple[type, ...]:
    if hint is Any:
        return ()
    parts = get_args(hint) if get_origin(hint) not in (None, list, dict) else (hint,)
    return tuple(get_origin(part) or part for part in parts)


_FORMS = tuple(_form(cls) for cls in get_args(Header))
_KINDS: dict[type, int] = {cls: kind for kind, cls in enumerate(get_args(Header))}


def header_of(thing: object) -> Header:
    """Return a header with named fields from what msgpack decoded; raise `BadFrame` if that is no header."""
    if type(thing) is not list or not thing or type(thing[0]) is not int:
        raise BadFrame("a header is an array whose first element is the kind, a number")
    kind = thing[0]
    if kind == BATCH and len(thing) == 7 and (batch := _usual_batch(thing)) is not None:
        return batch
    # This is a fast path, as a client reads an ACK for each of its batches.
    if kind == ACK and len(thing) == 3 and type(thing[1]) is list and type(thing[2]) is int and thing[2] >= 0:
        return Ack(thing[1], thing[2])
    if not 0 <= kind < len(_FORMS):
        raise BadFrame(f"kind {kind} is not one this version knows (0 to {len(_FORMS) - 1})")
    form = _FORMS[kind]
    fields = thing[1 : form.most + 1]
    if tuple(map(type, fields)) not in form.shapes or min(fields[: form.lead]) < 0:
        form.check(fields)
    header: Header = form.cls(*fields)
    return header


def _usual_batch(thing: list[Any]) -> Batch | None:
    """Return a BATCH of the usual form, in half the time; None for any other. Clients read a BATCH for each record."""
    _, prev, first, last, wall_ms, origins, more = thing
    numbers = type(prev) is type(first) is type(last) is type(wall_ms) is int
    if numbers and prev >= 0 <= first <= last and wall_ms >= 0 and type(origins) is list and type(more) is bool:
        return Batch(prev, first, last, wall_ms, origins, more)
    return None


def expect(cls: type[H], thing: object) -> H:
    """Return a header of the kind `cls`; raise `BadFrame` for any other kind."""
    header = header_of(thing)
    if not isinstance(header, cls):
        raise BadFrame(f"a {name_of(header)} came where a {KIND_NAMES[_KINDS[cls]]} was due")
    return header


def request_of(header: Header) -> int | None:
    """Return the id of the request that a header answers; None if the header is no answer."""
    if isinstance(header, Refused):
        return header.number
    return header.request if isinstance(header, Sync | Records | Kthxbai | Reply | Messages) else None


def fields_of(header: Header) -> list[Any]:
    """Return a header as it is sent: its kind, and its fields without None at the end."""
    fields: list[Any] = [_KINDS[type(header)], *header]
    if fields[-1] is None:
        fewest = _FORMS[fields[0]].fewest
        optional = fields[fewest + 1 :]
        # Usually all optional fields are None. Then one deletion removes them, in the time of one step of the loop
        # below.
        if optional.count(None) == len(optional):
            del fields[fewest + 1 :]
        while fields[-1] is None and len(fields) > fewest + 1:
            fields.pop()
    return fields


def name_of(header: Header) -> str:
    """Return the kind of a header, by its name in SPEC.md."""
    return KIND_NAMES[_KINDS[type(header)]]
