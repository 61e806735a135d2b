"""The rules of Spark's own Python processes: the planner beside the driver, and the workers of tasks.

settle()                 let the garbage collector ignore the objects from before our first task
@errors_first            a class whose errors begin with their own text, and not with Spark's trace
has_answered(servers)    whether one of these servers has answered in this session; `note_answer` records it
"""

import gc
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any, TypeVar

from chp.errors import ChpError

Kind = TypeVar("Kind", bound=type)
_done = False
_answered: set[str] = set()


def settle() -> None:
    """Let the garbage collector ignore all present objects, once a process. Call this only in Spark's own processes.

    A worker lives from task to task, and collects garbage after each task. With pandas and PyArrow imported, a
    collection looks at a few hundred thousand objects that are never freed. That takes 40 ms, as long as a small batch.
    """
    global _done
    if not _done:
        _done = True
        gc.collect()
        gc.freeze()


# -- errors


class _Kept:
    """A `__cause__` that can't be removed. Spark removes the cause of an error when it shortens the trace."""

    def __init__(self, cause: ChpError) -> None:
        self._cause = cause

    def __get__(self, error: ChpError, kind: type) -> ChpError:
        return self._cause

    def __set__(self, error: ChpError, cause: object) -> None:
        pass


def first(error: ChpError) -> ChpError:
    """Return the error without a trace, and with a copy of itself as its cause.

    Spark sends the text that Python's `traceback` makes of an error. The text begins with the cause, which
    has the error's own text. The error gets a new class of equal name, which only adds the cause.
    """
    kind = type(error)
    cause = kind.__new__(kind, *error.args)
    cause.__dict__.update(error.__dict__)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__cause__": _Kept(cause)}
    error.__class__ = type(kind.__name__, (kind,), named)
    error.__suppress_context__ = True
    return error.with_traceback(None)


def errors_first(kind: Kind) -> Kind:
    """Let the public methods of a class raise errors of this project with their own text first."""
    for name, thing in list(vars(kind).items()):
        if callable(thing) and not name.startswith("_"):
            setattr(kind, name, _errors_first(thing))
    return kind


def _errors_first(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except ChpError as error:
            raise first(error)  # noqa: B904 (the cause is set)

    @wraps(method)
    def generate(*args: Any, **named: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **named)
        except ChpError as error:
            raise first(error)  # noqa: B904 (the cause is set)

    return generate if isgeneratorfunction(method) else call


# -- who has answered


def has_answered(servers: Sequence[str]) -> bool:
    """Return True if one of these servers has answered in this Spark session, as far as this host knows."""
    mark = _mark(servers)
    return mark.name in _answered or (mark.is_absolute() and mark.exists())


def note_answer(servers: Sequence[str]) -> None:
    """Remember that one of these servers has answered, for this process and for later ones of this Spark session."""
    mark = _mark(servers)
    if mark.name not in _answered:
        _answered.add(mark.name)
        if mark.is_absolute():
            try:
                mark.touch()
            except OSError:
                # This process still remembers the answer, which is enough while Spark keeps the process.
                pass


def _mark(servers: Sequence[str]) -> Path:
    """Return the path of the file whose existence says that one of these servers has answered.

    Spark makes the folder of the file for each session, and removes it at the end of the session. A file is needed
    because Spark ends an idle planner after a minute. Outside of Spark the path is relative, and no file is made.
    """
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    name = "chp-answered-" + hashlib.blake2b(repr(sorted(servers)).encode(), digest_size=8).hexdigest()
    return Path(folder) / name
