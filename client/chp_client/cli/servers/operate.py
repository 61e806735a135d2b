"""`chp switch`, `chp leases`, `chp backup`, `chp restore`: what an operator tells a live pair to do.

Each is one admin request to the active server, found by asking; the server does the work and answers when it is done.
Paths are on the server's machine. A command that the server does not know is refused (exit code 4).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from ...port.admin import Admin, AdminReply, Answer, Unreachable
from .. import pair
from ..data.write import somebody_to_ask
from ..faults import REFUSED, Misused, NoServer, RefusedByServer
from ..out import Out
from ..pair import ServerStatus
from ..settings import CliSettings, examples, pass_settings, shared_for
from ..store import explained
from ..text import escape, show_bytes, show_count, show_latency

LOOK_S = 0.02  # between looks while a hand-over is under way
AGAIN_S = 0.1  # between looks while servers are starting
STARTING_S = 10.0  # which takes no longer, unless something is wrong
HAND_OVER_S = 10.0
LIST_S = 10.0
COPY_S = 300.0  # a backup or restore may take its time


@click.command(short_help="Hand over to the passive server.", epilog=examples("""
    chp switch            # the passive becomes active
    chp switch && chp status
    chp switch --force --servers tcp://b:5566    # whatever the arbiter says
"""))  # fmt: skip
@click.option(
    "--force",
    is_flag=True,
    help="Let the one server named serve, whatever the arbiter says, or though it met another pair's store, "
    "or though a client has seen a higher epoch.",
)
@shared_for(HAND_OVER_S)
@pass_settings
def switch(settings: CliSettings, force: bool) -> None:
    """Hand over: make the passive server active, losing no set. Needs both, in sync; --force needs neither."""
    if force:
        _force(settings)
        return
    with explained(settings), Admin(settings.servers, settings.patience(HAND_OVER_S)) as admin:
        active, passive = _who(look_for_active(admin))
        began = time.monotonic()
        admin.ask(active.server, "switch")
        wait_until_active(admin, passive.server)
        took_s = time.monotonic() - began
    if settings.out.json:
        settings.out.record({"active": passive.server, "was": active.server, "seconds": round(took_s, 4)})
    else:
        settings.out.line(f"{passive.server} is active now, instead of {active.server}; it took {show_latency(took_s)}")


def _force(settings: CliSettings) -> None:
    if len(settings.servers) != 1:
        raise Misused("--force is for one server: name the one that is to serve with --servers, and no other")
    with explained(settings), Admin(settings.servers, settings.patience(HAND_OVER_S)) as admin:
        reply = admin.ask(settings.servers[0], "switch", force=True)
        wait_until_active(admin, reply.server)
    if settings.out.json:
        settings.out.record({"active": reply.server, **reply.facts})
    else:
        settings.out.line(f"{reply.server} is active now; lost is {escape(str(reply.facts.get('lost')))}")


def look_for_active(admin: Admin) -> list[ServerStatus]:
    """Both servers, as soon as one is active; without one, once none is still starting, or time is up."""
    until = time.monotonic() + min(admin.timeout_s, STARTING_S)
    while True:
        seen = pair.views(_quick_look(admin), named=True)
        starting = not any(v.active for v in seen) and any(v.state == "STARTING" for v in seen)
        if not starting or time.monotonic() >= until:
            return seen
        threading.Event().wait(AGAIN_S)


def _quick_look(admin: Admin) -> dict[str, Answer]:
    patience, admin.timeout_s = admin.timeout_s, min(admin.timeout_s, 2.0)
    try:
        return admin.ask_all("status")
    finally:
        admin.timeout_s = patience


def _who(seen: list[ServerStatus]) -> tuple[ServerStatus, ServerStatus]:
    verdict = pair.verdict(seen)
    active = [v for v in seen if v.active]
    passive = [v for v in seen if v.state == "PASSIVE"]
    if len(active) == 1 and len(passive) == 1:
        return active[0], passive[0]
    if len(seen) == 1 and seen[0].reachable and seen[0].has_peer:
        raise Misused("a hand-over needs both servers of the pair; name them with --servers or CHP_SERVERS")
    fault = RefusedByServer if any(v.reachable or v.only_chp1 or v.denied for v in seen) else NoServer
    raise fault(f"no hand-over without one active and one passive server: {verdict.word}: {verdict.why}")


def wait_until_active(admin: Admin, server: str) -> None:
    deadline = time.monotonic() + admin.timeout_s
    while time.monotonic() < deadline:
        try:
            if pair.view(server, admin.ask(server, "status")).active:
                return
        except Unreachable:
            pass  # it may be busy taking over; the deadline holds
        threading.Event().wait(LOOK_S)
    raise RefusedByServer(f"{server} did not become active within {admin.timeout_s:g} s; see `chp status`")


@click.command(short_help="List the open leases, or end one.", epilog=examples("""
    chp leases                # name, owner, ttl, what is left, number of keys
    chp leases --end 3f2a9c0de1b84f7790aa54c1d2e3f405
