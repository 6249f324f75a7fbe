"""One streaming job as a program of its own, to be killed: `spark_job.py bronze|copy SETTINGS`, SETTINGS as JSON.

It reads what is there (AvailableNow) and ends with code 0. `bronze` is the shop's streaming job, from the queue to
files; `copy` goes from the topic `source` to the topic `target`. With `hang_at` the copy stops for ever when that batch
is stored and Spark has not noted it in its checkpoint; with `hang_reading` the first Python worker that has read some
rows of its partition, and not all, does. The file `hangs` says so.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from analytics.session import SessionOptions, open_session
from analytics.stream import Queue, start_bronze
from analytics.warehouse import Warehouse
from pyspark_mq.data_source import MqDataSource
from pyspark_mq.options import read_options
from pyspark_mq.pushdown import wanted_by_options
from pyspark_mq.sink.options import sink_options
from pyspark_mq.sink.writer import MqStreamWriter
from pyspark_mq.stream_reader import StreamReader

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def bronze(spark: SparkSession, settings: dict[str, Any]) -> None:
    if settings.get("hang_reading"):
        spark.dataSource.register(hanging_reader(f"{settings['folder']}/hangs"))
    queue = Queue(namesrv_addr=settings["servers"], offsets_per_batch=settings["offsets_per_batch"])
    start_bronze(spark, Warehouse(settings["folder"]), queue).awaitTermination()


def copy(spark: SparkSession, settings: dict[str, Any]) -> None:
    if settings.get("hang_at") is not None:
        spark.dataSource.register(hanging(settings["hang_at"], f"{settings['folder']}/hangs"))
    messages = (
        spark.readStream.format("mq")
        .option("namesrvAddr", settings["servers"])
        .option("subscribe", settings["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings["offsets_per_batch"])
        .load()
    )
    writer = messages.select("key", "tag", "body").writeStream.format("mq").option("namesrvAddr", settings["servers"])
    writer = writer.option("topic", settings["target"]).option("checkpointLocation", f"{settings['folder']}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def hanging(batch_id: int, file: str) -> type[MqDataSource]:
    """The data source, of which the sink does not come back from the commit of this batch."""

    class Writer(MqStreamWriter):
        def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId == batch_id:
                Path(file).touch()
                threading.Event().wait()

    class Hanging(MqDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return Writer(sink_options(self.options, streaming=True))

    return Hanging


def hanging_reader(file: str) -> type[MqDataSource]:
    """The data source, of which one reader does not come back after its first rows. Tried again, it does."""

    class Reader(StreamReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            for batch in super().read(partition):
                yield batch
                if not Path(file).exists():
                    Path(file).touch()
                    threading.Event().wait()

    class Hanging(MqDataSource):
        def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
            options = read_options(self.options, streaming=True)
            return Reader(options, schema, wanted_by_options(options))

    return Hanging


def main(kind: str, settings: dict[str, Any]) -> None:
    # Four tries of a task, as on a cluster: on one machine it would be one.
    options = SessionOptions(
        master="local[2,4]",
        memory="1g",
        settings={"spark.driver.extraJavaOptions": JAVA_OPTIONS, "spark.sql.shuffle.partitions": "2"},
    )
    spark = open_session(f"{kind} to be killed", options)
    try:
        {"bronze": bronze, "copy": copy}[kind](spark, settings)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
