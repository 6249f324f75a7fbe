"""Sessions: clients say that they live and what they are; the broker tells them when a group has changed.

Invariant: whoever is a member of a group hears of every change of its membership, the ones that made it included. Whom
a group takes says admission.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import first_few
from mq_broker.core.members import HEARTBEAT_EXPIRY_MS, ClientGroups, GroupMembers
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicTable
from mq_broker.processor.admission import Admission
from mqproto.codes import ResponseCode
from mqproto.names import retry_topic
from osenv import Clock

log = logging.getLogger(__name__)

EXPIRY_SCAN_S = 10  # RocketMQ's scan of idle channels


class Session(Protocol):
    """The way down to one client."""

    def consumer_ids_changed(self, group: str) -> None:
        """Tell the client that members of the group came or went."""

    def topic_route_changed(self, topics: Sequence[str]) -> None:
        """Tell the client that these topics have other queues than before, or exist since now, or no more."""

    def check_transaction(self, producer_group: str, transaction_id: str, record: bytes) -> None:
        """Ask the client what has become of the transaction; it answers by ending it."""

    def reset_consumer_offset(self, group: str, queues: Sequence[tuple[str, int, Progress]]) -> None:
        """Tell the client where the group goes on in (topic, queue id), whatever it has pulled already."""

    def get_running_info(self, command_id: int, group: str) -> None:
        """Ask the client how its consumer is; it answers with the command's id."""

    def consume_directly(self, command_id: int, group: str, record: bytes) -> None:
        """Have the client's listener consume the record now; it answers with the command's id."""


@dataclass
class Sessions:
    """The processor of heartbeats."""

    topics: TopicTable
    groups: SubscriptionGroups
    time: BrokerTime
    clock: Clock
    members: GroupMembers[Session]
    admission: Admission[Session]

    def heartbeat(self, session: Session, said: ClientGroups) -> tuple[ResponseCode, str]:
        """A client lives. Its consumer groups get their retry topics.

        Anything but SUCCESS is the code of the first refusal. The sentence has the first ones, and with them groups
        that do not take the client; it leaves all of those, and is a member of the others. CLIENT_ID_IN_USE: another
        living process has the client id, and this session changes nothing.
        """
        rival = self.members.rival(said, self.time.now_ms())
        if rival is not None:
            log.warning("client id %s is in use: %s rejected for %s", said.client_id, said.connection, rival)
            return ResponseCode.CLIENT_ID_IN_USE, _in_use(said.client_id, rival)
        groups, refusals = self.admission.admit(said)
        for consumer in groups.consumers:
            if (known := self.groups.get(consumer.group)) is not None:
                self.ensure_retry_topic(known)
        self._tell(self.members.heartbeat(groups, session, self.time.now_ms()))
        if not refusals:
            return ResponseCode.SUCCESS, ""
        return refusals[0].code, first_few(refusals)

    def ensure_retry_topic(self, group: SubscriptionGroup) -> None:
        """The group's retry topic has the queues that it should; its members read it, though nothing be retried.

        On a slave it has what it has on the master: there the members send heartbeats, too.
        """
        if self.topics.follows():
            return
        self.topics.ensure_group_topic(retry_topic(group.group), max(1, group.retry_queue_count))

    def tell_reset(self, group: str, queues: Sequence[tuple[str, int, Progress]]) -> list[str]:
        """Tell every living member where to go on in (topic, queue id), if in any; returns their client ids.

        Who is away is not told when it comes back: it learns of the new version from the answer to its next commit.
        """
        if not queues:
            return []
        for session in self.members.sessions_of([group])[group]:
            session.reset_consumer_offset(group, queues)
        return self.members.consumer_ids(group)

    def tell_members(self, group: str, *, but: str) -> None:
        """Have the members of the group, but for this client, balance its queues anew."""
        for client_id in self.members.consumer_ids(group):
            session = self.members.session_of(client_id, group)
            if session is not None and client_id != but:
                session.consumer_ids_changed(group)

    def tell_route_changed(self, topics: Collection[str]) -> None:
        """Tell each client which of these topics it subscribes to, if it does to any."""
        for session, wanted in self.members.subscribers(topics):
            session.topic_route_changed(wanted)

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
            count = len(sessions)
            log.info("group %s now has %d members", group, count, extra={"group": group, "members": count})
            for session in sessions:
                session.consumer_ids_changed(group)


def _in_use(client_id: str, rival: str) -> str:
    return (
        f"client id {client_id!r} is in use by {rival}; give each process an instance_name of its own, or none (it is "
        f"unique then), or wait until that process has left or has been silent for {HEARTBEAT_EXPIRY_MS // 1_000} s"
    )
