"""A job on a standalone cluster for test_pipeline_cluster.py: changes of keys to a topic, and the topic to Parquet.

    python -m tests.spark.pipeline_job cluster FOLDER                    the master and two workers, until it is killed
    python -m tests.spark.pipeline_job run FOLDER MASTER CLIENT_FILE     the driver, until FOLDER/stop exists

The driver prints "finished" when both queries have taken everything.
"""

import sys
import threading
from pathlib import Path
from typing import Any

from chp_client.spark import session

from .repeating_job import SETTINGS, cluster


def daemons(folder: str) -> None:
    """Start the cluster, and write its address to FOLDER/master."""
    with cluster(folder) as master:
        (Path(folder) / "master.new").write_text(master)
        (Path(folder) / "master.new").rename(Path(folder) / "master")
        threading.Event().wait()


def run(folder: str, master: str, client_file: str) -> None:
    """Run both queries until they are told to stop, and then to the end of what there is."""
    settings: dict[str, Any] = {
        **SETTINGS,
        "spark.master": master,
        "spark.task.maxFailures": "8",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
    }
    spark = session("pipeline", quick_start=True, **settings)
    given = {"clientFile": client_file, "timeout": "120"}
    changes = spark.readStream.format("chp").options(
        **given, subtree="/src/", startingOffsets="earliest", partitions="2", maxRowsPerTrigger="150"
    )
    to_topic = changes.load().select("key", "value").writeStream.format("chp")
    messages = spark.readStream.format("chp").options(**given, topic="changes", group="parquet")
    to_files = messages.load().selectExpr("key", "string(value) value", "offset").writeStream.format("parquet")
    queries = [
        to_topic.options(**given, topic="changes", checkpointLocation=f"{folder}/checkpoint.topic").start(),
        to_files.options(path=f"{folder}/files", checkpointLocation=f"{folder}/checkpoint.files").start(),
    ]
    while not (Path(folder) / "stop").exists():
        for query in queries:
            if (error := query.exception()) is not None:
                raise error
        threading.Event().wait(0.1)
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        query.stop()
    print("finished", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "cluster":
        daemons(sys.argv[2])
    else:
        run(*sys.argv[2:])
