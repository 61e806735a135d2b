"""Revisions in data frames: the column is a bigint, which sorts and compares; people read `epoch.sequence`.

frame.select("key", revision_text("revision"))        # 1.88, and not 281474976710744
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from chp.numbers import EPOCH_SHIFT, SEQUENCE_MASK

if TYPE_CHECKING:
    from pyspark.sql import Column


def revision_text(column: "Column | str") -> "Column":
    """Return a column with the text of revisions, such as 1.88; null for null. `column` is a column or its name."""
    number = f.col(column) if isinstance(column, str) else column
    epoch, sequence = f.shiftright(number, EPOCH_SHIFT), number.bitwiseAND(f.lit(SEQUENCE_MASK))
    return f.concat(epoch.cast("string"), f.lit("."), sequence.cast("string")).alias("revision_text")
