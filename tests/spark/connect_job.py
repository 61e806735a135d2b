"""A job through Spark Connect: batch, stream, live table and lookup, and the error of what needs a sparkContext.

python -m tests.spark.connect_job SERVERS FOLDER
"""

import os
import sys
from typing import Any

from chp_client.spark import find_java, foreach_batch, live, lookup
from chp_client.spark.session import environment

WAIT_S = 120


def main(servers: str, folder: str) -> None:
    """Run the job."""
    os.environ.update(environment(find_java(), os.environ))
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    options = {"servers": servers, "subtree": "/n/"}
    rows = spark.range(20).selectExpr("concat('/n/', id) key", "string(id) value")
    rows.write.format("chp").mode("append").options(**options).save()
    held = spark.read.format("chp").options(**options).load()
    assert held.count() == 20
    assert lookup(held.select("key"), "key", "/n/", "value string", servers=servers).where("value = '7'").count() == 1
    table = live(servers, "/n/", codec="text")

    def task(batches: Any) -> Any:
        for batch in batches:
            yield batch.assign(value=[table[f"/n/{i}"] for i in batch.id])

    found = spark.range(3).mapInPandas(task, "id long, value string").collect()
    assert sorted(row.value for row in found) == ["0", "1", "2"]

    changes = spark.readStream.format("chp").options(**options).load()
    copies = changes.selectExpr("replace(key, '/n/', '/m/') key", "value").writeStream.format("chp")
    copies = copies.options(servers=servers, checkpointLocation=f"{folder}/copies").trigger(availableNow=True)
    copies.start().awaitTermination(WAIT_S)
    assert spark.read.format("chp").options(servers=servers, subtree="/m/").load().count() == 20

    def run(name: str, **more: Any) -> Any:
        sink = foreach_batch(servers=servers, **more)
        writer = changes.selectExpr(f"replace(key, '/n/', '/{name}/') key", "value").writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start()
        try:
            query.awaitTermination(WAIT_S)
        except Exception as error:
            return str(error)
        return str(query.exception() or "")

    assert "has no sparkContext" in run("o"), "it says what to do"
    assert run("p", applicationId="connect") == ""
    assert spark.read.format("chp").options(servers=servers, subtree="/p/").load().count() == 20
    spark.stop()
    print("finished")


if __name__ == "__main__":
    main(*sys.argv[1:])
