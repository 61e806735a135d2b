"""`chp switch`, `leases`, `clients`, `backup` and `restore`: commands and questions of an operator to a live pair.

Each command first asks all servers which one is active, and then sends admin requests to the active server. The server
does the work, and answers when the work is done. Paths are on the server's machine. A command that the server does not
know is refused (exit code 4).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click

from ...port.admin import Admin, Answer, Unreachable
from .. import pair
from ..data.write import confirm
from ..faults import REFUSED, Fault, Misused, NoServer, RefusedByServer
from ..pair import ServerStatus
from ..settings import YES, CliSettings, command
from ..store import asking, at_once, naming_mount
from ..text import escape, show_bytes, show_count, show_duration, show_latency

# While a hand-over is under way, the client asks for the status this often.
LOOK_S = 0.02
# While servers are starting, the client asks for the status this often.
AGAIN_S = 0.1
# The client waits at most this long for servers that are starting. Healthy servers start faster.
STARTING_S = 10.0
HAND_OVER_S = 10.0
LIST_S = 10.0
# A backup or a restore may take up to this long, unless --timeout says otherwise.
COPY_S = 300.0


@command(timeout_s=HAND_OVER_S)
@click.option(
    "--force",
    is_flag=True,
    help="Let one server serve, whatever the arbiter says, or though it met another pair's store, or though a client "
    "has seen a higher epoch.",
)
@click.option("--to", "chosen", metavar="URL", help="With --force: the server that is to serve, one of those named.")
def switch(settings: CliSettings, force: bool, chosen: str | None) -> None:
    """Hand over to the passive server.

    The passive server becomes active, and no set is lost. A hand-over needs both servers, in sync. With --force
    a hand-over needs only the server that is to serve, and sets may be lost.

    Examples:
        chp switch            # the passive becomes active
        chp switch && chp status
        chp switch --force --to tcp://b:5566    # whatever the arbiter says
    """
    if force or chosen:
        _force(settings, chosen, force)
        return
    with asking(settings) as admin:
        active, passive = _who(look_for_active(admin))
        began = time.monotonic()
        admin.ask(active.server, "switch")
        wait_until_active(admin, passive.server)
        took_s = time.monotonic() - began
    settings.out.answer(
        {"active": passive.server, "was": active.server, "seconds": round(took_s, 4)},
        f"{passive.server} is active now, instead of {active.server}; it took {show_latency(took_s)}",
    )


def _force(settings: CliSettings, chosen: str | None, force: bool) -> None:
    server = chosen or settings.servers[0]
    if not force:
        raise Misused("--to is for --force; without it the passive server becomes active")
    if chosen is None and len(settings.servers) != 1:
        raise Misused("--force is for one server: name the one that is to serve with --to")
    if server not in settings.servers:
        raise Misused(f"--to {server} is none of the servers named: {', '.join(settings.servers)}")
    with asking(settings) as admin:
        told = _quick_look(admin, server)[server]
        _want_the_pair([pair.view(server, told)], "a forced hand-over")
        reply = admin.ask(server, "switch", force=True)
        wait_until_active(admin, reply.server)
    lost = escape(str(reply.facts.get("lost")))
    settings.out.answer({"active": reply.server, **reply.facts}, f"{reply.server} is active now; lost is {lost}")


def look_for_active(admin: Admin) -> list[ServerStatus]:
    """Return the status of all servers once one is active, or none is starting, or the time is up."""
    until = time.monotonic() + min(admin.timeout_s, STARTING_S)
    while True:
        seen = pair.views(_quick_look(admin), named=True)
        starting = not any(v.active for v in seen) and any(v.state == "STARTING" for v in seen)
        if not starting or time.monotonic() >= until:
            return seen
        threading.Event().wait(AGAIN_S)


def _quick_look(admin: Admin, server: str | None = None) -> dict[str, Answer]:
    """Return the status of one server, or of all; wait at most two seconds for a server that does not answer."""
    patience, admin.timeout_s = admin.timeout_s, min(admin.timeout_s, 2.0)
    try:
        return admin.ask_all("status") if server is None else admin.ask_some([server], "status")
    finally:
        admin.timeout_s = patience


def _who(seen: list[ServerStatus]) -> tuple[ServerStatus, ServerStatus]:
    verdict = pair.verdict(seen)
    active = [v for v in seen if v.active]
    passive = [v for v in seen if v.state == "PASSIVE" and not v.is_replica]
    if len(active) == 1 and len(passive) == 1:
        return active[0], passive[0]
    _want_the_pair(seen, "a hand-over")
    if len(seen) == 1 and seen[0].reachable and seen[0].has_peer:
        raise Misused("a hand-over needs both servers of the pair; name them with --servers or CHP_SERVERS")
    fault = RefusedByServer if any(v.reachable or v.only_chp1 or v.denied for v in seen) else NoServer
    raise fault(f"no hand-over without one active and one passive server: {verdict.word}: {verdict.why}")


def _want_the_pair(seen: list[ServerStatus], what: str) -> None:
    """Raise a fault if all servers that answer are replicas."""
    here = [v for v in seen if v.reachable]
    if here and all(v.is_replica for v in here):
        raise Misused(f"{what} needs the servers of the pair, and {here[0].server} is a replica; name them instead")


def wait_until_active(admin: Admin, server: str) -> None:
    """Return when the server is active; raise a fault if it is not within the timeout."""
    deadline = time.monotonic() + admin.timeout_s
    while time.monotonic() < deadline:
        try:
            if pair.view(server, admin.ask(server, "status")).active:
                return
        except Unreachable:
            # The server may be busy taking over; the deadline ends the wait.
            pass
        threading.Event().wait(LOOK_S)
    raise RefusedByServer(f"{server} did not become active within {admin.timeout_s:g} s; see `chp status`")


def active_one(admin: Admin, what: str, *, by_replica: bool = False) -> ServerStatus:
    """Return the active server; if there is none, raise a fault that names `what` the server was needed for.

    With `by_replica`, return a serving replica if no active answers: a replica passes the question to the active.
    """
    seen = look_for_active(admin)
    active = next((v for v in seen if v.active), None)
    if active is None and by_replica:
        active = next((v for v in seen if v.state == "ACTIVE"), None)
    if active is None and not by_replica:
        _want_the_pair(seen, what)
    if active is None:
        verdict = pair.verdict(seen)
        fault = RefusedByServer if verdict.code == REFUSED else NoServer
        raise fault(f"no active server to ask for {what}: {verdict.word}: {verdict.why}")
    return active


# -- lists


@command(timeout_s=LIST_S)
@click.option("--end", "name", metavar="LEASE", help="End this lease: its keys are deleted together.")
def leases(settings: CliSettings, name: str | None) -> None:
    """List the open leases, or end one.

    The owner is the public id of the client that opened the lease (SPEC.md, section 14). Only the owner may refresh a
    lease, set with it, or end it; an operator may end any.

    Examples:
        chp leases                # name, owner, ttl, what is left, number of keys
        chp leases --end 3f2a9c0de1b84f7790aa54c1d2e3f405
    """
    lease = None if name is None else _name_of(name)
    with asking(settings) as admin:
        active = active_one(admin, "a list of its leases", by_replica=True)
        if lease is None:
            found = list(_all_leases(admin, active.server))
            settings.out.table(found, lambda each: each, _lease_row, head=LEASE_HEAD, right=(2, 3))
        else:
            facts = admin.ask(active.server, "leases", end=lease).facts
            settings.out.answer(facts, "ended " + "  ".join(_lease_row(facts)))


LEASE_HEAD = ("LEASE", "OWNER", "TTL", "LEFT", "KEYS")


def _all_leases(admin: Admin, server: str) -> Iterator[dict[str, Any]]:
    after = b""
    while page := admin.ask(server, "leases", after=after).facts["leases"]:
        yield from page
        after = bytes.fromhex(page[-1]["lease"])


def _lease_row(lease: dict[str, Any]) -> list[str]:
    times = (f"{lease[name] / 1000:,.1f} s" for name in ("ttl_ms", "remaining_ms"))
    return [lease["lease"], lease["owner"], *times, show_count(lease["keys"])]


def _name_of(text: str) -> bytes:
    try:
        name = bytes.fromhex(text)
    except ValueError:
        name = b""
    if len(name) != 16:
        raise Misused(f"{text!r:.60} is no lease; give its 32 hexadecimal digits, as `chp leases` shows them")
    return name


@command(timeout_s=LIST_S, mounts=True)
def clients(settings: CliSettings) -> None:
    """List the connected clients.

    A line has program, host, process, lag, and what the client holds, in the order of arrival. Clones report this half
    a second after they have joined, and then each 5 s (less often if there are hundreds). A client that has ended is
    shown for 15 s more. Clients of CHP/1 report nothing. Only a replica knows its own readers: to see them, name the
    replica beside the pair; VIA then has its name. With several mounts, the clients of all pairs are shown.

    Examples:
        chp clients
        chp clients --json | jq -r 'select(.lag_ms > 1000).program'
    """
    pairs = list(settings.each_pair())
    found: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for (mount, _), (told, fault) in zip(pairs, at_once([partial(_clients_of, *each) for each in pairs]), strict=True):
        faults += [fault] if fault else []
        found += ({"mount": mount, **each} if mount else each for each in told)
    if not faults or found:
        head = ["MOUNT", *CLIENT_HEAD] if len(pairs) > 1 else CLIENT_HEAD
        none = "no client has reported that it is connected"
        settings.out.table(found, lambda each: each, _client_row, head=head, empty=none)
    if faults:
        # The clients of the other pairs and replicas are shown all the same.
        raise type(faults[0])("; ".join(fault.message for fault in faults))


def _clients_of(mount: str, settings: CliSettings) -> tuple[list[dict[str, Any]], Fault | None]:
    """Return the clients of one pair and its replicas, and the fault if some of them can't be listed, else None."""
    found: list[dict[str, Any]] = []
    try:
        with naming_mount(mount), asking(settings) as admin:
            found.extend(_of_all_servers(admin))
    except Fault as fault:
        return found, fault
    return found, None


