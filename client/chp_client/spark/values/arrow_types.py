"""The Arrow types of a frame's columns, with times in UTC; types that only Spark can read are refused by name."""

import inspect
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from .fields import BadDataFrame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# PySpark 4.3 has a parameter for the time zone of all times. Earlier versions use UTC by default.
_IN_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
# These types reach Python as structs of bytes that only Spark can read.
_SPARKS_OWN = {
    "variant": "to_json(v), or variant_get(v, '$.name', 'double')",
    "geography": "st_asbinary(g)",
    "geometry": "st_asbinary(g)",
}


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """Return the Arrow types of columns, with times in UTC; raise `BadDataFrame` for a type that no codec takes."""
    for field in schema.fields:
        kind = _sparks_own(field.dataType)
        if kind:
            raise BadDataFrame(
                f"column {field.name!r} is or has {kind}, which only Spark can read: "
                f"write it as text or bytes, such as {_SPARKS_OWN[kind]}"
            )
        try:
            to_arrow_schema(type(schema)([field]), **_IN_UTC)
        except Exception as error:
            raise BadDataFrame(
                f"column {field.name!r} is {field.dataType.simpleString()}, which Arrow has no type for: "
                f"cast it to string or a number in the job ({error})"
            ) from None
    return to_arrow_schema(schema, **_IN_UTC)


def _sparks_own(kind: "DataType") -> str:
    """Return the name of a type inside `kind` that only Spark can read, or ""."""
    name = str(kind.typeName()).partition("(")[0]
    if name in _SPARKS_OWN:
        return name
    inner = [field.dataType for field in getattr(kind, "fields", ())]
    inner += [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    return next(filter(None, map(_sparks_own, inner)), "")
