"""Tests of the state that Spark's own Python processes share. covers: chp_client.spark.worker"""

import traceback
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from chp.errors import BadInput
from chp_client.errors import Refused, Unanswered
from chp_client.spark import worker
from chp_client.spark.options import parse
from chp_client.spark.reading import snapshot
from chp_client.spark.reading.changes import ChangesReader
from chp_client.spark.reading.messages import MessagesReader
from chp_client.spark.reading.snapshot import BatchReader
from chp_client.spark.worker import errors_first, has_answered, note_answer
from chp_server.testing import TestServer, free_port

KEYS = StructType([StructField("key", StringType())])
READS: list[tuple[Any, dict[str, str]]] = [
    (BatchReader, {}),
    (ChangesReader, {"startingOffsets": "earliest"}),
    (MessagesReader, {"topic": "t"}),
]


@pytest.fixture(autouse=True)
def _new_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "_answered", set())
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")


@pytest.mark.parametrize(("reader", "more"), READS)
def test_a_batch_read_gives_up_early_if_no_server_ever_answered(
    reader: Any, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "FIRST_S", 0.4)
    address = f"tcp://127.0.0.1:{free_port()}"
    given = parse({"servers": address, "timeout": "60", **more})
    began = monotonic()
    with pytest.raises(Unanswered, match=rf"no server of {address} serves \(waited 0\.4 s"):
        reader(given, KEYS).partitions()
    assert monotonic() - began < 30
    note_answer(given["servers"])
    with pytest.raises(Unanswered, match=r"waited 0\.9 s"):
        reader({**given, "timeout": 0.9}, KEYS).partitions()


def test_a_read_notes_that_a_server_has_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestServer() as server:
        given = parse({"servers": server.address})
        assert not has_answered(given["servers"])
        assert BatchReader(given, KEYS).partitions()
        assert has_answered(given["servers"])
    # The next planner process has no such memory.
    monkeypatch.setattr(worker, "_answered", set())
    assert has_answered(given["servers"]) and not has_answered(["tcp://a:1"])
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "other session"))
    assert not has_answered(given["servers"])
    note_answer(given["servers"])
    assert has_answered(given["servers"]), "this process knows, though it can't tell others"


@errors_first
class Source:
    """A source that raises in each way in which a reader does."""

    def plan(self) -> None:
        self._fail()

    def read(self) -> Iterator[int]:
        yield 1
        self._fail()

    def other(self) -> None:
        raise ValueError("of somebody else")

    def _fail(self) -> None:
        try:
            raise KeyError("inside")
        except KeyError:
            raise Refused("no room", "busy", 7, "tcp://a:1")  # noqa: B904 (a chain as long as it gets)


@pytest.mark.parametrize("act", [lambda: Source().plan(), lambda: list(Source().read())])
def test_errors_first_puts_a_client_error_before_the_trace(act: Any) -> None:
    with pytest.raises(Refused) as told:
        act()
    # Spark does this where it shortens the trace.
    told.value.__cause__ = None
    lines = "".join(traceback.format_exception(told.value)).splitlines()
    assert lines[0] == lines[-1] == "chp_client.errors.Refused: tcp://a:1: no room"
    assert (told.value.code, told.value.detail) == ("busy", 7) and "inside" not in "".join(lines)


def test_errors_first_leaves_other_errors_unchanged() -> None:
    with pytest.raises(ValueError) as told:
        Source().other()
    assert told.value.__cause__ is None


def test_an_error_with_other_arguments_than_its_text_keeps_its_text() -> None:
    error = BadInput("x")
    assert worker.first(error) is error and str(error.__cause__) == "x"
