"""The parts of PySpark's data source API that not every version has, each with what stands in for it.

| since | part                               | what an older version does
|---|---|---|
| 4.1 | filters (`FILTERS`)                    | the option pushDownPredicate changes nothing
| 4.1 | writers of a stream's Arrow batches    | a stand-in gets them too: 4.0 asks only for the batch writer's class
| 4.2 | limits of a micro-batch (`ADMISSION`)  | a micro-batch has everything; Spark tells `latestOffset` no start

PySpark 4.0 to 4.3 are tried (`tests/spark/versions.py`). `left_out` warns, once a process, of an option that this Spark
can't follow.
"""

import logging
from typing import Any

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

log = logging.getLogger(__name__)
VERSION: str = pyspark.__version__
FILTERS = hasattr(datasource, "EqualTo")

EqualTo: Any
In: Any
StringStartsWith: Any
if FILTERS:
    EqualTo, In, StringStartsWith = datasource.EqualTo, datasource.In, datasource.StringStartsWith
else:
    EqualTo = In = StringStartsWith = type("NoFilter", (), {})

DataSourceStreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)
if DataSourceStreamArrowWriter is None:

    class _StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A stream's writer. Spark 4.0 gives it Arrow batches, because it is a batch writer of Arrow batches too."""

    DataSourceStreamArrowWriter = _StreamArrowWriter

ReadLimit: Any
ReadAllAvailable: Any
ReadMaxRows: Any
SupportsTriggerAvailableNow: Any
try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:
    ADMISSION = False
    ReadLimit = ReadAllAvailable = ReadMaxRows = type("NoLimit", (), {})
    SupportsTriggerAvailableNow = type("NoTrigger", (), {})
else:
    ADMISSION = True
    ReadLimit, ReadAllAvailable, ReadMaxRows = _limits.ReadLimit, _limits.ReadAllAvailable, _limits.ReadMaxRows
    SupportsTriggerAvailableNow = _limits.SupportsTriggerAvailableNow

_said: set[str] = set()


def left_out(option: str, since: str, instead: str) -> None:
    """Warn, once a process, that this Spark can't do what an option asks for."""
    if option not in _said:
        _said.add(option)
        log.warning("option %s needs Spark %s, and this is %s: %s", option, since, VERSION, instead)
