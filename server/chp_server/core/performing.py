"""A turn from end to end, without I/O of its own: recovery, the order of inputs, and the order of effects.

    recover(core, journal, now, wall)     once, before the first turn: take over the state that the journal has
    take_inputs(core, inboxes)            let the core handle what has arrived, the peer first
    short_turn(core, inboxes, ...)        take what needs no whole turn, if messages came at `short_port` alone
    steps(core, turn, ports)              perform the turn's effects, in the order that turn.py promises

The reactor has real sockets and a real journal behind `Inboxes` and `Ports`. The simulator has simulated ones. It takes
`steps` one by one, so that a process can die, stop or lose time between any two steps. Both use the order in `ORDER`.
So what the simulator proves about the order holds for the server too.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from enum import StrEnum
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, Protocol

from chp.batch import encode
from chp.errors import ChpError
from chp.headers import Refused

from .core import ServerCore
from .peer.handshake import FOREIGN_STORE
from .questions.requests import asks_status
from .replica import replica_mark
from .snapshots import COPY, recover_snapshot
from .state.journal import Journal, JournalFull, LoadedJournal
from .updates.authorizer import NOWHERE, Origin
from .updates.channels import greeting
from .updates.turn import Copy, Fact, Frames, JournalOp, JournalRead, ReadMessages, ReadOldest, ReadSpans, Save, Turn

NUMBER_MAX = (1 << 63) - 1


class ServerPort(StrEnum):
    """The places where messages come in: the peer's (P+3), and P+1, P+2 and P."""

    PEER = "peer"
    UPDATES = "updates"
    COLLECTOR = "collector"
    SNAPSHOT = "snapshot"


# To read an attribute of an enum class takes several times as long as to read a name of the module.
PEER, UPDATES, COLLECTOR, SNAPSHOT = ServerPort
NO_EFFECTS = Turn()


class Inboxes(Protocol):
    """The messages that have arrived."""

    @property
    def ready(self) -> Container[ServerPort | None]:
        """The ports at which messages may have arrived."""

    def take(self, port: ServerPort, handle: Callable[[Frames], None]) -> None:
        """Call `handle` with each message that has arrived at a port, in order, up to what one turn takes.

        On P and P+3 the first frame of each message is the identity of its connection.
        """


class Step(StrEnum):
    """The steps of a turn, which are done one after the other."""

    SAVES = "saves"
    TO_PEER = "to_peer"
    DELIVERIES = "deliveries"
    JOURNAL = "journal"
    SYNC = "sync"
    # The journal had no room. The caller waits; when it asks for the next step, the journal is written again.
    NO_ROOM = "no_room"
    OPENED = "opened"
    PUBLISH = "publish"
    ACKS = "acks"
    PROMISES = "promises"
    CONFIRM = "confirm"
    REPLIES = "replies"
    FACTS = "facts"
    READS = "reads"
    COPIES = "copies"


class Ports(Protocol):
    """The actions of a turn. Nothing here decides. An action that fails beyond repair raises `JournalError`."""

    def now(self) -> float:
        """Return the time now, in the middle of a turn."""

    def cut_denied(self) -> None:
        """Cut off listeners on P+1 whose topics new rules deny to them; do nothing if the rules have not changed."""

    def save(self, save: Save) -> None:
        """Write a file of its own, durably."""

    def to_peer(self, messages: list[Frames]) -> None:
        """Send messages to the peer, as far as the peer is connected and its socket has room."""

    def write(self, ops: Sequence[JournalOp], *, again: bool) -> None:
        """Do the journal's operations, without the sync. `again` says that some of them may be synced already."""

    def sync(self) -> None:
        """Make what was written durable, then return. This and `write` raise `JournalFull` if there is no room."""

    def no_room(self, error: JournalFull) -> None:
        """Note why the turn waits."""

    def publish(self, messages: list[Frames]) -> None:
        """Send to the subscribers."""

    def acknowledge(self, acks: list[Frames]) -> None:
        """Send answers to sets, on the channels of their sessions."""

    def reply(self, identity: bytes, messages: list[Frames]) -> None:
        """Answer on the snapshot port."""

    def fact(self, fact: Fact) -> None:
        """Write a line of the log."""

    def read(self, read: JournalRead) -> Any:
        """Return what the journal has (`read_journal`)."""

    def copy(self, copy: Copy) -> None:
        """Begin a backup or a restore, with the next turn."""


# -- recovery


