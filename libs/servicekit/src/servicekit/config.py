"""The configuration of a service: variables with its prefix, parsed once into one frozen dataclass.

@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    PREFIX: ClassVar[str] = "ORDERS_"
    payment_window_ms: int = 1_800_000

Config(**read_environment(os.environ, "ORDERS_", COMMON_PARSERS | {"PAYMENT_WINDOW_MS": whole_number("...")}))
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

SQLITE_PREFIX = "sqlite+aiosqlite:///"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# A parser gets the variable's whole name and its text, and returns the fields that it sets. Raises ConfigError.
Parser = Callable[[str, str], dict[str, Any]]


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What every service needs. A subclass names its PREFIX, adds fields, and calls this `__post_init__` from its own.

    Raises ConfigError when values do not go together.
    """

    PREFIX: ClassVar[str]

    database_url: str
    mq_url: str = "mq://127.0.0.1:9876"
    listen_host: str = "127.0.0.1"
    listen_port: int = 0  # 0 lets the operating system choose
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        path = self.database_url.removeprefix(SQLITE_PREFIX)
        if path == self.database_url or not path or path == ":memory:":
            raise self.error("DATABASE_URL", f"={self.database_url!r}: allowed is {SQLITE_PREFIX}<path of a file>")
        if "://" not in self.mq_url:
            raise self.error("MQ_URL", f"={self.mq_url!r}: allowed is a URL such as mq://127.0.0.1:9876")
        if not self.listen_host or not 0 <= self.listen_port <= 65535:
            raise self.error("LISTEN", f"={self.listen_host}:{self.listen_port}: allowed is host:port, port 0 to 65535")
        if self.log_level not in LOG_LEVELS:
            raise self.error("LOG_LEVEL", f"={self.log_level!r}: allowed are {', '.join(LOG_LEVELS)}")

    @classmethod
    def error(cls, name: str, complaint: str) -> ConfigError:
        """The error that begins with the variable's whole name."""
        return ConfigError(f"{cls.PREFIX}{name}{complaint}")


def read_environment(environment: Mapping[str, str], prefix: str, parsers: Mapping[str, Parser]) -> dict[str, Any]:
    """The fields that the variables with `prefix` set; others are not looked at. `parsers` have names without prefix.

    Raises ConfigError, for an unknown variable with the known one that is nearest.
    """
    known = {prefix + name: parser for name, parser in parsers.items()}
    values: dict[str, Any] = {}
    for name, text in sorted(environment.items()):
        if not name.startswith(prefix):
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown configuration key {name}; {hint}")
        values |= known[name](name, text)
    return values


def as_text(field: str) -> Parser:
    """The text as it is."""
    return lambda _name, text: {field: text}


def whole_number(field: str) -> Parser:
    """A whole number; its range is for the dataclass to check."""

    def parse(name: str, text: str) -> dict[str, Any]:
        try:
            return {field: int(text)}
        except ValueError:
            raise ConfigError(f"{name}={text!r} is not a whole number") from None

    return parse


def _listen(name: str, text: str) -> dict[str, Any]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"{name}={text!r}: allowed is host:port, such as 127.0.0.1:8001")
    return {"listen_host": host, "listen_port": int(port)}


COMMON_PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "DATABASE_URL": as_text("database_url"),
        "MQ_URL": as_text("mq_url"),
        "LISTEN": _listen,
        "LOG_LEVEL": lambda _name, text: {"log_level": text.upper()},
    }
)
