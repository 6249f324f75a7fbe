"""The machines of a storm: two brokers of one name with all that their processes serve, and two name servers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from client_tasks import ClientTasks
from replica_node import LAYOUT, Node, Process, Settings
from sim_process import SimProcess
from storm_network import RpcNetwork, Services

from mq_broker.core.delays import DelayLevels
from mq_broker.core.replica_state import ReplicationOptions
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.rpc.admin_service import AdminService
from mq_broker.rpc.broker_service import BrokerService
from mq_broker.rpc.registration import HaTerms, Registration
from mq_broker.store.message_store import StoreOptions
from mq_namesrv.config import NamesrvConfig
from mq_namesrv.core import route_table
from mq_namesrv.core.route_table import RouteTable
from mq_namesrv.rpc import NameServiceServicer
from mqproto.names import Address
from osenv import SeededRng, SimClock

BROKER_NAME = "broker-a"
PORT = 10_911
LEVELS = "1s 2s 3s 4s 6s 8s"
FILE_BYTES = 64 * 1_024  # of the log
CHECK_INTERVAL_MS, IMMUNITY_MS = 5_000, 6_000
STOP_S = 5.0  # broker_life.STOP_GRACE_S
NAME_SERVERS = (Address("n1", 9_876), Address("n2", 9_876))
REGISTER_PERIOD_S = 30.0
STEP_S = 0.1  # between two looks at everything
PACE = 2.5  # of the producers: their pauses are so many times storm_clients.PAUSE_S


@dataclass
class Served:
    """By one life of a broker, for its clients."""

    streams: BrokerService
    registering: asyncio.Task[None]


class StormNode(Node):
    """A machine with a broker, and all that its process serves."""

    network: RpcNetwork

    def __init__(
        self, name: str, settings: Settings, clock: SimClock, network: RpcNetwork, tasks: ClientTasks, rng: SeededRng
    ) -> None:
        super().__init__(name, settings, clock, network, tasks, rng)
        self.rate = 1.0
        self.address = f"{name}:{PORT}"
        self.on_open = self._serve
        self._served: Served | None = None

    def start(self) -> None:
        super().start()
        assert self.process is not None
        self.network.processes[self.process.name] = self.process

    def _serve(self, _node: Node, broker: Broker) -> None:
        process = self.process
        assert process is not None
        replication = broker.replication
        ha = HaTerms(self.ha_address, lambda: replication.epoch, replication.master_found, replication.superseded)
        registration = Registration(broker.identity, broker.topics, NAME_SERVERS, process.clock, REGISTER_PERIOD_S, ha)
        broker.route_notices.announce = registration.announce
        streams = BrokerService(broker, asyncio.Event())
        services = {"BrokerService": streams, "AdminService": AdminService(broker, registration, lambda: {})}
        self.network.listen(self.address, process, Services(services, self.network.errors.append).serve)
        registering = asyncio.create_task(registration.run(), name=f"registration of {process.name}")
        self._served = Served(streams, registering)
        self.has_opened(broker)

    def has_opened(self, broker: Broker) -> None:
        """For the world to note."""

    async def before_deaf(self, process: Process) -> None:
        served, self._served = self._served, None
        assert served is not None
        served.registering.cancel()
        await asyncio.gather(served.registering, return_exceptions=True)
        await served.streams.streams.end(process.clock, STOP_S)

    def store_options(self) -> StoreOptions:
        layout = replace(LAYOUT, commit_log_file_bytes=FILE_BYTES, consume_queue_file_entries=1_000)
        return replace(super().store_options(), layout=layout, flush_interval_ms=200)

    def broker_options(self) -> BrokerOptions:
        options = super().broker_options()
        replication = ReplicationOptions(
            role=self.role, ha_address=self.ha_address, min_in_sync_replicas=self.settings.min_in_sync
        )
        return replace(
            options,
            delay_levels=DelayLevels.parse(LEVELS),
            transactions=TransactionOptions(check_interval_ms=CHECK_INTERVAL_MS, immunity_ms=IMMUNITY_MS),
            replication=replication,
        )


@dataclass
class NameServer:
    """A machine with a name server, which forgets all when it dies."""

    address: Address
    clock: SimClock
    network: RpcNetwork
    tasks: ClientTasks
    lives: int = 0
    process: SimProcess | None = None

    def start(self) -> None:
        self.lives += 1
        process = self.process = SimProcess(self.address.host, f"{self.address.host}#{self.lives}", self.clock)
        table = RouteTable(started=process.clock.monotonic())
        config = NamesrvConfig()
        expiry_s = config.broker_expire_timeout_ms / 1_000
        servicer = NameServiceServicer(table, process.clock, lambda: expiry_s)

        async def scan() -> None:
            while True:
                await process.clock.sleep(config.scan_not_active_broker_interval_ms / 1_000)
                route_table.expire(table, process.clock.monotonic(), expiry_s)
                route_table.check_invariants(table)

        services = Services({"NameService": servicer}, self.network.errors.append)
        self.network.listen(str(self.address), process, services.serve)
        process.run(lambda: asyncio.get_running_loop().create_task(scan()))

    def kill(self) -> None:
        """As by SIGKILL."""
        if self.process is not None:
            process, self.process = self.process, None
            self.network.died(process, silently=False)
            process.is_alive = False
            self.tasks.kill(process.name)
