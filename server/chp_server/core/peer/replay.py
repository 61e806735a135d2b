"""REPLAY: a passive hands its suffix to the active, which does it again (SPEC.md, section 21).

    passive, which was active alone             active
      saves its suffix to a file
      REPLAY [server, id, common, pieces] --->  does each piece again, in order, with its session's batch number
      REPLAYED [id, keys, number]         <---  the keys in conflict, and the number of the records with the rest

suffix.py decides what becomes of each update. One message is on its way at a time; the passive sends it again until it
is answered. A passive may become active itself before its suffix is handed over. Then it does the rest of the suffix
again itself. The rest includes answered messages whose records have not come back from the former active.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from chp import columns
from chp.batch import Segment, decode, packb, unpackb
from chp.errors import BadFrame
from chp.limits import DEFAULT
from chp.numbers import describe
from chp.topics import unpack_messages
from chp.unpacking import Load, weight_of

from ..asks import Ask
from ..pair import follow
from ..pair.pair_state import PASSIVE, PairState
from ..state.access_state import APPLICATION
from ..state.commit_record import in_memory
from ..state.record_log import LoggedMessages, Record
from ..state.state import ReplicatedState
from ..state.topics import Topics
from ..updates.commit import Committer
from ..updates.turn import ALREADY, CurrentTurn, ReadMessages, Save, Update
from .suffix import (
    CONFLICT,
    REPLAYED,
    RULES,
    Ledger,
    SuffixPart,
    account,
    account_by_state,
    account_of_rules,
    parted,
    uuids_of,
)

# The active expects the next message of a peer's suffix within this many `peer_timeout_s`.
SUFFIX_S = 2.0
# At most this many bytes of topic messages are handed over. Messages beyond that are counted as lost.
HANDED_BYTES = 64 << 20
# One read of the journal takes about this many bytes of messages.
PAGE_BYTES = 4 << 20


class ReplayedMessages:
    """The topic messages of a suffix, by topic and offset."""

    def __init__(self, records: Sequence[Record], topics: Topics, read: Sequence[LoggedMessages]) -> None:
        self.lost = 0
        self._found: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._left = HANDED_BYTES
        self._ids = {topic.id: topic.name for topic in topics.by_name.values()}
        for record in records:
            for row in record.messages or ():
                self._take(row)
        for row in read:
            self._take(row)

    def _take(self, row: LoggedMessages) -> None:
        name, at = self._ids.get(row.topic), row.first
        if name is None or self._left < len(row.body):
            return
        self._left -= len(row.body)
        for body in unpackb(row.body, "messages", None):
            n = len(unpack_messages(body)[1])
            self._found[name, at] = n, body
            at += n

    def back(self, segment: Segment) -> Segment:
        """Return a segment as the client sent it, with its messages and without their offsets."""
        extras = segment.extras
        if not extras or columns.OF_TOPICS.isdisjoint(extras):
            return segment
        kept = columns.without(extras, {columns.PLACED, columns.TRIM})
        if columns.TOPIC in kept and kept[columns.TOPIC][1] is None:
            del kept[columns.TOPIC]
        settings = kept[columns.GROUP][2] if columns.GROUP in kept else {}
        if settings is None or {"again", "change"} & settings.keys():
            del kept[columns.GROUP]
        published = []
        for name, first, count, *_ in extras.get(columns.PLACED, [0, []])[1]:
            if (name, first) in self._found:
                published.append([name, *self._found.pop((name, first))])
            else:
                self.lost += count
        if published:
            kept[columns.PUBLISH] = published
        return Segment(segment.keys, segment.values, kept or None)


def placed_by(records: Iterable[Record], topics: Topics) -> dict[int, tuple[int, int]]:
    """Return the range of offsets that records have placed in each topic: the first, and the one behind the last."""
    found: dict[int, tuple[int, int]] = {}
    for record in records:
        for _, _, extras in decode(record.body)[1]:
            for name, first, count, *_ in (extras or {}).get(columns.PLACED, [0, []])[1]:
                topic = topics.by_name.get(name)
                if topic is not None:
                    at, end = found.get(topic.id, (first, first))
                    found[topic.id] = min(at, first), max(end, first + count)
    return found


class Since:
    """The keys that records after a number wrote, and the versions of applications that they counted."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self.keys: set[str] = set()
        self.versions: set[tuple[str, int]] = set()

    def wrote(self, key: str) -> bool:
        """Return True if a key may have been written."""
        return not self._whole or key in self.keys

    def counted(self, application: str, version: int) -> str:
        """Return what became of a version that is not above its application's last one."""
        if not self._whole:
            return CONFLICT
        return ALREADY if (application, version) in self.versions else ""


