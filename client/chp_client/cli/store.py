"""A `Clone` and an `Admin` for commands, with errors turned into faults.

    with reading(settings, prefixes) as store    a synced copy of the smallest subtrees that hold these keys
    with writing(settings) as store              no copy at all, for sets and for topics
    with asking(settings) as admin               questions to the servers, and commands for them

Most commands on keys use the methods of `Store`, not those of a Clone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from chp.errors import BadInput, ChpError

from ..port.admin import Admin, AdminReply, Answer
from .faults import Fault, Misused, NoServer, NotFound, RefusedByServer
from .out import hold_warnings
from .pair import view
from .probe import NOT_FIRST, why_silent
from .settings import CliSettings
from .text import covering_subtrees, escape, show_revision

if TYPE_CHECKING:
    from chp_client import Change, Clone, Ticket, Topic, Version

T = TypeVar("T")
# A command that found no server asks each address for at most this long, to tell the user why.
EXPLAIN_S = 0.5
A_MOMENT_S = 0.01


@dataclass(frozen=True, slots=True)
class Item:
    """A key with its value; revision 0 if the server speaks CHP/1."""

    key: str
    value: bytes
    revision: int
    ttl_s: float | None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """An acknowledgement."""

    revision: int
    durability: str

    def fields(self) -> dict[str, str]:
        """Return the acknowledgement as fields of a JSON object."""
        return {"revision": show_revision(self.revision), "durability": self.durability}


def make_clone(settings: CliSettings, subtrees: list[str]) -> Clone:
    """Make a Clone of the subtrees; without subtrees it only writes. Tests replace this function."""
    from chp_client import Clone

    if not subtrees:
        return Clone(settings.pairs, subtree=None)
    return Clone(settings.pairs, subtrees=subtrees)


@contextmanager
def reading(settings: CliSettings, prefixes: list[str]) -> Iterator[Store]:
    """Give a synced store that holds everything under these keys or prefixes."""
    hold_warnings(settings.timeout_s)
    with explained(settings), closing(make_clone(settings, covering_subtrees(prefixes))) as clone:
        try:
            clone.wait_until_synced(settings.timeout_s)
            hold_warnings(0)
        except TimeoutError:
            if clone.refused:
                raise RefusedByServer(clone.refused) from None
            raise
        yield Store(clone, settings)


@contextmanager
def writing(settings: CliSettings) -> Iterator[Store]:
    """Give a store that holds nothing, for sets."""
    hold_warnings(settings.timeout_s)
    with explained(settings, "what was sent may still be done"), closing(make_clone(settings, [])) as clone:
        yield Store(clone, settings)


@contextmanager
def asking(settings: CliSettings) -> Iterator[Admin]:
    """Give a connection to each server, for questions and commands."""
    with explained(settings), Admin(settings.servers, settings.timeout_s) as admin:
        yield admin


def at_once(acts: Sequence[Callable[[], T]]) -> list[T]:
    """Do several things at the same time, such as questions to several pairs. Return their results."""
    if len(acts) == 1:
        return [acts[0]()]
    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(lambda act: act(), acts))


@contextmanager
def naming_mount(mount: str) -> Iterator[None]:
    """Put the mount before the message of a fault; do nothing if the mount is "", because there is one pair."""
    try:
        yield
    except Fault as fault:
        if not mount:
            raise
        raise type(fault)(f"mount {mount}: {fault.message}") from None


@contextmanager
def closing(clone: Clone) -> Iterator[Clone]:
    """Close the Clone at the end without waiting, because the command has waited for its acknowledgements already."""
    try:
        yield clone
    finally:
        clone.close(timeout=0)


class Store:
    """A Clone with the few methods that commands need."""

    def __init__(self, clone: Clone, settings: CliSettings) -> None:
        self.clone = clone
        self.settings = settings

    @property
    def number(self) -> int:
        """The number up to which the copy is complete."""
        return self.clone.revision

    def item(self, key: str) -> Item | None:
        """Return a key with its value, or None."""
        entry = self.clone.entry(key)
        return None if entry is None else Item(key, entry.value, entry.revision, entry.ttl)

    def items(self, keys: list[str]) -> Iterator[Item]:
        """Give these keys with their values; a key that is gone is left out."""
        return (item for item in map(self.item, keys) if item is not None)

    def keys(self, prefix: str, after: str | None = None, limit: int | None = None) -> list[str]:
        """Return the keys under a prefix, in order: at most `limit` keys, and only those behind the key `after`."""
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
        try:
            ack = ticket.wait(timeout=self.settings.timeout_s)
        except TimeoutError:
            # If the list of servers is wrong, this call raises an error with that reason in place of the timeout.
            with suppress(TimeoutError):
                self.clone.wait_until_synced(A_MOMENT_S)
            raise
        return WriteResult(ack.revision, ack.durability)

    def history(self, key: str, limit: int) -> list[Version]:
        """Return the versions of a key that the log still holds."""
        return self.clone.history(key, limit, self.settings.timeout_s)

    def changes(self, prefix: str, start: str | int) -> Iterator[list[Change]]:
        """Yield the changes under a prefix without end, in lists of changes that came together."""
        with self.clone.watch(prefix, start=start) as watch:
            yield from map(list, watch.batches())


# -- errors


@contextmanager
def explained(settings: CliSettings, if_heard: str = "") -> Iterator[None]:
    """Turn a Clone's errors into faults with an exit code and a remedy.

    If a server answers after a timeout, `if_heard` is added to the message: that server may have got the request.
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
    from chp_client.errors import Lagging

    if isinstance(error, Lagging):
        return f"{error.text}; read faster, or begin anew with --from snapshot"
    if getattr(error, "code", None) != "revision":
        return str(error)
    detail = getattr(error, "detail", None)
    present = detail if isinstance(detail, dict) else {}
    shown = ", ".join(f"{k!r} is " + (f"at revision {show_revision(r)}" if r else "absent") for k, r in present.items())
    return f"not set: {shown or 'the revision is another'}; read it again and decide anew"


