"""Sessions: clients say that they live and what they are; the broker tells them when a group has changed.

Invariant: whoever is a member of a group hears of every change of its membership, the ones that made it included.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.members import ClientGroups, GroupMembers
from mq_broker.core.subscription_groups import SubscriptionGroups
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


@dataclass
class Sessions:
    """The processor of heartbeats."""

    topics: TopicTable
    groups: SubscriptionGroups
    time: BrokerTime
    clock: Clock
    members: GroupMembers[Session] = field(default_factory=GroupMembers)

    def heartbeat(self, session: Session, groups: ClientGroups) -> None:
        """A client lives. Its consumer groups get their retry topics. Raises IllegalNameError and PermissionError."""
        for group in sorted(groups.producer_groups | groups.consumer_groups):
            check_group(group)
        for group in sorted(groups.consumer_groups):
            if self.groups.get_or_create(group) is None:
                raise PermissionError(f"group {group!r} does not exist and autoCreateSubscriptionGroup is false")
            self.topics.ensure_group_topic(retry_topic(group))
        self._tell(self.members.heartbeat(groups, session, self.time.now_ms()))

    def ended(self, session: Session, client_id: str) -> None:
        """The stream of this session has ended."""
        self._tell(self.members.leave(client_id, session))

    async def expire_forever(self) -> None:
        """Drop the clients that have been silent for 120 s."""
        while True:
            await self.clock.sleep(EXPIRY_SCAN_S)
            self._tell(self.members.expire(self.time.now_ms()))

    def _tell(self, changed: Iterable[str]) -> None:
        for group, sessions in self.members.sessions_of(changed).items():
            log.info("group %s now has %d members", group, len(sessions))
            for session in sessions:
                session.consumer_ids_changed(group)