LONG_AGO = -1e9
# A message has at most this many keys, because REPLAYED may name all of them.
KEYS_MAX = DEFAULT.batch_items_max
# A larger piece is split, so that each part fits into a message between the peers.
PIECE_BYTES_MAX = 64 << 20


class Replay:
    """The two ends of a replay; a server uses one at a time, as a passive or as the active."""

    def __init__(self, turn: CurrentTurn, pair: PairState, committer: Committer) -> None:
        self._turn, self._pair, self._committer, self._committed = turn, pair, committer, committer.committed
        # The messages that wait, each a list of pieces. The first one is on its way.
        self._waiting: deque[list[list[Any]]] = deque()
        # Messages that were answered, with the number of their records, until these records have come.
        self._answered_at: deque[tuple[int, list[list[Any]]]] = deque()
        # The updates that are handed over, by key; the active's answer may turn some into conflicts.
        self._updates: dict[str, Update] = {}
        self._common = 0
        self._id = 0
        self._sent_at = LONG_AGO
        # On the active: the server whose suffix it does again, and the ledger of that suffix.
        self._takeover: tuple[bytes, Ledger] | None = None
        # On the active: the last answer, with the server and the id of the message.
        self._answered: tuple[bytes, int, list[str], int] = (b"", 0, [], 0)

    @property
    def under_way(self) -> bool:
        """True if a part of our suffix was not handed over yet."""
        return bool(self._waiting)

    # -- the passive's end

    def read_suffix(self, common: int) -> Generator[Ask, Any, list[LoggedMessages]]:
        """Read the topic messages of our records after `common` from the journal, if they are not in memory."""
        committed = self._committed
        found = list[LoggedMessages]()
        log, left = committed.log, HANDED_BYTES
        start = common if log.reaches(common) else log.oldest
        suffix = [] if start is None else log.after(start, 1 << 62)
        # After a restart the log has no messages, and does not know which records had some.
        records = [record for record in suffix if not record.messages]
        for topic, (first, end) in placed_by(records, committed.state.topics).items():
            at = first
            while at < end and left > 0:
                rows = yield ReadMessages(topic, at, committed.state.number, PAGE_BYTES)
                if isinstance(rows, Exception):
                    raise rows
                found += rows
                left -= sum(len(row.body) for row in rows)
                at = rows[-1].end if rows else end
        return found

    def part_with(self, common: int, before: ReplicatedState, messages: Sequence[LoggedMessages]) -> None:
        """Decide what becomes of each update of our suffix, write it to a file, and queue what can be replayed.

        `before` is our state with the suffix, and `messages` are those that `read_suffix` has found.
        """
        turn, committer, committed = self._turn, self._committer, self._committed
        log = committed.log
        complete = log.reaches(common)
        start = log.oldest or before.number
        suffix = [record for record in log.drop_after(common) if complete or record.first > start]
        handed = ReplayedMessages(suffix, before.topics, messages)
        updates, pieces = account(suffix, common, committed.state, handed.back, before.staging.owner_of)
        if not complete:
            seen = {update.key for update in updates}
            older, unknown = account_by_state(before, common, committed.state, turn.now, seen=seen, upto=start)
            updates, pieces = older + updates, [uuids_of(before, committed.state, pieces), *unknown, *pieces]
        rules, first = account_of_rules(before, common, committed.state)
        updates, pieces = rules + updates, first + pieces
        self._updates = {update.key: update for update in updates if update.outcome == REPLAYED}
        self._waiting = deque(_messages(pieces, committer.limits.part_bytes))
        self._answered_at.clear()
        self._common, self._sent_at = common, LONG_AGO
        turn.effects.saves.append(Save(f"suffix-{describe(before.number)}", updates))
        counts = {f"suffix_{name}": sum(u.outcome == name for u in updates) for name in (ALREADY, REPLAYED, CONFLICT)}
        if handed.lost:
            counts["suffix_messages_lost"] = handed.lost
        committer.counts.update(counts)
        numbers = {"number": describe(before.number), "common": describe(common)}
        turn.effects.fact("suffix", "warning", **numbers, complete=complete, **counts)

    def hand_over(self) -> None:
        """Send the next message, or send the last one again if it was not answered in time."""
        turn, pair = self._turn, self._pair
        while self._answered_at and self._answered_at[0][0] <= self._committed.state.number:
            self._answered_at.popleft()
        if not (self._waiting or self._answered_at):
            self._updates.clear()
        if not self._waiting or pair.bstate is not PASSIVE or pair.replacing is not None:
            return
        if turn.now - self._sent_at > pair.config.peer_timeout_s:
            if self._sent_at == LONG_AGO:
                self._id += 1
            self._sent_at = turn.now
            said = [pair.server, self._id, self._common, self._waiting[0]]
            turn.effects.to_peer.append([follow.REPLAY, packb(said)])

    def on_replayed(self, body: bytes) -> None:
        """Take the active's answer: it has done the message again, except for the keys in conflict.

        The same answer may come twice, as a message that was not answered in time is sent again.
        """
        suffix_id, refused, number = unpackb(body, "REPLAYED")
        counts = type(number) is int and number >= 0
        if not (counts and isinstance(refused, list) and all(isinstance(key, str) for key in refused)):
            raise BadFrame(f"a REPLAYED has the number {number!r:.40} and the keys {refused!r:.40}")
        if self._waiting and suffix_id == self._id and self._sent_at != LONG_AGO:
            self._answered_at.append((number, self._waiting.popleft()))
            self._sent_at = LONG_AGO
            self._late(refused)
            if not self._waiting:
                self._turn.effects.fact("suffix handed over", common=describe(self._common))

    def _late(self, refused: list[str]) -> None:
        turn, committer = self._turn, self._committer
        late = [self._updates.pop(key) for key in dict.fromkeys(refused) if key in self._updates]
        if late:
            for update in late:
                update.outcome = CONFLICT
            committer.counts["suffix_conflict"] += len(late)
            committer.counts["suffix_replayed"] -= len(late)
            turn.effects.saves.append(Save(f"suffix-late-{describe(self._committed.state.number)}", late))
            turn.effects.fact("suffix", "warning", suffix_conflict=len(late))

    def own(self, held: int) -> None:
        """Do the rest of our suffix here, as this server became active. Answered parts up to number `held` are done."""
        waiting = [*(message for number, message in self._answered_at if number > held), *self._waiting]
        self._waiting.clear()
        self._answered_at.clear()
        if waiting:
            ledger = Ledger(self._common)
            self._late([key for pieces in waiting for key in self._take(ledger, pieces)])

    # -- the active's end

    def await_suffix(self) -> None:
        """Expect the suffix of a peer that was active too: it gives way, gets our state, and hands over its updates."""
        self._committer.await_suffix(self._turn.now + SUFFIX_S * self._pair.config.peer_timeout_s)

    def on_replay(self, body: bytes) -> None:
        """Do a message of the peer's suffix again, and answer it; a repeated message gets the same answer."""
        server, suffix_id, common, pieces = unpackb(body, "REPLAY")
        if not self._pair.active:
            return
        self.await_suffix()
        if self._takeover is None or self._takeover[0] != server or self._takeover[1].common != common:
            self._takeover = server, Ledger(common)
        if self._answered[:2] != (server, suffix_id):
            refused = self._take(self._takeover[1], pieces)
            self._answered = server, suffix_id, refused, self._committed.state.number
        # The answer leaves when the records are in the journal.
        self._turn.effects.confirm.append([follow.REPLAYED, packb([suffix_id, *self._answered[2:]])])

    def _take(self, ledger: Ledger, pieces: list[list[Any]]) -> list[str]:
        """Make records of pieces; return the keys that are in conflict."""
        turn, committer, committed = self._turn, self._committer, self._committed
        refused, done = [], 0
        committer.commit(turn)
        known = self._done_since(ledger.common)
        for item in pieces:
            if (asked := SuffixPart.of(item)).rules is not None:
                refused += self._take_rules(asked.rules, ledger.common)
                continue
            piece, updates = ledger.judge(asked, committed.state, known.wrote, counted=known.counted)
            refused += [update.key for update in updates if update.outcome == CONFLICT]
            if piece is not None:
                self._set_again(piece)
                ledger.note(piece, committed.state)
                done += sum(len(segment.keys) for segment in piece.segments)
        committer.commit(turn)
        committer.counts["suffix_taken_over"] += done
        turn.effects.fact("suffix_taken_over", "warning", updates=done, refused=len(refused))
        return refused

    def _take_rules(self, document: dict[str, Any], common: int) -> list[str]:
        """Take over the rules of access of a suffix; log a conflict for the operator if they were changed here too."""
        turn, committer, committed = self._turn, self._committer, self._committed
        if committed.state.access.changed > common:
            turn.effects.fact(
                "access in conflict", "warning", common=describe(common), number=describe(committed.state.number)
            )
            return [RULES]
        committer.commit(turn)
        committer.keep_access(turn, rules=document)
        return []

    def _set_again(self, piece: SuffixPart) -> None:
        """Do a piece again in the open record, for the user that did it before.

        If the piece has conflicts, the open record is committed first: the refusals depend on what is known then.
        """
        turn, committer, committed = self._turn, self._committer, self._committed
        origins = piece.origins or []
        if not piece.whole:
            committer.commit(turn)
            origins = [[session, no] for session, no in origins if not committed.state.skipped(session, no)]
            if piece.origins is not None:
                piece.segments += parted(piece, committed.state)
        committer.recommit(turn, piece.segments, origins)
        if piece.user and piece.version is not None and committed.state.staging.owner_of(piece.version[0]) is None:
            committer.new_owners.setdefault(APPLICATION + piece.version[0].encode(), piece.user)

    def _done_since(self, common: int) -> Since:
        """Read the records after `common`, as far as the log reaches back."""
        log = self._committed.log
        if not log.reaches(common):
            return Since(whole=False)
        since = Since(whole=True)
        for record in in_memory(log.after(common, 1 << 62), self._committer.limits.part_bytes):
            for keys, _, extras in decode(record.body)[1]:
                since.keys.update(keys)
                told = (extras or {}).get(columns.DONE) or (extras or {}).get(columns.ONCE)
                if told:
                    since.versions.add((told[0], told[1]))
        return since


