"""Revisions as text. covers: chp_client.spark.revisions"""

from typing import Any

import pytest

from chp_client.spark import revision_text

pytestmark = pytest.mark.spark


def test_a_column_of_revisions_is_shown_as_epoch_and_sequence(spark: Any) -> None:
    revisions = [(1 << 48) + 88, (32767 << 48) + (1 << 48) - 1, 0, None]
    frame = spark.createDataFrame([(each,) for each in revisions], "revision bigint")
    rows = frame.select(revision_text("revision"), revision_text(frame.revision).alias("again")).collect()
    assert [row.revision_text for row in rows] == ["1.88", "32767.281474976710655", "0.0", None]
    assert [row.again for row in rows] == [row.revision_text for row in rows]
