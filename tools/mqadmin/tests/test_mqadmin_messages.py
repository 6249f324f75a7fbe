"""Messages: sent, found again, read (mechanism Q1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqadmin.testing import Operator, operated
from mqclient import Admin, Message, MessageQueue, NoRouteError, Producer

ADDRESS, CLUSTER = "127.0.0.1:10911", "DefaultCluster"
NOT_UTF_8 = bytes([0xFF, 0xFE, 0x00])
BEGINNING, HOUR_S = "2023-11-14T22:13:20Z", 3_600


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[Operator]:
    with operated(EmbeddedBroker(request.node.name)) as one:
        one("updateTopic", "-t", "orders", "-c", CLUSTER, "-r", "2", "-w", "2")
        yield one


def send(operator: Operator, body: str = "hello", *arguments: str, queue_id: int = 0) -> dict[str, Any]:
    outcome = operator(
        "sendMessage", "-t", "orders", "-p", body, "-b", "broker-a", "-i", str(queue_id), *arguments, "--json"
    )
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    result: dict[str, Any] = outcome.json
    return result


def send_bytes(operator: Operator, *bodies: bytes) -> None:
    async def sent() -> None:
        async with Producer("writers", operator.url) as producer:
            for body in bodies:
                await producer.send(Message("orders", body), selector=lambda queues, _message, _argument: queues[0])

    operator.run(sent())


def printed(operator: Operator, *arguments: str, command: str = "printMsg") -> list[str]:
    outcome = operator(command, "-t", "orders", *arguments, "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return [message["body"] for message in outcome.json["messages"]]


class TestSend:
    def test_the_result_says_where_it_is_stored(self, operator: Operator) -> None:
        sent = send(operator, "hello", "-k", "a b", "-c", "created", queue_id=1)
        assert (sent["send_status"], sent["broker_name"], sent["queue_id"], sent["queue_offset"]) == (
            *("SEND_OK", "broker-a", 1, 0),
        )
        (message,) = operator("queryMsgById", "-i", sent["offset_message_id"], "--json").json["messages"]
        assert (message["body"], message["tag"], message["keys"]) == ("hello", "created", ["a", "b"])
        assert message["message_id"] == sent["message_id"]

    def test_the_table_has_what_rocketmq_s_has(self, operator: Operator) -> None:
        rows = operator("sendMessage", "-t", "orders", "-p", "x", "-b", "broker-a", "-i", "1").rows
        assert rows[0] == ["broker", "queue", "offset", "send status", "message id"]
        assert rows[1][:4] == ["broker-a", "1", "0", "SEND_OK"]

    @pytest.mark.parametrize(("body", "wanted"), [("@@home", "@home"), ("a@b", "a@b"), ("ключ", "ключ")])
    def test_text_is_sent_as_it_is(self, operator: Operator, body: str, wanted: str) -> None:
        send(operator, body)
        assert printed(operator) == [wanted]

    def test_a_file_is_sent_byte_by_byte(self, operator: Operator) -> None:
        operator.disk.make_dirs(Path("/bodies"))
        operator.disk.open(Path("/bodies/one"), create=True).pwrite(NOT_UTF_8, 0)
        send(operator, "@/bodies/one")
        assert printed(operator) == [NOT_UTF_8.hex()]

    def test_a_file_that_is_not_there_is_wrong_usage(self, operator: Operator) -> None:
        outcome = operator("sendMessage", "-t", "orders", "-p", "@/bodies/none")
        assert outcome.exit_code == 2
        assert "/bodies/none cannot be read" in outcome.stderr

    def test_a_broker_alone_chooses_one_of_its_queues(self, operator: Operator) -> None:
        outcome = operator("sendMessage", "-t", "orders", "-p", "x", "-b", "broker-a", "--json")
        assert outcome.json["broker_name"] == "broker-a"

    @pytest.mark.parametrize(
        ("arguments", "code", "sentence"),
        [
            (("-i", "0"), 2, "name the broker with -b"),
            (("-b", "broker-z"), 2, "no queue of broker-z can be written"),
            (("-b", "broker-a", "-i", "9"), 2, "no queue 9 of broker-a can be written"),
            (("-c", "a||b"), 2, ""),
        ],
    )
    def test_what_cannot_be_sent_is_a_sentence(
        self, operator: Operator, arguments: tuple[str, ...], code: int, sentence: str
    ) -> None:
        outcome = operator("sendMessage", "-t", "orders", "-p", "x", *arguments)
        assert (outcome.exit_code, outcome.stderr.count("\n")) == (code, 1)
        assert sentence in outcome.stderr

    def test_a_delay_level_delays(self, operator: Operator) -> None:
        send(operator, "later", "--delayLevel", "3")
        assert printed(operator) == []
        operator.advance(10)
        assert printed(operator) == ["later"]


class TestQueryByKey:
    def test_the_newest_come_first(self, operator: Operator) -> None:
        for number in range(3):
            send(operator, str(number), "-k", "k", queue_id=number % 2)
            operator.advance(1)
        outcome = operator("queryMsgByKey", "-t", "orders", "-k", "k", "--json")
        assert [message["body"] for message in outcome.json["messages"]] == ["2", "1", "0"]
        rows = operator("queryMsgByKey", "-t", "orders", "-k", "k", "-m", "2", "-c", CLUSTER).rows
        assert rows[0] == ["message id", "queue", "offset", "stored", "tag", "keys", "bytes"]
        assert [row[1:] for row in rows[1:]] == [
            ["orders@broker-a:0", "1", "2023-11-14 22:13:22.000Z", "-", "k", "1"],
            ["orders@broker-a:1", "0", "2023-11-14 22:13:21.000Z", "-", "k", "1"],
        ]

    def test_begin_and_end_bound_the_store_time(self, operator: Operator) -> None:
        for number in range(3):
            send(operator, str(number), "-k", "k")
            operator.advance(10)
        begin, end = "2023-11-14T22:13:30Z", "1700000015000"
        outcome = operator("queryMsgByKey", "-t", "orders", "-k", "k", "-b", begin, "-e", end, "--json")
        assert [message["body"] for message in outcome.json["messages"]] == ["1"]

    def test_nothing_found_is_exit_code_3(self, operator: Operator) -> None:
        outcome = operator("queryMsgByKey", "-t", "orders", "-k", "unknown", "--json")
        assert (outcome.exit_code, outcome.json) == (3, {"messages": []})
        assert outcome.stderr == "mqadmin: no message of topic orders has the key 'unknown'\n"

    @pytest.mark.parametrize("count", ["0", "2001", "many"])
    def test_a_count_that_cannot_be_is_wrong_usage(self, operator: Operator, count: str) -> None:
        assert operator("queryMsgByKey", "-t", "orders", "-k", "k", "-m", count).exit_code == 2


class TestQueryById:
    def test_all_that_is_known_of_it_is_shown(self, operator: Operator) -> None:
        sent = send(operator, "hello", "-k", "a b", "-c", "created")
        rows = dict(operator("queryMsgById", "-i", sent["offset_message_id"], "-t", "orders").rows)
        assert rows["message id"] == sent["message_id"]
        assert rows["queue"] == "orders@broker-a:0 offset 0"
        assert (rows["tag"], rows["keys"], rows["body (5 bytes)"]) == ("created", "a b", "hello")
        assert rows["stored"].startswith("2023-11-14 22:13:20.000Z at 293, ")

    def test_a_body_that_is_no_text_is_shown_in_hex(self, operator: Operator) -> None:
        send_bytes(operator, NOT_UTF_8)
        (found,) = operator("printMsg", "-t", "orders", "--json").json["messages"]
        assert (found["body"], found["body_encoding"], found["body_size"]) == ("fffe00", "hex", 3)
        rows = dict(operator("queryMsgById", "-i", found["offset_message_id"]).rows)
        assert rows["body (hex, 3 bytes)"] == "fffe00"

    def test_another_topic_s_message_is_not_found(self, operator: Operator) -> None:
        sent = send(operator)
        outcome = operator("queryMsgById", "-i", sent["offset_message_id"], "-t", "payments", "--json")
        assert (outcome.exit_code, outcome.json) == (3, {"messages": []})
        assert "is of topic orders, not of payments" in outcome.stderr

    def test_an_id_of_nothing_is_not_found_and_a_unique_id_is_wrong_usage(self, operator: Operator) -> None:
        sent = send(operator)
        assert operator("queryMsgById", "-i", sent["offset_message_id"][:-2] + "07").exit_code == 3
        outcome = operator("queryMsgById", "-i", "F" * 32)
        assert outcome.exit_code == 2
        assert "a unique id, perhaps?" in outcome.stderr

    def test_the_unique_id_finds_it_too(self, operator: Operator) -> None:
        sent = send(operator)
        for flags in ((), ("-a",), ("-c", CLUSTER)):
            outcome = operator("queryMsgByUniqueKey", "-t", "orders", "-i", sent["message_id"], *flags, "--json")
            assert [message["body"] for message in outcome.json["messages"]] == ["hello"]
        assert operator("queryMsgByUniqueKey", "-t", "orders", "-i", "F" * 32).exit_code == 3


class TestPrint:
    def test_every_message_of_every_queue_is_printed_in_the_order_of_the_queues(self, operator: Operator) -> None:
        for number in range(80):
            send(operator, str(number), queue_id=number % 2)
        assert printed(operator) == [str(number) for number in [*range(0, 80, 2), *range(1, 80, 2)]]

    def test_a_message_is_a_line_and_its_body_below(self, operator: Operator) -> None:
        sent = send(operator, "two\nlines", "-k", "a b", "-c", "created")
        assert operator("printMsg", "-t", "orders").stdout == (
            f"orders@broker-a:0 offset 0  2023-11-14 22:13:20.000Z  id {sent['message_id']}"
            "  tag created  keys a b  9 bytes\n    two\n    lines\n"
        )
        assert operator("printMsg", "-t", "orders", "-d", "false").stdout.count("\n") == 1
        (without,) = operator("printMsg", "-t", "orders", "-d", "false", "--json").json["messages"]
        assert "body" not in without

    def test_what_a_terminal_would_obey_is_escaped(self, operator: Operator) -> None:
        send(operator, "red \x1b[31m alert\r\x07")
        assert operator("printMsg", "-t", "orders").stdout.splitlines()[1] == r"    red \x1b[31m alert\r\x07"

    def test_tags_choose(self, operator: Operator) -> None:
        for tag in "abc":
            send(operator, tag, "-c", tag)
        assert printed(operator, "-s", "a || c") == ["a", "c"]
        assert operator("printMsg", "-t", "orders", "-s", "a || *").exit_code == 2

    def test_begin_and_end_bound_the_store_time(self, operator: Operator) -> None:
        for number in range(4):
            send(operator, str(number))
            operator.advance(HOUR_S)
        assert printed(operator, "-b", "2023-11-14T23:13:20Z") == ["1", "2", "3"]
        assert printed(operator, "-e", "2023-11-15T00:13:20Z") == ["0", "1"]
        assert printed(operator, "-b", "2023-11-14T23:13:20Z", "-e", "2023-11-15T00:13:20.001Z") == ["1", "2"]
        assert printed(operator, "-b", "2023-11-16T00:00:00Z") == []
        assert operator("printMsg", "-t", "orders", "-b", "now", "-e", "0").exit_code == 2

    def test_bodies_may_be_of_another_charset(self, operator: Operator) -> None:
        send_bytes(operator, "你好".encode("gbk"))
        assert printed(operator) == ["你好".encode("gbk").hex()]
        assert printed(operator, "-c", "GBK") == ["你好"]
        assert operator("printMsg", "-t", "orders", "-c", "klingon").exit_code == 2

    def test_an_error_after_the_first_messages_leaves_a_whole_document(
        self, operator: Operator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(operator, "first")
        queue_offsets = Admin.queue_offsets

        async def only_of_queue_0(admin: Admin, queue: MessageQueue) -> tuple[int, int]:
            if queue.queue_id:
                raise NoRouteError("the broker has died")
            return await queue_offsets(admin, queue)

        monkeypatch.setattr(Admin, "queue_offsets", only_of_queue_0)
        outcome = operator("printMsg", "-t", "orders", "--json")
        assert (outcome.exit_code, outcome.stderr) == (1, "mqadmin: the broker has died\n")
        assert [message["body"] for message in outcome.json["messages"]] == ["first"]


class TestConsume:
    def fill(self, operator: Operator) -> None:
        for number in range(6):
            send(operator, str(number), queue_id=number % 2)

    @pytest.mark.parametrize(
        ("arguments", "bodies"),
        [
            ((), "024135"),
            (("-c", "4"), "0241"),
            (("-b", "broker-a", "-i", "1"), "135"),
            (("-b", "broker-a", "-i", "1", "-o", "1"), "35"),
            (("-b", "broker-a", "-i", "1", "-o", "1", "-c", "1"), "3"),
            (("-b", "broker-a", "-i", "1", "-o", "3"), ""),
            (("-s", BEGINNING, "-e", "2023-11-14T22:13:20.001Z"), "024135"),
            (("-s", "2023-11-14T22:13:20.001Z"), ""),
        ],
    )
    def test_it_reads_what_was_asked_for(self, operator: Operator, arguments: tuple[str, ...], bodies: str) -> None:
        self.fill(operator)
        assert printed(operator, *arguments, command="consumeMessage") == list(bodies)

    def test_without_a_number_it_stops_after_128(self, operator: Operator) -> None:
        send_bytes(operator, *[b"%d" % number for number in range(130)])
        assert printed(operator, command="consumeMessage") == [str(number) for number in range(128)]

    @pytest.mark.parametrize("arguments", [("-i", "0"), ("-b", "broker-a", "-o", "0"), ("-c", "0")])
    def test_an_offset_needs_its_queue_and_a_queue_its_broker(
        self, operator: Operator, arguments: tuple[str, ...]
    ) -> None:
        assert operator("consumeMessage", "-t", "orders", *arguments).exit_code == 2

    def test_a_queue_that_is_nowhere_is_exit_code_1(self, operator: Operator) -> None:
        outcome = operator("consumeMessage", "-t", "orders", "-b", "broker-z")
        assert outcome.exit_code == 1
        assert "no registered broker has such a queue of topic 'orders'" in outcome.stderr

    def test_no_offset_moves_and_no_group_is_made(self, operator: Operator) -> None:
        self.fill(operator)
        printed(operator, command="consumeMessage")
        assert operator("consumerProgress", "--json").json == {"groups": []}
