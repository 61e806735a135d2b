"""The rules of histories of topics and groups: what programs noted, and what the servers have at the end.

A history has four kinds of notes, with times by a clock that all programs of a machine share:

    Write      a call that publishes, acknowledges, sets keys, or does several of these in one record, and its outcome
    Given      messages that a member of a group got
    Read       messages that a reader got
    Message    a message at the end, in the log of its topic

A write that both servers acknowledged was done. A refused write was not done. The outcome of every other write is
unknown, even if a lone server acknowledged it. Such a write was done as a whole, or not at all. `RULES` names the
rules. Those of `AFTER_SPLIT` hold even if both servers were active for a while. `wrong` applies the rules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise

NEVER = float("inf")
REPLICATED, REFUSED, UNKNOWN = "replicated", "refused", "unknown"
# The topics: the one that the groups read, and those of receipts for handled messages, of the versions of `once`, and
# of conditional steps.
MAIN, DONE, VERSIONS, STEPS = "main", "done", "versions", "steps"
# The group whose members commit receipts, a group that acknowledges after delivery, and a group that acknowledges
# before delivery.
EFFECTS, LATER, BEFORE = "effects", "later", "before"
GROUPS = (EFFECTS, LATER, BEFORE)
# The applications whose versions are counted strictly have names that begin with this.
STRICT = "strict"
# The number of wrong places that a report names for each rule.
SHOWN = 3

# (key, value)
Pair = tuple[str | None, str]
# (offset, key, value)
Placed = tuple[int, str | None, str]


@dataclass(frozen=True, slots=True)
class Message:
    """A message in the log of a topic at the end."""

    offset: int
    key: str | None
    value: str
    revision: int


@dataclass(slots=True)
class Write:
    """A call that is one record: all of it takes effect, or nothing. Values and keys are those of this call alone."""

    thread: str
    name: str
    called: float
    # topic -> messages
    publish: dict[str, list[Pair]] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    # The group, the member and the offsets that the call acknowledges.
    ack: tuple[str, str, list[int]] | None = None
    # The application and the version of `once`.
    once: tuple[str, int] | None = None
    # The value of the step before, if the call is a conditional step.
    after: str | None = None
    answered: float = NEVER
    outcome: str = UNKNOWN
    # The code of a refusal, or the text of another error.
    code: str = ""

    @property
    def sure(self) -> bool:
        """True if the call was done, and no failover can undo it."""
        return self.outcome == REPLICATED

    @property
    def may_be_old(self) -> bool:
        """True if the call may be acknowledged without being done, because its version was done before."""
        return self.once is not None


@dataclass(frozen=True, slots=True)
class Given:
    """Messages that a member got. It began to join at `joined`, or later."""

    group: str
    member: str
    joined: float
    time: float
    messages: list[Placed]


@dataclass(frozen=True, slots=True)
class Read:
    """Messages of a topic that a reader got."""

    thread: str
    topic: str
    messages: list[Placed]
    missed: int = 0


@dataclass(slots=True)
class History:
    """The notes of all programs, and what the servers have at the end."""

    writes: list[Write] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    # topic -> its messages, in order
    logs: dict[str, list[Message]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    # True if both servers may have been active at once.
    split: bool = False
    # topic -> value -> its messages
    found: dict[str, dict[str, list[Message]]] = field(default_factory=dict)

    def look(self) -> None:
        """Fill the index of messages by value."""
        self.found = {topic: defaultdict(list) for topic in self.logs}
        for topic, log in self.logs.items():
            for message in log:
                self.found[topic][message.value].append(message)

    def of(self, write: Write) -> list[list[Message]]:
        """Return, for each message that a call published, the messages in the log with its value."""
        return [self.found.get(topic, {}).get(value, []) for topic, some in write.publish.items() for _, value in some]


Rule = Callable[[History], Iterator[str]]


def dense(history: History) -> Iterator[str]:
    """The offsets of a topic count from 0 without a gap."""
    for topic, log in history.logs.items():
        for place, message in enumerate(log):
            if message.offset != place:
                yield f"{topic} has offset {message.offset} at place {place}"
                break


def known(history: History) -> Iterator[str]:
    """Each message and key was written by one of the calls."""
    published = {(topic, *pair) for w in history.writes for topic, some in w.publish.items() for pair in some}
    for topic, log in history.logs.items():
        for message in log:
            if (topic, message.key, message.value) not in published:
                yield f"{topic} {message.offset} ({message.key}, {message.value}) was published by nobody"
    written = {(key, value) for w in history.writes for key, value in w.sets.items()}
    for key, value in history.keys.items():
        if (key, value) not in written:
            yield f"{key} is {value}, which nobody set"


def once_or_not(history: History) -> Iterator[str]:
    """All effects of a call that was done are there once. Those of any other call are all there once, or none is."""
    for write in history.writes:
        counts = [len(places) for places in history.of(write)]
        counts += [int(history.keys.get(key) == value) for key, value in write.sets.items()]
        if not counts:
            continue
        if max(counts) > 1:
            yield f"{write.name} is there {max(counts)} times"
        elif min(counts) != max(counts):
            yield f"{write.name} ({write.outcome} {write.code}) is there in part: {sum(counts)} of {len(counts)}"
        elif write.sure and not max(counts) and not write.may_be_old:
            yield f"{write.name} was acknowledged by both servers, and is not there"


def refused_is_absent(history: History) -> Iterator[str]:
    """No effect of a refused call is there. After a split the rule does not hold: the other server may have done it."""
    for write in history.writes:
        there = any(history.of(write)) or any(history.keys.get(key) == value for key, value in write.sets.items())
        if write.outcome == REFUSED and there:
            took = write.answered - write.called
            yield f"{write.name} was refused ({write.thread}, {write.code}, after {took:.2f} s), and is there"


def one_record(history: History) -> Iterator[str]:
    """All messages of a call have the revision of one record."""
    for write in history.writes:
        revisions = {message.revision for places in history.of(write) for message in places}
        if len(revisions) > 1:
            yield f"{write.name} is in {len(revisions)} records"


def order_of_calls(history: History) -> Iterator[str]:
    """The messages of one thread are in each topic in the order of its calls."""
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for write in sorted(history.writes, key=lambda write: write.called):
        for topic, some in write.publish.items():
            for _, value in some:
                for message in history.found.get(topic, {}).get(value, ()):
                    before = last.get((write.thread, topic))
                    if before is not None and before[0] >= message.offset:
                        yield f"{topic} {message.offset} is of {write.name}, called after {before[1]} at {before[0]}"
                    last[write.thread, topic] = message.offset, write.name


def seen_is_there(history: History) -> Iterator[str]:
    """What a reader or a member got is in the log at that offset."""
    given = [(f"{g.group} {g.member}", MAIN, g.messages) for g in history.given]
    for name, topic, messages in chain(given, ((r.thread, r.topic, r.messages) for r in history.reads)):
        log = history.logs.get(topic, [])
        for offset, key, value in messages:
            there = log[offset] if offset < len(log) else None
            if there is None or (there.key, there.value) != (key, value):
                yield f"{name} got {topic} {offset} ({key}, {value}), and the log has {there}"


def read_in_order(history: History) -> Iterator[str]:
    """A reader from the beginning gets each offset once and in order."""
    following: Counter[tuple[str, str]] = Counter()
    for read in history.reads:
        if read.missed:
            yield f"{read.thread} is told of {read.missed} missed messages of {read.topic}"
        for offset, _, _ in read.messages:
            if offset != following[read.thread, read.topic]:
                yield f"{read.thread} got {read.topic} {offset}, not {following[read.thread, read.topic]}"
            following[read.thread, read.topic] = offset + 1


def receipt(offset: int, value: str, call: str) -> str:
    """Return the text of the receipt of a handled message, or of a dead letter."""
    return f"{offset} {value} {call}"


def _effects(history: History) -> list[tuple[int, int, str]]:
    """Return the revision, the offset and the value of each handled message, in the order of the effects."""
    found = []
    for topic in (DONE, f"{MAIN}.{EFFECTS}.dead"):
        for message in history.logs.get(topic, ()):
            offset, value, _ = message.value.split(" ")
            found.append((message.revision, int(offset), value))
    return sorted(found)


def effects_once(history: History) -> Iterator[str]:
    """Each message has one effect, with its own value."""
    count = Counter((offset, value) for _, offset, value in _effects(history))
    log = {(message.offset, message.value) for message in history.logs.get(MAIN, ())}
    for offset, value in sorted(log):
        if count[offset, value] != 1:
            yield f"message {offset} ({value}) has {count[offset, value]} effects"
    for offset, value in sorted(count.keys() - log):
        yield f"there is an effect of a message {offset} ({value}), which is not in the log"


def effects_in_order(history: History) -> Iterator[str]:
    """The effects of messages with one key are in the order of their offsets."""
    keys = {message.offset: message.key for message in history.logs.get(MAIN, ())}
    last: dict[str, int] = {}
    for _, offset, _ in _effects(history):
        key = keys.get(offset)
        if key is not None:
            if last.get(key, -1) >= offset:
                yield f"message {offset} of key {key} was handled after message {last[key]}"
            last[key] = offset


def _acks(history: History) -> dict[tuple[str, int], list[Write]]:
    """Return the calls that surely acknowledged each offset of each group."""
    found: dict[tuple[str, int], list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.ack is not None and write.sure:
            for offset in write.ack[2]:
                found[write.ack[0], offset].append(write)
    return found


def acknowledged_once(history: History) -> Iterator[str]:
    """A message is acknowledged once in each group."""
    for (group, offset), writes in _acks(history).items():
        if len(writes) > 1:
            yield f"message {offset} is acknowledged in {group} by " + " and by ".join(w.name for w in writes)


def _given_again(history: History) -> Iterator[tuple[Given, int, Write]]:
    """Yield each message that a member got after its acknowledgement was answered."""
    acks = _acks(history)
    for given in history.given:
        for offset, _, _ in given.messages:
            for write in acks.get((given.group, offset), ()):
                if write.answered < given.time:
                    yield given, offset, write


def not_again(history: History) -> Iterator[str]:
    """A member gets no message again that it has acknowledged."""
    for given, offset, write in _given_again(history):
        assert write.ack is not None
        if write.ack[1] == given.member:
            yield f"{given.member} of {given.group} got message {offset} again, which {write.name} acknowledged"


def not_of_others(history: History) -> Iterator[str]:
    """A member that joins gets no message that was acknowledged before."""
    for given, offset, write in _given_again(history):
        if write.answered < given.joined:
            yield f"{given.member} joined {given.group} and got message {offset}, acknowledged before by {write.name}"


def fenced(history: History) -> Iterator[str]:
    """A member that got a message after another one acknowledged it is no member any more.

    Such a message was on its way while the member was stopped. Nothing that it acknowledges from then on is done.
    """
    lost: dict[str, tuple[float, str]] = {}
    for given, offset, write in _given_again(history):
        assert write.ack is not None
        if write.ack[1] != given.member and write.answered < lost.get(given.member, (NEVER, ""))[0]:
            lost[given.member] = write.answered, f"message {offset}, acknowledged by {write.name}"
    for write in history.writes:
        if write.ack is not None and write.sure and write.called > lost.get(write.ack[1], (NEVER, ""))[0]:
            yield f"{write.name} is done for {write.ack[1]}, which got {lost[write.ack[1]][1]}"


def at_most_once(history: History) -> Iterator[str]:
    """A group that acknowledges before delivery gets each message at most once."""
    count = Counter(o for given in history.given if given.group == BEFORE for o, _, _ in given.messages)
    for offset, n in count.items():
        if n > 1:
            yield f"message {offset} was given {n} times to {BEFORE}"


def at_least_once(history: History) -> Iterator[str]:
    """A group that acknowledges after delivery gets each message."""
    for group in (EFFECTS, LATER):
        got = {value for given in history.given if given.group == group for _, _, value in given.messages}
        for message in history.logs.get(MAIN, ()):
            if message.value not in got:
                yield f"message {message.offset} ({message.value}) was given to nobody of {group}"


def _versions(history: History) -> dict[str, list[int]]:
    """Return the versions of each application, in the order in which they were done."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in history.logs.get(VERSIONS, ()):
        application, version, _ = message.value.split(" ", 2)
        found[application].append(int(version))
    return found


