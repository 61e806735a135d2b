"""Old public names: each error tells the new one, and `dir` shows no old name.

covers: chp_client.renamed, and where it is used
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

import chp_client
from chp_client import AsyncClone, Clone

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


def test_what_was_never_there_is_missed_as_ever(clone: Clone) -> None:
    with pytest.raises(AttributeError, match="'Clone' object has no attribute 'nothing'"):
        _ = clone.nothing  # type: ignore[attr-defined]
    assert "get" in dir(Clone) and "get" in dir(clone) and "_core" not in dir(clone)


def test_the_package_tells_its_version() -> None:
    assert chp_client.__version__ == version("chp-clone") and "__version__" in dir(chp_client)
    with pytest.raises(AttributeError, match="module 'chp_client' has no attribute 'nothing'"):
        _ = chp_client.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Clone, AsyncClone])
def test_reading_pays_nothing_for_old_names(kind: type) -> None:
    assert not any("__getattr__" in vars(each) or "__getattribute__" in vars(each) for each in kind.__mro__[:-1])
