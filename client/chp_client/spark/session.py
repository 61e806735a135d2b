"""A Spark session with the settings that this project's jobs want, each with its reason.

    spark = session("rates", cores=2)
    spark = session("big", cores=8, **{"spark.driver.memory": "8g", "spark.sql.shuffle.partitions": 64})

The settings suit small, quick batches on one machine; whatever the caller gives wins. On a cluster, give
`**{"spark.master": ...}`, or make the session yourself: nothing else here depends on this helper.

Before the JVM starts, `session` sets three variables of the environment: JAVA_HOME (java.py finds or brings a Java),
PYSPARK_PYTHON and SPARK_LOCAL_IP. Once a JVM runs in this process, a second call returns the same session, and only its
`spark.sql.` settings can still change. That is Spark's rule.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any

from .java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
SETTINGS: dict[str, str] = {
    # The web page of a short job is of no use, and takes a port.
    "spark.ui.enabled": "false",
    # Plans that adapt while they run help with large shuffles of unknown size. With them a small batch takes twice
    # as long.
    "spark.sql.adaptive.enabled": "false",
    # Python raises the errors of a job. The lower levels of the log are about Spark itself.
    "spark.log.level": "ERROR",
    # Driver and executors are one process here: never listen on the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Times are in UTC everywhere. Without this setting, dates depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # In toArrow, toPandas and createDataFrame, send columns between Python and the JVM, and not rows.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

# `session` turns these loggers off. Each of them logs a failed task with a Java trace, and Python raises the error with
# an equal text afterwards. Among some two hundred lines the line with the reason is hard to find.
SAID_AGAIN = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.util.Utils",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.OverwriteByExpressionExec",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
)

# Give threads a stack of 16 MiB. Stopping a stream while foreachBatch runs may overflow the default of 1 MiB.
_JAVA_OPTIONS = "-Xss16m"
# Settings of `quick_start`, which starts and warms up faster, and is slower on long computations.
_QUICK_SETTINGS = {
    # Run plans as they are instead of compiling each to Java first: the first batch comes in half the time.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# The JVM of `quick_start` has only its quick compiler.
_QUICK_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(
    app_name: str = "chp", *, cores: int = 2, quick_start: bool = False, warm_up: bool = False, **settings: object
) -> "SparkSession":
    """Return a local Spark session on `cores` threads; `settings` are Spark's own, by their full names.

    `quick_start` suits tests and demonstrations: the session starts sooner, and long computations are slower.
    `warm_up` starts the Python workers and loads what the first job needs, while the program does something else.
    Raises `NoJava` without a usable Java, and an `ImportError` that names the extra if Spark is missing.
    """
    if cores < 1:
        raise ValueError(f"cores is {cores}; a session needs at least one")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(f"{error}; Spark is an extra: pip install 'chp-clone[spark]'") from error
    builder: Any = SparkSession.builder.appName(app_name)
    running = SparkSession.getActiveSession() is not None
    if not running:
        os.environ.update(environment(find_java(), os.environ))
    wanted = all_settings(cores, quick_start) | {name: _text(value) for name, value in settings.items()}
    for name, value in wanted.items():
        if not running or name.startswith("spark.sql."):
            builder = builder.config(name, value)
    found: SparkSession = builder.getOrCreate()
    if not running:
        _say_once(found)
    if warm_up:
        threading.Thread(target=warm, args=(found, cores), name="chp-warm-up", daemon=True).start()
    return found


def warm(spark: "SparkSession", cores: int = 2) -> bool:
    """Do what the first job would wait for; return False if the session ended meanwhile.

    A job on all cores starts their Python workers, which import PyArrow. Making a data source starts the Python process
    that plans; the source is never read.
    """
    try:
        spark.range(cores, numPartitions=cores).mapInArrow(lambda batches: batches, "id long").collect()
        spark.read.format("chp").option("servers", "tcp://127.0.0.1:9").load()
    except Exception as error:
        log.info("the session was not warmed up: %s", error)
        return False
    return True


def _say_once(spark: "SparkSession") -> None:
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    for name in SAID_AGAIN:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def stop(spark: "SparkSession", timeout_s: float = 20.0) -> None:
    """End the session and its JVM, which Spark's own `stop` leaves running until the end of the program."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    spark.stop()
    # Drop the gateway, so that the next session starts a new JVM.
    SparkContext._gateway = SparkContext._jvm = None
    # The gateway has a process only if this program started the JVM.
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def all_settings(cores: int, quick_start: bool = False) -> dict[str, str]:
    """Return every setting of `session`, also those that depend on its arguments."""
    options = [_JAVA_OPTIONS]
    if quick_start:
        options.append(_QUICK_JAVA_OPTIONS)
    return (
        SETTINGS
        | (_QUICK_SETTINGS if quick_start else {})
        | {
            "spark.master": f"local[{cores}]",
            # Write a checkpoint to a file, and rename that file. Without a search for a rename that is atomic on every
            # file system, a small batch takes half the time.
            "spark.sql.streaming.checkpointFileManagerClass": _checkpoints(),
            # One partition a core. The default of 200 makes 200 tasks of nothing for every small shuffle.
            "spark.sql.shuffle.partitions": str(cores),
            "spark.driver.extraJavaOptions": " ".join(options),
            # Spark's progress bar suits a terminal. In a file the bar's lines pile up, because they overwrite nothing.
            "spark.ui.showConsoleProgress": _text(sys.stderr.isatty()),
        }
    )


def _checkpoints() -> str:
    """Return the class that writes a checkpoint; Spark 4.1 moved it to a package of its own."""
    package = "org.apache.spark.sql.execution.streaming"
    moved = "" if metadata.version("pyspark").startswith("4.0.") else "checkpointing."
    return f"{package}.{moved}FileSystemBasedCheckpointFileManager"


def environment(java: Java, present: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the environment needs before the JVM starts."""
    return {
        "JAVA_HOME": str(java.home),
        # Workers must run this Python, which has the packages, and not the first python3 on PATH.
        "PYSPARK_PYTHON": present.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": present.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
        # Otherwise Spark looks for the host's own address, and warns or fails if the host has none.
        "SPARK_LOCAL_IP": present.get("SPARK_LOCAL_IP") or "127.0.0.1",
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
