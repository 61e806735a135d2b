"""`chp check --against SERVER`: compare the contents of a journal, or of another server, with those of a running one.

    of_server(address)          a snapshot of the server, in any state, kept as a sum for each key
    of_journal(url, number)     the state of a journal at that number, or at its end if that comes before
    compare(one, other)         the keys that differ

Two contents seldom have the same number. Keys that were written after the lower of the two are left out, and so is a
key that only the lower one has: it may have been deleted since. A journal that reaches the server's number is read
exactly up to it, so no key of a pair in sync is left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple
from zlib import crc32

import zmq

from chp import columns, keyfiles
from chp.addresses import is_ipv6
from chp.batch import Segment, decode, packb, segment_of
from chp.errors import BadFrame, ChpError
from chp.headers import Kthxbai, Refused, Sync
from chp.keys import RESERVED_KEY
from chp.limits import DEFAULT
from chp.messages import ICANHAZ
from chp.numbers import describe
from chp.versions import VERSION

from ..core.snapshots import recovering
from ..core.updates.committed import Committed
from ..ports.sockets import only_ipv6
from ..store.store_url import look_at

CREDIT = 16
GRANT = 8
# The journal of a running server has this many seconds to reach the other server's number.
JOURNAL_WAIT_S = 3.0
JOURNAL_LOOK_S = 0.2


class NoContents(ChpError):
    """An error: contents could not be read; the text says where, and why."""


class HeldContents(NamedTuple):
    """The facts of a key that are compared."""

    revision: int
    crc: int
    ttl: bool


@dataclass(slots=True)
class Contents:
    """The keys of a server or a journal at one number."""

    where: str
    number: int = 0
    store: bytes = b""
    keys: dict[str, HeldContents] = field(default_factory=dict)

    def take(self, segment: Segment) -> None:
        """Add a chunk of a snapshot."""
        extras = segment.extras or {}
        revisions = [r for revision, n in extras.get(columns.REVISIONS, ()) for r in repeat(revision, n)]
        column = extras.get(columns.TTLS, ((), ()))
        ttls = set(range(len(segment.keys)) if type(column) is int else column[0])
        for i, (key, value, revision) in enumerate(zip(segment.keys, segment.values, revisions, strict=True)):
            self.keys[key] = HeldContents(revision, crc32(value), i in ttls)


class Difference(NamedTuple):
    """A key that differs, and how, for people."""

    key: str
    how: str


@dataclass(slots=True)
class Compared:
    """The result of `compare`."""

    # The keys that were compared.
    keys: int = 0
    left_out: int = 0
    differing: list[Difference] = field(default_factory=list)


def compared(one: Contents, other: Contents, again: Callable[[], Contents]) -> Compared:
    """Compare contents, which have to be of one store.

    If their numbers differ, a key counts only if it differs again in a second comparison.
    """
    if one.store != other.store and one.store and other.store:
        raise NoContents(
            f"it is of store {one.store.hex()}, and {other.where} holds {other.store.hex()}: two pairs, or one of them "
            "was begun anew"
        )
    found = compare(one, other)
    if found.differing and one.number != other.number:
        twice = {difference.key for difference in compare(one, again()).differing}
        found.differing = [difference for difference in found.differing if difference.key in twice]
    return found


def compare(one: Contents, other: Contents) -> Compared:
    """Compare the keys of both, as far as their two numbers allow it."""
    found = Compared()
    lower = min(one.number, other.number)
    for key in sorted(one.keys.keys() | other.keys.keys()):
        a, b = one.keys.get(key), other.keys.get(key)
        written_since = max(a.revision if a else 0, b.revision if b else 0) > lower
        deleted_since = (a is None and one.number > other.number) or (b is None and other.number > one.number)
        if written_since or deleted_since:
            found.left_out += 1
        else:
            found.keys += 1
            if a != b:
                found.differing.append(Difference(key, _how(a, b, one.where, other.where)))
    return found


def _how(a: HeldContents | None, b: HeldContents | None, one: str, other: str) -> str:
    if a is None or b is None:
        return f"only {other if a is None else one} has it"
    if a.revision != b.revision:
        return f"revision {describe(a.revision)}, not {describe(b.revision)}"
    return "another value" if a.crc != b.crc else "a ttl" if a.ttl else "no ttl"


# -- of a journal


def of_journal(url: str, number: int) -> Contents:
    """Return the contents of a journal at `number`; a journal in use may reach the number a moment later."""
    until = time.monotonic() + JOURNAL_WAIT_S
    while (found := _at(url, number)).number < number and time.monotonic() < until:
        # This is a wait by time, as no event of the other process reaches us.
        threading.Event().wait(JOURNAL_LOOK_S)
    return found


def _at(url: str, number: int) -> Contents:
    commits, now, wall_s = Committed(DEFAULT), time.monotonic(), time.time()
    store = look_at(url)
    try:
        loaded = store.load()
        if loaded.snapshot_number > number:
            raise NoContents(
                f"the journal's snapshot is of {describe(loaded.snapshot_number)}, after {describe(number)}: it is "
                "ahead, so what it was at that number can't be told; check again"
            )
        for _ in recovering(commits, loaded.snapshot, DEFAULT, now, wall_s):
            pass
        for row in loaded.rows:
            if row.last > number:
                break
            commits.follow(row.body, now, wall_s)
    finally:
        store.close()
    held = commits.state.map
    keys = {k: HeldContents(held.revisions[k], crc32(v), k in held.deadlines) for k, v in held.values.items()}
    return Contents("the journal", commits.state.number, commits.state.store, keys)


# -- of a server


def keys_of(path: str | None, address: str) -> tuple[keyfiles.KeyPair, bytes] | None:
    """Return this client's pair and the server's key from a client file; None without a file.

    If the file names several keys of the server, the first one is used.
    """
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            table = keyfiles.read_table(file.read(keyfiles.FILE_BYTES_MAX))
        pair = keyfiles.KeyPair(keyfiles.key_of(table, "public"), keyfiles.key_of(table, "secret"))
        servers = table.get("servers")
        known = {each["address"]: each["keys"][0] for each in servers} if isinstance(servers, list) else {}
        return pair, keyfiles.key_of({"server's": known[address]}, "server's")
    except OSError as error:
        raise NoContents(f"the client file {path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoContents(f"the client file {path} is no text") from None
    except (KeyError, IndexError, TypeError):
        raise NoContents(f"the client file {path} has no [[servers]] with address {address} and its keys") from None
    except ValueError as error:
        raise NoContents(f"the client file {path} {error}") from None


def of_server(address: str, timeout_s: float, file: str | None = None) -> Contents:
    """Return a snapshot of a server's contents, or raise `NoContents` if the server is silent for `timeout_s`."""
    keys = keys_of(file, address)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.immediate, socket.maxmsgsize = 0, 1, DEFAULT.frame_bytes_max
        socket.ipv6 = is_ipv6(address) or only_ipv6(address)
        if keys is not None:
            (pair, socket.curve_serverkey) = keys
            socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise NoContents(f"{address} is no address of a server ({error}); write tcp://HOST:PORT") from None
        contents = Contents(address)
        _send(socket, {"id": 1, "from": 0, "credit": CREDIT, "inspect": True}, address, timeout_s)
        for i, (header, items) in enumerate(_answers(socket, address, timeout_s)):
            contents.number = header.number if isinstance(header, Kthxbai) else contents.number
            if isinstance(header, Kthxbai):
                contents.store = bytes((header.proof or [b""])[0])
            for item in items:
                contents.take(segment_of(item))
            if i % GRANT == GRANT - 1:
                _send(socket, {"id": 1, "more": GRANT}, address, timeout_s)
        return contents


