"""Messages out: one pull from one queue (MISSION C6).

A slave serves what it has. Who asks it for what it does not have yet waits, as for a message that is not sent yet.

Invariant: who names the version of its progress gets no messages from a broker where the group's progress has another
one. It may have pulled what is lost, and would pass over messages that have got the numbers of those (ADR 135).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mq_broker.core.batches import Traffic
from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.limits import TooManyError
from mq_broker.core.pulling import (
    NO_SLAVE,
    PULL_BYTES_MAX,
    PULL_MESSAGES_MAX,
    MessageFilter,
    MessageFilters,
    PullQuery,
    PullResult,
    Search,
    Selection,
    SlaveReads,
)
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.message_store import MessageStore
from mqfilter import Condition
from mqproto.codes import PullStatus, ResponseCode
from mqproto.names import IllegalNameError


@dataclass(slots=True)
class _Plan:
    """A pull that will find entries to look at, and how much it may bring."""

    group: SubscriptionGroup
    queue: ConsumeQueue
    wanted: MessageFilter
    max_messages: int
    max_bytes: int


@dataclass
class Pulling:
    """The processor of pull requests."""

    store: MessageStore
    topics: TopicTable
    groups: SubscriptionGroups
    filters: MessageFilters
    offsets: ConsumerOffsets
    is_broadcasting: Callable[[str], bool]  # whether the group's members consume by broadcasting now
    reads: SlaveReads = NO_SLAVE
    given: Traffic[tuple[str, str]] = field(default_factory=Traffic)  # by topic and group

    @property
    def messages_got(self) -> int:
        """By everybody, since the broker was opened."""
        return sum(amount.messages for _, amount in self.given.all())

    def pull_hot(self, query: PullQuery) -> PullResult | None:
        """The answer when it can be given from memory, else None."""
        plan = self._plan(query)
        if isinstance(plan, PullResult):
            return plan
        if plan.wanted.condition is not None:
            found = self._search_hot(query.queue_offset, plan, plan.wanted.condition)
        else:
            found = self.store.reader.select_hot(
                plan.queue,
                query.queue_offset,
                plan.wanted.tags,
                max_messages=plan.max_messages,
                max_bytes=plan.max_bytes,
            )
        return None if found is None else self._answer(query, plan, *found)

    async def pull(self, query: PullQuery) -> PullResult:
        """The answer, from disk if need be. Raises OSError."""
        plan = self._plan(query)
        if isinstance(plan, PullResult):
            return plan
        try:
            found = await self._read_cold(query, plan)
        except (OSError, ValueError):
            plan = self._plan(query)  # deleted while we read: then there is another place to go on
            if isinstance(plan, PullResult):
                return plan
            raise
        return self._answer(query, plan, *found)

    def refuses(self, query: PullQuery) -> bool:
        """Whether it would be answered with anything but messages now."""
        return isinstance(self._admit(query), PullResult)

    def _search_hot(self, begin: int, plan: _Plan, condition: Condition) -> tuple[Selection, bytes] | None:
        search = Search(condition, begin, plan.max_messages, plan.max_bytes)
        while not search.ended and search.at < plan.queue.max_offset:
            found = self.store.reader.select_hot(plan.queue, search.at, plan.wanted.tags, **search.step)
            if found is None:
                return None
            search.look_at(*found)
        return search.outcome()

    async def _read_cold(self, query: PullQuery, plan: _Plan) -> tuple[Selection, bytes]:
        begin, tags, read = query.queue_offset, plan.wanted.tags, self.store.reader.select_cold
        if plan.wanted.condition is None:
            limits = {"max_messages": plan.max_messages, "max_bytes": plan.max_bytes}
            return await read(plan.queue, begin, tags, query.client, **limits)
        search = Search(plan.wanted.condition, begin, plan.max_messages, plan.max_bytes)
        while not search.ended and search.at < plan.queue.max_offset:
            found = await read(plan.queue, search.at, tags, query.client, **search.step)
            search.look_at(*found)
        return search.outcome()

    def _plan(self, query: PullQuery) -> _Plan | PullResult:
        group = self._admit(query)
        if isinstance(group, PullResult):
            return group
        try:
            wanted = self.filters.parse(query.expression_type, query.expression)
        except ValueError as error:
            return PullResult(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        except PermissionError as error:
            return PullResult(ResponseCode.SYSTEM_ERROR, str(error))  # RocketMQ's code
        queue = self.store.queue(query.topic, query.queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue else (0, 0)
        if query.version is not None and (elsewhere := self._compare(query, query.version, low, high)) is not None:
            return elsewhere
        if query.queue_offset > high and self.store.follows:
            return self._nothing_new(query, low, high)  # the master may have it
        if not low <= query.queue_offset <= high:
            return _illegal(low if query.queue_offset < low else high, low, high)
        if queue is None or query.queue_offset == high:
            return self._nothing_new(query, low, high)
        return _Plan(
            group,
            queue,
            wanted,
            max_messages=max(1, min(query.max_messages, PULL_MESSAGES_MAX)),
            max_bytes=max(1, min(query.max_bytes, PULL_BYTES_MAX)),
        )

    def _compare(self, query: PullQuery, version: int, low: int, high: int) -> PullResult | None:
        """What a member gets instead of messages when the group's progress has another version than its own."""
        known = self.offsets.progress(query.group, query.topic, query.queue_id)
        if known is None or known.version == version:
            return None
        if not self.store.follows or known.version > version:
            return _illegal(known.offset, low, high, known)
        if known.renewals < Progress(0, version=version).renewals:
            return self._nothing_new(query, low, high)  # this log has still to be compared with the master's
        return None

    def _admit(self, query: PullQuery) -> SubscriptionGroup | PullResult:
        """The group, when it may pull from the queue."""
        if self.store.follows and not self.reads.enabled:
            remark = "this broker is a slave that serves no pulls (slaveReadEnable=false); ask the master"
            return PullResult(ResponseCode.SYSTEM_BUSY, remark)
        try:
            group = self.groups.get_or_create(query.group, query.client)
        except (IllegalNameError, TooManyError) as error:
            return PullResult(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(error))
        if group is None:
            remark = f"group {query.group!r} does not exist and autoCreateSubscriptionGroup is false"
            return PullResult(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return self._refusal(query, group) or group

    def _refusal(self, query: PullQuery, group: SubscriptionGroup) -> PullResult | None:
        if not group.consume_enable:
            remark = f"group {query.group!r} may not consume (consumeEnable=false)"
            return PullResult(ResponseCode.NO_PERMISSION, remark)
        if not group.consume_broadcast_enable and self.is_broadcasting(query.group):
            remark = f"group {query.group!r} may not consume by broadcasting (consumeBroadcastEnable=false)"
            return PullResult(ResponseCode.NO_PERMISSION, remark)
        config = self.topics.get(query.topic)
        if config is None:
            return PullResult(ResponseCode.TOPIC_NOT_EXIST, f"topic {query.topic!r} does not exist")
        if not config.readable:
            return PullResult(ResponseCode.NO_PERMISSION, f"topic {query.topic!r} may not be read (perm {config.perm})")
        if not 0 <= query.queue_id < config.read_queue_count:
            remark = f"topic {query.topic!r} has no read queue {query.queue_id}"
            return PullResult(ResponseCode.SYSTEM_ERROR, f"{remark}; it has 0 to {config.read_queue_count - 1}")
        return None

    def _answer(self, query: PullQuery, plan: _Plan, chosen: Selection, records: bytes) -> PullResult:
        low, high = plan.queue.min_offset, plan.queue.max_offset
        if not chosen.scanned:  # the next record is not readable yet
            return self._nothing_new(query, low, high)
        if chosen.count:
            self.given.add((query.topic, query.group), chosen.count, len(records))
        return PullResult(
            status=PullStatus.FOUND if chosen.count else PullStatus.NO_MATCHED_MSG,
            next_begin_offset=query.queue_offset + chosen.scanned,
            min_offset=low,
            max_offset=high,
            count=chosen.count,
            records=records,
            suggest_broker_id=self.reads.suggestion(plan.group, self.store.log_end - chosen.log_offset),
        )

    def _nothing_new(self, query: PullQuery, low: int, high: int) -> PullResult:
        return PullResult(
            status=PullStatus.NO_NEW_MSG, next_begin_offset=query.queue_offset, min_offset=low, max_offset=high
        )


def _illegal(begin: int, low: int, high: int, progress: Progress | None = None) -> PullResult:
    return PullResult(
        status=PullStatus.OFFSET_ILLEGAL, next_begin_offset=begin, min_offset=low, max_offset=high, progress=progress
    )
