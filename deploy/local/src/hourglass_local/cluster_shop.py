"""The shop of a cluster: orders, payments, the sandbox gateway; their settings, secrets and databases.

Invariants: secrets and databases are there before a service starts. A secret is in its file, which only its owner can
read, and nowhere else; processes are told the path, so that no environment shows one. A PostgreSQL server lives in a
folder of its own, because its user cannot enter ours, and goes with the cluster: a cluster with one is started once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from hourglass_local.balancer import Balancer
from hourglass_local.http_client import AccessTokens
from hourglass_local.ports import LOOPBACK
from hourglass_local.process import Check, ManagedProcess, http_ready
from orders.domain.delay_levels import DEFAULT_DELAYS_TEXT, PAYMENT_WINDOW_LEVEL, parse_delay_levels
from servicekit.auth import Keys, parse_keys
from servicekit.testing.postgresql import NOT_DURABLE, PostgresServer

SQLITE = "sqlite+aiosqlite:///"
ORDERS, PAYMENTS, GATEWAY = "orders", "payments", "gateway"
KEY_NAME = "local"
SECRET_BYTES = 32
INSTANCES_MAX = 9  # processes of one service
WEEK_MS = 7 * 24 * 3600 * 1000

REAL_DELAY_LEVELS = DEFAULT_DELAYS_TEXT

MODULES = {ORDERS: ORDERS, PAYMENTS: PAYMENTS, GATEWAY: "sandbox_gateway"}

# (name, module, arguments, ready, environment) -> process
MakeProcess = Callable[[str, str, Sequence[str], Check, Mapping[str, str]], ManagedProcess]


def with_payment_window(delay: str, *, quick_retries: bool = False) -> str:
    """RocketMQ's levels with level 16 as long as `delay`, such as 10s; `quick_retries`: a second for each before it."""
    delays = REAL_DELAY_LEVELS.split()
    if quick_retries:
        delays[: PAYMENT_WINDOW_LEVEL - 1] = ["1s"] * (PAYMENT_WINDOW_LEVEL - 1)
    delays[PAYMENT_WINDOW_LEVEL - 1] = delay
    return " ".join(delays)


def payment_window_ms(delay_levels: str) -> int:
    """How long level 16 is. Raises ValueError for a text that is not at least 16 delays."""
    return parse_delay_levels(delay_levels).payment_window_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSettings:
    """`orders` and `payments` are how many processes of each share one database. With `postgresql` both have their
    databases on a PostgreSQL server of the cluster's own, else in SQLite files; the gateway, which stands for an
    external system, has its own file. `clocks_ahead_ms` says by the names of processes which of them have a wall clock
    that is wrong. The others are as the services document them. Raises ValueError.
    """

    orders: int = 1
    payments: int = 1
    postgresql: bool = False
    postgresql_settings: Mapping[str, str] = field(default_factory=lambda: NOT_DURABLE)
    rate_limit: str = "off"
    sandbox_sign_in: bool = False
    sample_catalogue: bool = False
    completion_after_ms: int = WEEK_MS
    gateway_failures: str = ""
    gateway_seed: int = 1
    gateway_delay_ms: int = 50
    gateway_silence_ms: int = 5_000
    clocks_ahead_ms: Mapping[str, int] = field(default_factory=dict)
    pool_size: int | None = None

    def __post_init__(self) -> None:
        for service, count in (("orders", self.orders), ("payments", self.payments)):
            if not 1 <= count <= INSTANCES_MAX:
                raise ValueError(f"a cluster has 1 to {INSTANCES_MAX} processes of {service}, not {count}")
            if count > 1 and not self.postgresql:
                raise ValueError(
                    f"several processes of {service} need a PostgreSQL server: a SQLite file is one process's own"
                )


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
    def badges(self) -> AccessTokens:
        """For the callers of this shop; it has been prepared. Raises OSError."""
        return AccessTokens(self.secrets.keys())

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


