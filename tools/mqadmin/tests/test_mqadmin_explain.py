"""explain: the life of a message on a real broker, in words and as a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.explaining import LABELS, Life, detail, lives_of
from mqadmin.testing import Operator, Outcome, operated
from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    PushConsumer,
    TransactionListener,
    TransactionProducer,
)
from mqclient.admin import LifeEvent, LifeEventKind

ADDRESS, CLUSTER = "127.0.0.1:10911", "DefaultCluster"
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z
T0 = "2023-11-14 22:13:20.000Z"
State = LocalTransactionState


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        one("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "1", "-w", "1")
        yield one


def send(operator: Operator, *arguments: str, key: str = "k") -> str:
    outcome = operator("sendMessage", "-t", "orders", "-p", "hello", "-k", key, *arguments, "--json")
    assert outcome.exit_code == 0
    return str(outcome.json["message_id"])


class Decided(TransactionListener):
    """A local transaction that comes to this, and a check that does too."""

    def __init__(self, state: State, checked: State = State.UNKNOW) -> None:
        self._state, self._checked = state, checked

    async def execute_local_transaction(self, message: Message, transaction_id: str, arg: Any) -> State:
        return self._state

    async def check_local_transaction(self, message: MessageExt) -> State:
        return self._checked


async def send_in_transaction(url: str, listener: Decided) -> None:
    async with TransactionProducer("shop", url, transaction_listener=listener) as producer:
        await producer.send_message_in_transaction(Message("orders", b"hello", tag="created", keys="k"))


async def consumer(url: str, group: str, status: ConsumeStatus, instance: str) -> PushConsumer:
    """A started member of the group that answers `status` to every message."""

    async def listen(_: list[MessageExt]) -> ConsumeStatus:
        return status

    made = PushConsumer(
        group,
        url,
        client_config=ClientConfig(instance_name=instance),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consumer_config=ConsumerConfig(max_reconsume_times=1),
    )
    made.subscribe("orders")
    made.register_message_listener(listen)
    await made.start()
    return made


def timeline(outcome: Outcome) -> list[list[str]]:
    """The rows of the only table, without its title and head."""
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    title, head, *rows = outcome.rows
    assert title[0].startswith("message ")
    assert head == ["time", "event", "where", "detail"]
    return rows


class TestWords:
    def test_a_plain_message_was_sent(self, operator: Operator) -> None:
        id_ = send(operator, "-c", "created")
        outcome = operator("explain", "k")
        assert outcome.stdout.splitlines()[0] == (f"message {id_}, topic orders, tag created, keys k, 5 bytes")
        assert timeline(outcome) == [[T0, "sent", "orders@broker-a:0 #0", "visible at once"]]

    def test_a_delayed_one_waits_and_is_then_delivered(self, operator: Operator) -> None:
        send(operator, "--delayLevel", "16")
        waiting = [T0, "waiting", "level 16 of broker-a #0", "until 22:43:20.000Z"]
        assert timeline(operator("explain", "k")) == [waiting]
        assert operator("explain", "k").stdout.splitlines()[0].split(", ")[1] == "topic orders"
        operator.advance(30 * 60)
        assert timeline(operator("explain", "k")) == [
            waiting,
            ["2023-11-14 22:43:20.000Z", "delivered", "orders@broker-a:0 #0", "when it was due"],
        ]

    @pytest.mark.parametrize(
        ("state", "event"),
        [
            (State.COMMIT_MESSAGE, ["committed", "orders@broker-a:0 #0", "visible, 0 ms after the half"]),
            (
                State.ROLLBACK_MESSAGE,
                ["rolled back", "op topic of broker-a #0", "never visible, 0 ms after the half"],
            ),
        ],
    )
    def test_a_transaction_has_its_end(self, operator: Operator, state: State, event: list[str]) -> None:
        operator.run(send_in_transaction(operator.url, Decided(state)))
        half = [T0, "half", "half topic of broker-a #0", "by producer group shop"]
        assert timeline(operator("explain", "k")) == [half, [T0, *event]]

    def test_an_open_one_has_none(self, operator: Operator) -> None:
        operator.run(send_in_transaction(operator.url, Decided(State.UNKNOW)))
        (half,) = timeline(operator("explain", "k"))
        assert half[-1] == "by producer group shop; no end of it is known"

    def test_one_without_a_known_outcome_is_parked(self, operator: Operator) -> None:
        async def ask_until_it_is_parked() -> None:
            listener = Decided(State.UNKNOW)
            async with TransactionProducer("shop", operator.url, transaction_listener=listener) as producer:
                await producer.send_message_in_transaction(Message("orders", b"hello", keys="k"))
                await operator.clock.advance(16 * 60)

        operator.run(ask_until_it_is_parked())
        half, parked = timeline(operator("explain", "k"))
        assert half[-1] == "by producer group shop"
        assert parked[1:] == [
            "parked",
            "parked half topic of broker-a #0",
            "no check knew its outcome: rolled back, 15 min after the half",
        ]

    def test_retries_death_and_readers_are_told(self, operator: Operator) -> None:
        send(operator)
        members = [
            operator.run(consumer(operator.url, "bad", ConsumeStatus.RECONSUME_LATER, "one")),
            operator.run(consumer(operator.url, "good", ConsumeStatus.CONSUME_SUCCESS, "two")),
        ]
        operator.advance(5)
        assert [row[1:] for row in timeline(operator("explain", "k"))] == [
            ["sent", "orders@broker-a:0 #0", "visible at once"],
            ["retried", "level 3 of broker-a #0", "group bad, after try 1; until 22:13:30.000Z"],
            ["passed", "orders@broker-a:0 #0", "group good: offset 1; 1 member"],
        ]
        operator.advance(30)
        for member in members:
            operator.run(member.shutdown())
        assert [row[1:] for row in timeline(operator("explain", "k"))] == [
            ["sent", "orders@broker-a:0 #0", "visible at once"],
            ["retried", "level 3 of broker-a #0", "group bad, after try 1; until 22:13:30.000Z"],
            ["delivered", "%RETRY%bad@broker-a:0 #0", "to group bad for try 2, when it was due"],
            ["dead", "%DLQ%bad@broker-a:0 #0", "group bad gave it up after 2 tries"],
            ["passed", "orders@broker-a:0 #0", "group good: offset 1; no members"],
        ]

    def test_a_group_that_has_not_come_to_it_is_named_with_what_lies_before(self, operator: Operator) -> None:
        operator("updateSubGroup", "-g", "slow", "-c", CLUSTER)
        operator("resetOffsetByTime", "-y", "-g", "slow", "-t", "orders", "-s", "now")
        for key in ("a", "b", "k"):
            send(operator, key=key)
        assert timeline(operator("explain", "k"))[-1] == [
            *("now", "not yet", "orders@broker-a:0 #2", "group slow: offset 0, 2 before it; no members"),
        ]
        assert timeline(operator("explain", "a"))[-1][-1] == "group slow: offset 0; no members"

    def test_a_group_whose_settings_were_deleted_still_stands_where_it_was(self, operator: Operator) -> None:
        operator("updateSubGroup", "-g", "gone", "-c", CLUSTER)
        send(operator)
        operator("resetOffsetByTime", "-y", "-g", "gone", "-t", "orders", "-s", "now")
        operator("deleteSubGroup", "-g", "gone", "-c", CLUSTER)
        assert timeline(operator("explain", "k"))[-1][1] == "passed"

    def test_a_group_that_is_not_known_any_more_has_no_offset(self) -> None:
        broker = EmbeddedBroker("of a group that is gone")
        with operated(broker) as operator:
            operator("sendMessage", "-t", "orders", "-p", "x", "-k", "k")
            given_back = broker.broker.send_back.send_back("g", 0, delay_level=1, max_reconsume_times=0)
            operator.run(given_back)
            operator.advance(1)
            operator("deleteSubGroup", "-g", "g", "-c", CLUSTER)
            last = timeline(operator("explain", "k"))[-1]
        assert last == ["now", "not yet", "%RETRY%g@broker-a:0 #0", "group g: no offset here; no members"]

    def test_several_messages_come_one_after_the_other(self, operator: Operator) -> None:
        first = send(operator, "--delayLevel", "3")
        operator.advance(1)
        second = send(operator)
        operator.advance(10)
        titles = [line for line in operator("explain", "k").stdout.splitlines() if line.startswith("message ")]
        assert [title.split(",")[0] for title in titles] == [f"message {first}", f"message {second}"]
        assert operator("explain", "k", "-m", "1").stdout.count("message ") == 1
        (row,) = timeline(operator("explain", second))
        assert row[1] == "sent"

    def test_every_kind_has_a_word(self) -> None:
        assert set(LABELS) == set(LifeEventKind)
        assert len(set(LABELS.values())) == len(LABELS)


class TestDocument:
    def test_a_delivery_has_its_due_time_and_how_late_it_was(self, operator: Operator) -> None:
        id_ = send(operator, "-c", "created", "--delayLevel", "3")
        operator.advance(10)
        document = operator("explain", "k", "-t", "orders", "--json").json
        (message,) = document["messages"]
        waiting, delivered = message.pop("events")
        assert (document["key"], document["topic"]) == ("k", "orders")
        assert message == {
            "message_id": id_,
            "topic": "orders",
            "tag": "created",
            "keys": ["k"],
            "body_size": 5,
        }
        assert waiting == {
            "at": "2023-11-14T22:13:20.000Z",
            "at_ms": 1_700_000_000_000,
            "kind": "waiting",
            "broker_name": "broker-a",
            "topic": "SCHEDULE_TOPIC_XXXX",
            "queue_id": 2,
            "queue_offset": 0,
            "log_offset": 293,
            "group": None,
            "delay_level": 3,
            "due_at": "2023-11-14T22:13:30.000Z",
            "due_at_ms": 1_700_000_010_000,
            "late_ms": None,
            "reconsume_times": None,
            "group_offset": None,
            "client_ids": None,
        }
        assert (delivered["kind"], delivered["topic"], delivered["late_ms"]) == ("delivered", "orders", 0)

    def test_a_group_that_stands_somewhere_has_its_offset_and_members(self, operator: Operator) -> None:
        send(operator)
        member = operator.run(consumer(operator.url, "readers", ConsumeStatus.CONSUME_SUCCESS, "one"))
        operator.advance(10)
        (message,) = operator("explain", "k", "--json").json["messages"]
        standing = message["events"][-1]
        assert (standing["kind"], standing["group"], standing["group_offset"]) == ("consumed", "readers", 1)
        assert standing["client_ids"] == ["127.0.0.1@one"]
        assert (standing["at"], standing["at_ms"]) == (None, None)
        operator.run(member.shutdown())

    def test_nothing_found_is_exit_code_3(self, operator: Operator) -> None:
        send(operator)
        outcome = operator("explain", "unknown", "--json")
        assert (outcome.exit_code, outcome.json) == (3, {"key": "unknown", "topic": None, "messages": []})
        assert outcome.stderr == "mqadmin: no broker's log has a message with the key 'unknown'\n"
        outcome = operator("explain", "k", "-t", "payments")
        assert (outcome.exit_code, outcome.stdout) == (3, "")
        assert "of topic payments" in outcome.stderr

    def test_a_message_that_may_not_be_read_is_told_without_its_contents(self, operator: Operator) -> None:
        id_ = send(operator)
        operator("updateTopicPerm", "-t", "orders", "-c", CLUSTER, "-p", "2")
        outcome = operator("explain", "k")
        assert outcome.stdout.splitlines()[0] == f"message {id_}"
        (message,) = operator("explain", "k", "--json").json["messages"]
        assert (message["topic"], message["keys"], message["body_size"]) == (None, None, None)

    @pytest.mark.parametrize("count", ["0", "2001"])
    def test_a_count_that_cannot_be_is_wrong_usage(self, operator: Operator, count: str) -> None:
        assert operator("explain", "k", "-m", count).exit_code == 2


def event(kind: LifeEventKind, *, at_ms: int = NOON_MS, due_ms: int = 0, log_offset: int = 0) -> LifeEvent:
    return LifeEvent(at_ms, kind, "m", "broker-a", "orders", 0, 0, log_offset, due_timestamp_ms=due_ms)


class TestRareWords:
    """What an embedded broker does not come to in a moment."""

    @pytest.mark.parametrize(
        ("kind", "due_ms", "detail_"),
        [
            (LifeEventKind.WAITING, NOON_MS + 1, "was due 12:00:00.001Z"),
            (LifeEventKind.WAITING, NOON_MS + 3_600_000, "until 13:00:00.000Z"),
            (LifeEventKind.WAITING, NOON_MS + 86_400_000, "until 2026-02-01 12:00:00.000Z"),
            (LifeEventKind.DELIVERED, NOON_MS - 2_500, "2.5 s late"),
            (LifeEventKind.DELIVERED, NOON_MS, "when it was due"),
            (LifeEventKind.DELIVERED, NOON_MS + 1, "before it was promised: its level has become shorter"),
            (LifeEventKind.DELIVERED, 0, "its wait is not in the log any more"),
        ],
    )
    def test_waits_and_deliveries_are_told_by_the_clock(self, kind: LifeEventKind, due_ms: int, detail_: str) -> None:
        one = event(kind, due_ms=due_ms)
        assert detail(one, Life([one]), None, NOON_MS + 60_000) == detail_

    def test_what_was_delivered_waited_until_it_was_due(self) -> None:
        waiting = event(LifeEventKind.WAITING, due_ms=NOON_MS + 1)
        delivered = event(LifeEventKind.DELIVERED, at_ms=NOON_MS + 1, due_ms=NOON_MS + 1, log_offset=1)
        assert detail(waiting, Life([waiting, delivered]), None, NOON_MS + 60_000) == "until 12:00:00.001Z"

    def test_an_end_whose_time_is_not_known_is_not_measured(self) -> None:
        half, end = event(LifeEventKind.HALF), event(LifeEventKind.ROLLED_BACK, at_ms=0)
        assert detail(end, Life([half, end]), None, NOON_MS) == "never visible"

    def test_messages_without_an_id_are_known_by_their_places(self) -> None:
        places = [replace(event(LifeEventKind.SENT, log_offset=at), message_id="") for at in (0, 0, 7)]
        assert [len(life.events) for life in lives_of(places)] == [2, 1]


def test_the_client_tells_what_the_command_shows(operator: Operator) -> None:
    send(operator, "--delayLevel", "1")
    operator.advance(1)

    async def told() -> list[str]:
        async with Admin(operator.url) as admin:
            return [event.kind.name.lower() for event in await admin.explain("k")]

    (message,) = operator("explain", "k", "--json").json["messages"]
    assert [event["kind"] for event in message["events"]] == operator.run(told()) == ["waiting", "delivered"]
