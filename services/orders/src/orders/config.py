"""The configuration of orders: ORDERS_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orders.domain.delay_levels import (
    PAYMENT_WINDOW_LEVEL,
    DelayLevels,
    default_delay_levels,
    parse_delay_levels,
)
from servicekit.config import (
    COMMON_PARSERS,
    SQLITE_PREFIX,
    ConfigError,
    ServiceConfig,
    read_environment,
    whole_number,
)

DEFAULT_PAYMENT_WINDOW_MS = 1_800_000  # MISSION X3: 30 minutes
DEFAULT_DELAY_LEVELS = default_delay_levels(DEFAULT_PAYMENT_WINDOW_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    """Everything that can be set. Raises ConfigError when values do not go together."""

    PREFIX: ClassVar[str] = "ORDERS_"

    database_url: str = SQLITE_PREFIX + "orders.db"
    listen_port: int = 8001  # 0 lets the operating system choose
    payment_window_ms: int = DEFAULT_PAYMENT_WINDOW_MS
    # The broker's messageDelayLevel; level 16 is the payment window.
    delay_levels: DelayLevels = DEFAULT_DELAY_LEVELS

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.payment_window_ms < 1:
            raise self.error("PAYMENT_WINDOW_MS", f"={self.payment_window_ms}: at least 1 is allowed")
        if self.delay_levels.payment_window_ms != self.payment_window_ms:
            raise ConfigError(
                f"level {PAYMENT_WINDOW_LEVEL} of ORDERS_DELAY_LEVELS is {self.delay_levels.payment_window_ms} ms and"
                f" ORDERS_PAYMENT_WINDOW_MS is {self.payment_window_ms}; an unpaid order closes by level"
                f" {PAYMENT_WINDOW_LEVEL}, so that both have to be equal"
            )


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the ORDERS_* variables make; others are not looked at. Raises ConfigError.

    Without ORDERS_DELAY_LEVELS the levels are RocketMQ's, with level 16 as long as the payment window.
    """
    values = read_environment(environment, Config.PREFIX, _PARSERS)
    if "payment_window_ms" in values and "delay_levels" not in values and values["payment_window_ms"] >= 1:
        values["delay_levels"] = default_delay_levels(values["payment_window_ms"])
    return Config(**values)


def _delay_levels(name: str, text: str) -> dict[str, Any]:
    try:
        return {"delay_levels": parse_delay_levels(text)}
    except ValueError as error:
        raise ConfigError(f"{name}={text!r}: {error}") from None


_PARSERS = {
    **COMMON_PARSERS,
    "PAYMENT_WINDOW_MS": whole_number("payment_window_ms"),
    "DELAY_LEVELS": _delay_levels,
}
