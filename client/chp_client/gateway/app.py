"""The routes, and the application around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from chp.errors import ChpError

from .console import SERVED, show_console
from .gateway import Gateway
from .middleware import Handler, Middleware, defect, no_route, problem
from .openapi import show_openapi
from .pair import hand_over, health, ready, show_clients, show_history, show_metrics, show_pair
from .paths.groups import (
    acknowledge,
    extend,
    give_back,
    list_groups,
    make_group,
    receive,
    remove_group,
    show_group,
)
from .paths.keys import batch, delete_key, pages, read_key, set_key
from .paths.overviews import show_groups, show_versions
from .paths.topics import list_topics, make_topic, publish, read_topic, remove_topic, show_topic
from .paths.watch import watch
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
    Route("/v1/topics", list_topics, methods=["GET"]),
    Route("/v1/topics/{topic}", show_topic, methods=["GET"]),
    Route("/v1/topics/{topic}", make_topic, methods=["PUT"]),
    Route("/v1/topics/{topic}", remove_topic, methods=["DELETE"]),
    Route("/v1/topics/{topic}/messages", publish, methods=["POST"]),
    Route("/v1/topics/{topic}/messages", read_topic, methods=["GET"]),
    Route("/v1/topics/{topic}/groups", list_groups, methods=["GET"]),
    Route("/v1/topics/{topic}/groups/{group}", show_group, methods=["GET"]),
    Route("/v1/topics/{topic}/groups/{group}", make_group, methods=["PUT"]),
    Route("/v1/topics/{topic}/groups/{group}", remove_group, methods=["DELETE"]),
    Route("/v1/topics/{topic}/groups/{group}/receive", receive, methods=["POST"]),
    Route("/v1/topics/{topic}/groups/{group}/ack", acknowledge, methods=["POST"]),
    Route("/v1/topics/{topic}/groups/{group}/nack", give_back, methods=["POST"]),
    Route("/v1/topics/{topic}/groups/{group}/extend", extend, methods=["POST"]),
    Route("/v1/pair", show_pair, methods=["GET"]),
    Route("/v1/pair/switch", hand_over, methods=["POST"]),
    Route("/v1/versions", show_versions, methods=["GET"]),
    Route("/v1/groups", show_groups, methods=["GET"]),
    Route("/v1/clients", show_clients, methods=["GET"]),
    Route("/v1/history", show_history, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/ready", ready, methods=["GET"]),
    Route("/metrics", show_metrics, methods=["GET"]),
    Route("/openapi.json", show_openapi, methods=["GET"]),
    *(Route(path, show_console, methods=["GET"]) for path in SERVED),
]


# what most ask for, by method and path, without a router and its middleware
DIRECT: dict[tuple[str, str], Handler] = {
    ("GET", "/v1/keys"): pages, ("PUT", "/v1/keys"): set_key, ("DELETE", "/v1/keys"): delete_key,
    ("GET", "/v1/keys/"): read_key, ("PUT", "/v1/keys/"): set_key, ("DELETE", "/v1/keys/"): delete_key,
    ("POST", "/v1/batch"): batch, ("GET", "/v1/watch"): watch,
}  # fmt: skip


def application(gateway: Gateway) -> Middleware:
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
    app.state.door = Middleware(app, gateway, DIRECT)
    return cast(Middleware, app.state.door)
