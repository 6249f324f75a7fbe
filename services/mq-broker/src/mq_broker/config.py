"""The broker's configuration: RocketMQ's keys, parsed once, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.identity import MASTER_ID, BrokerIdentity
from mq_broker.core.retention import GuardMode, RetentionOptions, parse_delete_when
from mq_broker.core.topics import QUEUE_COUNT_MAX
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import BrokerOptions
from mq_broker.store.index_file import IndexSize
from mq_broker.store.layout import COMMIT_LOG_FILE_BYTES, CONSUME_QUEUE_FILE_ENTRIES, StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mqproto.address import Address, parse_address_list
from mqproto.conf import ConfigError, key
from mqproto.record import BODY_BYTES_MAX, RecordError, pack_ip

COMMIT_LOG_FILE_BYTES_MIN = 64 * 1024


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Keys are RocketMQ's where it has them; sizes are bytes, times milliseconds; fileReservedTime is hours, ratios are
    percent.

    A broker is reached at brokerIP1:listenPort; it listens on bindAddress.
    """

    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = MASTER_ID
    broker_ip: str = key("brokerIP1", default="127.0.0.1")
    bind_address: str = "127.0.0.1"
    listen_port: int = 10_911
    namesrv_addr: str = ""
    store_path_root_dir: str = "store"
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 200
    mapped_file_size_commit_log: int = COMMIT_LOG_FILE_BYTES
    mapped_file_size_consume_queue: int = CONSUME_QUEUE_FILE_ENTRIES * CQ_ENTRY.size
    message_index_enable: bool = True
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    file_reserved_time: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True
    unconsumed_delete_guard: GuardMode = GuardMode.WARN
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = 4
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    max_message_size: int = BODY_BYTES_MAX
    register_name_server_period: int = 30_000
    flush_consumer_offset_interval: int = 5_000
    transaction_check_interval: int = 60_000
    transaction_time_out: int = 6_000
    transaction_check_max: int = 15
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        self._check_range("listenPort", self.listen_port, 0, 65_535)
        self._check_range("brokerId", self.broker_id, MASTER_ID, MASTER_ID)  # slaves come with replication
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
        self._check_range(
            "diskSpaceCleanForciblyRatio", self.disk_space_clean_forcibly_ratio, self.disk_max_used_space_ratio, 98
        )
        self._check_range(
            "diskSpaceWarningLevelRatio", self.disk_space_warning_level_ratio, self.disk_space_clean_forcibly_ratio, 99
        )
        if self.mapped_file_size_consume_queue % CQ_ENTRY.size:
            raise ConfigError(f"mappedFileSizeConsumeQueue has to be a multiple of {CQ_ENTRY.size}")
        for name, value in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            if not value:
                raise ConfigError(f"{name} is empty")
        try:
            pack_ip(self.broker_ip)
            DelayLevels.parse(self.message_delay_level)
            parse_delete_when(self.delete_when)
            self.name_servers  # noqa: B018 - parsed to see that it can be
        except (ValueError, RecordError) as error:
            raise ConfigError(str(error)) from error

    @property
    def name_servers(self) -> tuple[Address, ...]:
        """Name servers to register with; none is allowed."""
        return parse_address_list(self.namesrv_addr) if self.namesrv_addr else ()

    def broker_options(self, port: int) -> BrokerOptions:
        """What the broker's core needs; `port` is the one that is really listened on."""
        return BrokerOptions(
            identity=BrokerIdentity(
                self.broker_cluster_name, self.broker_name, self.broker_id, f"{self.broker_ip}:{port}"
            ),
            delay_levels=DelayLevels.parse(self.message_delay_level),
            auto_create_topics=self.auto_create_topic_enable,
            auto_create_groups=self.auto_create_subscription_group,
            default_topic_queue_count=self.default_topic_queue_nums,
            body_size_max=self.max_message_size,
            flush_consumer_offset_interval_ms=self.flush_consumer_offset_interval,
            transactions=TransactionOptions(
                self.transaction_check_interval, self.transaction_time_out, self.transaction_check_max
            ),
        )

    def store_options(self, port: int) -> StoreOptions:
        """What the store needs."""
        layout = StoreLayout(
            Path(self.store_path_root_dir).absolute(),
            self.mapped_file_size_commit_log,
            self.mapped_file_size_consume_queue // CQ_ENTRY.size,
            IndexSize(self.max_hash_slot_num, self.max_index_num),
        )
        retention = RetentionOptions(
            self.file_reserved_time,
            parse_delete_when(self.delete_when),
            self.disk_max_used_space_ratio / 100,
            self.disk_space_clean_forcibly_ratio / 100,
            self.disk_space_warning_level_ratio / 100,
            clean_forcibly=self.clean_file_forcibly_enable,
            guard=self.unconsumed_delete_guard,
        )
        return StoreOptions(
            layout,
            self.flush_disk_type,
            self.flush_interval_commit_log,
            self.broker_ip,
            port,
            index_enabled=self.message_index_enable,
            retention=retention,
        )

    @staticmethod
    def _check_range(name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise ConfigError(f"{name}={value}: allowed are {low} to {high}")
