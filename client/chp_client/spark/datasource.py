"""format("chp"): the store as a table and as a stream, for `spark.read`, `readStream`, `df.write` and `writeStream`.

    register(spark)                                     once a session, if Spark does not find the format by itself
    df.write.format("chp").mode("append").options(servers=..., subtree="/rates/").save()
    spark.read.format("chp").options(servers=...).load()

Where the package is installed, Spark finds the format by itself: Spark looks for a module `pyspark_chp`, which comes
with the package. The options are a table in options.py, and are checked before anything runs. Executors need the
package too, because Spark sends them only the names of its classes.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from .options import BadOption, check_direction, check_topic_options, of_one_pair, parse, reads_changes
from .reading.changes import ChangesReader
from .reading.messages import MessagesReader, MessagesStream
from .reading.snapshot import BatchReader, NarrowedReader
from .reading.stream import StreamReader
from .spark_api import FILTERS, left_out
from .values import messages
from .values.arrow_types import arrow_schema
from .values.columns import SCHEMA
from .values.rows import Shape
from .worker import errors_first, settle
from .write import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@errors_first
class ChpDataSource(DataSource):
    """The data source behind format("chp"). Spark makes one for each read or write."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "chp"

    def schema(self) -> str:
        """Return the columns of a read for which the user gives no schema."""
        return SCHEMA if parse(self.options, several=True)["topic"] is None else messages.SCHEMA

    def reader(self, schema: "StructType") -> BatchReader | ChangesReader | MessagesReader:
        """Return the reader for spark.read."""
        options = parse(self.options, several=True)
        if options["topic"] is not None:
            check_topic_options(options, reads=True)
        changes = options["topic"] is None and reads_changes(options)
        check_direction(self.options, "read")
        if options["topic"] is not None:
            return MessagesReader(options, schema)
        if changes:
            return ChangesReader(of_one_pair(options), schema)
        if options["pushDownPredicate"] and not FILTERS:
            left_out("pushDownPredicate", "4.1", "Spark filters after the read, as it does without the option")
        return (NarrowedReader if options["pushDownPredicate"] and FILTERS else BatchReader)(options, schema)

    def streamReader(self, schema: "StructType") -> StreamReader | MessagesStream:
        """Return the reader for spark.readStream."""
        options = parse(self.options)
        if options["topic"] is not None:
            check_topic_options(options, stream=True)
        else:
            reads_changes(options, stream=True)
        check_direction(self.options, "stream")
        return (StreamReader if options["topic"] is None else MessagesStream)(options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> BatchWriter:
        """Return the writer for df.write."""
        settle()
        options, shape = self._for_writing(schema, overwrite)
        check_direction(self.options, "write")
        return BatchWriter(options, shape, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> StreamWriter:
        """Return the writer for stream.writeStream."""
        settle()
        options, shape = self._for_writing(schema, overwrite)
        check_direction(self.options, "sink")
        if options["version"] is not None:
            raise BadOption("option version is the batch id here; leave it out")
        return StreamWriter(options, shape, overwrite)

    def _for_writing(self, schema: "StructType", overwrite: bool) -> tuple[dict[str, Any], Shape]:
        options = parse(self.options, several=not overwrite)
        if overwrite and options["topic"]:
            raise BadOption("messages are added to a topic: use mode append (output mode append)")
        if overwrite and not options["confirm.overwrite"]:
            what = (
                f"every key in {options['subtree']!r}"
                if options["subtree"]
                else "every key in the store (no subtree is given)"
            )
            raise BadOption(
                f"overwrite deletes {what} that is not written again; say confirm.overwrite=true, or use mode append"
            )
        return options, _checked(messages.shape_of(options, schema.fieldNames()), schema)


def _checked(shape: Shape, schema: "StructType") -> Shape:
    """Return the shape. Raise `BadDataFrame` before the job runs if a column has a type that can't be written."""
    import pyarrow as pa

    used = {name for name, _ in shape.roles()}
    columns = type(schema)([field for field in schema.fields if field.name in used])
    shape.check(pa.Table.from_batches([], schema=arrow_schema(columns)))
    return shape


def register(spark: "SparkSession") -> None:
    """Make format("chp") known to a session."""
    spark.dataSource.register(ChpDataSource)
