"""A whole Hourglass on this machine: name servers, brokers, orders, payments, gateway, each a process of its own.

Invariants: started in the order name servers, brokers, services (mechanism N1), each kind ready before the next begins,
orders before payments; stopped in reverse, and PostgreSQL, if there is one, last; after `stop` no process of the
cluster runs. Everything on disk lies below the cluster's folder. When `start` returns, every replica has all that its
master has.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NoReturn, Self

import psutil

from hourglass_local.cluster_shop import (
    GATEWAY,
    ORDERS,
    PAYMENTS,
    REAL_DELAY_LEVELS,
    ClusterShop,
    ShopSettings,
    payment_window_ms,
)
from hourglass_local.http_client import AccessTokens
from hourglass_local.ports import LOOPBACK, ClusterPorts, addresses, check_free, free_ports
from hourglass_local.process import (
    Check,
    ManagedProcess,
    ProcessDiedError,
    grpc_serving,
    is_in_sync,
    registered_brokers,
)
from hourglass_local.waiting import eventually
from telemetry.settings import PROMETHEUS_PORT

SYNC_FLUSH, ASYNC_FLUSH = "SYNC_FLUSH", "ASYNC_FLUSH"
ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
REPLICA_ID = "1"
ANY_REPLICATION_PORT: Mapping[str, str] = MappingProxyType({"haListenPort": "0"})  # of a broker without a replica
COMMIT_LOG_FILE_BYTES = 16 * 1024 * 1024  # RocketMQ's 1 GiB would be allocated at every start
# A half message whose end the broker did not hear of is asked for after seconds, and not after a minute.
QUICK_CHECKS: Mapping[str, str] = MappingProxyType({"transactionCheckInterval": "1000", "transactionTimeOut": "2000"})
# A machine's disk is often fuller than 85 %, where a broker that has it for itself begins to delete messages.
SHARED_DISK: Mapping[str, str] = MappingProxyType(
    {
        "diskFreeBytesEnough": str(256 * 1024 * 1024),
        "diskSpaceCleanForciblyRatio": "97",
        "diskSpaceWarningLevelRatio": "98",
    }
)
REGISTER_TIMEOUT_S = 10.0
IN_SYNC_TIMEOUT_S = 30.0
WATCH_INTERVAL_S = 0.1
OnDeath = Callable[[ManagedProcess, ProcessDiedError], Awaitable[None]]
BROKERS_MAX = len(string.ascii_lowercase)


@dataclass(frozen=True, slots=True)
class StopReport:
    """How the processes ended; names and sentences for people."""

    killed: tuple[str, ...]  # SIGTERM was not enough
    failed: tuple[str, ...]  # ended with another code than 0
    leftover: tuple[int, ...]  # process ids that are still there


class Cluster:
    """An async context manager; `start` and `stop` for callers that cannot use one."""

    def __init__(
        self,
        folder: Path,
        *,
        name_servers: int = 1,
        brokers: int = 1,
        replicas_of: str | None = None,
        orders: bool = True,
        payments: bool | None = None,
        delay_levels: str = REAL_DELAY_LEVELS,
        flush: str = SYNC_FLUSH,
        commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES,
        broker_settings: Mapping[str, str] | None = None,
        shop: ShopSettings | None = None,
        ports: Sequence[int] | None = None,
        environment: Mapping[str, str] | None = None,
        metrics_port: int | None = None,
    ) -> None:
        """`replicas_of` is the role of masters that have a replica each, ASYNC_MASTER or SYNC_MASTER; None: they have
        none. `ports` are dealt in the order of ClusterPorts; free ones without it. Payments, with its gateway, runs
        where orders runs, unless it is said. `environment` is for every process, such as OpenTelemetry's variables;
        with `metrics_port` each process has a page of metrics, at this port and the ones behind it, in the order of
        `processes` (0: any free port each).

        Raises ValueError for counts, delay levels and ports that do not go together, OSError without free ports.
        """
        if name_servers < 1 or not 0 <= brokers <= BROKERS_MAX:
            raise ValueError(f"a cluster has at least one name server and 0 to {BROKERS_MAX} brokers")
        if replicas_of not in (None, ASYNC_MASTER, SYNC_MASTER):
            raise ValueError(f"replicas_of is {replicas_of!r}; allowed are {ASYNC_MASTER} and {SYNC_MASTER}")
        payments = orders if payments is None else payments
        shop = shop or ShopSettings()
        orders_count = shop.orders if orders else 0
        payments_count = shop.payments if payments else 0
        self._ports = ClusterPorts.dealt(
            ports,
            name_servers=name_servers,
            brokers=brokers,
            services=orders_count + payments_count + payments,
            replicas=brokers if replicas_of else 0,
            balancers=(orders_count > 1) + (payments_count > 1),
        )
        self._environment = dict(environment or {})
        self.metrics_addresses: dict[str, str] = {}  # by the process's name
        self._metrics_port = metrics_port
        self.folder = folder.absolute()
        self.delay_levels = delay_levels
        self.commit_log_file_bytes = commit_log_file_bytes
        self.payment_window_ms = payment_window_ms(delay_levels)
        self.name_server_addresses = addresses(self._ports.name_servers)
        self._frames_addresses = addresses(free_ports(name_servers))
        self.broker_addresses = addresses(self._ports.brokers)
        self.replica_addresses = addresses(self._ports.replicas)
        self._broker_settings = {
            "flushDiskType": flush,
            "messageDelayLevel": delay_levels,
            "mappedFileSizeCommitLog": str(commit_log_file_bytes),
            **SHARED_DISK,
        } | dict(broker_settings or {})
        self._addresses: dict[str, str] = {}
        self.name_servers = [self._name_server(number) for number in range(name_servers)]
        self.brokers = [self._master(number, replicas_of) for number in range(brokers)]
        self.replicas = [self._replica(number) for number in range(len(self.replica_addresses))]
        self.shop = ClusterShop(
            self.folder,
            shop,
            orders_ports=self._ports.services[:orders_count],
            payments_ports=self._ports.services[orders_count : orders_count + payments_count],
            gateway_port=self._ports.services[-1] if payments else None,
            balancer_ports=self._ports.balancers,
            queue_url=self.url,
            payment_window_ms=self.payment_window_ms,
            delay_levels=delay_levels,
            make_process=self._process,
        )

    @property
    def url(self) -> str:
        """For mqclient."""
        return "mq://" + ";".join(self.name_server_addresses)

    @property
    def frames_url(self) -> str:
        """For mqclient, by RocketMQ's frames."""
        return "mq+frames://" + ";".join(self._frames_addresses)

    @property
    def orders(self) -> ManagedProcess:
        """Raises KeyError in a cluster without orders."""
        return self.shop.processes[ORDERS]

    @property
    def orders_url(self) -> str:
        """Raises KeyError in a cluster without orders."""
        return self.shop.urls[ORDERS]

    @property
    def payments(self) -> ManagedProcess:
        """Raises KeyError in a cluster without payments."""
        return self.shop.processes[PAYMENTS]

    @property
    def payments_url(self) -> str:
        """Raises KeyError in a cluster without payments."""
        return self.shop.urls[PAYMENTS]

    @property
    def gateway(self) -> ManagedProcess:
        """Raises KeyError in a cluster without payments."""
        return self.shop.processes[GATEWAY]

    @property
    def gateway_url(self) -> str:
        """Raises KeyError in a cluster without payments."""
        return self.shop.urls[GATEWAY]

    @property
    def badges(self) -> AccessTokens:
        """For callers of orders and payments, once the cluster has been started."""
        return self.shop.badges

    @property
    def processes(self) -> list[ManagedProcess]:
        """All, in the order in which they start."""
        return [*self.name_servers, *self.brokers, *self.replicas, *self.shop.processes.values()]

    def address(self, broker: ManagedProcess) -> str:
        """host:port of a broker or replica."""
        return self._addresses[broker.name]

    def store_folder(self, broker: ManagedProcess) -> Path:
        """Where the broker keeps its messages."""
        return self.folder / f"{broker.name}-store"

    async def start(self) -> None:
        """Start everything. Raises PortInUseError, ProcessDiedError, ProcessNotReadyError; then nothing runs."""
        check_free([*self._ports.all, *self._metrics_ports()])  # another program there would be taken for ours
        try:
            await self.shop.prepare()
            for group in (self.name_servers, [*self.brokers, *self.replicas]):
                await _start_together(group)
            await self.wait_in_sync()
            await _start_together(list(self.shop.processes.values()))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> StopReport:
        """Stop everything in reverse order. Harmless when it has stopped already."""
        failed = []
        for process in reversed(self.processes):
            was_running = process.running
            await process.terminate()
            if was_running and not process.was_killed_to_stop and process.exit_code != 0:
                failed.append(f"{process.name} ended with code {process.exit_code}")
        await self.shop.close()
        return StopReport(
            killed=tuple(process.name for process in self.processes if process.was_killed_to_stop),
            failed=tuple(failed),
            leftover=self.leftover(),
        )

    def check(self) -> None:
        """Raises ProcessDiedError when a process has ended by itself."""
        for process in self.processes:
            process.check()

    async def watch(self, on_death: OnDeath | None = None) -> NoReturn:
        """Measure every process again and again, and hand each that has ended by itself to `on_death`.

        Without it, and where it raises, ProcessDiedError is raised as soon as one has ended by itself.
        """
        while True:
            for process in self.processes:
                try:
                    process.check()
                except ProcessDiedError as error:
                    if on_death is None:
                        raise
                    await on_death(process, error)
                process.sample()
            await asyncio.sleep(WATCH_INTERVAL_S)

    def leftover(self) -> tuple[int, ...]:
        """Ids of processes that the cluster started, or that they started, and that still run."""
        own = {pid for process in self.processes for pid in process.pids}
        return tuple(sorted(child.pid for child in psutil.Process().children(recursive=True) if child.pid in own))

    async def wait_registered(self) -> None:
        """Return when every name server that runs knows every broker that runs. Raises NotInTimeError."""
        await eventually(self._all_registered, REGISTER_TIMEOUT_S, "brokers registered with all name servers")

    async def wait_in_sync(self) -> None:
        """Return when one of each pair is in sync with the other, whichever is the replica now.

        Raises NotInTimeError, and ProcessDiedError.
        """
        for pair in zip(self.brokers, self.replicas, strict=False):
            await eventually(partial(self._is_in_sync, pair), IN_SYNC_TIMEOUT_S, f"{pair[1].name} is in sync")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _name_server(self, number: int) -> ManagedProcess:
        address = self.name_server_addresses[number]
        suffix = f"-{number + 1}" if len(self.name_server_addresses) > 1 else ""

        async def ready() -> bool:
            return await grpc_serving(address)

        arguments = [f"listenPort={_port(address)}", f"framesListenPort={_port(self._frames_addresses[number])}"]
        return self._process(f"name-server{suffix}", "mq_namesrv", arguments, ready)

    def _master(self, number: int, role: str | None) -> ManagedProcess:
        settings = ANY_REPLICATION_PORT if role is None else {"brokerRole": role} | self._replication_settings(number)
        return self._broker(_broker_name(number), _broker_name(number), self.broker_addresses[number], settings)

    def _replica(self, number: int) -> ManagedProcess:
        settings = {"brokerRole": SLAVE, "brokerId": REPLICA_ID} | self._replication_settings(
            len(self.brokers) + number
        )
        name = _broker_name(number)
        return self._broker(f"{name}-s", name, self.replica_addresses[number], settings)

    def _replication_settings(self, number: int) -> dict[str, str]:
        return {"haListenPort": str(self._ports.replication[number])}

    def _broker(self, process_name: str, name: str, address: str, own_settings: Mapping[str, str]) -> ManagedProcess:
        self._addresses[process_name] = address
        settings = {
            "brokerName": name,
            "listenPort": _port(address),
            "storePathRootDir": str(self.folder / f"{process_name}-store"),
            **own_settings,
            **self._broker_settings,
        }
        arguments = ["-n", ";".join(self.name_server_addresses), *(f"{key}={value}" for key, value in settings.items())]

        async def ready() -> bool:
            return await grpc_serving(address) and await self._is_registered(address)

        return self._process(process_name, "mq_broker", arguments, ready)

    def _process(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        ready: Check,
        environment: Mapping[str, str] | None = None,
    ) -> ManagedProcess:
        module, *arguments = self._program(name, [module, *arguments])
        log_path = self.folder / "logs" / f"{name}.log"
        everything = self._environment | self._metrics_variables(name) | dict(environment or {})
        return ManagedProcess(name, module, arguments, ready=ready, log_path=log_path, environment=everything)

    def _metrics_variables(self, name: str) -> dict[str, str]:
        """One page of metrics a process: all of them inherit the variable, and one port serves one process."""
        if self._metrics_port is None:
            return {}
        port = self._metrics_port and self._metrics_port + len(self.metrics_addresses)
        self.metrics_addresses[name] = f"{LOOPBACK}:{port}"
        return {PROMETHEUS_PORT: str(port)}

    def _metrics_ports(self) -> list[int]:
        ports = (int(_port(address)) for address in self.metrics_addresses.values())
        return [port for port in ports if port]

    def _program(self, _name: str, program: list[str]) -> list[str]:
        """The module and its arguments that the process really runs; a benchmark puts a profiler in front."""
        return program

    async def _is_in_sync(self, pair: Sequence[ManagedProcess]) -> bool:
        self.check()
        return any([await is_in_sync(self.address(process)) for process in pair])

    async def _is_registered(self, broker_address: str) -> bool:
        known = await self._known_brokers()
        return all(broker_address in brokers for brokers in known)

    async def _all_registered(self) -> bool:
        known = await self._known_brokers()
        wanted = {self.address(broker) for broker in (*self.brokers, *self.replicas) if broker.running}
        return all(wanted <= brokers for brokers in known)

    async def _known_brokers(self) -> list[set[str]]:
        """What each name server that runs knows."""
        servers = zip(self.name_servers, self.name_server_addresses, strict=True)
        return await asyncio.gather(*(registered_brokers(address) for server, address in servers if server.running))


async def _start_together(processes: Sequence[ManagedProcess]) -> None:
    for process in processes:
        process.launch()
    for process in processes:
        await process.wait_ready()


def _broker_name(number: int) -> str:
    return f"broker-{string.ascii_lowercase[number]}"


def _port(address: str) -> str:
    return address.rpartition(":")[2]
