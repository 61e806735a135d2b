"""Members of a group that belong to no process: each step may come from another Clone, as with the gateways.

A stateless member is a name. Any client of its user may use the lease that makes it a member. Each step refreshes the
lease, and nothing else does. The lease's name is made with a secret of the pair. So every gateway of the pair can
compute the name, and no other user can. No state is kept between the steps. The servers know which messages are not
acknowledged, and give them again to a member that asks again. A receipt has the steps of an acknowledgement. The pair
decides whether the member may still acknowledge these messages.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from time import monotonic
from typing import Any, NamedTuple

from chp import columns
from chp.batch import packb
from chp.errors import BadFrame, BadInput, ChpError
from chp.headers import Messages
from chp.topics import keyed_lease, pack_slots, unpack_slots
from chp.unpacking import unpack

from ..agent.writer import Writer
from ..errors import Refused
from ..port.ask import LATER, Interrupted, QuestionPort
from .batch import Batch
from .chunk import parts_of
from .dead_letter_format import slots_for_one
from .reader import AGAIN_S, SILENCE_S

# A request looks for an active server for this long, in seconds. A failover takes one to three seconds.
SERVES_S = 5.0
NAME_MAX = 128
# The text of a receipt has at most this many characters, which is enough for 256 steps.
RECEIPT_MAX = 16_384
OFFSET_MAX = 1 << 61


def member_of(secret: bytes, topic: str, group: str, user: str, name: str) -> bytes:
    """Return the lease of a stateless member. Only programs with the pair's secret can compute it."""
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise BadInput(f"a member's name is 1 to {NAME_MAX} characters that can be printed, not {name!r:.160}")
    return keyed_lease(secret, "\n".join(("chp member", topic, group, user, name)).encode())


def coming(topic: str, group: str, member: bytes, name: str, ttl_ms: int) -> dict[str, Any]:
    """Return the columns by which a stateless member joins or stays for `ttl_ms` from now."""
    lease = [member, ttl_ms, columns.ANYBODY]
    return {columns.LEASE: lease, columns.JOIN: [topic, group, member, name]}


def staying(member: bytes, ttl_ms: int) -> dict[str, Any]:
    """Return the columns by which a member stays for `ttl_ms` from now. The pair refuses them if it is no member."""
    return {columns.REFRESH: member, columns.LEASE: [member, ttl_ms, columns.ANYBODY]}


def leaving(topic: str, group: str, member: bytes, *, counts: bool) -> dict[str, Any]:
    """Return the columns by which a member leaves. Its messages go to others. With `counts` they count as failed."""
    back = {columns.NACK: [[topic, group, member, []]]} if counts else {}
    return {columns.REFRESH: member, columns.UNLEASE: member, **back}


