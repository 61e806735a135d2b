"""The signatures that `help()` shows: names and defaults, instead of a screen full of types.

    set(self, key, value, ttl=None, if_revision=None, timeout=None)

The types stay in the source and in `__annotations__`, where editors and type checkers look for them. The docstring
below a signature says what each argument may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import Parameter, Signature, signature
from types import FunctionType


def shorten(classes: Iterable[type]) -> None:
    """Give short signatures to the public methods of these classes, and of their base classes in this package."""
    seen: set[type] = set()
    for kind in classes:
        for each in kind.__mro__:
            if each not in seen and each.__module__.startswith("chp_client."):
                seen.add(each)
                for name, thing in vars(each).items():
                    function = getattr(thing, "__func__", thing)
                    if isinstance(function, FunctionType) and (name == "__init__" or not name.startswith("_")):
                        _shorten(function)
                if "__new__" in vars(each) and "__init__" in vars(each):
                    # Otherwise `help` would show the signature of `__new__`, which is only `*arguments, **named`.
                    vars(each)["__new__"].__func__.__signature__ = signature(vars(each)["__init__"])


def _shorten(function: FunctionType) -> None:
    named = signature(function).parameters.values()
    plain = [each.replace(annotation=Parameter.empty) for each in named if each.annotation != "NeverGiven"]
    # help() looks for this attribute, which typeshed does not know.
    function.__signature__ = Signature(plain)  # type: ignore[attr-defined]
