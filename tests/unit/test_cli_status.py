"""Tests of `chp status`: verdicts, rows, JSON and tables of two sizes from the servers' answers."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from rich.console import Console

from chp.facts import FACTS
from chp.numbers import number
from chp_client import Refused
from chp_client.cli import faults, pair, probe
from chp_client.cli.out import Out
from chp_client.cli.servers import access, operate, status
from chp_client.port import admission
from chp_client.port.admin import AdminReply, Answer, SpeaksOnlyChp1, Unreachable
from chp_server.testing import free_port

A, B, R = "tcp://127.0.0.1:5556", "tcp://127.0.0.1:5566", "tcp://127.0.0.1:5576"

CONNECT = socket.create_connection


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all ports of this machine look closed."""
    monkeypatch.setattr(socket, "create_connection", lambda *args: CONNECT(("127.0.0.1", free_port())))


def says(server: str, state: str, **facts: Any) -> AdminReply:
    """Return the answer of a healthy server of a pair."""
    role = "primary" if server == A else "backup"
    usual = {
        "name": f"{role}-1", "role": role, "state": state, "epoch": 3, "sequence": 1042, "in_sync": True,
        "since_s": 720.0, "uptime_s": 90000.0, "peer": {"alive": True, "name": "other", "silent_s": 0.1},
        "channels": {"/rates/": 12, "": 2}, "chp1_subscriptions": 1, "sessions": 14, "keys": 41000,
        "pending": 0, "pending_bytes": 0, "counts": {"updates": 100, "refused_revision": 3, "garbage_collector": 1},
        "journal": {"store": "sqlite:/var/lib/chp", "bytes": 5 << 20, "sync": "always", "sync_p50_s": 0.0011,
                    "sync_p99_s": 0.0042},
    }  # fmt: skip
    return AdminReply(server, number(3, 1042), {**usual, **facts})


def judged(*answers: Answer, named: bool = True) -> tuple[int, str, str]:
    seen = pair.views({a.server: a for a in answers}, named)
    verdict = pair.verdict(seen)
    return verdict.code, verdict.word, verdict.why


def gone(server: str) -> Unreachable:
    return Unreachable(server, 1.0, connected=False)


def denied(server: str) -> Refused:
    return Refused("user 'bob' may not", "access", None, server)


def test_one_active_one_passive_is_healthy() -> None:
    assert judged(says(A, "active"), says(B, "passive")) == (0, "healthy", "one active, one passive, in sync")


def test_a_server_without_peer_is_healthy_alone() -> None:
    alone = says(A, "active", role="alone", peer=None, in_sync=False)
    assert judged(alone) == (0, "healthy", f"{A} serves, alone as configured")


def test_an_active_that_never_heard_its_peer_is_degraded() -> None:
    code, word, why = judged(says(A, "active", peer=None, in_sync=False))
    assert (code, word) == (1, "degraded") and "serves alone" in why


def test_an_unreachable_default_address_does_not_degrade_the_verdict() -> None:
    alone = says(A, "active", role="alone", peer=None, in_sync=False)
    assert judged(alone, gone(B), named=False)[0] == 0
    assert judged(alone, gone(B), named=True)[0] == 1


@pytest.mark.parametrize(
    ("first", "second", "code", "why"),
    [
        (says(A, "active"), gone(B), 1, f"{B} is away; {A} serves alone"),
        (says(A, "active"), says(B, "backup"), 1, f"{B} is STARTING"),
        (says(A, "active", in_sync=False), says(B, "passive"), 1, "catching up"),
        (says(A, "active"), says(B, "active"), 1, "both are active"),
        (says(A, "active", store="aa"), says(B, "active", store="bb"), 1, f"{A} and {B} hold different stores"),
        (says(A, "active", store="aa"), says(B, "active", store="aa"), 1, "both are active"),
        (says(A, "passive"), says(B, "passive"), 2, f"{A} is PASSIVE, {B} is PASSIVE"),
        (says(A, "passive"), gone(B), 2, f"{A} is PASSIVE"),
        (gone(A), gone(B), 3, f"{A}, {B}: nobody listens there"),
        (SpeaksOnlyChp1(A), gone(B), 1, "CHP/1 only"),
        (says(A, "active"), SpeaksOnlyChp1(B), 1, f"{B} is away"),
        (denied(A), denied(B), 4, f"{A}, {B}: user 'bob' may not"),
        (denied(A), gone(B), 4, f"{A}: user 'bob' may not"),
        (says(A, "active"), denied(B), 1, f"{B} does not tell: user 'bob' may not"),
    ],
)
def test_the_verdict_names_why_a_pair_is_not_healthy(first: Answer, second: Answer, code: int, why: str) -> None:
    judgement = judged(first, second)
    assert judgement[0] == code
    assert why in judgement[2]