CLIENT_HEAD = (
    "NAME", "PROGRAM", "HOST", "PID", "ADDRESS", "USER", "VIA", "STATE", "KEYS", "LAG", "UNACKNOWLEDGED", "HEARD",
    "HOLDS",
)  # fmt: skip


def _of_all_servers(admin: Admin) -> Iterator[dict[str, Any]]:
    """Yield the clients of the active server, then those of each named replica.

    If no server of the pair answers, yield the clients of the replicas, then raise a fault.
    """
    seen = look_for_active(admin)
    replicas = [v for v in seen if v.is_replica]
    others = [v for v in seen if not v.is_replica]
    if any(v.reachable for v in others) or not replicas:
        for client in _all_clients(admin, active_one(admin, "who is connected").server):
            yield {**client, "via": ""}
        others = []
    for replica in replicas:
        for client in _all_clients(admin, replica.server):
            yield {**client, "via": str(replica.fact("name") or replica.server)}
    if others:
        raise NoServer(f"the clients of the replicas that answer are all that is known: {pair.why_away(others)}")


def _all_clients(admin: Admin, server: str) -> Iterator[dict[str, Any]]:
    place = 0
    while page := admin.ask(server, "clients", after=place).facts["clients"]:
        yield from page
        place = page[-1]["place"]


