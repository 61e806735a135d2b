"""covers: cli/servers/doctor.py: what is wrong with a pair, and the remedy for each."""

from typing import Any

import pytest

from chp.versions import VERSION
from chp_client.cli.pair import ServerStatus
from chp_client.cli.servers.doctor import BAD, GOOD, WARN, Finding, findings

NOW_MS = 1_795_375_822_658.0
PEER = {"alive": True, "name": "b", "state": "passive", "version": VERSION, "settings_differ": {}}
ROOM = {
    "full": False, "read_only": False, "why": "", "memory": 100, "memory_max": 1000, "disk_free": 900,
    "disk_free_min": 64,
}  # fmt: skip
FACTS = {"state": "active", "role": "primary", "in_sync": True, "wall_ms": NOW_MS, "peer": PEER, "room": ROOM}


def found(closed: list[int] | None = None, **facts: Any) -> list[Finding]:
    a = ServerStatus("tcp://a:5556", facts={**FACTS, **facts})
    b = ServerStatus("tcp://b:5566", facts={**FACTS, "state": "passive", "role": "backup"})
    return findings([a, b], {"tcp://a:5556": closed or []}, NOW_MS, 100.0)


def test_a_pair_that_is_well() -> None:
    assert found() == [
        Finding(GOOD, "tcp://a:5556 answers, and is ACTIVE"),
        Finding(GOOD, "tcp://b:5566 answers, and is PASSIVE"),
        Finding(GOOD, "the pair is healthy: one active, one passive, in sync"),
    ]


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        ({"wall_ms": round(NOW_MS - 12_100)}, WARN, "12.0 s apart"),
        ({"wall_ms": round(NOW_MS + 12_100)}, WARN, "12.0 s apart"),
        ({"room": {**ROOM, "memory": 950}}, WARN, "of 1000 B memory in use"),
        (
            {"room": {**ROOM, "disk_free": 100}},
            WARN,
            "100 B of disk left; it refuses sets below 64 B, and deletes below 8 B",
        ),
        ({"room": {**ROOM, "full": True, "why": "max_keys"}}, BAD, "refuses sets: max_keys"),
        ({"turns": {"longest_ms": 2500.0}}, WARN, "took 2.5 s"),
        ({"counts": {"unknown_keys": 3}}, WARN, "rejected 3 connections"),
        ({"counts": {"strangers": 3}}, WARN, "3 messages of another server than its peer"),
        ({"insecure": True}, WARN, "--insecure"),
        ({"peer": {**PEER, "alive": False}}, BAD, "does not hear its peer"),
        ({"peer": {**PEER, "version": VERSION + 1}}, WARN, f"speaks version {VERSION + 1}, this {VERSION}"),
        ({"peer": {**PEER, "settings_differ": {"scrub_s": [600, 0]}}}, WARN, "has scrub_s 600, its peer 0"),
        ({"misfit": {"name": "b", "text": "it has another store; correct --peer"}}, BAD, "another store"),
        ({"state": "passive"}, BAD, "nobody active"),
        ({"replica": {"age": 6100}}, BAD, "not been known to be current for 6.1 s"),
        ({"replica": {"cpu": 900}}, WARN, "uses 90 % of a core"),
        ({"replicas": [{"name": "r1", "silent_s": 30.0}]}, WARN, "the replica r1 of tcp://a:5556 reported 30 s ago"),
        (
            {"replicas": [{"name": "r1", "silent_s": 0.1, "in_sync": False}]},
            WARN,
            "r1 of tcp://a:5556 confirms, and is",
        ),
        ({"copies": {"wanted": 3, "in_sync": 2}}, BAD, "2 copies of 3 are in sync at tcp://a:5556"),
    ],
)
def test_each_problem_is_named_with_a_remedy(facts: dict[str, Any], level: str, words: str) -> None:
    [finding] = [each for each in found(**facts) if words in each.what and each.level != GOOD][:1]
    assert finding.level == level and (finding.remedy or ";" in finding.what)


def test_a_server_that_rejects_its_peer_is_told_once_with_one_remedy() -> None:
    text = "it holds another store (b) than this server (a): they can't be a pair. Correct --peer"
    told = f"tcp://a:5556 does not take b for its peer: {text}"
    said = found(misfit={"name": "b", "text": text})
    assert Finding(BAD, told) in said and sum(text in each.what for each in said) == 1
    assert said[-1] == Finding(BAD, "the pair is degraded")
    said = found(state="passive", waits_for=text)
    assert Finding(BAD, f"tcp://a:5556 waits: {text}") in said and sum(text in each.what for each in said) == 1
    assert said[-1] == Finding(BAD, "the pair is nobody active: tcp://a:5556 is PASSIVE, tcp://b:5566 is PASSIVE")


def test_a_pair_with_a_read_only_server_is_degraded() -> None:
    why = "read-only: the journal's file was removed; save what is held, and start it again"
    said = found(room={**ROOM, "read_only": True, "why": why})
    assert Finding(BAD, f"tcp://a:5556 refuses sets: {why}") in said, "it has its own remedy"
    assert said[-1] == Finding(BAD, f"the pair is degraded: tcp://a:5556: {why}")


def test_a_server_that_stands_still_on_a_full_disk_comes_first() -> None:
    room = {**ROOM, "full": True, "read_only": True, "why": "read-only: disk full", "disk_free": 0}
    still = {**FACTS, "wall_ms": round(NOW_MS - 41_700), "room": room, "turns": {"longest_ms": 2500.0}}
    a = ServerStatus("tcp://a:5556", facts=still)
    b = ServerStatus("tcp://b:5566", facts={**FACTS, "role": "backup", "peer": {**PEER, "alive": False}})
    said = findings([b, a], {}, NOW_MS, 100.0)
    assert [each.what for each in said] == [
        "tcp://a:5556 stands still, as its journal has no room; its status, ACTIVE, is 42 s old",
        "tcp://b:5566 answers, and is ACTIVE",
        "the pair is degraded: tcp://a:5556 can't go on, as the disk is full",
    ]
    assert (said[0].level, said[-1].level) == (BAD, BAD) and said[0].remedy
    # With room on the disk the clocks differ: the journal's file was removed.
    said = found(wall_ms=round(NOW_MS - 41_700), room={**room, "disk_free": 900})
    assert any("clocks" in each.what for each in said) and not any("stands still" in each.what for each in said)


def test_a_port_that_takes_no_connection_is_named() -> None:
    [finding] = [each for each in found([1]) if each.level == BAD]
    assert finding.what == "tcp://a:5556: port 5557 (P+1) is not reachable from here"


def test_an_absent_server_is_a_bad_finding_and_missing_facts_are_not() -> None:
    away = ServerStatus("tcp://a:5556", problem="nobody listens there; start chp-server")
    assert findings([away], {}, NOW_MS, 0.0)[0] == Finding(BAD, "tcp://a:5556: nobody listens there; start chp-server")
    told = findings([ServerStatus("tcp://a:5556", facts={"state": "active", "role": "alone"})], {}, NOW_MS, 0.0)
    assert [each.level for each in told] == [GOOD, GOOD]
