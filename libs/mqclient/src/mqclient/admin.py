"""What an operator asks of the cluster (MISSION N11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient.client_config import ClientConfig
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.errors import ConnectionLostError, IllegalArgumentError, NoRouteError, require_success
from mqclient.lifecycle import Lifecycle, LifecycleEvent
from mqclient.message_ext import MessageExt
from mqclient.message_id import parse_offset_message_id
from mqclient.message_queue import MessageQueue
from mqclient.route import MASTER_ID, TopicRoute
from mqclient.transport.methods import (
    GET_BROKER_STATUS,
    QUERY_MESSAGE,
    SEARCH_OFFSET,
    UPDATE_TOPIC,
    VIEW_MESSAGE,
)
from mqproto.codes import Permission
from mqproto.names import IllegalNameError, check_user_topic
from mqproto.record import RecordError, iter_sealed_records


@dataclass(frozen=True, slots=True)
class DelayLevelStatus:
    """One delay level of one broker; lateness is delivered minus due, since the broker started."""

    level: int
    delay_ms: int
    waiting: int
    delivered: int
    lateness_max_ms: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker as it describes itself; the meaning of each number stands in admin_service.proto."""

    broker_name: str
    broker_id: int
    address: str
    boot_timestamp_ms: int
    log_min_offset: int
    log_max_offset: int
    messages_put: int
    messages_got: int
    messages_stored: int
    polls_held: int
    delay_levels: tuple[DelayLevelStatus, ...]
    store: StoreStatus


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How a broker's store is; the meaning of each number stands in admin_service.proto."""

    confirm_offset: int
    durable_offset: int
    indexed_offset: int
    disk_used_share: float
    write_refusal: str
    damaged: tuple[tuple[int, int], ...]  # (log offset, size)
    files_deleted: int
    messages_carried: int


