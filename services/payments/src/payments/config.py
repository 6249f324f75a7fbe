"""The configuration of payments: PAYMENTS_* variables, parsed once into one frozen dataclass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from servicekit.config import COMMON_PARSERS, SQLITE_PREFIX, ConfigError, ServiceConfig, read_environment

_SANDBOX_URL = re.compile(r"sandbox:///(?P<path>[^?]+)(\?declines_above_minor=(?P<limit>[0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """A gateway that moves no real money; its path is relative unless it begins with a slash, as in SQLite's URLs."""

    path: str = "gateway.db"
    declines_above_minor: int | None = None  # so that a refusal of the gateway can be seen without a real card


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    """Everything that can be set. Raises ConfigError when values do not go together."""

    PREFIX: ClassVar[str] = "PAYMENTS_"

    database_url: str = SQLITE_PREFIX + "payments.db"
    listen_port: int = 8002  # 0 lets the operating system choose
    gateway: SandboxConfig = SandboxConfig()

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.gateway.path == self.database_url.removeprefix(SQLITE_PREFIX):
            raise self.error("GATEWAY_URL", f" names the file of {self.PREFIX}DATABASE_URL; the gateway has its own")


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the PAYMENTS_* variables make; others are not looked at. Raises ConfigError."""
    return Config(**read_environment(environment, Config.PREFIX, _PARSERS))


def _gateway(name: str, text: str) -> dict[str, Any]:
    found = _SANDBOX_URL.fullmatch(text)
    if found is None or found["path"] == ":memory:":
        raise ConfigError(
            f"{name}={text!r}: allowed is sandbox:///<path of a file>,"
            " if wanted with ?declines_above_minor=<whole number> behind it"
        )
    limit = found["limit"]
    return {"gateway": SandboxConfig(found["path"], None if limit is None else int(limit))}


_PARSERS = {**COMMON_PARSERS, "GATEWAY_URL": _gateway}
