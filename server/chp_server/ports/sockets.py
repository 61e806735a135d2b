"""The server's five sockets, their options, and how frames get in and out of them.

    snapshot   ROUTER  P     mandatory: libzmq reports a full or vanished reader, and drops no frames silently
    updates    XPUB    P+1   verbose both ways: we see every subscription that comes or goes, and its connection.
                             Its options are set before it is bound, and never change (docs/decisions/0005)
    collector  SUB     P+2   subscribes to everything
    peer_in    ROUTER  P+3   messages of the peer
    to_peer    DEALER        connects to the peer's P+3, and holds no messages while it has no connection;
                             beat_thread.py has another such socket

Each socket has a limit on message size, so that a length field in a message can't make libzmq allocate much memory.
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
from ..core.updates.set_queue import turn_bytes
from ..exits import CannotStart, Exit
from ..settings.config import Config
from . import connections
from .subscribers import MESSAGE_BYTES, Subscribers
from .unfinished import BoundSocket, UnfinishedMessages


def listen(sockets: list[zmq.Socket[bytes]], address: str) -> list[Path]:
    """Bind sockets to `ipc://DIR/P`, `ipc://DIR/P+1` and so on; raise `CannotStart` if that fails.

    Call this after the TCP ports are bound. Return the files; the caller unlinks them before it closes the sockets.
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
    """Return True if a server listens at a file. If a killed server has left it, libzmq removes it at the next bind."""
    with net.socket(net.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(file)) == 0


POLLIN = int(zmq.POLLIN)
# A look at one socket, without waiting, takes half the time of zmq.Socket.get(zmq.EVENTS) by this function.
ask: Any = zmq.zmq_poll


class Poller:
    """A poller of sockets and pipes that tells which have something to read."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._things: dict[int, Any] = {}
        self._pipes: set[int] = set()
        # The sockets that may have messages although their descriptors signal nothing.
        self.again: set[Any] = set()

    def add(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for a socket too."""
        self._register(int(socket.get(zmq.FD)), socket)
        self.again.add(socket)

    def remove(self, socket: zmq.Socket[bytes]) -> None:
        """Stop waiting for a socket. Call this before the socket is closed."""
        descriptor = int(socket.get(zmq.FD))
        self._epoll.unregister(descriptor)
        del self._things[descriptor]
        self.again.discard(socket)

    def add_pipe(self, descriptor: int) -> None:
        """Wait for a pipe too; `wait` returns its descriptor."""
        self._pipes.add(descriptor)
        self._register(descriptor, descriptor)

    def _register(self, descriptor: int, thing: object) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._things[descriptor] = thing

    def all_again(self) -> None:
        """Let the next `wait` look at all sockets, because calls on a socket may have taken its descriptor's signal."""
        self.again |= set(self._things.values()) - self._pipes

    def wait(self, timeout_ms: int) -> set[Any]:
        """Wait up to `timeout_ms`, and return the sockets and pipes that may have something to read.

        The caller then has to read each of them.
        """
        again = self.again
        ready = {socket for socket, _ in ask([(socket, POLLIN) for socket in again], 0)} if again else set()
        told = self._epoll.poll(0 if ready else timeout_ms / 1000)
        ready.update([self._things[descriptor] for descriptor, _ in told])
        again.clear()
        again |= ready
        again -= self._pipes
        return ready

    def close(self) -> None:
        """Close the poller."""
        self._epoll.close()


Frames = list[bytes]
# A message from the peer has at most this many bytes: room for the state of 100,000 sessions and leases.
PEER_MESSAGE_BYTES_MAX = 256 << 20
# A host that vanished sends nothing. Without keepalives its connection would stay, and keep its descriptor.
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 60, zmq.TCP_KEEPALIVE_INTVL: 15, zmq.TCP_KEEPALIVE_CNT: 4}
# At most this many messages for the peer may wait for its connection.
PEER_OUT_MAX = 100_000
# The server waits this long before it connects anew to a peer that does not hear it; a handshake takes less.
LOOK_AGAIN_S = 3.0
# A subscription has at most this many bytes beside its subtree, for ZMTP and for the rest of the topic.
COMMAND_BYTES = 64
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_SRCFD = int(zmq.SRCFD)
UP, DOWN = int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)
# libzmq frees the name of a monitor some time after the socket is closed, so each monitor has a name of its own.
_monitors = count()
# This avoids the wrapper of zmq.Socket.send, which costs as much as the sending.
_send_frame: Any = Backend.send


