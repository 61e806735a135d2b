"""The answers to sets: acknowledgements and refusals of the open record, and those that wait.

    acknowledge, answer        add answers for the open record; only the number of the expected batch is sent at once
    commit                     lets the answers of the open record wait, once the record is made
    release, release_alone     at the end of a turn, send the answers that the passive has confirmed; or, without a
                               passive, all

While a passive is in sync, an answer waits until the passive has confirmed the record. The answer then says
*replicated*. A refusal waits too: a batch may be refused because of this record, and a successor that never had the
record might do the batch. Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterator

from chp.batch import encode
from chp.headers import REPLICATED, Ack, Refused
from chp.keys import session_topic
from chp.limits import DEFAULT

from ..state.verdicts import Duplicate, Expected, Refuse, Unrecorded, Verdict
from .channels import greeting
from .turn import Frames, Turn

Runs = dict[bytes, list[list[int]]]  # session -> runs of batches: first, last, revision


class Acks:
    """The answers that clients wait for."""

    def __init__(self, durability: int, counts: Counter[str]) -> None:
        # The durability that this server can promise alone: applied, or journaled.
        self.durability = durability
        self._counts = counts
        # Acknowledgements to these sessions ask for batches of at most `bulk_items` keys, because other sessions wait
        # for their turn.
        self.bulk: Container[bytes] = ()
        self.bulk_items = DEFAULT.shared_batch_items
        # Answers that wait, each with the number that the passive must confirm first.
        self.waiting: deque[tuple[int, Runs, list[Frames]]] = deque()
        # The number of the last record whose answers were sent.
        self.answered = 0
        self._runs: Runs = {}
        # Refusals, and acknowledgements of batches that are in no record. They are complete messages, and also wait for
        # the open record.
        self._unrecorded: list[Frames] = []
        self._at_once: list[Frames] = []
        self._expected_told: set[bytes] = set()

    # -- of the open record

    def answer(self, verdict: Verdict, number: int) -> None:
        """Add the answer for a batch that is not done."""
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
        """Acknowledge a batch that is done. It extends the session's last run if the revision is the same."""
        runs = self._runs.setdefault(session_id, [])
        if runs and runs[-1][1] + 1 == no and runs[-1][2] == revision:
            runs[-1][1] = no
        else:
            runs.append([no, no, revision])

    def _tell_unrecorded(self, session_id: bytes, no: int, number: int) -> None:
        """Acknowledge a batch that is in no record, with the revision `number`.

        All sets that were acknowledged before have revisions up to `number`.

        The answer never says *replicated*: the passive has confirmed nothing since the batch came, and may be active by
        now.
        """
        told = Ack([[no, no, number]], self.durability)
        self._unrecorded.append(greeting(session_topic(session_id), number, encode(told)))

    def _refuse(self, session_id: bytes, no: int, code: str, detail: object, number: int) -> None:
        """Add the refusal of a batch that is not done, for good."""
        self._unrecorded.append(self._refusal(session_id, no, code, detail, number))

    def _tell_expected(self, session_id: bytes, no: int, code: str, wanted: int, number: int) -> None:
        """Tell a session which batch is expected next, at most once for each record."""
        if session_id not in self._expected_told:
            self._expected_told.add(session_id)
            self._at_once.append(self._refusal(session_id, no, code, wanted, number))

    def _refusal(self, session_id: bytes, no: int, code: str, detail: object, number: int) -> Frames:
        self._counts[f"refused_{code}"] += 1
        body = encode(Refused(no, code, detail))
        # A map of many keys may not fit a frame.
        if len(body) > DEFAULT.body_bytes_max:
            body = encode(Refused(no, code, {}))
        return greeting(session_topic(session_id), number, body)

    def commit(self, turn: Turn, number: int) -> None:
        """Let the answers of a record that ends with `number` wait for its confirmation."""
        if self._at_once:
            turn.acks += self._at_once
            self._at_once, self._expected_told = [], set()
        if self._runs or self._unrecorded:
            self.waiting.append((number, self._runs, self._unrecorded))
            self._runs, self._unrecorded = {}, []

    def owe(self, number: int) -> None:
        """Let an answer that is kept elsewhere wait among acknowledgements; `answered` then tells when it may leave."""
        self.waiting.append((number, {}, []))

    # -- of records

    def confirmed_by(self, number: int) -> Iterator[Runs]:
        """Yield the acknowledgements that wait for a number up to `number`, by session."""
        for wanted, sessions, _ in self.waiting:
            if wanted > number:
                return
            yield sessions

    def release(self, turn: Turn, confirmed: int, number: int) -> None:
        """Send the answers that waited for a number up to `confirmed`, which the passive has."""
        while self.waiting and self.waiting[0][0] <= confirmed:
            self._tell(turn, REPLICATED, number)

    def release_alone(self, turn: Turn, number: int) -> None:
        """Send all answers, because no passive will confirm them. They promise only this server's own durability."""
        while self.waiting:
            self._tell(turn, self.durability, number)

    def _tell(self, turn: Turn, durability: int, number: int) -> None:
        self.answered, sessions, refusals = self.waiting.popleft()
        for session_id, runs in sessions.items():
            told = Ack(runs, durability, self.bulk_items if session_id in self.bulk else None)
            turn.acks.append(greeting(session_topic(session_id), number, encode(told)))
        turn.acks += refusals


class CountedAcks(Acks):
    """The answers of a server with `--copies` above 2: each acknowledgement says how many servers have synced it."""

    def __init__(self, durability: int, counts: Counter[str]) -> None:
        super().__init__(durability, counts)
        # The durability that answers promise once the passive has confirmed them: REPLICATED if enough replicas are in
        # sync, else this server's own (release.py).
        self.worth = REPLICATED
        # Counts the servers that have everything up to a number on disk.
        self.copies_of: Callable[[int], int] = lambda number: 1

    def release(self, turn: Turn, confirmed: int, number: int) -> None:
        """Send the answers that waited for a number up to `confirmed`."""
        while self.waiting and self.waiting[0][0] <= confirmed:
            self._tell(turn, self.worth, number)

    def _tell(self, turn: Turn, durability: int, number: int) -> None:
        self.answered, sessions, refusals = self.waiting.popleft()
        copies = self.copies_of(self.answered)
        for session_id, runs in sessions.items():
            told = Ack(runs, durability, self.bulk_items if session_id in self.bulk else None, copies)
            turn.acks.append(greeting(session_topic(session_id), number, encode(told)))
        turn.acks += refusals
