"""Which queues this member consumes, kept in step with the group (MISSION C2, C13).

Every 20 s, and at once when members come or go, each member asks who the members are and takes its share of each topic;
that all compute the same shares from the same lists is the whole coordination. In broadcasting every member has all
queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.allocate import AllocateMessageQueueStrategy
from mqclient.consumer.member_queues import MemberQueues
from mqclient.errors import MQClientError, NoRouteError, broker_answer_error
from mqclient.lifecycle import wait_event
from mqclient.message import MessageQueue
from mqclient.name_servers import TopicRoute
from mqclient.transport.methods import GET_CONSUMER_LIST
from mqproto.names import retry_topic

logger = logging.getLogger("mqclient.rebalance")

REBALANCE_INTERVAL_S = 20.0  # MISSION C13
# Before a member begins with a queue that another one may have had: until then that one has given it up, and what it
# has finished is with the broker (ADR 34).
HAND_OVER_S = 0.2
INCOMPLETE_RETRY_S = 1.0  # doubled up to the interval: a topic that does not exist yet, a broker that does not answer


@dataclass(frozen=True, slots=True)
class _Share:
    """One topic's queues: all of them, and those of this member."""

    of_all: Sequence[MessageQueue]
    of_mine: Sequence[MessageQueue]
    has_others: bool


class Rebalance:
    """The shares of one consumer. Without a `strategy` it gets all queues (broadcasting)."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        topics: Sequence[str],
        strategy: AllocateMessageQueueStrategy | None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._topics = topics
        self._strategy = strategy
        # The queues that each topic had when this consumer first asked; nothing of later ones may be missed (ADR 90).
        self._first_seen: dict[str, frozenset[MessageQueue]] = {}
        self._wanted = asyncio.Event()
        self.done_once = asyncio.Event()
        self.assigned = asyncio.Event()  # this member has its share of every topic of the application

    def rebalance_now(self) -> None:
        """The group or the queues may have changed."""
        self._wanted.set()

    def gone(self, queue: MessageQueue) -> None:
        """The queue's topic has been deleted: should the queue come back, it is another one."""
        self._first_seen[queue.topic] -= {queue}

    async def run(self, assigned: MemberQueues) -> None:
        """Keep `assigned` right until cancelled."""
        retry_s = INCOMPLETE_RETRY_S
        while True:
            self._wanted.clear()
            complete = await self._balance_all(assigned)
            self.done_once.set()
            await wait_event(self._instance.clock, self._wanted, REBALANCE_INTERVAL_S if complete else retry_s)
            retry_s = INCOMPLETE_RETRY_S if complete else min(2 * retry_s, REBALANCE_INTERVAL_S)

    async def _balance_all(self, assigned: MemberQueues) -> bool:
        """Whether every topic could be looked after.

        Where there are other members, a queue is begun when it has belonged to this member's share before a pause and
        still does after it: a share that was computed before the pause may have passed to a member that joined since.
        """
        if (rejection := self._instance.id_in_use()) is not None:
            logger.error("group %s: this member consumes nothing: %s", self._group, rejection)
            assigned.drop(assigned.queues)
            self.assigned.clear()
            return False
        before, waited_for = assigned.queues, set[MessageQueue]()
        while True:
            shares = {topic: await self._share_of(topic) for topic in tuple(self._topics)}
            known = [share for share in shares.values() if share is not None]
            topics = {queue.topic for share in known for queue in share.of_all}
            mine = {queue for share in known for queue in share.of_mine}
            topics |= {queue.topic for queue in assigned.queues} - shares.keys()  # unsubscribed meanwhile
            assigned.drop(queue for queue in assigned.queues if queue.topic in topics and queue not in mine)
            added = mine.difference(assigned.queues)
            ready = added & waited_for if any(share.has_others for share in known) else added
            has_all = await assigned.add(sorted(ready), from_first=self._later(ready))
            waited_for = added - ready
            if not waited_for:
                break
            self.done_once.set()  # the start need not wait for it
            await self._instance.clock.sleep(HAND_OVER_S)
        if (now := assigned.queues) != before:
            logger.info("group %s: queues %s", self._group, [str(queue) for queue in now])
        lacking = {topic for topic, share in shares.items() if share is None}
        if has_all and not lacking - {retry_topic(self._group)}:
            self.assigned.set()
        else:
            self.assigned.clear()
        return has_all and not lacking

    def _later(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Those that did not exist yet when this consumer first asked for their topic."""
        return {queue for queue in queues if queue not in self._first_seen[queue.topic]}

    async def _share_of(self, topic: str) -> _Share | None:
        """None for a topic that cannot be balanced now."""
        routes = self._instance.routes
        try:
            route = await routes.subscribe_route(topic)
            if route is None:
                logger.debug("the topic %s does not exist yet", topic)
                self._first_seen.setdefault(topic, frozenset())
                if not routes.follows_all_masters and topic != retry_topic(self._group):
                    await routes.follow_all_masters()  # any of them may create the topic, and says so in its session
                return None
            queues = route.subscribe_queues()
            self._first_seen.setdefault(topic, frozenset(queues))
            if self._strategy is None:
                return _Share(queues, queues, has_others=False)
            members = await self._members(route)
            mine = self._strategy.allocate(self._instance.client_id, queues, members)
            return _Share(queues, mine, has_others=len(members) > 1)
        except MQClientError as error:
            logger.warning("%s of group %s could not be balanced: %s", topic, self._group, error)
        except Exception:
            logger.exception("%s of group %s could not be balanced", topic, self._group)
        return None

    async def _members(self, route: TopicRoute) -> Sequence[str]:
        """The group's living members, from any broker that has the topic: its master, or a slave when that is away.

        Whoever does not know this member is not believed: it has just begun, or lost the session, and knows none of
        those who have not come back. Whoever has refused this member is.
        """
        error: MQClientError = NoRouteError(f"no broker with the topic {route.topic} is known")
        for broker_name, addresses in sorted(route.brokers.items()):
            try:
                response = await self._instance.calls.readers(broker_name).unary(
                    GET_CONSUMER_LIST, broker_pb.GetConsumerListRequest(group=self._group)
                )
            except MQClientError as caught:
                error = caught
                continue
            code, remark = response.code, response.remark
            if code == common_pb.SUCCESS:
                is_refused = not self._instance.refusals().keys().isdisjoint(addresses.values())
                if self._instance.client_id in response.client_ids or is_refused:
                    return sorted(response.client_ids)
                code, remark = common_pb.CONSUMER_NOT_ONLINE, "it does not know this member yet"
            error = broker_answer_error(code, remark, broker_name)
        raise error
