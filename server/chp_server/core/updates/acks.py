"""What clients are told of their sets: acknowledgements and refusals of the open record, and those that wait.

    acknowledge, answer        of the open record; what refuses nothing for good is told at once
    commit                     the record is made: they are owed
    release, release_alone     the end of a turn in which the passive has confirmed it, or nobody is to

An answer waits until the passive has confirmed its record, while one is in sync, and then says *replicated*; a refusal
waits likewise, since a successor that never had the record might do what was refused because of it. Pure.
"""

from __future__ import annotations

from collections import Counter, deque

from chp.batch import encode
from chp.headers import REPLICATED, Ack, Refused
from chp.keys import session_topic
from chp.limits import DEFAULT

from ..state.verdicts import Duplicate, Expected, Refuse, Unrecorded, Verdict
from .channels import greeting
from .turn import Frames, Turn

Runs = dict[bytes, list[list[int]]]  # of each session: first batch, last batch, revision


class Acks:
    """All that is owed to clients."""

    def __init__(self, durability: int, counts: Counter[str]) -> None:
        self.durability = durability  # of what this server alone has
        self._counts = counts
        self.waiting: deque[tuple[int, Runs, list[Frames]]] = deque()  # by the number that they wait for
        self.answered = 0  # up to this number answers have been given
        self._runs: Runs = {}
        # Refusals, and acknowledgements of what is in no record: they are whole, and wait for the record as others do.
        self._unrecorded: list[Frames] = []
        self._at_once: list[Frames] = []
        self._expected_told: set[bytes] = set()

    # -- of the open record

    def answer(self, verdict: Verdict, number: int) -> None:
        """What a batch that is not done came to."""
        if isinstance(verdict, Expected):
            self._tell_expected(*verdict.batch, verdict.code, verdict.wanted, number)
        elif isinstance(verdict, Refuse) and verdict.batch is not None:
            self._refuse(*verdict.batch, verdict.code, verdict.detail, number)
        elif isinstance(verdict, Unrecorded):
            self._tell_unrecorded(*verdict.batch, number)
        elif isinstance(verdict, Duplicate) and verdict.batch is not None:
            if verdict.refusal is not None:
                self._refuse(*verdict.batch, *verdict.refusal, number)
            else:
                self.acknowledge(*verdict.batch, verdict.revision)

    def acknowledge(self, session_id: bytes, no: int, revision: int) -> None:
        """A batch is done."""
        runs = self._runs.setdefault(session_id, [])
        if runs and runs[-1][1] + 1 == no and runs[-1][2] == revision:
            runs[-1][1] = no
        else:
            runs.append([no, no, revision])

    def _tell_unrecorded(self, session_id: bytes, no: int, number: int) -> None:
        """Acknowledge a batch that is in no record, at `number`, which has all that was acknowledged before it.

        It never says *replicated*: the passive has confirmed nothing since the batch came, and may serve by now.
        """
        told = Ack([[no, no, number]], self.durability)
        self._unrecorded.append(greeting(session_topic(session_id), number, encode(told)))

    def _refuse(self, session_id: bytes, no: int, code: str, detail: object, number: int) -> None:
        """A batch is not done, for good."""
        self._unrecorded.append(self._refusal(session_id, no, code, detail, number))

    def _tell_expected(self, session_id: bytes, no: int, code: str, wanted: int, number: int) -> None:
        """A batch is not its session's next; said once a record."""
        if session_id not in self._expected_told:
            self._expected_told.add(session_id)
            self._at_once.append(self._refusal(session_id, no, code, wanted, number))

    def _refusal(self, session_id: bytes, no: int, code: str, detail: object, number: int) -> Frames:
        self._counts[f"refused_{code}"] += 1
        body = encode(Refused(no, code, detail))
        if len(body) > DEFAULT.body_bytes_max:  # a map of more keys than a frame has room for
            body = encode(Refused(no, code, {}))
        return greeting(session_topic(session_id), number, body)

    def commit(self, turn: Turn, number: int) -> None:
        """The record is made, and ends with `number`: its answers are owed."""
        if self._at_once:
            turn.acks += self._at_once
            self._at_once, self._expected_told = [], set()
        if self._runs or self._unrecorded:
            self.waiting.append((number, self._runs, self._unrecorded))
            self._runs, self._unrecorded = {}, []

    def owe(self, number: int) -> None:
        """Something else waits for what acknowledgements wait for: `told` says when."""
        self.waiting.append((number, {}, []))

    # -- of records

    def release(self, turn: Turn, confirmed: int, number: int) -> None:
        """The passive has everything up to `confirmed`: tell what waited for that."""
        while self.waiting and self.waiting[0][0] <= confirmed:
            self._tell(turn, REPLICATED, number)

    def release_alone(self, turn: Turn, number: int) -> None:
        """Nobody will confirm: acknowledge everything for what it is worth here."""
        while self.waiting:
            self._tell(turn, self.durability, number)

    def _tell(self, turn: Turn, durability: int, number: int) -> None:
        self.answered, sessions, refusals = self.waiting.popleft()
        for session_id, runs in sessions.items():
            turn.acks.append(greeting(session_topic(session_id), number, encode(Ack(runs, durability))))
        turn.acks += refusals
