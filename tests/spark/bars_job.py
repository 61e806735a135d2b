"""The market-data pipeline of examples/, with faults at its commits, for test_marketdata_kill.py.

    python -m tests.spark.bars_job SERVERS FOLDER '{"1": ["staged"], "2": ["committed"]}'

It makes the file FOLDER/ready when it has read what is there, and ends when there is a file FOLDER/end.
"""

import json
import sys
import threading
from pathlib import Path

from chp_client.spark import session
from examples.marketdata import bars

from . import faulty


def main(servers: str, folder: str, faults: str) -> None:
    """Make bars until told to end."""
    wanted = {int(batch): points for batch, points in json.loads(faults).items()}
    faulty.in_this_process(faulty.Faults(folder, "bars", wanted))
    spark = session("bars", quick_start=True)
    query = bars.start(spark, servers.split(","), Path(folder))
    query.processAllAvailable()
    (Path(folder) / "ready").touch()
    while query.isActive and not (Path(folder) / "end").exists():
        threading.Event().wait(0.05)
    query.processAllAvailable()
    query.stop()
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
