"""The rows of one partition on their way to the brokers.

Invariants: of one queue one request is unanswered at a time, so that what is stored of a lane is its beginning; no more
than BYTES_UNSENT_MAX wait; after the first failure nothing more is sent, and the failure is raised.

Each request is compared with what is stored under its first number before the next one of its lane is sent: the unique
id of a row says what all rows up to the end of its request are, so one look at the first row tells whether all of them
are the same. That a request was new says nothing of the next one: another attempt of the task (a speculative one, or a
worker of a dead driver) may be sending other rows under the same numbers. Of two attempts that differ at most one ends
without an error, and what it has sent is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from mqclient import (
    ClientConfig,
    MessageQueue,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    NumberedMessage,
    NumberedProducer,
    OutcomeUnknownError,
    RetryableError,
)
from pyspark_mq.sink.lanes import Lanes, Request
from pyspark_mq.sink.options import (
    ReplayDiffersError,
    RowError,
    SinkAwayError,
    SinkOptions,
    SinkRefusedError,
    WriterIdentity,
)
from pyspark_mq.sink.rows import messages

BYTES_UNSENT_MAX = 16 * 1024 * 1024
REQUEST_TIMEOUT_S = 30.0


class PartitionSender:
    """An async context manager; `take` Arrow batches, then `finish`."""

    def __init__(self, options: SinkOptions, identity: WriterIdentity) -> None:
        self._options = options
        self._identity = identity
        self._lanes = Lanes(identity, by_key=options.by_key)
        config = ClientConfig(request_timeout_s=REQUEST_TIMEOUT_S)
        self._producer = NumberedProducer(options.url, identity.producer_id, client_config=config)
        self._queues: dict[str, Sequence[MessageQueue]] = {}  # by topic
        self._lines: dict[MessageQueue, asyncio.Queue[Request]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None
        self._unsent_bytes = 0
        self._progress = asyncio.Event()
        self.rows = 0
        self.rows_recognised = 0

    async def __aenter__(self) -> PartitionSender:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._producer.shutdown()

    async def take(self, batch: pa.RecordBatch) -> None:
        """Check the rows, then send them; returns when there is room for more. Raises SinkError."""
        self._check()
        checked = []
        for number, message in enumerate(messages(batch, self._options.topic, self.rows), self.rows):
            try:
                checked.append(self._producer.checked(message))
            except MessageRejectedError as error:
                raise RowError(f"row {number} of partition {self._identity.partition}: {error}") from error
        for topic in sorted({one.message.topic for one in checked}):
            if topic not in self._queues:
                self._queues[topic] = await self._write_queues(topic)
        self.rows += len(checked)
        for one in checked:
            request = self._lanes.add(one, self._queues[one.message.topic])
            if request is not None:
                await self._enqueue(request)

    async def finish(self) -> None:
        """Send the rest; returns when everything is stored. Raises SinkError."""
        for request in self._lanes.rest():
            await self._enqueue(request)
        await self.drain()

    async def drain(self) -> None:
        """Wait until every full request is stored. Raises SinkError."""
        while self._unsent_bytes:
            await self._wait()
        self._check()

    # ------------------------------------------------------------------------------------------------------ inside

    async def _enqueue(self, request: Request) -> None:
        while self._unsent_bytes > BYTES_UNSENT_MAX:
            await self._wait()
        self._check()
        self._unsent_bytes += _size(request.messages)
        queue = request.lane.queue
        if queue not in self._lines:
            self._lines[queue] = asyncio.Queue()
            self._workers.append(asyncio.create_task(self._send_all(queue), name=f"mq sink {queue}"))
        self._lines[queue].put_nowait(request)

    async def _wait(self) -> None:
        self._check()
        self._progress.clear()
        await self._progress.wait()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _send_all(self, queue: MessageQueue) -> None:
        line = self._lines[queue]
        try:
            while self._failure is None:
                request = await line.get()
                await self._send(request)
                self._unsent_bytes -= _size(request.messages)
                self._progress.set()
        except Exception as error:  # whatever it is, the rows have not been sent and the task has to hear of it
            self._failure = self._failure or error
            self._progress.set()

    async def _send(self, request: Request) -> None:
        queue = request.lane.queue
        where = f"partition {self._identity.partition} to {queue}"
        try:
            log_offset, born_ms = await self._producer.send(
                queue,
                request.messages,
                request.base_sequence,
                first_unanswered=self._identity.first_number,
                timeout=self._options.send_timeout_s,
            )
            if log_offset >= 0:
                await self._compare(request, log_offset, born_ms)
        except (RetryableError, OutcomeUnknownError) as error:
            raise SinkAwayError(f"{where}: not stored within {self._options.send_timeout_s:g} s: {error}") from error
        except MQClientError as error:
            raise SinkRefusedError(f"{where}: {error}") from error

    async def _compare(self, request: Request, log_offset: int, born_ms: int) -> None:
        """Is what stands under the first row's number this row? Raises ReplayDiffersError."""
        queue, first = request.lane.queue, request.messages[0]
        stored = await self._producer.stored_at(queue.broker_name, log_offset)
        if stored is None:
            return
        if stored.unique_id != first.unique_id:
            raise ReplayDiffersError(
                f"partition {self._identity.partition} of batch {self._identity.batch_id} of {self._identity.name} was "
                f"sent before with other rows: at log offset {log_offset} of {queue} stands {stored.unique_id}, now it "
                f"would be {first.unique_id}. Rows, their order and the partitions have to be the same when a batch is "
                f'replayed, and the topic needs the same queues; docs/spark.md, "Exactly once", tells what to do'
            )
        if stored.born_timestamp_ms != born_ms:
            self.rows_recognised += len(request.messages)

    async def _write_queues(self, topic: str) -> Sequence[MessageQueue]:
        try:
            queues = await self._producer.write_queues(topic)
        except NoRouteError as error:
            raise SinkAwayError(
                f"the topic {topic!r} cannot be written: {error}. The sink makes no topics; create it with "
                f"`mqadmin updateTopic`"
            ) from error
        if not queues:
            raise SinkRefusedError(f"the topic {topic!r} has no queue that may be written")
        return queues


def _size(rows: Sequence[NumberedMessage]) -> int:
    return sum(len(one.body) for one in rows)
