"""The configuration of payments: PAYMENTS_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from payments.service.gateway import PATIENCE_S
from payments.service.receive_event import SECRET_MIN_CHARACTERS
from payments.service.settlement import CHARGE_LATE_MAX_MS
from servicekit.config import (
    RECONCILING_PARSERS,
    SQLITE_PREFIX,
    ReconcilingConfig,
    as_text,
    as_texts,
    is_http_url,
    read_environment,
    whole_number,
)

DEFAULT_GATEWAY_SILENCE_MS = 5_000
_MAKE_ONE = 'make one with: python -c "import secrets; print(secrets.token_hex(32))"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ReconcilingConfig):
    """Everything that can be set. Raises ConfigError when values do not go together, and repeats no secret in it.

    Every one of `webhook_secrets` is taken, so that the gateway can change over to a new one. `gateway_silence_ms` is
    how long the gateway may be silent about a charge or a refund before it is asked. A charge may still reach
    the gateway `charge_late_max_ms` after the end of its hold; its payment ends with its order only then.
    """

    PREFIX: ClassVar[str] = "PAYMENTS_"

    database_url: str = field(default=SQLITE_PREFIX + "payments.db", repr=False)
    listen_port: int = 8002  # 0 lets the operating system choose
    gateway_url: str = "http://127.0.0.1:8003"
    orders_url: str = "http://127.0.0.1:8001"
    gateway_api_key: str = field(default="", repr=False)
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    gateway_silence_ms: int = DEFAULT_GATEWAY_SILENCE_MS
    charge_late_max_ms: int = CHARGE_LATE_MAX_MS

    def __post_init__(self) -> None:
        ReconcilingConfig.__post_init__(self)
        self.require_auth_keys()
        if not is_http_url(self.gateway_url):
            raise self.error("GATEWAY_URL", f"={self.gateway_url!r}: allowed is a URL such as http://127.0.0.1:8003")
        if not is_http_url(self.orders_url):
            raise self.error("ORDERS_URL", f"={self.orders_url!r}: allowed is a URL such as http://127.0.0.1:8001")
        if not (self.gateway_api_key and self.gateway_api_key.isascii() and self.gateway_api_key.isprintable()):
            raise self.error(
                "GATEWAY_API_KEY", " is not set, or not of printable ASCII: it is the key that the gateway gave"
            )
        if not self.webhook_secrets or min(len(secret) for secret in self.webhook_secrets) < SECRET_MIN_CHARACTERS:
            raise self.error(
                "WEBHOOK_SECRETS",
                f" takes secrets of at least {SECRET_MIN_CHARACTERS} characters, with commas between, that the gateway"
                f" signs with; {_MAKE_ONE}",
            )
        if self.gateway_silence_ms < 1:
            raise self.error("GATEWAY_SILENCE_MS", f"={self.gateway_silence_ms}: at least 1 is allowed")
        if self.charge_late_max_ms < PATIENCE_S * 1000:
            raise self.error(
                "CHARGE_LATE_MAX_MS",
                f"={self.charge_late_max_ms}: at least {PATIENCE_S * 1000:.0f} is allowed, for which the gateway is"
                " waited for",
            )


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the PAYMENTS_* variables make; others are not looked at. Raises ConfigError."""
    return Config(**read_environment(environment, Config.PREFIX, _PARSERS))


_PARSERS = {
    **RECONCILING_PARSERS,
    "GATEWAY_URL": as_text("gateway_url"),
    "ORDERS_URL": as_text("orders_url"),
    "GATEWAY_API_KEY": as_text("gateway_api_key"),
    "WEBHOOK_SECRETS": as_texts("webhook_secrets"),
    "GATEWAY_SILENCE_MS": whole_number("gateway_silence_ms"),
    "CHARGE_LATE_MAX_MS": whole_number("charge_late_max_ms"),
}
