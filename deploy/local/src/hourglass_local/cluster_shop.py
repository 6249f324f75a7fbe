"""The shop of a cluster: orders, payments, the sandbox gateway, and their databases.

Invariants: secrets and databases are there before a service starts. A PostgreSQL server lives in a folder of its own,
because its user cannot enter ours, and goes with the cluster: a cluster with one is started once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from hourglass_local.badges import Badges
from hourglass_local.balancer import Balancer
from hourglass_local.ports import LOOPBACK
from hourglass_local.probes import http_ready
from hourglass_local.process import Check, ManagedProcess
from hourglass_local.shop_settings import (
    ShopPlaces,
    ShopSecrets,
    ShopSettings,
    gateway_environment,
    orders_environment,
    payments_environment,
    write_secret,
)
from servicekit.testing.postgresql import PostgresServer

SQLITE = "sqlite+aiosqlite:///"
ORDERS, PAYMENTS, GATEWAY = "orders", "payments", "gateway"
MODULES = {ORDERS: ORDERS, PAYMENTS: PAYMENTS, GATEWAY: "sandbox_gateway"}

# (name, module, arguments, ready, environment) -> process
MakeProcess = Callable[[str, str, Sequence[str], Check, Mapping[str, str]], ManagedProcess]


class ClusterShop:
    """The processes, in the order in which they start, and what one has to know to talk to them."""

    def __init__(
        self,
        folder: Path,
        settings: ShopSettings,
        *,
        orders_ports: Sequence[int],
        payments_ports: Sequence[int],
        gateway_port: int | None,
        balancer_ports: Sequence[int],
        queue_url: str,
        payment_window_ms: int,
        delay_levels: str,
        make_process: MakeProcess,
    ) -> None:
        """Either service may have no port; payments comes with a gateway. `balancer_ports` are for the services that
        have several instances.
        """
        self.settings = settings
        self.secrets = ShopSecrets(folder / "secrets")
        self.database_urls: dict[str, str] = {name: f"{SQLITE}{folder / name}.db" for name in MODULES}
        self.postgresql = PostgresServer(settings.postgresql_settings) if settings.postgresql else None
        if self.postgresql is not None:
            self.database_urls |= {name: self.postgresql.url(name) for name in (ORDERS, PAYMENTS)}
        self.processes: dict[str, ManagedProcess] = {}
        self.urls: dict[str, str] = {}
        self._url_files = {name: self.secrets.folder / f"{name}-database-url" for name in MODULES}
        self._log_folder = folder / "logs"
        self._queue_url = queue_url
        self._make_process = make_process
        self._http: httpx.AsyncClient | None = None
        self._balancers: list[Balancer] = []
        free_ports = iter(balancer_ports)
        places = ShopPlaces(
            self.secrets,
            self._url_files,
            self._address(orders_ports or [8001], free_ports),
            self._address(payments_ports or [8002], free_ports),
            f"http://{LOOPBACK}:{gateway_port}",
        )
        environment = orders_environment(
            settings, places, payment_window_ms=payment_window_ms, delay_levels=delay_levels
        )
        self._add(ORDERS, orders_ports, environment)
        if gateway_port is not None:
            self._add(GATEWAY, [gateway_port], gateway_environment(settings, places))
        self._add(PAYMENTS, payments_ports, payments_environment(settings, places))

    @property
    def badges(self) -> Badges:
        """For the callers of this shop; it has been prepared. Raises OSError."""
        return Badges(self.secrets.keys())

    async def prepare(self) -> None:
        """Make secrets and databases. Raises OSError, and what PostgreSQL raises."""
        if not self.processes:
            return
        self._http = httpx.AsyncClient()
        self.secrets.make()
        if self.postgresql is not None:
            await self._prepare_postgresql(self.postgresql)
        for name, path in self._url_files.items():
            write_secret(path, self.database_urls[name])
        for balancer in self._balancers:
            await balancer.start()

    def urls_of(self, service: str) -> list[str]:
        """Of every instance of orders or payments."""
        return [url for name, url in self.urls.items() if name.partition("-")[0] == service]

    async def close(self) -> None:
        """End what is no managed process; of a PostgreSQL server only its log stays. Harmless after the first time."""
        for balancer in self._balancers:
            await balancer.close()
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        if self.postgresql is not None:
            await asyncio.to_thread(self._remove, self.postgresql)

    async def _prepare_postgresql(self, server: PostgresServer) -> None:
        await asyncio.to_thread(server.start)
        for name in (ORDERS, PAYMENTS):
            await asyncio.to_thread(server.create_database, name)

    def _remove(self, server: PostgresServer) -> None:
        server.stop()
        log = server.folder / "log"
        if log.exists():
            self._log_folder.mkdir(parents=True, exist_ok=True)
            (self._log_folder / "postgresql.log").write_bytes(log.read_bytes())
        server.remove()

    def _address(self, ports: Sequence[int], free_ports: Iterator[int]) -> str:
        """Where the others reach a service: its one instance, or a balancer before several."""
        port = ports[0]
        if len(ports) > 1:
            port = next(free_ports)
            self._balancers.append(Balancer(port, ports))
        return f"http://{LOOPBACK}:{port}"

    def _add(self, service: str, ports: Sequence[int], environment: Mapping[str, str]) -> None:
        for number, port in enumerate(ports, 1):
            self._add_instance(service, service if number == 1 else f"{service}-{number}", port, environment)

    def _add_instance(self, service: str, name: str, port: int, environment: Mapping[str, str]) -> None:
        url, prefix = f"http://{LOOPBACK}:{port}", service.upper()
        queue = {} if service == GATEWAY else {f"{prefix}_MQ_URL": self._queue_url}
        address = {f"{prefix}_LISTEN": f"{LOOPBACK}:{port}"}

        async def ready() -> bool:
            return self._http is not None and await http_ready(self._http, f"{url}/health/ready")

        module, *arguments = [MODULES[service]]
        if name in self.settings.clocks_ahead_ms:
            module, arguments = "hourglass_local.clock_ahead", [str(self.settings.clocks_ahead_ms[name]), module]
        self.urls[name] = url
        self.processes[name] = self._make_process(name, module, arguments, ready, queue | address | dict(environment))
