"""Spark beside a CHP pair: a session that starts anywhere, and publishing what a job computes.

    from chp_client import Clone
    from chp_client.spark import publish, session

    spark = session("rates")
    with Clone(["tcp://127.0.0.1:5556", "tcp://127.0.0.1:5566"], subtree="/rates/") as clone:
        publish(frame, clone, ttl=60)        # columns `key` and `value`

Needs the extra: pip install 'chp-clone[spark]'.
"""

from typing import TYPE_CHECKING, Any

from .java import Java, NoJava, find_java
from .live import Live, live
from .publish import BadDataFrame, Published, publish
from .session import session, stop

if TYPE_CHECKING:
    from .datasource import register
    from .foreach import foreach_batch

__all__ = [
    "BadDataFrame", "Java", "Live", "NoJava", "Published", "find_java", "foreach_batch", "live", "publish", "register",
    "session", "stop",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`register` and `foreach_batch` import PySpark, which is set up by `session` first: so only when asked for."""
    if name == "register":
        from .datasource import register

        return register
    if name == "foreach_batch":
        from .foreach import foreach_batch

        return foreach_batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
