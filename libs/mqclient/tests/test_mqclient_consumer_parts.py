"""The pure parts of consuming: allocation, process queue, subscriptions (mechanisms C8, C14, C20, C21, M3)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mqclient import AllocateMessageQueueAveragely, IllegalArgumentError, MessageExt, MessageQueue
from mqclient.consumer.consume_service import ProcessQueue
from mqclient.consumer.offsets import Progress
from mqclient.consumer.pulling import MessageSelector, parse_subscription
from mqproto.properties import encode_properties
from mqproto.record import OFFSETS, OFFSETS_AT, decode_record, encode_record, pack_ip

QUEUE = MessageQueue("orders", "broker-a", 0)


def message(offset: int, tag: str | None = None, body: bytes = b"body") -> MessageExt:
    record = bytearray(
        encode_record(
            topic=b"orders",
            body=body,
            properties=encode_properties({"TAGS": tag} if tag else {}),
            queue_id=0,
            born_timestamp_ms=1,
            born_ip=pack_ip("127.0.0.1"),
        )
    )
    OFFSETS.pack_into(record, OFFSETS_AT, offset, offset * 1000)
    return MessageExt(decode_record(bytes(record)), "broker-a")


def messages(offsets: Iterable[int]) -> list[MessageExt]:
    return [message(offset) for offset in offsets]


@pytest.mark.parametrize(
    ("queues", "members", "sizes"),
    [(8, 3, [3, 3, 2]), (8, 1, [8]), (8, 8, [1] * 8), (2, 3, [1, 1, 0]), (0, 2, [0, 0]), (9, 4, [3, 2, 2, 2])],
)
def test_averagely_gives_contiguous_shares(queues: int, members: int, sizes: list[int]) -> None:
    all_queues = [MessageQueue("orders", "broker-a", number) for number in range(queues)]
    client_ids = [f"client-{number}" for number in range(members)]
    strategy = AllocateMessageQueueAveragely()
    shares = [list(strategy.allocate(client_id, all_queues, client_ids)) for client_id in client_ids]
    assert [len(share) for share in shares] == sizes
    assert [queue for share in shares for queue in share] == all_queues


def test_averagely_gives_nothing_to_a_client_that_is_no_member() -> None:
    assert list(AllocateMessageQueueAveragely().allocate("stranger", [QUEUE], ["member"])) == []


def test_one_stuck_message_holds_the_offset_of_a_hundred() -> None:
    """Mechanism C21: 2101 is stuck, 2102 to 2200 are done."""
    process_queue = ProcessQueue(QUEUE, Progress(2101))
    pulled = messages(range(2101, 2201))
    process_queue.put(pulled, 2201)
    process_queue.remove(pulled[1:])
    assert process_queue.commit_offset == 2101
    process_queue.remove(pulled[:1])
    assert process_queue.commit_offset == 2201


def test_filtered_messages_move_the_offset_when_nothing_is_in_flight() -> None:
    process_queue = ProcessQueue(QUEUE, Progress(10))
    process_queue.put([], 25)
    assert process_queue.commit_offset == 25


def test_messages_out_of_order_are_rejected() -> None:
    process_queue = ProcessQueue(QUEUE, Progress(10))
    with pytest.raises(AssertionError):
        process_queue.put(messages([9]), 11)
    with pytest.raises(AssertionError):
        process_queue.put(messages([10, 11]), 11)
    assert process_queue.message_count == 0


@pytest.mark.mechanism("C8")
def test_flow_control_stops_above_a_thousand_messages() -> None:
    process_queue = ProcessQueue(QUEUE, Progress(0))
    process_queue.put(messages(range(1000)), 1000)
    assert not process_queue.must_pause()
    process_queue.put(messages([1000]), 1001)
    assert process_queue.must_pause()


@pytest.mark.mechanism("C8")
def test_flow_control_stops_above_a_span_of_two_thousand() -> None:
    process_queue = ProcessQueue(QUEUE, Progress(0))
    process_queue.put(messages([0]), 1)
    process_queue.put([], 2001)
    assert not process_queue.must_pause()
    process_queue.put([], 2002)
    assert process_queue.must_pause()


@pytest.mark.mechanism("C8")
def test_flow_control_stops_above_a_hundred_mebibytes() -> None:
    process_queue = ProcessQueue(QUEUE, Progress(0))
    large = [message(offset, body=bytes(4 * 1024 * 1024)) for offset in range(25)]
    process_queue.put(large[:24], 24)
    assert not process_queue.must_pause()
    process_queue.put(large[24:], 25)
    assert process_queue.must_pause()
    process_queue.remove(large[:1])
    assert not process_queue.must_pause()


def test_results_from_before_a_reset_are_ignored() -> None:
    process_queue = ProcessQueue(QUEUE, Progress(0))
    old = messages(range(5))
    process_queue.put(old, 5)
    process_queue.reset(2)
    fresh = messages(range(2, 5))
    process_queue.put(fresh, 5)
    process_queue.remove(old)
    assert process_queue.commit_offset == 2


@pytest.mark.parametrize("expression", ["*", "", " * "])
def test_star_matches_everything(expression: str) -> None:
    subscription = parse_subscription("orders", expression)
    assert subscription.expression == "*"
    assert subscription.matches(message(0))
    assert subscription.matches(message(0, "paid"))


def test_tags_match_exactly() -> None:
    subscription = parse_subscription("orders", "paid || created")
    assert subscription.expression == "created || paid"
    assert subscription.matches(message(0, "paid"))
    assert not subscription.matches(message(0, "PAID"))
    assert not subscription.matches(message(0))


@pytest.mark.parametrize("expression", ["||", "a || *", "a\x01b"])
def test_malformed_tag_expression_is_rejected(expression: str) -> None:
    with pytest.raises(IllegalArgumentError, match="tag expression"):
        parse_subscription("orders", expression)


def test_a_selector_of_tags_is_an_expression_of_tags() -> None:
    assert parse_subscription("orders", MessageSelector.by_tag("b||a")) == parse_subscription("orders", "a || b")


def test_a_condition_is_sent_as_it_is_written_and_the_broker_s_word_counts() -> None:
    subscription = parse_subscription("orders", MessageSelector.by_sql(" amount > 5 \n"))
    assert (subscription.expression, subscription.expression_type) == ("amount > 5", "SQL92")
    assert subscription.matches(message(0, "paid"))


@pytest.mark.parametrize(("expression", "sentence"), [("", "is empty"), (" ", "is empty"), ("a='\ud800'", "UTF-8")])
def test_a_condition_that_cannot_be_sent_is_rejected(expression: str, sentence: str) -> None:
    with pytest.raises(IllegalArgumentError, match=sentence):
        parse_subscription("orders", MessageSelector.by_sql(expression))


def test_message_shows_its_parts() -> None:
    shown = message(7, "paid")
    assert (shown.topic, shown.queue_id, shown.queue_offset, shown.log_offset) == ("orders", 0, 7, 7000)
    assert (shown.tag, shown.keys, shown.body, shown.message_queue) == ("paid", (), b"body", QUEUE)
    assert shown.message_id == shown.offset_message_id == f"{0:016X}{7000:016X}"
