"""`chp status` and `chp top`: both servers and replicas at a glance, once or live.

`pair.py` has the meaning of each fact and of a missing one. A rate is the difference of a counter between two looks, so
`status` looks twice, a moment apart; `--no-rates` looks once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ...port.admin import Admin, AdminReply, Answer
from .. import pair
from ..out import Out
from ..pair import PairVerdict, ServerStatus
from ..probe import explain
from ..settings import CliSettings, at_least_1, command, duration
from ..store import asking
from ..text import columns, escape, show_bytes, show_count, show_duration, show_latency, show_revision, sparkline

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
    """Successive looks at the servers: views, and rates since the look before."""

    def __init__(self, admin: Admin, named: bool, clients: bool = False) -> None:
        self.admin = admin
        self.named = named
        self._asks_clients = clients
        # The first page of the active server's clients, if they are asked for.
        self.clients: list[dict[str, Any]] = []
        self.views: list[ServerStatus] = []
        self.rates: dict[str, dict[str, float]] = {}
        self.history: dict[str, deque[float]] = {}
        self._answers: dict[str, Answer] = {}
        self._before: dict[str, tuple[float, dict[str, float]]] = {}

    def again(self) -> None:
        """Ask both servers."""
        self._take(self.admin.ask_all("status"))

    def once_more(self) -> None:
        """Ask the servers that answered the last look again; the others are taken to be away still."""
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


@command(timeout_s=TIMEOUT_S, mounts=True)
@click.option("--rates/--no-rates", default=True, help="Look twice, half a second apart, to tell rates.")
@click.option("--epochs", is_flag=True, help="The last 50 epochs instead: when each began, who opened it, because.")
def status(settings: CliSettings, rates: bool, epochs: bool) -> int:
    """Show both servers at a glance, and the replicas that are named.

    Show role, epoch and sequence, in sync, clients, rates, lag, pending, journal. Exit code: 0 healthy, 1 degraded,
    2 nobody active, 3 no server answers, 4 denied. Of several mounts each is shown, and the highest exit code counts.

    Examples:
        chp status
        chp status --json | tail -1 | jq -r .verdict
        chp status --epochs                   # who was active when, and because
        chp status > /dev/null || page-somebody
    """
    return max(_status(one, mount, rates=rates, epochs=epochs) for mount, one in settings.each_pair())


def _status(settings: CliSettings, mount: str, *, rates: bool, epochs: bool) -> int:
    """Show the two servers of a pair, under the prefix of its mount if there are several pairs."""
    with asking(settings) as admin:
        look = Look(admin, settings.named)
        look.again()
        if rates and not epochs and any(v.reachable for v in look.views):
            _wait(LOOK_S)
            look.once_more()
    verdict, out = pair.verdict(look.views), settings.out
    if mount and not out.json:
        out.line(out.style(f"mount {mount}", bold=True))
    if epochs and any(v.reachable for v in look.views):
        show_epochs(out, look, mount)
    else:
        show(out, look, verdict, mount)
    return verdict.code


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


# -- as text, JSON, or a table


def show(out: Out, look: Look, verdict: PairVerdict, mount: str = "") -> None:
    """Show one look as JSON, as a table, or as lines."""
    if out.json:
        told = [_fields(view, look.rates.get(view.server, {})) for view in look.views]
        last = {"verdict": verdict.word, "why": verdict.why, "exit": verdict.code}
        out.records([{**_mount(mount), **each} for each in (*told, last)])
    elif out.terminal:
        out.console().print(table(look, verdict))
    else:
        out.lines([*columns(rows(look)), f"{verdict.word}: {verdict.why}"])


def _mount(mount: str) -> dict[str, Any]:
    """Return the field that says of which mount a record is, if there are several."""
    return {"mount": mount} if mount else {}


def show_epochs(out: Out, look: Look, mount: str = "") -> None:
    """Show the epochs that any of the servers remembers, with their server and reason; the newest first."""
    found: dict[int, dict[str, Any]] = {}
    for view in look.views:
        for each in view.facts.get("epochs") or []:
            found.setdefault(each["epoch"], each)
    newest = [found[epoch] for epoch in sorted(found, reverse=True)]
    head = ("EPOCH", "SINCE", "SERVER", "BECAUSE", "LAST")
    out.table(newest, lambda each: {**_mount(mount), **each}, _epoch_row, head=head)


def _epoch_row(each: dict[str, Any]) -> list[str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["wall_ms"] / 1000))
    return [str(each["epoch"]), since, escape(each["name"]) or "-", escape(each["because"]), each["last"]]


def _fields(view: ServerStatus, rates: dict[str, float]) -> dict[str, Any]:
    fields: dict[str, Any] = {"server": view.server, "reachable": view.reachable, "state": view.state}
    if not view.reachable:
        return {**fields, "problem": view.problem}
    said = {("server_id" if k == "server" else k): v for k, v in view.facts.items() if k != "state"}
    return {**fields, **said, "rates_per_s": {k: round(v, 1) for k, v in rates.items()}}


def rows(look: Look) -> list[list[str]]:
    """Return a row for each fact, with a column for each server; empty rows are left out."""
    found = [["", *(v.server for v in look.views)]]
    for title, tell in _ROWS:
        cells = [tell(v, look) if v.reachable else "" for v in look.views]
        if any(cell not in ("", "-") for cell in cells):
            found.append([title, *cells])
    found[1:1] = [["state", *(v.state for v in look.views)]]
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


def _replica(v: ServerStatus, look: Look) -> str:
    """Return the place and the load of a replica."""
    hops, age, readers, cpu = (v.fact(f"replica.{name}") for name in ("hops", "age", "readers", "cpu"))
    if hops is None:
        return "-"
    far = "1 hop" if hops == 1 else f"{hops} hops"
    load = f"{show_count(readers)} readers, {(cpu or 0) / 10:.0f} % of a core"
    return f"{far}, {show_latency((age or 0) / 1000)} old, {load}"


def _replicas(v: ServerStatus, look: Look) -> str:
    """Return the replicas that follow a server, with their readers and what they lack."""
    found = v.facts.get("replicas")
    told = [
        f"{escape(str(each['name']))}: {show_count(each['readers'])} readers"
        + (f", {show_count(each['lag'])} behind" if each["lag"] else "")
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
    """Return how much of the past the journal has, for readers of changes."""
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
        return f"{show_count(keys)} keys equal{when}"
    named = ", ".join(escape(str(key)) for key in (v.fact("scrub.differing") or ())[:3])
    return f"{differ} of {keys:,} keys DIFFERED{when}: {named}"


def _refusals(v: ServerStatus, look: Look) -> str:
    return ", ".join(f"{n:,} {escape(kind)}" for kind, n in v.refusals().items()) or "none"


_ROWS: tuple[tuple[str, Tell], ...] = (
    ("role, name", _role),
    ("number", lambda v, look: show_revision(v.position)),
    ("behind by", lambda v, look: show_count(v.behind(look.views))),
    ("in sync", _sync),
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


def table(look: Look, verdict: PairVerdict, trend: bool = False) -> RenderableType:
    """Return the rows as a table of rich, with the verdict below."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head, *body = rows(look)
    # A terminal of 24 lines must hold all rows.
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, title in enumerate(head):
        grid.add_column(title, style="dim" if i == 0 else "", overflow="fold")
    for row in body:
        grid.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    if trend:
        grid.add_row("trend", *(sparkline(list(look.history.get(v.server, ()))) for v in look.views))
    problems = [Text(f"{v.server}: {v.problem}", style="red") for v in look.views if not v.reachable]
    last = Text.assemble((verdict.word, f"bold {_COLOURS[verdict.word]}"), f": {verdict.why}")
    return Group(grid, *([] if verdict.word == "no server" else problems), last, *map(Text, client_lines(look)))


