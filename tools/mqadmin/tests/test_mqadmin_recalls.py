"""recallMessage and rescheduleMessage, and how explain tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated
from mqclient import Admin, OutcomeUnknownError

RECALL, RESCHEDULE = ("recallMessage", "-t", "orders"), ("rescheduleMessage", "-t", "orders")
HEAD = ["message id", "broker", "outcome", "due"]
MINUTE = ("--delayMs", "60000")


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        yield one


def send(operator: Operator, *delay: str, key: str = "order-17") -> str:
    """The message's id."""
    outcome = operator("sendMessage", "-t", "orders", "-p", "x", "-k", key, *(delay or MINUTE), "--json")
    id_: str = outcome.json["message_id"]
    return id_


def bodies(operator: Operator) -> list[str]:
    return [message["body"] for message in operator("printMsg", "-t", "orders", "--json").json["messages"]]


class TestRecall:
    @pytest.mark.parametrize("delay", [MINUTE, ("--delayLevel", "5"), ("--deliverAt", "2023-11-14T22:14:20Z")])
    def test_what_was_taken_back_never_comes(self, operator: Operator, delay: tuple[str, ...]) -> None:
        operator("sendMessage", "-t", "orders", "-p", "first")
        id_ = send(operator, *delay)
        outcome = operator(*RECALL, "-k", "order-17")
        assert (outcome.exit_code, outcome.rows) == (0, [HEAD, [id_, "broker-a", "REMOVED", "-"]])
        assert operator(*RECALL, "-i", id_).rows == outcome.rows  # again: the same answer
        operator.advance(120)
        assert bodies(operator) == ["first"]

    def test_a_message_that_has_come_is_exit_code_1(self, operator: Operator) -> None:
        id_ = send(operator, "--delayMs", "1")
        operator.advance(1)
        for command in (RECALL, (*RESCHEDULE, *MINUTE)):
            outcome = operator(*command, "-k", "order-17")
            assert (outcome.exit_code, outcome.rows[1]) == (1, [id_, "broker-a", "ALREADY_DELIVERED", "-"])
            sentence = "mqadmin: 1 of 1 messages of topic orders with the key 'order-17' had been delivered already\n"
            assert outcome.stderr == sentence

    def test_an_unknown_message_is_exit_code_3(self, operator: Operator) -> None:
        send(operator)
        outcome = operator(*RECALL, "-k", "order-18")
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert outcome.stderr == (
            "mqadmin: no message of topic orders with the key 'order-18' waits or has waited on broker-a\n"
        )
        assert operator(*RECALL, "-k", "order-18", "--json").json["outcome"] == "UNKNOWN"

    def test_a_broker_that_may_have_done_it_is_exit_code_1(
        self, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(*_: Any, **__: Any) -> None:
            raise OutcomeUnknownError("no answer")

        monkeypatch.setattr(Admin, "recall_message", silent)
        outcome = operator(*RECALL, "-k", "order-17")
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (1, "", "mqadmin: no answer\n")

    def test_a_person_at_a_terminal_is_asked(self, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[str, bool]] = []
        monkeypatch.setattr("mqadmin.sending.confirm", lambda question, *, yes: asked.append((question, yes)))
        operator(*RECALL, "-k", "order-17")
        operator(*RECALL, "-i", "some-id", "-y")
        assert asked == [
            ("Take back what waits of topic orders with the key 'order-17'?", False),
            ("Take back what waits of topic orders with the id 'some-id'?", True),
        ]


class TestReschedule:
    @pytest.mark.parametrize(
        ("new_time", "due"),
        [
            (("--delayMs", "600000"), "2023-11-14 22:23:20.000Z"),
            (("--deliverAt", "2023-11-14T22:23:20Z"), "2023-11-14 22:23:20.000Z"),
            (("--delayMs", "5"), "2023-11-14 22:13:20.005Z"),
        ],
    )
    def test_a_message_comes_at_its_new_time(self, operator: Operator, new_time: tuple[str, str], due: str) -> None:
        operator("sendMessage", "-t", "orders", "-p", "first")
        id_ = send(operator)
        outcome = operator(*RESCHEDULE, "-k", "order-17", *new_time)
        assert (outcome.exit_code, outcome.rows) == (0, [HEAD, [id_, "broker-a", "RESCHEDULED", due]])
        operator.advance(0.1)
        early = due.startswith("2023-11-14 22:13")
        assert bodies(operator).count("x") == early
        operator.advance(70)
        assert bodies(operator).count("x") == early
        operator.advance(600)
        assert bodies(operator).count("x") == 1

    def test_what_was_taken_back_is_not_brought_back(self, operator: Operator) -> None:
        send(operator)
        operator(*RECALL, "-k", "order-17")
        outcome = operator(*RESCHEDULE, "-k", "order-17", *MINUTE)
        assert outcome.exit_code == 1
        assert outcome.stderr.endswith(
            "1 of 1 messages of topic orders with the key 'order-17' had been taken back already\n"
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (RECALL, "name the messages by a key with -k or by an id with -i, one of the two"),
        ((*RECALL, "-k", "a", "-i", "b"), "one of the two"),
        ((*RECALL, "-k", "a b"), "the key 'a b' has to be text, not empty and without a space"),
        ((*RESCHEDULE, "-k", "a"), "give the new time with --delayMs or with --deliverAt, one of the two"),
        ((*RESCHEDULE, "-k", "a", *MINUTE, "--deliverAt", "now"), "one of the two"),
        ((*RESCHEDULE, "-k", "a", "--deliverAt", "2033-01-01T00:00:00Z"), "more than 40 days from now"),
    ],
)
def test_a_command_that_makes_no_sense_is_wrong_usage(
    operator: Operator, arguments: tuple[str, ...], sentence: str
) -> None:
    outcome = operator(*arguments)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert sentence in outcome.stderr


class TestExplain:
    def test_a_message_that_was_taken_back_says_so(self, operator: Operator) -> None:
        id_ = send(operator)
        operator.advance(10)
        operator(*RECALL, "-k", "order-17")
        operator.advance(120)
        outcome = operator("explain", "order-17")
        assert outcome.stdout.startswith(f"message {id_}, topic orders, keys order-17, 1 bytes\n")
        assert outcome.rows[2:] == [
            ["2023-11-14 22:13:20.000Z", "waiting", "timer of broker-a #0", "until 22:14:20.000Z"],
            [
                "2023-11-14 22:13:30.000Z",
                "recalled",
                "recalled topic of broker-a #0",
                "taken back while it waited: never delivered",
            ],
        ]

    def test_a_message_with_a_new_time_waits_twice(self, operator: Operator) -> None:
        send(operator)
        operator.advance(10)
        operator(*RESCHEDULE, "-k", "order-17", "--delayMs", "600000")
        operator.advance(120)
        waiting = operator("explain", "order-17").rows[2:]
        assert [row[1] for row in waiting] == ["waiting", "waiting"]
        assert [row[3] for row in waiting] == ["until 22:14:20.000Z", "until 22:23:30.000Z"]
        operator.advance(600)
        assert [row[1] for row in operator("explain", "order-17").rows[2:]] == ["waiting", "waiting", "delivered"]
