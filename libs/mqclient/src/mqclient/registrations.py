"""Who uses a client instance (MISSION L14).

Invariants: a group is registered at most once as a producer and once as a consumer; every heartbeat names exactly the
groups that are registered; an instance lives as long as anybody is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.errors import IllegalStateError
from mqclient.message import MessageExt


class InnerProducer(Protocol):
    """What the instance asks of a registered producer."""

    @property
    def in_flight(self) -> int: ...

    def check_transaction(self, broker_name: str, check: broker_pb.CheckTransaction) -> None: ...


class InnerConsumer(Protocol):
    """What the instance asks of a registered consumer."""

    @property
    def in_flight(self) -> int: ...

    def consumer_data(self) -> broker_pb.ConsumerData: ...

    def rebalance_now(self) -> None: ...

    def session_opened(self) -> None: ...

    def reset_offsets(
        self, broker_name: str, queues: Sequence[broker_pb.QueueProgress], *, by_slave: bool = False
    ) -> None: ...

    async def persist_offsets(self) -> None: ...

    def running_info(self, broker_name: str) -> broker_pb.ConsumerRunningInfo: ...

    async def consume_directly(self, message: MessageExt) -> broker_pb.ConsumeDirectlyResult: ...


class Registrations:
    """The producers and consumers of one client by group, and its admins, who have none."""

    def __init__(self, client_id: str, incarnation: str = "") -> None:
        self._client_id = client_id
        self._incarnation = incarnation
        self.producers: dict[str, InnerProducer] = {}
        self.consumers: dict[str, InnerConsumer] = {}
        self._admins: set[object] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left."""
        return not (self.producers or self.consumers or self._admins)

    def in_flight(self) -> Iterator[str]:
        """What is under way, for people: sends without a result, listeners without an answer."""
        for group, producer in self.producers.items():
            if producer.in_flight:
                yield f"producer {group}: {producer.in_flight} calls without a result"
        for group, consumer in self.consumers.items():
            if consumer.in_flight:
                yield f"consumer {group}: {consumer.in_flight} listeners without an answer"

    def add_producer(self, group: str, producer: InnerProducer) -> None:
        """Raises IllegalStateError when the group is there already."""
        if group in self.producers:
            raise IllegalStateError(self._twice("producer", group))
        self.producers[group] = producer

    def add_consumer(self, group: str, consumer: InnerConsumer) -> None:
        """Raises IllegalStateError when the group is there already."""
        if group in self.consumers:
            raise IllegalStateError(self._twice("consumer", group))
        self.consumers[group] = consumer

    def add_admin(self, admin: object) -> None:
        """Raises IllegalStateError when this very admin is there already."""
        if admin in self._admins:
            raise IllegalStateError(f"the client {self._client_id} has this admin already")
        self._admins.add(admin)

    def remove_producer(self, group: str) -> None:
        self.producers.pop(group, None)

    def remove_consumer(self, group: str) -> None:
        self.consumers.pop(group, None)

    def remove_admin(self, admin: object) -> None:
        self._admins.discard(admin)

    def heartbeat(self, *, to_slave: bool = False) -> broker_pb.Heartbeat:
        """The whole truth about this client; a slave hears nothing of producers, whom it never asks for anything."""
        producers = () if to_slave else sorted(self.producers)
        return broker_pb.Heartbeat(
            client_id=self._client_id,
            producers=[broker_pb.ProducerData(group=group) for group in producers],
            consumers=[consumer.consumer_data() for _, consumer in sorted(self.consumers.items())],
            incarnation=self._incarnation,
        )

    def _twice(self, kind: str, group: str) -> str:
        return (
            f"the client {self._client_id} has a {kind} of the group {group!r} already; "
            f"share that one, or give the second one a ClientConfig with another instance_name"
        )