def recover(core: ServerCore, journal: Journal, now: float, wall_s: float) -> LoadedJournal:
    """Take over the state that the journal has; drop the parts of a record that was never complete.

    Raise `WrongStore`, before anything is changed, if the journal does not suit this server: a replica, or a promotion,
    needs a replica's journal; any other server needs a plain server's.
    """
    loaded, committed = journal.load(), core.committer.committed
    config, marked = core.pair.config, replica_mark.is_marked(journal)
    core.pair.journal = replica_mark.enter(
        journal, loaded.number, replica=config.replica, promote=config.promote, run=core.pair.server
    )
    core.pair.epochs.used = loaded.seen_epoch
    core.pair.high_water_mark = loaded.marked
    core.link.foreign = journal.get_meta(FOREIGN_STORE) or b""
    recover_snapshot(committed, loaded.snapshot, committed.limits, now, wall_s)
    for row in loaded.rows:
        committed.log.append(committed.follow(row.body, now, wall_s))
    # The peer may have another journal than at the time when these batches were staged.
    committed.state.staging.forget_numbers()
    if committed.drop_partial():
        journal.drop_after(committed.state.number)
    journal.trim_messages(core.link.backfill.begin(journal.message_spans(NUMBER_MAX)))
    if config.promote and marked:
        core.promote(replica_mark.REPLICA)
    # A server that starts on a backup makes it a store of its own, apart from the store that the backup was made of.
    if journal.get_meta(COPY):
        committed.state.store = core.pair.server
    return loaded


def read_journal(journal: Journal, read: JournalRead) -> Any:
    """Return what a turn wants to read from the journal.

    For a `Read` this is rows, or None if the rows do not reach back to its number. `Journal` tells the other results.
    """
    match read:
        case ReadMessages(topic, offset, number, bytes_max):
            return journal.read_messages(topic, offset, number, bytes_max)
        case ReadSpans(number):
            return journal.message_spans(number)
        case ReadOldest():
            return journal.oldest()
        case _:
            return journal.read_after(read.after, read.bytes_max)


# -- inputs


def admit(core: ServerCore, user: str, topic: bytes) -> str:
    """Return why a user may not subscribe to a topic on P+1; "" if it may. The shell calls this again for new rules."""
    return core.requests.authorizer.unheard(core.state.access, user, topic)


def refuse_subscription(core: ServerCore, user: str, topic: bytes, why: str, origin: Origin = NOWHERE) -> Frames:
    """Return the refusal for a user that may not subscribe, and note the denial."""
    authorizer = core.requests.authorizer
    authorizer.speaker, authorizer.origin = user, origin
    core.requests.deny(f"subscribe to {topic[:64]!r}")
    refused = encode(Refused(0, "access", why))
    return greeting(topic, core.state.number, refused)


def take_inputs(core: ServerCore, inboxes: Inboxes) -> None:
    """Let the core handle what has arrived.

    The peer's messages come first, so that a server that was stopped hears of its successor. While a large commit gets
    into the map, readers wait. While all keys are listed for images, sets wait.
    """
    ready = inboxes.ready
    if PEER in ready:
        inboxes.take(PEER, lambda frames: core.peer_message(frames[1:], frames[0]))
    state, committed = core.state, core.committer.committed
    if UPDATES in ready and not committed.busy:
        inboxes.take(UPDATES, core.subscription)
    if COLLECTOR in ready and not state.listing:
        inboxes.take(COLLECTOR, core.collect)
    # The sets that were just taken may have begun a large commit.
    if SNAPSHOT in ready and not committed.busy:
        inboxes.take(SNAPSHOT, core.request)


def short_port(core: ServerCore) -> ServerPort:
    """Return the port that a short turn reads.

    On a passive, a short turn only keeps the sets of clients. On the active, it only takes the confirmations of the
    passive, which release acknowledgements.
    """
    return PEER if core.active else COLLECTOR


def short_turn(core: ServerCore, inboxes: Inboxes, now: float, wall_s: float, due: float) -> Turn | None:
    """Take the messages at `short_port`, and return the effects; return None if a whole turn has to follow at once.

    The caller has checked that no other port has messages. `due` is what `next_deadline` returned after the last turn.
    """
    if now >= due or not core.begin_short_turn(now, wall_s):
        return None
    if not core.active:
        inboxes.take(COLLECTOR, core.collect)
        return NO_EFFECTS
    inboxes.take(PEER, lambda frames: core.peer_message(frames[1:], frames[0]))
    return core.end_short_turn()


