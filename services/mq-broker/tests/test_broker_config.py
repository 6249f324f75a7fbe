"""The configuration: RocketMQ's keys, checked at once, with sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.__main__ import _parse, main
from mq_broker.config import BrokerConfig
from mq_broker.store.message_store import FlushDiskType
from mqproto.address import Address
from mqproto.conf import ConfigError


def test_defaults_are_rocketmq_s() -> None:
    config = BrokerConfig()
    assert (config.listen_port, config.broker_name, config.default_topic_queue_nums) == (10_911, "broker-a", 4)
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    store = config.store_options(10_911)
    assert store.layout.commit_log_file_bytes == 1024**3
    assert store.layout.consume_queue_file_bytes == 6_000_000
    assert config.max_message_size == 4 * 1024 * 1024


def test_a_file_the_name_server_option_and_overrides_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# comment\nbrokerName = broker-b\nbrokerIP1=10.0.0.7\nlistenPort=1\nflushDiskType=SYNC_FLUSH\n")
    config = _parse(["-c", str(file), "-n", "127.0.0.1:9876;127.0.0.1:9877", "listenPort=2"])
    assert (config.broker_name, config.listen_port) == ("broker-b", 2)
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.name_servers == (Address("127.0.0.1", 9876), Address("127.0.0.1", 9877))
    assert config.broker_options(2).identity.address == "10.0.0.7:2"


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("brokerNam=x", "did you mean brokerName"),
        ("listenPort=70000", "allowed are 0 to 65535"),
        ("listenPort=x", "is not a whole number"),
        ("flushDiskType=SOMETIMES", "allowed are ASYNC_FLUSH, SYNC_FLUSH"),
        ("autoCreateTopicEnable=yes", "allowed are true and false"),
        ("messageDelayLevel=1s 5y", "5y"),
        ("brokerIP1=localhost", "not an IPv4 address"),
        ("brokerName=", "brokerName is empty"),
        ("namesrvAddr=nowhere", "write host:port"),
        ("mappedFileSizeConsumeQueue=30", "multiple of 20"),
        ("brokerId=1", "allowed are 0 to 0"),
        ("maxMessageSize=5000000", "allowed are 1 to 4194304"),
        ("nonsense", "not of the form key=value"),
    ],
)
def test_bad_configuration_is_refused_with_a_sentence_and_exit_code_2(
    argument: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _parse([argument])
    assert main([argument]) == 2
    assert sentence in capsys.readouterr().err