@dataclass(frozen=True, slots=True)
class ShopSecrets:
    """Paths. `auth_keys` sign the tokens of callers, `gateway_api_key` opens the gateway for payments, and the gateway
    signs its webhooks with `webhook_secret`.
    """

    folder: Path

    @property
    def auth_keys(self) -> Path:
        return self.folder / "auth-keys"

    @property
    def gateway_api_key(self) -> Path:
        return self.folder / "gateway-api-key"

    @property
    def webhook_secret(self) -> Path:
        return self.folder / "webhook-secret"

    def make(self) -> None:
        """Make those that are not there yet. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, prefix in ((self.auth_keys, f"{KEY_NAME}:"), (self.gateway_api_key, ""), (self.webhook_secret, "")):
            if not path.exists():
                write_secret(path, prefix + secrets.token_hex(SECRET_BYTES))

    def keys(self) -> Keys:
        """What tokens are signed with. Raises OSError."""
        return read_keys(self.auth_keys)


def read_keys(path: Path) -> Keys:
    """What is in a file of *_AUTH_KEYS. Raises OSError, and ValueError for what are no keys."""
    return parse_keys(path.read_text(encoding="utf-8").strip())


def write_secret(path: Path, text: str) -> None:
    """Replace the file's content, which only its owner can read at any moment. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")


@dataclass(frozen=True, slots=True)
class ShopPlaces:
    """Where the parts of one shop are, for each other. `database_urls` are files that hold a URL, by service."""

    secrets: ShopSecrets
    database_urls: Mapping[str, Path]
    orders_url: str
    payments_url: str
    gateway_url: str


def orders_environment(
    settings: ShopSettings, places: ShopPlaces, *, payment_window_ms: int, delay_levels: str
) -> dict[str, str]:
    """What orders is told beside its address and the queue's. Keys younger than a release in use are named only where
    they are wanted: an earlier version rejects a key that it does not know.
    """
    return {
        **_common("ORDERS", settings, places),
        "ORDERS_PAYMENT_WINDOW_MS": str(payment_window_ms),
        "ORDERS_DELAY_LEVELS": delay_levels,
        "ORDERS_COMPLETION_AFTER_MS": str(settings.completion_after_ms),
        "ORDERS_PAYMENTS_URL": places.payments_url,
        "ORDERS_SANDBOX_SIGN_IN": "true" if settings.sandbox_sign_in else "false",
        **({"ORDERS_SAMPLE_CATALOGUE": "true"} if settings.sample_catalogue else {}),
    }


def payments_environment(settings: ShopSettings, places: ShopPlaces) -> dict[str, str]:
    """What payments is told beside its address and the queue's."""
    return {
        **_common("PAYMENTS", settings, places),
        "PAYMENTS_GATEWAY_URL": places.gateway_url,
        "PAYMENTS_ORDERS_URL": places.orders_url,
        "PAYMENTS_GATEWAY_API_KEY_FILE": str(places.secrets.gateway_api_key),
        "PAYMENTS_WEBHOOK_SECRETS_FILE": str(places.secrets.webhook_secret),
        "PAYMENTS_GATEWAY_SILENCE_MS": str(settings.gateway_silence_ms),
    }


def gateway_environment(settings: ShopSettings, places: ShopPlaces) -> dict[str, str]:
    """What the gateway is told beside its address."""
    failures = {"GATEWAY_FAILURES": settings.gateway_failures} if settings.gateway_failures else {}
    return {
        "GATEWAY_DATABASE_URL_FILE": str(places.database_urls["gateway"]),
        "GATEWAY_API_KEY_FILE": str(places.secrets.gateway_api_key),
        "GATEWAY_WEBHOOK_URL": f"{places.payments_url}/webhooks/gateway",
        "GATEWAY_WEBHOOK_SECRET_FILE": str(places.secrets.webhook_secret),
        "GATEWAY_DELAY_MS": str(settings.gateway_delay_ms),
        "GATEWAY_SEED": str(settings.gateway_seed),
        **failures,
    }


def _common(prefix: str, settings: ShopSettings, places: ShopPlaces) -> dict[str, str]:
    pool = {} if settings.pool_size is None else {f"{prefix}_DATABASE_POOL_SIZE": str(settings.pool_size)}
    return {
        f"{prefix}_DATABASE_URL_FILE": str(places.database_urls[prefix.lower()]),
        f"{prefix}_AUTH_KEYS_FILE": str(places.secrets.auth_keys),
        f"{prefix}_RATE_LIMIT": settings.rate_limit,
        **pool,
    }
