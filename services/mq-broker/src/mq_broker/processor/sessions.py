"""Sessions: clients say that they live and what they are; the broker tells them when a group has changed.

Invariants: whoever is a member of a group hears of every change of its membership, the ones that made it included; who
was away when the group's offsets were reset hears of it when it comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.members import ClientGroups, GroupMembers
from mq_broker.core.offset_fences import OffsetFences
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mqproto.names import check_group, retry_topic
from osenv import Clock

log = logging.getLogger(__name__)

EXPIRY_SCAN_S = 10  # RocketMQ's scan of idle channels


class Session(Protocol):
    """The way down to one client."""

    def consumer_ids_changed(self, group: str) -> None:
        """Tell the client that members of the group came or went."""

    def check_transaction(self, producer_group: str, transaction_id: str, record: bytes) -> None:
        """Ask the client what has become of the transaction; it answers by ending it."""

    def reset_consumer_offset(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Tell the client that the group goes on at (topic, queue id, offset), whatever it has pulled already."""


@dataclass
class Sessions:
    """The processor of heartbeats."""

    topics: TopicTable
    groups: SubscriptionGroups
    time: BrokerTime
    clock: Clock
    offsets: ConsumerOffsets
    fences: OffsetFences
    members: GroupMembers[Session] = field(default_factory=GroupMembers)

    def heartbeat(self, session: Session, groups: ClientGroups) -> None:
        """A client lives. Its consumer groups get their retry topics. Raises IllegalNameError and PermissionError."""
        for group in sorted(groups.producer_groups | groups.consumer_groups):
            check_group(group)
        for group in sorted(groups.consumer_groups):
            known = self.groups.get_or_create(group)
            if known is None:
                raise PermissionError(f"group {group!r} does not exist and autoCreateSubscriptionGroup is false")
            self.ensure_retry_topic(known)
        is_new = not self.members.speaks_through(groups.client_id, session)
        self._tell(self.members.heartbeat(groups, session, self.time.now_ms()))
        if is_new and self.fences:
            self._tell_resets(session, groups)

    def ensure_retry_topic(self, group: SubscriptionGroup) -> None:
        """The group's retry topic has the queues that it should; its members read it, though nothing be retried."""
        self.topics.ensure_group_topic(retry_topic(group.group), max(1, group.retry_queue_count))

    def tell_reset(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> list[str]:
        """Tell every living member to go on at (topic, queue id, offset), if at any; returns their client ids."""
        if not offsets:
            return []
        for session in self.members.sessions_of([group])[group]:
            session.reset_consumer_offset(group, offsets)
        return self.members.consumer_ids(group)

    def ended(self, session: Session, client_id: str) -> None:
        """The stream of this session has ended."""
        self._tell(self.members.leave(client_id, session))

    async def expire_forever(self) -> None:
        """Drop the clients that have been silent for 120 s."""
        while True:
            await self.clock.sleep(EXPIRY_SCAN_S)
            self._tell(self.members.expire(self.time.now_ms()))

    def _tell_resets(self, session: Session, groups: ClientGroups) -> None:
        """The client may be one of before a reset that its old session did not live to tell it."""
        for group in sorted(groups.consumer_groups):
            offsets = [
                (topic, queue_id, offset)
                for topic, queue_id in self.fences.fenced(group)
                if (offset := self.offsets.query(group, topic, queue_id)) is not None
            ]
            if offsets:
                session.reset_consumer_offset(group, offsets)

    def _tell(self, changed: Iterable[str]) -> None:
        for group, sessions in self.members.sessions_of(changed).items():
            log.info("group %s now has %d members", group, len(sessions))
            for session in sessions:
                session.consumer_ids_changed(group)
