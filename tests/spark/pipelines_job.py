"""The page docs/spark-pipelines.md, run against a server: its pipeline moves a topic into keys.

python -m tests.spark.pipelines_job SERVERS FOLDER
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from chp_client import Clone
from chp_client.spark import find_java
from chp_client.spark.session import environment

PAGE = Path(__file__).parents[2] / "docs" / "spark-pipelines.md"
RUN_S = 500.0


def main(servers: str, folder: str) -> None:
    """Run the pipeline of the page, and check what it wrote."""
    text = PAGE.read_text(encoding="utf-8")
    there = Path(folder)
    for language, name, block in re.findall(r"^```(\w+) ([\w./-]+)\n(.*?)^```", text, re.S | re.M):
        if language in ("yaml", "python"):
            path = there / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                block.replace("tcp://127.0.0.1:5556,tcp://127.0.0.1:5566", servers).replace("/path/to", folder)
            )
    with Clone(servers) as clone:
        clone.topic("quotes").publish_many([b"1.08", b"160"], ["/rates/EUR/USD", "/rates/EUR/JPY"]).wait(60)
        env = os.environ | environment(find_java(), os.environ)
        argv = [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
        subprocess.run(argv, cwd=there, env=env, check=True, timeout=RUN_S)
        clone.wait_until_synced(60)
        assert dict(clone) == {"/rates/EUR/USD": b"1.08", "/rates/EUR/JPY": b"160"}, dict(clone)
    print("finished")


if __name__ == "__main__":
    main(*sys.argv[1:])
