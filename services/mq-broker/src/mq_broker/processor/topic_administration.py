"""Topics created, changed, deleted and counted for an operator, and rejections of operators' changes (mechanism
N11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.processor.querying import Querying
from mq_broker.store.changes import Change, Changes, forget_offsets
from mq_broker.store.errors import NotMasterError, NotReplicatedError, StoreError, StoreFencedError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import ResponseCode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue; `last_update_timestamp_ms` is when its last message was stored, 0 for a queue that holds none.

    `about_bytes` is what its messages take of the log, of a long queue by samples.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    last_update_timestamp_ms: int
    about_bytes: int


@dataclass
class TopicAdministration:
    """The processor of what an operator does with topics.

    A deletion renumbers nothing and rewrites nothing: the topic's name goes, and of each of its queues the next number
    is remembered, below which no message is read any more. The bytes leave with the log files that hold them.

    Invariant: each change is a record of the log (store/changes.py), so that what a call has answered survives what an
    acknowledged message survives, and every crash of this broker.
    """

    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets
    querying: Querying
    changing: Changing

    def recover(self) -> None:
        """Bring everything in line with the deletions that topics.json and the log tell of, after both were read."""
        self.topics.clamp_deletions(self.store.queue_end)
        for topic, queue_id, offset in self.topics.deletions():
            if (queue := self.store.queue(topic, queue_id)) is not None:
                queue.delete_below(offset)
        for topic in self.topics.deleted():
            forget_offsets(topic, self.topics, self.offsets)

    async def update(self, config: TopicConfig) -> None:
        """Create or change a topic; as durable as an acknowledged message on return.

        A queue that holds messages stays readable: RejectedError says which ones do and what can be changed already.
        """
        require_master(self.store)
        self._reject_hiding_messages(config)
        try:
            self.topics.check_update(config)
        except ValueError as error:
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        is_so = self.topics.get(config.topic) == config == self.changing.changes.topics_said.get(config.topic)
        await self.changing.make(None if is_so else Change(topics={config.topic: config}))

    async def delete(self, topic: str) -> None:
        """The topic, what it holds and the groups' offsets in it are gone for all clients; as durable as an
        acknowledged message on return. Raises RejectedError.
        """
        require_master(self.store)
        try:
            self.topics.check_delete(topic)
        except ValueError as error:
            raise RejectedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except KeyError:
            await self.changing.make()  # gone, perhaps, by a deletion that is not everywhere yet
            raise RejectedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist") from None
        queues = self.store.queues.of_topic(topic)
        log.warning("topic %s is deleted, with %d messages", topic, sum(q.max_offset - q.min_offset for q in queues))
        await self.changing.make(Change(topics={topic: None}, deleted_below={topic: self.next_offsets(topic)}))

    def next_offsets(self, topic: str) -> dict[int, int]:
        """Of each queue that ever had a message of the topic."""
        return {queue.queue_id: queue.max_offset for queue in self.store.queues.of_topic(topic)}

    async def stats(self, topic: str) -> list[QueueStats]:
        """Every queue of the topic. Raises RejectedError, OSError."""
        config = self.topics.get(topic)
        if config is None:
            raise RejectedError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic!r} does not exist")
        found = []
        for queue_id in range(config.queue_count):
            low, high = self.store.queue_bounds(topic, queue_id)
            stored_ms = await self.querying.stored_at_ms(topic, queue_id, high - 1)
            size = await self.querying.about_bytes(topic, queue_id, low, high)
            found.append(QueueStats(queue_id, low, high, stored_ms, size))
        return found

    def _reject_hiding_messages(self, config: TopicConfig) -> None:
        """Raise RejectedError if messages that can be read now, or that no queue would hold, could not be read then."""
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
        raise RejectedError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{config.read_queue_count} read queues are too few for topic {config.topic!r}: its queues "
            f"{', '.join(map(str, ids))} hold {count} messages; keep {ids[-1] + 1} read queues, reduce only "
            f"the write queues, and reduce the read queues after retention has deleted those messages",
        )


Moved = tuple[str, int, Progress]  # topic, queue id, where a group goes on


@dataclass
class Changing:
    """What operators change, as the processors of their requests make it: rejected with a code and a sentence.

    The processors' way to change something.

    Invariant: what returns is as durable as an acknowledged message, and what is rejected has changed nothing, but for
    FLUSH_SLAVE_TIMEOUT: that is made here, and may yet be lost with this master.
    """

    changes: Changes
    offsets: ConsumerOffsets
    time: BrokerTime

    async def make(self, change: Change | None = None, made: Callable[[], None] = lambda: None) -> None:
        """Make the change, or have those before it acknowledged: what is as it should be may not be everywhere yet.

        Raises RejectedError: with FLUSH_SLAVE_TIMEOUT it is made, and may yet be lost with this master.
        """
        try:
            if change is None:
                await self.changes.wait_acknowledged()
            else:
                await self.changes.make(change, self.time.stamp_ms(), made)
        except StoreError as error:
            raise RejectedError(code_of(error), str(error)) from error

    async def reset(
        self,
        group: str,
        offsets: Sequence[tuple[str, int, int]],
        made: Callable[[Sequence[Moved]], None] = lambda _moved: None,
    ) -> None:
        """Let the group go on exactly at (topic, queue id, offset); `made` hears of it at once. Raises
        RejectedError.
        """
        moved = [
            (topic, queue_id, self.offsets.after_reset(group, topic, queue_id, offset))
            for topic, queue_id, offset in offsets
        ]
        resets = tuple((group, *one) for one in moved)
        await self.make(Change(resets=resets) if moved else None, lambda: made(moved))


# Rejections of a replica, and the response codes for errors of the store.

NOT_MASTER = "this broker follows a master, and takes nothing itself: ask the one of its name with brokerId 0"


def code_of(error: StoreError) -> ResponseCode:
    """The code for what the store rejects."""
    if isinstance(error, NotMasterError):
        return ResponseCode.NOT_LEADER_FOR_QUEUE
    if isinstance(error, StoreFencedError):
        return ResponseCode.SERVICE_NOT_AVAILABLE
    if isinstance(error, NotReplicatedError):
        return ResponseCode.FLUSH_SLAVE_TIMEOUT
    return ResponseCode.SYSTEM_ERROR


def require_master(store: MessageStore) -> None:
    """Raise RejectedError on a replica, and on a master that has stepped down: what is asked for is the master's
    alone.
    """
    if store.follows:
        raise RejectedError(ResponseCode.NOT_LEADER_FOR_QUEUE, NOT_MASTER)