def _make(context: zmq.Context[zmq.Socket[bytes]], kind: int, bytes_max: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    # After `close`, libzmq has 200 ms to send what still waits, such as acknowledgements.
    socket.set(zmq.LINGER, 200)
    socket.set(zmq.MAXMSGSIZE, bytes_max)
    for option, value in KEEPALIVE.items():
        socket.set(option, value)
    return socket


def only_ipv6(address: str) -> bool:
    """Return True if the name in an address has only IPv6 addresses now. The call blocks until the resolver answers."""
    if not addresses.is_name(address):
        return False
    try:
        found = getaddrinfo(address.removeprefix("tcp://").rpartition(":")[0], None, AF_UNSPEC, SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(family == AF_INET6 for family, *_ in found)


def peer_dealer(
    context: zmq.Context[zmq.Socket[bytes]], peer: str, mark: int, zap_handler: ZapHandler | None, tries: int = 0
) -> zmq.Socket[bytes]:
    """Return a socket for the peer's P+3, which is not connected yet. It has the present keys, if this server has keys.

    To connect to the peer anew, make another socket and close this one. A socket that is still connecting must not be
    told to disconnect and connect again: it may get both connections, and send every other message by the wrong one.
    """
    socket = _make(context, zmq.DEALER, PEER_MESSAGE_BYTES_MAX)
    socket.set(zmq.SNDHWM, mark)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, 50)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    socket.ipv6 = addresses.in_turn(peer, tries)
    if zap_handler is not None:
        zap_handler.introduce(socket)
    return socket


class PeerWatch:
    """A monitor of a socket that is about to connect to the peer: it tells which connections stand and which break.

    A connection stands once its handshake has succeeded. It does not stand just because a kernel has accepted it: the
    kernel of a stopped process accepts connections too, and a peer that does not know our key completes no handshake.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        endpoint = f"inproc://peer.{next(_monitors)}"
        socket.monitor(endpoint, UP | DOWN)
        self.events = socket.context.socket(zmq.PAIR)
        self.events.linger = 0
        # The queue of events has no bound, because a full queue would stop libzmq's own thread.
        self.events.rcvhwm = 0
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
        """End the watch. Call this before the socket is closed."""
        self._socket.disable_monitor()
        self.events.close(0)


class ServerSockets:
    """The sockets of a server, made in the thread that runs it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        config: Config,
        limits: Limits,
        resident: Callable[[], int],
        keyring: Keyring | None = None,
    ) -> None:
        self._context, self._config, self._limits = context, config, limits
        self.zap_handler = None if keyring is None else ZapHandler(context, keyring)
        # The time from which on to connect anew to a peer that does not hear us; None until the first look. `_tries`
        # counts the tries, by which IPv4 and IPv6 alternate for a name.
        self._look_again_at: float | None = None
        self._tries = 0
        self._files: list[Path] = []
        self.snapshot = _make(context, zmq.ROUTER, limits.question_bytes_max)
        self.snapshot.set(zmq.ROUTER_MANDATORY, 1)
        self.snapshot.set(zmq.RCVHWM, limits.question_mark)
        # Frames that are watched go out without a copy (replies.py).
        self.snapshot.copy_threshold = 0
        self.updates = _make(context, zmq.XPUB, limits.subtree_bytes_max + COMMAND_BYTES)
        self.updates.set(zmq.XPUB_VERBOSER, 1)
        self.updates.set(zmq.RCVHWM, limits.subscription_mark)
        self.updates.set(zmq.SNDHWM, limits.publish_mark)
        failed = None if self.zap_handler is None else partial(self.zap_handler.failed, "P+1")
        self.subscribers = Subscribers(self.updates, limits.subscriber_bytes_max, limits.topics_bytes_max, failed)
        self.collector = _make(context, zmq.SUB, limits.frame_bytes_max)
        self.collector.set(zmq.RCVHWM, limits.collector_mark)
        self.collector.set(zmq.SUBSCRIBE, b"")
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.users = connections.Users(files - files // limits.files_spared, connections.open_files)
        self.waiting = Poller()
        self.unfinished = UnfinishedMessages(resident, self.waiting.all_again)
        sets = self.unfinished.watch(self.collector, 2 * limits.frame_bytes_max)
        self.intake = Intake(self.collector, limits, self.waiting.again, sets.came, self.zap_handler)
        self.peer_in = _make(context, zmq.ROUTER, PEER_MESSAGE_BYTES_MAX)
        self.peer_in.set(zmq.RCVHWM, limits.peer_mark)
        # Both are None until the ports are taken, and for a server without a peer.
        self._peer_out: zmq.Socket[bytes] | None = None
        self._peer_watch: PeerWatch | None = None
        # `_peer_anew` is True if a new socket has replaced the one before, and no turn was told of it yet.
        # `_peer_reached` is True once the current socket has had a connection.
        self._peer_anew = self._peer_reached = False
        questions = 16 * limits.question_bytes_max
        bound = [self.unfinished.watch(socket, questions) for socket in (self.snapshot, self.updates)]
        # The sockets are in the order of their ports.
        self.bound = [*bound, sets, self.unfinished.watch(self.peer_in, limits.stranger_bytes_max)]
        for socket in (self.snapshot, self.updates, self.collector):
            self.waiting.add(socket)
        if config.peer is not None:
            self.waiting.add(self.peer_in)
        if self.zap_handler is not None:
            self.waiting.add(self.zap_handler.questions)

    def bind(self) -> None:
        """Bind the ports and the files.

        Raise `OSError`, with the endpoint as its file name, if a port can't be bound, and `CannotStart` for a file.
        """
        peer = self._config.peer_endpoint(3)
        clients = [self.snapshot, self.updates, self.collector]
        for i, socket in enumerate([*clients, *([self.peer_in] if peer is not None else [])]):
            if self.zap_handler is not None:
                self.zap_handler.lock(socket, zap.CLIENTS if socket in clients else zap.PEER)
                # `Subscribers` watches the handshakes of `updates`.
                if socket is not self.updates:
                    self.zap_handler.watch(socket, f"P+{i}" if i else "P")
            _bind(socket, self._config.endpoint(i), self.bound[i])
        if peer is not None:
            self._tries = int(only_ipv6(peer))
            self._connect_to(peer)
        for i, socket in enumerate(clients):
            if self.zap_handler is not None:
                self.zap_handler.unlock(socket)
            if self._config.plain_bind is not None:
                _bind(socket, addresses.beside(self._config.plain_bind, i), self.bound[i])
        if self._config.ipc is not None:
            self._files = listen(clients, self._config.ipc_address)

    def look_for_peer(self, now: float, *, unheard: bool, met: bool) -> bool:
        """Connect to the peer anew if that may help; return True if a new connection was begun.

        It may help if the peer has another key, or if the peer does not hear us and we have keys or `--peer` is a name.
        libzmq never tries again after a peer has refused our key, and it tries only one kind of address of a name.

        A kind of address (IPv4 or IPv6) that has reached the peer is kept. If both servers changed theirs in turn, one
        connection could stand only while the other one did not. A kind that has not reached the peer is changed, even
        if the peer says that it hears us: the peer may have heard only the connection before this one.
        """
        peer = self._config.peer_endpoint(3)
        if peer is None:
            return False
        named = addresses.is_name(peer)
        if self.zap_handler is None or not self.zap_handler.peer_has_another_key():
            wanted = (named and not (met and self._peer_reached)) or (self.zap_handler is not None and unheard)
            # Each connection, also the first one, has LOOK_AGAIN_S to complete its handshake.
            if self._look_again_at is None or not wanted:
                self._look_again_at = now + LOOK_AGAIN_S
            if now < self._look_again_at:
                return False
            self._tries += not self._peer_reached
        self._look_again_at = now + LOOK_AGAIN_S
        self._connect_to(peer)
        return True

    def _connect_to(self, peer: str) -> None:
        """Connect a new socket to the peer. The watch begins before that, so that it misses no event of libzmq."""
        if self._peer_out is not None and self._peer_watch is not None:
            self.waiting.remove(self._peer_watch.events)
            self._peer_watch.close()
            self._peer_out.close(0)
            self._peer_anew, self._peer_reached = True, False
        self._peer_out = peer_dealer(self._context, peer, PEER_OUT_MAX, self.zap_handler, self._tries)
        self._peer_watch = PeerWatch(self._peer_out)
        self.waiting.add(self._peer_watch.events)
        self._peer_out.connect(peer)

    def peer_dealer(self, mark: int) -> zmq.Socket[bytes]:
        """Return another socket that connects to the peer's P+3."""
        peer = self._config.peer_endpoint(3)
        assert peer is not None
        socket = peer_dealer(self._context, peer, mark, self.zap_handler, self._tries)
        socket.connect(peer)
        return socket

    def look_at_peer(self, ready: set[Any]) -> list[bool]:
        """Add `peer_in` to `ready` if it has a message; return the changes of our connection to the peer.

        A change is True if the connection came to stand, and False if it broke. A look at the socket costs less than a
        read, which raises an exception if there is no message.
        """
        if self.peer_in not in ready and ask([(self.peer_in, POLLIN)], 0):
            ready.add(self.peer_in)
        watch = self._peer_watch
        changes: list[bool] = []
        if self._peer_anew:
            self._peer_anew, changes = False, [False]
        if watch is not None and watch.events in ready:
            self.waiting.again.discard(watch.events)
            changes += watch.changes()
        self._peer_reached = self._peer_reached or True in changes
        return changes

    def to_peer(self, messages: Iterable[Frames]) -> int:
        """Send messages to the peer, and drop those without room; return how many were dropped."""
        return 0 if self._peer_out is None else send_all(self._peer_out, messages)

    def look_after_users(self) -> None:
        """Cut connections of the user who has most, if too many files are open; only servers with keys do this."""
        if self.zap_handler is not None:
            self.users.look(set().union(*(bound.ports for bound in self.bound[:3])))

    def close(self) -> None:
        """Close all sockets."""
        self.waiting.close()
        self.subscribers.close()
        # libzmq does not remove the files. While this server listens, no other server can have taken them over.
        for file in self._files:
            file.unlink(missing_ok=True)
        if self.zap_handler is not None:
            self.zap_handler.close()
        for socket in (self.snapshot, self.updates, self.collector, self.peer_in):
            socket.close()
        if self._peer_watch is not None:
            self._peer_watch.close()
        if self._peer_out is not None:
            self._peer_out.close()


def _bind(socket: zmq.Socket[bytes], endpoint: str, bound: BoundSocket) -> None:
    # tcp://* binds both kinds of address.
    socket.ipv6 = addresses.is_ipv6(endpoint) or endpoint.startswith("tcp://*")
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(error.errno, str(error), endpoint) from error
    bound.ports.add(int(endpoint.rpartition(":")[2]))


def _size(frames: Frames) -> int:
    return sum(map(len, frames))


def receive(
    socket: zmq.Socket[bytes],
    messages_max: int,
    bytes_max: int,
    again: set[Any],
    came: Callable[[int | None], None],
    *,
    zap_handler: ZapHandler | None = None,
    weigh: Callable[[Frames], int] = _size,
) -> list[Frames]:
    """Return the messages that have arrived: at most `messages_max`, and no more once they exceed `bytes_max`.

    If connections have keys, the messages are returned with their users, and those by a removed key are left out.
    `came` is called with the descriptor of each message's connection. When no message is left, the socket is removed
    from `again`, the set of `Poller`.

    A `Frame` knows whether another frame follows; asking the socket, as recv_multipart does, takes twice as long. After
    the first message, `ask` looks for another one: a read would raise an exception if there is none, which costs more.
    """
    recv, size = socket.recv, 0
    taken: list[Frames] = []
    again.add(socket)
    for i in range(messages_max):
        if i == 1 and not ask([(socket, POLLIN)], 0):
            again.discard(socket)
            break
        try:
            frame = recv(_NOBLOCK, False)
        except zmq.Again:
            again.discard(socket)
            break
        frames = [frame.bytes]
        while frame.more:
            frame = recv(_NOBLOCK, False)
            frames.append(frame.bytes)
        fd = _descriptor(frame)
        came(fd)
        size += weigh(frames)
        if zap_handler is None:
            taken.append(frames)
        elif not (zap_handler.removals and _is_rejected(zap_handler, frame, fd)):
            taken.append(signed(frames, frame))
        if size > bytes_max:
            break
    return taken


class Intake:
    """The part that takes the messages of a turn from a socket. libzmq takes them from its connections in turn."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        limits: Limits,
        again: set[Any],
        came: Callable[[int | None], None],
        zap_handler: ZapHandler | None = None,
    ) -> None:
        self._socket, self._limits, self._again = socket, limits, again
        self._zap_handler, self._came = zap_handler, came
        self._weigh = partial(turn_bytes, share=limits.turn_messages_share)
        # True if messages were left because the server had no room for them.
        self.left = False

    def take(self, room: int) -> list[Frames]:
        """Return the messages of this turn; none if the server has no room for more."""
        self.left = room <= 0
        if self.left:
            # The poller must not find the socket ready again and again. So `ask` first lets libzmq clear the signal of
            # the socket's descriptor.
            ask([(self._socket, POLLIN)], 0)
            self._again.discard(self._socket)
            return []
        limits = self._limits
        bounds = limits.turn_messages_max, min(room, limits.turn_bytes_max)
        return receive(self._socket, *bounds, self._again, self._came, zap_handler=self._zap_handler, weigh=self._weigh)


def receive_by(
    socket: zmq.Socket[bytes], messages_max: int, bytes_max: int, zap_handler: ZapHandler | None = None
) -> Iterator[tuple[int | None, Frames]]:
    """Yield the messages that have arrived, each with the descriptor of its connection."""
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
        if zap_handler is None:
            yield fd, frames
        elif not (zap_handler.removals and _is_rejected(zap_handler, first, fd)):
            yield fd, signed_from(frames, frame)
        if size > bytes_max:
            return


def _is_rejected(zap_handler: ZapHandler, frame: zmq.Frame, fd: int | None) -> bool:
    """Return True if a message came by a key that was removed, and cut its connection."""
    key, user = key_of(frame), user_of(frame)
    if zap_handler.admits(key, user):
        return False
    place = None if fd is None else connections.place_of(fd)
    if fd is not None and place is not None:
        connections.cut(fd, place)
    zap_handler.rejected(key, user, "" if place is None else connections.described(place))
    return True


def _descriptor(frame: zmq.Frame) -> int | None:
    try:
        # `get` by this number takes half the time of `get("__fd")`, which looks the property up by its name.
        return int(frame.get(_SRCFD))
    except zmq.ZMQError:
        return None


def _with_descriptors(
    sockets: ServerSockets, messages_max: int, authorizer: SubscriptionAuthorizer | None
) -> Iterator[tuple[int | None, bytes]]:
    """Yield the frames that have arrived on P+1, mostly subscriptions, each with the descriptor of its connection."""
    socket, zap_handler = sockets.updates, sockets.zap_handler
    for _ in range(messages_max):
        try:
            frame = socket.recv(_NOBLOCK, False)
        except zmq.Again:
            if authorizer is not None:
                authorizer.emptied()
            return
        fd = _descriptor(frame)
        if zap_handler is not None and zap_handler.removals and frame.bytes and _is_rejected(zap_handler, frame, fd):
            continue
        if zap_handler is not None and frame.bytes:
            sockets.users.came(fd, user_of(frame))
        if authorizer is None or fd is None or authorizer.decides(fd, frame):
            yield fd, frame.bytes


def send(socket: zmq.Socket[bytes], frames: Frames) -> None:
    """Send one message without waiting; raise zmq.Again if there is no room. A large last frame is not copied."""
    *head, last = frames
    for frame in head:
        _send_frame(socket, frame, _MORE)
    _send_frame(socket, last, _NOBLOCK, len(last) < zmq.COPY_THRESHOLD)


def take_subscriptions(
    sockets: ServerSockets, messages_max: int, authorizer: SubscriptionAuthorizer | None = None
) -> Iterator[Frames]:
    """Yield the events of P+1: a connection and its event, or a connection alone, once it has ended.

    A connection is known by its descriptor. libzmq tells of an end before it frees the descriptor. So ends are yielded
    first, before the events of a new connection that may have the same descriptor. Events of a connection that has
    ended by now are ignored. An event that libzmq makes itself, when a connection ends, has b"" as its connection.
    """
    subscribers, bound = sockets.subscribers, sockets.bound[1]
    came = list(_with_descriptors(sockets, messages_max, authorizer))
    subscribers.hear()
    for ended in (b"%d" % fd for fd in subscribers.take_ended()):
        if authorizer is not None:
            authorizer.ended(ended)
        yield [ended]
    if authorizer is not None:
        while authorizer.to_cut:
            subscribers.cut_off(*authorizer.to_cut.popitem())
    for fd, event in came:
        bound.came(fd)
        if fd is None:
            yield [b"", event]
        elif event[:1] not in (b"\x00", b"\x01"):
            # The frame is no subscription.
            yield [b"%d" % fd, event]
        elif fd not in subscribers.ended:
            subscribers.subscribed(fd, event[1:], more=event[:1] == b"\x01")
            yield [b"%d" % fd, event]


def weight(messages: Sequence[Frames]) -> int:
    """Return about how many bytes messages take in libzmq."""
    return sum(map(len, chain.from_iterable(messages))) + MESSAGE_BYTES * sum(map(len, messages))


def send_all(socket: zmq.Socket[bytes], messages: Iterable[Frames]) -> int:
    """Send messages, and drop those without room; return how many were dropped."""
    dropped = 0
    for frames in messages:
        try:
            send(socket, frames)
        except zmq.Again:
            dropped += 1
    return dropped
