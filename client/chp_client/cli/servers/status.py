"""`chp status` and `chp top`: both servers and replicas at a glance, once or live; with several mounts, of each pair.

`pair.py` says what a missing fact means. A rate is the difference of a counter between two looks at the servers. So
`status` looks twice, half a second apart; with `--no-rates` it looks once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...port.admin import Admin, AdminReply, Answer
from .. import pair
from ..out import Out
from ..pair import PairVerdict, ServerStatus
from ..probe import explain
from ..settings import CliSettings, at_least_1, command, duration
from ..store import asking, at_once
from ..text import (
    columns,
    counted,
    escape,
    show_bytes,
    show_count,
    show_duration,
    show_latency,
    show_revision,
    sparkline,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

# The time between the two looks of `status`.
LOOK_S = 0.5
# The time for a server's answer, unless --timeout says otherwise.
TIMEOUT_S = 1.0
HISTORY = 30
# The number of clients that `top` shows.
CLIENTS_SHOWN = 8
RATES = ("updates", "records")
_COLOURS = {
    "ACTIVE": "green", "PASSIVE": "cyan", "STARTING": "yellow", "UNREACHABLE": "red", "CHP/1": "yellow",
    "DENIED": "red", "healthy": "green", "degraded": "yellow", "nobody active": "red", "no server": "red",
    "denied": "red",
}  # fmt: skip


class Look:
    """The last look at the servers of a pair: the status of each, and its rates since the look before."""

    def __init__(self, admin: Admin, named: bool, clients: bool = False) -> None:
        self.admin = admin
        self.named = named
        self._asks_clients = clients
        # The first page of clients of each server that serves, if `clients` is set.
        self.clients: list[dict[str, Any]] = []
        self.views: list[ServerStatus] = []
        self.rates: dict[str, dict[str, float]] = {}
        self.history: dict[str, deque[float]] = {}
        self._answers: dict[str, Answer] = {}
        self._before: dict[str, tuple[float, dict[str, float]]] = {}

    def again(self) -> None:
        """Ask all servers for their status."""
        self._take(self.admin.ask_all("status"))

    def once_more(self) -> None:
        """Ask the servers again that answered the last look, and keep the last results of the others."""
        here = [server for server, answer in self._answers.items() if isinstance(answer, AdminReply)]
        self._take({**self._answers, **self.admin.ask_some(here, "status")})

    def _take(self, answers: dict[str, Answer]) -> None:
        self._answers = answers
        self.views = pair.views(answers, self.named)
        now = time.monotonic()
        for view in self.views:
            explain(view, answers[view.server], with_key=self.admin.with_key)
            self._note(view, now)
        serve = [view.server for view in self.views if view.state == "ACTIVE"]
        if self._asks_clients and serve:
            told = self.admin.ask_some(serve, "clients").values()
            pages = [each.facts["clients"] for each in told if isinstance(each, AdminReply)]
            self.clients = [client for page in pages for client in page]

    def _note(self, view: ServerStatus, now: float) -> None:
        counts = view.counts()
        then, before = self._before.get(view.server, (now, counts))
        took = now - then
        rates = {k: max(0.0, counts.get(k, 0.0) - before.get(k, 0.0)) / took for k in RATES} if took > 0 else {}
        self.rates[view.server] = rates
        self._before[view.server] = (now, counts)
        if took > 0:
            self.history.setdefault(view.server, deque(maxlen=HISTORY)).append(rates.get("updates", 0.0))


class MountLook(NamedTuple):
    """The prefix of a mount and the look at its pair. The prefix is "" if there is one pair."""

    mount: str
    look: Look

    @property
    def verdict(self) -> PairVerdict:
        """The verdict on the pair."""
        return pair.verdict(self.look.views)

    def named(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a JSON record; add its mount if there are several mounts."""
        return {"mount": self.mount, **fields} if self.mount else fields


@contextmanager
def looking(settings: CliSettings, *, clients: bool = False) -> Iterator[list[MountLook]]:
    """Give a look at each pair that is named."""
    with ExitStack() as stack:
        yield [
            MountLook(mount, Look(stack.enter_context(asking(one)), one.named, clients))
            for mount, one in settings.each_pair()
        ]


