"""Messages in the simulator: programs that publish them, and the rules that hold once all is healed.

    offsets     They are dense on both disks, with the same message at each offset. No message is there twice.
    promises    Each message that was acknowledged as replicated is there.
    states      Both servers, and a replay of each journal, have the same topics.

If a disk or its end was lost, its server may have become active without messages that the other one has. Then messages
may be missing. Those that are there must still agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from chp.topics import pack_messages
from chp_server.core.state.record_log import LoggedMessages

from .clients import STAGED, ClientNode, Op
from .consumers import DEAD, DONE, GroupChecks
from .scheduled import ScheduleChecks

if TYPE_CHECKING:
    from .servers import ServerNode
    from .world import World

EVERY = (1 << 62) - 1


def publish(node: ClientNode, topic: str, count: int) -> None:
    """Publish messages without keys as one batch. They go to the slots in turn, and each names the operation."""
    if not node.running or node.core.unsettled > 200:
        return
    op = node.op("pub", [])
    # The checkers of sets must not see this operation.
    node.ops.pop()
    node.published.append(op)
    values = [f"{op.name}.{i}".encode() for i in range(count)]
    op.value = values[0]
    node.put(op, {"publish": [[topic, count, pack_messages(None, values)]]})


def once(node: ClientNode, keys: list[str], *, again: Op | None = None) -> None:
    """Set keys and publish a message, once for each version. `again` repeats the last version."""
    node.counted += again is None
    op = node.op("once" if again is None else "reonce", keys)
    op.value = op.value if again is None else again.value
    node.last_once = op
    publish = [[STAGED, 1, pack_messages(None, [op.value])]]
    node.put(op, {"once": [f"{node.name}.once", node.counted, False], "publish": publish})


def settings(node: ClientNode, topic: str, told: dict[str, Any] | None) -> None:
    """Make a topic, or remove it if `told` is None."""
    if node.running and node.core.unsettled <= 200:
        op = node.op("topic", [])
        node.ops.pop()
        node.put(op, {"topic": [topic, told]})


def _values(row: LoggedMessages) -> list[bytes]:
    return [value for body in msgpack.unpackb(row.body) for value in msgpack.unpackb(body)[1]]


def held(server: ServerNode, topic: Any) -> dict[int, bytes]:
    """Return the messages of a topic on a server's disk, by offset."""
    found: dict[int, bytes] = {}
    for row in server.disk.shelf.read(topic.id, topic.first, EVERY, EVERY):
        found |= {row.first + i: value for i, value in enumerate(_values(row)) if row.first + i >= topic.first}
    return found


class TopicChecks:
    """The checkers of this module's rules. `check` is called at the end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.groups = GroupChecks(world)
        self._schedule = ScheduleChecks(world)

    @property
    def _lost(self) -> bool:
        """True if a disk or its end was lost, or a server had a foreign disk."""
        servers = self._world.servers
        return self._world.disks_lost or any(n.lost_disk or n.own_disk or not n.disk.durability for n in servers)

    def check(self, names: frozenset[bytes]) -> None:
        """Check everything. `names` are the names of the operations whose keys are in the history."""
        fail = self._world.checks.fail
        one, two = self._world.servers
        states = [node.core.state.topics.to_list() for node in (one, two)]
        if states[0] != states[1]:
            fail(f"the servers' topics differ: {states}")
        there: set[bytes] = set()
        removed = False
        for topic in one.core.state.topics.by_name.values():
            removed |= topic.first > 0
            there |= self._one_order(topic, held(one, topic), held(two, topic))
        for node in (one, two):
            again = node.recovered_anew().state.topics.to_list() if node.disk.durability else states[0]
            if again != states[0]:
                fail(f"{node.name}'s journal and memory have different topics: {again}, {states[0]}")
        if not removed and not self._world.topics_removed:
            self._promises(there)
            self._schedule.check(there, whole=not self._lost)
        if not self._lost:
            self._together(there, names)
        done = one.core.state.topics.by_name.get(DONE)
        if done is not None:
            topics = one.core.state.topics.by_name
            letters, messages = [
                {**held(two, topics[name]), **held(one, topics[name])} if name in topics else {} for name in (DEAD, "t")
            ]
            effects = {**held(two, done), **held(one, done)}
            self.groups.check(one.core, effects, letters, messages, whole=not self._lost)

    def _one_order(self, topic: Any, one: dict[int, bytes], two: dict[int, bytes]) -> set[bytes]:
        fail, offsets = self._world.checks.fail, range(topic.first, topic.next)
        for mine in (one, two):
            if len(set(mine.values())) < len(mine):
                fail(f"a message of topic {topic.name} is there more than once")
            # A server that removed a topic in a discarded history has deleted what its peer may not have got yet.
            if set(mine) != set(offsets) and not self._lost and not self._world.topics_removed:
                fail(f"topic {topic.name} has the offsets {sorted(mine)}, not {topic.first} to {topic.next}")
        for offset in one.keys() & two.keys():
            if one[offset] != two[offset]:
                fail(f"message {offset} of topic {topic.name} is {one[offset]!r} here and {two[offset]!r} there")
        return {*one.values(), *two.values()}

    def _promises(self, there: set[bytes]) -> None:
        for client in self._world.clients:
            for op in client.published:
                if self._promised(op) and op.value not in there:
                    self._world.checks.fail(f"message {op.name} was acknowledged as replicated, and is lost")

    def _together(self, there: set[bytes], names: frozenset[bytes]) -> None:
        """Check that a transaction has all of its keys and messages, or none. A replay in pieces is exempt."""
        checks = self._world.checks
        for op in (op for client in self._world.clients for op in client.ops if op.message and op.kind == "tx"):
            if (op.value in there) != (op.value in names) and op.value not in checks.saved | checks.replayed:
                checks.fail(f"of transaction {op.name} there are keys or a message, and not both")

    def _promised(self, op: Op) -> bool:
        # With three copies, the loss of two disks loses no replicated message.
        if not op.acked or (self._lost and not self._world.disasters):
            return False
        return op.result is not None and op.result[2] == 2
