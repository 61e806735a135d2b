"""The middleware: the ASGI application. It admits each request, finds its route, and answers errors.

Host     has to name this machine: a page of another origin can point its own name here (DNS rebinding). If all callers
         need tokens, any name is admitted, as a page of another origin has no token
caller   is the user of the token (access/callers.py). Paths that tell nothing about the pair need no token
Origin   has to be that of this gateway: only its own pages are admitted, and they write only with --write
busy     waiting requests are counted, and one too many gets 429 with Retry-After
errors   each error becomes problem+json; an error that the gateway does not expect is a 500, and is logged
time     the time of an answer goes into the histograms of /metrics
"""

from __future__ import annotations

import logging
import traceback
from time import perf_counter
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from chp.errors import ChpError

from .access.caller import NOBODY, Caller, caller_of
from .access.callers import Callers
from .answers import with_always
from .call import Call
from .channels.admission import AllowedMessages
from .channels.connection import Admitted
from .gateway import Gateway
from .problems import Problem, problem_of
from .request_fields import is_host, is_local, query
from .route import STREAM, PathRoutes, Route, Router
from .routes import ROUTES

log = logging.getLogger("chp_client")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# The codes of the problems that the audit gets.
DENIED = frozenset({"access", "no-token", "no-user"})
DEFECT = "the gateway could not do it, and has logged why"
NO_PATH = "there is no such path; /openapi.json has those there are"


class _Answer:
    """The sender of one answer; it adds the headers that all answers have, and notes the status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": with_always(message.get("headers", []))}
        await self._send(message)


class Middleware:
    """The ASGI application of one gateway. It connects to the pair when its lifespan begins."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self._router = gateway, Router(ROUTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; for the scope `lifespan`, keep the gateway open for as long as the server runs."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        begin, answer, gateway = perf_counter(), _Answer(send), self.gateway
        here, scope["path_params"] = self._router.find(scope["path"])
        route = None if here is None else here.of(scope["method"])
        kind = "other" if route is None else route.kind
        if kind == STREAM:
            await self._respond(here, route, scope, receive, answer)
            return
        gateway.under_way += 1
        try:
            await self._respond(here, route, scope, receive, answer)
        finally:
            gateway.under_way -= 1
            gateway.metrics.took(kind, answer.status, perf_counter() - begin)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        phase = "startup"
        try:
            async with self.gateway.open():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except BaseException:
            await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(
        self, here: PathRoutes | None, route: Route | None, scope: Scope, receive: Receive, send: _Answer
    ) -> None:
        try:
            self._admit(scope, counts=route is None or route.kind != STREAM, is_open=here is not None and here.open)
            if route is None:
                response = _no_route(here)
            else:
                request = Request(scope, receive)
                call = Call(self.gateway, request, caller_of(scope), query(request, route.names))
                route.right.check(call)
                response = await route.handler(call)
        except (ChpError, Problem, TimeoutError) as error:
            response = self.audited(scope, problem_of(error)).response()
        except Exception:
            log.exception("%s %s", scope["method"], scope["path"])
            response = Problem(500, "defect", DEFECT).response()
        await response(scope, receive, send)

    @property
    def callers(self) -> Callers:
        """The callers, by the present rules."""
        return self.gateway.callers

    def audited(self, scope: Scope, problem: Problem) -> Problem:
        """Return a problem; write it into the audit if the caller was denied something."""
        if problem.code in DENIED:
            what = f"{scope['method']} {scope['path']}"
            self.gateway.audit.denied(scope.get("caller", NOBODY), address_of(scope), what, problem.detail)
        return problem

    def admit_line(self, headers: list[tuple[bytes, bytes]], query: bytes, address: str) -> Admitted:
        """Admit a WebSocket to the mount that its query names; raise `Problem` if it is not admitted.

        The checks are those of any other request.
        """
        gateway = self.gateway
        scope: Scope = {"headers": headers, "method": "GET", "path": "/v1/clone", "client": (address, 0)}
        try:
            self._admit(scope, counts=False, is_open=False)
            mount = gateway.mounts.of_prefix(_mount_of(query, several=gateway.mounts.several))
            caller = caller_of(scope).at(mount.prefix)
        except Problem as problem:
            raise self.audited(scope, problem) from None
        if gateway.lines.refuses(caller.user):
            text = f"{len(gateway.lines)} WebSockets are too many for one gateway; ask another"
            raise Problem(429, "busy", text, retry_s=5)
        from_page = any(name == b"origin" for name, _ in headers)
        may_write, callers = gateway.write or not from_page, self.callers.of_pair(mount.prefix)
        subtrees = mount.subtrees if mount.prefix else gateway.subtrees
        allowed = AllowedMessages(subtrees, may_write, caller, is_member=callers.is_member, nested=mount.nested)
        return Admitted(allowed, mount, callers)

    def denied(self, caller: Caller, address: str, why: str) -> None:
        """Write into the audit that a message of a WebSocket was denied."""
        self.gateway.audit.denied(caller, address, "WebSocket /v1/clone", why)

    def _admit(self, scope: Scope, *, counts: bool, is_open: bool) -> None:
        """Check the head of a request, and find its caller; raise `Problem` for a request that is not admitted."""
        size, hosts, host, origin, site = 0, 0, b"", None, b"none"
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"host":
                hosts, host = hosts + 1, value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if size > self.gateway.limits.head_bytes:
            raise Problem(431, "head", f"the headers have more than {self.gateway.limits.head_bytes} bytes; send less")
        if self.callers.ambient and not is_local(host):
            text = f"Host: {_text(host)} is no name of this machine; use 127.0.0.1 or localhost"
            raise Problem(421, "bad-host", text)
        if hosts > 1 or (host and not is_host(host)):
            text = f"Host: {_text(host)} is not one name and its port; send one Host, such as 127.0.0.1:8080"
            raise Problem(400, "bad-host", text)
        if origin is not None and origin not in (b"http://" + host, b"https://" + host):
            raise Problem(403, "bad-origin", f"pages of {_text(origin)} may not ask here; only the gateway's own do")
        if site not in (b"same-origin", b"none"):
            raise Problem(403, "bad-origin", "pages of another site may not ask here; only the gateway's own do")
        if origin is not None and scope["method"] not in SAFE and not self.gateway.write:
            raise Problem(403, "read-only", "the console only reads; start chp-gateway with --write to let it write")
        if counts and self.gateway.under_way > self.gateway.limits.requests:
            raise Problem(429, "busy", "too many requests wait here; ask again in a moment", retry_s=1)
        scope["caller"] = NOBODY
        if not is_open:
            scope["caller"] = self.callers.of(scope["headers"])
            self.gateway.audit.admitted(scope["caller"], address_of(scope))


def _no_route(here: PathRoutes | None) -> Response:
    """Return the answer for a path that has no route, or none for this method."""
    if here is None:
        return Problem(404, "no-path", NO_PATH).response()
    response = Problem(405, "bad-method", f"this path takes {here.allow}").response()
    response.headers["Allow"] = here.allow
    return response


def _mount_of(query: bytes, *, several: bool) -> str | None:
    """Return the mount that the query of a WebSocket names, or None; `several` is True if a gateway has mounts."""
    fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=2) if query else []
    if fields and (not several or [name for name, _ in fields] != ["mount"]):
        takes = "only `mount`" if several else "no query"
        raise Problem(400, "bad-query", f"this path takes {takes}; what is wanted is asked for by the messages")
    return fields[0][1] if fields else None


def address_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    return (scope.get("client") or ("", 0))[0]


def _text(header: bytes) -> str:
    return header[:60].decode("latin-1")
