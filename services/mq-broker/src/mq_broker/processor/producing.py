"""Messages in: batches are checked, given their place, and acknowledged when the flush policy says so (MISSION S10).

Invariants: each batch of a request gets exactly one outcome; SUCCESS means stored whole, any other code means that
nothing of the batch was stored, but for SERVICE_NOT_AVAILABLE, after which only the next start of the broker can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mq_broker.core.batches import Batch, BatchError, check_batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delay_levels import DelayLevels
from mq_broker.core.halves import HalfError, half_batch
from mq_broker.core.rewrite import schedule_batch
from mq_broker.core.topics import TopicTable
from mq_broker.processor.transactions import Transactions
from mq_broker.store.errors import StoreError, StoreFencedError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.names import SYSTEM_TOPICS, IllegalNameError
from mqproto.properties import PropertiesError
from mqproto.record import RecordError


@dataclass(frozen=True, slots=True)
class IncomingBatch:
    """A batch as a client sent it: records end to end, unchecked."""

    topic: str
    queue_id: int
    count: int
    records: bytes


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of one batch. Offsets are those of its first record; of delayed ones, in the schedule topic."""

    code: ResponseCode
    remark: str = ""
    base_queue_offset: int = 0
    base_log_offset: int = 0


@dataclass
class Producing:
    """The processor of produce and send requests."""

    store: MessageStore
    topics: TopicTable
    levels: DelayLevels
    transactions: Transactions
    time: BrokerTime
    body_size_max: int

    def put(self, incoming: Sequence[IncomingBatch]) -> list[BatchOutcome]:
        """Store what can be stored; acknowledge only after `acknowledge`."""
        store_ms = self.time.stamp_ms()
        checked = [self._check(batch, store_ms) for batch in incoming]
        batches = [batch for batch in checked if isinstance(batch, Batch)]
        if sum(len(batch.buffer) for batch in batches) <= self.store.run_bytes_max:
            stored = iter(self._store(batches, store_ms))
        else:
            stored = iter([outcome for batch in batches for outcome in self._store([batch], store_ms)])
        return [next(stored) if isinstance(batch, Batch) else batch for batch in checked]

    async def acknowledge(self, outcomes: list[BatchOutcome], log_end: int) -> list[BatchOutcome]:
        """The outcomes once everything below `log_end` may be acknowledged."""
        try:
            await self.store.wait_stored(log_end)
        except StoreFencedError as error:
            return [
                replace(outcome, code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error))
                if outcome.code is ResponseCode.SUCCESS
                else outcome
                for outcome in outcomes
            ]
        return outcomes

    def forward(self, batches: list[Batch], store_ms: int) -> None:
        """Store batches of the broker's own making, with their topics if need be. Raises StoreWriteError."""
        for batch in batches:
            self.topics.recovered(batch.topic, batch.queue_id)
        delayed = [schedule_batch(b, self.levels, store_ms) if b.delay_level else b for b in batches]
        self.store.put_in_runs(delayed, store_ms)

    def _check(self, incoming: IncomingBatch, store_ms: int) -> Batch | BatchOutcome:
        """The batch as it goes into the log, or why it does not."""
        topic, queue_id = incoming.topic, incoming.queue_id
        try:
            config = self.topics.get_or_create(topic)
        except IllegalNameError as error:
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if topic in SYSTEM_TOPICS:
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, f"the topic {topic!r} belongs to the queue itself")
        if config is None:
            remark = f"topic {topic!r} does not exist and autoCreateTopicEnable is false"
            return BatchOutcome(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not config.writable:
            return BatchOutcome(ResponseCode.NO_PERMISSION, f"topic {topic!r} may not be written (perm {config.perm})")
        if not 0 <= queue_id < config.write_queue_count:
            remark = f"topic {topic!r} has no write queue {queue_id}; it has 0 to {config.write_queue_count - 1}"
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, remark)
        try:
            batch = check_batch(topic, queue_id, incoming.count, incoming.records, self.body_size_max)
            if batch.prepared:
                batch = half_batch(batch, store_ms)
            elif batch.delay_level:
                batch = schedule_batch(batch, self.levels, store_ms)
        except (BatchError, HalfError, PropertiesError, RecordError) as error:
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if len(batch.buffer) > self.store.run_bytes_max:
            remark = f"the batch takes {len(batch.buffer)} bytes; a commit-log file takes {self.store.run_bytes_max}"
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, remark)
        return batch

    def _store(self, batches: list[Batch], store_ms: int) -> list[BatchOutcome]:
        if not batches:
            return []
        try:
            results = self.store.put(batches, store_ms)
        except StoreFencedError as error:
            return [BatchOutcome(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))] * len(batches)
        except StoreError as error:
            return [BatchOutcome(ResponseCode.SYSTEM_ERROR, str(error))] * len(batches)
        for batch in batches:
            if batch.prepared:
                self.transactions.prepared(batch)
        return [BatchOutcome(ResponseCode.SUCCESS, "", r.base_queue_offset, r.base_log_offset) for r in results]
