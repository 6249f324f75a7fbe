"""The configuration of orders: ORDERS_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orders.domain.delay_levels import (
    PAYMENT_WINDOW_LEVEL,
    DelayLevels,
    default_delay_levels,
    parse_delay_levels,
)

PREFIX = "ORDERS_"
SQLITE_PREFIX = "sqlite+aiosqlite:///"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

DEFAULT_PAYMENT_WINDOW_MS = 1_800_000  # MISSION X3: 30 minutes


DEFAULT_DELAY_LEVELS = default_delay_levels(DEFAULT_PAYMENT_WINDOW_MS)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set. Raises ConfigError when values do not go together."""

    database_url: str = SQLITE_PREFIX + "orders.db"
    mq_url: str = "mq://127.0.0.1:9876"
    listen_host: str = "127.0.0.1"
    listen_port: int = 8001  # 0 lets the operating system choose
    payment_window_ms: int = DEFAULT_PAYMENT_WINDOW_MS
    # The broker's messageDelayLevel; level 16 is the payment window.
    delay_levels: DelayLevels = DEFAULT_DELAY_LEVELS
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        path = self.database_url.removeprefix(SQLITE_PREFIX)
        if path == self.database_url or not path or path == ":memory:":
            raise ConfigError(f"ORDERS_DATABASE_URL={self.database_url!r}: allowed is {SQLITE_PREFIX}<path of a file>")
        if "://" not in self.mq_url:
            raise ConfigError(f"ORDERS_MQ_URL={self.mq_url!r}: allowed is a URL such as mq://127.0.0.1:9876")
        if not self.listen_host or not 0 <= self.listen_port <= 65535:
            raise ConfigError(
                f"ORDERS_LISTEN={self.listen_host}:{self.listen_port}: allowed is host:port, port 0 to 65535"
            )
        if self.payment_window_ms < 1:
            raise ConfigError(f"ORDERS_PAYMENT_WINDOW_MS={self.payment_window_ms}: at least 1 is allowed")
        if self.delay_levels.payment_window_ms != self.payment_window_ms:
            raise ConfigError(
                f"level {PAYMENT_WINDOW_LEVEL} of ORDERS_DELAY_LEVELS is {self.delay_levels.payment_window_ms} ms and"
                f" ORDERS_PAYMENT_WINDOW_MS is {self.payment_window_ms}; an unpaid order closes by level"
                f" {PAYMENT_WINDOW_LEVEL}, so that both have to be equal"
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"ORDERS_LOG_LEVEL={self.log_level!r}: allowed are {', '.join(LOG_LEVELS)}")


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the ORDERS_* variables make; others are not looked at. Raises ConfigError.

    Without ORDERS_DELAY_LEVELS the levels are RocketMQ's, with level 16 as long as the payment window.
    """
    values: dict[str, Any] = {}
    for name, text in sorted(environment.items()):
        if not name.startswith(PREFIX):
            continue
        if name not in _PARSERS:
            near = difflib.get_close_matches(name, _PARSERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_PARSERS)}"
            raise ConfigError(f"unknown configuration key {name}; {hint}")
        values |= _PARSERS[name](text)
    if "payment_window_ms" in values and "delay_levels" not in values and values["payment_window_ms"] >= 1:
        values["delay_levels"] = default_delay_levels(values["payment_window_ms"])
    return Config(**values)


def _listen(text: str) -> dict[str, Any]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"ORDERS_LISTEN={text!r}: allowed is host:port, such as 127.0.0.1:8001")
    return {"listen_host": host, "listen_port": int(port)}


def _payment_window(text: str) -> dict[str, Any]:
    try:
        return {"payment_window_ms": int(text)}
    except ValueError:
        raise ConfigError(f"ORDERS_PAYMENT_WINDOW_MS={text!r} is not a whole number of milliseconds") from None


def _delay_levels(text: str) -> dict[str, Any]:
    try:
        return {"delay_levels": parse_delay_levels(text)}
    except ValueError as error:
        raise ConfigError(f"ORDERS_DELAY_LEVELS={text!r}: {error}") from None


_PARSERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "ORDERS_DATABASE_URL": lambda text: {"database_url": text},
    "ORDERS_MQ_URL": lambda text: {"mq_url": text},
    "ORDERS_LISTEN": _listen,
    "ORDERS_PAYMENT_WINDOW_MS": _payment_window,
    "ORDERS_DELAY_LEVELS": _delay_levels,
    "ORDERS_LOG_LEVEL": lambda text: {"log_level": text.upper()},
}
