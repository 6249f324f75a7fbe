"""The broker's configuration: RocketMQ's keys, parsed once, checked once."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.identity import MASTER_ID, BrokerIdentity
from mq_broker.core.retention import GuardMode, RetentionOptions, parse_delete_when
from mq_broker.core.topics import QUEUE_COUNT_MAX
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import BrokerOptions
from mq_broker.rocketmq_keys import IGNORED_KEYS
from mq_broker.store.index_file import IndexSize
from mq_broker.store.layout import COMMIT_LOG_FILE_BYTES, CONSUME_QUEUE_FILE_ENTRIES, StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mqproto.address import Address, is_host, parse_address_list
from mqproto.conf import ConfigError, build_config, key
from mqproto.config_source import ConfigFormat
from mqproto.record import BODY_BYTES_MAX, RecordError, pack_ip
from osenv.network import own_ipv4
from telemetry.setup import LOG_LEVELS

COMMIT_LOG_FILE_BYTES_MIN = 64 * 1024
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared with, not listened on


class BrokerRole(enum.Enum):
    """RocketMQ's roles."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class AddressCheck(enum.Enum):
    """What a broker does that cannot reach itself at the address that it advertises."""

    OFF = "OFF"
    WARN = "WARN"
    REFUSE = "REFUSE"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Keys are RocketMQ's where it has them; sizes are bytes, times milliseconds; fileReservedTime is hours, ratios are
    percent.

    A broker listens on bindAddress:listenPort and is reached at brokerIP1:advertisedPort; an advertisedPort of 0 is the
    listenPort, a listenPort of 0 any free one. bindAddress, advertisedPort, advertisedAddressCheck,
    unconsumedDeleteGuard and logLevel are Hourglass's own keys. Values marked `reloadable` may change while the broker
    runs.
    """

    broker_cluster_name: str = key(default="DefaultCluster", important=True)
    broker_name: str = key(default="broker-a", important=True)
    broker_id: int = key(default=MASTER_ID, important=True)
    broker_role: BrokerRole = key(default=BrokerRole.ASYNC_MASTER, important=True)  # noqa: RUF009 - a dataclass field
    broker_ip: str = key("brokerIP1", default="127.0.0.1", important=True)
    bind_address: str = "127.0.0.1"
    listen_port: int = key(default=10_911, important=True)
    advertised_port: int = 0
    advertised_address_check: AddressCheck = AddressCheck.WARN
    namesrv_addr: str = key(default="", important=True, reloadable=True)
    store_path_root_dir: str = key(default="store", important=True)
    store_path_commit_log: str = key(default="", important=True)
    flush_disk_type: FlushDiskType = key(default=FlushDiskType.ASYNC_FLUSH, important=True)  # noqa: RUF009 - as above
    flush_interval_commit_log: int = key(default=200, important=True)
    mapped_file_size_commit_log: int = key(default=COMMIT_LOG_FILE_BYTES, aliases=("mapedFileSizeCommitLog",))
    mapped_file_size_consume_queue: int = key(
        default=CONSUME_QUEUE_FILE_ENTRIES * CQ_ENTRY.size, aliases=("mapedFileSizeConsumeQueue",)
    )
    message_index_enable: bool = key(default=True, important=True)
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    file_reserved_time: int = key(default=72, important=True, reloadable=True)
    delete_when: str = key(default="04", important=True, reloadable=True)
    disk_max_used_space_ratio: int = key(default=75, reloadable=True)
    disk_space_clean_forcibly_ratio: int = key(default=85, reloadable=True)
    disk_space_warning_level_ratio: int = key(default=90, reloadable=True)
    clean_file_forcibly_enable: bool = key(default=True, important=True, reloadable=True)
    unconsumed_delete_guard: GuardMode = key(default=GuardMode.WARN, reloadable=True)  # noqa: RUF009 - as above
    auto_create_topic_enable: bool = key(default=True, important=True, reloadable=True)
    auto_create_subscription_group: bool = key(default=True, important=True, reloadable=True)
    default_topic_queue_nums: int = key(default=4, reloadable=True)
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    max_message_size: int = key(default=BODY_BYTES_MAX, reloadable=True)
    enable_property_filter: bool = False  # SQL92; a change needs a restart (MISSION F2)
    register_name_server_period: int = key(default=30_000, reloadable=True)
    flush_consumer_offset_interval: int = key(default=5_000, reloadable=True)
    transaction_check_interval: int = key(default=60_000, important=True, reloadable=True)
    transaction_time_out: int = key(default=6_000, important=True, reloadable=True)
    transaction_check_max: int = key(default=15, important=True, reloadable=True)
    log_level: str = key(default="INFO", reloadable=True)

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_role()
        self._check_store()
        self._check_addresses()
        for name, value in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            if not value:
                raise ConfigError(f"{name} is empty")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"logLevel={self.log_level!r}: allowed are {', '.join(LOG_LEVELS)}")
        try:
            DelayLevels.parse(self.message_delay_level)
            parse_delete_when(self.delete_when)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _check_ranges(self) -> None:
        self._check_range("listenPort", self.listen_port, 0, 65_535)
        self._check_range("advertisedPort", self.advertised_port, 0, 65_535)
        self._check_range("flushIntervalCommitLog", self.flush_interval_commit_log, 1, 10_000)
        self._check_range("defaultTopicQueueNums", self.default_topic_queue_nums, 1, QUEUE_COUNT_MAX)
        self._check_range("maxMessageSize", self.max_message_size, 1, BODY_BYTES_MAX)
        self._check_range("registerNameServerPeriod", self.register_name_server_period, 100, 60_000)
        self._check_range("flushConsumerOffsetInterval", self.flush_consumer_offset_interval, 10, 600_000)
        self._check_range("transactionCheckInterval", self.transaction_check_interval, 100, 3_600_000)
        self._check_range("transactionTimeOut", self.transaction_time_out, 0, 3_600_000)
        self._check_range("transactionCheckMax", self.transaction_check_max, 1, 1_000)
        self._check_range(
            "mappedFileSizeCommitLog", self.mapped_file_size_commit_log, COMMIT_LOG_FILE_BYTES_MIN, 1 << 31
        )
        self._check_range("mappedFileSizeConsumeQueue", self.mapped_file_size_consume_queue, CQ_ENTRY.size, 1 << 31)
        self._check_range("maxHashSlotNum", self.max_hash_slot_num, 1, 1 << 29)
        self._check_range("maxIndexNum", self.max_index_num, 2, (1 << 31) - 1)
        self._check_range("fileReservedTime", self.file_reserved_time, 1, 24 * 3_650)
        self._check_range("diskMaxUsedSpaceRatio", self.disk_max_used_space_ratio, 10, 95)
        self._check_range("diskSpaceCleanForciblyRatio", self.disk_space_clean_forcibly_ratio, 10, 98)
        self._check_range(
            "diskSpaceWarningLevelRatio", self.disk_space_warning_level_ratio, self.disk_space_clean_forcibly_ratio, 99
        )

    def _check_role(self) -> None:
        if self.broker_role is not BrokerRole.ASYNC_MASTER:
            raise ConfigError(
                f"brokerRole={self.broker_role.name}: this version has no replication; allowed is ASYNC_MASTER"
            )
        if self.broker_id != MASTER_ID:
            raise ConfigError(f"brokerId={self.broker_id}: this version has no slaves, and a master has {MASTER_ID}")

    def _check_store(self) -> None:
        if self.mapped_file_size_consume_queue % CQ_ENTRY.size:
            raise ConfigError(f"mappedFileSizeConsumeQueue has to be a multiple of {CQ_ENTRY.size}")
        commit_log = StoreLayout(Path(self.store_path_root_dir)).commit_log
        if self.store_path_commit_log and Path(self.store_path_commit_log) != commit_log:
            raise ConfigError(
                f"storePathCommitLog={self.store_path_commit_log}: the commit log lies below storePathRootDir, "
                f"in {commit_log}; leave the key out"
            )

    def _check_addresses(self) -> None:
        if not is_host(self.bind_address):
            raise ConfigError(f"bindAddress={self.bind_address!r} is neither an IPv4 address nor a host name")
        try:
            if pack_ip(self.broker_ip) == pack_ip(EVERY_ADDRESS):
                raise ConfigError(f"brokerIP1={EVERY_ADDRESS}: give one address, at which clients reach this broker")
        except RecordError as error:
            raise ConfigError(f"brokerIP1: {error}") from error
        try:
            self.name_servers  # noqa: B018 - parsed to see that it can be
        except ValueError as error:
            raise ConfigError(f"namesrvAddr: {error}") from error

    @property
    def name_servers(self) -> tuple[Address, ...]:
        """Name servers to register with; none is allowed."""
        return parse_address_list(self.namesrv_addr) if self.namesrv_addr else ()

    def advertised(self, port: int) -> Address:
        """Where clients reach the broker that listens on `port`."""
        return Address(self.broker_ip, self.advertised_port or port)

    @property
    def retention(self) -> RetentionOptions:
        """When files go."""
        return RetentionOptions(
            self.file_reserved_time,
            parse_delete_when(self.delete_when),
            self.disk_max_used_space_ratio / 100,
            self.disk_space_clean_forcibly_ratio / 100,
            self.disk_space_warning_level_ratio / 100,
            clean_forcibly=self.clean_file_forcibly_enable,
            guard=self.unconsumed_delete_guard,
        )

    def broker_options(self, port: int) -> BrokerOptions:
        """What the broker's core needs; `port` is the one that is really listened on."""
        return BrokerOptions(
            identity=BrokerIdentity(
                self.broker_cluster_name, self.broker_name, self.broker_id, str(self.advertised(port))
            ),
            delay_levels=DelayLevels.parse(self.message_delay_level),
            auto_create_topics=self.auto_create_topic_enable,
            auto_create_groups=self.auto_create_subscription_group,
            default_topic_queue_count=self.default_topic_queue_nums,
            body_size_max=self.max_message_size,
            property_filter_enabled=self.enable_property_filter,
            flush_consumer_offset_interval_ms=self.flush_consumer_offset_interval,
            transactions=TransactionOptions(
                self.transaction_check_interval, self.transaction_time_out, self.transaction_check_max
            ),
        )

    def store_options(self, port: int) -> StoreOptions:
        """What the store needs; a record's store host is where the broker is reached (MISSION M8)."""
        layout = StoreLayout(
            Path(self.store_path_root_dir).absolute(),
            self.mapped_file_size_commit_log,
            self.mapped_file_size_consume_queue // CQ_ENTRY.size,
            IndexSize(self.max_hash_slot_num, self.max_index_num),
        )
        advertised = self.advertised(port)
        return StoreOptions(
            layout,
            self.flush_disk_type,
            self.flush_interval_commit_log,
            advertised.host,
            advertised.port,
            index_enabled=self.message_index_enable,
            retention=self.retention,
        )

    @staticmethod
    def _check_range(name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise ConfigError(f"{name}={value}: allowed are {low} to {high}")


def parse_config(pairs: Mapping[str, str], own_ip: Callable[[], str] = own_ipv4) -> BrokerConfig:
    """The configuration from the pairs of file and command line. Raises ConfigError.

    Without brokerIP1 the broker is reached where it listens, and at the machine's own address when that is everywhere.
    """
    listens_on = pairs.get("bindAddress", BrokerConfig().bind_address)
    broker_ip = own_ip() if listens_on == EVERY_ADDRESS else listens_on
    return build_config(BrokerConfig, {"brokerIP1": broker_ip} | dict(pairs))


FORMAT = ConfigFormat(BrokerConfig, parse_config, IGNORED_KEYS)
