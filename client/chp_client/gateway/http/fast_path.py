"""The fast path: a plain GET of a present key and a plain PUT, answered where they are read.

Plain requests need no parser, no task and no middleware. The functions that make their answers are those of all other
requests. A request is plain only in this form:

    GET or PUT /v1/keys/... HTTP/1.1     a path without a query or an escape
    fields                               each on a line of its own, each name once, printable ASCII, not folded
    body                                 as many bytes as Content-Length says for PUT, and none for GET

This form is stricter than that of any parser, so no two parsers can read a plain request in different ways. Any other
request goes the long way, through parser and middleware. Examples are a request with a condition, an Origin or an
absent key, and a PUT of a key that another write has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

from chp.errors import ChpError
from chp.numbers import describe

from ...core.events import State
from ..access.caller import Caller
from ..answers import ALWAYS_LINES, raw_answer
from ..gateway import Gateway
from ..paths.keys import OCTETS, written_answer
from ..problems import Problem
from ..request_fields import is_host, is_local
from ..shared.mounts import GatewayMount
from ..shared.rows import key_to_set
from ..shared.writes import WriteResult

# A head of more bytes than this goes to the parser.
HEAD_MAX = 4096
# A value of more bytes than this goes the long way, which waits for slow readers.
LARGE = 65_536
UNREADABLE = frozenset({State.CONNECTING, State.CLOSED})
# A plain request has only these header fields; a plain PUT may have OF_A_BODY too. Host and Authorization are checked,
# and the others do not change the answer. `_head` refuses a Connection other than keep-alive.
PLAIN = frozenset(
    {
        b"host", b"accept", b"accept-encoding", b"accept-language", b"user-agent", b"cache-control", b"pragma",
        b"connection", b"authorization",
    }
)  # fmt: skip
OF_A_BODY = frozenset({b"content-length", b"content-type"})
# At most this many callers are remembered, each by the head of its requests.
CALLERS_MAX = 1024
_FIRST = re.compile(rb"(GET|PUT) /v1/keys(/[A-Za-z0-9/_.~!$&'()*+,;=:@-]+) HTTP/1\.1")
_FIELD = re.compile(rb"([A-Za-z-]+):[ \t]*([!-~](?:[ -~]*[!-~])?)?[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,8}")
_READ_TYPE = f"content-type: {OCTETS}\r\ncontent-length: "


class Head:
    """The fields of a head, and the length of the body, -1 if the head has none. Equal heads are one cached object."""

    __slots__ = ("fields", "length")

    def __init__(self, fields: dict[bytes, bytes], length: int) -> None:
        self.fields, self.length = fields, length


class PlainRequest(NamedTuple):
    """A plain request."""

    is_get: bool
    key: str
    head: Head
    body: bytes


def plain_request(data: bytes) -> PlainRequest | None:
    """Return the request in `data`; None unless `data` is exactly one plain request."""
    end = data.find(b"\r\n\r\n")
    if not 0 < end <= HEAD_MAX:
        return None
    line_end = data.find(b"\r\n")
    first = _FIRST.fullmatch(data, 0, line_end)
    if first is None or (head := _head(data[line_end + 2 : end])) is None:
        return None
    is_get, length = first[1] == b"GET", head.length
    if len(data) != end + 4 + max(length, 0) or (length < 0) != is_get:
        return None
    return PlainRequest(is_get, first[2].decode("ascii"), head, data[end + 4 :])


# A client sends the same fields in each of its requests, so parsed heads are cached.
@lru_cache(1024)
def _head(block: bytes) -> Head | None:
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n"):
        field = _FIELD.fullmatch(line)
        if field is None or (name := field[1].lower()) in found:
            return None
        found[name] = field[2] or b""
    if found.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = found.get(b"content-length")
    if length is None:
        return Head(found, -1)
    return Head(found, int(length)) if _LENGTH.fullmatch(length) else None


class FastPath:
    """The fast path of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        # The user of the last request that was answered or begun here.
        self.user = ""
        # The callers by the heads of their requests, and the version of the rules by which they were found.
        self._callers: dict[Head, Caller] = {}
        self._rules = -1
        # The last answer to a write: its result, the common header lines, and the bytes. All writes of one record share
        # a result, so they get the same bytes.
        self._answer: tuple[object, bytes, bytes] = (None, b"", b"")

    def _caller(self, head: Head) -> Caller | None:
        """Return the caller of a request; None if it has to go the long way."""
        callers = self._gateway.callers
        if self._rules != callers.version:
            self._rules = callers.version
            self._callers.clear()
        caller = self._callers.get(head)
        if caller is None and (caller := self._new_caller(head)) is not None:
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            self._callers[head] = caller
        return caller

    def _new_caller(self, head: Head) -> Caller | None:
        fields, gateway = head.fields, self._gateway
        if not fields.keys() <= (PLAIN if head.length < 0 else PLAIN | OF_A_BODY):
            return None
        # These rules are those of the middleware. A request with a bad Host goes there, and gets its answer there.
        host = fields.get(b"host", b"")
        if not (is_local(host) if gateway.callers.ambient else is_host(host) or not host):
            return None
        caller = gateway.callers.plain(fields.get(b"authorization", b""))
        return None if caller is None or not gateway.audit.knows(caller) else caller

    def get(self, asked: PlainRequest, common: bytes) -> bytes | None:
        """Return the whole answer to a GET, or None for the long way; `common` has the header lines of every answer."""
        gateway, key = self._gateway, asked.key
        if (caller := self._caller(asked.head)) is None:
            return None
        begin = perf_counter()
        if not key.startswith(gateway.subtrees) or (mount := gateway.mounts.find(key)) is None:
            return None
        entry = (clone := mount.clone).entry(key)
        if entry is None or clone.state in UNREADABLE:
            return None
        if entry.ttl is not None or len(entry.value) > LARGE or not caller.may_read(key):
            return None
        self.user = caller.user
        # These headers are those of `entry_headers`, but made without a dict, which would take 2 of the 26 us of a GET.
        head = (
            f"HTTP/1.1 200 OK\r\nchp-number: {mount.position}\r\nchp-staleness: {clone.staleness_s:.3f}\r\n"
            f'cache-control: no-cache\r\netag: "{describe(entry.revision)}"\r\n{_READ_TYPE}{len(entry.value)}\r\n'
        )
        gateway.metrics.took("read", 200, perf_counter() - begin)
        return b"".join((head.encode(), ALWAYS_LINES, common, b"\r\n", entry.value))

    def put(self, asked: PlainRequest, common: bytes, answered: Callable[[bytes], None]) -> bool:
        """Begin to set a key, and call `answered` with the whole answer; return False for the long way."""
        gateway, key, size = self._gateway, asked.key, len(asked.body)
        caller = self._caller(asked.head)
        if caller is None or size > LARGE or gateway.under_way >= gateway.limits.requests:
            return False
        if not gateway.bodies.room(size):
            return False
        try:
            key_to_set(key, gateway.subtrees)
            mount = gateway.mounts.of_key(key)
            caller.write((key,), ())
        except (ChpError, Problem):
            return False
        begin = perf_counter()

        def tell(done: WriteResult | Exception) -> None:
            gateway.under_way -= 1
            gateway.bodies.held -= size
            status, answer = self._written(done, mount, key, common)
            gateway.metrics.took("write", status, perf_counter() - begin)
            answered(answer)

        if not mount.writes.begin(key, asked.body, tell):
            return False
        self.user = caller.user
        gateway.under_way += 1
        gateway.bodies.held += size
        return True

    def _written(
        self, done: WriteResult | Exception, mount: GatewayMount, key: str, common: bytes
    ) -> tuple[int, bytes]:
        if isinstance(done, Exception):
            response = self._gateway.write_problem(done, key).response()
            return response.status_code, raw_answer(response, common)
        if self._answer[0] is not done or self._answer[1] is not common:
            answer = written_answer(self._gateway, mount, done, tagged=True)
            self._answer = done, common, raw_answer(answer, common)
        return 200, self._answer[2]
