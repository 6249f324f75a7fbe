"""The sink without Spark: options, columns, numbers, and rows on their way to an embedded broker (mechanism Y5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, Message, MessageExt, MessageQueue
from mqproto.properties import RETURNING_PRODUCERS_FROM, WRITE_PRODUCERS_FROM
from pyspark_mq.errors import OptionError
from pyspark_mq.sink import batch_writer, stream_writer
from pyspark_mq.sink import partition_sender as lanes_module
from pyspark_mq.sink.options import (
    BATCH_ID_MAX,
    ROWS_MAX,
    TIMED,
    Chain,
    ReplayDiffersError,
    RowError,
    SinkAwayError,
    SinkOptions,
    SinkRejectedError,
    SinkSchemaError,
    WriterIdentity,
    sink_options,
)
from pyspark_mq.sink.partition_sender import COLUMNS, PartitionSender, check_columns, messages

QUEUES = 4
URL = {"namesrvAddr": "127.0.0.1:9876"}


TYPES: dict[str, DataType] = {
    one.simpleString(): one
    for one in (
        StringType(), BinaryType(), IntegerType(), LongType(), TimestampType(), ArrayType(StringType()),
        MapType(StringType(), StringType()), MapType(StringType(), IntegerType()),
    )
}  # fmt: skip


def schema(text: str) -> StructType:
    parsed = StructType([])
    for part in text.split("; "):
        name, _, kind = part.partition(" ")
        parsed = parsed.add(name, TYPES[kind])
    return parsed


class TestOptions:
    def test_what_is_not_set_has_its_default(self) -> None:
        assert sink_options(URL, streaming=True) == SinkOptions("mq://127.0.0.1:9876", "", False, "", 120.0)

    def test_names_do_not_depend_on_case_and_spark_s_own_are_let_through(self) -> None:
        options = {**URL, "TOPIC": "t", "queueby": "key", "checkpointLocation": "/x", "queryname": "q", "path": "/y"}
        assert sink_options(options, streaming=True) == SinkOptions("mq://127.0.0.1:9876", "t", True, "", 120.0)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({}, "namesrvAddr is not set"),
            (
                {**URL, "subscribe": "t"},
                "has no option 'subscribe' for writing; allowed are batchId, namesrvAddr, queueBy,",
            ),
            ({**URL, "topic": "a b"}, "topic: the topic name 'a b' has a character that is not allowed"),
            ({**URL, "topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the queue itself"),
            ({**URL, "queueBy": "hash"}, "queueBy is 'hash'; allowed are turns and key"),
            ({**URL, "writeId": "w"}, "writeId is set, but a stream is known by its checkpoint"),
            ({**URL, "batchId": "7"}, "batchId is set, but a stream is known by its checkpoint"),
            ({**URL, "sendTimeoutMs": "0"}, "sendTimeoutMs is '0'; it has to be a whole number from 1 up"),
        ],
    )
    def test_what_makes_no_sense_is_rejected(self, options: dict[str, str], sentence: str) -> None:
        with pytest.raises(OptionError) as error:
            sink_options(options, streaming=True)
        assert sentence in str(error.value)

    def test_a_topic_cannot_be_overwritten(self) -> None:
        for make in (batch_writer, stream_writer):
            with pytest.raises(OptionError, match="cannot be overwritten"):
                make({**URL, "topic": "t"}, schema("body string"), overwrite=True)


class TestColumns:
    @pytest.mark.parametrize(
        ("columns", "topic"),
        [
            ("body binary", "t"),
            ("body string; topic string", ""),
            ("body binary; tag string; key string; properties map<string,string>; delayLevel int", "t"),
            ("deliverAt timestamp; keys array<string>; body binary; topic string", ""),
            ("body binary; delayLevel bigint", "t"),
        ],
    )
    def test_any_choice_of_a_message_s_columns_in_any_order_can_be_written(self, columns: str, topic: str) -> None:
        check_columns(schema(columns), topic)

    @pytest.mark.parametrize(
        ("columns", "topic", "sentence"),
        [
            ("body string; value string", "t", "the column 'value' is none of a message's; allowed are body, topic, "),
            ("tag string", "t", "there is no column body"),
            ("body int", "t", "the column 'body' is int; it has to be string or binary"),
            ("body string; delayLevel string", "t", "the column 'delayLevel' is string; it has to be int"),
            ("body string; deliverAt bigint", "t", "it has to be timestamp"),
            ("body string; properties map<string,int>", "t", "it has to be map<string,string>"),
            ("body string", "", "nothing says the topic"),
            ("body string; topic string", "t", "the topic is an option and a column both"),
            ("body string; key string; keys array<string>", "t", "there is a column key and a column keys"),
            ("body string; delayLevel int; deliverAt timestamp", "t", "a message takes one of them"),
            ("body string; body string", "t", "each can be there once"),
        ],
    )
    def test_what_is_no_message_is_rejected_before_anything_is_sent(
        self, columns: str, topic: str, sentence: str
    ) -> None:
        with pytest.raises(SinkSchemaError) as error:
            check_columns(schema(columns), topic)
        assert sentence in str(error.value)

    def test_every_column_says_its_type_as_spark_writes_it(self) -> None:
        for name, (text, types) in COLUMNS.items():
            if name != "body":
                assert text == types[0].simpleString()

    def test_a_row_becomes_a_message(self) -> None:
        due = datetime(2031, 5, 1, tzinfo=UTC)
        batch = table(
            body=["x"], tag=["paid"], keys=[["a", "b"]], deliverAt=[due],
            properties=[[("z", "1"), ("a", "2"), ("UNIQ_KEY", "old")]],
        )  # fmt: skip
        (message,) = messages(batch, "t", 0)
        wanted = Message("t", b"x", tag="paid", keys=["a", "b"], properties={"a": "2", "z": "1"}, deliver_at=due)
        assert message == wanted
        assert list(message.properties or {}) == ["a", "z"]

    def test_a_key_of_the_source_with_spaces_is_several(self) -> None:
        found = messages(table(body=["x", "y", "z"], key=["a b", "c", None]), "t", 0)
        assert [message.keys for message in found] == [["a", "b"], "c", ""]

    @pytest.mark.parametrize(
        ("columns", "sentence"),
        [
            ({"body": [b"x", None]}, "row 41: the body is null"),
            ({"body": [b"x", b"y"], "topic": ["t", None]}, "row 41: the topic is null"),
            ({"body": [b"x", b"y"], "keys": [None, ["k", None]]}, "row 41: one of its keys is null"),
            ({"body": [b"x", b"y"], "properties": [None, [("p", None)]]}, "row 41: the property 'p' is null"),
        ],
    )
    def test_a_row_that_is_no_message_is_named(self, columns: dict[str, list[Any]], sentence: str) -> None:
        with pytest.raises(RowError, match=sentence):
            list(messages(table(**columns), "" if "topic" in columns else "t", 40))


class TestIdentity:
    def test_a_producer_id_is_of_those_that_come_back_and_the_same_in_all_batches(self) -> None:
        ids = {
            (partition, batch): WriterIdentity("query a", partition, batch).producer_id
            for partition in range(50)
            for batch in range(3)
        }
        assert len(set(ids.values())) == 50
        assert all(RETURNING_PRODUCERS_FROM <= one < 2 * RETURNING_PRODUCERS_FROM for one in ids.values())
        assert WriterIdentity("query b", 0).producer_id not in ids.values()

    def test_a_producer_id_says_whether_it_is_sent_again_after_its_job(self) -> None:
        for partition in range(5_000):
            query = WriterIdentity("query a", partition).producer_id
            assert RETURNING_PRODUCERS_FROM <= query < WRITE_PRODUCERS_FROM
            write = WriterIdentity("write a", partition, returns=False).producer_id
            assert WRITE_PRODUCERS_FROM <= write < 2 * RETURNING_PRODUCERS_FROM, WRITE_PRODUCERS_FROM

    def test_only_a_write_with_a_name_returns_and_its_batches_have_one_producer(self) -> None:
        columns = schema("body string")
        named = {**URL, "topic": "t", "writeId": "w"}
        ids = []
        for options in ({**URL, "topic": "t"}, named, {**named, "batchId": "7"}):
            ids.append(batch_writer(options, columns, overwrite=False).identity(3))
        assert [one.returns for one in ids] == [False, True, True]
        assert ids[1].producer_id == ids[2].producer_id
        assert ids[2].batch_id == 7

    def test_numbers_of_two_ways_and_of_two_batches_never_meet(self) -> None:
        now, later = WriterIdentity("q", 0, 6), WriterIdentity("q", 0, 7)
        ends = [(now.number(way, 0), now.number(way, ROWS_MAX - 1)) for way in range(TIMED + 1)]
        assert now.first_number < ends[0][0]
        assert all(before[1] < behind[0] for before, behind in pairwise(ends))
        assert ends[-1][1] < later.first_number
        assert len(str(WriterIdentity("q", 0, BATCH_ID_MAX).number(TIMED, ROWS_MAX))) <= 18

    def test_an_id_depends_on_every_row_before_it_and_on_those_of_its_request(self) -> None:
        def ids(*requests: list[tuple[str, bytes]]) -> list[list[str]]:
            lane = Chain("seed")
            return [lane.ids(request) for request in requests]

        a, b, c = ("", b"a"), ("", b"b"), ("", b"c")
        plain = ids([a, b], [c])
        assert plain == ids([a, b], [c])
        swapped = ids([b, a], [c])
        assert not set(chain.from_iterable(plain)) & set(chain.from_iterable(swapped))
        assert len(set(chain.from_iterable(plain))) == 3
        assert all(len(one) == 32 for one in plain[0])
        assert ids([("ab", b"c")]) != ids([("a", b"bc")])


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker("sink") as embedded:
        async with Admin(embedded.url) as admin:
            for topic in ("t", "u"):
                await admin.update_topic(topic, read_queue_count=QUEUES, write_queue_count=QUEUES)
            await admin.update_topic("one", read_queue_count=1, write_queue_count=1)
        yield embedded


def table(**columns: list[Any]) -> pa.RecordBatch:
    types = {
        "body": None, "topic": pa.string(), "tag": pa.string(), "key": pa.string(), "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()), "delayLevel": pa.int32(),
        "deliverAt": pa.timestamp("us", tz="UTC"),
    }  # fmt: skip
    return pa.record_batch({name: pa.array(values, types[name]) for name, values in columns.items()})


def numbered(count: int, start: int = 0) -> pa.RecordBatch:
    return table(body=[f"row {number}" for number in range(start, start + count)])


async def write(
    broker: EmbeddedBroker,
    *batches: pa.RecordBatch,
    batch_id: int = 0,
    partition: int = 0,
    by_key: bool = False,
    topic: str = "t",
    timeout_s: float = 120.0,
) -> PartitionSender:
    """As a task does it. The clock moves on, as between two tries."""
    options = SinkOptions(broker.url, topic, by_key, "", timeout_s)
    async with PartitionSender(options, WriterIdentity("query q", partition, batch_id)) as sender:
        for batch in batches:
            await sender.take(batch)
        await sender.finish()
    await broker.clock.advance(1.0)
    return sender


async def stored(broker: EmbeddedBroker, topic: str = "t", queues: Iterable[int] = range(QUEUES)) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with Admin(broker.url) as admin:
        for queue_id in queues:
            queue = MessageQueue(topic, broker.broker.identity.broker_name, queue_id)
            offset, end = await admin.queue_offsets(queue)
            while offset < end:
                result = await admin.pull(queue, offset, max_messages=1_024)
                found += result.messages
                offset = result.next_begin_offset
    return found


def bodies(found: Sequence[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in found)


def rows(count: int) -> list[str]:
    return sorted(f"row {number}" for number in range(count))


class TestSending:
    async def test_every_row_is_stored_once_with_all_that_its_columns_say(self, broker: EmbeddedBroker) -> None:
        await write(
            broker,
            table(body=["x"], topic=["u"], tag=["paid"], key=["order-1"], properties=[[("shop", "north")]]),
            topic="",
        )
        (message,) = await stored(broker, "u")
        assert (message.body, message.tag, message.keys) == (b"x", "paid", ("order-1",))
        assert message.properties["shop"] == "north"

    async def test_many_rows_take_turns_over_the_queues_and_keep_their_order_in_each(
        self, broker: EmbeddedBroker
    ) -> None:
        sender = await write(broker, numbered(3_000), numbered(100, 3_000))
        found = await stored(broker)
        assert bodies(found) == rows(3_100)
        assert (sender.rows, sender.rows_recognised) == (3_100, 0)
        for queue_id in range(QUEUES):
            numbers = [int(one.body.split()[1]) for one in await stored(broker, queues=[queue_id])]
            assert numbers == sorted(numbers)
            assert numbers

    async def test_by_key_the_rows_of_one_key_are_in_one_queue_in_their_order(self, broker: EmbeddedBroker) -> None:
        count = 400
        batch = table(body=[f"row {n}" for n in range(count)], key=[f"order-{n % 7}" for n in range(count)])
        await write(broker, batch, by_key=True)
        places: dict[str, set[int]] = {}
        last: dict[str, int] = {}
        for message in await stored(broker):
            (key,), number = message.keys, int(message.body.split()[1])
            places.setdefault(key, set()).add(message.queue_id)
            assert last.get(key, -1) < number
            last[key] = number
        assert len(places) == 7
        assert all(len(queues) == 1 for queues in places.values())

    async def test_large_bodies_are_compressed_and_come_back_as_they_were(self, broker: EmbeddedBroker) -> None:
        body = "long " * 100_000
        await write(broker, table(body=[body, body + "1", "short"]))
        assert bodies(await stored(broker)) == sorted([body, body + "1", "short"])

    async def test_rows_wait_for_their_level_and_until_their_time(self, broker: EmbeddedBroker) -> None:
        now = datetime.fromtimestamp(broker.clock.wall_ms() / 1_000, UTC)
        await write(broker, table(body=["level", "none"], delayLevel=[3, None]))
        await write(broker, table(body=["timed"], deliverAt=[now + timedelta(seconds=60)]), partition=1)
        assert bodies(await stored(broker)) == ["none"]
        await broker.clock.advance(20)
        assert bodies(await stored(broker)) == ["level", "none"]
        await broker.clock.advance(50)
        assert bodies(await stored(broker)) == ["level", "none", "timed"]


class TestReplays:
    @pytest.mark.mechanism("Y5")
    async def test_a_whole_replay_stores_nothing_more(self, broker: EmbeddedBroker) -> None:
        await write(broker, numbered(2_000))
        again = await write(broker, numbered(2_000))
        assert bodies(await stored(broker)) == rows(2_000)
        assert again.rows_recognised == 2_000

    @pytest.mark.mechanism("Y5")
    async def test_of_a_batch_that_was_sent_in_part_the_replay_sends_the_rest(self, broker: EmbeddedBroker) -> None:
        options = SinkOptions(broker.url, "t", by_key=False, write_id="", send_timeout_s=120)
        async with PartitionSender(options, WriterIdentity("query q", 0)) as sender:  # and is not finished
            await sender.take(numbered(1_500))
            await sender.drain()
        assert len(await stored(broker)) == 1_024
        await broker.clock.advance(1)
        await write(broker, numbered(2_000))
        assert bodies(await stored(broker)) == rows(2_000)

    @pytest.mark.mechanism("Y5")
    @pytest.mark.parametrize("die", ["stop", "kill"])
    async def test_a_replay_after_a_restart_of_the_broker_is_recognised(self, broker: EmbeddedBroker, die: str) -> None:
        await write(broker, numbered(1_200))
        await getattr(broker, die)()
        await broker.start()
        await write(broker, numbered(1_200))
        assert bodies(await stored(broker)) == rows(1_200)

    async def test_a_replay_days_later_is_recognised(self, broker: EmbeddedBroker) -> None:
        await write(broker, numbered(5))
        for _ in range(30):
            await broker.clock.advance(2 * 3_600)
        await write(broker, numbered(5))
        assert bodies(await stored(broker)) == rows(5)

    async def test_a_later_batch_with_the_same_rows_is_sent(self, broker: EmbeddedBroker) -> None:
        for batch_id in range(3):
            await write(broker, numbered(5), batch_id=batch_id)
        assert bodies(await stored(broker)) == sorted(rows(5) * 3)

    async def test_another_partition_with_the_same_rows_is_sent(self, broker: EmbeddedBroker) -> None:
        for partition in range(3):
            await write(broker, numbered(5), partition=partition)
        assert len(await stored(broker)) == 15

    async def test_waiting_rows_are_recognised_before_and_after_their_delivery(self, broker: EmbeddedBroker) -> None:
        now = datetime.fromtimestamp(broker.clock.wall_ms() / 1_000, UTC)
        levels = table(body=["a", "b", "c"], delayLevel=[3, 0, 3])
        timed = table(body=["d", "e"], deliverAt=[now + timedelta(seconds=30), None])
        for pause_s in (0, 60, 0):
            await write(broker, levels)
            await write(broker, timed, partition=1)
            await broker.clock.advance(pause_s)
        await broker.clock.advance(60)
        assert bodies(await stored(broker)) == ["a", "b", "c", "d", "e"]

    async def test_other_rows_under_the_same_numbers_are_an_error_and_nothing_is_lost_in_silence(
        self, broker: EmbeddedBroker
    ) -> None:
        await write(broker, table(body=["a", "b", "c"]))
        for changed in (["b", "a", "c"], ["a", "b", "d"], ["a", "b"]):
            with pytest.raises(ReplayDiffersError, match="sent before with other rows"):
                await write(broker, table(body=changed))
        assert bodies(await stored(broker)) == ["a", "b", "c"]

    @pytest.mark.parametrize("schedule", ["abbbaaab", "aabbabab", "abababab", "abbababa"])
    async def test_of_two_live_attempts_that_differ_later_none_loses_rows_in_silence(
        self, broker: EmbeddedBroker, schedule: str
    ) -> None:
        """Each letter is one request of that attempt; the first ones are the same."""
        options = SinkOptions(broker.url, "one", by_key=False, write_id="", send_timeout_s=120)
        requests = {
            name: [table(body=[f"{name if part else ''} {part} {row}" for row in range(512)]) for part in range(4)]
            for name in "ab"
        }
        failed = set()
        async with (
            PartitionSender(options, WriterIdentity("query q", 0)) as a,
            PartitionSender(options, WriterIdentity("query q", 0)) as b,
        ):
            senders, waiting = {"a": a, "b": b}, {name: iter(parts) for name, parts in requests.items()}
            for name in schedule:
                try:
                    await senders[name].take(next(waiting[name]))
                    await senders[name].drain()
                except ReplayDiffersError:
                    failed.add(name)
                await broker.clock.advance(1)
        found = bodies(await stored(broker, "one", [0]))
        assert failed
        for name in set("ab") - failed:
            assert found == sorted(body for part in requests[name] for body in part.column("body").to_pylist())

    async def test_a_batch_before_the_last_one_is_rejected(self, broker: EmbeddedBroker) -> None:
        await write(broker, numbered(5), batch_id=8)
        with pytest.raises(SinkRejectedError, match="comes too late"):
            await write(broker, numbered(5), batch_id=4)

    async def test_the_same_row_has_the_same_message_id_however_often_it_is_sent(self) -> None:
        found = []
        for _ in range(2):
            async with EmbeddedBroker("fresh") as broker:
                async with Admin(broker.url) as admin:
                    await admin.update_topic("t", read_queue_count=QUEUES, write_queue_count=QUEUES)
                await write(broker, numbered(5))
                found.append([message.message_id for message in await stored(broker)])
        assert found[0] == found[1]
        assert len(set(found[0])) == 5


class TestFailures:
    async def test_a_bad_row_stops_the_task_before_its_arrow_batch_is_sent(self, broker: EmbeddedBroker) -> None:
        for bad, sentence in (
            (table(body=["x", ""]), "row 1 of partition 0: the body is empty"),
            (table(body=["x", "y"], delayLevel=[0, 19]), "the delay level is 19; allowed are 0"),
            (table(body=["x", "y"], tag=["ok", "a||b"]), "cannot be subscribed to"),
            (table(body=["x", "y"], properties=[None, [("p", "a\x01b")]]), "separate them on the wire: property 'p'"),
        ):
            with pytest.raises(RowError, match=sentence):
                await write(broker, bad)
        assert await stored(broker) == []

    async def test_a_topic_that_does_not_exist_is_an_error_that_says_what_to_do(self, broker: EmbeddedBroker) -> None:
        with pytest.raises(SinkAwayError, match="The sink makes no topics; create it with `mqadmin updateTopic`"):
            await write(broker, numbered(1), topic="nowhere")

    async def test_more_requests_than_a_broker_remembers_are_rejected(
        self, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes_module, "REQUESTS_MAX", 2)
        with pytest.raises(RowError, match="more than 2 requests"):
            await write(broker, numbered(512 * QUEUES * 3))
