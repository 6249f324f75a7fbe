"""A message comes back that its group could not consume: again later, or to the dead letters (MISSION R1, R2)."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from mq_broker.core.batches import Batch
from mq_broker.core.creations import TooManyError
from mq_broker.core.rewrite import Failure, retry_batch
from mq_broker.core.spans import NO_SPANS, Operation, Spans, Step, traced
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.producing import Producing
from mq_broker.processor.refusals import NOT_MASTER, code_of
from mq_broker.store.errors import StoreError
from mqproto.codes import ResponseCode
from mqproto.names import WAITING_TOPICS, IllegalNameError, retry_topic

log = logging.getLogger(__name__)


@dataclass
class SendBack:
    """The processor of consumer send-back requests."""

    producing: Producing
    topics: TopicTable
    groups: SubscriptionGroups
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
    ) -> tuple[ResponseCode, str]:
        """Store the message again for its group; on disk, and durable as any message, when it returns SUCCESS.

        Also under ASYNC_FLUSH: the group counts the message as finished then, and its progress is on disk sooner than
        the log is flushed. A loss of power in between would leave the message finished and its retry nowhere.

        A group without retry queues gets nothing back, and no dead letter either, as in RocketMQ.
        """
        if self.producing.store.follows:
            return ResponseCode.NOT_LEADER_FOR_QUEUE, NOT_MASTER
        try:
            known = self.groups.get_or_create(group, client)
        except (IllegalNameError, TooManyError) as error:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error)
        if known is None:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {group!r} does not exist"
        store = self.producing.store
        try:
            record = await store.reader.read_record(log_offset)
        except ValueError as error:
            return ResponseCode.QUERY_NOT_FOUND, str(error)
        if not store.is_message(record):
            return ResponseCode.QUERY_NOT_FOUND, f"no message begins at offset {log_offset}"
        if record.topic in WAITING_TOPICS:
            return ResponseCode.MESSAGE_ILLEGAL, f"the record at {log_offset} still waits for its delivery"
        if not known.retry_queue_count:
            log.info("group %s has no retry queues: the message at %d is given up", group, log_offset)
            return ResponseCode.SUCCESS, "the group has no retry queues (retryQueueNums=0): the message is given up"
        times_max = max_reconsume_times or known.retry_max_times
        queue_id = record.queue_offset % known.retry_queue_count
        try:
            batch = retry_batch(
                record,
                group,
                delay_level=delay_level,
                reconsume_times_max=times_max,
                retry_queue_id=queue_id,
                failure=failure,
            )
            is_retry = batch.topic == retry_topic(group)
            self.topics.ensure_group_topic(batch.topic, known.retry_queue_count if is_retry else 1)
            self._forward(batch, None if is_retry else record.store_timestamp_ms)
            self.dead_letters[group] += not is_retry
            await store.sync()
            await store.wait_acknowledged()
        except StoreError as error:
            return code_of(error), str(error)
        except ValueError as error:  # the properties do not fit any more
            return ResponseCode.MESSAGE_ILLEGAL, str(error)
        return ResponseCode.SUCCESS, ""

    def _forward(self, batch: Batch, dead_since_ms: int | None) -> None:
        """Store what comes back. A dead letter is not heard of again: its time as a message ends with a span."""
        store_ms = self.producing.time.stamp_ms()
        dead = [] if dead_since_ms is None else [(batch, Step(Operation.DEAD_LETTER, dead_since_ms, store_ms))]
        with traced(self.spans, dead):
            self.producing.forward([batch], store_ms)