def _client_row(client: dict[str, Any]) -> list[str]:
    waits = f"{show_count(client['batches'])} ({show_bytes(client['bytes'])})" if client["batches"] else "-"
    mount = [client["mount"]] if "mount" in client else []
    texts = [escape(client[name]) or "-" for name in ("name", "program", "host")]
    return [
        *mount, *texts, str(client["pid"]), client["address"] or "-", escape(client["user"]) or "-",
        escape(client["via"]) or "-", escape(client["state"]),
        show_count(client["keys"]), show_latency(client["lag_ms"] / 1000), waits, show_duration(client["heard_s"]),
        " ".join(escape(each) or "everything" for each in client["subtrees"]) or "nothing, it only writes",
    ]  # fmt: skip


# -- copies


@command(timeout_s=COPY_S)
@click.argument("name", required=False)
def backup(settings: CliSettings, name: str | None) -> None:
    """Have the server write a copy of its state.

    The active server writes a consistent copy into its --backup-dir, and goes on serving meanwhile. NAME must be new
    there and end in .db. Without NAME the server chooses a name, which the answer tells.

    Examples:
        chp backup
        chp backup before-upgrade.db
    """
    _do(settings, "backup", {} if name is None else {"name": _plain_name(name)})


@command(timeout_s=COPY_S)
@click.argument("name")
@YES
def restore(settings: CliSettings, name: str, yes: bool) -> None:
    """Replace the whole state by a backup.

    NAME is a backup in the --backup-dir of the active server. Every client gets the restored state. Before that, the
    server saves the present state there as another backup, and the answer names that backup.

    Examples:
        chp restore before-upgrade.db         # asks first
        chp restore --yes before-upgrade.db
    """
    where = _plain_name(name)
    if not yes:
        confirm("every key would be replaced", f"Replace every key by those of {escape(where)}?")
    _do(settings, "restore", {"name": where})


def _plain_name(name: str) -> str:
    if "/" in name:
        raise Misused(f"{name!r:.200} is a path; a backup has a name only, and lies in the server's --backup-dir")
    return name


def _do(settings: CliSettings, what: str, arguments: dict[str, Any]) -> None:
    with asking(settings) as admin:
        asked = active_one(admin, f"a {what}", by_replica=what == "backup")
        reply = admin.ask(asked.server, what, **arguments)
    told = ", ".join(show(reply.facts[name]) for name, show in _TOLD.items() if name in reply.facts)
    by = f"by the active, through {reply.server}" if asked.is_replica else f"by {reply.server}"
    text = f"{what} done {by}" + (f": {escape(told)}" if told else "")
    settings.out.answer({"server": reply.server, "done": what, **reply.facts}, text)


_TOLD: dict[str, Callable[[Any], str]] = {
    "name": str,
    "keys": lambda n: f"{show_count(n)} keys",
    "bytes": show_bytes,
    "kept": lambda name: f"what was there is kept as {name}",
}


COMMANDS = (switch, leases, clients, backup, restore)
