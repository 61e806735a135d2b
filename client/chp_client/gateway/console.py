"""The console: the page at / and its files, read once and served under a policy that allows nothing else.

The page has no library and no build step. A browser gets the files of `console/` as they are.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.responses import Response

from .call import Call

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


async def show_console(call: Call) -> Response:
    """Answer GET / and the files that the page names. The script of the page reads ?prefix= and watches that prefix.

    The path comes from the first line of the request. `request.url` is not used, as the Host header can change it.
    """
    name = SERVED[call.request.scope["path"]]
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return Response(_body(name), headers=headers, media_type=KINDS[Path(name).suffix])
