"""`chp sub --group` and `chp topic` on groups, against a real server.

covers: cli/topics: consume.py, groups.py, messages.py, topic.py; the metrics of groups
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from click.testing import Result

from chp_client import Clone
from chp_client.port.admin import Admin
from chp_client.topics.topic import requests_of
from chp_server.shell.metrics import MetricsServer
from chp_server.testing import TestServer, free_port
from tests.talk import until

Run = Callable[..., Result]
DEAD = "orders.billing.dead"


def lag_of(clone: Clone) -> int:
    return int(clone.topic("orders").groups()[0]["lag"])


def test_a_message_printed_for_a_group_is_not_printed_again(run: Run, clone: Clone) -> None:
    assert run("topic", "subscribe", "orders", "billing").exit_code == 0
    clone.topic("orders").publish_many([b"one", b"two", b"three"], ["a", "b", "a"]).wait(10)
    first = run("sub", "orders", "--group", "billing", "--count", "2")
    assert (first.exit_code, first.stdout) == (0, "one\ntwo\n")
    rest = run("sub", "orders", "--group", "billing", "--no-wait", "--json")
    assert [json.loads(line)["value"] for line in rest.stdout.splitlines()] == ["three"]
    assert lag_of(clone) == 0
    assert run("sub", "orders", "--group", "other", "--no-wait").stdout == "one\ntwo\nthree\n", "another has all"


def test_a_command_acknowledges_by_its_exit_code(run: Run, clone: Clone, tmp_path: Path) -> None:
    values = [b"fine", b"never", b"later", b"\xff no line end"]
    clone.topic("orders").publish_many(values, ["a", "a", "b", "b"]).wait(10)
    (tmp_path / "handle.py").write_text(
        "import os, pathlib, sys\n"
        f"done = pathlib.Path({str(tmp_path)!r})\n"
        "data = sys.stdin.buffer.read()\n"
        "with (done / 'tried').open('a') as file:\n"
        "    print(os.environ['CHP_TOPIC'], os.environ['CHP_GROUP'], os.environ['CHP_OFFSET'],\n"
        "          os.environ['CHP_KEY'], data, file=file)\n"
        "tries = (done / 'tried').read_text().count(repr(data))\n"
        "sys.exit(3 if data == b'never' or data == b'later' and tries < 2 else 0)\n"
    )
    command = f"{sys.executable} {tmp_path}/handle.py"
    result = run("sub", "orders", "--group", "billing", "--exec", command, "--tries", "3", "--no-wait")
    assert result.exit_code == 0
    tried = (tmp_path / "tried").read_text().splitlines()
    assert tried == [
        "orders billing 0 a b'fine'",
        *["orders billing 1 a b'never'"] * 3,
        *["orders billing 2 b b'later'"] * 2,
        "orders billing 3 b b'\\xff no line end'",
    ]
    (letter,) = next(clone.topic(DEAD).read(wait=False))
    told = msgpack.unpackb(letter.value)
    assert (told["offset"], told["value"], told["tries"]) == (1, b"never", 3)
    assert told["why"].endswith("exit code 3")
    assert f"message 1 went to topic {DEAD}" in result.stderr
    assert lag_of(clone) == 0


def test_a_message_is_acknowledged_before_the_next_command_begins(run: Run, clone: Clone, tmp_path: Path) -> None:
    clone.topic("orders").publish_many([b"%d" % i for i in range(5)]).wait(10)
    result = run("sub", "orders", "--group", "billing", "--exec", f"cat >> {tmp_path}/done", "--count", "2")
    assert (result.exit_code, (tmp_path / "done").read_text()) == (0, "01")
    assert lag_of(clone) == 3, "two, of a batch of five"


def test_a_consumer_of_a_reset_group_goes_on_at_the_new_position(run: Run, clone: Clone, server: TestServer) -> None:
    clone.topic("orders").publish_many([b"%d" % i for i in range(3)]).wait(10)
    reset = f"{sys.executable} -m chp_client topic reset orders billing --to 2 --yes --servers {server.address}"
    command = f'test "$CHP_OFFSET" = 2 || {reset}'
    result = run("sub", "orders", "--group", "billing", "--exec", command, "--count", "1")
    assert result.exit_code == 0
    assert "nothing was done" in result.stderr
    assert lag_of(clone) == 0


def test_groups_are_shown_and_moved(run: Run, clone: Clone) -> None:
    orders = clone.topic("orders")
    orders.publish_many([b"1", b"2", b"3"]).wait(10)
    assert run("topic", "subscribe", "orders", "billing", "--from", "1", "--ack-timeout", "30s").exit_code == 0
    with orders.consumer("audit", name="host:\x1b1"):
        until(lambda: orders.groups()[0]["members"] == [["host:\x1b1", 256]])
        told = json.loads(run("topic", "show", "orders", "--json").stdout)
        shown = run("topic", "show", "orders").stdout
        each = [json.loads(line) for line in run("topic", "groups", "orders", "--json").stdout.splitlines()]
    audit, billing = told["groups"]
    assert each == told["groups"]
    assert audit["members"] == [{"name": "host:\x1b1", "slots": 256}]
    assert {name: billing[name] for name in ("name", "position", "lag", "members", "ack_timeout_s")} == {
        "name": "billing", "position": 1, "lag": 2, "members": [], "ack_timeout_s": 30
    }  # fmt: skip
    assert billing["oldest"].endswith("Z")
    assert "group billing  position 1, lag 2, since 2" in shown and "host:\\x1b1  256 slots" in shown
    assert run("topic", "reset", "orders", "billing", "--to", "end", "--yes").exit_code == 0
    assert (
        run("topic", "groups", "orders").stdout.splitlines()[-1]
        == "group billing  position 3, lag 0, 0 members, ack_timeout 30 s"
    )
    assert run("topic", "unsubscribe", "orders", "billing", "--yes").exit_code == 0
    assert [group["name"] for group in orders.groups()] == ["audit"]


def test_settings_of_groups_and_scheduled_messages_are_shown(run: Run, clone: Clone) -> None:
    given = ("--max-deliveries", "5", "--retry-after", "1500ms", "--ack-timeout", "30s")
    assert run("topic", "subscribe", "jobs", "g", *given, "--lag-alarm", "1m", "--expire-after", "2h").exit_code == 0
    assert run("topic", "subscribe", "jobs", "plain").exit_code == 0
    for _ in range(2):
        clone.topic("jobs").schedule(b"x", delay_s=3600).wait(10)
    says = "max_deliveries 5, retry_after 1.5 s, ack_timeout 30 s, lag_alarm 60 s, expire_after 7,200 s"
    for words in (("groups", "jobs"), ("show", "jobs")):
        shown = run("topic", *words).stdout
        assert shown.count(says) == shown.count("max_deliveries") == 1, shown
    assert "scheduled 2\n" in shown and json.loads(run("topic", "show", "jobs", "--json").stdout)["scheduled"] == 2
    gone = json.loads(run("topic", "rm", "jobs", "-y", "--json").stdout)
    assert gone == {"removed": "jobs", "scheduled": 2}


def test_pub_makes_and_reports_a_missing_topic_unless_no_create_is_given(run: Run, clone: Clone) -> None:
    refused = run("pub", "TYPO", "hello", "--no-create")
    assert refused.exit_code == 1 and "there is no topic 'TYPO'" in refused.stderr
    assert clone.topics() == []
    made = run("pub", "TYPO", "hello")
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", "made topic 'TYPO'\n")
    again = run("pub", "TYPO", "hello", "--no-create")
    assert (again.exit_code, again.stderr) == (0, "")
    assert clone.topics()[0]["next"] == 2


def test_sub_makes_and_reports_a_missing_group_unless_no_create_is_given(run: Run, clone: Clone) -> None:
    words = "sub", "ordesr", "--group", "billing", "--no-wait"
    refused = run(*words, "--no-create")
    assert refused.exit_code == 1 and "there is no topic 'ordesr'; make it with" in refused.stderr
    assert clone.topics() == []
    made = run(*words)
    said = "made topic 'ordesr'\nmade group 'billing' of topic 'ordesr'\n"
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", said)
    for more in ([], ["--no-create"]):
        again = run(*words, *more)
        assert (again.exit_code, again.stderr) == (0, "")
    refused = run("sub", "ordesr", "--group", "biling", "--no-create")
    assert refused.exit_code == 1 and "there is no group 'biling' of topic 'ordesr'; make it with" in refused.stderr
    assert [group["name"] for group in clone.topic("ordesr").groups()] == ["billing"]


def test_a_group_that_is_removed_ends_its_consumer(run: Run, clone: Clone, server: TestServer) -> None:
    orders = clone.topic("orders")
    orders.publish_many([b"1", b"2"]).wait(10)
    remove = f"{sys.executable} -m chp_client topic unsubscribe orders billing --yes --servers {server.address}"
    result = run("sub", "orders", "--group", "billing", "--exec", remove)
    assert (result.exit_code, orders.groups()) == (1, [])
    last = result.stderr.splitlines()[-1]
    assert "group 'billing' of topic 'orders' was removed; make it again with `chp topic subscribe orders" in last


def test_errors_print_one_line_and_set_the_exit_code(run: Run, clone: Clone) -> None:
    clone.topic("orders").publish(b"1").wait(10)
    for words, code, text in (
        (("sub", "orders", "--exec", "true"), 2, "--exec needs --group"),
        (("sub", "orders", "--no-create"), 2, "--no-create needs --group"),
        (("sub", "orders", "--group", "g", "--tries", "3"), 2, "--tries is how often"),
        (("sub", "orders", "--group", "g", "--from", "-3"), 2, "'-3' is not 'begin', 'end' or the first offset"),
        (("topic", "reset", "orders", "none", "--to", "end", "-y"), 1, "there is no group 'none' of topic 'orders'"),
        (("topic", "unsubscribe", "orders", "none", "-y"), 1, "`chp topic groups` lists"),
        (("topic", "reset", "orders", "none", "--to", "end"), 2, "add --yes"),
        (("topic", "groups", "none"), 1, "there is no topic 'none'"),
        (("topic", "show", "none"), 1, "there is no topic 'none'"),
    ):
        result = run(*words)
        assert (result.exit_code, result.stderr.count("\n")) == (code, 1), (words, result.stderr)
        assert text in result.stderr
    run("topic", "subscribe", "orders", "g")
    assert run("topic", "subscribe", "orders", "g").exit_code == 4
    nobody = run("--servers", f"tcp://127.0.0.1:{free_port()}", "sub", "t", "--group", "g", "--timeout", "0.2")
    assert nobody.exit_code == 3, nobody.stderr


def test_metrics_tell_of_at_most_100_groups(server: TestServer, clone: Clone) -> None:
    pytest.importorskip("prometheus_client")
    orders = clone.topic("orders")
    orders.subscribe("billing", "begin")
    orders.publish_many([b"1", b"2"]).wait(10)
    tickets = [requests_of(clone.topic("many")).subscription(f"g{i}", "end") for i in range(120)]
    for ticket in tickets:
        ticket.wait(10)
    with orders.consumer("billing"):
        metrics = MetricsServer(f"127.0.0.1:{free_port()}")
        with Admin([server.address]) as admin:
            metrics.status = admin.ask(server.address, "status").facts
        metrics.close()
        found = {family.name: family.samples for family in metrics.collect()}
    first = {name: found[f"chp_group_{name}"][0] for name in ("lag", "members", "oldest_s")}
    assert all(sample.labels == {"topic": "orders", "group": "billing"} for sample in first.values())
    assert (first["lag"].value, first["members"].value) == (2, 1)
    assert 0 <= first["oldest_s"].value < 3600
    assert [len(found[f"chp_group_{name}"]) for name in first] == [100, 100, 100]
    assert found["chp_topics_groups"][0].value == 121
    assert found["chp_topics_messages"][0].value == 2
