"""What Spark calls: one writer for a batch write, one for a stream (mechanism Y5).

`write` runs in a Python worker of an executor, once for each partition and try; `commit` and `abort` in the driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from osenv import SystemRng
from pyspark_mq.errors import OptionError
from pyspark_mq.sink.options import BATCH_ID_MAX, SinkError, SinkOptions, WriterIdentity, sink_options
from pyspark_mq.sink.partition_sender import PartitionSender, check_columns

logger = logging.getLogger("pyspark_mq.sink")

# Local properties of Spark's streaming tasks (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY).
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
WRITE_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class PartitionWritten(WriterCommitMessage):
    """All rows of a partition are stored; `recognised` of them were already."""

    rows: int
    recognised: int


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> MqBatchWriter:
    """For `df.write.format("mq")`. Raises OptionError and SinkSchemaError."""
    if overwrite:
        raise OptionError('a topic cannot be overwritten; use mode("append")')
    own = sink_options(options, streaming=False)
    check_columns(schema, own.topic)
    write_id = own.write_id or SystemRng().randbytes(WRITE_ID_BYTES).hex()
    return MqBatchWriter(own, f"write {write_id}", returns=bool(own.write_id))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """For `df.writeStream.format("mq")`. Raises OptionError and SinkSchemaError."""
    if overwrite:
        raise OptionError('a topic cannot be overwritten: use outputMode("append") or outputMode("update")')
    own = sink_options(options, streaming=True)
    check_columns(schema, own.topic)
    return MqStreamWriter(own)


class MqBatchWriter(DataSourceArrowWriter):
    """One batch write: tries of a task that are repeated are recognised, and with a writeId the whole write."""

    def __init__(self, options: SinkOptions, name: str, *, returns: bool) -> None:
        self._options = options
        self._name, self._returns = name, returns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send(iterator, self._options, self.identity(_task().partitionId()))

    def identity(self, partition: int) -> WriterIdentity:
        """Of one partition."""
        return WriterIdentity(self._name, partition, self._options.batch_id, returns=self._returns)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell("the write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell_broken("the write", messages, "only a write with the same writeId recognises them")


class MqStreamWriter(DataSourceStreamArrowWriter):
    """A stream's writer: a batch that is replayed is recognised row by row."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SinkError(
                f"Spark has not said which query and batch this is (local properties {QUERY_ID}, {BATCH_ID})"
            )
        if int(batch) > BATCH_ID_MAX:
            raise SinkError(f"batch {batch}: a query has {BATCH_ID_MAX:,} batches at most; begin with a new checkpoint")
        return send(iterator, self._options, WriterIdentity(f"query {query}", task.partitionId(), int(batch)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _tell(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _tell_broken(f"batch {batchId}", messages, "its replay recognises them")


def send(batches: Iterator[pa.RecordBatch], options: SinkOptions, identity: WriterIdentity) -> PartitionWritten:
    """Send a partition; what is under way goes on while Spark makes the next Arrow batch. Raises SinkError."""
    with asyncio.Runner() as runner:
        sender = PartitionSender(options, identity)
        runner.run(sender.__aenter__())
        try:
            for batch in batches:
                runner.run(sender.take(batch))
            runner.run(sender.finish())
        finally:
            runner.run(sender.__aexit__())
    return PartitionWritten(sender.rows, sender.rows_recognised)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SinkError("the sink writes in Spark's tasks only")
    return task


def _tell(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [one for one in messages if isinstance(one, PartitionWritten)]
    recognised = sum(one.recognised for one in written)
    logger.info("%s: %d rows are stored; %d of them were before", what, sum(one.rows for one in written), recognised)


def _tell_broken(what: str, messages: Sequence[WriterCommitMessage | None], then: str) -> None:
    written = [one for one in messages if isinstance(one, PartitionWritten)]
    rows = sum(one.rows for one in written)
    logger.warning(
        "%s has failed; %d partitions with %d rows are stored, and of the others some rows may be; %s",
        what, len(written), rows, then,
    )  # fmt: skip
