"""What every request has to pass, and every answer gets: an ASGI layer around the routes.

Host     a name of this machine: a page of another origin can have a name of its own point here (DNS rebinding); where
         everybody has to show a token, which no such page has, any name is good
who      whose token it is (access/callers.py): the paths ask what that user may; what tells nothing of the pair is open
Origin   a browser says it; only this gateway's own pages are let in, and they write only with --write
many     requests that wait are counted; one too many gets 429 and Retry-After
errors   whatever a route raises is answered as problem+json; what is no error of ours is a 500, and logged
time     how long the answer took goes into the histograms of /metrics
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from time import perf_counter

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chp.errors import ChpError

from .access.caller import NOBODY, Caller, in_scope
from .access.callers import Callers
from .channels.admission import AllowedMessages
from .gateway import Gateway
from .problems import Problem, problem_of

log = logging.getLogger("chp_client")

Handler = Callable[[Request], Awaitable[Response]]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# A Host header is read by its grammar (RFC 9110, section 7.2), not as a URL: readers of URLs differ in what they skip.
HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
LOCAL = re.compile(rb"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ENDLESS = frozenset({"/v1/watch"})  # counted by itself
OPEN = frozenset({"/health", "/ready", "/openapi.json"})  # for balancers and generators; nothing of what the pair has
DENIED = frozenset({"access", "no-token", "no-user"})  # codes that an audit is told of
KINDS = {"/v1/keys": "page", "/v1/batch": "batch"}  # of the histogram, where the path tells
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
DEFECT = "the gateway could not do it, and has logged why"
_NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class _MiddlewareAnswer:
    """Where one answer goes, with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": _with_ours(message.get("headers", []))}
        await self._send(message)


class Middleware:
    """Around the application; `direct`: what is most asked for, by method and path, without its middleware."""

    def __init__(self, app: ASGIApp, gateway: Gateway, direct: dict[tuple[str, str], Handler]) -> None:
        self._app, self.gateway, self._direct = app, gateway, direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything else is the application's own affair."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, answer = perf_counter(), _MiddlewareAnswer(send)
        gateway, path = self.gateway, scope["path"]
        counts = path not in ENDLESS
        gateway.under_way += counts
        try:
            await self._answered(scope, receive, answer, counts)
        finally:
            gateway.under_way -= counts
            if counts:
                gateway.metrics.took(_kind(scope["method"], path), answer.status, perf_counter() - begin)

    async def _answered(self, scope: Scope, receive: Receive, send: _MiddlewareAnswer, counts: bool) -> None:
        path = scope["path"]
        try:
            self._let_in(scope, counts)
            direct = self._direct.get((scope["method"], "/v1/keys/" if path.startswith("/v1/keys/") else path))
            if direct is None:
                await self._app(scope, receive, send)
                return
            response = await direct(self._request(scope, receive))
        except (ChpError, Problem, TimeoutError) as error:
            response = self.told(scope, problem_of(error)).response()
        except Exception:
            log.exception("%s %s", scope["method"], path)
            if send.status:
                return  # it was answered as one, or its answer had begun
            response = Problem(500, "defect", DEFECT).response()
        await response(scope, receive, send)

    @property
    def callers(self) -> Callers:
        """Who asks, by the rules as they are."""
        return self.gateway.callers

    def told(self, scope: Scope, problem: Problem) -> Problem:
        """A problem, of which the audit is told if somebody was not let."""
        if problem.code in DENIED:
            what = f"{scope['method']} {scope['path']}"
            self.gateway.audit.denied(scope.get("caller", NOBODY), address_of(scope), what, problem.detail)
        return problem

    def admit_line(self, headers: list[tuple[bytes, bytes]], query: bytes, address: str) -> AllowedMessages:
        """What a WebSocket may, or a `Problem`: who asks for one has to pass as any other."""
        gateway = self.gateway
        scope: Scope = {"headers": headers, "method": "GET", "path": "/v1/clone", "client": (address, 0)}
        try:
            self._let_in(scope, counts=False)
        except Problem as problem:
            raise self.told(scope, problem) from None
        if query:
            raise Problem(400, "bad-query", "this path takes no query; what is wanted is asked for by the messages")
        if gateway.lines.refuses(in_scope(scope).user):
            raise Problem(
                429, "busy", f"{len(gateway.lines)} WebSockets are too many for one gateway; ask another", retry_s=5
            )
        from_page = any(name == b"origin" for name, _ in headers)
        may_write, caller = gateway.write or not from_page, in_scope(scope)
        return AllowedMessages(gateway.subtrees, may_write, caller, is_member=gateway.callers.is_member)

    def denied(self, caller: Caller, address: str, why: str) -> None:
        """What a WebSocket asked for was not let."""
        self.gateway.audit.denied(caller, address, "WebSocket /v1/clone", why)

    def _request(self, scope: Scope, receive: Receive) -> Request:
        scope["app"] = self._app
        return Request(scope, receive)

    def _let_in(self, scope: Scope, counts: bool) -> None:
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
        if hosts > 1 or (host and HOST.fullmatch(host) is None):
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
        if scope["path"] not in OPEN:
            scope["caller"] = self.callers.of(scope["headers"])
            self.gateway.audit.let_in(scope["caller"], address_of(scope))


def address_of(scope: Scope) -> str:
    """Where a request comes from."""
    return (scope.get("client") or ("", 0))[0]


def _kind(method: str, path: str) -> str:
    if method in ("PUT", "DELETE"):
        return "write"
    return "read" if path.startswith("/v1/keys/") else KINDS.get(path, "other")


def _text(header: bytes) -> str:
    return header[:60].decode("latin-1")


def is_local(host: bytes) -> bool:
    """Return True if a Host header is a name of this machine."""
    return LOCAL.fullmatch(host) is not None


def _with_ours(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    for name, _ in headers:
        if name == _NOTHING[0]:
            return [*headers, *_ALWAYS]
    return [*headers, *_ALWAYS, _NOTHING]


async def no_route(request: Request, error: Exception) -> Response:
    """The answer where no route is, or none for this method."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = ", ".join(_methods(request))
        response = Problem(405, "bad-method", f"this path takes {allowed}").response()
        response.headers["Allow"] = allowed
        return response
    return Problem(404, "no-path", "there is no such path; /openapi.json has those there are").response()


def _methods(request: Request) -> list[str]:
    """What the path takes: each of its methods may be a route of its own."""
    here = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in here for method in getattr(route, "methods", None) or ()})


async def problem(request: Request, error: Exception) -> Response:
    """The answer to what a route raised."""
    door = request.app.state.door
    assert isinstance(door, Middleware), "the application is behind one"
    return door.told(request.scope, problem_of(error)).response()


async def defect(request: Request, error: Exception) -> Response:
    """The answer to what is no error of ours; the door logs it."""
    return Problem(500, "defect", DEFECT).response()
