"""The facts about a Clone's process that it sends to the servers, for an operator who runs `chp clients`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any

SHOWN_MAX = 200


def about(name: str, subtrees: Sequence[str]) -> dict[str, Any]:
    """Return the program, its host and process, the version of this library, and the held subtrees."""
    return {
        "name": _said(name), "program": _said(_program()), "host": _said(socket.gethostname()),
        "pid": os.getpid(), "version": package_version(), "subtrees": [_said(each) for each in subtrees],
    }  # fmt: skip


def _said(text: str) -> str:
    """Shorten a text. Replace what can't be sent as UTF-8."""
    return text[:SHOWN_MAX].encode(errors="replace").decode()


def _program() -> str:
    """Return the name of the program: the script, or the module of `python -m`."""
    path = PurePath(sys.argv[0] if sys.argv else "")
    return path.parent.name if path.name == "__main__.py" else path.name or "python"


@lru_cache(maxsize=1)
def package_version() -> str:
    """Return the version of this package as it is installed; "" where it runs from a zip or a checkout."""
    try:
        return version("chp-clone")
    except PackageNotFoundError:
        return ""
