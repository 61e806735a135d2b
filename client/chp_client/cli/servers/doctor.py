"""`chp doctor`: the faults of a pair, seen from this host, with a remedy for each. `findings` is pure.

    ok    tcp://a:5556 answers, and is ACTIVE
    warn  the clocks of tcp://b:5566 and of this host are 12.0 s apart: run NTP on both; what is left of ttls ...
    bad   tcp://b:5566: port 5567 (P+1) is not reachable from here: open P to P+2 for clients

Facts that a server of another version lacks are skipped. A server whose journal has no room stands still, and answers
with the status that it had when it stopped. Such a server is reported first, and nothing else is concluded from its
status.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from chp.addresses import is_file, parse
from chp.versions import VERSION

from .. import pair
from ..faults import DEGRADED, OK
from ..out import Out
from ..pair import ServerStatus
from ..probe import explain
from ..settings import CliSettings, command
from ..store import asking, at_once
from ..text import counted, show_bytes

GOOD, WARN, BAD = "ok", "warn", "bad"
COLOURS = {GOOD: "green", WARN: "yellow", BAD: "red"}
TIMEOUT_S = 2.0
CONNECT_S = 1.0
# Warn if clocks differ by more than this, plus the time that the question took. NTP keeps hosts within milliseconds.
CLOCK_S = 2.0
# Warn if a server uses more than this part of its memory bound. At the bound it refuses sets.
LITTLE = 0.9
# A server refuses deletes too while the free disk is below the required minimum divided by this number.
READ_ONLY_SHARE = 8
# Warn if a turn took longer than this, because every client waits for a turn.
TURN_MS = 1000
# A replica with a greater age has lost the active, or is far behind. Heartbeats are at most a second apart.
AGE_MS = 5000
# A replica that uses BUSY_CPU thousandths of a core is overloaded. A replica reports each second, so one that is silent
# for SILENT_S may be in trouble.
BUSY_CPU, SILENT_S = 800, 10.0
PORTS = ("P", "P+1", "P+2")
PEER_REMEDY = (
    "start it, and let both reach each other's P+3; with keys, the server.pub of each is the peer.pub of the other"
)


class Finding(NamedTuple):
    """A finding about the pair: `level` is ok, warn or bad; `remedy` says what to do."""

    level: str
    what: str
    remedy: str = ""


def findings(
    seen: list[ServerStatus], unreachable: dict[str, list[int]], now_ms: float, took_ms: float
) -> list[Finding]:
    """Return the findings on the servers' answers; `unreachable` has each server's ports that take no connection."""
    still = [view for view in seen if _stands_still(view, now_ms, took_ms)]
    found: list[Finding] = []
    for view in still:
        found += _of_still(view, now_ms)
    for view in seen:
        if view in still:
            found += _ports(view, unreachable.get(view.server, []))
        else:
            found += _of_one(view, unreachable.get(view.server, []), now_ms, took_ms, peer_still=bool(still))
    verdict = pair.verdict(seen)
    word, why = verdict.word, verdict.why
    if still:
        word = "degraded" if verdict.code == OK else word
        why = f"{' and '.join(view.server for view in still)} can't go on, as the disk is full"
    for view in seen:
        # Remove the text that the finding on this server has shown already.
        why = why.removesuffix(view.trouble).removesuffix("; ")
    about = f"the pair is {word}" + (f": {why}" if why else "")
    found.append(Finding(GOOD if verdict.code == OK and not still else BAD, about))
    return found


def _stands_still(view: ServerStatus, now_ms: float, took_ms: float) -> bool:
    """Return True if a server's status is old, and says that the disk of the journal is full."""
    told, free, least = view.fact("wall_ms"), view.fact("room.disk_free"), view.fact("room.disk_free_min")
    # A server on PostgreSQL measures no disk. If the disk has room, the server is read-only for another reason.
    full = view.fact("room.read_only") and (free is None or least is None or free < least)
    return bool(full and told is not None and now_ms - told - took_ms > CLOCK_S * 1000)