def test_status_shows_denied_if_the_servers_refuse_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look({A: denied(A), B: denied(B)}, monkeypatch=monkeypatch)
    assert status.rows(one(seen))[1] == ["state", "DENIED", "DENIED"]
    asks: list[Callable[[Any, str], object]] = [
        operate.active_one,
        lambda admin, what: operate._who(operate.look_for_active(admin)),
    ]
    for ask in asks:
        with pytest.raises(faults.RefusedByServer, match="may not"):
            admin: Any = Starting([{A: denied(A), B: denied(B)}])
            ask(admin, "a list")


class Starting:
    """A pair that is starting: each time it is asked it answers with the next, and at last with the same."""

    timeout_s = 30.0

    def __init__(self, looks: list[dict[str, Answer]]) -> None:
        self.looks = looks

    def ask_all(self, command: str) -> dict[str, Answer]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def test_active_one_waits_while_the_servers_are_starting() -> None:
    looks: list[dict[str, Answer]] = [
        {A: says(A, "primary"), B: says(B, "backup")},
        {A: says(A, "primary"), B: gone(B)},
        {A: says(A, "active"), B: says(B, "passive")},
    ]
    admin: Any = Starting(looks)
    assert operate.active_one(admin, "a list").server == A
    admin = Starting([{A: says(A, "passive"), B: gone(B)}, {}])
    with pytest.raises(faults.NoServer, match="nobody active"):
        operate.active_one(admin, "a list")


def test_access_commands_wait_for_a_serving_server() -> None:
    told: dict[str, Any] = {"rules": None, "number": 0}
    looks: list[dict[str, Answer]] = [
        {A: gone(A), B: AdminReply(B, 0, {**told, "serving": False})},
        {A: AdminReply(A, 0, {**told, "serving": True}), B: AdminReply(B, 0, {**told, "serving": False})},
    ]
    admin: Any = Starting(looks)
    assert access._serving(admin)[2] == A


def test_the_verdict_of_a_passive_names_the_active_that_it_hears() -> None:
    peer = {"alive": True, "name": "other", "state": "active", "silent_s": 0.1}
    passive = says(A, "passive", peer=peer)
    assert judged(passive)[::2] == (2, f"{A} is PASSIVE; it hears an active other: name that one too")
    assert judged(passive, gone(B))[2].endswith("it hears an active other, which does not answer here")
    assert judged(says(A, "passive", peer={**peer, "alive": False}))[2].endswith("or start its peer")


def test_status_tells_a_stopped_server_and_unknown_host_from_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel of a stopped server takes connections, and no answer comes.
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        there = f"tcp://127.0.0.1:{stopped.getsockname()[1]}"
        unknown = "tcp://no-such-host.invalid:5556"
        monkeypatch.setattr(probe, "CONNECT_S", 30.0)
        monkeypatch.setattr(socket, "create_connection", CONNECT)
        seen = look({there: gone(there), unknown: gone(unknown)}, monkeypatch=monkeypatch)
    assert [view.problem for view in seen.views] == [probe.STOPPED, probe.UNKNOWN]
    free = f"tcp://127.0.0.1:{free_port()}"
    assert "nobody listens there" in look({free: gone(free)}, monkeypatch=monkeypatch).views[0].problem


