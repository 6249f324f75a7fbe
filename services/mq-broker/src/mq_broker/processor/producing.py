"""Produce requests: batches are checked, stored, and acknowledged by the flush policy.

Mechanism S11.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mq_broker.core.batches import Batch, BatchError, Traffic, check_batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.delays import DelayLevels
from mq_broker.core.halves import HalfError, half_batch
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, traced
from mq_broker.core.limits import RejectedError, TooManyError
from mq_broker.core.producer_sequences import BatchSequence, ProducerSequences, SequenceError
from mq_broker.core.producer_table import ProducersFullError, Stretch
from mq_broker.core.rewrite import Failure, arriving_batch, retry_batch, schedule_batch
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.topic_administration import NOT_MASTER, code_of, require_master
from mq_broker.processor.transactions import Transactions
from mq_broker.store.durability import Copies
from mq_broker.store.errors import StoreError, StoreFencedError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode
from mqproto.names import SYSTEM_TOPICS, WAITING_TOPICS, IllegalNameError, retry_topic
from mqproto.properties import PropertiesError
from mqproto.record import Record, RecordError

log = logging.getLogger(__name__)

# Stored, and what a synchronous master says of its replicas.
_FEWER_COPIES = {
    Copies.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, "no replica is in sync: the master alone has it"),
    Copies.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, "not all in-sync replicas have it in time"),
}


@dataclass(slots=True)
class IncomingBatch:
    """A batch as a client sent it: records end to end, unchecked.

    Like its outcome it never changes; a frozen one takes more than three times as long to make.
    """

    topic: str
    queue_id: int
    count: int
    records: bytes
    batch_sequence: BatchSequence | None = None


@dataclass(frozen=True, slots=True)
class StoredStretch:
    """Records that follow each other in a queue and in the log; -1 for a place in the log that is gone."""

    count: int
    base_queue_offset: int
    base_log_offset: int


@dataclass(slots=True)
class BatchOutcome:
    """The outcome of one batch. Offsets are those of its first record; of delayed ones, in the schedule topic.

    `stretches` is empty unless the batch stands in several pieces. `waits` is False when all of its records have said
    that they need not wait for the disk (WAIT=false).
    """

    code: ResponseCode
    remark: str = ""
    base_queue_offset: int = 0
    base_log_offset: int = 0
    stretches: tuple[StoredStretch, ...] = ()
    waits: bool = True


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A batch of which an earlier try has stored something: what is there, and what has to be stored still."""

    known: list[Stretch]
    missing: list[tuple[BatchSequence, Batch]]