def _of_still(view: ServerStatus, now_ms: float) -> Iterator[Finding]:
    age_s = (now_ms - view.fact("wall_ms")) / 1000
    yield Finding(
        BAD, f"{view.server} stands still, as its journal has no room; its status, {view.state}, is {age_s:.0f} s old",
        "free some of its data disk, and it goes on by itself",
    )  # fmt: skip


def _ports(view: ServerStatus, closed: list[int]) -> Iterator[Finding]:
    for i in closed:
        port = parse(view.server)[1] + i
        yield Finding(
            BAD,
            f"{view.server}: port {port} ({PORTS[i]}) is not reachable from here",
            "open P, P+1 and P+2 for clients",
        )


def _of_one(
    view: ServerStatus, closed: list[int], now_ms: float, took_ms: float, *, peer_still: bool
) -> Iterator[Finding]:
    if not view.reachable:
        yield Finding(BAD, f"{view.server}: {view.problem}", "" if ";" in view.problem else "see its log")
        return
    yield Finding(GOOD, f"{view.server} answers, and is {view.state}")
    yield from _ports(view, closed)
    if view.trouble:
        # The text of `trouble` has the remedy, so none is added.
        yield Finding(BAD, view.trouble)
    yield from _clock(view, now_ms, took_ms)
    yield from _room(view)
    yield from _work(view)
    yield from _replica(view)
    yield from _copies(view)
    yield from _peer(view, peer_still=peer_still)


def _clock(view: ServerStatus, now_ms: float, took_ms: float) -> Iterator[Finding]:
    told = view.fact("wall_ms")
    if told is not None and (apart := abs(told - now_ms) - took_ms) > CLOCK_S * 1000:
        yield Finding(
            WARN, f"the clocks of {view.server} and of this host are {apart / 1000:.1f} s apart",
            "run NTP on both: what is left of a ttl over a restart goes by the clock",
        )  # fmt: skip


def _room(view: ServerStatus) -> Iterator[Finding]:
    if view.fact("room.full") or view.fact("room.read_only"):
        why = view.fact("room.why") or "it is full"
        yield Finding(BAD, f"{view.server} refuses sets: {why}", "" if ";" in why else "make room, or raise the bound")
    memory, most = view.fact("room.memory"), view.fact("room.memory_max")
    if memory is not None and most and memory > LITTLE * most:
        yield Finding(
            WARN, f"{view.server} has {show_bytes(memory)} of {show_bytes(most)} memory in use",
            "raise --max-memory, delete keys, or split the map",
        )  # fmt: skip
    free, least = view.fact("room.disk_free"), view.fact("room.disk_free_min")
    if free is not None and least is not None and free < 2 * least:
        yield Finding(
            WARN,
            f"{view.server} has {show_bytes(free)} of disk left; it refuses sets below {show_bytes(least)}, and "
            f"deletes below {show_bytes(least // READ_ONLY_SHARE)}",
            "make room on its data disk",
        )  # fmt: skip


def _work(view: ServerStatus) -> Iterator[Finding]:
    longest, counts = view.fact("turns.longest_ms"), view.counts()
    if longest is not None and longest > TURN_MS:
        yield Finding(
            WARN, f"the longest turn of {view.server} took {longest / 1000:.1f} s",
            "all clients waited for it: its log says what it did; a slow disk, or a machine that swaps?",
        )  # fmt: skip
    for name in ("unknown_keys", "handshakes_failed"):
        if counts.get(name):
            yield Finding(
                WARN,
                f"{view.server} rejected {counts[name]:.0f} connections ({name})",
                "its log has their addresses, and the reasons",
            )
    if strangers := counts.get("strangers"):
        yield Finding(
            WARN,
            f"{view.server} got {counted(int(strangers), 'message')} of another server than its peer on P+3",
            "its log names that server; correct that server's --peer, or this server's",
        )
    if view.fact("insecure"):
        yield Finding(WARN, f"{view.server} admits every client that reaches it (--insecure)", "use keys: `chp keygen`")


