"""What the commands need of a `Clone`: opened on no more than they read, its errors turned into faults.

A command that reads opens the smallest subtrees that hold its keys, and has them synced before it reads. A command
that only writes holds nothing (`subtree=None`), and waits for its acknowledgement.

This is the one module of the command line that knows the Clone's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from chp.errors import BadInput, ChpError

from ..admin import Admin, AdminReply, Answer
from .faults import Misused, NoServer, RefusedByServer
from .pair import view
from .probe import why_silent
from .settings import CliSettings
from .text import covering_subtrees, show_revision

if TYPE_CHECKING:
    from chp_client import Change, Clone, Ticket, Version

EXPLAIN_S = 0.5  # how long a failed command looks for the reason


@dataclass(frozen=True, slots=True)
class Item:
    """A key as it stands: revision 0 where the server speaks CHP/1."""

    key: str
    value: bytes
    revision: int
    ttl_s: float | None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """An acknowledgement."""

    revision: int
    durability: str


def make_clone(settings: CliSettings, subtrees: list[str]) -> Clone:
    """The Clone itself; no subtrees make one that only writes. Tests put theirs here."""
    from chp_client import Clone

    if not subtrees:
        return Clone(settings.servers, subtree=None)
    return Clone(settings.servers, subtrees=subtrees)


@contextmanager
def reading(settings: CliSettings, prefixes: list[str]) -> Iterator[Store]:
    """A store that holds everything under these keys or prefixes, synced."""
    with explained(settings), closing(make_clone(settings, covering_subtrees(prefixes))) as clone:
        try:
            clone.wait_until_synced(settings.timeout_s)
        except TimeoutError:
            if clone.refused:
                raise RefusedByServer(clone.refused) from None
            raise
        yield Store(clone, settings)


@contextmanager
def writing(settings: CliSettings) -> Iterator[Store]:
    """A store that holds nothing, for sets."""
    with explained(settings, "what was sent may still be done"), closing(make_clone(settings, [])) as clone:
        yield Store(clone, settings)


@contextmanager
def closing(clone: Clone) -> Iterator[Clone]:
    """The Clone, closed at the end: at once, since who wanted acknowledgements has waited for them."""
    try:
        yield clone
    finally:
        clone.close(timeout=0)


class Store:
    """A Clone, in the command line's words."""

    def __init__(self, clone: Clone, settings: CliSettings) -> None:
        self.clone = clone
        self.settings = settings

    @property
    def number(self) -> int:
        """The number up to which all that is held is complete."""
        return self.clone.revision

    def item(self, key: str) -> Item | None:
        """A key as it stands, or None."""
        entry = self.clone.entry(key)
        return None if entry is None else Item(key, entry.value, entry.revision, entry.ttl)

    def items(self, prefix: str) -> Iterator[Item]:
        """All keys under a prefix, in order."""
        return self.items_of(self.keys(prefix))

    def items_of(self, keys: list[str]) -> Iterator[Item]:
        """These keys as they stand; one that is gone is left out."""
        for key in keys:
            item = self.item(key)
            if item is not None:
                yield item

    def keys(self, prefix: str, after: str | None = None, limit: int | None = None) -> list[str]:
        """The keys under a prefix, in order; or the first `limit` behind a key."""
        return list(islice(self.clone.prefix(prefix, after), limit))

    def set(self, key: str, value: bytes, ttl_s: float | None = None, if_revision: int | None = None) -> WriteResult:
        """Set a key and wait for the acknowledgement."""
        return self.wait(self.clone.set(key, value, ttl=ttl_s, if_revision=if_revision))

    def set_many(self, values: Mapping[str, bytes], ttl_s: float | None = None) -> Ticket:
        """Set many keys."""
        return self.clone.set_many(values, ttl=ttl_s, timeout=self.settings.timeout_s)

    def delete_many(self, keys: list[str]) -> Ticket:
        """Delete many keys."""
        return self.clone.delete_many(keys, timeout=self.settings.timeout_s)

    def wait(self, ticket: Ticket) -> WriteResult:
        """Wait for a ticket's acknowledgement."""
        ack = ticket.wait(timeout=self.settings.timeout_s)
        return WriteResult(ack.revision, ack.durability)

    def history(self, key: str, limit: int) -> list[Version]:
        """The versions of a key that the log still holds."""
        return self.clone.history(key, limit, self.settings.timeout_s)

    def changes(self, prefix: str, start: Any) -> Iterator[list[Change]]:
        """Changes under a prefix as they come, those that came together in one list; without end."""
        with self.clone.watch(prefix, start=start) as watch:
            yield from map(list, watch.batches())


# -- errors


@contextmanager
def explained(settings: CliSettings, if_heard: str = "") -> Iterator[None]:
    """Turn a Clone's errors into faults with an exit code and a remedy.

    `if_heard` is what to add when time ran out although somebody is there, who may have heard us.
    """
    try:
        yield
    except TimeoutError:
        raise NoServer(why_no_server(settings, if_heard)) from None
    except BadInput as error:
        raise Misused(str(error)) from None
    except ChpError as error:
        raise RefusedByServer(_refusal(error)) from None


def _refusal(error: ChpError) -> str:
    if getattr(error, "code", None) == "revision":
        return _conflict(getattr(error, "detail", None))
    return str(error)


def _conflict(detail: Any) -> str:
    present = detail if isinstance(detail, dict) else {}
    shown = ", ".join(f"{k!r} is " + (f"at revision {show_revision(r)}" if r else "absent") for k, r in present.items())
    return f"not set: {shown or 'the revision is another'}; read it again and decide anew"


def why_no_server(settings: CliSettings, if_heard: str = "") -> str:
    """One line that says what was found at each address, and the remedy."""
    waited = f"no server within {settings.timeout_s:g} s"
    remedy = "start chp-server, or name the pair with --servers or CHP_SERVERS"
    try:
        with Admin(settings.servers, min(EXPLAIN_S, settings.timeout_s)) as admin:
            answers = admin.ask_all("status")
    except ChpError as error:
        return f"{waited}: {error}; {remedy}"
    reasons = {server: why_silent(server, each, with_key=admin.with_key) for server, each in answers.items()}
    if not any(isinstance(a, AdminReply) or getattr(a, "connected", True) or reasons[s] for s, a in answers.items()):
        return f"{waited} ({', '.join(settings.servers)}); {remedy}"
    found = "; ".join(f"{s} {reasons[s].split(';')[0] or _found_there(a)}" for s, a in answers.items())
    return f"{waited}: {found}; " + (f"{if_heard}, " if if_heard else "") + "see `chp status`"


def _found_there(answer: Answer) -> str:
    if isinstance(answer, AdminReply):
        state = view(answer.server, answer).state
        return "is ACTIVE but took too long: give more --timeout" if state == "ACTIVE" else f"is {state}"
    return "is not there" if not getattr(answer, "connected", True) else answer.text.split(";")[0]
