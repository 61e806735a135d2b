"""Users and rules in the simulator: an operator changes the rules, and checkers look at what servers send and commit.

The commands:

    keyed                           each client is a user with its own name; the operator is `root`; given before start
    access open                     the operator allows each client everything, at each active server
    access grant c1 read /a/        the operator allows c1 to read /a/ as well; `revoke` takes that back
    access grant c1 deny-read /a/   the operator denies c1 to read /a/

What must hold:

    reading    A server sends a client only subtrees and keys that the client may read, by the rules at the server's
               number. So no client hears a name, value, count or digest of a denied subtree.
    writing    A record holds no value of a user who could not write its key by the rules before the record.
    changes    When a server answers the operator, it has the new rules on its disk. If the passive is in sync, both
               servers have them. At the end both servers, and a replay of each journal, have the rules of the
               surviving history.
               They also share one secret, from which the names of group members are made.

This file reads the rules from the records and judges them by itself. It uses none of the servers' code for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import zmq

from chp.numbers import describe, unpack
from chp_server.access.subscription_authorizer import SubscriptionAuthorizer
from chp_server.access.zap import KEY_PROPERTY
from chp_server.core.performing import admit, refuse_subscription

from .flooder import FLOODER, RIGHTS
from .intruder import INTRUDER, OF_CLIENTS
from .keys import refused_since
from .network import Conn, Frames

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World

BATCH, HEARTBEAT, SYNC, RECORDS, KTHXBAI, REFUSED, REPLY, ACCESS = 1, 2, 3, 4, 5, 7, 8, 12
ROOT, OPERATOR = "root", b"operator"
# The processes of the operator.
ROOTS = {"admin": ROOT, OPERATOR.decode(): ROOT}
STX, ETX, OWN = b"\x02", b"\x03", b"\x02@"
FREE = ("/.chp/pulse/",)
VOUCHES = {"admin": ["vouch"]}
EVERY_VERB = ["access", "backup", "leases", "restore", "status", "switch"]
Document = dict[str, Any]


def user_of(conn: Conn) -> str:
    """Return the user whose key a connection has shown."""
    return ROOTS.get(conn.a, conn.a)


# -- judging, in this file's own words


def covers(rules: Document | None, user: str, verb: str, subtree: str) -> bool:
    """Return True if a user may read or write all keys of a subtree."""
    if rules is None:
        return True
    entry = rules["users"].get(user, {})
    allowed = any(subtree.startswith(prefix) for prefix in entry.get(verb, ()))
    denied = entry.get(f"deny-{verb}", ())
    return allowed and not any(subtree.startswith(no) or no.startswith(subtree) for no in denied)


def has(rules: Document | None, user: str, verb: str, key: str) -> bool:
    """Return True if a user may read or write one key."""
    if rules is None:
        return True
    entry = rules["users"].get(user, {})
    within = [any(key.startswith(prefix) for prefix in entry.get(what, ())) for what in (verb, f"deny-{verb}")]
    return within == [True, False]


# -- the door of P+1


class Manual:
    """An XPUB in manual mode, as far as `SubscriptionAuthorizer` uses it.

    Each call applies to the pipe from which the last message was taken.
    """

    def __init__(self, node: ServerNode, conns: dict[int, Conn]) -> None:
        self._node, self._conns = node, conns
        self.conn: Conn | None = None
        self._last_only = False

    def get(self, _option: int) -> int:
        """Return the number of subscribed topics."""
        return sum(len(conn.topics) for conn in self._conns.values())

    def set(self, option: int, value: Any) -> None:
        """Subscribe or unsubscribe the current pipe, or limit the next message to it."""
        if option == zmq.XPUB_MANUAL_LAST_VALUE:
            self._last_only = bool(value)
        elif self.conn is not None and option == zmq.SUBSCRIBE:
            self.conn.topics[value] = None
        elif self.conn is not None and option == zmq.UNSUBSCRIBE:
            self.conn.topics.pop(value, None)

    def send_multipart(self, frames: Frames, _flags: int) -> None:
        """Send a message to all subscribers, or once to the current pipe alone."""
        only, self.conn = (self.conn, None) if self._last_only else (None, self.conn)
        self._node.broadcast([frames], only)


class Event:
    """A frame that subscribes or unsubscribes, with the connection that sent it."""

    def __init__(self, event: bytes, conn: Conn) -> None:
        self.bytes, self._conn = event, conn

    def get(self, name: str) -> str:
        """Return the user of the connection, or the key that it has shown."""
        return self._conn.key if name == KEY_PROPERTY else user_of(self._conn)


class Door:
    """The admission of subscriptions at one server. The production code decides, and knows a connection by a number."""

    def __init__(self, node: ServerNode) -> None:
        self._node, core = node, node.core
        self._conns: dict[int, Conn] = {}
        self._manual = Manual(node, self._conns)
        asks = (
            lambda user, topic: admit(core, user, topic),
            lambda user, topic, why, origin: refuse_subscription(core, user, topic, why, origin),
        )
        socket: Any = self._manual
        self._admitting = SubscriptionAuthorizer(socket, *asks, self._admits, node.world.rng.randbytes)

    def _admits(self, key: str, user: str) -> bool:
        return self._node.keys is None or self._node.keys.admits(key, user)

    def decides(self, conn: Conn, frames: Frames) -> bool:
        """Return True if the core must hear an event of a connection."""
        if len(frames) == 1:
            self._admitting.ended(frames[0][1:])
            return True
        # An event with an empty first frame is libzmq's own report about a connection that ended. The core must hear
        # it. Events of the stranger, which was never admitted, are dropped.
        if not frames[0] or conn.a == "stranger":
            return not frames[0]
        if not conn.up or conn.identity != frames[0]:
            # The connection that sent this has ended by now.
            return False
        fd, event = int(conn.identity[1:]), Event(frames[1], conn)
        self._conns[fd], self._manual.conn = conn, conn
        asked: Any = event
        return self._admitting.decides(fd, asked)

    def look(self) -> None:
        """Cut off each connection that may no longer read what it has subscribed to."""
        removals = 0 if self._node.keys is None else self._node.keys.ring.removals
        changed = self._node.core.state.access.changed
        self._admitting.look(changed, removals, lambda fd, why: self._cut(self._conns[fd], fd))

    def _cut(self, conn: Conn, fd: int) -> None:
        if conn.up and conn.identity == b"#%d" % fd:
            self._node.world.trace(f"{self._node.name:10} cuts {conn.name} off")
            self._node.world.net.reset(conn)


# -- the operator


class Operator:
    """The operator `root`, who changes the rules and counts the answers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._id = 0
        self.answers = 0

    def does(self, words: list[str]) -> None:
        """Perform one command at each active server."""
        for node in self._world.servers:
            if node.running and not node.foreign and node.core.active:
                self._tell(node, words)

    def _tell(self, node: ServerNode, words: list[str]) -> None:
        granted = node.core.state.access
        now = {"users": self._replicas(), "roles": {}} if granted.rules is None else granted.rules.document
        rules = self._open() if words == ["open"] else _edited(now, *words)
        self._id += 1
        conn = Conn("req", OPERATOR.decode(), node.name)
        conn.up, conn.identity = True, OPERATOR
        options = {"chp": 4, "id": self._id, "rules": rules, "on": granted.changed}
        node.deliver(conn, [b"ICANHAZ?", STX + b"access" + ETX, msgpack.packb(options)])

    def _open(self) -> Document:
        names = [client.name for client in self._world.clients]
        intruder = self._world.intruder
        more = {} if intruder is None else OF_CLIENTS
        users: Document = {name: {"read": [""], "write": [""], **more} for name in names}
        if intruder is not None:
            users[INTRUDER] = intruder.rights
        if self._world.flooder is not None:
            users[FLOODER] = RIGHTS
        return {"users": {**users, **self._replicas(), ROOT: {"admin": EVERY_VERB}}, "roles": {}}

    def _replicas(self) -> Document:
        """Return the users of replicas: each has the right to vouch, and no other one."""
        return {replica.name: VOUCHES for replica in self._world.replicas}

    def is_open(self, node: ServerNode) -> bool:
        """Return True if each client may read and write everything at a server."""
        rules = node.core.state.access.rules
        return rules is None or all(
            covers(rules.document, client.name, verb, "")
            for client in self._world.clients
            for verb in ("read", "write")
        )

    def answered(self, node: ServerNode, frames: Frames) -> None:
        """Take a server's answer, and check that accepted rules are as safe as an acknowledged set."""
        header = msgpack.unpackb(frames[4])[0]
        if header[0] != REPLY:
            self._world.trace(f"{node.name} -> root  {header[2]} {header[3]}")
            return
        self.answers += 1
        number = header[2]["number"]
        self._world.trace(f"{node.name} -> root  the rules are those of #{describe(number)}")
        self._world.checks.access.promised(node, number)