@pytest.mark.parametrize(("mechanism", "with_key", "why"), [
    (b"CURVE", False, admission.WANTS_KEY),
    (b"CURVE", True, probe.BUSY),
    (b"NULL", False, probe.BUSY),
    (b"HTTP/1.1", False, probe.STOPPED),
])  # fmt: skip
def test_the_zmtp_greeting_tells_why_a_server_is_silent(
    mechanism: bytes, with_key: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "CONNECT_S", 30.0)
    monkeypatch.setattr(probe, "GREETING_S", 30.0)
    monkeypatch.setattr(socket, "create_connection", CONNECT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)

        def greet() -> None:
            there, _ = server.accept()
            with there:
                assert there.recv(64) == answer[:11], "a mechanism of ours would have it hang up"
                there.sendall(answer[:10])
                there.sendall(answer[10:])
                there.recv(64)

        thread = threading.Thread(target=greet)
        thread.start()
        there = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert probe.why_silent(there, gone(there), with_key=with_key) == why
        thread.join()


@pytest.mark.parametrize(
    ("kind", "why"), [(zmq.XPUB, probe.NOT_FIRST), (zmq.SUB, probe.NOT_FIRST), (zmq.ROUTER, probe.BUSY)]
)
def test_a_wrong_port_is_told_from_a_busy_server(kind: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CONNECT_S", 30.0)
    monkeypatch.setattr(probe, "GREETING_S", 30.0)
    monkeypatch.setattr(socket, "create_connection", CONNECT)
    with zmq.Context() as context, context.socket(kind) as there:
        there.linger = 0
        address = f"tcp://127.0.0.1:{there.bind_to_random_port('tcp://127.0.0.1')}"
        assert probe.why_silent(address, gone(address), with_key=False) == why


@pytest.mark.parametrize("cut", [8, 20, 22, 24, 27, 30])
@pytest.mark.parametrize(("kind", "why"), [(b"ROUTER", probe.BUSY), (b"XPUB", probe.NOT_FIRST)])
def test_a_ready_command_that_comes_in_two_pieces_is_read_whole(
    cut: int, kind: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "CONNECT_S", 30.0)
    monkeypatch.setattr(probe, "GREETING_S", 30.0)
    monkeypatch.setattr(socket, "create_connection", CONNECT)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4) + kind + b"\x08Identity" + bytes(4)
    ready = bytes([4, len(body)]) + body
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            there, _ = server.accept()
            with there:
                there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                there.sendall(greeting)
                there.sendall(ready[:cut])
                # The client reads the first piece before the second one is sent.
                time.sleep(0.1)
                with contextlib.suppress(OSError):
                    there.sendall(ready[cut:])
                    while there.recv(64):
                        pass

        thread = threading.Thread(target=greet)
        thread.start()
        there = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert probe.why_silent(there, gone(there), with_key=False) == why
        thread.join()


def test_a_server_that_wants_a_key_denies_a_client_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "why_silent", lambda server, answer, with_key: admission.WANTS_KEY)
    seen = look({A: gone(A), B: gone(B)}, monkeypatch=monkeypatch)
    verdict = pair.verdict(seen.views)
    assert [view.state for view in seen.views] == ["DENIED", "DENIED"] and (verdict.code, verdict.word) == (4, "denied")


def test_a_state_may_be_told_as_a_number_too() -> None:
    states = [pair.ServerStatus(A, facts={"state": n}).state for n in (1, 2, 3, 4)]
    assert states == ["STARTING", "STARTING", "ACTIVE", "PASSIVE"]


def test_a_status_with_few_facts_is_shown_too() -> None:
    view = pair.view(A, AdminReply(A, number(2, 7), {"state": "active"}))
    assert (view.epoch, view.sequence, view.in_sync, view.subscribers(), view.counts()) == (2, 7, None, None, {})
    assert pair.verdict([view]).code == 0


