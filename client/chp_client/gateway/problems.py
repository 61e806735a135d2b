"""Problems: the errors that a gateway answers as `application/problem+json` (RFC 9457), each with its remedy."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from chp.errors import BadKey, BadTtl, BadValue, ChpError

from ..errors import Closed, Conflict, Full, Refused, Unanswered

# Browsers ask for a user and a token when they see the second challenge.
CHALLENGES = ("Bearer", 'Basic realm="chp-gateway", charset="UTF-8"')
# A client is told to ask again after this many seconds. A failover takes about a second.
RETRY_S = 1
_BAD: dict[type[Exception], str] = {BadKey: "bad-key", BadTtl: "bad-ttl", BadValue: "bad-value"}
_TITLES = {
    400: "the request can't be taken", 401: "the caller is not known", 403: "not allowed", 404: "not there",
    405: "no such method here", 408: "the request did not come in time", 409: "in conflict",
    412: "the condition does not hold", 413: "too large", 414: "the path is too long", 415: "no such kind of body",
    421: "not our name", 422: "another request", 429: "too many at once", 431: "the head is too large",
    500: "a defect of the gateway", 503: "not now", 507: "full",
}  # fmt: skip


class Problem(Exception):
    """The reason why a request was not done; `more` has further members for the JSON of the answer."""

    def __init__(self, status: int, code: str, detail: str, *, retry_s: int | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.retry_s, self.more = retry_s, more

    def response(self) -> Response:
        """Return the answer."""
        told = {"type": "about:blank", "title": _TITLES[self.status], "status": self.status, "code": self.code}
        body = json.dumps({**told, "detail": self.detail, **self.more}).encode()
        headers = {"Cache-Control": "no-store"}
        if self.retry_s is not None:
            headers["Retry-After"] = str(self.retry_s)
        response = Response(body, self.status, headers, media_type="application/problem+json")
        for challenge in CHALLENGES if self.status == 401 else ():
            response.headers.append("WWW-Authenticate", challenge)
        return response


def problem_of(error: Exception) -> Problem:
    """Return the Problem for an error of the Clone; raise any other error again."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Refused):
        return _refused(error)
    if isinstance(error, TimeoutError):
        text = f"{error}; it may still be done: ask again with the same Idempotency-Key, or look"
        return Problem(503, "unacknowledged", text, retry_s=RETRY_S)
    if isinstance(error, Unanswered):
        return Problem(503, "unanswered", f"{error}; ask again", retry_s=RETRY_S)
    if isinstance(error, Full | Closed):
        return Problem(503, "busy", f"{error}; ask again, or another gateway", retry_s=RETRY_S)
    if isinstance(error, ChpError):
        return Problem(400, _BAD.get(type(error), "bad-request"), str(error))
    raise error


def _refused(error: Refused) -> Problem:
    if error.code == "parted":
        return Problem(409, "parted", f"{error}; it may still be done: read the key before you decide")
    if isinstance(error, Conflict):
        revisions = {key: str(revision) for key, revision in error.revisions.items()}
        return Problem(412, "revision", str(error), revisions=revisions)
    if error.code in ("topic", "group"):
        path = "/v1/topics/TOPIC" + ("/groups/GROUP" if error.code == "group" else "")
        return Problem(404, "absent", f"{str(error).partition('; ')[0]}; PUT {path} first")
    if error.code == "name":
        return Problem(404, "absent", str(error))
    if error.code in ("lease", "member"):
        return Problem(409, "fenced", f"{error}: this member was away for longer than its ttl; receive again")
    return Problem(507 if error.code == "full" else 409, error.code or "refused", str(error))
