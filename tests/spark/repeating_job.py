"""A job on a standalone cluster of two workers whose tasks run more than once, for test_connector_repeats.py.

    python -m tests.spark.repeating_job SERVERS FOLDER

The two workers have different addresses, because Spark runs a speculative copy of a task only on another host, and none
in a local session. The writes are:

    save 0      The first attempt of a task stops in its middle, and a speculative copy takes its place. After the
                commit the first attempt goes on and stages the rest.
    save 1      A task raises in its middle, and is tried again.
    save 2      An executor is killed in the middle of a task, after a shuffle of both executors. Its results are
                computed again.
    stream      A task raises in the first batch. A task of the second batch is slow as in save 0.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from chp_client.spark import find_java, session
from chp_client.spark.session import environment
from chp_server.testing import free_port

from . import faulty

ROWS = 1000
SAVES = {0: ["staging"], 1: ["raise"], 2: ["executor"]}
BATCHES = {0: ["raise"], 1: ["staging"]}
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The JVMs use the classes of classes.py.
QUICK_HERE = f"{QUICK_JAVA} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
SETTINGS = {
    "spark.executor.extraJavaOptions": QUICK_HERE,
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "2",
    # The attempt that lost may go on for this long.
    "spark.python.task.killTimeout": "60s",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


@contextmanager
def cluster(folder: str) -> Iterator[str]:
    """Start a master and two workers of one core, and return the master's address. They end with this process group."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    os.environ.update(environment(find_java(), os.environ) | {"SPARK_DAEMON_JAVA_OPTS": QUICK_HERE})
    run = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
    subprocess.Popen([*run, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"], stdout=sys.stderr)
    run[1] = "org.apache.spark.deploy.worker.Worker"
    more = ["--cores", "1", "--memory", "1g", "--webui-port", "0", master]
    for host in ("127.0.0.1", "127.0.0.2"):
        where = ["--host", host, "--work-dir", f"{folder}/worker-{host}"]
        subprocess.Popen([*run, *where, *more], stdout=sys.stderr, env={**os.environ, "SPARK_LOCAL_IP": host})
    yield master


def meeting(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function that makes both executors take part in a stage: its first tasks wait for each other."""

    def meet(batches: Iterator[Any]) -> Iterator[Any]:
        # The parent is the daemon of this executor's workers.
        (Path(folder) / f"met.{os.getppid()}").touch()
        while len(list(Path(folder).glob("met.*"))) < 2:
            threading.Event().wait(0.02)
        yield from batches

    return meet


def save(spark: Any, servers: list[str], folder: str, version: int) -> None:
    """Make one batch write."""
    rows = spark.range(version * ROWS, (version + 1) * ROWS, 1, 4)
    frame = rows.selectExpr("concat('/save/', id) key", "cast(id as string) value")
    if "executor" in SAVES[version]:
        frame = frame.mapInArrow(meeting(folder), frame.schema).repartition(4, "key")
    given = {**faulty.options(folder, "save", servers, SAVES), "applicationId": "repeats", "version": str(version)}
    frame.write.format("faulty").mode("append").options(**given, subtree="/save/").save()


def stream(spark: Any, servers: list[str], folder: str) -> None:
    """Run a stream with as many micro-batches as there are files."""
    lines = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(f"{folder}/in").repartition(4)
    rows = lines.selectExpr("concat('/stream/', value) key", "value")
    writer = rows.writeStream.format("faulty").options(**faulty.options(folder, "stream", servers, BATCHES))
    writer = writer.option("subtree", "/stream/").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def let_go(folder: str, which: str) -> None:
    """Let the slow attempt go on after the commit, and wait until it has staged the rest."""
    (Path(folder) / f"go.{which}.staging").touch()
    for _ in range(3000):
        if list(Path(folder).glob(f"ended.{which}.0.0.*")):
            return
        threading.Event().wait(0.02)
    raise TimeoutError(f"the first attempt of {which} has not gone on")


def main(servers: str, folder: str) -> None:
    """Run the whole job."""
    addresses = servers.split(",")
    with cluster(folder) as master:
        spark = session("repeats", quick_start=True, **dict[str, Any]({"spark.master": master, **SETTINGS}))
        faulty.register(spark)
        for version, points in SAVES.items():
            save(spark, addresses, folder, version)
            if "staging" in points:
                let_go(folder, f"save.{version}")
        stream(spark, addresses, folder)
        let_go(folder, "stream.1")
        print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
