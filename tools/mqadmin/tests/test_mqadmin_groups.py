"""Groups: their settings, how far they are, where they go on (mechanism L13)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated, started_consumer

ADDRESS, CLUSTER = "127.0.0.1:10911", "DefaultCluster"
HOUR_S = 3_600
BEGINNING = "2023-11-14T22:13:20Z"  # SimClock's


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        one("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "2", "-w", "2")
        yield one


def send(operator: Operator, count: int, queue_id: int = 0) -> None:
    for number in range(count):
        assert (
            operator("sendMessage", "-t", "orders", "-p", str(number), "-b", "broker-a", "-i", str(queue_id)).exit_code
            == 0
        )


def settings(operator: Operator, *arguments: str) -> list[str]:
    outcome = operator("updateSubGroup", "-g", "readers", "-c", CLUSTER, *arguments)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.rows[0] == [
        "broker",
        "group",
        "may pull",
        "may broadcast",
        "tries",
        "retry queues",
        "may differ",
        "outcome",
    ]
    return outcome.rows[1][2:]


class TestSettings:
    def test_a_new_group_has_rocketmq_s_defaults(self, operator: Operator) -> None:
        assert settings(operator) == ["yes", "yes", "16", "1", "no", "created"]

    def test_each_flag_sets_one_thing_and_leaves_the_others(self, operator: Operator) -> None:
        assert settings(operator, "-s", "false", "-r", "3") == ["no", "yes", "3", "1", "no", "created"]
        assert settings(operator, "-d", "false") == ["no", "no", "3", "1", "no", "changed"]
        assert settings(operator, "-q", "2", "-s", "true") == ["yes", "no", "3", "2", "no", "changed"]
        assert settings(operator, "--differentSubscriptions", "true") == ["yes", "no", "3", "2", "yes", "changed"]
        assert settings(operator) == ["yes", "no", "3", "2", "yes", "unchanged"]

    def test_the_document_has_them_all(self, operator: Operator) -> None:
        outcome = operator("updateSubGroup", "-g", "readers", "-b", ADDRESS, "-r", "5", "--json")
        (broker,) = outcome.json["brokers"]
        assert outcome.json["group"] == "readers"
        assert {name: broker[name] for name in broker if not name.startswith(("broker_", "cluster_"))} == {
            "consume_enable": True,
            "consume_broadcast_enable": True,
            "retry_max_times": 5,
            "retry_queue_count": 1,
            "different_subscriptions_allowed": False,
            "outcome": "created",
        }

    @pytest.mark.parametrize("value", ["maybe", "1", ""])
    def test_a_switch_is_true_or_false(self, operator: Operator, value: str) -> None:
        assert operator("updateSubGroup", "-g", "readers", "-c", CLUSTER, "-s", value).exit_code == 2

    def test_a_deleted_group_is_gone(self, operator: Operator) -> None:
        settings(operator)
        outcome = operator("deleteSubGroup", "-g", "readers", "-c", CLUSTER)
        assert outcome.rows == [["group", "deleted from", "offsets removed"], ["readers", CLUSTER, "no"]]
        assert operator("consumerProgress", "-g", "readers").exit_code == 1
        assert operator("deleteSubGroup", "-g", "readers", "-b", ADDRESS).exit_code == 1

    @pytest.mark.parametrize(("removed", "left"), [("true", None), ("false", 2)])
    def test_its_offsets_go_only_when_that_is_asked_for(
        self, operator: Operator, removed: str, left: int | None
    ) -> None:
        settings(operator)
        send(operator, 2)
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now")
        operator("deleteSubGroup", "-g", "readers", "-c", CLUSTER, "-r", removed)
        settings(operator)
        stats = operator("consumerProgress", "-g", "readers", "-t", "orders", "--json").json
        assert stats["queues"][0]["consumer_offset"] == left

    def test_a_group_with_members_stays(self, operator: Operator) -> None:
        consumer = operator.run(started_consumer(operator.url, "readers"))
        outcome = operator("deleteSubGroup", "-g", "readers", "-c", CLUSTER)
        assert outcome.exit_code == 1
        assert "NO_PERMISSION" in outcome.stderr
        operator.run(consumer.shutdown())


class TestProgress:
    def test_without_a_group_all_are_told(self, operator: Operator) -> None:
        send(operator, 3)
        settings(operator)
        operator("updateSubGroup", "-g", "idle", "-c", CLUSTER)
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", BEGINNING)
        outcome = operator("consumerProgress")
        assert outcome.rows[0] == ["group", "members", "topics", "queues", "diff total"]
        assert outcome.rows[1:] == [["idle", "0", "0", "0", "0"], ["readers", "0", "1", "2", "3"]]
        assert operator("consumerProgress", "--json", "-c", CLUSTER).json["groups"][-1] == {
            "group": "readers",
            "member_count": 0,
            "topics": ["orders"],
            "lag": 3,
        }

    def test_a_group_is_told_queue_by_queue(self, operator: Operator) -> None:
        send(operator, 3)
        operator.advance(HOUR_S)
        send(operator, 2)
        settings(operator)
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "2023-11-14T23:00:00Z")
        outcome = operator("consumerProgress", "-g", "readers", "-t", "orders")
        assert outcome.rows[:3] == [
            [
                "topic",
                "broker",
                "queue",
                "broker offset",
                "consumer offset",
                "diff",
                "finished beyond",
                "last consumed",
            ],
            ["orders", "broker-a", "0", "5", "3", "2", "0", "2023-11-14 22:13:20.000Z"],
            ["orders", "broker-a", "1", "0", "0", "0", "0", "-"],
        ]
        assert outcome.stdout.splitlines()[-2:] == ["diff total: 2", "members: none"]
        first = operator("consumerProgress", "-g", "readers", "--json").json["queues"][0]
        assert first == {
            "topic": "orders",
            "broker_name": "broker-a",
            "queue_id": 0,
            "broker_offset": 5,
            "consumer_offset": 3,
            "lag": 2,
            "finished_beyond": 0,
            "last_consumed_stored_at": "2023-11-14T22:13:20.000Z",
            "last_consumed_stored_at_ms": 1_700_000_000_000,
        }

    def test_living_members_are_named(self, operator: Operator) -> None:
        consumer = operator.run(started_consumer(operator.url, "readers"))
        send(operator, 3)
        operator.advance(30)
        stats = operator("consumerProgress", "-g", "readers", "--json").json
        assert stats["client_ids"] == ["127.0.0.1@one"]
        assert stats["lag"] == 0
        assert "members: 127.0.0.1@one" in operator("consumerProgress", "-g", "readers").stdout
        operator.run(consumer.shutdown())

    def test_a_topic_without_a_group_and_a_group_that_is_nowhere(self, operator: Operator) -> None:
        assert operator("consumerProgress", "-t", "orders").exit_code == 2
        outcome = operator("consumerProgress", "-g", "nobody")
        assert outcome.exit_code == 1
        assert "SUBSCRIPTION_GROUP_NOT_EXIST" in outcome.stderr


class TestReset:
    @pytest.mark.parametrize(
        ("time", "offset"),
        [
            (BEGINNING, 0),
            ("2023-11-14T22:13:20.001Z", 2),
            ("2023-11-14 22:30:00Z", 2),
            ("1700003600000", 2),
            ("1700003600001", 3),
            ("0", 0),
            ("now", 3),
        ],
    )
    def test_the_group_goes_on_at_the_first_message_of_that_time(
        self, operator: Operator, time: str, offset: int
    ) -> None:
        send(operator, 2)
        operator.advance(HOUR_S)
        send(operator, 1)
        settings(operator)
        outcome = operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", time)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert outcome.rows[0] == ["broker", "queue", "offset before", "offset now", "again", "skipped"]
        assert outcome.rows[1] == ["broker-a", "0", "-", str(offset), "0", "0"]
        assert operator("consumerProgress", "-g", "readers", "--json").json["queues"][0]["consumer_offset"] == offset

    def test_a_dry_run_shows_what_the_reset_then_does_and_changes_nothing(self, operator: Operator) -> None:
        send(operator, 2)
        operator.advance(HOUR_S)
        send(operator, 1)
        settings(operator)
        reset = ("resetOffsetByTime", "-g", "readers", "-t", "orders")
        operator(*reset, "-y", "-s", "now")
        for time, again in (("2023-11-14 22:30:00Z", 1), ("0", 3)):
            shown = operator(*reset, "-s", time, "--dry-run", "--json").json
            assert shown["dry_run"] is True
            assert (shown["queues"][0]["delivered_again"], shown["queues"][0]["skipped"]) == (again, 0)
        assert operator("consumerProgress", "-g", "readers", "--json").json["queues"][0]["consumer_offset"] == 3
        operator(*reset, "-y", "-s", "0")
        assert operator(*reset, "-s", "now", "--dry-run").rows[1] == ["broker-a", "0", "0", "3", "0", "3"]
        kept = operator(*reset, "-s", "now", "-f", "false", "--dry-run", "--json").json
        assert kept["queues"][0]["offset"] == 0

    def test_a_script_has_to_answer_and_sees_before_what_it_would_do(self, operator: Operator) -> None:
        send(operator, 2)
        settings(operator)
        reset = ("resetOffsetByTime", "-g", "readers", "-t", "orders")
        operator(*reset, "-y", "-s", "now")
        outcome = operator(*reset, "-s", "0")
        assert outcome.exit_code == 1
        assert "which delivers 2 messages again and skips 0? [y/N]" in outcome.stderr
        assert "nothing was changed: standard input holds no answer; -y answers yes" in outcome.stderr
        assert operator("consumerProgress", "-g", "readers", "--json").json["queues"][0]["consumer_offset"] == 2

    def test_without_force_offsets_only_move_back(self, operator: Operator) -> None:
        send(operator, 2)
        settings(operator)
        operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "0")
        kept = operator(
            "resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now", "-f", "false", "--json"
        ).json
        assert {(queue["offset_before"], queue["offset"]) for queue in kept["queues"]} == {(0, 0)}
        moved = operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "now", "--json").json
        assert [(queue["offset_before"], queue["offset"]) for queue in moved["queues"]] == [(0, 2), (0, 0)]
        assert (moved["group"], moved["topic"], moved["timestamp"]) == ("readers", "orders", None)

    def test_what_is_not_there_is_said_so(self, operator: Operator) -> None:
        settings(operator)
        assert "nowhere" in operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "nowhere", "-s", "now").stderr
        assert "nobody" in operator("resetOffsetByTime", "-y", "-g", "nobody", "-t", "orders", "-s", "now").stderr

    def test_a_time_that_is_none_is_wrong_usage(self, operator: Operator) -> None:
        outcome = operator("resetOffsetByTime", "-y", "-g", "readers", "-t", "orders", "-s", "yesterday")
        assert outcome.exit_code == 2
        assert "'yesterday' is no time; write now, milliseconds" in outcome.stderr