def _messages(pieces: list[SuffixPart], bytes_max: int) -> Iterator[list[list[Any]]]:
    """Yield pieces in groups of about `bytes_max`, in order."""
    group: list[list[Any]] = []
    load, keys = Load(bytes_max + PIECE_BYTES_MAX), 0
    for piece in (part for whole in pieces for part in _split(whole)):
        said, some = piece.to_replay(), sum(len(segment.keys) for segment in piece.segments)
        size, weight = sum(map(len, said[2])), weight_of(said)
        full = load.bytes > bytes_max or keys + some > KEYS_MAX
        if group and (full or not load.takes(size, weight)):
            yield group
            group, keys = [], 0
        if not group:
            load.begin(size, weight)
        group.append(said)
        keys += some
    if group:
        yield group


def _split(piece: SuffixPart) -> Iterator[SuffixPart]:
    """Yield a piece whole, or in parts that fit into a message; only the last part has the origins."""
    start = size = keys = 0
    for i, segment in enumerate(piece.segments):
        size += sum(map(len, segment.values)) + sum(map(len, segment.keys))
        keys += len(segment.keys)
        if (size > PIECE_BYTES_MAX or keys > KEYS_MAX) and i > start:
            yield SuffixPart(None, piece.whole, piece.segments[start:i], piece.on, user=piece.user)
            start, size, keys = i, 0, len(segment.keys)
    yield SuffixPart(piece.origins, piece.whole, piece.segments[start:], piece.on, piece.rules, piece.user)
