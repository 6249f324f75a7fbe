"""The name server's configuration: RocketMQ's key names where it has them (its NamesrvConfig and NettyServerConfig)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mqproto.conf import ConfigError, build_config, key
from telemetry.setup import LOG_LEVELS

_HOST = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig:
    """Times are in milliseconds, as in RocketMQ's files."""

    bind_address: str = "127.0.0.1"
    listen_port: int = 9876  # 0: any free port, named in the log
    scan_not_active_broker_interval_ms: int = key("scanNotActiveBrokerInterval", default=10_000)  # MISSION N3
    broker_expire_timeout_ms: int = key("brokerExpireTimeout", default=120_000)  # MISSION N3
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.bind_address):
            raise ConfigError(f"bindAddress={self.bind_address!r} is neither an IPv4 address nor a host name")
        if not 0 <= self.listen_port <= 65_535:
            raise ConfigError(f"listenPort={self.listen_port}: allowed are 1 to 65535, and 0 for any free port")
        if self.scan_not_active_broker_interval_ms < 1:
            raise ConfigError(
                f"scanNotActiveBrokerInterval={self.scan_not_active_broker_interval_ms}: at least 1 ms is needed"
            )
        if self.broker_expire_timeout_ms < self.scan_not_active_broker_interval_ms:
            raise ConfigError(
                f"brokerExpireTimeout={self.broker_expire_timeout_ms} is shorter than "
                f"scanNotActiveBrokerInterval={self.scan_not_active_broker_interval_ms}; the scan would come too late"
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"logLevel={self.log_level!r}: allowed are {', '.join(LOG_LEVELS)}")


def parse_config(pairs: Mapping[str, str]) -> NamesrvConfig:
    """The configuration from the pairs of file and command line. Raises ConfigError."""
    return build_config(NamesrvConfig, pairs)