class Admin:
    """Calls go to every master that a name server knows."""

    def __init__(self, url: str, *, client_config: ClientConfig | None = None) -> None:
        self._url = url
        self._config = client_config or ClientConfig()
        self._lifecycle = Lifecycle("admin")
        self._instance: ClientInstance

    async def start(self) -> None:
        """Join the client instance. Raises UnknownTransportError, IllegalArgumentError, IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.START)
        self._instance = acquire_instance(self._url, self._config)
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self) -> None:
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        await self._instance.release()

    async def update_topic(
        self,
        topic: str,
        *,
        read_queue_count: int = 4,
        write_queue_count: int = 4,
        perm: int = Permission.READ_WRITE,
        cluster_name: str | None = None,
    ) -> None:
        """Create or change the topic on every master, or on those of one cluster.

        Raises IllegalArgumentError, NoRouteError when there is no broker, and the first refusal of a broker.
        """
        try:
            check_user_topic(topic)
        except IllegalNameError as error:
            raise IllegalArgumentError(str(error)) from error
        config = common_pb.TopicConfig(
            topic=topic, read_queue_count=read_queue_count, write_queue_count=write_queue_count, perm=perm
        )
        for broker_name, address in await self._masters(cluster_name):
            response = await self._instance.connection_to(address).unary(
                UPDATE_TOPIC, admin_pb.UpdateTopicRequest(config=config)
            )
            require_success(response.code, response.remark, broker_name)

    async def broker_statuses(self) -> list[BrokerStatus]:
        """Every master's account of itself. Raises NoRouteError when there is none."""
        statuses = []
        for _, address in await self._masters(None):
            response = await self._instance.connection_to(address).unary(
                GET_BROKER_STATUS, admin_pb.GetBrokerStatusRequest()
            )
            statuses.append(_status_from_wire(address, response))
        return statuses

    async def query_message(
        self, topic: str, key: str, *, max_messages: int = 32, begin_ms: int = 0, end_ms: int = 0
    ) -> list[MessageExt]:
        """Messages of the topic with this key or unique id, newest first.

        They were stored from `begin_ms` to `end_ms` (0: no end).
        Asks every master; each gives up to `max_messages`, at most 2,000, and no more than fit one answer (MISSION Q1).
        Raises NoRouteError when there is no broker, and the first refusal of a broker.
        """
        request = broker_pb.QueryMessageRequest(
            topic=topic, key=key, max_messages=max_messages, begin_timestamp_ms=begin_ms, end_timestamp_ms=end_ms
        )
        found: list[MessageExt] = []
        for broker_name, address in await self._masters(None):
            response = await self._instance.connection_to(address).unary(QUERY_MESSAGE, request)
            require_success(response.code, response.remark, broker_name)
            found += _messages(response.records, broker_name)
        return sorted(found, key=lambda message: message.store_timestamp_ms, reverse=True)[: max_messages or None]

    async def view_message(self, message_id: str) -> MessageExt:
        """The message of an id by position (MISSION M8), asked of the broker that the id names.

        Raises IllegalArgumentError for an id that is none, and the broker's refusal when it has no such message.
        """
        host, port, log_offset = parse_offset_message_id(message_id)
        self._lifecycle.require_running()
        response = await self._instance.connection_to(f"{host}:{port}").unary(
            VIEW_MESSAGE, broker_pb.ViewMessageRequest(log_offset=log_offset)
        )
        require_success(response.code, response.remark, f"{host}:{port}")
        (message,) = _messages(response.record, f"{host}:{port}")
        return message

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset of the queue that was stored at or after the time; its end when all are older.

        Raises NoRouteError when no living broker has the queue, and the broker's refusal.
        """
        addresses = dict(await self._masters(None))
        if queue.broker_name not in addresses:
            raise NoRouteError(f"no master lives that is called {queue.broker_name!r}")
        reference = common_pb.QueueRef(topic=queue.topic, queue_id=queue.queue_id)
        response = await self._instance.connection_to(addresses[queue.broker_name]).unary(
            SEARCH_OFFSET, broker_pb.SearchOffsetRequest(queue=reference, timestamp_ms=timestamp_ms)
        )
        require_success(response.code, response.remark, queue.broker_name)
        return int(response.offset)

    async def topic_route(self, topic: str) -> TopicRoute:
        """Where the topic is now, asked of a name server. Raises NoRouteError when it does not exist."""
        self._lifecycle.require_running()
        route = await self._instance.name_servers.query_route(topic)
        if route is None:
            raise NoRouteError(f"no living broker has the topic {topic!r}")
        return route

    async def topic_list(self) -> list[str]:
        """Every topic that a living broker has."""
        self._lifecycle.require_running()
        return await self._instance.name_servers.list_topics()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lifecycle.running:
            await self.shutdown()

    async def _masters(self, cluster_name: str | None) -> Sequence[tuple[str, str]]:
        self._lifecycle.require_running()
        masters = [
            (broker.broker_name, broker.addresses[MASTER_ID])
            for broker in await self._instance.name_servers.list_brokers()
            if MASTER_ID in broker.addresses and cluster_name in (None, broker.cluster_name)
        ]
        if not masters:
            raise NoRouteError(f"no master lives in {'any cluster' if cluster_name is None else cluster_name}")
        return masters


def _messages(records: bytes, broker_name: str) -> list[MessageExt]:
    try:
        return [MessageExt(record, broker_name) for record in iter_sealed_records(records)]
    except RecordError as error:
        raise ConnectionLostError(f"the answer of {broker_name} was damaged on its way: {error}") from error


def _status_from_wire(address: str, response: admin_pb.GetBrokerStatusResponse) -> BrokerStatus:
    store = response.store
    return BrokerStatus(
        broker_name=response.broker_name,
        broker_id=response.broker_id,
        address=address,
        boot_timestamp_ms=response.boot_timestamp_ms,
        log_min_offset=response.log_min_offset,
        log_max_offset=response.log_max_offset,
        messages_put=response.messages_put,
        messages_got=response.messages_got,
        messages_stored=response.messages_stored,
        polls_held=response.polls_held,
        delay_levels=tuple(
            DelayLevelStatus(level.level, level.delay_ms, level.waiting, level.delivered, level.lateness_max_ms)
            for level in response.delay_levels
        ),
        store=StoreStatus(
            confirm_offset=store.confirm_offset,
            durable_offset=store.durable_offset,
            indexed_offset=store.indexed_offset,
            disk_used_share=store.disk_used_share,
            write_refusal=store.write_refusal,
            damaged=tuple((one.log_offset, one.size) for one in store.damaged),
            files_deleted=store.files_deleted,
            messages_carried=store.messages_carried,
        ),
    )