class Receipt(NamedTuple):
    """A receipt for messages: the member that received them, the steps that acknowledge them, and their position.

    It also says whether the group counts deliveries.
    """

    name: str
    moves: list[list[Any]]
    position: list[Any] | None = None
    counts: bool = False

    def __str__(self) -> str:
        told: list[Any] = [self.name, self.moves]
        if self.position is not None or self.counts:
            told.append(self.position)
        if self.counts:
            told.append(True)
        return urlsafe_b64encode(packb(told)).decode().rstrip("=")

    @staticmethod
    def of(text: object) -> Receipt:
        """Return the receipt that a text encodes. Raises `BadInput` if the text is no receipt."""
        try:
            if not isinstance(text, str) or len(text) > RECEIPT_MAX:
                raise BadInput("no text, or too long")
            name, moves, *more = unpack(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            good = type(name) is str and all(map(_is_move, moves)) and bool(moves) and more[1:] in ([], [True])
            good = good and (more[:1] == [None] or _is_position(more[:1]))
        except (ChpError, ValueError, TypeError):
            good = False
        if not good:
            raise BadInput(f"this is no receipt: {text!r:.80}; give one as it came with messages")
        return Receipt(name, moves, *more)

    def upto(self, offset: int) -> Receipt:
        """Return a receipt for the messages up to and including an offset."""
        moves = cut(self.moves, offset)
        if not moves:
            raise BadInput(f"no message up to {offset} came with this receipt")
        return self._replace(moves=moves)

    def without(self, messages: Iterable[tuple[int, str]]) -> Receipt:
        """Return a receipt without these messages (offset and key) and the later messages of their slots."""
        moves = self.moves
        for offset, key in messages:
            moves = [step for move in moves for step in _held(move, offset, slots_for_one(offset, key))]
        if not moves:
            raise BadInput("nothing else came with this receipt; `nack` gives all of it back")
        return self._replace(moves=moves)

    def given_back(self, messages: Iterable[tuple[int, str]], why: str) -> list[list[Any]]:
        """Return the entries of the column "nack" that give these messages (offset and key) back, each by name."""
        found: list[list[Any]] = []
        for offset, key in messages:
            for packed, after, upto in self.moves:
                slots = unpack_slots(packed) & slots_for_one(offset, key)
                if slots and after <= offset < upto:
                    found.append([pack_slots(slots), after, offset + 1, why])
        if not found:
            raise BadInput("none of these messages came with this receipt; give them as they came")
        return found

    def acknowledged(self, topic: str, group: str, member: bytes) -> dict[str, Any]:
        """Return the column that acknowledges the messages of this receipt. The pair may refuse it."""
        at = [] if self.position is None else [[self.position]]
        return {columns.ACK: [[topic, group, member, self.moves, *at]]}


def cut(moves: list[list[Any]], offset: int) -> list[list[Any]]:
    """Return the part of the steps for the messages up to and including an offset."""
    return [[slots, after, min(upto, offset + 1)] for slots, after, upto in moves if after <= offset]


def _held(move: list[Any], offset: int, held: int) -> list[list[Any]]:
    """Return a step, cut so that it ends before an offset for the slots `held`. The result is up to two steps."""
    slots, after, upto = unpack_slots(move[0]), move[1], move[2]
    steps = [(slots & held, min(upto, offset)), (slots & ~held, upto)]
    return [[pack_slots(some), after, end] for some, end in steps if some and end > after]


def _is_move(move: object) -> bool:
    if type(move) is not list or list(map(type, move)) != [bytes, int, int] or len(move[0]) != 32:
        return False
    return any(move[0]) and 0 <= move[1] < move[2] < OFFSET_MAX


def _is_position(more: list[Any]) -> bool:
    """Return True if a receipt ends with one position, or with none, as older receipts do."""
    if not more:
        return True
    return len(more) == 1 and type(more[0]) is list and list(map(type, more[0])) == [int, bytes, bytes]


class ReceivedBatch(NamedTuple):
    """The messages that a stateless member received."""

    batch: Batch
    # The steps that acknowledge as many messages as the caller asked for.
    moves: list[list[Any]]
    # How many messages of the topic, in all slots, come after them.
    behind: int

    @property
    def size(self) -> int:
        """The number of messages that the steps acknowledge."""
        last = max(upto for _, _, upto in self.moves)
        return sum(offset < last for offset in self.batch.offsets)


def receive(
    writer: Writer, servers: Sequence[str], whose: tuple[str, str, bytes], *, most: int, wait_s: float,
    stopped: Callable[[], bool],
) -> ReceivedBatch | None:  # fmt: skip
    """Return the next messages of a member, or None if no messages come in `wait_s`. The time is checked each second.

    Raises `Refused` with the code "member" if `whose` names no member, and `Unanswered` if no server serves.
    """
    topic, group, member = whose
    until = monotonic() + wait_s
    with QuestionPort(servers, SERVES_S, silence_s=SILENCE_S) as port:
        while True:
            try:
                for header, items in port.stream("", topic=topic, group=group, member=member, credit=1):
                    if not isinstance(header, Messages):
                        raise BadFrame("a server answers a member with something else; is it of an older version?")
                    if header.spans:
                        return _given(Batch(writer, whose, parts_of(header, items)[0], header.proof), header, most)
                    if stopped() or monotonic() >= until:
                        return None
            except Interrupted:
                pass
            except Refused as refused:
                if refused.code not in LATER:
                    raise
                Event().wait(AGAIN_S)
            if stopped() or monotonic() >= until + SERVES_S:
                return None


def _given(batch: Batch, header: Messages, most: int) -> ReceivedBatch:
    moves = batch.moves() if len(batch) <= most else cut(batch.moves(), batch.offsets[most - 1])
    return ReceivedBatch(batch, moves, header.topic_next - max(upto for _, _, upto in moves))
