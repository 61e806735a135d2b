"""Old public names: each error tells the new one, and `dir` shows no old name.

covers: chp_client.renamed, and where it is used
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import chp_client
from chp_client import AsyncClone, AsyncTopic, BadInput, Clone, Topic
from chp_client.recording.recorder import record
from chp_client.recording.replayer import replay
from chp_client.topics.topic import requests_of

NOBODY = "tcp://127.0.0.1:9"


@pytest.fixture
def clone() -> Iterator[Clone]:
    made = Clone(NOBODY)
    yield made
    made.close(0.0)


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("from_file", r"use Clone\(client_file=path\)"),
        ("together", r"use transaction\(\)"),
        ("under", r'use prefix\("/rates/"\)'),
    ],
)
def test_an_old_attribute_names_the_new_one(clone: Clone, old: str, now: str) -> None:
    for each in (Clone, AsyncClone, clone):
        with pytest.raises(AttributeError, match=f"{old} is gone; {now}"):
            getattr(each, old)
        assert not hasattr(each, old) and old not in dir(each)


def test_an_old_start_value_is_refused_and_names_the_new_one(clone: Clone, tmp_path: Path) -> None:
    topic, writer = clone.topic("t"), Clone(NOBODY, None)
    acts: list[tuple[Callable[[], object], str]] = [
        (lambda: clone.watch(start="now"), "start='now' is gone; use 'end'"),
        (lambda: clone.on(start="now")(print), "start='now' is gone; use 'end'"),
        (lambda: record(NOBODY, tmp_path, start="now"), "start='now' is gone; use 'end'"),
        (lambda: record(NOBODY, tmp_path, start="earliest"), "start='earliest' is gone; use 'begin'"),
        (lambda: topic.read(after=1), "the argument after is gone; use start, the first offset wanted"),  # type: ignore[call-arg]
        (lambda: requests_of(topic).subscription("g", "latest"), "start='latest' is gone; use 'end'"),
        (lambda: replay(tmp_path, writer, after=1), "the argument after is gone; use start"),  # type: ignore[call-arg]
    ]
    for act, words in acts:
        with pytest.raises(BadInput, match=words):
            act()
    with pytest.raises(ImportError, match='LATEST is gone; use start="end"'):
        from chp_client import LATEST  # type: ignore[attr-defined]  # noqa: F401
    writer.close(0.0)


def test_an_invalid_start_or_until_is_refused_with_a_reason(clone: Clone, tmp_path: Path) -> None:
    topic, writer = clone.topic("t"), Clone(NOBODY, None)
    acts: list[tuple[Callable[[], object], str]] = [
        (
            lambda: clone.watch(start="later"),
            "start='later' is not 'end', 'snapshot', 'begin' or a revision such as 1.42",
        ),
        (lambda: list(topic.read(-2, wait=False)), "start=-2 is not 'begin', 'end' or the first offset wanted"),
        (lambda: list(topic.read(until=-1)), "until=-1 is not the offset of a message"),
        (lambda: topic.consumer("g", start="snapshot"), "start='snapshot' is not 'begin', 'end' or the first offset"),
        (lambda: replay(tmp_path, writer, start="snapshot"), "start='snapshot' is no place of a recording"),
    ]
    for act, words in acts:
        with pytest.raises(BadInput, match=re.escape(words)):
            act()
    writer.close(0.0)


def test_an_unknown_attribute_raises_the_usual_error(clone: Clone) -> None:
    with pytest.raises(AttributeError, match="'Clone' object has no attribute 'nothing'"):
        _ = clone.nothing  # type: ignore[attr-defined]
    assert "get" in dir(Clone) and "get" in dir(clone) and "_core" not in dir(clone)


MAPPING = ["get", "items", "keys", "values"]
COPY = ["active", "closed", "codec", "describe", "entry", "history", "lag_s", "pin", "position", "prefix", "refused"]
COPY += ["revision", "snapshot", "staleness_s", "state", "stats", "verify", "wait_until_synced", "window"]
CALLS = ["off", "on", "on_state", "watch"]
SETS = ["delete", "delete_many", "delete_prefix", "flush", "lease", "pop", "popitem", "set", "set_many", "setdefault"]
SETS += ["sync", "touch"]
BOTH = [*MAPPING, *COPY, *CALLS, *SETS, "close", "mounts", "topic", "topics", "transaction"]
TOPIC = [
    "cancel",
    "configure",
    "consumer",
    "create",
    "facts",
    "groups",
    "publish",
    "publish_many",
    "read",
    "remove",
    "reset",
    "schedule",
    "scheduled",
    "subscribe",
    "unsubscribe",
]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Clone, [*BOTH, "clear", "update"]),
        (AsyncClone, [*BOTH, "settled", "submit"]),
        (Topic, TOPIC),
        (AsyncTopic, [*TOPIC, "submit"]),
    ],
)
def test_dir_of_a_class_shows_exactly_the_public_names(kind: type, names: list[str]) -> None:
    shown = [name for name in dir(kind) if not name.startswith("__")]
    assert shown == sorted(names)


def test_dir_of_an_object_adds_the_public_attributes(clone: Clone) -> None:
    assert set(dir(clone)) - set(dir(Clone)) == {"name", "subtrees"} and set(dir(Clone)) <= set(dir(clone))
    topic = clone.topic("t")
    assert set(dir(topic)) - set(dir(Topic)) == {"name"}


def test_the_package_tells_its_version() -> None:
    assert chp_client.__version__ == version("chp-clone") and "__version__" in dir(chp_client)
    with pytest.raises(AttributeError, match="module 'chp_client' has no attribute 'nothing'"):
        _ = chp_client.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Clone, AsyncClone])
def test_clone_classes_define_no_getattr_for_old_names(kind: type) -> None:
    assert not any("__getattr__" in vars(each) or "__getattribute__" in vars(each) for each in kind.__mro__[:-1])
