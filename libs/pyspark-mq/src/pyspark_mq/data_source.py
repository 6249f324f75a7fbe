"""`format("mq")`: the entry point for Spark.

It asks in several processes, one of them for the schema alone, so the client and all that decodes is imported by the
methods that need it: importing it takes longer than the answer.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_mq.schema import check_schema, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN_SETTING = "spark.sql.python.filterPushdown.enabled"


class MqDataSource(DataSource):
    """Batch and streaming, reading and writing.

    Filters of a query are pushed down only where the option filterPushdown asks for it at a load(). Spark 4.3 keeps the
    reader that a query's filters have narrowed with the table of that load(), and gives it to the next query over the
    same DataFrame, whatever that filters: a union of two where() would read one of them twice. With the option, use
    each load() for one query only. The options tags and sql belong to the load() itself, and have no such trap.
    """

    @classmethod
    def name(cls) -> str:
        return "mq"

    def schema(self) -> StructType:
        """All columns, or all but `properties`; a schema that the user names can leave out more."""
        value = str(self.options.get("includeProperties", "true")).strip().lower()
        return schema_of(include_properties=value != "false")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError."""
        from pyspark_mq.batch_reader import BatchReader, PushdownBatchReader  # noqa: PLC0415 - see above
        from pyspark_mq.options import read_options  # noqa: PLC0415
        from pyspark_mq.pushdown import wanted_by_options  # noqa: PLC0415

        options = read_options(self.options, streaming=False)
        kind = PushdownBatchReader if options.filter_pushdown else BatchReader
        return kind(options, check_schema(schema), wanted_by_options(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Raises OptionError."""
        from pyspark_mq.options import read_options  # noqa: PLC0415 - see above
        from pyspark_mq.pushdown import wanted_by_options  # noqa: PLC0415
        from pyspark_mq.stream_reader import StreamReader  # noqa: PLC0415

        options = read_options(self.options, streaming=True)
        return StreamReader(options, check_schema(schema), wanted_by_options(options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Raises OptionError."""
        from pyspark_mq import sink  # noqa: PLC0415

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Raises OptionError."""
        from pyspark_mq import sink  # noqa: PLC0415

        return sink.stream_writer(self.options, schema, overwrite)


class DefaultSource(MqDataSource):
    """The name by which Spark finds the format in installed packages, without registering."""


def register(spark: SparkSession) -> None:
    """Make `format("mq")` known to this session, and allow the option filterPushdown, which Spark forbids by itself.

    Warns when Spark's Python workers on this machine run another Python than this process, which has this package.
    """
    _warn_of_other_python(spark)
    spark.dataSource.register(MqDataSource)
    spark.conf.set(PUSHDOWN_SETTING, "true")


def _warn_of_other_python(spark: SparkSession) -> None:
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none: its workers are the server's
    if context is None or not str(context.master).startswith("local"):
        return
    found = shutil.which(context.pythonExec)
    if found is None or os.path.realpath(os.path.dirname(found)) != os.path.realpath(os.path.dirname(sys.executable)):  # noqa: PTH120
        warnings.warn(
            f"Spark's workers run {context.pythonExec!r} ({found or 'not found on the PATH'}), and this process runs"
            f' {sys.executable}: unless that Python has pyspark_mq too, queries end with "No module named'
            f" 'pyspark_mq'\". Set PYSPARK_PYTHON={sys.executable} before the session is made.",
            stacklevel=3,
        )
