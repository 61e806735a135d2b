"""covers: ops/. Each metric that dashboard and alerts name is in a live scrape; the units know the exit codes."""

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chp import facts
from chp_client import Clone
from chp_client.port.admin import Admin
from chp_server.exits import MEANING, Exit
from chp_server.testing import Pair, TestServer, free_port
from tests.wire.gateways import RunningGateway

OPS = Path(__file__).parents[2] / "ops"
NAME = re.compile(r"\bchp_[a-z0-9_]+\b")
RULE = re.compile(
    r"      - alert: (?P<name>[A-Z][A-Za-z]+)\n"
    r"        expr: '(?P<expr>[^'\n]+)'\n"
    r"        for: (?P<for>\d+[smh])\n"
    r"        labels:\n          severity: (?:warning|critical)\n"
    r'        annotations:\n          summary: "[^"\n]+"\n          do: "[^"\n]+"\n'
)


def alerts() -> list[re.Match[str]]:
    """Return the rules of alerts.yml, and check that the file has nothing else."""
    text = (OPS / "alerts.yml").read_text()
    head, found = text.partition("    rules:\n")[0], list(RULE.finditer(text))
    assert head.endswith("groups:\n  - name: chp\n")
    assert "".join(rule[0] for rule in found) == text.partition("    rules:\n")[2], "a rule is not as the others are"
    return found


