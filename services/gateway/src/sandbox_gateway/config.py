"""The configuration of the gateway: GATEWAY_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sandbox_gateway.domain import NO_FAILURES, Failures
from sandbox_gateway.gateway import DECLINES_ABOVE_DEFAULT_MINOR, Behaviour
from servicekit.config import (
    COMMON_PARSERS,
    SQLITE_PREFIX,
    ConfigError,
    ServiceConfig,
    as_text,
    as_texts,
    is_http_url,
    read_environment,
    whole_number,
)

SECRET_LENGTH_MIN = 32
DELAY_MAX_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    """Everything that can be set. Raises ConfigError when values do not go together."""

    PREFIX: ClassVar[str] = "GATEWAY_"

    database_url: str = field(default=SQLITE_PREFIX + "gateway.db", repr=False)
    listen_port: int = 8003  # 0 lets the operating system choose
    api_key: str = field(default="", repr=False)
    webhook_url: str = "http://127.0.0.1:8002/webhooks/gateway"
    # Each signs; more than one while the receiver changes to a new one.
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    delay_ms: int = 50
    declines_above_minor: int = DECLINES_ABOVE_DEFAULT_MINOR
    failures: Failures = NO_FAILURES
    seed: int = 1

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        allowed = f"at least {SECRET_LENGTH_MIN} characters, such as `openssl rand -hex 32` prints"
        if len(self.api_key) < SECRET_LENGTH_MIN:
            raise self.error("API_KEY", f" has {len(self.api_key)} characters: needed are {allowed}")
        if not self.webhook_secrets or min(map(len, self.webhook_secrets)) < SECRET_LENGTH_MIN:
            raise self.error("WEBHOOK_SECRET", f" is missing or short: needed are {allowed}")
        if not is_http_url(self.webhook_url):
            raise self.error("WEBHOOK_URL", f"={self.webhook_url!r}: allowed is a URL with http:// or https://")
        if not 0 <= self.delay_ms <= DELAY_MAX_MS:
            raise self.error("DELAY_MS", f"={self.delay_ms}: allowed are 0 to {DELAY_MAX_MS}")
        if self.declines_above_minor < 0:
            raise self.error("DECLINES_ABOVE_MINOR", f"={self.declines_above_minor}: allowed is 0 and more")

    def behaviour(self) -> Behaviour:
        """How the gateway behaves at its start."""
        return Behaviour(self.delay_ms, self.declines_above_minor, self.seed, self.failures)


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the GATEWAY_* variables make; others are not looked at. Raises ConfigError."""
    return Config(**read_environment(environment, Config.PREFIX, _PARSERS))


def _failures(name: str, text: str) -> dict[str, Any]:
    try:
        return {"failures": Failures.parse(text)}
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from error


# The gateway has no queue, and no buyers.
_PARSERS = {
    **{name: COMMON_PARSERS[name] for name in ("DATABASE_URL", "DATABASE_POOL_SIZE", "LISTEN", "LOG_LEVEL")},
    "API_KEY": as_text("api_key"),
    "WEBHOOK_URL": as_text("webhook_url"),
    "WEBHOOK_SECRET": as_texts("webhook_secrets"),
    "DELAY_MS": whole_number("delay_ms"),
    "DECLINES_ABOVE_MINOR": whole_number("declines_above_minor"),
    "FAILURES": _failures,
    "SEED": whole_number("seed"),
}
