"""Topics: made, changed, deleted and looked at from the command line (mechanism N11)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated
from mqclient import Message, Producer
from mqproto.record import BODY_AT as RECORD_BYTES_MIN

BROKER = {
    "cluster_name": "DefaultCluster",
    "broker_name": "broker-a",
    "broker_id": 0,
    "broker_address": "127.0.0.1:10911",
}
ADDRESS, CLUSTER = "127.0.0.1:10911", "DefaultCluster"


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        yield one


async def send(url: str, *bodies: bytes, topic: str = "orders") -> None:
    async with Producer("writers", url) as producer:
        for body in bodies:
            await producer.send(Message(topic, body), selector=lambda queues, _message, _argument: queues[0])


def settings(operator: Operator, topic: str) -> tuple[int, int, int]:
    """Read queues, write queues, perm, as the route has them."""
    (broker,) = operator("topicRoute", "-t", topic, "--json").json["brokers"]
    return broker["read_queue_count"], broker["write_queue_count"], broker["perm"]


class TestUpdateTopic:
    @pytest.mark.mechanism("N11")
    @pytest.mark.parametrize("target", [("-c", CLUSTER), ("-b", ADDRESS), ("--clusterName", CLUSTER)])
    def test_a_new_topic_gets_what_is_named(self, operator: Operator, target: tuple[str, str]) -> None:
        outcome = operator("updateTopic", "-t", "orders", *target, "-r", "3", "-w", "2", "-p", "4")
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.rows == [
            ["broker", "address", "topic", "read queues", "write queues", "perm", "outcome"],
            ["broker-a", ADDRESS, "orders", "3", "2", "4 R--", "created"],
        ]
        assert settings(operator, "orders") == (3, 2, 4)

    def test_a_new_topic_gets_rocketmq_s_8_queues_and_may_be_read_and_written(self, operator: Operator) -> None:
        outcome = operator("updateTopic", "-t", "orders", "-c", CLUSTER, "--json")
        assert outcome.json == {
            "topic": "orders",
            "brokers": [BROKER | {"read_queue_count": 8, "write_queue_count": 8, "perm": 6, "outcome": "created"}],
            "failed": [],
        }
        assert settings(operator, "orders") == (8, 8, 6)

    def test_what_is_not_named_stays(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "3", "-w", "2")
        changed = operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-p", "2", "--json")
        assert changed.json["brokers"][0]["outcome"] == "changed"
        assert settings(operator, "orders") == (3, 2, 2)
        again = operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-p", "2", "--json")
        assert again.json["brokers"][0]["outcome"] == "unchanged"

    def test_a_dead_letter_topic_is_opened_for_readers_as_in_the_article(self, operator: Operator) -> None:
        """Mechanism N11: `updateTopic -b ... -t %DLQ%group1 -p 6`."""
        assert operator("updateTopic", "-b", ADDRESS, "-t", "%DLQ%group1", "-p", "6").exit_code == 0
        assert settings(operator, "%DLQ%group1")[2] == 6

    @pytest.mark.parametrize("target", [(), ("-c", CLUSTER, "-b", ADDRESS)])
    @pytest.mark.parametrize("command", ["updateTopic", "updateTopicPerm", "deleteTopic"])
    def test_it_is_for_a_broker_or_for_a_cluster(
        self, operator: Operator, command: str, target: tuple[str, ...]
    ) -> None:
        perm = ("-p", "6") if command == "updateTopicPerm" else ()
        outcome = operator(command, "-t", "orders", *perm, *target)
        assert outcome.exit_code == 2
        assert outcome.stderr.startswith("mqadmin: name a broker with -b or a cluster with -c, one of the two")

    def test_a_broker_s_rejection_is_a_sentence_and_exit_code_1(self, operator: Operator) -> None:
        outcome = operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-p", "9")
        assert (outcome.exit_code, outcome.stdout) == (1, "")
        assert "broker-a" in outcome.stderr
        assert "MESSAGE_ILLEGAL: perm 9 is not made of" in outcome.stderr

    def test_a_rejection_is_in_the_document_too(self, operator: Operator) -> None:
        outcome = operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "0", "--json")
        assert outcome.exit_code == 1
        (failed,) = outcome.json["failed"]
        assert outcome.json["brokers"] == []
        assert failed | BROKER == failed
        assert "0 read queues" in failed["error"]

    @pytest.mark.parametrize("topic", ["a b", "", "SCHEDULE_TOPIC_XXXX"])
    def test_a_topic_that_cannot_be_is_wrong_usage(self, operator: Operator, topic: str) -> None:
        outcome = operator("updateTopic", "-t", topic, "-c", CLUSTER)
        assert (outcome.exit_code, outcome.stderr.count("\n")) == (2, 1)

    def test_a_cluster_that_does_not_live_is_named_with_those_that_do(self, operator: Operator) -> None:
        outcome = operator("updateTopic", "-t", "orders", "-c", "Elsewhere")
        assert outcome.exit_code == 1
        assert "no broker of a cluster 'Elsewhere' is registered; clusters are: DefaultCluster" in outcome.stderr


class TestUpdateTopicPerm:
    def test_it_changes_the_permission_and_nothing_else(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "3", "-w", "2")
        outcome = operator("updateTopicPerm", "-t", "orders", "-c", CLUSTER, "-p", "4")
        assert outcome.rows[1] == ["broker-a", ADDRESS, "orders", "3", "2", "4 R--", "changed"]
        assert settings(operator, "orders") == (3, 2, 4)

    def test_a_topic_that_is_nowhere_is_said_so(self, operator: Operator) -> None:
        outcome = operator("updateTopicPerm", "-t", "orders", "-c", CLUSTER, "-p", "4")
        assert outcome.exit_code == 1
        assert "no broker of DefaultCluster has the topic 'orders'" in outcome.stderr


class TestDeleteTopic:
    def test_it_is_gone(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER)
        outcome = operator("deleteTopic", "-t", "orders", "-c", CLUSTER, "--json")
        assert outcome.json == {"topic": "orders", "cluster_name": CLUSTER, "broker_address": None}
        assert "orders" not in operator("topicList").stdout

    def test_a_topic_that_is_not_there_is_said_so(self, operator: Operator) -> None:
        outcome = operator("deleteTopic", "-t", "orders", "-b", ADDRESS)
        assert outcome.exit_code == 1
        assert "TOPIC_NOT_EXIST" in outcome.stderr


class TestLooking:
    def test_the_list_is_bare_names_one_a_line(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER)
        outcome = operator("topicList", "-a")
        names = outcome.stdout.splitlines()
        assert (names, outcome.stderr) == (sorted(names), "")
        assert {"orders", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= set(names)
        assert operator("topicList", "--json").json == {
            "topics": [{"topic": name, "system": name != "orders"} for name in names]
        }

    def test_system_topics_are_left_out_and_counted(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER)
        count = len(operator("topicList", "-a").rows)
        outcome = operator("topicList")
        assert outcome.stdout == "orders\n"
        assert outcome.stderr.startswith(f"mqadmin: {count - 1} system topics")

    def test_the_list_with_sizes_begins_with_the_largest_topic(self, operator: Operator) -> None:
        operator.run(send(operator.url, bytes(100), topic="small"))
        operator.run(send(operator.url, *[bytes(3_000)] * 3, topic="large"))
        head, large, small = operator("topicList", "-s").rows
        assert head == ["topic", "messages", "about bytes"]
        assert (large[:2], small[:2]) == (["large", "3"], ["small", "1"])
        assert 9_000 < int(large[2]) < 10_000 > 1_000 > int(small[2]) > 100
        sizes = {one["topic"]: one for one in operator("topicList", "--sizes", "--json").json["topics"]}
        assert sizes["large"] == {
            "topic": "large",
            "message_count": 3,
            "about_bytes": int(large[2]),
            "system": False,
        }
        assert sizes["TBW102"]["system"]
        assert operator("topicList", "-s", "-c").exit_code == 2

    def test_the_list_names_clusters_and_groups(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER)
        for group in ("b", "a"):
            operator("updateSubGroup", "-g", group, "-c", CLUSTER)
            operator("resetOffsetByTime", "-y", "-g", group, "-t", "orders", "-s", "now")
        outcome = operator("topicList", "-c", "-a")
        assert outcome.rows[0] == ["cluster", "topic", "consumer group"]
        assert [row for row in outcome.rows if "orders" in row] == [
            ["DefaultCluster", "orders", "a"],
            ["DefaultCluster", "orders", "b"],
        ]
        assert ["DefaultCluster", "TBW102", "-"] in outcome.rows
        (orders,) = [one for one in operator("topicList", "-c", "--json").json["topics"] if one["topic"] == "orders"]
        assert orders == {"cluster_name": CLUSTER, "topic": "orders", "consumer_groups": ["a", "b"], "system": False}

    @pytest.mark.parametrize("flags", [(), ("-l",)])
    def test_the_route_says_who_has_how_many_queues(self, operator: Operator, flags: tuple[str, ...]) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "3", "-w", "2", "-p", "6")
        assert operator("topicRoute", "-t", "orders", *flags).rows == [
            ["cluster", "broker", "addresses", "read queues", "write queues", "perm"],
            ["DefaultCluster", "broker-a", "0: 127.0.0.1:10911", "3", "2", "6 RW-"],
        ]

    def test_the_route_as_a_document(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "3", "-w", "2")
        assert operator("topicRoute", "-t", "orders", "--json").json == {
            "topic": "orders",
            "brokers": [
                {
                    "cluster_name": CLUSTER,
                    "broker_name": "broker-a",
                    "addresses": {"0": ADDRESS},
                    "read_queue_count": 3,
                    "write_queue_count": 2,
                    "perm": 6,
                }
            ],
        }

    def test_a_list_and_a_document_cannot_both_be_had(self, operator: Operator) -> None:
        assert operator("topicRoute", "-t", "orders", "-l", "--json").exit_code == 2

    @pytest.mark.parametrize("command", ["topicRoute", "topicStatus"])
    def test_a_topic_that_is_nowhere_is_exit_code_1(self, operator: Operator, command: str) -> None:
        outcome = operator(command, "-t", "nowhere")
        assert (outcome.exit_code, outcome.stdout) == (1, "")
        assert "nowhere" in outcome.stderr

    def test_the_status_says_what_each_queue_holds(self, operator: Operator) -> None:
        operator("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "2", "-w", "2")
        operator.run(send(operator.url, b"1", b"2"))
        first, second = operator("topicStatus", "-t", "orders", "--json").json["queues"]
        bytes_taken = first["about_bytes"]
        assert 2 * RECORD_BYTES_MIN < bytes_taken < 2 * (RECORD_BYTES_MIN + 300)  # with properties
        assert operator("topicStatus", "-t", "orders", "-c", CLUSTER).rows == [
            ["broker", "queue", "min offset", "max offset", "messages", "about bytes", "last stored"],
            ["broker-a", "0", "0", "2", "2", str(bytes_taken), "2023-11-14 22:13:20.000Z"],
            ["broker-a", "1", "0", "0", "0", "0", "-"],
        ]
        assert first == {
            "broker_name": "broker-a",
            "queue_id": 0,
            "min_offset": 0,
            "max_offset": 2,
            "message_count": 2,
            "about_bytes": bytes_taken,
            "last_stored_at": "2023-11-14T22:13:20.000Z",
            "last_stored_at_ms": 1_700_000_000_000,
        }
        assert (second["last_stored_at"], second["last_stored_at_ms"]) == (None, None)
