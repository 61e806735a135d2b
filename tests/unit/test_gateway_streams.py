"""covers: paths/stream.py, paths/topics.py, paths/watch.py: streams are counted at the check of their limit, and once.

The gateway, its mounts and the topic are doubles: what counts is when the gateway's counts rise and fall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from chp_client.errors import NoSuchTopic
from chp_client.gateway.paths import stream, topics, watch
from chp_client.gateway.problems import Problem

LIMIT = 2


class FakeTopic:
    """A topic whose facts come when the test lets them come."""

    name = "t"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.error: Exception | None = None

    async def facts(self, timeout: float) -> None:
        """Wait for the test."""
        await self.asked.wait()
        if self.error is not None:
            raise self.error


class FakeCall:
    """A call for a stream, with as much of a gateway as a handler takes before its stream runs."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.caller, self.topic = SimpleNamespace(), FakeTopic()
        self.gateway = SimpleNamespace(
            streams=0, readers=0, limits=SimpleNamespace(readers=LIMIT), freshness=lambda *mounts: {},
            mounts=SimpleNamespace(several=False), closing=asyncio.Event(),
        )  # fmt: skip

    def header(self, name: str) -> str:
        """Return the header that makes a reader of messages."""
        return stream.MEDIA_TYPE if name == "accept" else ""

    def readable(self, prefix: str) -> list[Any]:
        """Return no mounts: a watch of nothing."""
        return []

    @property
    def counted(self) -> int:
        """The readers that are counted."""
        return int(self.gateway.streams + self.gateway.readers)


Handler = Callable[[Any], Coroutine[Any, Any, Response]]
each_stream = pytest.mark.parametrize("handler", [topics.read_topic, watch.watch])


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "STREAMS_MAX", LIMIT)


async def never(*_: object) -> Any:
    """Wait for ever, as for the end of a reader that stays."""
    await asyncio.Event().wait()


@each_stream
def test_streams_that_are_opened_at_once_do_not_pass_their_limit(handler: Handler) -> None:
    async def act() -> None:
        call = FakeCall()
        opening = [asyncio.create_task(handler(call)) for _ in range(LIMIT + 3)]
        await asyncio.sleep(0)
        call.topic.asked.set()
        found = await asyncio.gather(*opening, return_exceptions=True)
        refused = [each for each in found if isinstance(each, Problem)]
        assert [each.status for each in refused] == [429] * 3, found
        assert call.counted == LIMIT

    asyncio.run(act())


@each_stream
@pytest.mark.parametrize("error", [OSError("the reader left"), asyncio.CancelledError()])
def test_a_stream_that_ends_before_its_first_piece_is_counted_no_more(handler: Handler, error: BaseException) -> None:
    async def act() -> None:
        call = FakeCall()
        call.topic.asked.set()
        response = await handler(call)
        assert call.counted == 1

        async def fails(message: Any) -> None:
            raise error

        with pytest.raises(type(error)):
            await response({}, never, fails)
        assert call.counted == 0

    asyncio.run(act())


@pytest.mark.parametrize("how", ["absent", "late", "cancelled"])
def test_a_stream_of_messages_that_does_not_begin_is_counted_no_more(how: str) -> None:
    async def act() -> None:
        call = FakeCall()
        opening = asyncio.create_task(topics.read_topic(call))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert call.counted == 1
        call.topic.error = NoSuchTopic("no topic t", "absent") if how == "absent" else TimeoutError("late")
        if how == "cancelled":
            opening.cancel()
        else:
            call.topic.asked.set()
        with pytest.raises((Problem, TimeoutError, asyncio.CancelledError)):
            await opening
        assert call.counted == 0

    asyncio.run(act())
