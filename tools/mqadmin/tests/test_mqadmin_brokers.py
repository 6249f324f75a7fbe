"""Brokers: who lives, how they are, what they are set to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated
from mqclient import NoRouteError
from osenv import SimClock

ADDRESS, CLUSTER = "127.0.0.1:10911", "DefaultCluster"
WHO = ["DefaultCluster", "broker-a", "0", ADDRESS]


class RestlessClock(SimClock):
    """Time passes when somebody sleeps; after the third sleep it is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 3:
            raise NoRouteError("enough")


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        yield one


def test_the_cluster_list_has_the_registered_brokers_and_their_state(operator: Operator) -> None:
    operator("sendMessage", "-t", "orders", "-p", "x")
    operator.advance(90)
    assert operator("clusterList").rows == [
        ["cluster", "broker", "id", "address", "up for", "in", "out", "disk", "writes"],
        [*WHO, "1.5 min", "1", "0", "0%", "accepted"],
    ]


def test_more_statistics_are_of_the_store(operator: Operator) -> None:
    operator("sendMessage", "-t", "orders", "-p", "x", "--delayLevel", "5")
    outcome = operator("clusterList", "-m", "-c", CLUSTER)
    (status,) = operator("brokerStatus", "-b", ADDRESS, "--json").json["brokers"]
    size = status["log_max_offset"] - status["log_min_offset"]
    assert outcome.rows == [
        ["cluster", "broker", "id", "address", "stored", "waiting", "log bytes", "unsynced", "disk", "writes"],
        [*WHO, "1", "1", str(size), "0", "0%", "accepted"],
    ]


def test_the_cluster_list_comes_again_every_interval(operator: Operator) -> None:
    operator.clock = clock = RestlessClock()
    outcome = operator("clusterList", "-i", "7")
    assert clock.slept == [7, 7, 7]
    assert outcome.stdout.count("broker-a") == 3
    assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: enough\n")


def test_a_repeated_table_is_no_document(operator: Operator) -> None:
    assert operator("clusterList", "-i", "7", "--json").exit_code == 2


def test_the_status_is_everything_that_a_broker_says_of_itself(operator: Operator) -> None:
    operator("sendMessage", "-t", "orders", "-p", "x")
    for target in (("-b", ADDRESS), ("-c", CLUSTER)):
        (status,) = operator("brokerStatus", *target, "--json").json["brokers"]
        assert (status["broker_name"], status["broker_address"]) == ("broker-a", ADDRESS)
        assert (status["messages_put"], status["messages_stored"], status["write_refusal"]) == (1, 1, None)
        assert status["started_at_ms"] == 1_700_000_000_000
        assert [level["delay_ms"] for level in status["delay_levels"]][:3] == [1_000, 5_000, 10_000]
    rows = operator("brokerStatus", "-b", ADDRESS).rows
    assert rows[0] == ["broker-a", ADDRESS]
    assert ["messages put", "1"] in rows
    assert ["writes", "accepted"] in rows
    assert rows[-1] == ["level", "delay", "waiting", "delivered", "latest by"]
    operator("sendMessage", "-t", "orders", "-p", "x", "--delayLevel", "16")
    assert operator("brokerStatus", "-b", "broker-a").rows[-1] == ["16", "30 min", "1", "0", "-"]
    unknown = operator("brokerStatus", "-b", "broker-x")
    assert (unknown.exit_code, unknown.stderr) == (
        1,
        "mqadmin: no broker 'broker-x' is registered; brokers are: broker-a\n",
    )


@pytest.mark.parametrize("command", ["brokerConfig", "getBrokerConfig"])
def test_the_configuration_is_read_by_the_keys_of_broker_conf(operator: Operator, command: str) -> None:
    (broker,) = operator(command, "-b", ADDRESS, "--json").json["brokers"]
    assert broker["config"]["flushDiskType"] == "SYNC_FLUSH"
    rows = operator(command, "-c", CLUSTER).rows
    assert rows[0] == ["broker-a", "value"]
    assert dict(rows[1:]) | {"flushDiskType": "SYNC_FLUSH"} == dict(rows[1:])
    assert [row[0] for row in rows[1:]] == sorted(broker["config"])


@pytest.mark.parametrize("command", ["brokerStatus", "brokerConfig"])
def test_it_is_for_a_broker_or_for_a_cluster(operator: Operator, command: str) -> None:
    assert operator(command).exit_code == 2
    assert operator(command, "-b", ADDRESS, "-c", CLUSTER).exit_code == 2
