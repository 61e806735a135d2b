"""What every request has to pass, and every answer gets: an ASGI layer around the routes.

Host     a name of this machine: a page of another origin can have a name of its own point here (DNS rebinding)
Origin   a browser says it; only this gateway's own pages are let in, and they write only with --write
many     requests that wait are counted; one too many gets 429 and Retry-After
errors   whatever a route raises is answered as problem+json; what is no error of ours is a 500, and logged
time     how long the answer took goes into the histograms of /metrics
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache
from time import perf_counter
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chp.errors import ChpError

from .gateway import Gateway
from .problems import Problem, problem_of

log = logging.getLogger("chp_client")

Handler = Callable[[Request], Awaitable[Response]]
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ENDLESS = frozenset({"/v1/watch"})  # counted by itself
KINDS = {"/v1/keys": "page", "/v1/batch": "batch"}  # of the histogram, where the path tells
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
DEFECT = "the gateway could not do it, and has logged why"
_NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class _Answer:
    """Where one answer goes, with the headers that all have."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": _with_ours(message.get("headers", []))}
        await self._send(message)


class Door:
    """Around the application; `direct`: what is most asked for, by method and path, without its middleware."""

    def __init__(self, app: ASGIApp, gateway: Gateway, direct: dict[tuple[str, str], Handler]) -> None:
        self._app, self.gateway, self._direct = app, gateway, direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything else is the application's own affair."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, answer = perf_counter(), _Answer(send)
        gateway, path = self.gateway, scope["path"]
        counts = path not in ENDLESS
        gateway.under_way += counts
        try:
            await self._answered(scope, receive, answer, counts)
        finally:
            gateway.under_way -= counts
            if counts:
                gateway.metrics.took(_kind(scope["method"], path), answer.status, perf_counter() - begin)

    async def _answered(self, scope: Scope, receive: Receive, send: _Answer, counts: bool) -> None:
        path = scope["path"]
        try:
            self._let_in(scope, counts)
            direct = self._direct.get((scope["method"], "/v1/keys/" if path.startswith("/v1/keys/") else path))
            if direct is None:
                await self._app(scope, receive, send)
                return
            response = await direct(self._request(scope, receive))
        except (ChpError, Problem, TimeoutError) as error:
            response = problem_of(error).response()
        except Exception:
            log.exception("%s %s", scope["method"], path)
            if send.status:
                return  # it was answered as one, or its answer had begun
            response = Problem(500, "defect", DEFECT).response()
        await response(scope, receive, send)

    def _request(self, scope: Scope, receive: Receive) -> Request:
        scope["app"] = self._app
        return Request(scope, receive)

    def _let_in(self, scope: Scope, counts: bool) -> None:
        size, host, origin, site = 0, b"", None, b"none"
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if size > self.gateway.limits.head_bytes:
            raise Problem(431, "head", f"the headers have more than {self.gateway.limits.head_bytes} bytes; send less")
        if not is_local(host):
            text = f"Host: {_text(host)} is no name of this machine; use 127.0.0.1 or localhost"
            raise Problem(421, "bad-host", text)
        if origin is not None and origin != b"http://" + host:
            raise Problem(403, "bad-origin", f"pages of {_text(origin)} may not ask here; only the gateway's own do")
        if site not in (b"same-origin", b"none"):
            raise Problem(403, "bad-origin", "pages of another site may not ask here; only the gateway's own do")
        if origin is not None and scope["method"] not in SAFE and not self.gateway.write:
            raise Problem(403, "read-only", "the console only reads; start chp-gateway with --write to let it write")
        if counts and self.gateway.under_way > self.gateway.limits.requests:
            raise Problem(429, "busy", "too many requests wait here; ask again in a moment", retry_s=1)


def _kind(method: str, path: str) -> str:
    if method in ("PUT", "DELETE"):
        return "write"
    return "read" if path.startswith("/v1/keys/") else KINDS.get(path, "other")


def _text(header: bytes) -> str:
    return header[:60].decode("latin-1")


@lru_cache(64)
def is_local(host: bytes) -> bool:
    """Whether a Host header is a name of this machine."""
    try:
        return (urlsplit(f"//{host.decode('latin-1')}").hostname or "") in LOOPBACK
    except ValueError:
        return False


def _with_ours(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    for name, _ in headers:
        if name == _NOTHING[0]:
            return [*headers, *_ALWAYS]
    return [*headers, *_ALWAYS, _NOTHING]


async def no_route(request: Request, error: Exception) -> Response:
    """The answer where no route is, or none for this method."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        response = Problem(405, "bad-method", f"this path takes {allowed}").response()
        response.headers["Allow"] = allowed
        return response
    return Problem(404, "no-path", "there is no such path; /openapi.json has those there are").response()


async def problem(request: Request, error: Exception) -> Response:
    """The answer to what a route raised."""
    return problem_of(error).response()


async def defect(request: Request, error: Exception) -> Response:
    """The answer to what is no error of ours; the door logs it."""
    return Problem(500, "defect", DEFECT).response()
