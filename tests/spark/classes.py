"""A file of the classes that a Spark session loads, which halves the work of later JVMs at their start.

    python -m tests.spark.classes FILE          makes the file, unless another process is making it

A JVM spends two thirds of its work in a test on reading and verifying the same fifteen thousand classes. Java can keep
them in a file ("class data sharing") of 170 MB. It is made once for each checkout, in the cache of pytest, during the
first tests. A JVM of another version goes on without the file.
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
# A JVM writes the file when it ends.
MAKING_S = 300.0


def place(folder: Path) -> Path:
    """Return the path of the file for this Java and this Spark."""
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
    """End the maker with its JVM, because the tests are over."""
    with suppress(ProcessLookupError):
        os.killpg(maker.pid, signal.SIGKILL)
    maker.wait()


def use(archive: Path) -> None:
    """Let the drivers' JVMs map the file from now on, if it exists. A JVM that it does not fit ignores it silently."""
    if archive.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={archive} -Xlog:disable"


def run_a_little(spark: Any, server: str, folder: str) -> None:
    """Do what most tests do: batches, streams, the connector, a window."""
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
    """Make the file by a session that ends."""
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