class Admin:
    """Answers in turn, as prepared."""

    with_key = False

    def __init__(self, *looks: dict[str, Answer]) -> None:
        self.looks = list(looks)
        self.asked_again: list[str] = []

    def ask_all(self, command: str) -> dict[str, Answer]:
        assert command == "status"
        return self.looks.pop(0)

    def ask_some(self, servers: list[str], command: str) -> dict[str, Answer]:
        self.asked_again += servers
        answers = self.ask_all(command)
        return {server: answers[server] for server in servers}


def one(look: status.Look) -> list[status.MountLook]:
    """Return the look at the only pair."""
    return [status.MountLook("", look)]


def look(*looks: dict[str, Answer], monkeypatch: pytest.MonkeyPatch) -> status.Look:
    """Return a `Look` after some answers that are a second apart."""
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    made = status.Look(Admin(*looks), named=True)  # type: ignore[arg-type]
    for _ in looks:
        made.again()
    return made


def test_once_more_skips_servers_that_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    first: dict[str, Answer] = {A: says(A, "active", counts={"updates": 100}), B: gone(B)}
    seen = look(first, monkeypatch=monkeypatch)
    admin: Any = seen.admin
    admin.looks = [{A: says(A, "active", counts={"updates": 350}), B: gone(B)}]
    seen.once_more()
    assert admin.asked_again == [A] and seen.rates[A]["updates"] == 250.0
    assert [view.state for view in seen.views] == ["ACTIVE", "UNREACHABLE"]


def test_rates_come_from_the_difference_of_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(
        {A: says(A, "active", counts={"updates": 100}), B: gone(B)},
        {A: says(A, "active", counts={"updates": 350, "records": 5}), B: gone(B)},
        # The server has started anew.
        {A: says(A, "active", counts={"updates": 10}), B: gone(B)},
        monkeypatch=monkeypatch,
    )
    assert list(seen.history[A]) == [250.0, 0.0]


def test_status_shows_that_the_passive_throttles_the_active(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look({A: says(A, "active", throttled=True), B: says(B, "passive")}, monkeypatch=monkeypatch)
    rows = {title: cells for title, *cells in status.rows(one(seen))}
    assert rows["in sync"] == ["yes, throttled by the passive", "yes"]


def test_rows_show_both_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    other = says(B, "passive", sequence=1000, pending=2, pending_bytes=2048)
    seen = look({A: says(A, "active"), B: other}, monkeypatch=monkeypatch)
    rows = {title: cells for title, *cells in status.rows(one(seen))}
    assert rows[""] == [A, B]
    assert rows["state"] == ["ACTIVE", "PASSIVE"]
    assert rows["number"] == ["3.1042", "3.1000"]
    assert rows["behind by"] == ["0", "42"]
    assert rows["in sync"] == ["yes", "yes"]
    assert rows["peer"] == ["other, heard", "other, heard"]
    assert rows["subscribers"] == ["15", "15"]
    assert rows["pending"] == ["0", "2 (2.0 KiB)"]
    assert rows["journal"] == ["5.0 MiB, sync always"] * 2
    assert rows["sync p50, p99"] == ["1.1 ms, 4.2 ms"] * 2
    assert rows["in state, up"] == ["12m, 1d 1h"] * 2
    assert rows["refused"] == ["3 revision, 1 garbage on collector"] * 2
    # One look tells no rate.
    assert "updates/s" not in rows


def test_json_has_a_line_for_each_server_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    seen = look({A: says(A, "active"), B: gone(B)}, monkeypatch=monkeypatch)
    status.show(Out(as_json=True), one(seen))
    first, second, last = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert (first["server"], first["state"], first["keys"], first["reachable"]) == (A, "ACTIVE", 41000, True)
    assert (second["server"], second["state"], second["reachable"]) == (B, "UNREACHABLE", False)
    assert "nobody listens" in second["problem"]
    assert (last["verdict"], last["exit"]) == ("degraded", 1)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("state", ["active", "passive"])
def test_the_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int, state: str) -> None:
    peer = {"alive": False, "name": "backup-5566", "silent_s": 7.0}
    looks: list[dict[str, Answer]] = [{A: says(A, state, peer=peer, in_sync=False), B: gone(B)} for _ in range(2)]
    seen = look(*looks, monkeypatch=monkeypatch)
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=24, force_terminal=True, color_system=None)
    console.print(status.table(one(seen), trend=True))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    assert any("UNREACHABLE" in line for line in lines)
    word = "degraded: " if state == "active" else "nobody active: "
    assert lines[-1].startswith(word) or lines[-2].startswith(word)