def _edited(rules: Document, verb: str, user: str, what: str, prefix: str = "") -> Document:
    entry = dict(rules["users"].get(user, {}))
    words = set(entry.get(what, ()))
    entry[what] = sorted(words | {prefix} if verb == "grant" else words - {prefix})
    return {**rules, "users": {**rules["users"], user: entry, ROOT: {"admin": EVERY_VERB}}}


# -- checking


class AccessChecks:
    """The checkers of this module's rules."""

    def __init__(self, world: World) -> None:
        self._world = world
        # (client, request) -> the subtree that the client asked for.
        self._asked: dict[tuple[str, int], str] = {}
        self.looked = 0
        # value -> the key of the program that set it last, and the time when a program with this key first set it
        self.called: dict[bytes, tuple[str, float]] = {}

    def _rules(self, number: int) -> Document | None:
        found = self._world.checks.oracle.nodes.get(number)
        return None if found is None else found.rules

    def calls(self, value: bytes, key: str) -> None:
        """Note that a program with this key sets a value, for the first time or again."""
        if self.called.get(value, ("",))[0] != key:
            self.called[value] = key, self._world.time.now

    def asks(self, conn: Conn, frames: Frames) -> None:
        """Note the subtree or topic that a client asks for."""
        if conn.kind == "req" and len(frames) == 3 and self._world.keyed:
            options = msgpack.unpackb(frames[2])
            # Where rules name `consume`, a member needs no right to read its topic.
            consumes = "group" in options and self._world.intruder is not None
            if "more" not in options and not consumes:
                of = f"/.chp/topics/{options['topic']}/" if "topic" in options else frames[1].decode()
                self._asked[conn.a, options["id"]] = of

    def sends(self, node: ServerNode, conn: Conn, frames: Frames) -> None:
        """Check that the rules let the client read what a server sends to it."""
        if not self._world.keyed or node.foreign or conn.kind == "set":
            return
        if conn.key and refused_since(self._world, node, conn.key) < self._world.time.now:
            self._world.checks.fail(f"{node.name} sends something to {conn.name}, whose key was removed")
        number = node.core.state.number
        if node.is_replica and conn.kind == "req":
            # The answer may come from the active, and the rules may change on its way. So the rules at the number of
            # the answer count.
            number = unpack(frames[1])
        rules = self._rules(number)
        if rules is None:
            return
        self.looked += 1
        user = user_of(conn)
        # A replica may get everything. What the replica sends to a client is judged then.
        if rules["users"].get(user) == VOUCHES:
            return
        if conn.kind == "upd" and frames[0][:1] == STX and frames[0][-1:] != ETX:
            self._refused_alone(node, conn, frames)
        said = self._told_of_replies(conn, frames) if conn.kind == "req" else _told_of_updates(frames)
        for subtree in said[0]:
            if subtree not in FREE and not covers(rules, user, "read", subtree):
                self._leaks(node, conn, f"something of {subtree!r}", number)
        for key in said[1]:
            if not has(rules, user, "read", key) and not key.startswith(FREE):
                self._leaks(node, conn, f"key {key!r}", number)

    def _refused_alone(self, node: ServerNode, conn: Conn, frames: Frames) -> None:
        """Check that a refusal on a channel goes only to a client that the rules deny."""
        topic = frames[0][:-8]
        if topic[:2] != OWN and covers(
            self._rules(node.core.state.number), user_of(conn), "read", topic[1:-1].decode()
        ):
            self._world.checks.fail(f"{node.name} tells {conn.name} what somebody else is denied: {frames[4]!r}")

    def _leaks(self, node: ServerNode, conn: Conn, what: str, number: int) -> None:
        self._world.checks.fail(
            f"{node.name} sends {what} to {conn.name}, which the rules at #{describe(number)} deny to {user_of(conn)}"
        )

    def _told_of_replies(self, conn: Conn, frames: Frames) -> tuple[list[str], list[str]]:
        header, *items = msgpack.unpackb(frames[4], strict_map_key=False)
        # An empty chunk tells only that the server prepares an answer.
        if header[0] == REFUSED or (header[0] == SYNC and not items):
            return [], []
        segments = [s for _, *parts in items for s in parts] if header[0] == RECORDS else items
        keys = [key for segment in segments for key in segment[0]] if header[0] in (SYNC, RECORDS) else []
        subtree = self._asked.get((conn.a, header[1]))
        return ([] if subtree is None else [subtree]), keys

    def commits(self, node: ServerNode, body: bytes) -> None:
        """Check that the rules before a record let each writer write its keys."""
        last = msgpack.unpackb(body, strict_map_key=False)[0][3]
        record = self._world.checks.oracle.nodes[last]
        rules = self._rules(record.prev)
        if rules is not None and self._world.intruder is not None:
            self._world.intruder.commits(node, record)
        for key, value in record.writes if self._world.keyed else ():
            by, at = self.called.get(value, ("", 0.0)) if value else ("", 0.0)
            if by and at > refused_since(self._world, node, by):
                self._world.checks.fail(f"{node.name} has {key} set in #{describe(last)} by a key that was removed")
        for key, value in record.writes if rules is not None else ():
            user = b"" if value is None else value.split(b".")[0]
            if user and not has(rules, user.decode(), "write", key):
                self._world.checks.fail(
                    f"{node.name} has {key} set by {user.decode()} in #{describe(last)}, which the rules before it deny"
                )

    def promised(self, node: ServerNode, number: int) -> None:
        """Check that the rules which the operator was promised are on the disks."""
        self._world.checks.not_fenced(node)
        oracle = self._world.checks.oracle
        # A promise that was made before the passive was in sync may leave only afterwards. Then only this server's disk
        # must have the rules.
        age = self._world.time.now - oracle.nodes[number].at
        since = node.core.link.in_sync_since if node.core.link._was_in_sync else float("inf")
        together = node.core.pair.in_sync() and age * 1.1 < node.clock.mono() - since
        servers = self._world.servers if together else [node]
        for server in servers:
            disks = [server.own_disk or server.disk, *filter(None, [server.lost_disk])]
            ends = [max(disk.number, disk.mark) for disk in disks]
            if disks[0].durability and not any(oracle.on_path(number, end) for end in ends):
                self._world.checks.fail(
                    f"root is told that the rules are those of #{describe(number)}, and the journal of {server.name}"
                    f" ends at {describe(disks[0].number)}"
                )

    def end(self) -> None:
        """Check, after all is healed, that servers and replays have the rules of the surviving history."""
        number = self._world.servers[0].core.state.number
        wanted = self._rules(number)
        for node in self._world.servers:
            again = [node.recovered_anew()] if node.disk.durability else []
            for core in (node.core, *again):
                found = core.state.access.rules
                if (None if found is None else found.document) != wanted:
                    self._world.checks.fail(f"{node.name} has other rules than those at #{describe(number)}")
                if found is not None and core.state.access.secret != self._world.servers[0].core.state.access.secret:
                    self._world.checks.fail(f"{node.name} has another secret for the names of members")
        one, two = (node.core.state for node in self._world.servers)
        if one.access.owners != two.access.owners:
            text = f"{one.access.owners}, {two.access.owners}"
            self._world.checks.fail(f"the servers disagree on whose sessions are: {text}")
        # A server whose wall clock was set ahead may have forgotten an application that the other server still has.
        both = one.staging.versions.keys() & two.staging.versions.keys()
        owned = [[each for each in state.staging.owned() if each[0] in both] for state in (one, two)]
        if owned[0] != owned[1]:
            self._world.checks.fail(f"the servers disagree on whose applications are: {owned[0]}, {owned[1]}")


def _told_of_updates(frames: Frames) -> tuple[list[str], list[str]]:
    """Return the subtrees and the keys that a publication names."""
    topic = frames[0]
    if topic == b"HUGZ" or topic[:2] == OWN:
        return [], []
    if topic[:1] != STX:
        # A CHP/1 publication without a uuid is a refusal.
        return [], [topic.decode()] if frames[2] else []
    header, *items = msgpack.unpackb(frames[4], strict_map_key=False)
    if header[0] not in (BATCH, HEARTBEAT):
        return [], []
    return [topic[1 : topic.index(ETX)].decode()], [key for segment in items for key in segment[0]]
