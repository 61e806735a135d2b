"""What clients are told of their sets: acknowledgements and refusals of the open record, and those that wait.

    acknowledge, refuse        of the open record                 tell_expected    at once: it refuses nothing for good
    commit                     they wait for their record         release          their time has come

An answer waits until the passive has confirmed its record, while one is in sync, and then says *replicated*; a refusal
waits likewise, since a successor that never had the record might do what was refused because of it. Pure.
"""

from __future__ import annotations

from collections import Counter, deque

from chp.batch import encode
from chp.headers import REPLICATED, Ack, Refused
from chp.keys import session_topic

from .channels import greeting
from .turn import Frames, Turn

Runs = dict[bytes, list[list[int]]]  # of each session: first batch, last batch, revision


class Answers:
    """All that is to be told."""

    def __init__(self, durability: int, counts: Counter[str]) -> None:
        self.durability = durability  # of what this server alone has
        self._counts = counts
        self.waiting: deque[tuple[int, Runs, list[Frames]]] = deque()  # by the number that they wait for
        self.told = 0  # up to this number answers have been given
        self._runs: Runs = {}
        self._refusals: list[Frames] = []
        self._at_once: list[Frames] = []
        self._expected_told: set[bytes] = set()

    # -- of the open record

    def acknowledge(self, session_id: bytes, no: int, revision: int) -> None:
        """A batch is done."""
        runs = self._runs.setdefault(session_id, [])
        if runs and runs[-1][1] + 1 == no and runs[-1][2] == revision:
            runs[-1][1] = no
        else:
            runs.append([no, no, revision])

    def refuse(self, session_id: bytes, no: int, code: str, detail: object, number: int) -> None:
        """A batch is not done, for good."""
        self._refusals.append(self._refusal(session_id, no, code, detail, number))

    def tell_expected(self, session_id: bytes, no: int, code: str, wanted: int, number: int) -> None:
        """A batch is not its session's next; said once a record."""
        if session_id not in self._expected_told:
            self._expected_told.add(session_id)
            self._at_once.append(self._refusal(session_id, no, code, wanted, number))

    def _refusal(self, session_id: bytes, no: int, code: str, detail: object, number: int) -> Frames:
        self._counts[f"refused_{code}"] += 1
        return greeting(session_topic(session_id), number, encode(Refused(no, code, detail)))

    def commit(self, turn: Turn, number: int, *, hold: bool) -> None:
        """The record is made, and ends with `number`; `hold`: its answers wait for the passive."""
        if self._at_once:
            turn.acks += self._at_once
            self._at_once, self._expected_told = [], set()
        if self._runs or self._refusals:
            self.waiting.append((number, self._runs, self._refusals))
            self._runs, self._refusals = {}, []
            if not hold:
                self.release_alone(turn, number)

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
        self.told, sessions, refusals = self.waiting.popleft()
        for session_id, runs in sessions.items():
            turn.acks.append(greeting(session_topic(session_id), number, encode(Ack(runs, durability))))
        turn.acks += refusals
