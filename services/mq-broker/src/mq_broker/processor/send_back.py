"""A message comes back that its group could not consume: again later, or to the dead letters (MISSION R1, R2)."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from mq_broker.core.batches import Batch
from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, traced
from mq_broker.core.limits import RefusedError, TooManyError
from mq_broker.core.rewrite import Failure, retry_batch
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.producing import Producing
from mq_broker.processor.refusals import code_of, require_master
from mq_broker.store.errors import StoreError
from mqproto.codes import ResponseCode
from mqproto.names import WAITING_TOPICS, IllegalNameError, retry_topic
from mqproto.record import Record

log = logging.getLogger(__name__)


class SentBack(NamedTuple):
    """The answer. With SUCCESS what the message has become stands in the log below `log_end`."""

    code: ResponseCode
    remark: str = ""
    log_end: int = 0


@dataclass
class SendBack:
    """The processor of consumer send-back requests."""

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

        With the `version` of its progress a member of the group is refused when this broker has other renewals: its log
        is not the one from which the member got the message, and a retry here would not make up for it.
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
        except RefusedError as error:
            return SentBack(error.code, str(error))
        except StoreError as error:
            return SentBack(code_of(error), str(error))
        except ValueError as error:  # the properties do not fit any more
            return SentBack(ResponseCode.MESSAGE_ILLEGAL, str(error))
        return SentBack(ResponseCode.SUCCESS, log_end=log_end)

    def _group(self, group: str, client: str) -> SubscriptionGroup:
        """Raises RefusedError."""
        require_master(self.producing.store)
        try:
            known = self.groups.get_or_create(group, client)
        except (IllegalNameError, TooManyError) as error:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)) from error
        if known is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist")
        return known

    async def _record(self, group: str, log_offset: int, version: int | None) -> Record:
        """The message that comes back. Raises RefusedError, OSError."""
        store = self.producing.store
        try:
            record = await store.reader.read_record(log_offset)
        except ValueError as error:
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, str(error)) from error
        if not store.is_message(record):
            raise RefusedError(ResponseCode.QUERY_NOT_FOUND, f"no message begins at offset {log_offset}")
        if record.topic in WAITING_TOPICS:
            sentence = f"the record at {log_offset} still waits for its delivery"
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, sentence)
        progress = self.offsets.progress(group, record.topic, record.queue_id)
        if version is not None and progress is not None and not progress.has_renewals_of(version):
            sentence = "the member got the message from another log than this one; it has to pull from here first"
            raise RefusedError(ResponseCode.SYSTEM_BUSY, sentence)
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
