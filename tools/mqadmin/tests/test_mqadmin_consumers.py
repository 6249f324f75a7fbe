"""Service members: who they are, how they are, one message for one of them, one queue set by hand.

Mechanisms L11-L13.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated, started_consumer
from mqclient import ConsumeStatus, MessageExt, MessageListenerConcurrently, PushConsumer

CLUSTER = "DefaultCluster"
ONE, TWO = "127.0.0.1@one", "127.0.0.1@two"
NO_MESSAGE = "7F00000100002A9F0000000000000001"


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        one("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "2", "-w", "2")
        yield one


@pytest.fixture
def members(operator: Operator) -> Iterator[list[PushConsumer]]:
    """Two members of the group readers that have consumed one message."""
    operator("sendMessage", "-t", "orders", "-p", "x", "-k", "k", "-b", "broker-a", "-i", "0", "-c", "paid")
    started = [
        operator.run_while_time_passes(started_consumer(operator.url, "readers", instance=name))
        for name in ("one", "two")
    ]
    operator.advance(10)
    yield started
    for one in started:
        operator.run_while_time_passes(one.shutdown())


def offset_id(operator: Operator) -> str:
    """The id by position of the message with the key k."""
    (message,) = operator("queryMsgByKey", "-t", "orders", "-k", "k", "--json").json["messages"]
    return str(message["offset_message_id"])


class TestConnections:
    def test_each_member_is_a_row(self, operator: Operator, members: list[PushConsumer]) -> None:
        outcome = operator("consumerConnection", "-g", "readers")
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.rows[0] == [
            *("client", "model", "order", "begins at", "subscriptions", "brokers", "last heartbeat"),
        ]
        subscriptions = "%RETRY%readers: *, orders: *"
        assert [row[:6] for row in outcome.rows[1:]] == [
            [client_id, "clustering", "concurrent", "first offset", subscriptions, "broker-a"]
            for client_id in (ONE, TWO)
        ]

    def test_a_group_without_members_is_not_found_and_one_that_is_nowhere_is_rejected(self, operator: Operator) -> None:
        operator("updateSubGroup", "-g", "readers", "-c", CLUSTER)
        for command in ("consumerConnection", "consumerStatus"):
            empty = operator(command, "-g", "readers", "--json")
            assert (empty.exit_code, empty.json["members"]) == (3, [])
            assert empty.stderr == "mqadmin: group readers has no active members\n"
            nowhere = operator(command, "-g", "nobody")
            assert (nowhere.exit_code, "SUBSCRIPTION_GROUP_NOT_EXIST" in nowhere.stderr) == (1, True)


class TestStatus:
    def test_without_a_client_every_member_is_a_row(self, operator: Operator, members: list[PushConsumer]) -> None:
        outcome = operator("consumerStatus", "-g", "readers")
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.rows[0][:4] == ["client", "queues", "cached", "cached bytes"]
        assert [row[0] for row in outcome.rows[1:]] == [ONE, TWO]
        assert all(row[-1].startswith("2023-11-14 22:13:2") for row in outcome.rows[1:]), "when it was started"

    @pytest.mark.mechanism("L13")
    def test_one_member_is_told_queue_by_queue_and_topic_by_topic(
        self, operator: Operator, members: list[PushConsumer]
    ) -> None:
        outcome = operator("consumerStatus", "-g", "readers", "-i", ONE)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert ["client", ONE] in outcome.rows
        assert ["suspended", "no"] in outcome.rows
        (queue,) = [row for row in outcome.rows if row[:3] == ["orders", "broker-a", "0"]]
        assert queue[3:7] == ["1", "1", "0", "0"]
        (member,) = operator("consumerStatus", "-g", "readers", "-i", ONE, "--json").json["members"]
        assert {(one["topic"], one["queue_id"]) for one in member["queues"]} >= {("orders", 0)}
        assert [one["consume_failed_messages"] for one in member["stats"] if one["topic"] == "orders"] == [0]

    def test_a_member_that_does_not_answer_does_not_hide_the_others(
        self, operator: Operator, members: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: str) -> None:
            raise RuntimeError("no idea")

        monkeypatch.setattr(members[0], "running_info", broken)
        outcome = operator("consumerStatus", "-g", "readers")
        assert outcome.exit_code == 1
        assert [row[0] for row in outcome.rows[1:]] == [TWO]
        assert outcome.stderr.startswith(f"mqadmin: {ONE}: ")
        assert "no idea" in outcome.stderr

    def test_a_client_that_is_no_member_is_not_online(self, operator: Operator, members: list[PushConsumer]) -> None:
        outcome = operator("consumerStatus", "-g", "readers", "-i", "stranger")
        assert (outcome.exit_code, "CONSUMER_NOT_ONLINE" in outcome.stderr) == (1, True)


class TestConsumingDirectly:
    @pytest.mark.mechanism("L13")
    def test_one_member_consumes_one_message_and_no_offset_moves(self, operator: Operator) -> None:
        heard: list[str] = []

        def listener(name: str, status: ConsumeStatus) -> MessageListenerConcurrently:
            async def listen(messages: list[MessageExt]) -> ConsumeStatus:
                heard.extend(name for _ in messages)
                return status

            return listen

        operator("sendMessage", "-t", "orders", "-p", "x", "-k", "k")
        started = [
            operator.run_while_time_passes(
                started_consumer(operator.url, "readers", instance=name, listener=listener(name, status))
            )
            for name, status in (("one", ConsumeStatus.CONSUME_SUCCESS), ("two", ConsumeStatus.RECONSUME_LATER))
        ]
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now")
        operator.advance(60)
        heard.clear()
        before = operator("consumerProgress", "-g", "readers", "--json").json["queues"]
        call = ("consumeMessageDirectly", "-g", "readers", "-i", offset_id(operator))
        consumed = operator(*call, "-d", ONE)
        assert (consumed.exit_code, consumed.stderr) == (0, "")
        assert consumed.rows == [["client", "result", "ms", "remark"], [ONE, "CR_SUCCESS", "0", "-"]]
        failed = operator(*call, "-d", TWO, "--json")
        assert (failed.exit_code, failed.json["result"]) == (1, "CR_LATER")
        assert heard == ["one", "two"]
        assert operator("consumerProgress", "-g", "readers", "--json").json["queues"] == before
        for one in started:
            operator.run_while_time_passes(one.shutdown())

    def test_what_is_not_there_is_said_so(self, operator: Operator, members: list[PushConsumer]) -> None:
        stranger = operator("consumeMessageDirectly", "-g", "readers", "-d", "stranger", "-i", offset_id(operator))
        assert (stranger.exit_code, "CONSUMER_NOT_ONLINE" in stranger.stderr) == (1, True)
        nothing = operator("consumeMessageDirectly", "-g", "readers", "-d", ONE, "-i", NO_MESSAGE)
        assert (nothing.exit_code, "no record begins at offset 1" in nothing.stderr) == (3, True)
        assert operator("consumeMessageDirectly", "-g", "readers", "-d", ONE, "-i", "nonsense").exit_code == 2


class TestResetByOffset:
    def test_one_queue_goes_on_there_and_the_others_stay(self, operator: Operator) -> None:
        for queue_id in ("0", "1"):
            for _ in range(3):
                operator("sendMessage", "-t", "orders", "-p", "x", "-b", "broker-a", "-i", queue_id)
        operator("updateSubGroup", "-g", "readers", "-c", CLUSTER)
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now")
        outcome = operator(
            *("resetOffsetByOffset", "-g", "readers", "-t", "orders", "-b", "broker-a", "-i", "1", "-o", "2")
        )
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.rows == [
            ["broker", "queue", "offset before", "offset now", "again", "skipped"],
            ["broker-a", "1", "3", "2", "1", "0"],
        ]
        queues = operator("consumerProgress", "-g", "readers", "--json").json["queues"]
        assert [one["consumer_offset"] for one in queues] == [3, 2]

    @pytest.mark.parametrize(
        ("broker", "queue_id", "offset", "code"),
        [("elsewhere", "0", "0", 1), ("broker-a", "0", "9", 1), ("broker-a", "0", "-1", 2)],
    )
    def test_what_makes_no_sense_changes_nothing(
        self, operator: Operator, broker: str, queue_id: str, offset: str, code: int
    ) -> None:
        operator("updateSubGroup", "-g", "readers", "-c", CLUSTER)
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now")
        arguments = ("-g", "readers", "-t", "orders", "-b", broker, "-i", queue_id, "-o", offset)
        assert operator("resetOffsetByOffset", *arguments).exit_code == code
        queues = operator("consumerProgress", "-g", "readers", "--json").json["queues"]
        assert [one["consumer_offset"] for one in queues] == [0, 0]
