"""covers: gateway/routes.py and gateway/route.py. The page docs/gateway/routes.md is made of the table of routes.

`pytest --rewrite tests/unit/test_gateway_routes.py` writes the tables of the page anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from chp_client.gateway.metrics import KINDS
from chp_client.gateway.openapi import document
from chp_client.gateway.route import STREAM, Field, Route, Router
from chp_client.gateway.routes import ROUTES

PAGE = Path(__file__).parents[2] / "docs/gateway/routes.md"
SHOWN = [route for route in ROUTES if not route.path.startswith("/console/")]


def asked(route: Route) -> str:
    """Return the method and the path of a route, with the fields of its query."""
    query = "&".join(f"{field.name}=" for field in route.fields if field.place == "query")
    return f"{route.method} {route.path}{'?' if query else ''}{query}"


def answer(route: Route) -> str:
    """Return the statuses of success."""
    return "; ".join(f"{status}: {text}" for status, text in route.status.items())


def route_rows(routes: Iterable[Route]) -> Iterator[str]:
    """Yield the table of routes."""
    yield "| method, path and query | what | right | answer |"
    yield "|---|---|---|---|"
    for route in routes:
        yield f"| `{asked(route)}` | {route.about} | {route.right.text} | {answer(route)} |"


def field_rows(routes: Iterable[Route]) -> Iterator[str]:
    """Yield the table of fields, each with its routes."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for route in routes:
        for field in route.fields:
            found.setdefault((field.place, field.name, field.about), []).append(f"{route.method} {route.path}")
    yield "| where | name | meaning | routes |"
    yield "|---|---|---|---|"
    for place, name, about in sorted(found):
        named = found[place, name, about]
        shown = ", ".join(f"`{each}`" for each in named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
        yield f"| {place} | `{name}` | {about} | {shown} |"


def rewritten(page: str) -> str:
    """Return the page with the tables of the present routes."""
    for name, rows in (("routes", route_rows(SHOWN)), ("fields", field_rows(SHOWN))):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + "\n" + "\n".join(rows) + "\n\n" + end + rest.partition(end)[2]
    return page


def test_the_page_has_each_route_and_field(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    if request.config.getoption("--rewrite"):
        PAGE.write_text(rewritten(page), encoding="utf-8")
    else:
        assert page == rewritten(page), "write it anew: pytest --rewrite tests/unit/test_gateway_routes.py"


@pytest.mark.parametrize("route", SHOWN, ids=asked)
def test_each_route_is_complete_and_consistent(route: Route) -> None:
    assert route.kind in (*KINDS, STREAM) and route.right.text and route.about and route.status
    assert len({(field.place, field.name) for field in route.fields}) == len(route.fields)
    assert route.method in {"GET", "PUT", "POST", "DELETE"}
    assert not (route.body and route.method in {"GET", "DELETE"})


@pytest.mark.parametrize("route", ROUTES, ids=asked)
def test_each_route_is_found_by_its_path_and_method(route: Route) -> None:
    router = Router(ROUTES)
    here, names = router.find(re.sub(r"\{(\w+)\}", r"a-\1", route.path))
    assert here is not None and here.of(route.method) is route
    assert names == {name: f"a-{name}" for name in re.findall(r"\{(\w+)\}", route.path)}
    assert here.of("PATCH") is None and route.method in here.allow.split(", ")
    assert here.of("HEAD") is here.of("GET")


def test_only_a_key_may_have_slashes() -> None:
    router = Router(ROUTES)
    here, names = router.find("/v1/keys/a/b//c")
    assert here is not None and names == {"key": "a/b//c"}
    for path in (
        "/v1/topics/a/b",
        "/v1/topics/a/groups/b/c",
        "/v1/topics//messages",
        "/v1",
        "/v1/keysx",
        "",
        "/v2/keys",
    ):
        assert router.find(path)[0] is None, path


def test_the_openapi_document_tells_the_place_of_each_field() -> None:
    parameters = document(ROUTES)["paths"]["/v1/keys/{key}"]["put"]["parameters"]
    assert [(each["name"], each["in"]) for each in parameters] == [
        ("key", "path"), ("ttl", "query"), ("If-Match", "header"), ("If-None-Match", "header"),
        ("Idempotency-Key", "header"),
    ]  # fmt: skip
    assert Field("a", "b", {}).place == "query"
