"""Where a topic's queues are (MISSION N6, N10, P21)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.message import MessageQueue
from mqproto.codes import Permission

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """What one broker name offers of a topic; `perm` has RocketMQ's bits."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues and the addresses of the brokers that have them, by broker name and broker id."""

    topic: str
    queues: tuple[BrokerQueues, ...]
    brokers: Mapping[str, Mapping[int, str]]

    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that can be written: allowed, and on a broker whose master lives. Sorted."""
        return tuple(
            sorted(
                MessageQueue(self.topic, queues.broker_name, queue_id)
                for queues in self.queues
                if queues.perm & Permission.WRITE and MASTER_ID in self.brokers.get(queues.broker_name, {})
                for queue_id in range(queues.write_queue_count)
            )
        )

    def subscribe_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that can be read. Sorted."""
        return tuple(
            sorted(
                MessageQueue(self.topic, queues.broker_name, queue_id)
                for queues in self.queues
                if queues.perm & Permission.READ and self.brokers.get(queues.broker_name)
                for queue_id in range(queues.read_queue_count)
            )
        )

    @property
    def waits_for_master(self) -> bool:
        """Whether there are queues that could be written if the master of their broker lived."""
        return any(
            queues.perm & Permission.WRITE
            and queues.write_queue_count
            and MASTER_ID not in self.brokers.get(queues.broker_name, {MASTER_ID: ""})
            for queues in self.queues
        )

    def with_addresses(self, told: Mapping[str, Mapping[int, str]]) -> TopicRoute:
        """This route, and its brokers where `told` says that they are; itself when nothing differs."""
        if all(told.get(name, addresses) == addresses for name, addresses in self.brokers.items()):
            return self
        return replace(self, brokers={name: told.get(name, addresses) for name, addresses in self.brokers.items()})

    def for_new_topic(self, topic: str, queue_count_max: int) -> TopicRoute:
        """This route, the default topic's, as the guess for `topic`, which the first message will create (N8)."""
        queues = tuple(
            BrokerQueues(
                queues.broker_name,
                min(queue_count_max, queues.read_queue_count),
                min(queue_count_max, queues.write_queue_count),
                queues.perm,
            )
            for queues in self.queues
        )
        return TopicRoute(topic, queues, self.brokers)


def route_from_wire(topic: str, route: name_pb.TopicRoute) -> TopicRoute:
    """The answer of a name server as a TopicRoute."""
    return TopicRoute(
        topic,
        tuple(
            BrokerQueues(data.broker_name, data.read_queue_count, data.write_queue_count, data.perm)
            for data in route.queues
        ),
        {data.broker_name: dict(data.addresses) for data in route.brokers},
    )
