"""The settings of a shop, and its secrets."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from servicekit.auth import Keys, parse_keys
from servicekit.testing.postgresql import NOT_DURABLE

# ----------------------------------------------------------------------------------------------------------------------
# The secrets of one shop, each in a file that only its owner can read: made once, and kept with the cluster.
#
# Invariant: a secret is in its file and nowhere else; processes are told the path, so that no environment shows one.


KEY_NAME = "local"
SECRET_BYTES = 32


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
    """Replace the file's content; nobody else can read it at any moment. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")


# ----------------------------------------------------------------------------------------------------------------------
# How the shop of a cluster is set: orders, payments and the sandbox gateway, each by its own environment.


INSTANCES_MAX = 9  # processes of one service
WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSettings:
    """`orders` and `payments` are how many processes of each share one database. With `postgresql` both have their
    databases on a PostgreSQL server of the cluster's own, else in SQLite files; the gateway, which stands for somebody
    else's system, has its own file. `clocks_ahead_ms` says by the names of processes which of them have a wall clock
    that is wrong. The others are as the services document them. Raises ValueError.
    """

    orders: int = 1
    payments: int = 1
    postgresql: bool = False
    postgresql_settings: Mapping[str, str] = field(default_factory=lambda: NOT_DURABLE)
    rate_limit: str = "off"
    sandbox_sign_in: bool = False
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
    """What orders is told beside its address and the queue's."""
    return {
        **_common("ORDERS", settings, places),
        "ORDERS_PAYMENT_WINDOW_MS": str(payment_window_ms),
        "ORDERS_DELAY_LEVELS": delay_levels,
        "ORDERS_COMPLETION_AFTER_MS": str(settings.completion_after_ms),
        "ORDERS_PAYMENTS_URL": places.payments_url,
        "ORDERS_SANDBOX_SIGN_IN": "true" if settings.sandbox_sign_in else "false",
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
