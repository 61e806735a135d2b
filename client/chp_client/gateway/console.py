"""The page at / and what it is made of: files of ours, read once, under a policy that lets in nothing else.

It has no library and no build step; `console/` is what a browser gets.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from .asked import query

FOLDER = Path(__file__).parent / "console"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".css", ".js"))  # those that the page names
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _body(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


async def show_console(request: Request) -> Response:
    """GET /, and the files that it names; ?prefix= is for the page itself, which watches no more than that."""
    query(request, "prefix")
    name = request.url.path.removeprefix("/console/").removeprefix("/") or "index.html"
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return Response(_body(name), headers=headers, media_type=KINDS[Path(name).suffix])
