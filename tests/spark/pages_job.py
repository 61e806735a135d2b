"""A job with a client file that keeps all that Spark shows of it: pages, REST answers and the event log.

    python -m tests.spark.pages_job CLIENT_FILE STRANGERS_FILE FOLDER

It writes, reads, streams, and fails with the file of a stranger. FOLDER/shown has what Spark shows of that.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from chp_client.spark import session

PAGES = ("/jobs/", "/stages/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/", "/storage/")


def main(file: str, stranger: str, folder: Path) -> None:
    """Run the job, and keep what Spark shows."""
    (folder / "events").mkdir()
    logged: dict[str, Any] = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
    logged |= {"spark.eventLog.dir": f"file://{folder}/events", "spark.ui.enabled": "true", "spark.ui.port": "0"}
    spark = session("pages", cores=2, quick_start=True, **logged)
    rows = spark.createDataFrame([("/a", "1"), ("/b", "2")], "key string, value string")
    rows.write.format("chp").options(clientFile=file).mode("append").save()
    assert spark.read.format("chp").options(clientFile=file).load().count() == 2
    changes = spark.readStream.format("chp").options(clientFile=file).load()
    kept = changes.writeStream.format("memory").queryName("changes").option("checkpointLocation", f"{folder}/kept")
    kept.trigger(availableNow=True).start().awaitTermination()
    try:
        spark.read.format("chp").options(clientFile=stranger, timeout=5).load().count()
        raise SystemExit("a stranger was let in")
    except PySparkException as error:
        print(error)
    (folder / "shown").mkdir()
    show(spark.sparkContext.uiWebUrl, folder / "shown")
    spark.stop()


def show(url: str, folder: Path) -> None:
    """Keep the pages, and the REST answers of the same."""
    apps = f"{url}/api/v1/applications"
    (app,) = json.loads(fetched(apps))
    of = f"{apps}/{app['id']}"
    queries = json.loads(fetched(f"{of}/sql?details=true&length=1000"))
    jobs = json.loads(fetched(f"{of}/jobs"))
    found = [*(f"{url}{page}" for page in PAGES)]
    found += [f"{of}/{name}" for name in ("sql?details=true&length=1000", "jobs", "stages?details=true", "environment")]
    found += [f"{url}/SQL/execution/?id={query['id']}" for query in queries]
    found += [f"{url}/jobs/job/?id={job['jobId']}" for job in jobs]
    for i, each in enumerate(found):
        (folder / f"{i}.txt").write_text(f"{each}\n{fetched(each)}")


def fetched(url: str) -> str:
    """Return the contents of a URL."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
