"""What the producers, consumers and admins of one client id share.

Invariants: one instance per event loop, URL and client id, made for its first user and shut down with its last one; no
two running instances have the same client id, unless two processes are given the same `instance_name`, of which brokers
reject the second; after its shutdown no task, timer or connection of it is left, whatever hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.config import DEFAULT_INSTANCE_NAME, ClientConfig
from mqclient.connection.broker_connections import BrokerCalls, BrokerConnection, BrokerConnections
from mqclient.connection.produce_stream import ProduceStream
from mqclient.connection.session import InnerConsumer, InnerProducer, Registrations, Reply, ReverseCommands
from mqclient.errors import BrokerRejectedError, IllegalStateError, NoRouteError
from mqclient.lifecycle import BackgroundTasks, Lifecycle, LifecycleEvent, finish_despite_cancellation
from mqclient.message import UniqueIdMaker
from mqclient.name_servers import MASTER_ID, NameServers
from mqclient.route_table import RouteTable
from mqclient.transport import Transport, open_transport
from osenv import RealClock, SystemRng
from osenv.clock import timeout

logger = logging.getLogger("mqclient.client_instance")

GOODBYE_SHARE = 0.2  # of the time for a shutdown: what is kept back to leave the brokers in order
GOODBYE_S_MAX = 1.0

_Key = tuple[asyncio.AbstractEventLoop, str, str, str]
_instances_lock = threading.Lock()  # each event loop has a thread of its own


class ClientInstance:
    """Made by `acquire_instance` for a caller that registers at once; given back with `leave` or `release`."""

    def __init__(self, client_id: str, url: str, config: ClientConfig, transport: Transport) -> None:
        self.client_id = client_id
        self.url = url
        self.config = config
        self.clock = transport.clock
        self.rng = transport.rng
        self.local_ip = transport.local_ip
        self.unique_ids = UniqueIdMaker(transport.rng, transport.local_ip)
        self.tasks = BackgroundTasks(transport.clock)
        self.name_servers = NameServers(transport, config, self.tasks)
        self.routes = RouteTable(
            self.name_servers,
            config.default_topic_queue_nums,
            self.tasks,
            transport.clock,
            self._synchronize_connections,
        )
        self.incarnation = process_name(os.getpid())
        self._registrations = Registrations(client_id, self.incarnation)
        self._commands = ReverseCommands(self._registrations, self.routes, self.tasks)
        self._brokers = BrokerConnections(transport, config, self.tasks, routes=self.routes, handler=self)
        self.calls = BrokerCalls(self._brokers, self.routes, transport.clock)
        self._lifecycle = Lifecycle(f"client instance {client_id}")

    def start(self) -> None:
        """Begin the periodic work; nothing is connected before it is needed. Raises IllegalStateError.

        RocketMQ's order (mechanism L5): the addresses of the name servers first, then the scheduled tasks; pulling and
        balancing begin with each consumer, after this, and in this order.
        """
        self._lifecycle.move(LifecycleEvent.START)
        if self.name_servers.are_looked_up:
            self.tasks.start(self._look_up_name_servers(), "mqclient first look-up of name servers")
        start_scheduled_tasks(self.scheduled_tasks(), self.tasks)
        self._lifecycle.move(LifecycleEvent.STARTED)

    def scheduled_tasks(self) -> tuple[ScheduledTask, ...]:
        """The periodic tasks of the instance (mechanisms L6-L9)."""
        config = self.config
        table = (
            ScheduledTask(
                "name server addresses",
                config.fetch_name_server_addr_first_delay_s,
                config.fetch_name_server_addr_interval_s,
                self._look_up_name_servers,
            ),
            ScheduledTask(
                "route refresh",
                config.poll_name_server_first_delay_s,
                config.poll_name_server_interval_s,
                self.routes.refresh_all,
            ),
            ScheduledTask(
                "heartbeats",
                config.heartbeat_broker_first_delay_s,
                config.heartbeat_broker_interval_s,
                self._clean_offline_brokers_and_beat,
            ),
            ScheduledTask(
                "consumer offsets",
                config.persist_consumer_offset_first_delay_s,
                config.persist_consumer_offset_interval_s,
                self._persist_consumer_offsets,
            ),
        )
        return table if self.name_servers.are_looked_up else table[1:]

    async def leave(
        self, timeout_s: float, *, finish: Callable[[float], Coroutine[Any, Any, None]], unregister: Callable[[], None]
    ) -> None:
        """The shutdown of every user: finish, unregister, release, within `timeout_s` for all of it.

        `finish` waits for what is under way until the monotonic time that it is given, and then breaks it off. If it
        is cancelled, or fails, it is called again with a time that has passed, and the rest is done without waiting.
        """
        deadline = self.clock.monotonic() + timeout_s
        try:
            await finish(deadline - min(GOODBYE_SHARE * timeout_s, GOODBYE_S_MAX))
        except BaseException:
            deadline = self.clock.monotonic()
            await finish_despite_cancellation(finish(deadline))
            raise
        finally:
            unregister()
            await self.release(deadline)

    async def release(self, deadline: float | None = None) -> None:
        """Leave; the last user shuts the instance down, by `deadline` (monotonic) or at once."""
        if not self._registrations.is_empty:
            return
        with _instances_lock:
            for key in [key for key, instance in _instances.items() if instance is self]:
                del _instances[key]
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        left_s = 0.0 if deadline is None else deadline - self.clock.monotonic()
        try:
            if left_s > 0:
                async with timeout(self.clock, left_s):
                    await self._brokers.send_leave_notices()
        except TimeoutError:
            logger.info("client %s is closed before every broker has its leave notice", self.client_id)
        finally:
            await finish_despite_cancellation(self._close())

    async def _close(self) -> None:
        await self.tasks.close()
        await self._brokers.close()
        await self.name_servers.close()

    # ------------------------------------------------------------------------------------------------- brokers

    def connection(self, broker_name: str) -> BrokerConnection:
        """The connection to the broker's master. Raises BrokerUnreachableError when no route names one."""
        return self._brokers.to_master(broker_name)

    def produce_stream(self, broker_name: str) -> ProduceStream:
        """The stream to the broker's master, wherever that is and will be.

        Raises BrokerUnreachableError when no route names the broker, IllegalStateError after the shutdown.
        """
        return self._brokers.producing.to(broker_name)

    def connection_to(self, address: str) -> BrokerConnection:
        """The connection to `address`, made at first use. Raises IllegalStateError after the shutdown."""
        return self._brokers.to(address)

    def readers(self, broker_name: str, wanted_id: int = MASTER_ID) -> list[tuple[int, str]]:
        """Ids and addresses of the brokers that serve reads of this name, the best first; empty without a route.

        The one with the wanted id, else the master, else a replica; those that could not be reached just now come last.
        """
        return self._brokers.readers(broker_name, wanted_id)

    async def unreachable(self, address: str) -> None:
        """A request could not be served there: pass that broker over for a while, and look its successor up."""
        self._brokers.mark_unreachable(address)
        await self.routes.refresh_brokers()

    def is_passed_over(self, address: str) -> bool:
        """Whether `unreachable` was said of it a moment ago."""
        return self._brokers.is_passed_over(address)

    async def wait_for_sessions(self, seconds: float) -> bool:
        """Wait until every broker has answered the newest heartbeat; say whether all have accepted it.

        Of each name its master, or its replicas while it has none.
        """
        return await self._brokers.wait_for_answers(seconds)

    def rejections(self) -> dict[str, BrokerRejectedError]:
        """By address: the brokers that have rejected the newest heartbeat for good (checkClientInBroker)."""
        return self._brokers.rejections()

    def id_in_use(self) -> BrokerRejectedError | None:
        """The answer of a broker at which another running process has this client's id; None when there is none."""
        return self._brokers.id_in_use()

    def _synchronize_connections(self) -> None:
        registered = self._registrations
        self._brokers.follow_routes(producers=bool(registered.producers), consumers=bool(registered.consumers))

    # ------------------------------------------------------------------------------- producers, consumers and admins

    def register_producer(self, group: str, producer: InnerProducer) -> None:
        """Name the group in every heartbeat. Raises IllegalStateError when it is there already (mechanism L14)."""
        self._registrations.add_producer(group, producer)
        self._membership_changed()

    def unregister_producer(self, group: str) -> None:
        self._registrations.remove_producer(group)
        self._membership_changed()

    def register_consumer(self, group: str, consumer: InnerConsumer) -> None:
        """Name the group in every heartbeat. Raises IllegalStateError when it is there already (mechanism L14)."""
        self._registrations.add_consumer(group, consumer)
        self._membership_changed()

    def unregister_consumer(self, group: str) -> None:
        self._registrations.remove_consumer(group)
        self._membership_changed()

    def subscriptions_changed(self) -> None:
        """Tell the brokers what the registered consumers subscribe to now."""
        self._brokers.heartbeat_all()

    def register_admin(self, admin: object) -> None:
        """Keep the instance alive for it; brokers hear nothing of admins. Raises IllegalStateError (mechanism L14)."""
        self._registrations.add_admin(admin)

    def unregister_admin(self, admin: object) -> None:
        self._registrations.remove_admin(admin)

    def in_flight(self) -> list[str]:
        """The calls in flight of its producers and consumers, for people."""
        return list(self._registrations.in_flight())

    def _membership_changed(self) -> None:
        self._synchronize_connections()
        self._brokers.heartbeat_all()

    # ------------------------------------------------------------------------------------- what sessions ask and say

    def heartbeat(self, address: str) -> broker_pb.Heartbeat:
        """All groups of this client that concern the broker at `address`."""
        to_replica = self.routes.broker_name(address) is not None and not self.routes.is_master(address)
        return self._registrations.heartbeat(to_replica=to_replica)

    def session_opened(self, address: str) -> None:
        """A broker knows this client now, so its member lists are worth asking for."""
        logger.debug("the session with %s is open", address)
        self._brokers.is_back(address)
        if self.routes.broker_name(address) is None:
            self.tasks.start(self.routes.refresh_brokers(), f"mqclient addresses after {address} has come back")
        for consumer in self._registrations.consumers.values():
            consumer.session_opened()

    def session_broke(self, address: str) -> None:
        """The broker may be gone, or may come back in another role: ask now, not with the next refresh."""
        self.tasks.start(self.routes.refresh_brokers(), f"mqclient addresses after {address} broke off")

    def heartbeat_answered(self) -> None:
        """A broker has accepted or rejected a heartbeat."""
        self._brokers.heartbeat_answered()

    def command(self, address: str, response: broker_pb.SessionResponse, reply: Reply) -> None:
        """A broker has sent this client a command."""
        self._commands.carry_out(address, response, reply)

    # ------------------------------------------------------------------------------------------- scheduled tasks

    async def _look_up_name_servers(self) -> None:
        try:
            await self.name_servers.look_up()
        except NoRouteError as error:
            logger.warning("the addresses of the name servers could not be fetched, the old ones stay: %s", error)

    async def _clean_offline_brokers_and_beat(self) -> None:
        self._brokers.clean_offline()
        self._brokers.heartbeat_all()

    async def _persist_consumer_offsets(self) -> None:
        if self.routes.lack_masters:  # so that what replicas do now goes back to the masters as soon as they are there
            await self.routes.refresh_brokers()
        await asyncio.gather(*(consumer.persist_offsets() for consumer in self._registrations.consumers.values()))


