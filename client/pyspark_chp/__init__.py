"""The module in which Spark finds format("chp"): for format("<name>"), `DefaultSource` in `pyspark_<name>`."""

from chp_client.spark.datasource import ChpDataSource as DefaultSource

__all__ = ["DefaultSource"]
