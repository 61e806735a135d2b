"""covers: client/chp_client/cli/topics/consume.py, against a stand-in for a consumer: what a command is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from chp.numbers import Revision
from chp_client import Consumer, Fenced, Message
from chp_client.cli import store as store_module
from tests import talk

Run = Callable[..., Result]


@dataclass
class Given:
    """A batch, and how its acknowledgement ends."""

    messages: list[Message]
    error: Exception | None = None
    upto_: list[int] = field(default_factory=list)
    put_aside: list[tuple[int, str, int]] = field(default_factory=list)
    missed: int = 0
    deliveries_max: int | None = None

    def __iter__(self) -> Any:
        return iter(self.messages)

    def upto(self, offset: int) -> Given:
        self.upto_.append(offset)
        return self

    def done(self) -> Given:
        return self

    def wait(self, timeout: float) -> None:
        if self.error is not None:
            raise self.error

    def reject(self, message: Message, why: str, tries: int) -> None:
        self.put_aside.append((message.offset, why, tries))


class StandIn:
    """A topic and its one consumer."""

    _writer, _stopped, _before = SimpleNamespace(tracing=None), Event(), False
    _try: Any = Consumer._try
    made_group = False

    def __init__(self, *batches: Given) -> None:
        self.name = self.topic = "orders"
        self.batches, self.closed, self.joined = list(batches), 0, list[tuple[str, Any]]()

    def facts(self, timeout: float) -> None: ...

    def consumer(self, group: str, start: Any, create: bool) -> StandIn:
        assert create, "without --no-create"
        self.joined.append((group, start))
        return self

    def take(self, timeout: float | None) -> Given | None:
        return self.batches.pop(0) if self.batches else None

    @property
    def dead_topic(self) -> str:
        return "orders.g.dead"

    def put_aside(self, batch: Given, warn: Callable[[str], object], *, patient: bool) -> bool:
        assert not patient, "--no-wait"
        batch.upto(batch.put_aside[-1][0] + 1)
        batch.wait(5)
        return True

    def attempt(self, handler: Callable[[Message], object], message: Message, tries: int) -> str:
        tried: Any = Consumer.attempt
        return str(tried(self, handler, message, tries, 0.0))

    def close(self, timeout: float) -> None:
        self.closed += 1


def message(offset: int, value: bytes, key: str | None = "k") -> Message:
    return Message(offset, key, value, Revision("1.7"), 1.5)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("CHP_SERVERS", raising=False)
    monkeypatch.setattr(store_module, "why_no_server", lambda settings, if_heard="": "no server within 5 s")

    def run(topic: StandIn, *words: str) -> Result:
        clone = SimpleNamespace(topic=lambda name: topic, close=lambda timeout: None)
        monkeypatch.setattr(store_module, "make_clone", lambda settings, subtrees: clone)
        return talk.run("sub", "orders", "--group", "g", "--no-wait", *words)

    return run


def test_a_command_gets_the_value_as_input_and_the_rest_as_environment(run: Run, tmp_path: Path) -> None:
    topic = StandIn(Given([message(7, b"\xff\0 raw", "/a b")]))
    command = f'cat > {tmp_path}/in; echo "$CHP_TOPIC,$CHP_GROUP,$CHP_KEY,$CHP_OFFSET,$CHP_REVISION" > {tmp_path}/env'
    assert run(topic, "--exec", command).exit_code == 0
    assert (tmp_path / "in").read_bytes() == b"\xff\0 raw"
    assert (tmp_path / "env").read_text() == "orders,g,/a b,7,1.7\n"
    assert (topic.joined, topic.closed) == ([("g", "begin")], 1)


def test_a_command_gets_the_message_as_json_with_the_json_option(run: Run, tmp_path: Path) -> None:
    batch = Given([message(7, b"\xff")])
    run(StandIn(batch), "--json", "--exec", f"cat > {tmp_path}/in")
    told = json.loads((tmp_path / "in").read_text())
    assert told == {"offset": 7, "key": "k", "base64": "/w==", "revision": "1.7", "time": 1.5}
    assert batch.upto_ == [8]


def test_a_command_that_cannot_run_ends_sub_without_a_dead_letter(run: Run) -> None:
    batch = Given([message(7, b"1"), message(8, b"2")])
    topic = StandIn(batch)
    result = run(topic, "--exec", "/nowhere/handle 2>/dev/null", "--tries", "1")
    assert result.exit_code == 2
    assert "the shell can't run it; message 7 was left as it is" in result.stderr
    assert (batch.put_aside, batch.upto_, topic.closed) == ([], [], 1)


def test_a_message_with_a_nul_in_its_key_is_put_aside(run: Run) -> None:
    batch = Given([message(7, b"1", "a\0b"), message(8, b"2")])
    assert run(StandIn(batch), "--exec", "true", "--tries", "1").exit_code == 0
    assert batch.put_aside == [(7, "Failed: its key has a NUL, which no environment takes", 1)]
    assert batch.upto_ == [8, 9]


def test_a_missing_acknowledgement_has_the_exit_code_of_no_server(run: Run) -> None:
    topic = StandIn(Given([message(7, b"1"), message(8, b"2")], TimeoutError()))
    result = run(topic, "--exec", "cat")
    assert (result.exit_code, topic.closed) == (3, 1)


def test_a_fenced_batch_is_left_to_the_other_consumers(run: Run, tmp_path: Path) -> None:
    fenced = Fenced("nothing was done: others have it", "fenced", {})
    topic = StandIn(Given([message(7, b"1"), message(8, b"2")], fenced), Given([message(9, b"3")]))
    result = run(topic, "--exec", f"cat >> {tmp_path}/done")
    assert (result.exit_code, (tmp_path / "done").read_text()) == (0, "13"), "not the rest of the batch"
    assert result.stderr == "chp sub: nothing was done: others have it\n"
