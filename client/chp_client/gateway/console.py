"""The page at / and what it is made of: files of ours, read once, under a policy that lets in nothing else.

It has no library and no build step; `console/` is what a browser gets.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .request_fields import query

FOLDER = Path(__file__).parent / "console"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE = "index.html"
# The files that the page names, in the order of their names.
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in KINDS and path.name != PAGE)
# Each path that is served, and its file. No other file can be asked for.
SERVED = {"/": PAGE, **{f"/console/{name}": name for name in FILES}}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _body(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


async def show_console(request: Request) -> Response:
    """Answer GET / and the files that the page names; ?prefix= is for the page itself, which watches no more than that.

    The path is the one of the request's first line. `request.url` is not used: it is made of the Host header too.
    """
    query(request, "prefix")
    name = SERVED.get(request.scope["path"])
    if name is None:
        raise HTTPException(404)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return Response(_body(name), headers=headers, media_type=KINDS[Path(name).suffix])
