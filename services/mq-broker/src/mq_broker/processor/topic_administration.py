"""Topics made, changed, deleted and counted for an operator (MISSION N11).

A deletion renumbers nothing and rewrites nothing: the topic's name goes, and of each of its queues the next number is
remembered, below which nobody reads any more. The bytes leave with the log files that hold them.

Invariants: topics.json has the deletion before consumerOffset.json loses the offsets, so that a crash leaves the topic
with all its offsets or none of it; what a call has answered survives every crash.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.refusals import RefusedError
from mq_broker.core.state_names import CONSUMER_OFFSETS, TOPICS
from mq_broker.core.topic_deletions import forget_offsets
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.processor.long_polling import LongPolling
from mq_broker.processor.querying import Querying
from mq_broker.processor.refusals import require_master
from mq_broker.store.message_store import MessageStore
from mq_broker.store.uninterrupted import uninterrupted
from mqproto.codes import ResponseCode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue; `last_update_ms` is when its last message was stored, 0 for a queue that holds none.

    `about_bytes` is what its messages take of the log, of a long queue by samples.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int
    about_bytes: int


@dataclass
class TopicAdministration:
    """The processor of what an operator does with topics."""

    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets
    long_polling: LongPolling
    querying: Querying

    def recover(self) -> None:
        """Bring everything in line with the deletions that topics.json tells of, after the log has been read."""
        self.topics.clamp_deletions(self.store.queue_end)
        for topic, queue_id, offset in self.topics.deletions():
            if (queue := self.store.queue(topic, queue_id)) is not None:
                queue.delete_below(offset)
        for topic in self.topics.deleted():
            forget_offsets(topic, self.topics, self.offsets)

    async def update(self, config: TopicConfig) -> None:
        """Create or change a topic; durable on return.

        A queue that holds messages stays readable: RefusedError says which ones do and what can be changed already.
        Raises OSError, too.
        """
        require_master(self.store)
        self._refuse_to_hide_messages(config)
        try:
            self.topics.update(config)
        except ValueError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        await self.store.persist(TOPICS)

    async def delete(self, topic: str) -> None:
        """The topic, what it holds and the groups' offsets in it are gone for everybody; durable on return.

        Raises RefusedError; OSError when the disk has not taken it yet: then the next checkpoint tries again.
        """
        require_master(self.store)
        queues = self.store.queues.of_topic(topic)
        try:
            self.topics.delete(topic, {queue.queue_id: queue.max_offset for queue in queues})
        except ValueError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except KeyError:
            await self.store.persist(TOPICS)  # gone, perhaps, by a deletion that the disk would not take
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist") from None
        log.warning("topic %s is deleted, with %d messages", topic, sum(q.max_offset - q.min_offset for q in queues))
        for queue in queues:
            queue.delete_below(queue.max_offset)
        self.long_polling.answer_all(lambda query: query.topic == topic)
        await uninterrupted(self._make_durable(topic))

    async def stats(self, topic: str) -> list[QueueStats]:
        """Every queue of the topic. Raises RefusedError, OSError."""
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        found = []
        for queue_id in range(config.queue_count):
            low, high = self.store.queue_bounds(topic, queue_id)
            stored_ms = await self.querying.stored_at_ms(topic, queue_id, high - 1)
            size = await self.querying.about_bytes(topic, queue_id, low, high)
            found.append(QueueStats(queue_id, low, high, stored_ms, size))
        return found

    def _refuse_to_hide_messages(self, config: TopicConfig) -> None:
        """Raise RefusedError if messages that can be read now, or that no queue would hold, could not be read then."""
        now = self.topics.get(config.topic)
        if now is None:
            return
        holding = [
            queue
            for queue in self.store.queues.of_topic(config.topic)
            if config.read_queue_count <= queue.queue_id
            and (queue.queue_id < now.read_queue_count or config.queue_count <= queue.queue_id)
            and queue.min_offset < queue.max_offset
        ]
        if not holding:
            return
        ids = sorted(queue.queue_id for queue in holding)
        count = sum(queue.max_offset - queue.min_offset for queue in holding)
        raise RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{config.read_queue_count} read queues are too few for topic {config.topic!r}: its queues "
            f"{', '.join(map(str, ids))} hold {count} messages; keep {ids[-1] + 1} read queues, reduce only "
            f"the write queues, and reduce the read queues after retention has deleted those messages",
        )

    async def _make_durable(self, topic: str) -> None:
        await self.store.persist(TOPICS)
        forget_offsets(topic, self.topics, self.offsets)
        await self.store.persist(CONSUMER_OFFSETS)
