"""Which queues a member of a group consumes: the strategies, with RocketMQ's names and rules, and what applies them.

Every member computes its share for itself from the same sorted lists; that they agree is the whole coordination. So all
members of a group need the same strategy with the same settings. A client that is not among the members gets nothing:
the broker does not count it as one. In broadcasting every member has all queues.

Every 20 s, and at once when members come or go, each member asks for the list of members and takes its share of each
topic.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.assignment import QueueAssignment
from mqclient.errors import IllegalArgumentError, MQClientError, NoRouteError, broker_answer_error
from mqclient.lifecycle import wait_event
from mqclient.message import MessageQueue
from mqclient.name_servers import TopicRoute
from mqclient.transport.methods import GET_CONSUMER_LIST
from mqproto.names import RETRY_PREFIX, retry_topic

logger = logging.getLogger("mqclient.rebalance")

ROOM_SEPARATOR = "@"

VIRTUAL_NODES = 10  # RocketMQ's default
HASH_BYTES = 4  # of MD5

REBALANCE_INTERVAL_S = 20.0  # mechanism C13

# Before a member begins with a queue that another one may have had: until then that one has given it up, and what it
# has finished is with the broker (ADR 34).
HAND_OVER_S = 0.2
INCOMPLETE_RETRY_S = 1.0  # doubled up to the interval: a topic that does not exist yet, a broker that does not answer


class AllocateMessageQueueStrategy(Protocol):
    """Pure: the same lists give every member the same answer."""

    @property
    def name(self) -> str:
        """Its name for operators; RocketMQ's."""

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        """The share of `client_id` in the queues of one topic, in their order; nothing if it is not in `client_ids`.

        Both lists are sorted. No queue is in the shares of two clients.
        """


class AllocateMessageQueueAveragely:
    """The first members get one more where it does not come out even: 8 queues for 3 members are 3, 3, 2."""

    name = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        position = client_ids.index(client_id)
        size, larger = divmod(len(queues), len(client_ids))
        start = position * size + min(position, larger)
        return queues[start : start + size + (position < larger)]


