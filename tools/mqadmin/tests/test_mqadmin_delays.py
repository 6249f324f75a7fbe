"""delayStatus, and messages that are sent to be delivered later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated
from mqclient import Admin, BrokerUnreachableError

ADDRESS, CLUSTER = "127.0.0.1:10911", "DefaultCluster"
HEAD = ["broker", "level", "delay", "waiting", "next due", "delivered", "p50 ms", "p99 ms", "max ms"]
NOTHING = ["-", "0", "-", "-", "-"]  # from `next due` on


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        yield one


def send(operator: Operator, *delay: str) -> None:
    outcome = operator("sendMessage", "-t", "orders", "-p", "x", *delay)
    assert outcome.exit_code == 0, outcome.stderr


def bodies(operator: Operator) -> list[str]:
    return [message["body"] for message in operator("printMsg", "-t", "orders", "--json").json["messages"]]


class TestStatus:
    @pytest.mark.mechanism("D1")
    def test_each_level_says_what_waits_and_when_the_next_is_due(self, operator: Operator) -> None:
        send(operator, "--delayLevel", "16")
        operator.advance(60)
        send(operator, "--delayLevel", "16")
        send(operator, "--delayMs", "90000")
        outcome = operator("delayStatus")
        assert [row[1] for row in outcome.rows[1:]] == ["16", "timer"]
        assert outcome.stderr == "mqadmin: 17 unused levels are left out; -a shows them\n"
        rows = operator("delayStatus", "-a").rows
        assert rows[0] == HEAD
        assert [row[:3] for row in rows[1:3]] == [["broker-a", "1", "1 s"], ["broker-a", "2", "5 s"]]
        assert rows[15] == ["broker-a", "15", "20 min", "0", *NOTHING]
        assert rows[16] == ["broker-a", "16", "30 min", "2", "2023-11-14 22:43:20.000Z", "0", "-", "-", "-"]
        assert rows[19] == ["broker-a", "timer", "-", "1", "2023-11-14 22:15:50.000Z", "0", "-", "-", "-"]
        assert len(rows) == 20

    def test_what_was_delivered_says_how_late(self, operator: Operator) -> None:
        send(operator, "--delayLevel", "1")
        send(operator, "--delayMs", "1")
        operator.advance(2)
        rows = operator("delayStatus").rows
        assert rows[1] == ["broker-a", "1", "1 s", "0", "-", "1", "0", "0", "0"]
        assert rows[-1] == ["broker-a", "timer", "-", "0", "-", "1", "0", "0", "0"]

    def test_the_document_has_numbers_and_no_claims_about_what_never_came(self, operator: Operator) -> None:
        send(operator, "--delayMs", "90000")
        (broker,) = operator("delayStatus", "--json").json["brokers"]
        assert (broker["broker_name"], broker["broker_address"]) == ("broker-a", ADDRESS)
        assert broker["delay_levels"][-1] == {
            "level": -1,
            "delay_ms": None,
            "waiting": 1,
            "next_due_at": "2023-11-14T22:14:50.000Z",
            "next_due_at_ms": 1_700_000_090_000,
            "delivered": 0,
            "lateness_p50_ms": None,
            "lateness_p99_ms": None,
            "lateness_max_ms": None,
        }

    @pytest.mark.parametrize("target", [("-b", ADDRESS), ("-c", CLUSTER), ()])
    def test_it_is_of_one_broker_of_a_cluster_or_of_all(self, operator: Operator, target: tuple[str, ...]) -> None:
        assert len(operator("delayStatus", "-a", *target).rows) == 20

    def test_a_broker_and_a_cluster_are_one_too_many(self, operator: Operator) -> None:
        assert operator("delayStatus", "-b", ADDRESS, "-c", CLUSTER).exit_code == 2
        assert operator("delayStatus", "-c", "nowhere").exit_code == 1

    def test_a_broker_that_does_not_answer_is_exit_code_1(
        self, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nobody(_: Admin, address: str) -> None:
            raise BrokerUnreachableError(f"{address}: nothing listens")

        monkeypatch.setattr(Admin, "broker_status", nobody)
        outcome = operator("delayStatus")
        assert (outcome.exit_code, outcome.rows) == (1, [HEAD])
        assert outcome.stderr == f"mqadmin: broker-a: {ADDRESS}: nothing listens\n"


class TestSend:
    @pytest.mark.parametrize(
        "delay",
        [
            ("--delayLevel", "5"),
            ("--delayMs", "60000"),
            ("--deliverAt", "2023-11-14T22:14:20Z"),
            ("--deliverAt", "2023-11-14T23:14:20.000+01:00"),
            ("--deliverAt", "1700000060000"),
        ],
    )
    def test_a_message_comes_when_its_time_has_come(self, operator: Operator, delay: tuple[str, str]) -> None:
        send(operator)
        send(operator, *delay)
        operator.advance(59)
        assert bodies(operator) == ["x"]
        operator.advance(2)
        assert bodies(operator) == ["x", "x"]

    @pytest.mark.parametrize("moment", ["now", "0", "2000-01-01T00:00:00Z"])
    def test_a_time_that_has_passed_is_at_once(self, operator: Operator, moment: str) -> None:
        send(operator, "--deliverAt", moment)
        operator.advance(0.1)
        assert bodies(operator) == ["x"]

    @pytest.mark.parametrize(
        ("delay", "sentence"),
        [
            (("--delayLevel", "3", "--delayMs", "7"), "the message has delay_level and delay_ms"),
            (("--delayMs", "7", "--deliverAt", "now"), "the message has delay_ms and deliver_at"),
            (("--delayMs", "3456000001"), "delay_ms is 3456000001; allowed are 1 to"),
            (("--deliverAt", "2033-01-01T00:00:00Z"), "more than 40 days from now"),
            (("--deliverAt", "tomorrow"), "'tomorrow' is no time; write now, milliseconds since 1970"),
            (("--deliverAt", "9" * 30), "is no time; write now"),
            (("--delayMs", "0"), "Invalid value for '--delayMs'"),
        ],
    )
    def test_a_time_that_makes_no_sense_is_wrong_usage(
        self, operator: Operator, delay: tuple[str, ...], sentence: str
    ) -> None:
        outcome = operator("sendMessage", "-t", "orders", "-p", "x", *delay)
        assert (outcome.exit_code, outcome.stdout) == (2, "")
        assert sentence in outcome.stderr
