"""Spark with a CHP pair: a session that finds its Java, format("chp"), and live tables inside UDFs.

    from chp_client.spark import foreach_batch, live, session

    spark = session("rates")
    servers = "tcp://127.0.0.1:5556,tcp://127.0.0.1:5566"
    df.write.format("chp").mode("append").options(servers=servers, subtree="/rates/").save()
    stream.writeStream.foreachBatch(foreach_batch(servers=servers, subtree="/rates/")).start()
    rates = live(servers, "/rates/")         # a mapping that a UDF reads
    known = lookup(orders, "customer", "/customers/", servers=servers)    # the frame, with the values of its keys

The package needs the extra: pip install 'chp-clone[spark]'.
"""

from typing import TYPE_CHECKING, Any

from .java import Java, NoJava, find_java
from .live import Live, live
from .session import session, stop
from .values.fields import BadDataFrame

if TYPE_CHECKING:
    from .datasource import register
    from .foreach import foreach_batch
    from .foreach_rows import foreach_writer
    from .lookups import lookup
    from .revisions import revision_text

__all__ = [
    "BadDataFrame", "Java", "Live", "NoJava", "find_java", "foreach_batch", "foreach_writer", "live", "lookup",
    "register", "revision_text", "session", "stop",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a name that needs PySpark. The first use imports its module, because the import takes a while."""
    if name == "register":
        from .datasource import register

        return register
    if name == "foreach_batch":
        from .foreach import foreach_batch

        return foreach_batch
    if name == "foreach_writer":
        from .foreach_rows import foreach_writer

        return foreach_writer
    if name == "lookup":
        from .lookups import lookup

        return lookup
    if name == "revision_text":
        from .revisions import revision_text

        return revision_text
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
