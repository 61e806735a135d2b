"""The server's five sockets, their options, and how frames get in and out of them.

    snapshot   ROUTER  P     mandatory, so that a full or vanished reader is told to us instead of losing frames
    updates    XPUB    P+1   verbose both ways: every subscription that comes or goes is seen, and whose it is.
                             Its options stand before it is bound, and never change (docs/decisions/0005)
    collector  SUB     P+2   everything
    peer_in    ROUTER  P+3   what the peer says
    to_peer    DEALER        to the peer's P+3; holds nothing while there is no connection; beat_thread.py has another

Each has a limit on message size, so that nobody can ask for memory by a length field.
"""

from __future__ import annotations

import os
import resource
import select
import socket as net
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from socket import AF_INET6, AF_UNSPEC, SOCK_STREAM, getaddrinfo
from typing import Any

import zmq
from zmq.backend import Socket as Backend

from chp import addresses
from chp.addresses import beside
from chp.limits import Limits

from ..access import zap
from ..access.keyring import Keyring
from ..access.subscription_authorizer import SubscriptionAuthorizer, key_of, signed, signed_from, user_of
from ..access.zap import ZapHandler
from ..exits import CannotStart, Exit
from ..settings.config import Config
from . import connections
from .subscribers import MESSAGE_BYTES, Subscribers
from .unfinished import BoundSocket, UnfinishedMessages


def listen(sockets: list[zmq.Socket[bytes]], address: str) -> list[Path]:
    """Bind them to `ipc://DIR/P` and those after it; the files, to be unlinked before the sockets are closed.

    The ports are ours by now. `CannotStart` names what is wrong.
    """
    directory = Path(address.removeprefix("ipc://")).parent
    made: list[Path] = []
    try:
        _prepare(directory)
        for offset, each in enumerate(sockets):
            place = beside(address, offset)
            file = Path(place.removeprefix("ipc://"))
            if _is_served(file):
                raise CannotStart(Exit.PORT_TAKEN, f"another server listens on {file}; end it, or give another --ipc")
            each.bind(place)
            made.append(file)
            file.chmod(0o700)
    except (OSError, zmq.ZMQError) as error:
        text = f"the files {address} and those after it can't be made ({error}); give --ipc a directory of this user"
        raise CannotStart(Exit.PORT_TAKEN, text) from error
    return made


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
        raise CannotStart(
            Exit.USAGE, f"--ipc {directory}: others may write there, and put their own files in place of these; "
            "give a directory of this user alone"
        )  # fmt: skip


def _is_served(file: Path) -> bool:
    """Whether somebody listens there; the file of one that was killed is nobody's, and libzmq takes it away."""
    with net.socket(net.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(file)) == 0


POLLIN = int(zmq.POLLIN)
ask: Any = zmq.zmq_poll  # of a socket alone, at once: in half the time of zmq.Socket.get(zmq.EVENTS)


