"""The blocks of docs/spark-state.md, run one after the other: a Clone has a stream's state, also over a restart."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chp_client import Clone
from chp_server.testing import TestServer
from tests.talk import until

pytestmark = [pytest.mark.spark, pytest.mark.long]
PAGE = (Path(__file__).parents[2] / "docs" / "spark-state.md").read_text(encoding="utf-8")


def test_the_blocks_of_the_spark_state_page_run(spark: Any, server: TestServer, clone: Clone, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    program = "\n".join(blocks).replace("tcp://127.0.0.1:5556,tcp://127.0.0.1:5566", server.address)
    program = program.replace("checkpoints/", f"{tmp_path}/")
    topic = clone.topic("orders")

    def order(customer: str, *amounts: float) -> None:
        values = [json.dumps({"customer": customer, "amount": amount}).encode() for amount in amounts]
        topic.publish_many(values).wait(60)

    order("alice", 1.0, 2.5)
    order("bob", 4.0)
    exec(compile(program, "spark-state.md", "exec"), {"__name__": "__main__"})
    until(lambda: dict(clone) == {"/totals/alice": b"3.5", "/totals/bob": b"4.0"})
    order("alice", 10.0)
    exec(compile(program, "spark-state.md", "exec"), {"__name__": "__main__"})
    until(lambda: dict(clone) == {"/totals/alice": b"13.5", "/totals/bob": b"4.0"})
