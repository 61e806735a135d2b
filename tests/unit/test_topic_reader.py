"""A reading of a topic asks a busy server again, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import pytest

from chp_client.errors import NoSuchTopic, Refused
from chp_client.topics import reader


class RefusingPort:
    """A port whose every question is refused with `code`."""

    code = "busy"
    asked = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        RefusingPort.asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, *_: Any, **__: Any) -> Iterator[Any]:
        """Refuse the question."""
        RefusingPort.asked += 1
        raise Refused("not now", self.code, None, "a:1")


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each reading use a `RefusingPort`, and not pause."""
    monkeypatch.setattr(reader, "QuestionPort", RefusingPort)
    monkeypatch.setattr(reader, "AGAIN_S", 0.001)


def test_a_server_that_stays_busy_is_an_error_after_a_while() -> None:
    """The reading asks again, and raises the refusal once no answer came for its patience."""
    position = reader.ReadPosition(0, 10)
    with pytest.raises(Refused, match="not now"):
        list(reader.batches(["a:1"], "orders", position, None, wait=True, patience_s=0.05))
    assert RefusingPort.asked > 1


def test_the_error_of_a_missing_topic_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of a topic that is not there names the remedy."""
    monkeypatch.setattr(RefusingPort, "code", "topic")
    with pytest.raises(NoSuchTopic, match="'orders'; its first message makes it, or `create` with settings"):
        list(reader.batches(["a:1"], "orders", reader.ReadPosition(0, 10), None, wait=False))
