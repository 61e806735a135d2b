"""Routes: a row of the table of routes, and the search for the row of a request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from starlette.responses import Response

from .call import Call

Handler = Callable[[Call], Awaitable[Response]]
Schema = dict[str, Any]
# The kind of a route whose answers do not end. Its readers are not counted as waiting requests.
STREAM = "stream"


class Field(NamedTuple):
    """A field of a query, or a header that a route heeds."""

    name: str
    about: str
    schema: Schema
    required: bool = False
    place: str = "query"


class Right(NamedTuple):
    """A right that a caller needs; `check` raises `Problem` for a caller without it."""

    text: str
    check: Callable[[Call], None]
    open: bool = False


@dataclass(frozen=True)
class Route:
    """A row of the table of routes.

    `right`    the right that its caller needs
    `fields`   the fields of its query, which takes no others, and the headers that it heeds
    `kind`     the name under which /metrics counts it
    `answer`   the schema of the JSON that it answers
    `body`     the schema of each kind of body that it takes
    `status`   each status of success, and a description of its answer
    """

    method: str
    path: str
    handler: Handler
    right: Right
    about: str
    fields: tuple[Field, ...] = ()
    answer: Schema | None = None
    body: Mapping[str, Schema] = field(default_factory=dict)
    status: Mapping[int, str] = field(default_factory=lambda: {200: "done"})
    kind: str = "other"
    body_required: bool = True

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the query may have; for a path with {key} also `key`, so that `key_of` can refuse it."""
        named = [each.name for each in self.fields if each.place == "query"]
        return (*named, "key") if "{key}" in self.path else tuple(named)


class PathRoutes:
    """The routes of one path, by method."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = {route.method: route for route in routes}
        # A HEAD request uses the route of GET.
        if "GET" in self._routes:
            self._routes["HEAD"] = self._routes["GET"]
        # The value of the header Allow.
        self.allow = ", ".join(sorted(self._routes))
        # True if callers without a token may ask here.
        self.open = any(route.right.open for route in routes)

    def of(self, method: str) -> Route | None:
        """Return the route of an HTTP method, or None if the path does not have it."""
        return self._routes.get(method)


class Router:
    """The routes by path. A path without variable parts is looked up, and any other path is matched by a pattern."""

    def __init__(self, routes: Iterable[Route]) -> None:
        paths: dict[str, list[Route]] = {}
        for route in routes:
            paths.setdefault(route.path, []).append(route)
        self._whole = {path: (PathRoutes(found), dict[str, str]()) for path, found in paths.items() if "{" not in path}
        self._patterns = [
            (path.partition("{")[0], _pattern(path), PathRoutes(found)) for path, found in paths.items() if "{" in path
        ]

    def find(self, path: str) -> tuple[PathRoutes | None, dict[str, str]]:
        """Return the routes of a path, or None if it has no routes, and the variable parts of the path."""
        if (whole := self._whole.get(path)) is not None:
            return whole
        for begin, pattern, routes in self._patterns:
            if path.startswith(begin) and (found := pattern.fullmatch(path)) is not None:
                return routes, found.groupdict()
        return None, {}


def _pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path: `{key}` may have slashes, and any other name has none."""
    text = re.sub(r"\{(\w+)\}", lambda name: f"(?P<{name[1]}>{'.*' if name[1] == 'key' else '[^/]+'})", path)
    return re.compile(text, re.DOTALL)
