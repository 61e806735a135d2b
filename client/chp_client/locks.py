"""The lock of a Clone, which Ctrl-C never leaves held, and whether Python has a lock of its own.

    Lock            threading.Lock before Python 3.14
    FREE_THREADED   True if Python has no global lock, so that a call of C is no single step for other threads

From Python 3.14 on, a signal's handler may raise after the lock of a `with` was taken and before the block begins
(github.com/python/cpython/issues/148874). Nobody would release the lock then, and the program would hang. `__enter__`
is written in Python here, as a handler may raise inside it, but not at its end. `__exit__` stays that of C.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 14):
    from threading import Lock
else:
    import _thread

    class Lock(_thread.RLock):  # type: ignore[misc]  # it is final in the stubs alone
        """A lock that knows its owner, so that a handler that comes too early can release it."""

        def __enter__(self) -> bool:  # type: ignore[override]  # a `with` gives no arguments
            if self._is_owned():  # type: ignore[attr-defined]  # threading.Condition uses it too
                # Otherwise a signal's handler would find a change half made.
                raise RuntimeError("a signal's handler can't use the Clone that it interrupted; let it set an event")
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():  # type: ignore[attr-defined]  # as above
                    self.release()
                raise


FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
__all__ = ["FREE_THREADED", "Lock"]