@command(timeout_s=TIMEOUT_S, mounts=True)
@click.option("--rates/--no-rates", default=True, help="Look twice, half a second apart, to tell rates.")
@click.option("--epochs", is_flag=True, help="The last 50 epochs instead: when each began, who opened it, because.")
def status(settings: CliSettings, rates: bool, epochs: bool) -> int:
    """Show both servers at a glance, and the replicas that are named.

    Show role, epoch and sequence, in sync, clients, rates, lag, pending, journal. Exit code: 0 healthy, 1 degraded,
    2 nobody active, 3 no server answers, 4 denied. With several mounts, each server is one line, and the exit code is
    the highest of all pairs; --mount shows one pair in full.

    Examples:
        chp status
        chp status --json | tail -1 | jq -r .verdict
        chp status --epochs                   # who was active when, and because
        chp status > /dev/null || page-somebody
    """
    with looking(settings) as pairs:
        at_once([each.look.again for each in pairs])
        there = any(v.reachable for each in pairs for v in each.look.views)
        if rates and not epochs and there:
            _wait(LOOK_S)
            at_once([each.look.once_more for each in pairs])
    if epochs and there:
        show_epochs(settings.out, pairs)
    else:
        show(settings.out, pairs)
    return max(each.verdict.code for each in pairs)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


# -- as text, JSON, or a table


def show(out: Out, pairs: Sequence[MountLook]) -> None:
    """Show one look at each pair as JSON, as a table, or as lines."""
    if out.json:
        out.records(record for each in pairs for record in _records(each))
    elif out.terminal:
        out.console().print(table(pairs))
    else:
        out.lines([*columns(rows(pairs)), *map(_verdict_line, pairs)])


def _records(each: MountLook) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each server of a pair, and of the verdict."""
    for view in each.look.views:
        yield each.named(_fields(view, each.look.rates.get(view.server, {})))
    yield each.named({"verdict": each.verdict.word, "why": each.verdict.why, "exit": each.verdict.code})


def _verdict_line(each: MountLook) -> str:
    return f"{each.mount and f'mount {each.mount}: '}{each.verdict.word}: {each.verdict.why}"


def show_epochs(out: Out, pairs: Sequence[MountLook]) -> None:
    """Show the epochs that any server of a pair remembers, with their server and reason; the newest first."""
    found: list[tuple[MountLook, dict[str, Any]]] = []
    for each in pairs:
        told: dict[int, dict[str, Any]] = {}
        for view in each.look.views:
            for epoch in view.facts.get("epochs") or []:
                told.setdefault(epoch["epoch"], epoch)
        found += ((each, told[epoch]) for epoch in sorted(told, reverse=True))
    mounted = ["MOUNT"] if len(pairs) > 1 else []
    out.table(
        found,
        lambda row: row[0].named(row[1]),
        lambda row: [*([row[0].mount] if mounted else []), *_epoch_row(row[1])],
        head=[*mounted, "EPOCH", "SINCE", "SERVER", "BECAUSE", "LAST"],
    )


def _epoch_row(each: dict[str, Any]) -> list[str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["wall_ms"] / 1000))
    return [str(each["epoch"]), since, escape(each["name"]) or "-", escape(each["because"]), each["last"]]


def _fields(view: ServerStatus, rates: dict[str, float]) -> dict[str, Any]:
    fields: dict[str, Any] = {"server": view.server, "reachable": view.reachable, "state": view.state}
    if not view.reachable:
        return {**fields, "problem": view.problem}
    said = {("server_id" if k == "server" else k): v for k, v in view.facts.items() if k != "state"}
    return {**fields, **said, "rates_per_s": {k: round(v, 1) for k, v in rates.items()}}


def rows(pairs: Sequence[MountLook]) -> list[list[str]]:
    """Return a row for each fact, with a column for each server. For several pairs, return a row for each server."""
    return _facts_of(pairs[0].look) if len(pairs) == 1 else _servers_of(pairs)


def _facts_of(look: Look) -> list[list[str]]:
    """Return a row for each fact of a pair; leave out a fact that no server has."""
    found = [["", *(v.server for v in look.views)]]
    for title, tell in _ROWS:
        cells = [tell(v, look) if v.reachable else "" for v in look.views]
        if any(cell not in ("", "-") for cell in cells):
            found.append([title, *cells])
    found[1:1] = [["state", *(v.state for v in look.views)]]
    return found


def _servers_of(pairs: Sequence[MountLook]) -> list[list[str]]:
    """Return a row for each server of several pairs, with the facts of `_OF_MANY`."""
    found = [["MOUNT", "SERVER", "STATE", *(title.upper() for title in _OF_MANY)]]
    for mount, look in pairs:
        for view in look.views:
            cells = [_TELLS[title](view, look) if view.reachable else "" for title in _OF_MANY]
            found.append([mount, view.server, view.state, *cells])
    return found


Tell = Callable[[ServerStatus, Look], str]


def _number(path: str) -> Tell:
    return lambda v, look: "-" if (said := v.fact(path)) is None else show_count(said)


def _role(v: ServerStatus, look: Look) -> str:
    return ", ".join(escape(said) for path in ("role", "name") if (said := v.fact(path))) or "-"


def _since(v: ServerStatus, look: Look) -> str:
    spans = [v.fact(path) for path in ("since_s", "uptime_s")]
    return ", ".join(show_duration(span) for span in spans if span is not None) or "-"


def _sync(v: ServerStatus, look: Look) -> str:
    if v.in_sync is None or not v.has_peer:
        return "-"
    since = v.fact("in_sync_since_s")
    shown = ("yes" if v.in_sync else "NO") + ("" if since is None else f", for {show_duration(since)}")
    return shown + (", throttled by the passive" if v.fact("throttled") else "")


def _copies(v: ServerStatus, look: Look) -> str:
    """Return how many copies are in sync, and how many `--copies` asks for."""
    wanted, there = v.fact("copies.wanted"), v.fact("copies.in_sync")
    if wanted is None or there is None:
        return "-"
    return f"{there} of {wanted}" + ("" if there >= wanted else ", DEGRADED")


def _replica(v: ServerStatus, look: Look) -> str:
    """Return a replica's hops from the pair, the age of its data, and its load."""
    hops, age, readers, cpu = (v.fact(f"replica.{name}") for name in ("hops", "age", "readers", "cpu"))
    if hops is None:
        return "-"
    far = "1 hop" if hops == 1 else f"{hops} hops"
    load = f"{counted(readers or 0, 'reader')}, {(cpu or 0) / 10:.0f} % of a core"
    return f"{far}, {show_latency((age or 0) / 1000)} old, {load}"