@dataclass
class Producing:
    """The processor of produce and send requests.

    Invariants: each batch of a request gets exactly one outcome; SUCCESS means stored whole, SLAVE_NOT_AVAILABLE and
    FLUSH_SLAVE_TIMEOUT the same, with fewer copies than asked for; any other code means that nothing of the batch was
    stored, but for SERVICE_NOT_AVAILABLE, after which only the next start of the broker can tell.
    What an earlier try of a numbered batch has stored is answered with the place that it has, and not stored again.
    """

    store: MessageStore
    topics: TopicTable
    levels: DelayLevels
    transactions: Transactions
    time: BrokerTime
    body_size_max: int
    sequences: ProducerSequences
    received: Traffic[str] = field(default_factory=Traffic)  # by the topic that producers have sent to

    def put(self, incoming: Sequence[IncomingBatch], client: str = "") -> list[BatchOutcome]:
        """Store what can be stored, with new topics on account of `client`; acknowledge only after `acknowledge`."""
        if self.store.follows:
            return [BatchOutcome(ResponseCode.NOT_LEADER_FOR_QUEUE, NOT_MASTER)] * len(incoming)
        store_ms = self.time.stamp_ms()
        checked = [self._check(batch, store_ms, client) for batch in incoming]
        batches = [batch for batch in checked if isinstance(batch, Batch)]
        if sum([len(batch.buffer) for batch in batches]) <= self.store.run_bytes_max:
            stored = iter(self._store(batches, store_ms))
        else:
            stored = iter([outcome for batch in batches for outcome in self._store([batch], store_ms)])
        outcomes = []
        for one, batch in zip(incoming, checked, strict=True):
            if isinstance(batch, _Repeat):
                outcomes.append(self._complete(one, batch, store_ms))
            elif isinstance(batch, Batch):
                outcomes.append(outcome := next(stored))
                if outcome.code is ResponseCode.SUCCESS:
                    self.received.add(one.topic, batch.count, len(one.records))
                    if one.batch_sequence is not None:
                        self._remember(one, one.batch_sequence, batch, outcome.base_queue_offset, store_ms)
            else:
                outcomes.append(batch)
        return outcomes

    async def acknowledge(self, outcomes: list[BatchOutcome], log_end: int) -> list[BatchOutcome]:
        """The outcomes once everything below `log_end` may be acknowledged."""
        if not any(outcome.waits for outcome in outcomes):
            return outcomes
        try:
            copies = await self.store.wait_stored(log_end)
        except StoreFencedError as error:
            return _instead_of_success(outcomes, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        if copies is Copies.SEND_OK:
            return outcomes
        return _instead_of_success(outcomes, *_FEWER_COPIES[copies])

    def forward(self, batches: list[Batch], store_ms: int) -> None:
        """Store batches of the broker's own making, with their topics if need be. Raises StoreWriteError."""
        arriving = [arriving_batch(batch, self.topics) for batch in batches]
        placed = [
            schedule_batch(batch, self.levels, store_ms, self.time.ahead_of_wall_ms) if batch.delayed else batch
            for batch in arriving
        ]
        self.store.put_in_runs(placed, store_ms)

    def _check(self, incoming: IncomingBatch, store_ms: int, client: str) -> Batch | _Repeat | BatchOutcome:
        """The batch as it goes into the log, or why it does not. Its topic is made last: for nothing but this batch."""
        topic, queue_id = incoming.topic, incoming.queue_id
        try:
            config = self.topics.get_or_offer(topic)
        except IllegalNameError as error:
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if topic in SYSTEM_TOPICS:
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, f"the topic {topic!r} belongs to the queue itself")
        if config is None:
            remark = f"topic {topic!r} does not exist and autoCreateTopicEnable is false"
            return BatchOutcome(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not config.writable:
            return BatchOutcome(ResponseCode.NO_PERMISSION, f"topic {topic!r} may not be written (perm {config.perm})")
        # Also into a queue that is not offered any more: clients learn that later.
        if not 0 <= queue_id < config.write_queue_count and not 0 <= queue_id < config.queue_count:
            remark = f"topic {topic!r} has no queue {queue_id}; it has 0 to {config.queue_count - 1}: refresh the route"
            code = ResponseCode.MESSAGE_ILLEGAL if queue_id < 0 else ResponseCode.TOPIC_NOT_EXIST
            return BatchOutcome(code, remark)
        try:
            batch = check_batch(topic, queue_id, incoming.count, incoming.records, self.body_size_max)
            batch_sequence = incoming.batch_sequence
            if batch_sequence and (known := self.sequences.stored_before(batch_sequence, topic, queue_id, batch.count)):
                self.sequences.make_room(batch_sequence, (topic, queue_id), store_ms)
                missing = _missing(batch, batch_sequence, known)
                return _Repeat(known, [(numbers, self._to_system_topic(part, store_ms)) for numbers, part in missing])
            batch = self._to_system_topic(batch, store_ms)
        except (BatchError, HalfError, PropertiesError, RecordError, SequenceError) as error:
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if len(batch.buffer) > self.store.run_bytes_max:
            remark = f"the batch takes {len(batch.buffer)} bytes; a commit-log file takes {self.store.run_bytes_max}"
            return BatchOutcome(ResponseCode.MESSAGE_ILLEGAL, remark)
        try:
            if batch_sequence is not None:
                self.sequences.make_room(batch_sequence, (topic, queue_id), store_ms)
            self.topics.create(config, client)
        except ProducersFullError as error:
            return BatchOutcome(ResponseCode.SYSTEM_BUSY, str(error))
        except TooManyError as error:
            return BatchOutcome(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist: {error}")
        return batch

    def _to_system_topic(self, batch: Batch, store_ms: int) -> Batch:
        """The batch under the topic where it waits, if it has to. Raises HalfError and what rewriting raises."""
        if batch.prepared:
            return half_batch(batch, store_ms)
        return schedule_batch(batch, self.levels, store_ms, self.time.ahead_of_wall_ms) if batch.delayed else batch

    def _complete(self, incoming: IncomingBatch, repeat: _Repeat, store_ms: int) -> BatchOutcome:
        """Store what is missing of a repeated batch; the outcome says where all of it stands.

        Only a crash in the middle of a write leaves something missing. Should the store reject it then, the whole batch
        is answered as rejected, and what is there already may come a second time.
        """
        places = list(repeat.known)
        for batch_sequence, batch in repeat.missing:
            (outcome,) = self._store([batch], store_ms)
            if outcome.code is not ResponseCode.SUCCESS:
                return outcome
            self.received.add(incoming.topic, batch.count, len(batch.buffer))
            places.append(self._remember(incoming, batch_sequence, batch, outcome.base_queue_offset, store_ms))
        stretches = [piece for place in sorted(places) for piece in self._pieces(place)]
        first = stretches[0]
        return BatchOutcome(
            ResponseCode.SUCCESS,
            "",
            first.base_queue_offset,
            first.base_log_offset,
            tuple(stretches) if len(stretches) > 1 else (),
        )

    def _remember(
        self, incoming: IncomingBatch, batch_sequence: BatchSequence, batch: Batch, queue_offset: int, store_ms: int
    ) -> Stretch:
        stretch = Stretch(batch_sequence.base_sequence, batch.count, batch.topic, batch.queue_id, queue_offset)
        self.sequences.stored(batch_sequence, (incoming.topic, incoming.queue_id), stretch, store_ms)
        return stretch

    def _pieces(self, stretch: Stretch) -> list[StoredStretch]:
        """Where the records of the stretch stand, cut where the log has something else between two of them."""
        queue, pieces, log_end = self.store.queue(stretch.topic, stretch.queue_id), list[StoredStretch](), -1
        for offset in range(stretch.base_queue_offset, stretch.base_queue_offset + stretch.count):
            if queue is None or not queue.min_offset <= offset < queue.max_offset:
                log_offset, size = -1, 0
            else:
                log_offset, size, _ = queue.entry(offset)
            if pieces and log_offset == log_end:
                pieces[-1] = replace(pieces[-1], count=pieces[-1].count + 1)
            else:
                pieces.append(StoredStretch(1, offset, log_offset))
            log_end = log_offset + size
        return pieces

    def _store(self, batches: list[Batch], store_ms: int) -> list[BatchOutcome]:
        if not batches:
            return []
        try:
            results = self.store.put(batches, store_ms)
        except StoreError as error:
            return [BatchOutcome(code_of(error), str(error))] * len(batches)
        for batch in batches:
            if batch.prepared:
                self.transactions.copies.prepared(batch)
        return [
            BatchOutcome(ResponseCode.SUCCESS, "", result.base_queue_offset, result.base_log_offset, waits=batch.waits)
            for batch, result in zip(batches, results, strict=True)
        ]


def _instead_of_success(outcomes: list[BatchOutcome], code: ResponseCode, remark: str) -> list[BatchOutcome]:
    return [
        replace(outcome, code=code, remark=remark) if outcome.code is ResponseCode.SUCCESS else outcome
        for outcome in outcomes
    ]


def _missing(batch: Batch, batch_sequence: BatchSequence, known: list[Stretch]) -> list[tuple[BatchSequence, Batch]]:
    """The parts of a batch that are in none of the known stretches, each with its sequence."""
    begin, end = batch_sequence.base_sequence, batch_sequence.base_sequence + batch.count
    gaps, at = [], begin
    for stretch in known:
        gaps.append((at, stretch.base_sequence))
        at = stretch.end
    gaps.append((at, end))
    return [
        (batch_sequence._replace(base_sequence=first), batch.part(first - begin, last - begin))
        for first, last in gaps
        if first < last
    ]


class SentBack(NamedTuple):
    """The answer. With SUCCESS what the message has become stands in the log below `log_end`."""

    code: ResponseCode
    remark: str = ""
    log_end: int = 0


@dataclass
class SendBack:
    """Send backs of messages that a group could not consume: retried later, or moved to the dead letters (mechanisms
    R1, R2).

    The processor of consumer send-back requests.
    """

    producing: Producing
    topics: TopicTable
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    spans: Spans = NO_SPANS
    dead_letters: Counter[str] = field(default_factory=Counter, init=False)  # by group, since the broker was opened

    async def send_back(
        self,
        group: str,
        log_offset: int,
        *,
        delay_level: int,
        max_reconsume_times: int,
        client: str = "",
        failure: Failure | None = None,
        version: int | None = None,
    ) -> SentBack:
        """Store the message again for its group; on disk, and durable as any message, when it returns SUCCESS.

        Also under ASYNC_FLUSH: the group counts the message as finished then, and its progress is on disk sooner than
        the log is flushed. A loss of power in between would leave the message finished and its retry nowhere.

        A group without retry queues gets nothing back, and no dead letter either, as in RocketMQ.

        With the `version` of its progress a member of the group is rejected when this broker has other renewals: its
        log is not the one from which the member got the message, and a retry here would not make up for it.
        """
        try:
            known = self._group(group, client)
            record = await self._record(group, log_offset, version)
            if not known.retry_queue_count:
                log.info("group %s has no retry queues: the message at %d is given up", group, log_offset)
                remark = "the group has no retry queues (retryQueueNums=0): the message is given up"
                return SentBack(ResponseCode.SUCCESS, remark)
            batch = retry_batch(
                record,
                group,
                delay_level=delay_level,
                reconsume_times_max=max_reconsume_times or known.retry_max_times,
                retry_queue_id=record.queue_offset % known.retry_queue_count,
                failure=failure,
            )
            log_end = await self._store(batch, known, record.store_timestamp_ms)
        except RejectedError as error:
            return SentBack(error.code, str(error))
        except StoreError as error:
            return SentBack(code_of(error), str(error))
        except ValueError as error:  # the properties do not fit any more
            return SentBack(ResponseCode.MESSAGE_ILLEGAL, str(error))
        return SentBack(ResponseCode.SUCCESS, log_end=log_end)

    def _group(self, group: str, client: str) -> SubscriptionGroup:
        """Raises RejectedError."""
        require_master(self.producing.store)
        try:
            known = self.groups.get_or_create(group, client)
        except (IllegalNameError, TooManyError) as error:
            raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error
        if known is None:
            raise RejectedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist")
        return known

    async def _record(self, group: str, log_offset: int, version: int | None) -> Record:
        """The message that comes back. Raises RejectedError, OSError."""
        store = self.producing.store
        try:
            record = await store.reader.read_record(log_offset)
        except ValueError as error:
            raise RejectedError(ResponseCode.QUERY_NOT_FOUND, str(error)) from error
        if not store.is_message(record):
            raise RejectedError(ResponseCode.QUERY_NOT_FOUND, f"no message begins at offset {log_offset}")
        if record.topic in WAITING_TOPICS:
            sentence = f"the record at {log_offset} still waits for its delivery"
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        progress = self.offsets.progress(group, record.topic, record.queue_id)
        if version is not None and progress is not None and not progress.has_renewals_of(version):
            sentence = "the member got the message from another log than this one; it has to pull from here first"
            raise RejectedError(ResponseCode.SYSTEM_BUSY, sentence)
        return record

    async def _store(self, batch: Batch, group: SubscriptionGroup, stored_ms: int) -> int:
        """The end of the log behind it, when it is durable. Raises StoreError; ValueError when it does not fit."""
        store, is_retry = self.producing.store, batch.topic == retry_topic(group.group)
        self.topics.ensure_group_topic(batch.topic, group.retry_queue_count if is_retry else 1)
        self._forward(batch, None if is_retry else stored_ms)
        self.dead_letters[group.group] += not is_retry
        log_end = store.log_end
        await store.sync()
        await store.wait_acknowledged()
        return log_end

    def _forward(self, batch: Batch, dead_since_ms: int | None) -> None:
        """Store what comes back. A dead letter is not heard of again: its time as a message ends with a span."""
        store_ms = self.producing.time.stamp_ms()
        dead = [] if dead_since_ms is None else [(batch, Step(Operation.DEAD_LETTER, dead_since_ms, store_ms))]
        with traced(self.spans, dead):
            self.producing.forward([batch], store_ms)