class AllocateMessageQueueAveragelyByCircle:
    """8 queues for 3 members are q1 q4 q7, q2 q5 q8, q3 q6: each member gets some of every broker."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        return queues[client_ids.index(client_id) :: len(client_ids)]


class AllocateMessageQueueByConfig:
    """This member gets `queues`, of those that exist; what the other members were given is not checked.

    A queue that no active member was given is not consumed, also while its member is down, nor is a queue that a topic
    gets later; a queue that two were given is consumed twice. The group's retry topic cannot be given: its queues are
    shared averagely by all members, because otherwise no retried message would come again (RocketMQ assigns them to no
    member). Raises IllegalArgumentError for a queue of a retry topic.
    """

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = frozenset(queues)
        for queue in sorted(self._queues):
            if _is_shared(queue):
                raise IllegalArgumentError(f"{queue} is shared by all members of its group; leave it out")

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        shared = [queue for queue in queues if _is_shared(queue)]
        share = {*self._queues, *AllocateMessageQueueAveragely().allocate(client_id, shared, client_ids)}
        return [queue for queue in queues if queue in share]


def _is_shared(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_PREFIX)


class AllocateMessageQueueByMachineRoom:
    """Shares the queues of brokers with names like `room@broker`, for the rooms in `consumer_rooms`.

    What is left over when it does not come out even is dealt out from the end of the list: 8 queues for 3 members are
    q1 q2 q7, q3 q4 q8, q5 q6, as in RocketMQ. Queues of other rooms, and of brokers whose name has no room, are not
    consumed by the group; so all of its members name the same rooms. Raises IllegalArgumentError when the rooms are one
    text, or none.
    """

    name = "MACHINE_ROOM"

    def __init__(self, consumer_rooms: Iterable[str]) -> None:
        if isinstance(consumer_rooms, str):
            raise IllegalArgumentError(f"consumer_rooms has to be several texts, such as [{consumer_rooms!r}]")
        self._rooms = frozenset(consumer_rooms)
        if not self._rooms:
            raise IllegalArgumentError("consumer_rooms is empty; the group would consume no queue")

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        position, members = client_ids.index(client_id), len(client_ids)
        ours = [queue for queue in queues if self._is_ours(queue.broker_name)]
        size, left_over = divmod(len(ours), members)
        share = ours[position * size : (position + 1) * size]
        return [*share, ours[members * size + position]] if position < left_over else share

    def _is_ours(self, broker_name: str) -> bool:
        room, *rest = broker_name.split(ROOM_SEPARATOR)
        return len(rest) == 1 and room in self._rooms


class AllocateMessageQueueConsistentHash:
    """Each queue belongs to the member whose point on the ring comes next; a member has `virtual_nodes` points.

    Hash and texts are RocketMQ's, so its members would compute the same shares. When a member comes or goes, only
    queues that are its own before or after change their owner. RocketMQ's articles advise against this strategy: the
    owner of a queue is hard to see, and the shares are uneven.

    Raises IllegalArgumentError unless `virtual_nodes` is at least 1.
    """

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if type(virtual_nodes) is not int or virtual_nodes < 1:
            raise IllegalArgumentError(f"virtual_nodes has to be an integer of at least 1, not {virtual_nodes!r}")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        owners = {_hash(f"{one}-{node}"): one for one in sorted(client_ids) for node in range(self._virtual_nodes)}
        points = sorted(owners)

        def owner(queue: MessageQueue) -> str:
            following = bisect_left(points, _hash(_text(queue)))
            return owners[points[following % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]


def _text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:HASH_BYTES], "big")


class MachineRoomResolver(Protocol):
    """Tells the room of a broker and of a member, by the same names."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """The room of the queue's broker."""

    def consumer_deploy_in(self, client_id: str) -> str:
        """The room of the member, which its client id has to tell: `<ip>@<instance name>`."""


class AllocateMachineRoomNearby:
    """Shares the queues of each room among the members there, and those of a room without members among all.

    `strategy` does the sharing. Contrary to AllocateMessageQueueByMachineRoom every queue has a member.
    """

    def __init__(self, strategy: AllocateMessageQueueStrategy, resolver: MachineRoomResolver) -> None:
        self._strategy = strategy
        self._resolver = resolver

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        room_of = {one: self._resolver.consumer_deploy_in(one) for one in client_ids}
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(self._resolver.broker_deploy_in(queue), []).append(queue)
        share: set[MessageQueue] = set()
        for room, theirs in by_room.items():
            neighbours = [one for one in client_ids if room_of[one] == room] or client_ids
            share.update(self._strategy.allocate(client_id, theirs, neighbours))
        return [queue for queue in queues if queue in share]


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

    async def run(self, assigned: QueueAssignment) -> None:
        """Keep `assigned` right until cancelled."""
        retry_s = INCOMPLETE_RETRY_S
        while True:
            self._wanted.clear()
            complete = await self._balance_all(assigned)
            self.done_once.set()
            await wait_event(self._instance.clock, self._wanted, REBALANCE_INTERVAL_S if complete else retry_s)
            retry_s = INCOMPLETE_RETRY_S if complete else min(2 * retry_s, REBALANCE_INTERVAL_S)

    async def _balance_all(self, assigned: QueueAssignment) -> bool:
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
        """The group's active members, from any broker that has the topic: its master, or a replica when that is away.

        The list of a broker that does not know this member is ignored: the broker has just started, or lost the
        session, and its list may be incomplete. The list of a broker that has rejected this member counts.
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
                is_rejected = not self._instance.rejections().keys().isdisjoint(addresses.values())
                if self._instance.client_id in response.client_ids or is_rejected:
                    return sorted(response.client_ids)
                code, remark = common_pb.CONSUMER_NOT_ONLINE, "it does not know this member yet"
            error = broker_answer_error(code, remark, broker_name)
        raise error
