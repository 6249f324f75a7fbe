"""What the producers and consumers of one client id share (MISSION L4, L6-L9).

Invariants: one instance per event loop, URL and client id, made by whoever comes first and shut down by whoever leaves
last; every broker that a cached route names as a master has a connection and, while anybody is registered, a session;
a group is registered at most once as a producer and once as a consumer.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Protocol

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.background import BackgroundTasks, wait_event
from mqclient.broker_connection import BrokerConnection
from mqclient.client_config import DEFAULT_INSTANCE_NAME, ClientConfig
from mqclient.errors import BrokerUnreachableError, IllegalStateError
from mqclient.lifecycle import Lifecycle, LifecycleEvent
from mqclient.message_id import UniqueIdMaker
from mqclient.name_servers import NameServers
from mqclient.route_table import RouteTable
from mqclient.transport import Transport, open_transport
from osenv.clock import timeout

logger = logging.getLogger("mqclient.client_instance")


class InnerProducer(Protocol):
    """What the instance asks of a registered producer."""

    def check_transaction(self, broker_name: str, check: broker_pb.CheckTransaction) -> None: ...


class InnerConsumer(Protocol):
    """What the instance asks of a registered consumer."""

    def consumer_data(self) -> broker_pb.ConsumerData: ...

    def rebalance_now(self) -> None: ...


_Key = tuple[asyncio.AbstractEventLoop, str, str, str]
_instances: dict[_Key, ClientInstance] = {}


class ClientInstance:
    """Made by `acquire_instance`, given back with `release`."""

    def __init__(self, url: str, config: ClientConfig, transport: Transport) -> None:
        instance_name = config.instance_name
        if instance_name == DEFAULT_INSTANCE_NAME:
            instance_name = str(os.getpid())  # MISSION L3
        unit = f"@{config.unit_name}" if config.unit_name else ""
        self.client_id = f"{transport.local_ip}@{instance_name}{unit}"
        self.url = url
        self.config = config
        self.clock = transport.clock
        self.rng = transport.rng
        self.local_ip = transport.local_ip
        self.unique_ids = UniqueIdMaker(transport.rng, transport.local_ip)
        self.name_servers = NameServers(transport, config.name_server_timeout_s)
        self.tasks = BackgroundTasks(transport.clock)
        self.routes = RouteTable(
            self.name_servers, config.default_topic_queue_nums, self.tasks, self._synchronize_connections
        )
        self.users = 0
        self._transport = transport
        self._lifecycle = Lifecycle(f"client instance {self.client_id}")
        self._connections: dict[str, BrokerConnection] = {}
        self._masters: dict[str, BrokerConnection] = {}  # by broker name, forgotten with every change of a route
        self._routed: set[str] = set()  # masters of the routes; an admin's connections may be to others
        self._with_session: set[str] = set()
        self._producers: dict[str, InnerProducer] = {}
        self._consumers: dict[str, InnerConsumer] = {}
        self._session_opened = asyncio.Event()

    def start(self) -> None:
        """Begin the periodic work; nothing is connected before it is needed."""
        self._lifecycle.move(LifecycleEvent.START)
        self.tasks.start_periodic(
            self.routes.refresh_all,
            first_delay_s=self.config.route_refresh_first_delay_s,
            interval_s=self.config.route_refresh_interval_s,
            name="mqclient route refresh",
        )
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def release(self) -> None:
        """Leave; the last one to leave shuts the instance down."""
        self.users -= 1
        if self.users > 0:
            return
        for key in [key for key, instance in _instances.items() if instance is self]:
            del _instances[key]
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        await self.tasks.close()
        connections, self._connections = list(self._connections.values()), {}
        self._masters.clear()
        await asyncio.gather(*(connection.close() for connection in connections))
        await self.name_servers.close()

    # ------------------------------------------------------------------------------------------------- brokers

    def connection(self, broker_name: str) -> BrokerConnection:
        """The connection to the broker's master. Raises BrokerUnreachableError when no route names one."""
        connection = self._masters.get(broker_name)
        if connection is None:
            address = self.routes.master_address(broker_name)
            if address is None:
                raise BrokerUnreachableError(f"no address of the master of broker {broker_name!r} is known")
            connection = self._masters[broker_name] = self.connection_to(address)
        return connection

    def connection_to(self, address: str) -> BrokerConnection:
        """The connection to `address`, made at first use."""
        connection = self._connections.get(address)
        if connection is None:
            self._lifecycle.require_running()
            connection = BrokerConnection(address, self._transport, self.config, self)
            self._connections[address] = connection
        return connection

    def _synchronize_connections(self) -> None:
        """Follow the routes: a session with every master, and nothing with a broker that no route names any more."""
        if not self._lifecycle.running:
            return
        self._masters.clear()
        masters = self.routes.master_addresses()
        for address in self._routed - masters:
            self._with_session.discard(address)
            connection = self._connections.pop(address, None)
            if connection is not None:
                self.tasks.start(connection.close(), f"mqclient close {address}")
        self._routed = masters
        if not self._producers and not self._consumers:
            return
        for address in sorted(masters - self._with_session):
            self._with_session.add(address)
            self.connection_to(address).session.start()

    # ------------------------------------------------------------------------------------- producers and consumers

    def register_producer(self, group: str, producer: InnerProducer) -> None:
        """Name the group in every heartbeat. Raises IllegalStateError when it is there already (MISSION L14)."""
        if group in self._producers:
            raise IllegalStateError(self._registered_twice("producer", group))
        self._producers[group] = producer
        self._membership_changed()

    def unregister_producer(self, group: str) -> None:
        self._producers.pop(group, None)
        self._membership_changed()

    def register_consumer(self, group: str, consumer: InnerConsumer) -> None:
        """Name the group in every heartbeat. Raises IllegalStateError when it is there already (MISSION L14)."""
        if group in self._consumers:
            raise IllegalStateError(self._registered_twice("consumer", group))
        self._consumers[group] = consumer
        self._membership_changed()

    def unregister_consumer(self, group: str) -> None:
        self._consumers.pop(group, None)
        self._membership_changed()

    def _registered_twice(self, kind: str, group: str) -> str:
        return (
            f"the client {self.client_id} has a {kind} of the group {group!r} already; "
            f"share that one, or give the second one a ClientConfig with another instance_name"
        )

    def _membership_changed(self) -> None:
        self._synchronize_connections()
        for address in self._with_session:
            self._connections[address].session.heartbeat_now()

    # ------------------------------------------------------------------------------------- what sessions ask and say

    def heartbeat(self) -> broker_pb.Heartbeat:
        """The whole truth about this client."""
        return broker_pb.Heartbeat(
            client_id=self.client_id,
            producers=[broker_pb.ProducerData(group=group) for group in sorted(self._producers)],
            consumers=[consumer.consumer_data() for _, consumer in sorted(self._consumers.items())],
        )

    def session_ready(self, address: str) -> None:
        """A broker knows this client now, so its member lists are worth asking for."""
        logger.debug("the session with %s is open", address)
        self._session_opened.set()
        for consumer in self._consumers.values():
            consumer.rebalance_now()

    def consumer_ids_changed(self, group: str) -> None:
        consumer = self._consumers.get(group)
        if consumer is not None:
            consumer.rebalance_now()

    def check_transaction(self, address: str, check: broker_pb.CheckTransaction) -> None:
        """A broker wants to know what has become of a half message."""
        producer = self._producers.get(check.producer_group)
        broker_name = self.routes.broker_name(address)
        if producer is None or broker_name is None:
            what = "its producer group" if producer is None else "the broker"
            logger.warning("the check of %s by %s: %s has left this client", check.transaction_id, address, what)
        else:
            producer.check_transaction(broker_name, check)

    async def wait_for_sessions(self, seconds: float) -> bool:
        """Wait until every session is open, for at most `seconds`, and say whether that came true."""
        try:
            async with timeout(self.clock, seconds):
                while any(not self._connections[address].session.ready.is_set() for address in self._with_session):
                    self._session_opened.clear()
                    await wait_event(self.clock, self._session_opened, seconds)
        except TimeoutError:
            return False
        return True


def acquire_instance(url: str, config: ClientConfig) -> ClientInstance:
    """The running instance for this loop, URL and client id, started if it is the first (MISSION L4).

    Raises UnknownTransportError and IllegalArgumentError for the URL, IllegalStateError when the client id runs with
    another configuration.
    """
    for key in [key for key in _instances if key[0].is_closed()]:
        del _instances[key]
    key = (asyncio.get_running_loop(), url, config.instance_name, config.unit_name)
    instance = _instances.get(key)
    if instance is None:
        instance = ClientInstance(url, config, open_transport(url))
        instance.start()
        _instances[key] = instance
    elif instance.config != config:
        raise IllegalStateError(
            f"the client {instance.client_id} runs with another ClientConfig; use the same, or another instance_name"
        )
    instance.users += 1
    return instance
