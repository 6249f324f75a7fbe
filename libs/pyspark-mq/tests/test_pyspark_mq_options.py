"""Options of reading: what each says, and what is said about those that make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mqclient import MessageQueue
from pyspark_mq.errors import OptionError
from pyspark_mq.options import NoMatchStrategy, PositionKind, ReadOptions, read_options
from pyspark_mq.pushdown import wanted_by_options

WHERE = {"namesrvAddr": "127.0.0.1:9876", "subscribe": "orders"}
QUEUES = '{"orders": {"broker-a": {"0": 17, "1": -2}}}'
Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


def parsed(streaming: bool = False, /, **options: Any) -> ReadOptions:
    return read_options(
        WHERE | {name.replace("__", "."): value for name, value in options.items()}, streaming=streaming
    )


class TestDefaults:
    def test_defaults_read_all_that_is_there_and_fail_on_loss(self) -> None:
        options = parsed()
        assert (options.url, options.choice.topics) == ("mq://127.0.0.1:9876", ("orders",))
        assert (options.starting.kind, options.ending.kind) == (PositionKind.EARLIEST, PositionKind.LATEST)
        assert (options.fail_on_data_loss, options.include_properties, options.read_from_replica) == (True, True, False)
        assert (options.min_partitions, options.max_records_per_partition, options.max_offsets_per_trigger) == (0, 0, 0)
        assert (options.pull_batch_size, options.pull_timeout_s) == (1_024, 60.0)
        assert (options.retries, options.retry_interval_s, options.group) == (10, 1.0, "")

    def test_a_stream_begins_with_what_comes_next(self) -> None:
        assert parsed(True).starting.kind is PositionKind.LATEST


class TestValues:
    @pytest.mark.parametrize(
        ("text", "url"),
        [
            ("a:1", "mq://a:1"),
            (" a:1 ; b:2;", "mq://a:1;b:2"),
            ("mq://a:1;b:2", "mq://a:1;b:2"),
            ("mq+http://a:1/names", "mq+http://a:1/names"),
            ("mq+dns://a:1", "mq+dns://a:1"),
        ],
    )
    def test_name_servers_are_a_list_or_a_url(self, text: str, url: str) -> None:
        assert parsed(namesrvAddr=text).url == url

    def test_names_are_case_insensitive(self) -> None:
        options = read_options({"NAMESRVADDR": "a:1", "Subscribe": "x", "fetchoffset.NUMRETRIES": "3"}, streaming=False)
        assert (options.url, options.choice.topics, options.retries) == ("mq://a:1", ("x",), 3)

    @pytest.mark.parametrize(
        ("option", "text", "field", "value"),
        [
            ("tags", "a || b", "tags", "a || b"),
            ("sql", "amount > 3", "sql", "amount > 3"),
            ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
            ("minPartitions", "8", "min_partitions", 8),
            ("maxRecordsPerPartition", "1000", "max_records_per_partition", 1_000),
            ("readFromSlave", "true", "read_from_replica", True),
            ("includeProperties", "false", "include_properties", False),
            ("pullBatchSize", "32", "pull_batch_size", 32),
            ("pullTimeoutMs", "1500", "pull_timeout_s", 1.5),
            ("fetchOffset.numRetries", "0", "retries", 0),
            ("fetchOffset.retryIntervalMs", "10", "retry_interval_s", 0.01),
            ("filterPushdown", "true", "filter_pushdown", True),
            ("maxOffsetsPerTrigger", "500", "max_offsets_per_trigger", 500),
            ("minOffsetsPerTrigger", "5", "min_offsets_per_trigger", 5),
            ("maxTriggerDelay", "2m", "max_trigger_delay_s", 120.0),
            ("maxTriggerDelay", "250", "max_trigger_delay_s", 0.25),
            ("maxTriggerDelay", "1 h", "max_trigger_delay_s", 3_600.0),
            ("group", "lag-shown", "group", "lag-shown"),
        ],
    )
    def test_each_option_is_read(self, option: str, text: str, field: str, value: Any) -> None:
        assert getattr(read_options(WHERE | {option: text}, streaming=True), field) == value

    def test_topics_are_a_list_a_pattern_or_queues(self) -> None:
        assert parsed(subscribe="b, a,b").choice.topics == ("a", "b")
        options = {"namesrvAddr": "a:1"}
        pattern = read_options(options | {"subscribePattern": "orders-.*"}, streaming=False).choice
        assert pattern.topics_of(["orders-2", "orders", "orders-1", "my-orders-3"]) == ("orders-1", "orders-2")
        assigned = read_options(options | {"assign": '{"orders": {"broker-a": [1, 0]}}'}, streaming=False).choice
        assert (assigned.queues, assigned.named_topics) == (frozenset({Q0, Q1}), ("orders",))
        assert assigned.takes(Q0)
        assert not assigned.takes(Q0._replace(queue_id=2))

    def test_positions_are_words_offsets_or_times(self) -> None:
        assert parsed(startingOffsets="Earliest").starting.kind is PositionKind.EARLIEST
        by_offsets = parsed(startingOffsets=QUEUES).starting
        assert (by_offsets.kind, by_offsets.numbers) == (PositionKind.OFFSETS, {Q0: 17, Q1: -2})
        by_time = parsed(startingTimestamp="1700000000000", endingTimestamp="1700000000001")
        assert (by_time.starting.kind, by_time.starting.time_of(Q1)) == (PositionKind.TIMESTAMP, 1_700_000_000_000)
        assert by_time.ending.time_of(Q0) == 1_700_000_000_001
        times = parsed(
            startingOffsetsByTimestamp=QUEUES.replace("-2", "3"), startingOffsetsByTimestampStrategy="LATEST"
        )
        assert (times.starting.time_of(Q0), times.starting.time_of(Q1)) == (17, 3)
        assert times.starting.strategy is NoMatchStrategy.LATEST
        assert parsed(endingOffsetsByTimestamp=QUEUES.replace("-2", "3")).ending.time_of(Q1) == 3
        assert parsed(endingOffsets=QUEUES.replace("-2", "-1")).ending.numbers == {Q0: 17, Q1: -1}

    def test_a_time_for_all_wins_over_times_by_queue_and_those_over_offsets(self) -> None:
        times = QUEUES.replace("-2", "3")
        options = {"startingOffsets": "latest", "startingOffsetsByTimestamp": times}
        assert parsed(True, **options).starting.kind is PositionKind.TIMESTAMPS
        assert parsed(True, **options, startingTimestamp="5").starting.kind is PositionKind.TIMESTAMP


REJECTED = [
    ({"namesrvAddr": ""}, "namesrvAddr is empty"),
    ({"namesrvAddr": "nowhere"}, "namesrvAddr: 'nowhere' is not an address; write host:port"),
    ({"namesrvAddr": "kafka://a:1"}, "a URL begins with one of mq://, mq+http://, mq+dns://"),
    ({"subscribe": "a b"}, "subscribe: the topic name 'a b' has a character that is not allowed"),
    ({"subscribe": "a,,b"}, "subscribe: the topic name is empty"),
    ({"subscribePattern": "x"}, "subscribe and subscribePattern is set; exactly one of"),
    ({"bootstrap.servers": "x"}, "has no option 'bootstrap.servers' for reading; allowed are assign, endingOffsets"),
    ({"path": "/x"}, "has no option 'path' for reading"),
    ({"startingOffsets": "first"}, "startingOffsets is 'first'; allowed are earliest, latest, and JSON like"),
    ({"startingOffsets": "{17}"}, "startingOffsets is no JSON ("),
    ({"startingOffsets": '{"orders": {"broker-a": [1]}}'}, "write it like"),
    ({"startingOffsets": '{"orders": {"broker-a": {"0": true}}}'}, "write it like"),
    ({"startingOffsets": '{"orders": {"broker-a": {"x": 1}}}'}, "write it like"),
    ({"startingOffsets": '{"orders": {"broker-a": {"0": -3}}}'}, "0 or more, -1 for latest, -2 for earliest"),
    ({"startingOffsets": "{}"}, "startingOffsets needs an offset for each queue"),
    ({"startingOffsets": "latest"}, "startingOffsets says latest; a batch that begins at the end reads nothing"),
    ({"startingOffsets": '{"orders": {"broker-a": {"0": -1}}}'}, "startingOffsets says latest"),
    ({"endingOffsets": "earliest"}, "endingOffsets says earliest; a batch that ends at the beginning reads nothing"),
    ({"endingOffsets": '{"orders": {"broker-a": {"0": -2}}}'}, "endingOffsets says earliest"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'; it has to be a whole number from 0 up"),
    ({"startingTimestamp": "-1"}, "it has to be a whole number from 0 up"),
    ({"startingOffsetsByTimestamp": QUEUES}, "needs a time for each queue, in milliseconds since 1970"),
    ({"startingOffsetsByTimestampStrategy": "first"}, "'first'; allowed are error and latest"),
    ({"tags": "a", "sql": "b = 1"}, "tags and sql are set both"),
    ({"failOnDataLoss": "no"}, "failOnDataLoss is 'no'; allowed are true and false"),
    ({"minPartitions": "0"}, "minPartitions is '0'; it has to be a whole number from 1 up"),
    ({"maxRecordsPerPartition": "1e3"}, "maxRecordsPerPartition is '1e3'"),
    ({"pullBatchSize": "1025"}, "pullBatchSize is '1025'; it has to be a whole number from 1 to 1024"),
    ({"fetchOffset.numRetries": "-1"}, "fetchOffset.numRetries is '-1'; it has to be a whole number from 0 up"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'; write a number and a unit"),
    ({"maxTriggerDelay": "0s"}, "maxTriggerDelay is '0s'"),
    (
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        "minOffsetsPerTrigger is 9 and maxOffsetsPerTrigger 8",
    ),
    ({"group": "a b"}, "group: the group name 'a b' has a character that is not allowed"),
]


@pytest.mark.parametrize(("options", "sentence"), REJECTED, ids=[json.dumps(one) for one, _ in REJECTED])
def test_what_makes_no_sense_is_rejected_with_what_is_allowed(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as rejected:
        read_options(WHERE | options, streaming=False)
    assert sentence in str(rejected.value)


@pytest.mark.parametrize("option", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    with pytest.raises(OptionError, match=f"{option} is set, but a stream has no end"):
        parsed(True, **{option: "1"})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "a"}, "namesrvAddr is not set; it is required"),
        (
            {"namesrvAddr": "a:1"},
            "nothing is set; exactly one of subscribe, subscribePattern, assign says what is read",
        ),
        ({"namesrvAddr": "a:1", "subscribePattern": "("}, "subscribePattern is '(', which is no regular expression"),
        ({"namesrvAddr": "a:1", "assign": "[]"}, "assign is []; write it like"),
        ({"namesrvAddr": "a:1", "assign": "{}"}, "assign names no queue"),
        ({"namesrvAddr": "a:1", "assign": '{"a": {"b": [-1]}}'}, "write it like"),
        ({"namesrvAddr": "a:1", "assign": '{"a": {"b": []}}'}, "write it like"),
        ({"namesrvAddr": "a:1", "assign": "x"}, "assign is no JSON"),
    ],
)
def test_where_to_read_has_to_be_said(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as rejected:
        read_options(options, streaming=False)
    assert sentence in str(rejected.value)


def test_tags_are_an_expression_of_tags() -> None:
    assert wanted_by_options(parsed(tags="b || a")).tags == frozenset({"a", "b"})
    assert wanted_by_options(parsed(tags="*")).tags is None
    with pytest.raises(OptionError, match=r"tags: the tag expression 'a \|\| \*' is not"):
        wanted_by_options(parsed(tags="a || *"))