def _send(socket: zmq.Socket[bytes], options: dict[str, Any], address: str, timeout_s: float) -> None:
    if not socket.poll(int(1000 * timeout_s), zmq.POLLOUT):
        raise NoContents(
            f"nobody takes connections at {address} (waited {timeout_s:g} s, --timeout); start chp-server there, "
            "mend the address, or, if it has keys, give a client file that it knows (--client-file, CHP_CLIENT_FILE)"
        )
    socket.send_multipart([ICANHAZ, b"", packb({"chp": VERSION, **options})])


def _answers(socket: zmq.Socket[bytes], address: str, timeout_s: float) -> Iterator[tuple[Sync | Kthxbai, list[Any]]]:
    while True:
        if not socket.poll(int(1000 * timeout_s)):
            text = (
                f"{address} takes connections and said nothing for {timeout_s:g} s; is it a chp-server of this version?"
            )
            raise NoContents(f"{text} Or raise --timeout")
        frames = socket.recv_multipart()
        if len(frames) != 5 or frames[0] != RESERVED_KEY:
            raise NoContents(f"{address} speaks CHP/1 only; there is nothing to compare revisions with")
        try:
            header, items = decode(frames[4])
        except BadFrame as error:
            raise NoContents(f"{address}: {error}") from None
        if isinstance(header, Refused):
            raise NoContents(f"{address} refused ({header.code}): {header.detail}")
        if isinstance(header, Sync | Kthxbai):
            yield header, items
        if isinstance(header, Kthxbai):
            return
