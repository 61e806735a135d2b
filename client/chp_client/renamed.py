"""Old public names, and the errors that tell a caller the new ones.

    class Clone(metaclass=PublicNames):
        together = OldName("transaction()")        # clone.together raises AttributeError: use transaction()

        @renamed(stale_s="silence_s")              # Clone(stale_s=1) raises BadInput: use silence_s
        def __init__(self, silence_s=None): ...

    class Clone:
        incr = RedisName("recipes.Counter(clone, key).add()")    # clone.incr raises AttributeError: use recipes.Counter

An old name costs nothing until a program uses it. It is a descriptor in the class, because `__getattr__` would make
each attribute of an instance slower. `dir` does not show it.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from chp.errors import BadInput

# The type of a parameter that exists only so that a call with it is refused. `help` does not show such a parameter.
NeverGiven = Any
P = ParamSpec("P")
R = TypeVar("R")


class OldName:
    """An attribute that is gone; `now` says what to write instead."""

    def __init__(self, now: str) -> None:
        self._now, self._name = now, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"{self._name} is gone; use {self._now}")


class RedisName(OldName):
    """A word of Redis's clients; `now` says what to write here."""

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"{self._name} is a word of Redis; use {self._now} (docs/from/redis.md)")


REDIS_ARGUMENTS: dict[str, str] = {
    "ex": "ttl=, in seconds",
    "px": "ttl=, in seconds",
    "nx": "if_revision=0, or setdefault(key, value)",
    "xx": "if_revision=entry(key).revision",
}


def unknown_argument(function: str, name: str) -> TypeError:
    """Return the error for an argument that a function does not have. It names our argument for one of Redis."""
    if name in REDIS_ARGUMENTS:
        return TypeError(f"{function}() has no {name}=; use {REDIS_ARGUMENTS[name]} (docs/from/redis.md)")
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def refusing_redis(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorate an async function: an argument of Redis's `set` raises TypeError that names our argument."""

    @wraps(function)
    async def called(*arguments: P.args, **named: P.kwargs) -> R:
        for name in named.keys() & REDIS_ARGUMENTS:
            raise unknown_argument(function.__name__, name)
        return await function(*arguments, **named)

    return called


def refusing_pattern(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method without arguments: a call with a pattern, as for Redis's `keys`, raises TypeError."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        if len(arguments) > 1:
            raise TypeError(f'{function.__name__}() takes no pattern; use prefix("/a/").keys() (docs/from/redis.md)')
        return function(*arguments, **named)

    return called


def public_names(owner: type, names: Iterable[str]) -> list[str]:
    """Return the names among `names` that users may use. Old names of `owner` and private names are left out."""
    gone = {name for each in owner.__mro__ for name, thing in vars(each).items() if isinstance(thing, OldName)}
    return [name for name in names if name not in gone and (name.startswith("__") or not name.startswith("_"))]


class PublicNames(ABCMeta):
    """The metaclass of a class whose `dir` shows only what users may use."""

    def __dir__(cls) -> list[str]:
        return public_names(cls, super().__dir__())


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that raises `BadInput` for an old argument name, and names the new one."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*arguments: P.args, **named: P.kwargs) -> R:
            for old in names.keys() & named.keys():
                raise BadInput(f"the argument {old} is gone; use {names[old]}")
            return function(*arguments, **named)

        return called

    return decorated


def told(name: str, now: dict[str, str], module: str) -> Any:
    """Raise the error that a module's `__getattr__` raises for a name that the module does not have.

    For an old name it is an `ImportError`, since `from module import name` shows no text of an `AttributeError`.
    """
    if name in now:
        raise ImportError(f"{name} is gone; use {now[name]}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
