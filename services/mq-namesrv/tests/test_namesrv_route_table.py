"""The route table's steps: each outcome by name, and the invariants after every step of random histories."""

from __future__ import annotations

import copy
import dataclasses
import time
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq_namesrv.core import route_table
from mq_namesrv.core.registration import BrokerIdentity, Epoch, Registration, RegistrationError, TopicConfig
from mq_namesrv.core.route_table import (
    InvariantError,
    RouteTable,
    SupersededError,
    away_brokers,
    check_invariants,
    close_session,
    cluster_list,
    expire,
    register,
    route,
    topic_list,
    unregister,
)

EXPIRE_SECONDS = 120.0


def identity(name: str = "broker-a", broker_id: int = 0, *, cluster: str = "c1", port: int = 10911) -> BrokerIdentity:
    return BrokerIdentity(cluster, name, broker_id, f"10.0.0.1:{port + broker_id}")


def registration(
    who: BrokerIdentity | None = None, topics: tuple[str, ...] = ("orders",), *, queues: int = 4, version: int = 1
) -> Registration:
    who = who or identity()
    configs = {topic: TopicConfig(topic, queues, queues, 6) for topic in topics}
    return Registration(who, f"10.0.0.1:{20_000 + who.broker_id}", configs, version)


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def queue_counts(table: RouteTable, topic: str) -> dict[str, int]:
    found = route(table, topic)
    return {} if found is None else {name: config.read_queue_count for name, config in found.queues}


def addresses(table: RouteTable, topic: str) -> dict[str, dict[int, str]]:
    found = route(table, topic)
    return {} if found is None else {data.broker_name: dict(data.addresses) for data in found.brokers}


def test_route_of_a_topic_names_every_broker_that_has_it(table: RouteTable) -> None:
    register(table, registration(identity("broker-b"), ("orders", "payments"), queues=8), session=1, now=0)
    register(table, registration(identity("broker-a", port=10_000), ("orders",)), session=2, now=0)

    found = route(table, "orders")

    assert found is not None
    assert [name for name, _ in found.queues] == ["broker-a", "broker-b"]
    assert found.queues[1][1] == TopicConfig("orders", 8, 8, 6)
    assert [(data.cluster_name, data.broker_name) for data in found.brokers] == [("c1", "broker-a"), ("c1", "broker-b")]
    assert queue_counts(table, "payments") == {"broker-b": 8}
    assert topic_list(table) == ["orders", "payments"]


