"""The lock of a Clone, which Ctrl-C never leaves held, and a flag for Python without its global lock.

    Lock            threading.Lock before Python 3.14
    FREE_THREADED   True if Python has no global lock; then other threads may see a C function's call half done

From Python 3.14 on, a signal's handler may raise after the lock of a `with` was taken and before the block begins
(github.com/python/cpython/issues/148874). The lock would then stay held, and the program would hang. So `__enter__` is
written in Python here: a handler may raise inside it, where the lock is released, but not at its end. `__exit__` is
still the C function of RLock.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 14):
    from threading import Lock
else:
    import _thread

    class Lock(_thread.RLock):  # type: ignore[misc]  # it is final in the stubs alone
        """A lock that knows its owner, so that `__enter__` can release it if a signal's handler raises too early."""

        def __enter__(self) -> bool:  # type: ignore[override]  # a `with` gives no arguments
            if self._is_owned():  # type: ignore[attr-defined]  # threading.Condition uses it too
                # Otherwise this RLock would let a signal's handler in, and the handler would find a change half made.
                raise RuntimeError("a signal's handler can't use the Clone that it interrupted; let it set an event")
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():  # type: ignore[attr-defined]  # as above
                    self.release()
                raise


FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
__all__ = ["FREE_THREADED", "Lock"]