class Poller:
    """Sockets and pipes, of which those with something to read are wanted."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._things: dict[int, Any] = {}
        self.again: set[Any] = set()  # sockets whose descriptors may keep silent though they have something

    def add(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for a socket too."""
        self._register(int(socket.get(zmq.FD)), socket)
        self.again.add(socket)

    def remove(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for a socket no longer; to be called before it is closed."""
        descriptor = int(socket.get(zmq.FD))
        self._epoll.unregister(descriptor)
        del self._things[descriptor]
        self.again.discard(socket)

    def add_pipe(self, descriptor: int) -> None:
        """Wait for a pipe too; its descriptor stands for it."""
        self._register(descriptor, descriptor)

    def _register(self, descriptor: int, thing: object) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._things[descriptor] = thing

    def all_again(self) -> None:
        """Much was done with many of them."""
        self.again.update(thing for thing in self._things.values() if type(thing) is not int)

    def wait(self, timeout_ms: int) -> set[Any]:
        """Those that may have something to read, after `timeout_ms` at the latest; each is then to be looked at."""
        again = self.again
        ready = {socket for socket, _ in ask([(socket, POLLIN) for socket in again], 0)}
        told = self._epoll.poll(0 if ready else timeout_ms / 1000)
        again.clear()
        again |= ready
        for descriptor, _ in told:
            thing = self._things[descriptor]
            ready.add(thing)
            if thing is not descriptor:
                again.add(thing)
        return ready

    def close(self) -> None:
        """Wait for nothing any more."""
        self._epoll.close()


Frames = list[bytes]
PEER_MESSAGE_BYTES_MAX = 256 << 20  # the state of 100,000 sessions and leases in one message
# A host that vanished says nothing, and a connection on which nothing is sent to it would stay, and its descriptor
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 15, zmq.TCP_KEEPALIVE_CNT: 4}
PEER_OUT_MAX = 100_000  # messages for the peer that wait for its connection to take them
LOOK_AGAIN_S = 3.0  # for a peer that may have refused our key: longer than a handshake takes
COMMAND_BYTES = 64  # what ZMTP and a topic have beside the subtree
WITHOUT_KEYS = b"\x93\x90\x90"  # how the body of a KVSET begins that has none
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_SRCFD = int(zmq.SRCFD)
UP, DOWN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
# libzmq frees the name of a monitor some time after the socket is closed, so each monitor has a name of its own.
_monitors = count()
_send_frame: Any = Backend.send  # without the wrapper of zmq.Socket.send, which costs as much as the sending


def _make(context: zmq.Context[zmq.Socket[bytes]], kind: int, bytes_max: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 200)  # what was just acknowledged may still leave at the end
    socket.set(zmq.MAXMSGSIZE, bytes_max)
    for option, value in KEEPALIVE.items():
        socket.set(option, value)
    return socket


def only_ipv6(address: str) -> bool:
    """Whether the name in an address has IPv6 addresses alone, as the resolver knows now; it may take its time."""
    if not addresses.is_name(address):
        return False
    try:
        found = getaddrinfo(address.removeprefix("tcp://").rpartition(":")[0], None, AF_UNSPEC, SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(family == AF_INET6 for family, *_ in found)


def peer_dealer(
    context: zmq.Context[zmq.Socket[bytes]], peer: str, mark: int, locks: ZapHandler | None, tries: int = 0
) -> zmq.Socket[bytes]:
    """Make a socket for the peer's P+3, with the keys of now, if there are keys; it is yet to be connected.

    Who has to look for the peer anew makes another one and closes this: where one that still tries is told to
    disconnect and to connect, both connections may come, and every other message goes by the one nobody listens to.
    """
    socket = _make(context, zmq.DEALER, PEER_MESSAGE_BYTES_MAX)
    socket.set(zmq.SNDHWM, mark)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    socket.ipv6 = addresses.in_turn(peer, tries)
    if locks is not None:
        locks.introduce(socket)
    return socket


class PeerWatch:
    """A monitor of a socket that is about to connect to the peer: it tells which connections stand and which break.

    A connection stands once its handshake has succeeded. The kernel of a stopped process takes a connection too, and a
    peer that does not know our key completes no handshake: neither of them has a connection.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        endpoint = f"inproc://peer.{next(_monitors)}"
        socket.monitor(endpoint, UP | DOWN)
        self.events = socket.context.socket(zmq.PAIR)
        self.events.linger = 0
        self.events.rcvhwm = 0  # full, it would stop libzmq's own thread
        self.events.connect(endpoint)

    def changes(self) -> Iterator[bool]:
        """Yield True for each connection that came to stand since the last call, and False for each that broke."""
        while True:
            try:
                event, *_ = self.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield int.from_bytes(event[:2], sys.byteorder) == UP

    def close(self) -> None:
        """End the watch, before the socket is closed."""
        self._socket.disable_monitor()
        self.events.close(0)


class ServerSockets:
    """All sockets of a server; made in the thread that runs it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: Config,
        limits: Limits,
        resident: Callable[[], int],
        keyring: Keyring | None = None,
    ) -> None:
        self._context, self._config, self._limits = context, config, limits
        self.doors = None if keyring is None else ZapHandler(context, keyring)
        self._look_again_at, self._tries = float("-inf"), 0  # for a peer that does not hear us
        self._files: list[Path] = []
        self.snapshot = _make(context, zmq.ROUTER, limits.question_bytes_max)
        self.snapshot.set(zmq.ROUTER_MANDATORY, 1)
        self.snapshot.set(zmq.RCVHWM, limits.question_mark)
        self.snapshot.copy_threshold = 0  # whatever is watched goes out without a copy (replies.py)
        self.updates = _make(context, zmq.XPUB, limits.subtree_bytes_max + COMMAND_BYTES)
        self.updates.set(zmq.XPUB_VERBOSER, 1)
        self.updates.set(zmq.RCVHWM, limits.subscription_mark)
        self.updates.set(zmq.SNDHWM, limits.publish_mark)
        failed = None if self.doors is None else partial(self.doors.failed, "P+1")
        self.subscribers = Subscribers(self.updates, limits.subscriber_bytes_max, limits.topics_bytes_max, failed)
        self.collector = _make(context, zmq.SUB, limits.frame_bytes_max)
        self.collector.set(zmq.RCVHWM, limits.collector_mark)
        self.collector.set(zmq.SUBSCRIBE, b"")
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.users = connections.Users(files - files // limits.files_spared, connections.open_files)
        self.waiting = Poller()
        self.unfinished = UnfinishedMessages(resident, self.waiting.all_again)
        sets = self.unfinished.gate(self.collector, 2 * limits.frame_bytes_max)
        self.intake = Intake(self.collector, limits, self.waiting.again, sets.came, self.doors)
        self.peer_in = _make(context, zmq.ROUTER, PEER_MESSAGE_BYTES_MAX)
        self.peer_in.set(zmq.RCVHWM, limits.peer_mark)
        # None until the ports are taken, and of a server without a peer
        self._peer_out: zmq.Socket[bytes] | None = None
        self._peer_watch: PeerWatch | None = None
        self._peer_anew = False  # another socket connects in place of the one before
        questions = 16 * limits.question_bytes_max
        gates = [self.unfinished.gate(socket, questions) for socket in (self.snapshot, self.updates)]
        self.gates = [*gates, sets, self.unfinished.gate(self.peer_in, 2 * limits.frame_bytes_max)]  # as the ports are
        for socket in (self.snapshot, self.updates, self.collector):
            self.waiting.add(socket)
        if config.peer is not None:
            self.waiting.add(self.peer_in)
        if self.doors is not None:
            self.waiting.add(self.doors.questions)

    def bind(self) -> None:
        """Take the ports (`OSError`, with the endpoint as its file name) and the files (`CannotStart`)."""
        peer = self._config.peer_endpoint(3)
        clients = [self.snapshot, self.updates, self.collector]
        for i, socket in enumerate([*clients, *([self.peer_in] if peer is not None else [])]):
            if self.doors is not None:
                self.doors.lock(socket, zap.CLIENTS if socket in clients else zap.PEER)
                if socket is not self.updates:  # subscribers.py does
                    self.doors.watch(socket, f"P+{i}" if i else "P")
            _bind(socket, self._config.endpoint(i), self.gates[i])
        if peer is not None:
            self._tries = int(only_ipv6(peer))
            self._connect_to(peer)
        for i, socket in enumerate(clients):
            if self.doors is not None:
                self.doors.unlock(socket)
            if self._config.plain_bind is not None:
                _bind(socket, addresses.beside(self._config.plain_bind, i), self.gates[i])
        if self._config.ipc is not None:
            self._files = listen(clients, self._config.ipc_address)

    def look_for_peer(self, now: float, *, unheard: bool, met: bool) -> bool:
        """If it has another key, or we are `unheard` there, or have not met and it has a name, connect anew; if so.

        Where our key is not known libzmq gives a connection up for ever, and of a name it tries one kind of address.
        """
        peer = self._config.peer_endpoint(3)
        if peer is None:
            return False
        named = addresses.is_name(peer)
        if self.doors is None or not self.doors.peer_has_another_key():
            if not ((named and not met) or (self.doors is not None and unheard)):
                self._look_again_at = now + LOOK_AGAIN_S
            if now < self._look_again_at:
                return False
            self._tries += 1
        self._look_again_at = now + LOOK_AGAIN_S
        self._connect_to(peer)
        return True

    def _connect_to(self, peer: str) -> None:
        """Watch the socket before it connects: none of what libzmq tells is missed."""
        if self._peer_out is not None and self._peer_watch is not None:
            self.waiting.remove(self._peer_watch.events)
            self._peer_watch.close()
            self._peer_out.close(0)
            self._peer_anew = True
        self._peer_out = peer_dealer(self._context, peer, PEER_OUT_MAX, self.doors, self._tries)
        self._peer_watch = PeerWatch(self._peer_out)
        self.waiting.add(self._peer_watch.events)
        self._peer_out.connect(peer)

    def peer_dealer(self, mark: int) -> zmq.Socket[bytes]:
        """Return another socket that is being connected to the peer's P+3."""
        peer = self._config.peer_endpoint(3)
        assert peer is not None
        socket = peer_dealer(self._context, peer, mark, self.doors, self._tries)
        socket.connect(peer)
        return socket

    def peer_changes(self, ready: set[Any]) -> list[bool]:
        """Return what became of the connection to the peer: True where one came to stand, False where it broke."""
        watch, changes = self._peer_watch, [False] if self._peer_anew else []
        self._peer_anew = False
        if watch is not None and watch.events in ready:
            self.waiting.again.discard(watch.events)
            changes += watch.changes()
        return changes

    def to_peer(self, messages: Iterable[Frames]) -> int:
        """Send to the peer, dropping what there is no room for; returns how many were dropped."""
        return 0 if self._peer_out is None else send_all(self._peer_out, messages)

    def look_after_users(self) -> None:
        """If too much is open, cut connections of the user who has most; without keys everybody is one user."""
        if self.doors is not None:
            self.users.look(set().union(*(gate.ports for gate in self.gates[:3])))

    def close(self) -> None:
        """Close them all."""
        self.waiting.close()
        self.subscribers.close()
        for file in self._files:  # libzmq leaves them; as long as we listen they are nobody else's
            file.unlink(missing_ok=True)
        if self.doors is not None:
            self.doors.close()
        for socket in (self.snapshot, self.updates, self.collector, self.peer_in):
            socket.close()
        if self._peer_watch is not None:
            self._peer_watch.close()
        if self._peer_out is not None:
            self._peer_out.close()


def _bind(socket: zmq.Socket[bytes], endpoint: str, gate: BoundSocket) -> None:
    socket.ipv6 = addresses.is_ipv6(endpoint) or endpoint.startswith("tcp://*")  # which is both
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(error.errno, str(error), endpoint) from error
    gate.ports.add(int(endpoint.rpartition(":")[2]))


def _size(frames: Frames) -> int:
    return sum(map(len, frames))


def _counted(frames: Frames, messages_share: int) -> int:
    """What a KVSET counts in a turn: without keys, as one with messages is, a share, as nothing of it is published."""
    size = _size(frames)
    return size // messages_share if len(frames) > 4 and frames[4].startswith(WITHOUT_KEYS) else size


def receive(
    socket: zmq.Socket[bytes],
    messages_max: int,
    bytes_max: int,
    again: set[Any],
    came: Callable[[int | None], None],
    *,
    locks: ZapHandler | None = None,
    weigh: Callable[[Frames], int] = _size,
) -> Iterator[Frames]:
    """The messages that have arrived, at most so many and so large; with whose they are, if connections have keys.

    What comes by a key that was removed is left out.

    `came` is told the descriptor of each one's connection, `again` (waiting.py) when none is left. A `Frame` knows
    whether another follows; asking the socket (as recv_multipart does) takes twice as long. Where a message came alone,
    asking for another costs less than the exception that says there is none.
    """
    recv, size = socket.recv, 0
    again.add(socket)
    for i in range(messages_max):
        if i == 1 and not ask([(socket, POLLIN)], 0):
            again.discard(socket)
            return
        try:
            frame = recv(_NOBLOCK, False)
        except zmq.Again:
            again.discard(socket)
            return
        frames = [frame.bytes]
        while frame.more:
            frame = recv(_NOBLOCK, False)
            frames.append(frame.bytes)
        fd = _descriptor(frame)
        came(fd)
        size += weigh(frames)
        if locks is None:
            yield frames
        elif not (locks.removals and _is_turned_away(locks, frame, fd)):
            yield signed(frames, frame)
        if size > bytes_max:
            return


class Intake:
    """What one turn takes of a socket: libzmq gives what its connections sent in turn, a message of each.

    A message that would make the turn too long waits for the next, which it begins: those before it are small, and
    somebody may wait for them.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        limits: Limits,
        again: set[Any],
        came: Callable[[int | None], None],
        locks: ZapHandler | None = None,
    ) -> None:
        self._socket, self._limits, self._again, self._locks, self._came = socket, limits, again, locks, came
        self._weigh = partial(_counted, messages_share=limits.turn_messages_share)
        self.waiting: list[Frames] = []  # at most one

    def take(self) -> list[Frames]:
        """The messages of this turn."""
        taken, self.waiting = self.waiting, []
        room = self._limits.turn_bytes_max - sum(map(self._weigh, taken))
        if room > 0:
            most, again = self._limits.turn_messages_max, self._again
            taken += receive(self._socket, most, room, again, self._came, locks=self._locks, weigh=self._weigh)
            if len(taken) > 1 and sum(map(self._weigh, taken)) > self._limits.turn_bytes_max:
                self.waiting = [taken.pop()]
        return taken


def receive_by(
    socket: zmq.Socket[bytes], messages_max: int, bytes_max: int, locks: ZapHandler | None = None
) -> Iterator[tuple[int | None, Frames]]:
    """As `receive`, with the descriptor of the connection that each message came by."""
    size = 0
    for _ in range(messages_max):
        try:
            first = frame = socket.recv(_NOBLOCK, False)
        except zmq.Again:
            return
        frames = [first.bytes]
        while frame.more:
            frame = socket.recv(_NOBLOCK, False)
            frames.append(frame.bytes)
        size += sum(map(len, frames))
        fd = _descriptor(first)
        if locks is None:
            yield fd, frames
        elif not (locks.removals and _is_turned_away(locks, first, fd)):
            yield fd, signed_from(frames, frame)
        if size > bytes_max:
            return


def _is_turned_away(locks: ZapHandler, frame: zmq.Frame, fd: int | None) -> bool:
    """Whether a message came by a key that was removed; then its connection is cut."""
    key, user = key_of(frame), user_of(frame)
    if locks.admits(key, user):
        return False
    place = None if fd is None else connections.place_of(fd)
    if fd is not None and place is not None:
        connections.cut(fd, place)
    locks.turned_away(key, user, "" if place is None else connections.described(place))
    return True


def _descriptor(frame: zmq.Frame) -> int | None:
    try:
        return int(frame.get(_SRCFD))  # half of what "__fd" takes, which is looked for by its name
    except zmq.ZMQError:
        return None


def _with_descriptors(
    sockets: ServerSockets, messages_max: int, admitting: SubscriptionAuthorizer | None
) -> Iterator[tuple[int | None, bytes]]:
    """Yield what has arrived on P+1, frame by frame, as each may be a subscription; and each frame's connection."""
    socket, locks = sockets.updates, sockets.doors
    for _ in range(messages_max):
        try:
            frame = socket.recv(_NOBLOCK, False)
        except zmq.Again:
            if admitting is not None:
                admitting.emptied()
            return
        fd = _descriptor(frame)
        if locks is not None and locks.removals and frame.bytes and _is_turned_away(locks, frame, fd):
            continue
        if locks is not None and frame.bytes:
            sockets.users.came(fd, user_of(frame))
        if admitting is None or fd is None or admitting.decides(fd, frame):
            yield fd, frame.bytes


def send(socket: zmq.Socket[bytes], frames: Frames) -> None:
    """Send one message without waiting; raises zmq.Again when there is no room. A large last frame is not copied."""
    *head, last = frames
    for frame in head:
        _send_frame(socket, frame, _MORE)
    _send_frame(socket, last, _NOBLOCK, len(last) < zmq.COPY_THRESHOLD)


def take_subscriptions(
    sockets: ServerSockets, messages_max: int, admitting: SubscriptionAuthorizer | None = None
) -> Iterator[Frames]:
    """Take what came in on P+1: the connection and its event; or the connection alone, once it has ended.

    A connection is known by its descriptor. libzmq tells of an end before it lets the descriptor go, so its end is told
    first, before all that another connection with the same one may have sent meanwhile. What a connection had sent that
    has ended by now is of no account. What libzmq says by itself, about one that ends, has no name.
    """
    subscribers, gate = sockets.subscribers, sockets.gates[1]
    came = list(_with_descriptors(sockets, messages_max, admitting))
    subscribers.hear()
    for ended in (b"%d" % fd for fd in subscribers.take_ended()):
        if admitting is not None:
            admitting.ended(ended)
        yield [ended]
    if admitting is not None:
        while admitting.to_cut:
            subscribers.cut_off(*admitting.to_cut.popitem())
    for fd, event in came:
        gate.came(fd)
        if fd is None:
            yield [b"", event]
        elif event[:1] not in (b"\x00", b"\x01"):
            yield [b"%d" % fd, event]  # it is none
        elif fd not in subscribers.ended:
            subscribers.subscribed(fd, event[1:], more=event[:1] == b"\x01")
            yield [b"%d" % fd, event]


def weight(messages: Sequence[Frames]) -> int:
    """What messages take in libzmq, about."""
    return sum(map(len, chain.from_iterable(messages))) + MESSAGE_BYTES * sum(map(len, messages))


def send_all(socket: zmq.Socket[bytes], messages: Iterable[Frames]) -> int:
    """Send messages, dropping what there is no room for; returns how many were dropped."""
    dropped = 0
    for frames in messages:
        try:
            send(socket, frames)
        except zmq.Again:
            dropped += 1
    return dropped