def versions_once(history: History) -> Iterator[str]:
    """An application has done each acknowledged version once. Here no program leaves a version out."""
    versions = {application: set(done) for application, done in _versions(history).items()}
    for application, done in _versions(history).items():
        for version, n in Counter(done).items():
            if n > 1:
                yield f"{application} has done version {version} {n} times"
    for write in history.writes:
        if write.once is not None and write.sure and write.once[1] not in versions.get(write.once[0], ()):
            yield f"version {write.once[1]} of {write.once[0]} was acknowledged to {write.name}, and is not there"


def versions_in_order(history: History) -> Iterator[str]:
    """The versions of an application rise, by 1 from 1 on if they are counted strictly."""
    for application, done in _versions(history).items():
        strict = application.startswith(STRICT)
        if strict and done != list(range(1, len(done) + 1)):
            yield f"{application} has not counted from 1: {_where(done)}"
        elif any(a >= b for a, b in pairwise(done)):
            yield f"{application} has gone back: {_where(done)}"


def _where(done: list[int]) -> str:
    at = next((i for i, (a, b) in enumerate(pairwise(done)) if b != a + 1), 0)
    return f"{done[max(0, at - 2) : at + 4]} at place {at}"


def steps_follow(history: History) -> Iterator[str]:
    """Each conditional step follows on the one before it in the log."""
    by_value = {value: write for write in history.writes for _, value in write.publish.get(STEPS, ())}
    before = ""
    for message in history.logs.get(STEPS, ()):
        write = by_value.get(message.value)
        if write is not None and write.after != before:
            yield f"{message.value} follows on {before or 'nothing'}, and had seen {write.after or 'nothing'}"
        before = message.value


RULES: tuple[Rule, ...] = (
    dense, known, once_or_not, refused_is_absent, one_record, order_of_calls, seen_is_there, read_in_order,
    effects_once, effects_in_order, acknowledged_once, not_again, not_of_others, fenced, at_most_once, at_least_once,
    versions_once, versions_in_order, steps_follow,
)  # fmt: skip
AFTER_SPLIT = (dense, known, once_or_not, effects_once, acknowledged_once, at_least_once, versions_once)


def wrong(history: History) -> list[str]:
    """Return the first places where a history breaks a rule, or an empty list."""
    history.look()
    found: list[str] = []
    for rule in AFTER_SPLIT if history.split else RULES:
        said = list(rule(history))
        found += [f"{rule.__name__}: {text}" for text in said[:SHOWN]]
        if len(said) > SHOWN:
            found.append(f"{rule.__name__}: {len(said) - SHOWN} more")
    return found