def _replicas(v: ServerStatus, look: Look) -> str:
    """Return the replicas that follow a server, with the number of their readers and how far they are behind."""
    found = v.facts.get("replicas")
    told = [
        f"{escape(str(each['name']))}: {counted(each['readers'], 'reader')}"
        + (f", {show_count(each['lag'])} behind" if each["lag"] else "")
        + {True: ", confirms", False: ", NOT IN SYNC"}.get(each.get("in_sync"), "")
        for each in (found if isinstance(found, list) else ())
    ]
    return "; ".join(told) or "-"


def _peer(v: ServerStatus, look: Look) -> str:
    if v.is_replica:
        return "-"
    if not v.has_peer:
        return "none, as configured"
    alive, name = v.fact("peer.alive"), escape(v.fact("peer.name") or "?")
    if alive is None:
        return "never seen"
    return f"{name}, heard" if alive else f"{name}, SILENT for {show_duration(v.fact('peer.silent_s'))}"


def _rate(name: str) -> Tell:
    def tell(v: ServerStatus, look: Look) -> str:
        rate = look.rates.get(v.server, {}).get(name)
        return "-" if rate is None else f"{rate:,.0f}"

    return tell


def _pending(v: ServerStatus, look: Look) -> str:
    n, size = v.fact("pending"), v.fact("pending_bytes")
    if n is None:
        return "-"
    return show_count(n) + (f" ({show_bytes(size)})" if n and size is not None else "")


def _journal(v: ServerStatus, look: Look) -> str:
    size, sync = v.fact("journal.bytes"), v.fact("journal.sync")
    if size is None:
        return escape(v.fact("journal.store") or "-")
    return show_bytes(size) + (f", sync {escape(sync)}" if sync else "") + _retained(v)


def _retained(v: ServerStatus) -> str:
    """Return the size and the age of the past records that the journal keeps for readers of changes."""
    past, age = v.fact("journal.row_bytes"), v.fact("journal.retained_s")
    if not past or age is None:
        return ""
    less = ", less as the disk is short" if v.fact("journal.short_bytes") else ""
    return f", past {show_bytes(past)} of {show_duration(age)}{less}"


def _room(v: ServerStatus, look: Look) -> str:
    why = v.fact("room.why")
    if not why:
        return "-" if why is None else "yes"
    return ("NO" if v.fact("room.full") else "LITTLE") + f", {escape(why)}"


def _journal_sync(v: ServerStatus, look: Look) -> str:
    p50, p99 = v.fact("journal.sync_p50_s"), v.fact("journal.sync_p99_s")
    return "-" if p50 is None else f"{show_latency(p50)}, {show_latency(p99 or 0.0)}"


def _contents(v: ServerStatus, look: Look) -> str:
    """Return the result of the last comparison of the two servers' contents."""
    keys, ended, differ = v.fact("scrub.keys"), v.fact("scrub.ended_s_ago"), v.fact("scrub.differences")
    if not keys:
        return "-"
    when = "" if ended is None else f", {show_duration(ended)} ago"
    if not differ:
        return f"{counted(keys, 'key')} equal{when}"
    named = ", ".join(escape(str(key)) for key in (v.fact("scrub.differing") or ())[:3])
    return f"{differ} of {keys:,} keys DIFFERED{when}: {named}"


def _refusals(v: ServerStatus, look: Look) -> str:
    return ", ".join(f"{n:,} {escape(kind)}" for kind, n in v.refusals().items()) or "none"