"""))  # fmt: skip
@click.option("--end", "name", metavar="LEASE", help="End this lease: its keys are deleted together.")
@shared_for(LIST_S)
@pass_settings
def leases(settings: CliSettings, name: str | None) -> None:
    """List the open leases of the pair, or end one.

    The owner is the public id of the client that opened the lease (SPEC.md, section 14), who alone may refresh it, set
    with it, or end it; an operator may end any.
    """
    out = settings.out
    with explained(settings), Admin(settings.servers, settings.patience(LIST_S)) as admin:
        active = active_one(admin, "a list of its leases")
        if name is not None:
            reply = admin.ask(active.server, "leases", end=_name_of(name))
            out.record(reply.facts) if out.json else out.line(f"ended {_lease_line(reply.facts)}")
            return
        for n, lease in enumerate(_all_leases(admin, active.server)):
            if out.json:
                out.record(lease)
                continue
            if n == 0:
                out.line(f"{'LEASE':32}  {'OWNER':24}  {'TTL':>8}  {'LEFT':>8}  KEYS")
            out.line(_lease_line(lease))


def _all_leases(admin: Admin, server: str) -> Iterator[dict[str, Any]]:
    after = b""
    while page := admin.ask(server, "leases", after=after).facts["leases"]:
        yield from page
        after = bytes.fromhex(page[-1]["lease"])


def _lease_line(lease: dict[str, Any]) -> str:
    times = (f"{lease[name] / 1000:,.1f} s" for name in ("ttl_ms", "remaining_ms"))
    return "  ".join([lease["lease"], f"{lease['owner']:24}", *(f"{t:>8}" for t in times), show_count(lease["keys"])])


def _name_of(text: str) -> bytes:
    try:
        name = bytes.fromhex(text)
    except ValueError:
        name = b""
    if len(name) != 16:
        raise Misused(f"{text!r:.60} is no lease; give its 32 hexadecimal digits, as `chp leases` shows them")
    return name


@click.command(short_help="Have the server write a copy of its state.", epilog=examples("""
    chp backup
    chp backup before-upgrade.db
"""))  # fmt: skip
@click.argument("name", required=False)
@shared_for(COPY_S)
@pass_settings
def backup(settings: CliSettings, name: str | None) -> None:
    """Have the active server write a consistent copy of its state, while it goes on serving.

    It lies in that server's --backup-dir; NAME is new there and ends in .db. Without it the answer names it.
    """
    _do(settings, "backup", {} if name is None else {"name": _plain_name(name)})


@click.command(short_help="Replace the whole state by a backup.", epilog=examples("""
    chp restore before-upgrade.db         # asks first
    chp restore --yes before-upgrade.db
"""))  # fmt: skip
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@shared_for(COPY_S)
@pass_settings
def restore(settings: CliSettings, name: str, yes: bool) -> None:
    """Have the active server replace the whole state by a backup; every client follows.

    NAME is that of a backup in that server's --backup-dir. What is replaced is kept there first; the answer names it.
    """
    where = _plain_name(name)
    if not yes:
        if not somebody_to_ask():
            raise Misused("every key would be replaced and there is nobody to ask; add --yes")
        click.confirm(f"Replace every key by those of {escape(where)}?", abort=True, err=True)
    _do(settings, "restore", {"name": where})


def _plain_name(name: str) -> str:
    if "/" in name:
        raise Misused(f"{name!r:.200} is a path; a backup has a name only, and lies in the server's --backup-dir")
    return name


def _do(settings: CliSettings, command: str, arguments: dict[str, Any]) -> None:
    with explained(settings), Admin(settings.servers, settings.patience(COPY_S)) as admin:
        active = active_one(admin, f"a {command}")
        _report(settings.out, command, admin.ask(active.server, command, **arguments))


def active_one(admin: Admin, what: str) -> ServerStatus:
    """The active, to ask it for something."""
    seen = look_for_active(admin)
    active = next((v for v in seen if v.active), None)
    if active is None:
        verdict = pair.verdict(seen)
        fault = RefusedByServer if verdict.code == REFUSED else NoServer
        raise fault(f"no active server to ask for {what}: {verdict.word}: {verdict.why}")
    return active


_TOLD: dict[str, Callable[[Any], str]] = {
    "name": str,
    "keys": lambda n: f"{show_count(n)} keys",
    "bytes": show_bytes,
    "kept": lambda name: f"what was there is kept as {name}",
}


def _report(out: Out, command: str, reply: AdminReply) -> None:
    if out.json:
        out.record({"server": reply.server, "done": command, **reply.facts})
        return
    said = ", ".join(show(reply.facts[name]) for name, show in _TOLD.items() if name in reply.facts)
    out.line(f"{command} done by {reply.server}" + (f": {escape(said)}" if said else ""))


COMMANDS = (switch, leases, backup, restore)
