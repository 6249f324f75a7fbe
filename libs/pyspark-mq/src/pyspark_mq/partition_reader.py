"""Reading one range of offsets: pull, decode, and the next pull is under way meanwhile.

Invariants: every offset of the range is accounted for: it is in a batch, or the broker's filter has passed over it, or
it is lost, and that is an error or, if failOnDataLoss is false, a warning that names it; nothing outside the range is
given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mqclient import MessageQueue, MQClientError, OutcomeUnknownError, PulledFrame, PullStatus, RetryableError
from mqproto.record import RecordError, SealedRecord, iter_sealed_records
from osenv import RealClock
from pyspark_mq.clients import Client, ClientKey, client_of
from pyspark_mq.columns import Columns
from pyspark_mq.errors import BrokerAwayError, DataLossError, ReadRejectedError
from pyspark_mq.offsets import OffsetRange
from pyspark_mq.pushdown import Wanted

logger = logging.getLogger("pyspark_mq.reading")

RETRY_PAUSE_S = 0.2  # between two pulls of which the first could not be served
LOSS_ADVICE = "set failOnDataLoss=false to read what is left"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How the ranges of a read are read."""

    key: ClientKey
    schema: StructType
    wanted: Wanted
    fail_on_data_loss: bool
    pull_batch_size: int
    pull_timeout_s: float


@dataclass(frozen=True, slots=True)
class _Pulled:
    """What one pull has brought. What lies before `following` is in `records`, not wanted, or lost, as `loss` says."""

    records: list[SealedRecord]
    following: int
    loss: str


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A pull that has brought nothing, and why. With `is_end` the queue ends before the offset that was asked for."""

    why: str
    error: Exception | None = None
    is_end: bool = False


class RangePartition(InputPartition):
    """One of Spark's input partitions: one part of one queue."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__(str(part))
        self.range = part


def read_range(part: OffsetRange, plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Its rows. Raises DataLossError, UnreadableMessageError, BrokerAwayError, ReadRejectedError."""
    with client_of(plan.key) as client:
        yield from RangeReader(part, plan, client).batches()


class RangeReader:
    """Of one range, once."""

    def __init__(self, part: OffsetRange, plan: ReadPlan, client: Client) -> None:
        self._queue, self._start, self._end = part.queue, part.start, part.end
        self._plan = plan
        self._client = client
        self._clock = RealClock()
        self._given_up = threading.Event()
        self._columns = Columns(
            plan.schema, part.queue, tags=plan.wanted.tags, keys=plan.wanted.keys, strict=plan.fail_on_data_loss
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """One for each pull that has found something."""
        at = self._start
        pulling = self._ahead(at)
        try:
            while pulling is not None:
                pulled = pulling.result()
                pulling = self._ahead(pulled.following)
                self._check_complete(at, pulled)
                if pulled.records:
                    yield self._columns.batch(pulled.records)
                at = pulled.following
        finally:
            self._given_up.set()

    def _ahead(self, offset: int) -> Future[_Pulled] | None:
        return self._client.ahead.submit(self._pull, offset) if offset < self._end else None

    def _pull(self, offset: int) -> _Pulled:
        """What stands at `offset` and behind it. Raises as `read_range`."""
        give_up_at = self._clock.monotonic() + self._plan.pull_timeout_s
        while True:
            try:
                pulled = self._take(offset, self._pull_frame(offset))
            except (RetryableError, OutcomeUnknownError, RecordError) as error:
                pulled = _Nothing(str(error), error)
            except MQClientError as error:
                raise ReadRejectedError(f"{self._queue} cannot be read at offset {offset}: {error}") from error
            if isinstance(pulled, _Pulled):
                return pulled
            if self._clock.monotonic() >= give_up_at or self._given_up.wait(RETRY_PAUSE_S):
                timeout = f"{self._plan.pull_timeout_s:g} s"
                if pulled.is_end:
                    pulled = self._asked_of_master(offset)
                if pulled.is_end:
                    return _Pulled([], self._end, f"{pulled.why} since {timeout}")
                raise BrokerAwayError(
                    f"{self._queue} could not be read at offset {offset} for {timeout}: {pulled.why}"
                ) from pulled.error

    def _asked_of_master(self, offset: int) -> _Nothing:
        """Why nothing was given at `offset`, with `is_end` only if the master says that its queue ends there.

        What was pulled from may be a replica, which is not believed about what it does not have.
        """
        try:
            _, end = self._client.admin.queue_offsets(self._queue)
        except MQClientError as error:
            return _Nothing(f"only a replica has answered, which does not have it, and no master: {error}", error)
        return _nothing_there(offset, end)

    def _pull_frame(self, offset: int) -> PulledFrame:
        wanted, most = self._plan.wanted, self._plan.pull_batch_size
        if wanted.gets_everything:
            most = min(most, self._end - offset)
        return self._client.consumer.pull_frame(self._queue, offset, expression=wanted.selector, max_messages=most)

    def _take(self, offset: int, frame: PulledFrame) -> _Pulled | _Nothing:
        """What an answer holds. Raises RecordError."""
        following = min(frame.next_begin_offset, self._end)
        if frame.status is PullStatus.OFFSET_ILLEGAL:
            if following > offset:
                return _Pulled([], following, f"the queue begins at offset {frame.min_offset} now")
            return _Pulled([], self._end, f"the queue ends at offset {frame.max_offset}")
        if following <= offset:
            return _nothing_there(offset, frame.max_offset)
        records = [record for record in iter_sealed_records(frame.records) if record.queue_offset < self._end]
        return _Pulled(records, following, "")

    def _check_complete(self, at: int, pulled: _Pulled) -> None:
        """Raise for what is lost between `at` and where the next pull goes on, or warn of it."""
        if pulled.loss:
            self._lost(at, pulled.following, pulled.loss)
            return
        offsets = [record.queue_offset for record in pulled.records]
        if self._plan.wanted.gets_everything and offsets == list(range(at, pulled.following)):
            return
        if offsets != sorted(set(offsets)) or (offsets and not at <= offsets[0] <= offsets[-1] < pulled.following):
            raise ReadRejectedError(f"the broker of {self._queue} has answered a pull at {at} with offsets {offsets}")
        if self._plan.wanted.gets_everything:
            for start, end in gaps(offsets, at, pulled.following):
                self._lost(start, end, "the broker has left them out as damaged")

    def _lost(self, start: int, end: int, why: str) -> None:
        sentence = lost_range(self._queue, start, end, why)
        if self._plan.fail_on_data_loss:
            raise DataLossError(f"{sentence}; {LOSS_ADVICE}")
        logger.warning("%s; they are passed over, because failOnDataLoss is false", sentence)


def _nothing_there(offset: int, end: int) -> _Nothing:
    """Why a queue that ends at `end` has not given what stands at `offset`."""
    if offset < end:
        newest = end - 1
        return _Nothing(f"the queue has messages up to {newest}, and its broker keeps this one back as not confirmed")
    return _Nothing(f"the queue ends at offset {end}", is_end=True)


def lost_range(queue: MessageQueue, start: int, end: int, why: str) -> str:
    """The sentence about offsets from `start` to before `end`."""
    return (
        f"the offsets {start} to {end - 1} of topic {queue.topic!r}, broker {queue.broker_name!r}, "
        f"queue {queue.queue_id}, are lost: {why}"
    )


def gaps(offsets: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """What lies between `start` and `end` and is none of the ascending offsets."""
    at = start
    for offset in [*offsets, end]:
        if offset > at:
            yield at, offset
        at = offset + 1
