"""What the configuration says about replication: roles, ids, the port for replicas, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.config import FORMAT, BrokerConfig, parse_config
from mq_broker.core.replica_state import BrokerRole, ReplicationOptions
from mqproto.conf import ConfigError
from mqproto.config_source import ConfigSource

SAMPLE = Path(__file__).parent / "rocketmq_files/course.conf"
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


def test_the_defaults_are_those_of_the_options() -> None:
    config = BrokerConfig()
    assert config.replication_options(0) == ReplicationOptions()
    assert config.broker_options(10_911).replication == ReplicationOptions()
    assert config.ha_listen_port == 10_912


def test_every_key_reaches_the_options() -> None:
    pairs = SLAVE | {
        "brokerIP1": "10.0.0.1",
        "brokerIP2": "10.0.0.2",
        "haMasterAddress": "master:10912",
        "minInSyncReplicas": "2",
        "slaveTimeout": "4000",
        "haMaxTimeSlaveNotCatchup": "16000",
        "haSendHeartbeatInterval": "500",
        "slaveReadEnable": "false",
        "accessMessageInMemoryMaxRatio": "10",
    }
    config = parse_config(pairs)
    assert config.broker_options(10_911, 20_912).replication == ReplicationOptions(
        role=BrokerRole.SLAVE,
        ha_address="10.0.0.2:20912",
        master_ha_address="master:10912",
        min_in_sync_replicas=2,
        replica_timeout_ms=4_000,
        replica_not_catchup_ms=16_000,
        beat_interval_ms=500,
        slave_read_enable=False,
        access_message_in_memory_max_ratio=10,
    )
    assert config.broker_options(10_911).identity.broker_id == 1


def test_without_an_address_of_its_own_replicas_find_it_where_clients_do() -> None:
    config = parse_config({"brokerIP1": "10.0.0.1", "advertisedPort": "20911"})
    assert config.replication_options(10_912).ha_address == "10.0.0.1:10912"
    assert parse_config({}).replication_options(0).ha_address == ""


@pytest.mark.parametrize(
    ("pairs", "port"),
    [
        ({}, 10_912),
        ({"listenPort": "10921"}, 10_922),
        ({"listenPort": "0"}, 0),
        ({"listenPort": "10921", "haListenPort": "10999"}, 10_999),
        ({"listenPort": "10921", "haListenPort": "0"}, 0),
        ({"listenPort": "65535", "haListenPort": "1"}, 1),
    ],
)
def test_the_port_for_replicas_is_the_one_after_the_port_for_clients(pairs: dict[str, str], port: int) -> None:
    assert parse_config(pairs).ha_listen_port == port


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ({"brokerRole": "SLAVE"}, "brokerId=0: a broker with brokerRole=SLAVE has one from 1 to 2147483646; 0 is its"),
        (SLAVE | {"brokerId": "-1"}, "brokerId=-1: a broker with brokerRole=SLAVE has one from 1"),
        (SLAVE | {"brokerId": "2147483647"}, "has one from 1 to 2147483646"),
        ({"brokerRole": "SYNC_MASTER", "brokerId": "2"}, "a broker with brokerRole=SYNC_MASTER has brokerId=0"),
        ({"minInSyncReplicas": "2"}, "brokerRole=ASYNC_MASTER waits for no replica; allowed is 1, or more with"),
        (SLAVE | {"minInSyncReplicas": "0"}, "minInSyncReplicas=0: allowed are 1 to 9"),
        (SLAVE | {"minInSyncReplicas": "10"}, "allowed are 1 to 9"),
        ({"haListenPort": "65536"}, "haListenPort=65536: allowed are 0 to 65535"),
        ({"listenPort": "65535"}, "haListenPort=65536: allowed are 0 to 65535"),
        ({"haListenPort": "10911"}, "haListenPort=10911 is the listenPort; replicas need a port of their own"),
        ({"haMasterAddress": "nowhere"}, "haMasterAddress: 'nowhere' is not an address; write host:port"),
        ({"brokerIP2": "localhost"}, "brokerIP2: 'localhost' is not an IPv4 address"),
        ({"brokerIP2": "0.0.0.0"}, "give one address, at which replicas reach this broker"),
        ({"slaveTimeout": "0"}, "slaveTimeout=0: allowed are 1 to 60000"),
        ({"haSendHeartbeatInterval": "5000"}, "haSendHeartbeatInterval=5000: allowed are 10 to 2000"),
        ({"haMaxTimeSlaveNotCatchup": "1999"}, "haMaxTimeSlaveNotCatchup=1999: allowed are 2000 to 600000"),
        ({"accessMessageInMemoryMaxRatio": "0"}, "allowed are 1 to 100"),
        ({"slaveReadEnable": "maybe"}, "allowed are true and false"),
    ],
)
def test_what_cannot_be_is_rejected_with_a_sentence(pairs: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_config(pairs)


@pytest.mark.parametrize("role", BrokerRole)
def test_the_course_s_sample_starts_every_role(role: BrokerRole) -> None:
    own = {"brokerRole": role.name} | ({} if role.is_master else {"brokerId": "1"})
    config, warning = ConfigSource(FORMAT, file=SAMPLE, options=own).read()
    assert config.broker_role is role
    assert config.replication_options(10_912).ha_address == "192.168.0.128:10912"
    assert warning == ""


def test_a_master_may_say_where_its_master_would_be() -> None:
    # The same file serves after a change of masters: config/replica.json has the roles then.
    config = parse_config({"brokerRole": "SYNC_MASTER", "haMasterAddress": "10.0.0.2:10912", "minInSyncReplicas": "2"})
    assert config.replication_options(0).master_ha_address == "10.0.0.2:10912"