def why_no_server(settings: CliSettings, if_heard: str = "") -> str:
    """Return one line that says what was found at each address, and the remedy."""
    if settings.mounts is not None:
        # Leave out the pairs that serve, because they are not the reason. If all pairs serve, show all of them.
        each = [f"mount {mount}: {why_no_server(one, if_heard)}" for mount, one in settings.each_pair()]
        return "; ".join([why for why in each if "is ACTIVE" not in why] or each)
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
    heard = f"{if_heard}, " if if_heard and set(reasons.values()) != {NOT_FIRST} else ""
    return f"{waited}: {found}; {heard}see `chp status`"


def _found_there(answer: Answer) -> str:
    if isinstance(answer, AdminReply):
        state = view(answer.server, answer).state
        return "is ACTIVE but took too long: give more --timeout" if state == "ACTIVE" else f"is {state}"
    return "is not there" if not getattr(answer, "connected", True) else answer.text.split(";")[0]


# -- topics


@contextmanager
def topic_of(settings: CliSettings, name: str) -> Iterator[Topic]:
    """Give a topic to publish to or to read, whose errors are faults."""
    with writing(settings) as store, topic_errors():
        yield store.clone.topic(name)


@contextmanager
def topic_errors() -> Iterator[None]:
    """Turn errors of topics into faults: a missing topic or group, and servers that do not answer."""
    from chp_client.errors import NoSuchGroup, NoSuchMessage, NoSuchTopic, Unanswered

    try:
        yield
    except NoSuchTopic as error:
        raise NotFound(f"{error.text}; `chp topic ls` lists them") from None
    except NoSuchGroup as error:
        raise NotFound(f"{error.text}; `chp topic groups` lists those of a topic") from None
    except NoSuchMessage as error:
        raise NotFound(f"{error.text}; `chp topic scheduled` lists those of a topic") from None
    except Unanswered as error:
        raise NoServer(str(error)) from None


def absent(key: str) -> str:
    """Return the words for a key that does not exist."""
    return f"no key {escape(key)!r}"
