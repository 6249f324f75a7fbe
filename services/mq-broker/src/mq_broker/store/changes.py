"""What operators change, on its way into the log and out of it again (core/changes.py has the records).

A master writes the record and changes its tables in one step of the event loop. A replica changes its own when the
record comes into its log, and a start when it reads the record again behind what the documents cover.

Invariants: what the log does not take has changed nothing; a change is acknowledged as a message is, and on disk under
either flushDiskType; a group's offsets are forgotten only after the record that says so is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mq_broker.core.changes import Change, change_batch, change_of
from mq_broker.core.consumer_offsets import COUNTER_MAX, ConsumerOffsets
from mq_broker.core.state_names import CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS, TOPICS
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topic_deletions import forget_offsets
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.store.confirmation import Copies
from mq_broker.store.errors import NotReplicatedError
from mq_broker.store.message_store import MessageStore
from mq_broker.store.uninterrupted import uninterrupted
from mqproto.record import Record

log = logging.getLogger(__name__)

NOT_REPLICATED = (
    "the change is stored, but the in-sync replicas did not have it in time: if this master is lost it may or may not "
    "survive; repeat the call, which changes nothing more and tells"
)


class Changes:
    """Of one broker. `on_change` is called after topics or groups have changed.

    `topics_said` and `groups_said` are as changes of this life of the broker say: what came by itself is no record of
    the log, and may be otherwise on a replica, or missing (ADR 105).
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, groups: SubscriptionGroups, offsets: ConsumerOffsets
    ) -> None:
        self._store, self._topics, self._groups, self._offsets = store, topics, groups, offsets
        self.on_change: Callable[[], None] = lambda: None
        self.topics_said: dict[str, TopicConfig] = {}
        self.groups_said: dict[str, SubscriptionGroup] = {}

    async def make(self, change: Change, now_ms: int, made: Callable[[], None] = lambda: None) -> None:
        """Make the change, durably, and return when the in-sync replicas have it; `made` is called before that.

        Raises NotReplicatedError when they did not have it in time; any other StoreError: nothing has changed, but for
        StoreFencedError, after which only the next start can tell.
        """
        # A full disk takes it: to delete a group may be the only way to get room.
        (place,) = self._store.put([change_batch(change, now_ms)], now_ms, despite_full=True)
        self._apply(change, place.base_log_offset)
        made()
        await uninterrupted(self._finish(change))

    async def wait_acknowledged(self) -> None:
        """Return when every change so far is as durable as one that was acknowledged. Raises as `make` does."""
        await self._store.sync()
        if await self._store.wait_stored(self._store.log_end) is Copies.FLUSH_SLAVE_TIMEOUT:
            raise NotReplicatedError(NOT_REPLICATED)

    def recovered(self, record: Record) -> None:
        """A start reads this record again; `TopicAdministration.recover` does what follows from the tables."""
        change, covered = _read(record), self._store.states.covered
        if change is not None:
            if record.log_offset >= covered.get(TOPICS, 0):
                self._apply_to_topics(change)
            if record.log_offset >= covered.get(SUBSCRIPTION_GROUPS, 0):
                self._apply_to_groups(change, record.log_offset)
            if record.log_offset >= covered.get(CONSUMER_OFFSETS, 0):
                self._apply_resets(change)

    def copied(self, record: Record) -> None:
        """A replica's log has this record now."""
        change = _read(record)
        if change is not None:
            self._apply(change, record.log_offset)
            self._forget(change)

    async def _finish(self, change: Change) -> None:
        await self._store.sync()
        self._forget(change)
        await self.wait_acknowledged()

    def _apply(self, change: Change, log_offset: int) -> None:
        self._apply_to_topics(change)
        self._apply_to_groups(change, log_offset)
        self._apply_resets(change)
        for topic, below in change.deleted_below.items():
            for queue_id, offset in below.items():
                if (queue := self._store.queue(topic, queue_id)) is not None:
                    queue.delete_below(offset)
        self.on_change()

    def _apply_to_topics(self, change: Change) -> None:
        for topic, config in change.topics.items():
            if config is None:
                self._topics.delete(topic, change.deleted_below.get(topic, {}))
                self.topics_said.pop(topic, None)
            else:
                self._topics.put(config)
                self.topics_said[topic] = config

    def _apply_to_groups(self, change: Change, log_offset: int) -> None:
        for group, settings in change.groups.items():
            if settings is None:
                self._groups.delete(group)
                self.groups_said.pop(group, None)
            else:
                self._groups.put(settings)
                self.groups_said[group] = settings
        for group, resets in change.first_resets.items():
            self._groups.forget_offsets(group, resets, log_offset)

    def _apply_resets(self, change: Change) -> None:
        """The newest reset of a queue is the one with the highest version, whatever comes first."""
        for group, topic, queue_id, progress in change.resets:
            self._offsets.reconcile(group, topic, queue_id, progress, COUNTER_MAX)

    def _forget(self, change: Change) -> None:
        for topic in change.deleted_below:
            forget_offsets(topic, self._topics, self._offsets)
        for group in change.first_resets:
            self._offsets.forget_before(group)


def _read(record: Record) -> Change | None:
    """None when nobody can make sense of it; who waits for it would wait for ever."""
    try:
        return change_of(record)
    except ValueError as error:
        log.error("%s; it is passed over", error)  # noqa: TRY400 - the sentence says it all
        return None