_ROWS: tuple[tuple[str, Tell], ...] = (
    ("role, name", _role),
    ("number", lambda v, look: show_revision(v.position)),
    ("behind by", lambda v, look: show_count(v.behind(look.views))),
    ("in sync", _sync),
    ("copies", _copies),
    ("peer", _peer),
    ("replica", _replica),
    ("replicas", _replicas),
    ("compared", _contents),
    ("in state, up", _since),
    ("open to", lambda v, look: "ALL THAT REACH IT: insecure" if v.fact("insecure") else "-"),
    ("subscribers", lambda v, look: show_count(v.subscribers())),
    ("clients", _number("clients")),
    ("sessions", _number("sessions")),
    ("keys", _number("keys")),
    ("updates/s", _rate("updates")),
    ("records/s", _rate("records")),
    ("pending", _pending),
    ("room", _room),
    ("journal", _journal),
    ("sync p50, p99", _journal_sync),
    ("refused", _refusals),
)


_TELLS = dict(_ROWS)
# These facts of each server are shown if there are several pairs.
_OF_MANY = ("role, name", "number", "behind by", "in sync", "keys", "clients", "updates/s", "room")


def table(pairs: Sequence[MountLook], trend: bool = False) -> RenderableType:
    """Return the rows as a table of rich, with the verdicts below."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head, *body = rows(pairs)
    # The table has no border, because a terminal of 24 lines must hold all rows of a pair.
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, title in enumerate(head):
        grid.add_column(title, style="dim" if i == 0 else "", overflow="fold")
    trends = [sparkline(list(each.look.history.get(v.server, ()))) for each in pairs for v in each.look.views]
    if trend and len(pairs) > 1:
        grid.add_column("TREND")
        body = [[*row, line] for row, line in zip(body, trends, strict=True)]
    for row in body:
        grid.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    if trend and len(pairs) == 1:
        grid.add_row("trend", *trends)
    below: list[RenderableType] = []
    for each in pairs:
        if each.verdict.word != "no server":
            away = (v for v in each.look.views if not v.reachable)
            below += (Text(f"{v.server}: {v.problem}", style="red") for v in away)
        name, word = each.mount and f"mount {each.mount}: ", each.verdict.word
        below.append(Text.assemble(name, (word, f"bold {_COLOURS[word]}"), f": {each.verdict.why}"))
    return Group(grid, *below, *map(Text, client_lines(pairs)))


def client_lines(pairs: Sequence[MountLook]) -> list[str]:
    """Return lines with the clients of greatest lag. Only the first page of clients of each server is considered."""
    found = [(each.mount, client) for each in pairs for client in each.look.clients]
    latest = sorted(found, key=lambda row: (-row[1]["lag_ms"], -row[1]["batches"], row[1]["place"]))[:CLIENTS_SHOWN]
    if not latest:
        return []
    cells = [
        [escape(each["program"]) or "-", f"{escape(each['host'])} {each['pid']}", show_count(each["keys"]),
         show_latency(each["lag_ms"] / 1000), show_count(each["batches"]), *([mount] if len(pairs) > 1 else [])]
        for mount, each in latest
    ]  # fmt: skip
    head = ["CLIENT", "WHERE", "KEYS", "LAG", "UNACKNOWLEDGED", *(["MOUNT"] if len(pairs) > 1 else [])]
    return ["", *columns([head, *cells])]


# -- live


@command(timeout_s=TIMEOUT_S, mounts=True)
@duration("--interval", default="1s", help="The time between looks.")
@at_least_1("--count", help="End after so many looks.")
def top(settings: CliSettings, interval: float, count: int | None) -> None:
    """Show both servers live, with rates, and the replicas that are named.

    Ctrl-C ends the command. A pipe gets a block of lines for each look at the servers. With several mounts, the servers
    of all pairs are shown.

    Examples:
        chp top
        chp top --interval 5s
        chp top --count 60 --json > minute.jsonl
    """
    out = settings.out
    with looking(settings, clients=out.terminal) as pairs:
        if out.terminal:
            _live(out, pairs, interval, count)
            return
        for _ in looks(pairs, interval, count):
            show(out, pairs)


def looks(pairs: Sequence[MountLook], interval: float, count: int | None) -> Iterator[None]:
    done = 0
    next_at = time.monotonic()
    while True:
        at_once([each.look.again for each in pairs])
        yield
        done += 1
        if done == count:
            return
        next_at = max(next_at + interval, time.monotonic())
        _wait(next_at - time.monotonic())


def _live(out: Out, pairs: Sequence[MountLook], interval: float, count: int | None) -> None:
    from rich.live import Live

    with Live(console=out.console(), screen=count is None and sys.stdin.isatty(), auto_refresh=False) as live:
        for _ in looks(pairs, interval, count):
            live.update(table(pairs, trend=True), refresh=True)


COMMANDS = (status, top)