def test_control_characters_in_a_server_name_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look({A: says(A, "active", name="x\x1b[2J")}, monkeypatch=monkeypatch)
    assert ["role, name", r"primary, x\x1b[2J"] in status.rows(one(seen))


def replica(state: str = "active", **facts: Any) -> AdminReply:
    """Return the answer of a replica."""
    told = {"hops": 1, "age": 40, "readers": 12, "cpu": 31, **facts}
    return says(R, state, role="replica", name="r1", peer=None, in_sync=state == "active", replica=told)


def test_replicas_are_judged_apart_from_the_pair() -> None:
    a, b = says(A, "active"), says(B, "passive")
    assert judged(a, b, replica()) == (0, "healthy", "one active, one passive, in sync; 1 replica follows")
    assert judged(a, b, replica("passive"))[1:] == (
        "degraded", f"{R} does not hear the pair, or is catching up; the pair itself is healthy",
    )  # fmt: skip
    assert judged(a, b, gone(R))[1:] == ("degraded", f"{R} is away: a replica? The pair itself is in sync")
    assert judged(replica(), gone(A)) == (1, "degraded", f"{R} serves readers; {A}: {gone(A).text}")
    other = AdminReply(B, 0, replica("passive").facts)
    assert judged(replica(), other)[1:] == (
        "degraded", f"{R} serves readers; {B} is PASSIVE: a replica that hears no active, or is catching up",
    )  # fmt: skip
    code, word, why = judged(replica("passive"))
    assert (code, word) == (2, "nobody active") and "hears no active" in why and "--upstream" in why
    assert judged(replica())[1:] == ("healthy", f"{R} serves readers; name the pair's servers to see the pair")
    second = AdminReply(A, 0, replica().facts)
    assert judged(replica(), second)[2].startswith(f"{R}, {A} serve readers;")
    assert judged(AdminReply(A, 0, replica("passive").facts), other)[2].startswith(
        f"{A}, {B} are PASSIVE: replicas that"
    )
    assert [v.active for v in pair.views({R: replica()}, named=True)] == [False]


def test_clients_of_replicas_are_listed_although_another_server_is_away() -> None:
    class Listing(Starting):
        def ask(self, server: str, command: str, after: int) -> AdminReply:
            return AdminReply(server, 0, {"clients": [{"name": "c", "place": 1}] if not after else []})

    admin: Any = Listing([{R: replica("passive"), B: gone(B)}])
    told = operate._of_all_servers(admin)
    assert next(told) == {"name": "c", "place": 1, "via": "r1"}
    with pytest.raises(faults.NoServer, match=f"the replicas that answer are all that is known: {B}: nobody listens"):
        next(told)
    admin = Listing([{R: replica(), A: says(A, "active"), B: gone(B)}])
    assert [each["via"] for each in operate._of_all_servers(admin)] == ["", "r1"]


def test_active_one_returns_a_replica_only_if_by_replica_is_set() -> None:
    admin: Any = Starting([{R: replica()}])
    assert operate.active_one(admin, "a list", by_replica=True).server == R
    with pytest.raises(faults.Misused, match="a restore needs the servers of the pair"):
        operate.active_one(admin, "a restore")
    for seen in ([replica()], [says(A, "active"), replica("passive")]):
        with pytest.raises(faults.Fault, match="hand-over"):
            operate._who(pair.views({each.server: each for each in seen}, named=True))


