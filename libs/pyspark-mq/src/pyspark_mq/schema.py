"""The columns of a message (mechanism Y3), in Spark's types and in Arrow's.

Invariant: (topic, broker, queueId, queueOffset) names a message; no two rows that were ever stored share it. `topic` is
the topic of the queue that was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_mq.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType(
    [
        StructField("key", StringType()),  # the property KEYS as it is; null without
        StructField("keys", ArrayType(StringType())),  # the same taken apart at spaces; empty without
        StructField("tag", StringType()),
        StructField("body", BinaryType()),  # as its producer gave it, also when it travels compressed
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("bornTimestamp", TimestampType()),  # by the producer's clock
        StructField("storeTimestamp", TimestampType()),  # by the broker's clock; never goes back within a queue
        StructField("msgId", StringType()),  # the producer's unique id; the id by position without one
        StructField("properties", MapType(StringType(), StringType())),
    ]
)
PROPERTIES_COLUMN = "properties"


def schema_of(*, include_properties: bool) -> StructType:
    """What a read gives when its user names no schema."""
    return StructType([field for field in SCHEMA if include_properties or field.name != PROPERTIES_COLUMN])


def check_schema(schema: StructType) -> StructType:
    """The schema, if it is a choice of columns of SCHEMA in any order; what is left out is not decoded.

    Raises OptionError with what is allowed.
    """
    allowed = {field.name: field.dataType for field in SCHEMA}
    names = schema.fieldNames()
    for field in schema:
        if field.name not in allowed:
            raise OptionError(f"the schema has a column {field.name!r}; allowed are {', '.join(allowed)}")
        if field.dataType.simpleString() != allowed[field.name].simpleString():
            wanted = allowed[field.name].simpleString()
            raise OptionError(f"the column {field.name!r} is {field.dataType.simpleString()}; it has to be {wanted}")
    if len(set(names)) != len(names) or not names:
        raise OptionError(f"the schema has the columns {', '.join(names) or 'none'}; each can be named once")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark compares a source's batches with."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - only reading needs Arrow

    return to_arrow_schema(schema, timezone="UTC")