def answer_operators(core: ServerCore, inboxes: Inboxes) -> Turn:
    """Answer subscriptions and questions for the status while a turn waits for room in the journal.

    Return a turn that has only these answers.
    """
    inboxes.take(UPDATES, core.subscription)
    # Other requests are dropped; their clients send them again.
    inboxes.take(SNAPSHOT, lambda frames: core.request(frames) if asks_status(frames) else None)
    effects, core.turn.effects = core.turn.effects, Turn()
    return effects


# -- effects


def steps(core: ServerCore, turn: Turn, ports: Ports) -> Iterator[Step]:
    """Perform a turn: yield each step that the turn has effects for, and do the step when the caller asks for the next.

    While the journal has no room, the turn goes no further, and the peer takes over as if this server had stopped. So
    everything that is published, acknowledged or confirmed is in the journal.

    Before the first step, listeners that new rules deny are cut off, because this turn may have records that they may
    not see.
    """
    ports.cut_denied()
    # Whether a step has effects is looked up only when the steps before it are done.
    has_effects = map(getattr, repeat(turn), map(itemgetter(1), ORDER))
    for step, _, perform in compress(ORDER, has_effects):
        yield step
        try:
            perform(core, turn, ports)
        except JournalFull as error:
            core.link.beat_timer.hush()
            core.stand_still()
            ports.no_room(error)
            yield from _when_there_is_room(turn, ports)
    pair = core.pair
    if core.link.sets.taken:
        core.link.sets.took(ports.now() - core.turn.now)
    if pair.config.has_peer:
        core.link.beat_timer.done(pair.bstate, core.committer.committed.state.proof())


def _when_there_is_room(turn: Turn, ports: Ports) -> Iterator[Step]:
    while True:
        yield Step.NO_ROOM
        try:
            ports.write(turn.journal, again=True)
            ports.sync()
        except JournalFull as error:
            ports.no_room(error)
        else:
            return


def _save(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    for save in turn.saves:
        ports.save(save)


def _to_peer(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    ports.to_peer(turn.to_peer)


def _deliver(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    for identity, messages in turn.deliveries:
        ports.reply(identity, messages)


def _write(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    ports.write(turn.journal, again=False)


def _sync(core: ServerCore, _turn: Turn, ports: Ports) -> None:
    began = ports.now() if core.link.sets.taken else 0.0
    ports.sync()
    if began:
        core.link.sets.synced(ports.now() - began)


def _open(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    ports.to_peer(turn.opened)


def _publish(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    ports.publish(turn.publish)


def _acknowledge(core: ServerCore, turn: Turn, ports: Ports) -> None:
    ports.acknowledge(core.release.may_leave(turn.acks, core.turn.now, ports.now()))


def _promise(core: ServerCore, turn: Turn, ports: Ports) -> None:
    for identity, messages in core.release.may_be_promised(turn.promises, core.turn.now, ports.now()):
        ports.reply(identity, messages)


def _confirm(core: ServerCore, turn: Turn, ports: Ports) -> None:
    # While a replacement is being written, the journal still has the earlier state, so nothing may be confirmed.
    if core.pair.replacing is None:
        ports.to_peer(turn.confirm)
    else:
        core.pair.confirmed = 0


def _reply(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    for identity, messages in turn.replies:
        ports.reply(identity, messages)


def _tell(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    for fact in turn.facts:
        ports.fact(fact)


def _read(core: ServerCore, turn: Turn, ports: Ports) -> None:
    for read in turn.reads:
        try:
            found = ports.read(read)
        # The journal is damaged there. The part that asked for the read decides what to do.
        except ChpError as error:
            found = error
        core.page(read, found)


def _copy(_core: ServerCore, turn: Turn, ports: Ports) -> None:
    for copy in turn.copies:
        ports.copy(copy)


# The step, the field of the turn that it performs, and the function that performs it.
ORDER: tuple[tuple[Step, str, Callable[[ServerCore, Turn, Ports], None]], ...] = (
    (Step.SAVES, "saves", _save),
    (Step.TO_PEER, "to_peer", _to_peer),
    (Step.DELIVERIES, "deliveries", _deliver),
    (Step.JOURNAL, "journal", _write),
    (Step.SYNC, "journal", _sync),
    (Step.OPENED, "opened", _open),
    (Step.PUBLISH, "publish", _publish),
    (Step.ACKS, "acks", _acknowledge),
    (Step.PROMISES, "promises", _promise),
    (Step.CONFIRM, "confirm", _confirm),
    (Step.REPLIES, "replies", _reply),
    (Step.FACTS, "facts", _tell),
    (Step.READS, "reads", _read),
    (Step.COPIES, "copies", _copy),
)
