"""Scheduled messages in the simulator: programs that schedule and cancel them, and the rules that hold in the end.

schedule c1 t 2.5 [/key]    The program of c1 schedules a message of topic t in 2.5 s, unless /key changes before.
unschedule c1               It cancels the message that it has scheduled last.

same        In both servers, and in a replay of each journal, the same scheduled messages wait.
once        No message is published twice (topics.py checks that for all messages).
promises    A message whose schedule was acknowledged as replicated is published, or waits, unless a program tried
            to cancel it or wrote its key. Rules may deny it when it is due, so worlds with keys are exempt.
cancelled   A message whose cancellation was acknowledged as replicated is never published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chp.topics import pack_messages

if TYPE_CHECKING:
    from .clients import ClientNode, Op
    from .world import World


class Scheduled:
    """A message that a program has scheduled: the operations for it, and the key on which it depends."""

    def __init__(self, op: Op, topic: str, key: str | None) -> None:
        self.op, self.topic, self.key = op, topic, key
        self.cancels: list[Op] = []

    @property
    def name(self) -> str:
        """The name of the message, which is also its value."""
        return self.op.name


def schedule(node: ClientNode, topic: str, delay_s: float, key: str | None) -> None:
    """Schedule a message that names the operation."""
    if not node.running or node.core.unsettled > 200:
        return
    op = _operation(node)
    op.value = op.name.encode()
    body = pack_messages(None, [op.value])
    node.scheduled.append(Scheduled(op, topic, key))
    node.put(op, {"schedule": [[topic, op.name, -round(1000 * delay_s), 0, key, body]]})


def cancel(node: ClientNode) -> None:
    """Cancel the last message of this program."""
    if node.running and node.scheduled and node.core.unsettled <= 200:
        last, op = node.scheduled[-1], _operation(node)
        last.cancels.append(op)
        node.put(op, {"cancel": [[last.topic, last.name]]})


def _operation(node: ClientNode) -> Op:
    op = node.op("sched", [])
    # The checkers of sets must not see this operation.
    node.ops.pop()
    return op


def promised(op: Op) -> bool:
    """Return True if an operation was acknowledged as replicated."""
    return op.acked and op.result is not None and op.result[2] == 2


class ScheduleChecks:
    """The checkers of this module's rules."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check(self, there: set[bytes], *, whole: bool) -> None:
        """Check everything; `there` has the messages that were published, `whole` says that no disk was lost."""
        fail, (one, two) = self._world.checks.fail, self._world.servers
        waits = [_waiting(node.core) for node in (one, two)]
        if waits[0] != waits[1]:
            fail(f"the servers wait with different messages: {sorted(waits[0].items() ^ waits[1].items())}")
        for node in (one, two):
            again = _waiting(node.recovered_anew()) if node.disk.durability else waits[0]
            if again != waits[0]:
                fail(f"{node.name}'s journal and memory wait with different messages")
        waiting = {name for _, name in waits[0]}
        ruled = bool(self._world.server_settings.get("keyed"))
        written = {key for client in self._world.clients for op in client.ops for key in op.keys}
        for each in (each for client in self._world.clients for each in client.scheduled) if whole else ():
            published = each.op.value in there
            free = not ruled and not each.cancels and each.key not in written
            if promised(each.op) and free and not published and each.name not in waiting:
                fail(f"scheduled message {each.name} was acknowledged as replicated, and is lost")
            if published and any(map(promised, each.cancels)):
                fail(f"message {each.name} was cancelled, and was published")


def _waiting(core: Any) -> dict[tuple[str, str], tuple[int, str]]:
    by_topic = core.state.topics.schedule.by_topic
    return {(topic, name): (m.due_ms, m.unless) for topic, found in by_topic.items() for name, m in found.items()}
