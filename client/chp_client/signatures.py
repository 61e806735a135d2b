"""What `help()` shows: a signature has names and defaults, and not a screen of types.

    set(self, key, value, ttl=None, if_revision=None, timeout=None)

Types are where an editor and a checker look for them, in the source; `__annotations__` stay as they are. What a method
takes stands in its own words below.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import Parameter, Signature, signature
from types import FunctionType


def shorten(classes: Iterable[type]) -> None:
    """Give the public methods of these, and of what of this package they stand on, short signatures."""
    seen: set[type] = set()
    for kind in classes:
        for each in kind.__mro__:
            if each not in seen and each.__module__.startswith("chp_client."):
                seen.add(each)
                for name, thing in vars(each).items():
                    function = getattr(thing, "__func__", thing)
                    if isinstance(function, FunctionType) and (name == "__init__" or not name.startswith("_")):
                        _shorten(function)


def _shorten(function: FunctionType) -> None:
    named = signature(function).parameters.values()
    plain = [each.replace(annotation=Parameter.empty) for each in named if each.annotation != "NeverGiven"]
    function.__signature__ = Signature(plain)  # type: ignore[attr-defined]  # help() looks for it; typeshed doesn't know
