"""`chp clients`: who is connected to the pair, as the active server was told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ...port.admin import Admin
from ..settings import CliSettings, examples, pass_settings, shared_for
from ..store import explained
from ..text import columns, escape, show_bytes, show_count, show_duration, show_latency
from .operate import active_one

LIST_S = 10.0
HEAD = ["NAME", "PROGRAM", "HOST", "PID", "ADDRESS", "USER", "STATE", "KEYS", "LAG", "UNACKNOWLEDGED", "HEARD", "HOLDS"]


@click.command(short_help="Who is connected.", epilog=examples("""
    chp clients
    chp clients --json | jq -r 'select(.lag_ms > 1000).program'
"""))  # fmt: skip
@shared_for(LIST_S)
@pass_settings
def clients(settings: CliSettings) -> None:
    """List who follows the active server, in order of arrival: program, host, process, lag, and what it holds.

    Clones tell it by themselves, half a second after they have joined and each 5 s from then on (more seldom if there
    are hundreds). One that has ended is shown for 15 s more. Clients of CHP/1 tell nothing.
    """
    out = settings.out
    with explained(settings), Admin(settings.servers, settings.patience(LIST_S)) as admin:
        active = active_one(admin, "who is connected")
        found = list(everybody(admin, active.server))
    if out.json:
        for each in found:
            out.record(each)
    elif found:
        out.lines(columns([HEAD, *map(row, found)]))
    else:
        out.line("nobody has told that it is connected")


def everybody(admin: Admin, server: str) -> Iterator[dict[str, Any]]:
    """All that a server knows of, page by page."""
    place = 0
    while page := admin.ask(server, "clients", after=place).facts["clients"]:
        yield from page
        place = page[-1]["place"]


def row(client: dict[str, Any]) -> list[str]:
    """A client as people read it."""
    waits = f"{show_count(client['batches'])} ({show_bytes(client['bytes'])})" if client["batches"] else "-"
    texts = [escape(client[name]) or "-" for name in ("name", "program", "host")]
    return [
        *texts, str(client["pid"]), client["address"] or "-", escape(client["user"]) or "-", escape(client["state"]),
        show_count(client["keys"]), show_latency(client["lag_ms"] / 1000), waits, show_duration(client["heard_s"]),
        " ".join(escape(each) or "everything" for each in client["subtrees"]) or "nothing, it only writes",
    ]  # fmt: skip


COMMANDS = (clients,)