def test_unknown_topic_has_no_route(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    assert route(table, "nothing") is None


def test_read_and_write_queue_counts_and_permission_are_kept_apart(table: RouteTable) -> None:
    config = TopicConfig("orders", 8, 4, 4)
    register(table, Registration(identity(), "", {"orders": config}, 0), session=1, now=0)
    found = route(table, "orders")
    assert found is not None
    assert found.queues == (("broker-a", config),)


def test_master_and_replica_share_one_broker_name(table: RouteTable) -> None:
    master = register(table, registration(identity()), session=1, now=0)
    replica = register(table, registration(identity(broker_id=1)), session=2, now=0)

    assert addresses(table, "orders") == {"broker-a": {0: "10.0.0.1:10911", 1: "10.0.0.1:10912"}}
    assert (master.ha_address, replica.ha_address) == ("10.0.0.1:20000", "10.0.0.1:20000")


def test_topics_of_a_replica_count_only_while_there_is_no_master(table: RouteTable) -> None:
    replica = register(table, registration(identity(broker_id=1), ("old",), queues=2), session=1, now=0)
    assert replica.ha_address == ""
    assert topic_list(table) == ["old"]

    register(table, registration(identity(), ("new",)), session=2, now=0)
    assert topic_list(table) == ["new"]

    close_session(table, 2, 0)
    assert topic_list(table) == ["old"]
    assert addresses(table, "old") == {"broker-a": {1: "10.0.0.1:10912"}}


def test_replica_with_the_lowest_id_stands_in_for_the_master(table: RouteTable) -> None:
    register(table, registration(identity(broker_id=2), ("two",)), session=1, now=0)
    register(table, registration(identity(broker_id=1), ("one",)), session=2, now=0)
    assert topic_list(table) == ["one"]


def test_heartbeat_with_changed_topics_changes_the_routes(table: RouteTable) -> None:
    first = register(table, registration(topics=("a", "b")), session=1, now=0)
    same = register(table, registration(topics=("a", "b")), session=1, now=1)
    changed = register(table, registration(topics=("b", "c"), queues=8, version=2), session=1, now=2)

    assert (first.is_new, first.topics_changed) == (True, True)
    assert (same.is_new, same.topics_changed) == (False, False)
    assert (changed.is_new, changed.topics_changed) == (False, True)
    assert topic_list(table) == ["b", "c"]
    assert queue_counts(table, "b") == {"broker-a": 8}


def test_older_data_version_of_the_same_session_is_only_a_heartbeat(table: RouteTable) -> None:
    register(table, registration(topics=("new",), version=5), session=1, now=0)
    register(table, registration(topics=("old",), version=4), session=1, now=100)

    assert topic_list(table) == ["new"]
    assert expire(table, 200, EXPIRE_SECONDS) == []


def test_a_restarted_process_may_count_its_versions_anew(table: RouteTable) -> None:
    register(table, registration(topics=("old",), version=5), session=1, now=0)
    register(table, registration(topics=("new",), version=0), session=2, now=0)
    assert topic_list(table) == ["new"]


@pytest.mark.mechanism("N3")
def test_silent_broker_is_dropped_after_120_seconds_and_not_before(table: RouteTable) -> None:
    register(table, registration(identity("broker-a")), session=1, now=0)
    register(table, registration(identity("broker-b", port=1000)), session=2, now=60)

    assert expire(table, 120, EXPIRE_SECONDS) == []
    gone = expire(table, 120.001, EXPIRE_SECONDS)

    assert [broker.registration.identity.broker_name for broker in gone] == ["broker-a"]
    assert list(addresses(table, "orders")) == ["broker-b"]


def test_heartbeat_keeps_a_broker_alive(table: RouteTable) -> None:
    for now in range(0, 3600, 30):
        register(table, registration(), session=1, now=now)
        assert expire(table, now, EXPIRE_SECONDS) == []


def test_expired_broker_returns_with_its_next_heartbeat(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    expire(table, 500, EXPIRE_SECONDS)
    assert topic_list(table) == []
    assert register(table, registration(), session=1, now=501).is_new
    assert topic_list(table) == ["orders"]


def test_closed_session_takes_its_broker_and_no_other(table: RouteTable) -> None:
    register(table, registration(identity("broker-a")), session=1, now=0)
    register(table, registration(identity("broker-b", port=1000)), session=2, now=0)
    gone = close_session(table, 1, 0)
    assert [broker.registration.identity.broker_name for broker in gone] == ["broker-a"]
    assert list(addresses(table, "orders")) == ["broker-b"]
    assert close_session(table, 1, 0) == []


def test_close_of_a_session_that_was_taken_over_changes_nothing(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    register(table, registration(), session=2, now=0)
    assert close_session(table, 1, 0) == []
    assert topic_list(table) == ["orders"]


def test_older_session_cannot_take_the_broker_back(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    register(table, registration(identity(port=1000)), session=2, now=0)
    with pytest.raises(SupersededError, match=r"newer session, from 10\.0\.0\.1:1000"):
        register(table, registration(), session=1, now=1)
    assert addresses(table, "orders") == {"broker-a": {0: "10.0.0.1:1000"}}


def test_unregistered_broker_is_gone(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    assert unregister(table, identity(), 0) is not None
    assert unregister(table, identity(), 0) is None
    assert topic_list(table) == []


def test_a_name_whose_last_broker_has_left_is_away_until_one_comes_back(table: RouteTable) -> None:
    register(table, registration(topics=("orders", "carts")), session=1, now=0)
    register(table, registration(identity(broker_id=1)), session=2, now=0)
    unregister(table, identity(), 5)
    assert away_brokers(table, "orders") == []
    close_session(table, 2, 6)
    assert (topic_list(table), topic_list(table, with_away=True)) == ([], ["orders"])  # as its last broker had them
    assert away_brokers(table, "orders") == ["broker-a"]
    check_invariants(table)
    register(table, registration(topics=("carts",)), session=3, now=10)
    assert (away_brokers(table, "orders"), topic_list(table, with_away=True)) == ([], ["carts"])


def test_a_name_is_away_for_ten_minutes_and_among_so_many_only(
    table: RouteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_table, "AWAY_TOPICS_MAX", 4)
    for number, name in enumerate("abc"):
        register(table, registration(identity(name), topics=("orders", name)), session=number, now=0)
        close_session(table, number, number)
    assert away_brokers(table, "orders") == ["b", "c"]
    expire(table, 601.5, EXPIRE_SECONDS)
    assert away_brokers(table, "orders") == ["c"]
    assert topic_list(table, with_away=True) == ["c", "orders"]
    expire(table, 602.5, EXPIRE_SECONDS)
    assert topic_list(table, with_away=True) == []


def test_unregistering_from_another_address_changes_nothing(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    assert unregister(table, identity(port=1), 0) is None
    assert topic_list(table) == ["orders"]


def test_replica_that_became_master_leaves_its_old_id(table: RouteTable) -> None:
    replica = identity(broker_id=1)
    register(table, registration(replica), session=1, now=0)
    register(table, registration(dataclasses.replace(replica, broker_id=0)), session=2, now=0)
    assert addresses(table, "orders") == {"broker-a": {0: "10.0.0.1:10912"}}
    assert close_session(table, 1, 0) == []


def test_one_broker_name_is_in_one_cluster(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    with pytest.raises(RegistrationError, match=r"is in cluster 'c1' with id 0 .* it cannot be in cluster 'c2' too"):
        register(table, registration(identity(broker_id=1, cluster="c2")), session=2, now=0)
    assert addresses(table, "orders") == {"broker-a": {0: "10.0.0.1:10911"}}


def test_broker_alone_under_its_name_may_move_to_another_cluster(table: RouteTable) -> None:
    register(table, registration(), session=1, now=0)
    register(table, registration(identity(cluster="c2")), session=2, now=0)
    assert [data.cluster_name for data in cluster_list(table)] == ["c2"]


def test_cluster_list_is_sorted_by_cluster_and_name(table: RouteTable) -> None:
    for number, (cluster, name) in enumerate([("c2", "a"), ("c1", "z"), ("c1", "b")]):
        register(table, registration(identity(name, cluster=cluster, port=number + 1)), session=number, now=0)
    assert [(one.cluster_name, one.broker_name) for one in cluster_list(table)] == [
        ("c1", "b"),
        ("c1", "z"),
        ("c2", "a"),
    ]


BAD_INPUT: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    # identity, registration, topic; what the sentence says
    ({"broker_name": ""}, {}, {}, "the broker name is missing"),
    ({"broker_name": "a b"}, {}, {}, "the broker name 'a b' is illegal"),
    ({"broker_name": "x" * 256}, {}, {}, "the broker name has 256 characters"),
    ({"cluster_name": ""}, {}, {}, "the cluster name is missing"),
    ({"cluster_name": "ä"}, {}, {}, "the cluster name 'ä' is illegal"),
    ({"broker_id": -1}, {}, {}, "the broker id is -1"),
    ({"address": ""}, {}, {}, "the broker address: '' is not an address"),
    ({"address": "10.0.0.1"}, {}, {}, "the broker address: '10.0.0.1' is not an address"),
    ({"address": "10.0.0.1:0"}, {}, {}, "a port from 1 to 65535"),
    ({"address": "10.0.0.1:65536"}, {}, {}, "a port from 1 to 65535"),
    ({"address": "10.0.0.1:1;10.0.0.2:2"}, {}, {}, "is not an address"),
    ({"address": "a b:1"}, {}, {}, "is not an address"),
    ({}, {"ha_address": "nowhere"}, {}, "the HA address: 'nowhere' is not an address"),
    ({}, {"data_version": -1}, {}, "the data version is -1"),
    ({}, {"epoch": Epoch(7, -1)}, {}, "the epoch is 7.-1"),
    ({}, {}, {"topic": ""}, "the topic name is empty"),
    ({}, {}, {"topic": "a/b"}, "'a/b' has a character that is not allowed"),
    ({}, {}, {"topic": "x" * 128}, "128 characters"),
    ({}, {}, {"read_queue_count": -1}, "has -1 read queues"),
    ({}, {}, {"write_queue_count": -4}, "has -4 write queues"),
    ({}, {}, {"write_queue_count": 65_536}, "has 65536 write queues"),
    ({}, {}, {"perm": 8}, "has permission 8"),
    ({}, {}, {"perm": -1}, "has permission -1"),
]


@pytest.mark.parametrize(("who", "whole", "topic", "sentence"), BAD_INPUT, ids=[row[3] for row in BAD_INPUT])
def test_bad_registration_is_rejected_and_changes_nothing(
    table: RouteTable, who: dict[str, Any], whole: dict[str, Any], topic: dict[str, Any], sentence: str
) -> None:
    register(table, registration(topics=("kept",)), session=1, now=0)
    before = copy.deepcopy(table)
    config = dataclasses.replace(TopicConfig("t", 4, 4, 6), **topic)
    bad = dataclasses.replace(
        Registration(dataclasses.replace(identity(), **who), "", {config.topic: config}, 2), **whole
    )

    with pytest.raises(RegistrationError) as caught:
        register(table, bad, session=2, now=0)

    assert sentence in str(caught.value)
    assert table == before


def test_too_many_topics_are_rejected(table: RouteTable) -> None:
    topics = {str(number): TopicConfig(str(number), 1, 1, 6) for number in range(100_001)}
    with pytest.raises(RegistrationError, match="100,001 topics"):
        register(table, Registration(identity(), "", topics, 1), session=1, now=0)


@pytest.mark.parametrize("damage", ["left over", "missing", "misfiled", "two clusters", "one address"])
def test_damaged_table_is_noticed(table: RouteTable, damage: str) -> None:
    register(table, registration(), session=1, now=0)
    register(table, registration(identity(broker_id=1)), session=2, now=0)
    check_invariants(table)
    brokers = table.brokers["broker-a"]
    if damage == "left over":
        table.offers["gone"] = {}
    elif damage == "missing":
        del table.offers["orders"]
    elif damage == "misfiled":
        brokers[2] = brokers.pop(1)
    else:
        change: dict[str, Any] = {"cluster_name": "c2"} if damage == "two clusters" else {"address": "10.0.0.1:10911"}
        who = dataclasses.replace(brokers[1].registration.identity, **change)
        brokers[1] = dataclasses.replace(
            brokers[1], registration=dataclasses.replace(brokers[1].registration, identity=who)
        )
    with pytest.raises(InvariantError):
        check_invariants(table)


def test_lookup_looks_at_the_brokers_of_the_topic_only(table: RouteTable) -> None:
    """10,000 other topics and 200 other brokers must not make a lookup slower: no more than 1 ms each, on average."""
    for number in range(200):
        topics = tuple(f"t{number}-{i}" for i in range(50))
        register(table, registration(identity(f"b{number}", port=number + 1), topics), session=number, now=0)
    register(table, registration(identity("mine", port=9000), ("mine",)), session=999, now=0)
    assert len(table.offers) == 10_001

    begin = time.process_time()
    for _ in range(1000):
        route(table, "mine")
    assert time.process_time() - begin < 1.0


class RandomHistory(RuleBasedStateMachine):
    """Any order of steps leaves the table consistent, and each broker with the newest session that registered it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now = 0.0
        self.owners: dict[tuple[str, int], tuple[int, float]] = {}

    @rule(
        name=st.sampled_from("ab"),
        broker_id=st.integers(0, 2),
        session=st.integers(1, 8),
        topics=st.sets(st.sampled_from(["t1", "t2", "t3"])),
        version=st.integers(0, 3),
    )
    def registers(self, name: str, broker_id: int, session: int, topics: set[str], version: int) -> None:
        who = identity(name, broker_id, port=10_000 if name == "a" else 20_000)
        owner = self.owners.get((name, broker_id))
        try:
            register(self.table, registration(who, tuple(topics), version=version), session, self.now)
        except SupersededError:
            assert owner is not None
            assert owner[0] > session
        else:
            assert owner is None or owner[0] <= session
            self.owners[name, broker_id] = (session, self.now)

    @rule(session=st.integers(1, 8))
    def ends(self, session: int) -> None:
        close_session(self.table, session, self.now)
        self.owners = {key: owner for key, owner in self.owners.items() if owner[0] != session}

    @rule(name=st.sampled_from("ab"), broker_id=st.integers(0, 2))
    def unregisters(self, name: str, broker_id: int) -> None:
        removed = unregister(self.table, identity(name, broker_id, port=10_000 if name == "a" else 20_000), self.now)
        assert (removed is not None) == (self.owners.pop((name, broker_id), None) is not None)

    @rule(seconds=st.floats(0, 100))
    def waits(self, seconds: float) -> None:
        self.now += seconds
        expire(self.table, self.now, EXPIRE_SECONDS)
        self.owners = {key: owner for key, owner in self.owners.items() if self.now - owner[1] <= EXPIRE_SECONDS}

    @invariant()
    def table_is_consistent(self) -> None:
        check_invariants(self.table)
        known = {
            (name, broker_id): (broker.session, broker.last_seen)
            for name, siblings in self.table.brokers.items()
            for broker_id, broker in siblings.items()
        }
        assert known == self.owners


RandomHistory.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_random_histories = RandomHistory.TestCase