@pytest.mark.parametrize(
    ("there", "row", "code", "word"), [(3, "3 of 3", 0, "healthy"), (2, "2 of 3, DEGRADED", 1, "degraded")]
)
def test_fewer_copies_than_wanted_are_degraded(
    monkeypatch: pytest.MonkeyPatch, there: int, row: str, code: int, word: str
) -> None:
    told = {"copies": {"wanted": 3, "in_sync": there}}
    seen = look({A: says(A, "active", **told), B: says(B, "passive")}, monkeypatch=monkeypatch)
    assert {title: cells for title, *cells in status.rows(one(seen))}["copies"] == [row, "-"]
    [looked] = one(seen)
    assert (looked.verdict.code, looked.verdict.word) == (code, word)


def test_rows_show_a_replica_and_the_replicas_that_follow_the_active(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = [{"name": "r1", "hops": 1, "readers": 12, "lag": 3, "silent_s": 0.2}]
    answers: dict[str, Answer] = {A: says(A, "active", replicas=follow), B: says(B, "passive"), R: replica()}
    found = {title: cells for title, *cells in status.rows(one(look(answers, monkeypatch=monkeypatch)))}
    assert found["replica"] == ["-", "-", "1 hop, 40.0 ms old, 12 readers, 3 % of a core"]
    assert found["replicas"] == ["r1: 12 readers, 3 behind", "-", "-"]
    assert found["peer"][2] == "-" and found["role, name"][2] == "replica, r1"


@pytest.mark.parametrize(
    ("scrub", "cell"),
    [
        (None, ""),
        ({"on": True, "keys": 0, "differences": 0, "ended_s_ago": None, "differing": []}, ""),
        ({"keys": 41000, "differences": 0, "ended_s_ago": 12.0, "differing": []}, "41,000 keys equal, 12s ago"),
        (
            {"keys": 4000, "differences": 2, "ended_s_ago": None, "differing": ["/a", "/b\x1b"]},
            "2 of 4,000 keys DIFFERED: /a, /b\\x1b",
        ),
    ],
)
def test_a_row_shows_the_result_of_the_scrub(
    monkeypatch: pytest.MonkeyPatch, scrub: dict[str, Any] | None, cell: str
) -> None:
    seen = look({A: says(A, "active", scrub=scrub)}, monkeypatch=monkeypatch)
    found = {title: cells for title, *cells in status.rows(one(seen))}
    assert found.get("compared", [""])[0] == cell


def test_facts_name_existing_rows_of_the_status() -> None:
    titles = {"state", *(title for title, _ in status._ROWS)}
    named = {fact.row for fact in FACTS if fact.row}
    assert named <= titles
    assert titles - named == {"behind by", "updates/s", "records/s"}


def test_several_mounts_have_a_row_per_server_and_a_verdict_per_mount(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    well = look({A: says(A, "active"), B: says(B, "passive")}, monkeypatch=monkeypatch)
    away = look({A: gone(A), B: gone(B)}, monkeypatch=monkeypatch)
    both = [status.MountLook("/", well), status.MountLook("/rates/", away)]
    head, *rows = status.rows(both)
    assert head[:5] == ["MOUNT", "SERVER", "STATE", "ROLE, NAME", "NUMBER"] and {len(row) for row in rows} == {
        len(head)
    }
    assert [row[:3] for row in rows] == [
        ["/", A, "ACTIVE"], ["/", B, "PASSIVE"], ["/rates/", A, "UNREACHABLE"], ["/rates/", B, "UNREACHABLE"]
    ]  # fmt: skip
    status.show(Out(), both)
    said = capsysbinary.readouterr().out.decode()
    assert "mount /: healthy: one active" in said and f"mount /rates/: no server: {A}, {B}: nobody" in said
    status.show(Out(as_json=True), both)
    told = list(map(json.loads, capsysbinary.readouterr().out.splitlines()))
    assert [each["mount"] for each in told] == ["/"] * 3 + ["/rates/"] * 3 and told[-1]["exit"] == 3
    console = Console(file=io.StringIO(), width=160)
    console.print(status.table(both, trend=True))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "TREND" in shown and shown.count("UNREACHABLE") == 2 and "mount /rates/: no server" in shown
