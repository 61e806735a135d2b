"""JVMs that start with half the work: the classes that a Spark session loads, kept in a file that later ones map.

    python -m tests.spark.classes FILE          makes it, unless another process is at it

Two thirds of what a JVM computes in a test is to read and verify the same fifteen thousand classes. Java can keep them
in a file ("class data sharing"): 170 MB, made once a checkout, in the cache of pytest, beside the first tests. Where a
JVM is another one than the file's it goes on without, as it does while there is none.
"""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyspark

from chp_client.spark import find_java, register, session, stop
from chp_server.testing import TestServer

ROOT = Path(__file__).parents[2]
MAKING_S = 300.0  # a JVM writes the file when it ends


def place(folder: Path) -> Path:
    """The file for this Java and this Spark."""
    what = f"{find_java().home} {pyspark.__version__} {pyspark.__file__}"
    return folder / f"{blake2b(what.encode(), digest_size=8).hexdigest()}.jsa"


def begin(archive: Path) -> subprocess.Popen[bytes] | None:
    """Start making it, if there is none."""
    if archive.exists():
        return None
    quiet = subprocess.DEVNULL
    argv = [sys.executable, "-m", __name__, str(archive)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=quiet, stderr=quiet, start_new_session=True)


def give_up(maker: subprocess.Popen[bytes]) -> None:
    """The tests are over: it ends with its JVM, if it has not yet."""
    with suppress(ProcessLookupError):
        os.killpg(maker.pid, signal.SIGKILL)
    maker.wait()


def use(archive: Path) -> None:
    """Have the drivers' JVMs map it from now on, if it is there; nobody is told where it does not fit."""
    if archive.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={archive} -Xlog:disable"


def run_a_little(spark: Any, server: str, folder: str) -> None:
    """What most tests do: batches, streams, the connector, a window."""
    chp = {"servers": server, "subtree": "/c/"}
    rows = spark.range(100).selectExpr("concat('/c/', id) key", "cast(id as string) value")
    rows.repartition(2).write.format("chp").mode("append").options(**chp).save()
    held = spark.read.format("chp").options(**chp).load()
    held.groupBy("key").count().orderBy("key").toPandas()
    held.write.parquet(f"{folder}/parquet")
    changes = spark.readStream.format("chp").options(**chp, startingOffsets="snapshot").load()
    timed = changes.selectExpr("key", "timestamp_seconds(1) at").withWatermark("at", "1 second").groupBy("key").count()
    for name, frame, mode in (("changes", changes, "append"), ("timed", timed, "update")):
        writer = frame.writeStream.outputMode(mode).foreachBatch(lambda batch, _: batch.toArrow())
        writer = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True)
        writer.start().awaitTermination(MAKING_S)


def make(archive: Path) -> None:
    """By the end of a session of its own."""
    with archive.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        made = archive.with_suffix(".new")
        made.unlink(missing_ok=True)
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
        spark = session("classes", cores=2, quick_start=True)
        register(spark)
        with TestServer() as server:
            run_a_little(spark, server.address, folder)
        stop(spark, MAKING_S)
        made.rename(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
