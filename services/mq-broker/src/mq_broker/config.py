"""The broker's configuration: RocketMQ's keys, parsed once, checked once."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.limits import (
    AUTO_CREATED_GROUPS_MAX,
    AUTO_CREATED_TOPICS_MAX,
    GROUP_COUNT_MAX,
    NAME_SERVER_TOPICS_MAX,
    OPEN_FILES_EMBEDDED_MAX,
    RESPONSE_MEMORY_BYTES_MAX,
    RESPONSE_MEMORY_BYTES_MIN,
    TOPIC_COUNT_MAX,
    GuardMode,
    RetentionOptions,
    parse_delete_when,
)
from mq_broker.core.replica_state import FORMER_MASTER_ID, MASTER_ID, BrokerIdentity, BrokerRole, ReplicationOptions
from mq_broker.core.subscription_groups import GROUP_LIMITS
from mq_broker.core.topics import QUEUE_COUNT_MAX, TOPIC_LIMITS
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import BrokerOptions
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import COMMIT_LOG_FILE_BYTES, CONSUME_QUEUE_FILE_ENTRIES, StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mqproto.conf import ConfigError, build_config, key
from mqproto.config_source import NETTY_KEYS, ConfigFormat, IgnoredKey, ignored
from mqproto.names import Address, is_host, parse_address, parse_address_list
from mqproto.record import BODY_BYTES_MAX, RecordError, pack_ip
from osenv.network import own_ipv4
from telemetry.providers import LOG_LEVELS

# Keys of RocketMQ's BrokerConfig and MessageStoreConfig, 4.x and 5.x, that people have in their files and that switch
# nothing here, each with the reason. See `mqproto.ignored_keys` for what happens with them.

IGNORED_KEYS: Mapping[str, IgnoredKey] = {
    **NETTY_KEYS,
    **ignored(
        "one event loop does the work of RocketMQ's thread pools and their queues",
        "sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums"
        " litePullMessageThreadPoolNums ackMessageThreadPoolNums processReplyMessageThreadPoolNums"
        " queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums"
        " consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums recoverThreadPoolNums"
        " sendThreadPoolQueueCapacity putThreadPoolQueueCapacity pullThreadPoolQueueCapacity"
        " litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity replyThreadPoolQueueCapacity"
        " queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity"
        " heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity adminBrokerThreadPoolQueueCapacity"
        " brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue"
        " waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue useReentrantLockWhenPutMessage"
        " putMessageTimeout maxAsyncPutMessageRequests asyncSendEnable topicQueueLockNum",
    ),
    **ignored(
        "files are written and read by pwrite and pread, not mapped",
        "transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool warmMapedFileEnable"
        " flushLeastPagesWhenWarmMapedFile writeWithoutMmap transferMsgByHeap osPageCacheBusyTimeOutMills"
        " mappedFileSwapEnable destroyMapedFileIntervalForcibly redeleteHangedFileInterval",
    ),
    **ignored(
        "flushDiskType and flushIntervalCommitLog alone say when the log is synced, and the queues follow it",
        "flushCommitLogTimed flushCommitLogLeastPages flushCommitLogThoroughInterval commitIntervalCommitLog"
        " commitCommitLogLeastPages commitCommitLogThoroughInterval flushIntervalConsumeQueue"
        " flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval syncFlushTimeout flushDelayOffsetInterval"
        " wakeCommitWhenPutMessage wakeFlushWhenPutMessage dispatchFromSenderThread",
    ),
    **ignored(
        "every folder lies below storePathRootDir",
        "storePathConsumeQueue storePathIndex storeCheckpoint storePathCheckpoint abortFile storePathAbort"
        " storePathEpochFile storePathBrokerIdentity storePathDLedgerCommitLog rocketmqHome brokerConfigPath",
    ),
    **ignored(
        "the cleaner looks every 10 s and pauses 100 ms between files",
        "cleanResourceInterval deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax"
        " maxBatchDeleteFilesNum enableCleanExpiredOffset",
    ),
    **ignored(
        "every record carries a CRC of its whole, which is always checked",
        "checkCRCOnRecover enabledAppendPropCRC forceVerifyPropCRC",
    ),
    **ignored(
        "how much one pull brings is the client's to say, up to the size of a frame",
        "maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk"
        " maxTransferCountOnMessageInDisk pullBatchMaxMessageCount defaultQueryMaxNum"
        " maxMsgsNumBatch",
    ),
    **ignored(
        "a poll is held for 15 s at most and woken at once",
        "longPollingEnable shortPollingTimeMills notifyConsumerIdsChangedEnable",
    ),
    **ignored(
        "a stream to each replica carries log and small states; haSendHeartbeatInterval and slaveTimeout are its times",
        "haHousekeepingInterval haTransferBatchSize maxHaTransferByteInSecond haFlowControlEnable offsetCheckInSlave"
        " duplicationEnable syncMasterFlushOffsetWhenStartup",
    ),
    **ignored(
        "a SYNC_MASTER waits for every replica of its in-sync set: minInSyncReplicas and haMaxTimeSlaveNotCatchup",
        "haSlaveFallbehindMax haMaxGapNotInSync totalReplicas inSyncReplicas allAckInSyncStateSet"
        " enableAutoInSyncReplicas checkSyncStateSetPeriod syncBrokerMemberGroupPeriod",
    ),
    **ignored(
        "an operator changes masters, by mqadmin switchMaster, and a replica serves reads only",
        "enableSlaveActingMaster enableRemoteEscape brokerElectionPriority brokerHeartbeatInterval"
        " brokerNotActiveTimeoutMillis sendHeartbeatTimeoutMillis dLegerGroup dLegerPeers dLegerSelfId"
        " preferredLeaderId",
    ),
    **ignored(
        "there is no election; an operator changes masters, by mqadmin switchMaster",
        "enableDLegerCommitLog enableControllerMode",
        allowed="false",
    ),
    **ignored(
        "name servers are given by namesrvAddr",
        "fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup",
        allowed="false",
    ),
    **ignored(
        "a stream to each name server keeps the whole registration",
        "updateNameServerAddrPeriod registerBrokerTimeoutMills compressedRegister forceRegister"
        " rmqAddressServerDomain rmqAddressServerSubGroup",
    ),
    **ignored(
        "OpenTelemetry's traces and metrics take its place",
        "traceTopicEnable msgTraceTopicName traceOn regionId accountStatsEnable metricsExporterType"
        " metricsGrpcExporterTarget metricsPromExporterPort metricsPromExporterHost enableDetailStat",
    ),
    **ignored(
        "delays are levels, see messageDelayLevel",
        "timerWheelEnable timerPrecisionMs timerMaxDelaySec timerInterceptDelayLevel maxDelayTime",
    ),
    **ignored(
        "SQL92 is evaluated on the records themselves, without bloom filters; filter servers ended with RocketMQ 4.3",
        "filterServerNums enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt"
        " enableCalcFilterBitMap filterSupportRetry expectConsumerNumUseFilter maxErrorRateOfBloomFilter"
        " maxFilterMessageSize filterDataCleanTimeSpan",
    ),
    **ignored(
        "a broker of RocketMQ does not read it either",
        "checkTransactionMessageEnable sendMessageTimeout compressMsgBodyOverHowmuch",
    ),
    **ignored(
        "there is no access control",
        "aclEnable authenticationEnabled authorizationEnabled",
        allowed="false",
    ),
    **ignored(
        "a broker can be read and written; set the permissions of its topics",
        "brokerPermission",
        allowed="6",
    ),
    **ignored("transactions are always accepted", "rejectTransactionMessage", allowed="false"),
    **ignored("pull consumers are always served", "rejectPullConsumerEnable", allowed="false"),
    **ignored("there is one kind of store", "storeType", allowed="default"),
    **ignored("light queues do not exist here", "enableLmq enableMultiDispatch", allowed="false"),
    **ignored("the index is rebuilt where it is not safe", "messageIndexSafe"),
}


COMMIT_LOG_FILE_BYTES_MIN = 64 * 1024
REPLICAS_MAX = 9  # of one broker name, the master among them
BEAT_INTERVAL_MS_MAX = 2_000  # a replica takes 5 s of silence for the end of the link
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared with, not listened on


class AddressCheck(enum.Enum):
    """The reaction of a broker that cannot reach itself at its advertised address."""

    OFF = "OFF"
    WARN = "WARN"
    REFUSE = "REFUSE"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Keys are RocketMQ's where it has them; sizes are bytes, times milliseconds; fileReservedTime is hours, ratios are
    percent.

    A broker listens on bindAddress:listenPort and is reached at brokerIP1:advertisedPort; an advertisedPort of 0 is the
    listenPort, a listenPort of 0 any free one. framesListenPort and advertisedFramesPort are the same for RocketMQ's
    frames. Replicas reach it at brokerIP2:haListenPort; an empty brokerIP2 is
    brokerIP1, a haListenPort of 0 any free one. bindAddress, advertisedPort,
    framesListenPort, advertisedFramesPort, advertisedAddressCheck,
    unconsumedDeleteGuard, topicCountMax, subscriptionGroupCountMax, autoCreatedTopicsPerClient,
    autoCreatedGroupsPerClient, responseMemoryBytesMax, diskFreeBytesEnough and logLevel are Hourglass's own keys.
    Values marked `reloadable` may change while the broker runs.

    Two defaults are not RocketMQ's: haSendHeartbeatInterval (5000 there), because a replica here takes 5 s of silence
    for the end of the link, and slaveReadEnable (false there).
    """

    broker_cluster_name: str = key(default="DefaultCluster", important=True)
    broker_name: str = key(default="broker-a", important=True)
    broker_id: int = key(default=MASTER_ID, important=True)
    broker_role: BrokerRole = key(default=BrokerRole.ASYNC_MASTER, important=True)  # noqa: RUF009 - a dataclass field
    broker_ip: str = key("brokerIP1", default="127.0.0.1", important=True)
    broker_ip2: str = key("brokerIP2", default="", important=True)
    bind_address: str = "127.0.0.1"
    listen_port: int = key(default=10_911, important=True)
    frames_listen_port: int = 0
    advertised_port: int = 0
    advertised_frames_port: int = 0
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
    disk_free_bytes_enough: int = key(default=0, reloadable=True)
    clean_file_forcibly_enable: bool = key(default=True, important=True, reloadable=True)
    unconsumed_delete_guard: GuardMode = key(default=GuardMode.WARN, reloadable=True)  # noqa: RUF009 - as above
    auto_create_topic_enable: bool = key(default=True, important=True, reloadable=True)
    auto_create_subscription_group: bool = key(default=True, important=True, reloadable=True)
    default_topic_queue_nums: int = key(default=4, reloadable=True)
    topic_count_max: int = key(default=TOPIC_COUNT_MAX, reloadable=True)
    subscription_group_count_max: int = key(default=GROUP_COUNT_MAX, reloadable=True)
    auto_created_topics_per_client: int = key(default=AUTO_CREATED_TOPICS_MAX, reloadable=True)
    auto_created_groups_per_client: int = key(default=AUTO_CREATED_GROUPS_MAX, reloadable=True)
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    max_message_size: int = key(default=BODY_BYTES_MAX, reloadable=True)
    response_memory_bytes_max: int = key(default=RESPONSE_MEMORY_BYTES_MAX, important=True, reloadable=True)
    enable_property_filter: bool = False  # SQL92; a change needs a restart (mechanism F2)
    register_name_server_period: int = key(default=30_000, reloadable=True)
    flush_consumer_offset_interval: int = key(default=5_000, reloadable=True)
    transaction_check_interval: int = key(default=60_000, important=True, reloadable=True)
    transaction_time_out: int = key(default=6_000, important=True, reloadable=True)
    transaction_check_max: int = key(default=15, important=True, reloadable=True)
    ha_listen_port: int = 10_912
    ha_master_address: str = ""
    ha_send_heartbeat_interval: int = 1_000
    ha_max_time_slave_not_catchup: int = 15_000
    slave_timeout: int = 3_000
    min_in_sync_replicas: int = 1
    slave_read_enable: bool = True
    access_message_in_memory_max_ratio: int = 40
    log_level: str = key(default="INFO", reloadable=True)

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_replication()
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
        self._check_range("framesListenPort", self.frames_listen_port, 0, 65_535)
        self._check_range("advertisedFramesPort", self.advertised_frames_port, 0, 65_535)
        self._check_range("flushIntervalCommitLog", self.flush_interval_commit_log, 1, 10_000)
        self._check_range("defaultTopicQueueNums", self.default_topic_queue_nums, 1, QUEUE_COUNT_MAX)
        self._check_counts()
        self._check_range("maxMessageSize", self.max_message_size, 1, BODY_BYTES_MAX)
        self._check_range("responseMemoryBytesMax", self.response_memory_bytes_max, RESPONSE_MEMORY_BYTES_MIN, 1 << 40)
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
        self._check_range("diskFreeBytesEnough", self.disk_free_bytes_enough, 0, 1 << 50)

    def _check_counts(self) -> None:
        """A group has up to two topics, for retries and dead letters; name servers take all that there may be."""
        groups_max = (NAME_SERVER_TOPICS_MAX - self.topic_count_max) // 2
        self._check_range("topicCountMax", self.topic_count_max, 1, NAME_SERVER_TOPICS_MAX - 2)
        self._check_range("subscriptionGroupCountMax", self.subscription_group_count_max, 1, groups_max)
        self._check_range("autoCreatedTopicsPerClient", self.auto_created_topics_per_client, 1, NAME_SERVER_TOPICS_MAX)
        self._check_range("autoCreatedGroupsPerClient", self.auto_created_groups_per_client, 1, NAME_SERVER_TOPICS_MAX)

    def _check_role(self) -> None:
        role, id_ = self.broker_role, self.broker_id
        if role.is_master and id_ != MASTER_ID:
            raise ConfigError(f"brokerId={id_}: a broker with brokerRole={role.name} has brokerId={MASTER_ID}")
        if not role.is_master and not MASTER_ID < id_ < FORMER_MASTER_ID:
            raise ConfigError(
                f"brokerId={id_}: a broker with brokerRole={role.name} has one from {MASTER_ID + 1} to "
                f"{FORMER_MASTER_ID - 1}; {MASTER_ID} is its master's"
            )
        if role is BrokerRole.ASYNC_MASTER and self.min_in_sync_replicas > 1:
            raise ConfigError(
                f"minInSyncReplicas={self.min_in_sync_replicas}: brokerRole={role.name} waits for no replica; allowed "
                "is 1, or more with brokerRole=SYNC_MASTER or SLAVE"
            )

    def _check_replication(self) -> None:
        self._check_range("haListenPort", self.ha_listen_port, 0, 65_535)
        self._check_range("minInSyncReplicas", self.min_in_sync_replicas, 1, REPLICAS_MAX)
        self._check_range("slaveTimeout", self.slave_timeout, 1, 60_000)
        self._check_range("haSendHeartbeatInterval", self.ha_send_heartbeat_interval, 10, BEAT_INTERVAL_MS_MAX)
        self._check_range(
            "haMaxTimeSlaveNotCatchup", self.ha_max_time_slave_not_catchup, 2 * self.ha_send_heartbeat_interval, 600_000
        )
        self._check_range("accessMessageInMemoryMaxRatio", self.access_message_in_memory_max_ratio, 1, 100)
        if self.ha_listen_port and self.ha_listen_port == self.listen_port:
            raise ConfigError(
                f"haListenPort={self.ha_listen_port} is the listenPort; replicas need a port of their own"
            )

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
        self._check_ip("brokerIP1", self.broker_ip, "clients")
        if self.broker_ip2:
            self._check_ip("brokerIP2", self.broker_ip2, "replicas")
        if self.ha_master_address:
            try:
                parse_address(self.ha_master_address)
            except ValueError as error:
                raise ConfigError(f"haMasterAddress: {error}") from error
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

    def frames_advertised(self, frames_port: int) -> Address:
        """Where clients reach the broker that takes frames on `frames_port`."""
        return Address(self.broker_ip, self.advertised_frames_port or frames_port)

    def ha_advertised(self, ha_port: int) -> Address:
        """Where replicas reach the broker that listens for them on `ha_port`."""
        return Address(self.broker_ip2 or self.broker_ip, ha_port)

    @property
    def retention(self) -> RetentionOptions:
        """The settings of retention."""
        return RetentionOptions(
            self.file_reserved_time,
            parse_delete_when(self.delete_when),
            self.disk_max_used_space_ratio / 100,
            self.disk_space_clean_forcibly_ratio / 100,
            self.disk_space_warning_level_ratio / 100,
            clean_forcibly=self.clean_file_forcibly_enable,
            guard=self.unconsumed_delete_guard,
            free_bytes_enough=self.disk_free_bytes_enough,
        )

    def broker_options(self, port: int, ha_port: int = 0) -> BrokerOptions:
        """The options of the broker's core; the ports are those that it listens on, but for an `ha_port` of 0."""
        return BrokerOptions(
            identity=BrokerIdentity(
                self.broker_cluster_name, self.broker_name, self.broker_id, str(self.advertised(port))
            ),
            delay_levels=DelayLevels.parse(self.message_delay_level),
            auto_create_topics=self.auto_create_topic_enable,
            auto_create_groups=self.auto_create_subscription_group,
            topic_limits=replace(
                TOPIC_LIMITS, total=self.topic_count_max, per_client=self.auto_created_topics_per_client
            ),
            group_limits=replace(
                GROUP_LIMITS, total=self.subscription_group_count_max, per_client=self.auto_created_groups_per_client
            ),
            default_topic_queue_count=self.default_topic_queue_nums,
            body_size_max=self.max_message_size,
            property_filter_enabled=self.enable_property_filter,
            response_memory_bytes_max=self.response_memory_bytes_max,
            flush_consumer_offset_interval_ms=self.flush_consumer_offset_interval,
            transactions=TransactionOptions(
                self.transaction_check_interval, self.transaction_time_out, self.transaction_check_max
            ),
            replication=self.replication_options(ha_port),
        )

    def replication_options(self, ha_port: int) -> ReplicationOptions:
        """The options of replication."""
        return ReplicationOptions(
            role=self.broker_role,
            ha_address=str(self.ha_advertised(ha_port)) if ha_port else "",
            master_ha_address=self.ha_master_address,
            min_in_sync_replicas=self.min_in_sync_replicas,
            replica_timeout_ms=self.slave_timeout,
            replica_not_catchup_ms=self.ha_max_time_slave_not_catchup,
            beat_interval_ms=self.ha_send_heartbeat_interval,
            slave_read_enable=self.slave_read_enable,
            is_registered=bool(self.name_servers),
            access_message_in_memory_max_ratio=self.access_message_in_memory_max_ratio,
        )

    def store_options(self, port: int, open_files_max: int = OPEN_FILES_EMBEDDED_MAX) -> StoreOptions:
        """The options of the store; a record's store host is the advertised address (mechanism M8)."""
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
            open_files_max=open_files_max,
            retention=self.retention,
        )

    @staticmethod
    def _check_ip(name: str, value: str, peers: str) -> None:
        try:
            if pack_ip(value) == pack_ip(EVERY_ADDRESS):
                raise ConfigError(f"{name}={EVERY_ADDRESS}: give one address, at which {peers} reach this broker")
        except RecordError as error:
            raise ConfigError(f"{name}: {error}") from error

    @staticmethod
    def _check_range(name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise ConfigError(f"{name}={value}: allowed are {low} to {high}")


def parse_config(pairs: Mapping[str, str], own_ip: Callable[[], str] = own_ipv4) -> BrokerConfig:
    """The configuration from the pairs of file and command line. Raises ConfigError.

    Without brokerIP1 the broker is reached where it listens, and at the machine's own address when that is everywhere.
    Without haListenPort it listens for replicas on the port after listenPort, as RocketMQ does, so that brokers of one
    machine do not meet there; on any free one when listenPort is 0.
    """
    listens_on = pairs.get("bindAddress", BrokerConfig().bind_address)
    broker_ip = own_ip() if listens_on == EVERY_ADDRESS else listens_on
    return build_config(BrokerConfig, {"brokerIP1": broker_ip} | _ha_listen_port(pairs) | dict(pairs))


def _ha_listen_port(pairs: Mapping[str, str]) -> dict[str, str]:
    port = pairs.get("listenPort", "")
    if not re.fullmatch("[0-9]{1,5}", port):
        return {}  # the default, or a mistake that another check reports
    return {"haListenPort": str(int(port) + 1 if int(port) else 0)}


FORMAT = ConfigFormat(BrokerConfig, parse_config, IGNORED_KEYS)
