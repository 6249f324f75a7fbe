"""The configuration: RocketMQ's keys, checked at once, with sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mq_broker.__main__ import COMMAND, main
from mq_broker.config import FORMAT, IGNORED_KEYS, AddressCheck, BrokerConfig, parse_config
from mq_broker.core.limits import GuardMode
from mq_broker.core.replica_state import BrokerRole
from mq_broker.store.message_store import FlushDiskType
from mqproto.conf import changes, config_pairs
from mqproto.config_source import Started, parse_properties
from mqproto.names import Address

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy/conf/broker.conf"
SAMPLES = Path(__file__).parent / "rocketmq_files"


@pytest.fixture(autouse=True)
def _no_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def start(*arguments: str) -> Started[BrokerConfig]:
    """What the broker would be started with."""
    found: list[Started[BrokerConfig]] = []

    def run(started: Started[BrokerConfig]) -> int:
        found.append(started)
        return 0

    assert COMMAND.main(list(arguments), run) == 0
    return found[0]


def test_defaults_are_rocketmq_s() -> None:
    config = BrokerConfig()
    assert (config.listen_port, config.broker_name, config.default_topic_queue_nums) == (10_911, "broker-a", 4)
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    store = config.store_options(10_911)
    assert store.layout.commit_log_file_bytes == 1024**3
    assert store.layout.consume_queue_file_bytes == 6_000_000
    assert config.max_message_size == 4 * 1024 * 1024
    assert parse_config({}) == config


def test_a_file_the_name_server_option_and_overrides_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# comment\nbrokerName = broker-b\nbrokerIP1=10.0.0.7\nlistenPort=1\nflushDiskType=SYNC_FLUSH\n")
    config = start("-c", str(file), "-n", "127.0.0.1:9876;127.0.0.1:9877", "listenPort=2").config
    assert (config.broker_name, config.listen_port) == ("broker-b", 2)
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.name_servers == (Address("127.0.0.1", 9876), Address("127.0.0.1", 9877))
    assert config.broker_options(2).identity.address == "10.0.0.7:2"


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("brokerNam=x", "did you mean brokerName?"),
        ("brokerIP=127.0.0.1", "did you mean brokerIP1 or brokerIP2?"),
        ("nameSrvAddr=x", "did you mean namesrvAddr?"),
        ("flush_disk_type=SYNC_FLUSH", "did you mean flushDiskType?"),
        ("mappedFileSize=1", "did you mean mappedFileSizeCommitLog"),
        ("listenPort=70000", "allowed are 0 to 65535"),
        ("listenPort=x", "is not a whole number"),
        ("advertisedPort=-1", "allowed are 0 to 65535"),
        ("advertisedAddressCheck=MAYBE", "allowed are OFF, WARN, REFUSE"),
        ("bindAddress=127.0.0.1:1", "neither an IPv4 address nor a host name"),
        ("flushDiskType=SOMETIMES", "allowed are ASYNC_FLUSH, SYNC_FLUSH"),
        ("autoCreateTopicEnable=yes", "allowed are true and false"),
        ("messageDelayLevel=1s 5y", "5y"),
        ("brokerIP1=localhost", "brokerIP1: 'localhost' is not an IPv4 address"),
        ("brokerIP1=0.0.0.0", "give one address"),
        ("bindAddress=localhost", "brokerIP1: 'localhost' is not an IPv4 address"),
        ("brokerName=", "brokerName is empty"),
        ("namesrvAddr=nowhere", "namesrvAddr: 'nowhere' is not an address; write host:port"),
        ("mappedFileSizeConsumeQueue=30", "multiple of 20"),
        ("brokerId=1", "brokerId=1: a broker with brokerRole=ASYNC_MASTER has brokerId=0"),
        ("brokerRole=KING", "allowed are ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("maxMessageSize=5000000", "allowed are 1 to 4194304"),
        ("transactionCheckInterval=99", "allowed are 100 to 3600000"),
        ("transactionTimeOut=-1", "allowed are 0 to 3600000"),
        ("transactionCheckMax=0", "allowed are 1 to 1000"),
        ("diskFreeBytesEnough=-1", "allowed are 0 to 1125899906842624"),
        ("diskSpaceWarningLevelRatio=80", "allowed are 85 to 99"),
        ("storePathCommitLog=/elsewhere", "the commit log lies below storePathRootDir, in store/commitlog"),
        ("logLevel=LOUD", "allowed are DEBUG, INFO"),
        (
            "enableDLegerCommitLog=true",
            "there is no election; an operator changes masters, by mqadmin switchMaster; allowed is false",
        ),
        ("aclEnable=true", "there is no access control; allowed is false"),
        ("brokerPermission=4", "allowed is 6"),
        ("nonsense", "not of the form key=value"),
    ],
)
def test_bad_configuration_is_rejected_with_a_sentence_and_exit_code_2(
    argument: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert shown.count("\n") == 1


class TestRocketmqFiles:
    def test_the_course_s_sample_is_understood(self) -> None:
        started = start("-c", str(SAMPLES / "course.conf"))
        config = started.config
        assert (config.broker_cluster_name, config.broker_name, config.broker_id) == ("DefaultCluster", "broker-a", 0)
        assert config.broker_ip == "192.168.0.128"
        assert config.broker_role is BrokerRole.ASYNC_MASTER
        assert (config.auto_create_topic_enable, config.enable_property_filter) == (True, True)
        assert config.broker_options(config.listen_port).property_filter_enabled
        assert not BrokerConfig().broker_options(config.listen_port).property_filter_enabled
        assert (config.delete_when, config.file_reserved_time) == ("04", 48)
        assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        assert started.warning == ""

    def test_a_file_of_4_x_with_every_path_is_understood(self) -> None:
        started = start("-c", str(SAMPLES / "tutorial-4x.conf"))
        config = started.config
        assert config.name_servers == (Address("rocketmq-nameserver1", 9876), Address("rocketmq-nameserver2", 9876))
        assert (config.mapped_file_size_commit_log, config.mapped_file_size_consume_queue) == (1_073_741_824, 300_000)
        assert (config.disk_max_used_space_ratio, config.max_message_size) == (88, 65_536)
        assert config.store_path_commit_log == "/usr/local/rocketmq/store/commitlog"
        named = set(re.findall(r"[a-zA-Z]+(?=[,(]| \()", started.warning.partition(": ")[2])) & IGNORED_KEYS.keys()
        assert named == {
            "storePathConsumeQueue",
            "storePathIndex",
            "storeCheckpoint",
            "abortFile",
            "destroyMapedFileIntervalForcibly",
            "redeleteHangedFileInterval",
            "flushCommitLogLeastPages",
            "flushConsumeQueueLeastPages",
            "flushCommitLogThoroughInterval",
            "flushConsumeQueueThoroughInterval",
            "checkTransactionMessageEnable",
            "sendMessageThreadPoolNums",
            "pullMessageThreadPoolNums",
        }

    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
            ("mapedFileSizeConsumeQueue", "mappedFileSizeConsumeQueue"),
        ],
    )
    def test_a_4_x_spelling_is_the_same_key_and_both_together_are_rejected(
        self, older: str, newer: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert start(f"{older}=1000000").config == start(f"{newer}=1000000").config
        assert main([f"{older}=1000000", f"{newer}=1000000"]) == 2
        assert f"{older} is the older spelling of {newer}; give only one of them" in capsys.readouterr().err

    def test_no_key_is_both_known_and_without_effect(self) -> None:
        assert config_pairs(BrokerConfig()).keys() & IGNORED_KEYS.keys() == set()

    def test_what_asks_for_what_holds_anyway_is_taken(self) -> None:
        assert start("aclEnable=false", "enableDLegerCommitLog=false", "brokerPermission=6").config == BrokerConfig()


class TestAddresses:
    @pytest.mark.parametrize(
        ("pairs", "address"),
        [
            ({}, "127.0.0.1:10911"),
            ({"bindAddress": "10.0.0.7"}, "10.0.0.7:10911"),
            ({"bindAddress": "0.0.0.0"}, "10.9.8.7:10911"),
            ({"bindAddress": "0.0.0.0", "brokerIP1": "10.0.0.1"}, "10.0.0.1:10911"),
            ({"bindAddress": "localhost", "brokerIP1": "127.0.0.1"}, "127.0.0.1:10911"),
            ({"brokerIP1": "10.0.0.1", "advertisedPort": "20911"}, "10.0.0.1:20911"),
        ],
    )
    def test_clients_are_told_where_the_broker_is_reached(self, pairs: dict[str, str], address: str) -> None:
        config = parse_config(pairs, own_ip=lambda: "10.9.8.7")
        assert config.broker_options(10_911).identity.address == address
        store = config.store_options(10_911)
        assert f"{store.store_ip}:{store.store_port}" == address

    def test_without_a_port_of_its_own_the_one_that_is_listened_on_is_told(self) -> None:
        assert parse_config({"listenPort": "0"}).broker_options(33_333).identity.address == "127.0.0.1:33333"

    def test_a_wrong_address_is_warned_of_unless_it_is_said_otherwise(self) -> None:
        assert parse_config({}).advertised_address_check is AddressCheck.WARN


class TestExample:
    """deploy/conf/broker.conf, which people begin with."""

    def test_it_is_the_default_configuration(self) -> None:
        started = start("-c", str(EXAMPLE))
        assert started.config == BrokerConfig(namesrv_addr="127.0.0.1:9876")
        assert started.warning == ""

    def test_every_key_is_in_it_with_its_default(self) -> None:
        text = re.sub(r"^#(\w+ *=)", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
        pairs = parse_properties(text, "example")
        assert pairs.keys() == config_pairs(BrokerConfig()).keys()
        assert FORMAT.parse(pairs) == BrokerConfig(namesrv_addr="127.0.0.1:9876")


def test_guard_and_ratios_reach_the_retention() -> None:
    kept = {"unconsumedDeleteGuard": "REFUSE", "fileReservedTime": "48"}
    config = parse_config(kept | {"diskMaxUsedSpaceRatio": "88", "diskFreeBytesEnough": "1000"})
    retention = config.retention
    assert retention.free_bytes_enough == 1000
    assert (retention.guard, retention.normal_share, retention.reserved_hours) == (GuardMode.REFUSE, 0.88, 48)
    assert config.store_options(0).retention == retention


MAY_CHANGE = {
    "topicCountMax": "30000",
    "responseMemoryBytesMax": "100000000",
    "subscriptionGroupCountMax": "20000",
    "autoCreatedTopicsPerClient": "10",
    "autoCreatedGroupsPerClient": "10",
    "namesrvAddr": "h:1",
    "fileReservedTime": "48",
    "deleteWhen": "05",
    "diskMaxUsedSpaceRatio": "74",
    "diskSpaceCleanForciblyRatio": "84",
    "diskSpaceWarningLevelRatio": "89",
    "diskFreeBytesEnough": "1000",
    "cleanFileForciblyEnable": "false",
    "unconsumedDeleteGuard": "OFF",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "defaultTopicQueueNums": "5",
    "maxMessageSize": "1",
    "registerNameServerPeriod": "100",
    "flushConsumerOffsetInterval": "100",
    "transactionCheckInterval": "100",
    "transactionTimeOut": "100",
    "transactionCheckMax": "1",
    "logLevel": "DEBUG",
}
ONLY_AT_START = {
    "brokerClusterName": "x",
    "brokerName": "x",
    "brokerIP1": "10.0.0.1",
    "bindAddress": "10.0.0.1",
    "listenPort": "1",
    "advertisedPort": "1",
    "framesListenPort": "1",
    "advertisedFramesPort": "1",
    "advertisedAddressCheck": "OFF",
    "storePathRootDir": "x",
    "storePathCommitLog": "x/commitlog",
    "flushDiskType": "SYNC_FLUSH",
    "flushIntervalCommitLog": "1",
    "mappedFileSizeCommitLog": "100000",
    "mappedFileSizeConsumeQueue": "20",
    "messageIndexEnable": "false",
    "maxHashSlotNum": "1",
    "maxIndexNum": "2",
    "messageDelayLevel": "1s",
    "enablePropertyFilter": "true",
    "brokerId": "1",
    "brokerRole": "SLAVE",
    "brokerIP2": "10.0.0.2",
    "haListenPort": "2",
    "haMasterAddress": "h:1",
    "haSendHeartbeatInterval": "500",
    "haMaxTimeSlaveNotCatchup": "5000",
    "slaveTimeout": "1",
    "minInSyncReplicas": "2",
    "slaveReadEnable": "false",
    "accessMessageInMemoryMaxRatio": "10",
}


def test_every_key_says_whether_it_may_change_while_the_broker_runs() -> None:
    differ = changes(BrokerConfig(), parse_config(MAY_CHANGE | ONLY_AT_START))
    assert set(differ.reloadable) == MAY_CHANGE.keys()
    assert set(differ.fixed) == ONLY_AT_START.keys()
    assert config_pairs(BrokerConfig()).keys() == MAY_CHANGE.keys() | ONLY_AT_START.keys()
