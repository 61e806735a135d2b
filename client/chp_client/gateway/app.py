"""The routes, and the application around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from chp.errors import ChpError

from .console import show_console
from .door import Door, Handler, defect, no_route, problem
from .gateway import Gateway
from .openapi import show_openapi
from .pair import health, ready, show_history, show_metrics, show_pair
from .paths.keys import batch, delete_key, pages, read_key, set_key
from .paths.watching import watch
from .problems import Problem

ROUTES: list[BaseRoute] = [
    Route("/v1/keys", pages, methods=["GET"]),
    Route("/v1/keys", set_key, methods=["PUT"]),
    Route("/v1/keys", delete_key, methods=["DELETE"]),
    Route("/v1/keys/{key:path}", read_key, methods=["GET"]),
    Route("/v1/keys/{key:path}", set_key, methods=["PUT"]),
    Route("/v1/keys/{key:path}", delete_key, methods=["DELETE"]),
    Route("/v1/batch", batch, methods=["POST"]),
    Route("/v1/watch", watch, methods=["GET"]),
    Route("/v1/pair", show_pair, methods=["GET"]),
    Route("/v1/history", show_history, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/ready", ready, methods=["GET"]),
    Route("/metrics", show_metrics, methods=["GET"]),
    Route("/openapi.json", show_openapi, methods=["GET"]),
    Route("/", show_console, methods=["GET"]),
    Route("/console/console.css", show_console, methods=["GET"]),
    Route("/console/console.js", show_console, methods=["GET"]),
]


# what most ask for, by method and path, without a router and its middleware
DIRECT: dict[tuple[str, str], Handler] = {
    ("GET", "/v1/keys"): pages, ("PUT", "/v1/keys"): set_key, ("DELETE", "/v1/keys"): delete_key,
    ("GET", "/v1/keys/"): read_key, ("PUT", "/v1/keys/"): set_key, ("DELETE", "/v1/keys/"): delete_key,
    ("POST", "/v1/batch"): batch, ("GET", "/v1/watch"): watch,
}  # fmt: skip


def application(gateway: Gateway) -> Door:
    """The gateway as an ASGI application; it connects when its lifespan begins."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with gateway.open():
            yield

    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            HTTPException: no_route, Problem: problem, ChpError: problem, TimeoutError: problem, Exception: defect,
        },
        lifespan=lifespan,
    )  # fmt: skip
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return Door(app, gateway, DIRECT)
