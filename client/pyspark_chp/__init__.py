"""Where Spark looks by itself: a module `pyspark_<name>` with a class `DefaultSource` is format("<name>")."""

from chp_client.spark.datasource import ChpDataSource as DefaultSource

__all__ = ["DefaultSource"]
