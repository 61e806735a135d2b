"""The part of Spark in everything.py: it writes a data frame and reads it back until standard input ends.

python -m tests.process.everything_spark CLIENT_FILE
"""

from __future__ import annotations

import sys
import threading

from chp_client.spark import session

ROWS = 500


def main(client_file: str) -> None:
    """Write one version after the other, and check that all rows of each come back."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    spark = session("everything", quick_start=True, **{"spark.ui.showConsoleProgress": False})
    version, options = 0, {"clientFile": client_file, "subtree": "/spark/", "timeout": 180}
    while not ended.wait(1.0):
        version += 1
        rows = spark.range(ROWS).selectExpr("concat('/spark/', id) as key", f"'{version}' as value")
        try:
            rows.write.format("chp").mode("append").options(**options).save()
        except Exception as error:
            if "(full)" not in str(error):
                raise
            # The disk of the active is full. Nothing was written, and its peer serves next.
            continue
        try:
            found = spark.read.format("chp").schema("key string, value string").options(**options).load().collect()
        except Exception as error:
            if "load() it again" not in str(error) and "load() the data frame again" not in str(error):
                raise
            # The server that held the snapshot is gone. docs/spark.md says that such a read fails.
            continue
        assert {row.value for row in found} == {str(version)} and len(found) == ROWS, found[:3]
        print("wrote", version, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
