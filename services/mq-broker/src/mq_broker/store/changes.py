"""Changes by operators (ADR 104): each is one record of the log, in `rmq_sys_changes` (store/FORMAT.md)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mq_broker.core import documents as tables
from mq_broker.core import subscription_groups, topics
from mq_broker.core.batches import Batch
from mq_broker.core.consumer_offsets import COUNTER_MAX, ConsumerOffsets, Progress
from mq_broker.core.documents import CONSUMER_OFFSETS, SUBSCRIPTION_GROUPS, TOPICS
from mq_broker.core.rewrite import single_record_batch
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.store.durability import Copies, finish_despite_cancellation
from mq_broker.store.errors import NotReplicatedError
from mq_broker.store.message_store import MessageStore
from mqproto.names import CHANGES_TOPIC
from mqproto.record import Record, encode_record, pack_ip

log = logging.getLogger(__name__)

NOT_REPLICATED = (
    "the change is stored, but the in-sync replicas did not have it in time: if this master is lost it may or may not "
    "survive; repeat the call, which changes nothing more and tells"
)


class Changes:
    """Of one broker. `on_change` is called after topics or groups have changed.

    `topics_said` and `groups_said` are as changes of this life of the broker say: what came by itself is no record of
    the log, and may be otherwise on a replica, or missing (ADR 105).

    A master writes the record and changes its tables in one step of the event loop. A replica changes its own when the
    record comes into its log, and a start when it reads the record again behind what the documents cover.

    Invariants: what the log does not take has changed nothing; a change is acknowledged as a message is, and on disk
    under either flushDiskType; a group's offsets are forgotten only after the record that says so is on disk.
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
        await finish_despite_cancellation(self._finish(change))

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
    """None for a record that cannot be read; to wait for it would be to wait for ever."""
    try:
        return change_of(record)
    except ValueError as error:
        log.error("%s; it is passed over", error)  # noqa: TRY400 - the sentence says it all
        return None


NO_ADDRESS = pack_ip("0.0.0.0")  # noqa: S104 - the broker itself, and no host, has written the record

Reset = tuple[str, str, int, Progress]  # group, topic, queue id, and where the group goes on


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator has changed, as one record of the log in `rmq_sys_changes` (store/FORMAT.md; ADR 104).

    Topics and groups as they are now, None for those that are deleted.

    Of a deleted topic `deleted_below` has the next number of each of its queues, of a group that was deleted with its
    offsets `first_resets` the resets with which a group of the name begins anew.

    Invariants: a change says how things are after it, so that applying it once more changes nothing; what a later
    version adds to the body is passed over.
    """

    topics: Mapping[str, TopicConfig | None] = field(default_factory=dict)
    deleted_below: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    groups: Mapping[str, SubscriptionGroup | None] = field(default_factory=dict)
    first_resets: Mapping[str, int] = field(default_factory=dict)
    resets: tuple[Reset, ...] = ()


def change_batch(change: Change, now_ms: int) -> Batch:
    """The change's record."""
    body: dict[str, Any] = {
        "topics": {name: config and topics.entry_of(config) for name, config in change.topics.items()},
        "deletedBelow": change.deleted_below,
        "groups": {name: config and subscription_groups.entry_of(config) for name, config in change.groups.items()},
        "firstResets": change.first_resets,
        "resets": _reset_table(change.resets),
    }
    data = encode_record(
        topic=CHANGES_TOPIC.encode(),
        body=json.dumps({name: value for name, value in body.items() if value}).encode(),
        properties=b"",
        queue_id=0,
        born_timestamp_ms=now_ms,
        born_ip=NO_ADDRESS,
    )
    return single_record_batch(CHANGES_TOPIC, 0, data, 0)


def change_of(record: Record) -> Change:
    """The inverse. Raises ValueError when the body is not of that form."""
    try:
        body = json.loads(record.body)
        topic_entries, groups = _optional(body, "topics"), _optional(body, "groups")
        below = _optional(body, "deletedBelow")
        return Change(
            {name: entry and topics.topic_of(name, entry) for name, entry in topic_entries.items()},
            {name: {int(one): int(offset) for one, offset in tables.table(below, name).items()} for name in below},
            {name: entry and subscription_groups.group_of(name, entry) for name, entry in groups.items()},
            {name: int(resets) for name, resets in _optional(body, "firstResets").items()},
            tuple(
                (group, topic, int(queue_id), Progress(int(offset), (), int(version)))
                for group, topics_of_group in _optional(body, "resets").items()
                for topic, queues in topics_of_group.items()
                for queue_id, (offset, version) in queues.items()
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the body of the change at log offset {record.log_offset}: {error!r}") from None


def _reset_table(resets: Sequence[Reset]) -> dict[str, dict[str, dict[int, tuple[int, int]]]]:
    """By group, topic and queue id: a request may name 16,384 queues, and all of them are one record."""
    table: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}
    for group, topic, queue_id, progress in resets:
        table.setdefault(group, {}).setdefault(topic, {})[queue_id] = progress.offset, progress.version
    return table


def _optional(body: Any, name: str) -> dict[str, Any]:
    return tables.table({name: {}} | body, name)


# What follows from the deletions that topics.json tells of, for groups that had consumed the topics.


def forget_offsets(topic: str, topics: TopicTable, offsets: ConsumerOffsets) -> None:
    """Forget the groups' offsets in a deleted topic; when it is there again, those from before its deletion only."""
    if topics.get(topic) is None:
        offsets.forget_topic(topic)
    else:
        offsets.forget_below(topic, lambda queue_id: topics.deleted_below(topic, queue_id))