def client_lines(look: Look) -> list[str]:
    """Return the clients with the greatest lag, from the first page."""
    latest = sorted(look.clients, key=lambda each: (-each["lag_ms"], -each["batches"], each["place"]))[:CLIENTS_SHOWN]
    if not latest:
        return []
    cells = [
        [escape(each["program"]) or "-", f"{escape(each['host'])} {each['pid']}", show_count(each["keys"]),
         show_latency(each["lag_ms"] / 1000), show_count(each["batches"])]
        for each in latest
    ]  # fmt: skip
    return ["", *columns([["CLIENT", "WHERE", "KEYS", "LAG", "UNACKNOWLEDGED"], *cells])]


# -- live


@command(timeout_s=TIMEOUT_S)
@duration("--interval", default="1s", help="The time between looks.")
@at_least_1("--count", help="End after so many looks.")
def top(settings: CliSettings, interval: float, count: int | None) -> None:
    """Show both servers live, with rates, and the replicas that are named.

    Ctrl-C ends it. A pipe gets a block of lines for each look.

    Examples:
        chp top
        chp top --interval 5s
        chp top --count 60 --json > minute.jsonl
    """
    with asking(settings) as admin:
        look = Look(admin, settings.named, clients=settings.out.terminal)
        if settings.out.terminal:
            _live(settings.out, look, interval, count)
            return
        for _ in looks(look, interval, count):
            show(settings.out, look, pair.verdict(look.views))


def looks(look: Look, interval: float, count: int | None) -> Iterator[None]:
    done = 0
    next_at = time.monotonic()
    while True:
        look.again()
        yield
        done += 1
        if done == count:
            return
        next_at = max(next_at + interval, time.monotonic())
        _wait(next_at - time.monotonic())


def _live(out: Out, look: Look, interval: float, count: int | None) -> None:
    from rich.live import Live

    with Live(console=out.console(), screen=count is None and sys.stdin.isatty(), auto_refresh=False) as live:
        for _ in looks(look, interval, count):
            live.update(table(look, pair.verdict(look.views), trend=True), refresh=True)


COMMANDS = (status, top)