_instances: dict[_Key, ClientInstance] = {}


def acquire_instance(url: str, config: ClientConfig) -> ClientInstance:
    """The running instance for this loop, URL and client id, started if it is the first (mechanism L4).

    The caller registers before it awaits anything, or releases it. Raises UnknownTransportError and
    IllegalArgumentError for the URL, IllegalStateError when the client id runs with another configuration.
    """
    key = (asyncio.get_running_loop(), url, config.instance_name, config.unit_name)
    with _instances_lock:
        for closed in [known for known in _instances if known[0].is_closed()]:
            del _instances[closed]
        instance = _instances.get(key)
        if instance is None:
            transport = open_transport(url)
            instance = ClientInstance(_client_id(transport.local_ip, config), url, config, transport)
            instance.start()
            _instances[key] = instance
        elif instance.config != config:
            raise IllegalStateError(
                f"the client {instance.client_id} runs with another ClientConfig; "
                f"use the same, or another instance_name"
            )
    return instance


def in_flight(url: str) -> list[str]:
    """The calls in flight of the clients of this URL in this process, for people."""
    with _instances_lock:
        instances = [instance for (_, known, *_), instance in _instances.items() if known == url]
    return [one for instance in instances for one in instance.in_flight()]


@cache
def process_name(pid: int) -> str:
    """A name that no other process has or has had, on this machine or another: containers share addresses and ids.

    Process id, the time of this first call in microseconds since 1970, and 32 random bits, the last two in base 16.
    """
    return f"{pid}#{RealClock().wall_us():x}#{SystemRng().randbytes(4).hex()}"


def _client_id(ip: str, config: ClientConfig) -> str:
    """IP@instanceName[@unitName] (mechanisms L3, L4); a second one of this process gets a number behind its name.

    That is one of another URL or of another event loop: a synchronous face beside an asyncio application has its own.
    """
    name = process_name(os.getpid()) if config.instance_name == DEFAULT_INSTANCE_NAME else config.instance_name
    unit = f"@{config.unit_name}" if config.unit_name else ""
    taken = {instance.client_id for instance in _instances.values()}
    numbers = itertools.count(2)
    client_id = f"{ip}@{name}{unit}"
    while client_id in taken:
        client_id = f"{ip}@{name}#{next(numbers)}{unit}"
    return client_id


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """`action` runs `first_delay_s` after the start, and then with `period_s` between two runs."""

    name: str
    first_delay_s: float
    period_s: float
    action: Callable[[], Awaitable[object]]


def start_scheduled_tasks(table: Iterable[ScheduledTask], tasks: BackgroundTasks) -> None:
    """Start them in their order. An action that raises is logged, and runs again when its time comes."""
    for one in table:
        tasks.start_periodic(
            one.action, first_delay_s=one.first_delay_s, interval_s=one.period_s, name=f"mqclient {one.name}"
        )
