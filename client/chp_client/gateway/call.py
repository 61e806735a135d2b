"""A call: one request as a handler sees it, with the fields that its route names and the user that it is made for."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from starlette.requests import Request

from chp.access import TOPICS
from chp.topics import check_group, check_topic

from ..checks import held_key
from ..core.events import State
from ..topics.aiotopic import AsyncTopic
from .access.caller import Caller
from .gateway import Gateway
from .problems import RETRY_S, Problem
from .request_fields import condition, key_of
from .shared.mounts import GatewayMount, Touched


class Call:
    """One request to a gateway."""

    __slots__ = ("_key", "caller", "fields", "gateway", "request")

    def __init__(self, gateway: Gateway, request: Request, caller: Caller, fields: dict[str, str]) -> None:
        self.gateway, self.request, self.caller, self.fields = gateway, request, caller, fields
        self._key = ""

    @property
    def key(self) -> str:
        """The key that the request names, checked to lie within the subtrees that are served."""
        if not self._key:
            self._key = held_key(key_of(self.request, self.fields), self.gateway.subtrees)
        return self._key

    @property
    def named_key(self) -> str:
        """The key in ?key=, checked to lie within the subtrees that are served."""
        if "key" not in self.fields:
            raise Problem(400, "bad-query", "of which key? Give ?key=")
        return held_key(self.fields["key"], self.gateway.subtrees)

    @property
    def condition(self) -> int | None:
        """The revision that the key must have; None for any."""
        return condition(self.request)

    @property
    def topic_name(self) -> str:
        """The name of the topic in the path, checked to lie within the subtrees that are served."""
        name = check_topic(self.request.path_params["topic"])
        self.gateway.held(f"{TOPICS}{name}/")
        return name

    @property
    def topic(self) -> AsyncTopic:
        """The topic that the path names."""
        name = self.topic_name
        return self.gateway.mounts.of_topic(name).clone.topic(name)

    @property
    def group(self) -> str:
        """The name of the group."""
        return check_group(self.request.path_params["group"])

    def header(self, name: str) -> str:
        """Return a header of the request, or ""."""
        return str(self.request.headers.get(name, ""))

    def body(self) -> AbstractAsyncContextManager[bytes]:
        """Read the body."""
        return self.gateway.bodies.taken(self.request)

    def small_body(self) -> AbstractAsyncContextManager[bytes]:
        """Read a body that is neither a value nor rows."""
        return self.gateway.bodies.taken(self.request, self.gateway.limits.small_bytes)

    async def no_body(self) -> None:
        """Raise `Problem` if there is a body."""
        async with self.small_body() as body:
            if body:
                raise Problem(400, "bad-body", "this takes no body: what it is told stands in the query")

    def readable(self, prefix: str, *, fresh: bool = False) -> list[Touched]:
        """Return the mounts that have keys of a prefix; raise `Problem` if one of the mounts has no readable copy."""
        found = self.gateway.mounts.touched(prefix)
        for each in found:
            check_readable(each.mount, fresh=fresh)
        return found


def check_readable(mount: GatewayMount, *, fresh: bool = False) -> None:
    """Raise `Problem` if there is no copy to read yet, or with `fresh` if the copy is not current."""
    clone = mount.clone
    if clone.state in (State.CONNECTING, State.CLOSED):
        text = f"this gateway has no copy yet; {mount.what(clone.describe())}"
        raise Problem(503, "not-synced", text, retry_s=RETRY_S)
    if fresh and clone.state is not State.SYNCED:
        text = mount.what(f"the copy is {clone.staleness_s:.1f} s old; ask without ?fresh to have it all the same")
        raise Problem(503, "stale", text, retry_s=RETRY_S)
