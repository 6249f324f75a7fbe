"""The data source `mq`, with a clock around its reader: `format("mq-metered")`.

Invariant: the reader's time is what passes between a request for its next batch and the batch; what Spark does with the
batch is outside of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from analytics.benchmarks.adapters import reader_log
from analytics.benchmarks.adapters.reader_log import ReaderTime
from pyspark_mq import DefaultSource

LOG_OPTION = "meterLog"


class MeteredSource(DataSource):
    """Takes the options of `mq`, and `meterLog`: the file to which each partition adds its line."""

    @classmethod
    def name(cls) -> str:
        return "mq-metered"

    def schema(self) -> StructType:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError."""
        return MeteredReader(self._source().reader(schema), self.options[LOG_OPTION])

    def _source(self) -> DefaultSource:
        own = LOG_OPTION.lower()
        return DefaultSource(CaseInsensitiveDict({key: value for key, value in self.options.items() if key != own}))


class MeteredReader(DataSourceReader):
    """The reader within, metered."""

    def __init__(self, within: DataSourceReader, log_path: str) -> None:
        self._within = within
        self._log_path = log_path

    def partitions(self) -> list[InputPartition]:
        return list(self._within.partitions())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        time = ReaderTime()
        batches = iter(self._within.read(partition))
        while True:
            with time.inside():
                batch = next(batches, None)
            if batch is None:
                break
            time.batches += 1
            time.rows += batch.num_rows
            yield batch
        reader_log.append(self._log_path, time)