def _replica(view: ServerStatus) -> Iterator[Finding]:
    age, cpu = view.fact("replica.age"), view.fact("replica.cpu")
    if age is not None and age > AGE_MS:
        yield Finding(
            BAD,
            f"the replica {view.server} has not been known to be current for {age / 1000:.1f} s",
            "see its log: wait while it catches up; if it does not hear the active, mend its way to --upstream",
        )
    if cpu is not None and cpu >= BUSY_CPU:
        yield Finding(
            WARN, f"the replica {view.server} uses {cpu / 10:.0f} % of a core", "start another replica, and name it"
        )
    for each in view.facts.get("replicas") or ():
        if each.get("in_sync") is False:
            yield Finding(
                WARN,
                f"the replica {each['name']} of {view.server} confirms, and is not in sync",
                "see its log; a slow disk, or a slow way?",
            )
        if each["silent_s"] > SILENT_S:
            yield Finding(
                WARN,
                f"the replica {each['name']} of {view.server} reported {each['silent_s']:.0f} s ago",
                "see its log",
            )


def _copies(view: ServerStatus) -> Iterator[Finding]:
    wanted, there = view.fact("copies.wanted"), view.fact("copies.in_sync")
    if wanted is not None and there is not None and there < wanted:
        yield Finding(
            BAD, f"{there} copies of {wanted} are in sync at {view.server}, so acknowledgements say journaled",
            "start the other server, or a replica with --confirms; or lower --copies",
        )  # fmt: skip


def _peer(view: ServerStatus, *, peer_still: bool) -> Iterator[Finding]:
    if view.fact("peer.alive") is False and not peer_still:
        yield Finding(BAD, f"{view.server} does not hear its peer", PEER_REMEDY)
    version = view.fact("peer.version")
    if version and version != VERSION:
        yield Finding(
            WARN, f"the peer of {view.server} speaks version {version}, this {VERSION}", "upgrade what is older"
        )
    for name, values in sorted((view.fact("peer.settings_differ") or {}).items()):
        ours, theirs = values if isinstance(values, list | tuple) and len(values) == 2 else (values, "another")
        yield Finding(WARN, f"{view.server} has {name} {ours}, its peer {theirs}", "set it alike on both")


def unreachable_ports(server: str) -> list[int]:
    """Return which of P, P+1 and P+2 take no connection; a server on files has no ports."""
    if is_file(server):
        return []
    host, port = parse(server)
    closed = []
    for i in range(len(PORTS)):
        try:
            socket.create_connection((host.strip("[]"), port + i), CONNECT_S).close()
        except OSError:
            closed.append(i)
    return closed


@command(timeout_s=TIMEOUT_S, mounts=True)
def doctor(settings: CliSettings) -> int:
    """Find what is wrong with a pair, and the remedy.

    Look from this host at both servers, and at the replicas that are named: answers, ports, versions, clocks, settings,
    disk, memory. Exit code 0 if nothing is bad, else 1. With several mounts, look at each pair.

    Examples:
        chp doctor
        chp doctor --json | jq -r 'select(.level != "ok")'
    """
    pairs = list(settings.each_pair())
    told = at_once([partial(_examine, one) for _, one in pairs])
    found = [(mount, finding) for (mount, _), findings in zip(pairs, told, strict=True) for finding in findings]
    width = max(len(mount) for mount, _ in pairs)
    settings.out.show(found, _fields, lambda out, row: _text(out, *row, width))
    return DEGRADED if any(finding.level == BAD for _, finding in found) else OK


def _examine(settings: CliSettings) -> list[Finding]:
    """Return the findings on one pair."""
    began = time.time()
    with asking(settings) as admin:
        answers = admin.ask_all("status")
    ended = time.time()
    seen = pair.views(answers, settings.named)
    for view in seen:
        explain(view, answers[view.server], with_key=admin.with_key)
    closed = {view.server: unreachable_ports(view.server) for view in seen if view.reachable}
    return findings(seen, closed, 1000 * ended, 1000 * (ended - began))


def _fields(row: tuple[str, Finding]) -> dict[str, str]:
    mount, finding = row
    return ({"mount": mount} if mount else {}) | finding._asdict()


def _text(out: Out, mount: str, finding: Finding, width: int) -> str:
    level = out.style(f"{finding.level:4}", fg=COLOURS[finding.level])
    shown = f"{mount:{width}}  " if width else ""
    return f"{level}  {shown}{finding.what}" + (f": {finding.remedy}" if finding.remedy else "")


COMMANDS = (doctor,)