def dashboard() -> list[str]:
    """Return the expressions of the dashboard."""
    board = json.loads((OPS / "grafana.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    return [*expressions, *(each["expr"] for each in board["annotations"]["list"])]


def samples(address: str) -> dict[str, float]:
    """Return the samples of a metrics address, with their labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def scraped(address: str) -> set[str]:
    """Return the names of the samples of a metrics address."""
    return {name.partition("{")[0] for name in samples(address)}


@contextmanager
def follower(pair: Pair, **settings: Any) -> Iterator[str]:
    """Run a replica of the pair, and yield its address."""
    with TestServer(replica=True, upstream=",".join(pair.servers), name="r1", **settings) as replica:
        yield replica.address


def test_each_metric_of_dashboard_and_alerts_is_scraped(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    named = {name for text in [*dashboard(), *(rule["expr"] for rule in alerts())] for name in NAME.findall(text)}
    assert len(named) > 25
    one, two, three = (f"127.0.0.1:{free_port()}" for _ in range(3))
    pair = Pair(store=(f"sqlite:{tmp_path}/a", f"sqlite:{tmp_path}/b"))
    pair.primary.config = replace(pair.primary.config, metrics=one, copies=3)
    pair.backup.config = replace(pair.backup.config, metrics=two, copies=3)
    with pair, follower(pair, metrics=three), RunningGateway(pair.servers) as gateway, Clone(pair.servers) as clone:
        gateway.client.put("/v1/keys/a", content=b"1")
        clone.topic("orders").subscribe("billing", "begin")
        found = scraped(f"127.0.0.1:{gateway.port}")
        for _ in range(100):
            # Only a replica has the metrics of a replica. Only the active has those of its replicas and of copies.
            seldom = ("chp_replica_", "chp_copies_")
            of_replicas = {name for name in scraped(one) | scraped(three) if name.startswith(seldom)}
            missing = named - found - (scraped(one) & scraped(two)) - of_replicas
            if not missing:
                break
            threading.Event().wait(0.1)
    assert not missing, f"no scrape has {sorted(missing)}"


def test_each_event_kind_in_dashboard_and_alerts_is_counted() -> None:
    for text in [*dashboard(), *(rule["expr"] for rule in alerts())]:
        for kind in re.findall(r'chp_events_total\{kind=~?"([^"]+)"', text):
            assert any(re.fullmatch(kind, known) for known in facts.COUNTS), f"no server counts {kind}"


def test_each_alarm_of_the_monitoring_page_has_an_alert_rule() -> None:
    page = (OPS.parent / "docs" / "operations" / "monitoring.md").read_text()
    rules = {rule["name"]: rule["expr"] for rule in alerts() if not rule["name"].startswith("ChpGateway")}
    table = page.partition("| alarm | metric | means | do |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    found = set()
    for alarm, metrics in ([cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()):
        name = "Chp" + alarm.removeprefix("a ").title().replace(" ", "")
        found.add(name)
        assert name in rules, f"{alarm} has no rule {name}"
        assert set(NAME.findall(metrics)) & set(NAME.findall(rules[name])), f"{name} looks at another metric"
    assert found == rules.keys(), f"{rules.keys() - found} are not explained"


def test_the_status_of_a_live_pair_has_the_facts_of_the_table(tmp_path: Path) -> None:
    pair = Pair(store=(f"sqlite:{tmp_path}/a", f"sqlite:{tmp_path}/b"), copies=3)
    with pair, follower(pair) as replica, Clone([replica]) as clone, Admin([*pair.servers, replica]) as admin:
        clone.topic("orders").subscribe("billing", "begin")
        told = [admin.ask(server, "status").facts for server in admin.servers]
    found: set[str] = set()
    for path, value in (each for status in told for each in facts.flat(status)):
        assert path in facts.BY_PATH, f"{path} is not in the table"
        assert value is None or facts.BY_PATH[path].fits(value), f"{path} = {value!r}"
        found.add(path)
    seldom = ("access", "misfit.", "arbiter.")
    assert {path for path in facts.BY_PATH.keys() - found if not path.startswith(seldom)} == set()


def test_a_scrape_has_wait_times_of_clients_and_published_bytes(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    address = f"127.0.0.1:{free_port()}"
    pair = Pair(store=(f"sqlite:{tmp_path}/a", f"sqlite:{tmp_path}/b"))
    pair.primary.config = replace(pair.primary.config, metrics=address)
    wanted = ("sync_seconds_count", "ack_seconds_count", "catch_up_seconds_count", "published_bytes_total")
    with pair, Clone(pair.servers) as clone:
        clone.wait_until_synced(30)
        clone.set("/a", b"1" * 5000).wait(30)
        for _ in range(300):
            found = samples(address)
            if all(found.get(f"chp_{name}") for name in (*wanted, "subscribers")):
                break
            threading.Event().wait(0.1)
    assert found["chp_ack_seconds_sum"] > 0 and found["chp_catch_up_seconds_count"] == 1
    assert found["chp_published_bytes_total"] > 5000 > found["chp_published_messages_total"] > 0
    assert found["chp_subscribers"] > 0 and found["process_resident_memory_bytes"] > 1e6
    assert any(name.startswith('chp_build_info{python="') for name in found)


def test_each_alert_has_a_name_of_its_own() -> None:
    names = [rule["name"] for rule in alerts()]
    assert len(set(names)) == len(names) > 10


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian's prometheus)")
def test_prometheus_takes_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", str(OPS / "alerts.yml")], check=True, timeout=60)


def test_units_do_not_restart_after_exit_codes_that_need_a_person() -> None:
    person = [str(int(code)) for code in MEANING if Exit.USAGE <= code <= Exit.JOURNAL_DAMAGED]
    server, replica, gateway = ((OPS / f"chp-{name}.service").read_text() for name in ("server", "replica", "gateway"))
    assert all(f"RestartPreventExitStatus={' '.join(person)}\n" in unit for unit in (server, replica))
    assert "RestartPreventExitStatus=2 3\n" in gateway


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["chp-server", "chp-replica", "chp-gateway"])
def test_systemd_understands_the_units(name: str, tmp_path: Path) -> None:
    # The unit runs a program that exists.
    unit = tmp_path / f"{name}.service"
    unit.write_text(re.sub(r"(ExecStart=)\S+", r"\1/bin/true", (OPS / unit.name).read_text()))
    if name == "chp-server":
        (tmp_path / f"{unit.name}.d").mkdir()
        shutil.copy(OPS / "hand-over.conf", tmp_path / f"{unit.name}.d")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("status", "hands_over"),
    [("active", True), ("passive, in sync", False), ("passive, not in sync: it hears its peer", False), ("", False)],
)
def test_only_the_active_hands_over_before_systemd_ends_it(status: str, hands_over: bool, tmp_path: Path) -> None:
    (command,) = re.findall(r"^ExecStop=-/bin/sh -c '(.*)'$", (OPS / "hand-over.conf").read_text(), re.MULTILINE)
    for name, does in (("systemctl", f'test "$4" = chp-server.service && echo "{status}"'), ("chp", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o700)
    command = command.replace("%n", "chp-server.service").replace("/opt/chp/bin/", f"{tmp_path}/")
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", command], env=path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout == "switch --timeout 15s\n") is hands_over and not done.stderr


def test_each_flag_in_the_compose_file_and_units_is_known() -> None:
    from chp_client.gateway.main import arguments
    from chp_server.settings.flags import build_parser

    known = " ".join([arguments().format_help(), build_parser().format_help()])
    for name in ("compose.yml", "chp-gateway.service", "chp-replica.service", "chp-server.service"):
        for flag in re.findall(r"(?:command|ExecStart).*", (OPS / name).read_text()):
            for word in re.findall(r"--[a-z-]+", flag):
                assert word in known, f"{name}: {word}"
