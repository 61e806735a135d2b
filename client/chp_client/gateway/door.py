"""What every request has to pass, and every answer gets: an ASGI layer around the routes.

Host     a name of this machine: a page of another origin can have a name of its own point here (DNS rebinding)
Origin   a browser says it; only this gateway's own pages are let in, and they write only with --write
many     requests that wait are counted; one too many gets 429 and Retry-After
errors   whatever a route raises is answered as problem+json; what is no error of ours is a 500, and logged
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .gateway import Gateway
from .problems import Problem, problem_of

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ENDLESS = frozenset({"/v1/watch"})  # counted by itself
_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
_NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class Door:
    """Around the application."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app, self._gateway = app, gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything else is the application's own affair."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_ours(list(message.get("headers", [])))}
            await send(message)

        gateway, counts = self._gateway, scope["path"] not in ENDLESS
        gateway.under_way += counts
        try:
            self._let_in(scope, counts)
            await self._app(scope, receive, answer)
        except Problem as problem:
            await problem.response()(scope, receive, answer)
        finally:
            gateway.under_way -= counts

    def _let_in(self, scope: Scope, counts: bool) -> None:
        headers = Headers(scope=scope)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._gateway.limits.head_bytes:
            raise Problem(431, "head", f"the headers have more than {self._gateway.limits.head_bytes} bytes; send less")
        host = headers.get("host", "")
        if _name(f"//{host}") not in LOOPBACK:
            raise Problem(421, "bad-host", f"Host: {host[:60]} is no name of this machine; use 127.0.0.1 or localhost")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise Problem(403, "bad-origin", f"pages of {origin[:60]} may not ask here; only the gateway's own do")
        foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if foreign:
            raise Problem(403, "bad-origin", "pages of another site may not ask here; only the gateway's own do")
        if origin is not None and scope["method"] not in SAFE and not self._gateway.write:
            raise Problem(403, "read-only", "the console only reads; start chp-gateway with --write to let it write")
        if counts and self._gateway.under_way > self._gateway.limits.requests:
            raise Problem(429, "busy", "too many requests wait here; ask again in a moment", retry_s=1)


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _with_ours(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    own = {name for name, _ in headers}
    return [*headers, *_ALWAYS] if _NOTHING[0] in own else [*headers, *_ALWAYS, _NOTHING]


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
    """The answer to what is no error of ours; the server logs it."""
    return Problem(500, "defect", "the gateway could not do it, and has logged why").response()
