"""The name server's configuration: RocketMQ's key names where it has them (NamesrvConfig and NettyServerConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mqproto.conf import ConfigError, build_config, key
from mqproto.config_source import NETTY_KEYS, ConfigFormat, IgnoredKey, ignored
from mqproto.names import is_host
from telemetry.providers import LOG_LEVELS

# Keys of RocketMQ's NamesrvConfig, 4.x and 5.x, that people have in their files and that switch nothing here, each
# with the reason. See `mqproto.ignored_keys` for what happens with them.

IGNORED_KEYS: Mapping[str, IgnoredKey] = {
    **NETTY_KEYS,
    **ignored(
        "one event loop does the work of RocketMQ's thread pools and their queues",
        "clientRequestThreadPoolNums defaultThreadPoolNums clientRequestThreadPoolQueueCapacity"
        " defaultThreadPoolQueueCapacity unRegisterBrokerQueueCapacity",
    ),
    **ignored(
        "a name server keeps nothing on disk",
        "rocketmqHome kvConfigPath configStorePath productEnvName clusterTest configBlackList",
    ),
    **ignored("topics are always listed", "enableAllTopicList enableTopicList", allowed="true"),
    **ignored(
        "a topic is as its brokers have it",
        "orderMessageEnable returnOrderTopicConfigToBroker deleteTopicWithBrokerRegistration",
    ),
    **ignored("it answers from the first moment", "needWaitForService waitSecondsForService"),
    **ignored(
        "this version has no replication and no election",
        "supportActingMaster notifyMinBrokerIdChanged enableControllerInNamesrv",
        allowed="false",
    ),
}


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig:
    """Times are in milliseconds, as in RocketMQ's files. brokerExpireTimeout, which is a constant in RocketMQ,
    framesListenPort and logLevel are Hourglass's own keys. Values marked `reloadable` may change while the name server
    runs.
    """

    bind_address: str = key(default="127.0.0.1", important=True)
    listen_port: int = key(default=9876, important=True)  # 0: any free port, named in the log
    frames_listen_port: int = 0  # of RocketMQ's frames; 0 as above
    # mechanism N3
    scan_not_active_broker_interval_ms: int = key("scanNotActiveBrokerInterval", default=10_000, reloadable=True)
    broker_expire_timeout_ms: int = key("brokerExpireTimeout", default=120_000, reloadable=True)  # mechanism N3
    log_level: str = key(default="INFO", reloadable=True)

    def __post_init__(self) -> None:
        if not is_host(self.bind_address):
            raise ConfigError(f"bindAddress={self.bind_address!r} is neither an IPv4 address nor a host name")
        for name, port in (("listenPort", self.listen_port), ("framesListenPort", self.frames_listen_port)):
            if not 0 <= port <= 65_535:
                raise ConfigError(f"{name}={port}: allowed are 1 to 65535, and 0 for any free port")
        if self.listen_port and self.listen_port == self.frames_listen_port:
            raise ConfigError(f"framesListenPort={self.frames_listen_port} is the listenPort; frames need another port")
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


FORMAT = ConfigFormat(NamesrvConfig, parse_config, IGNORED_KEYS)
