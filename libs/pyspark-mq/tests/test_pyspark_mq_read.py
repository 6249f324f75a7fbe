"""Spark reads a real broker: batch and streaming, with everything that only the two together show.

One broker process and one session for all tests; each has a topic of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from hourglass_local.cluster import ASYNC_FLUSH, Cluster
from mqclient import MessageQueue
from mqclient.sync import SyncAdmin, SyncPullConsumer
from pyspark_mq.testing.reads import QUEUES, Queue, Stream, bodies, places, read_mq

pytestmark = [pytest.mark.needs("java"), pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    settings = {"enablePropertyFilter": "true"}
    cluster = Cluster(tmp_path_factory.mktemp("mq"), orders=False, flush=ASYNC_FLUSH, broker_settings=settings)
    asyncio.run(cluster.start())
    try:
        with SyncAdmin(cluster.url) as admin:
            yield Queue(cluster.name_server_addresses[0], admin)
    finally:
        asyncio.run(cluster.stop())


class TestBatch:
    @pytest.mark.mechanism("Y3")
    def test_every_message_is_a_row_with_all_that_is_known_of_it(self, spark: SparkSession, queue: Queue) -> None:
        queue.create("batch")
        queue.send("batch", range(10), tag="paid")
        frame = read_mq(spark, queue, "batch")
        assert frame.rdd.getNumPartitions() == QUEUES
        rows = sorted(frame.collect(), key=lambda row: (row.queueId, row.queueOffset))
        assert [(row.queueId, row.queueOffset) for row in rows] == [(q, n) for q in range(QUEUES) for n in range(5)]
        with SyncPullConsumer("others", queue.url) as consumer:
            for row in rows:
                place = MessageQueue("batch", "broker-a", row.queueId)
                (message,) = consumer.pull(place, row.queueOffset, max_messages=1).messages
                assert (row.key, row["keys"], row.tag) == (message.properties["KEYS"], list(message.keys), "paid")
                assert (bytes(row.body), row.msgId, row.properties) == (
                    message.body,
                    message.message_id,
                    message.properties,
                )
                assert (row.topic, row.broker) == ("batch", "broker-a")
                assert round(row.storeTimestamp.timestamp() * 1_000) == message.store_timestamp_ms
                assert round(row.bornTimestamp.timestamp() * 1_000) == message.born_timestamp_ms

    @pytest.mark.mechanism("Y1")
    def test_offsets_times_patterns_and_queues_choose_what_is_read(self, spark: SparkSession, queue: Queue) -> None:
        queue.create("choice-1")
        queue.create("choice-2")
        queue.send("choice-1", range(6))
        queue.send("choice-2", range(6, 8))
        begin, end = places("choice-1", q0=1, q1=-2), places("choice-1", q0=-1, q1=2)
        assert bodies(read_mq(spark, queue, "choice-1", startingOffsets=begin, endingOffsets=end)) == [1, 2, 3, 4]
        where = {"namesrvAddr": f"mq://{queue.address}"}
        source = spark.read.format("mq")
        assert bodies(source.options(**where, subscribePattern="choice-.").load()) == list(range(8))
        assigned = '{"choice-1": {"broker-a": [1]}}'
        assert bodies(spark.read.format("mq").options(**where, assign=assigned).load()) == [1, 3, 5]
        third = (
            read_mq(spark, queue, "choice-1")
            .where("queueId = 0 and queueOffset = 1")
            .select("storeTimestamp")
            .collect()
        )
        at_ms = str(round(third[0][0].timestamp() * 1_000))
        since = bodies(
            read_mq(spark, queue, "choice-1", startingTimestamp=at_ms, startingOffsetsByTimestampStrategy="latest")
        )
        before = bodies(read_mq(spark, queue, "choice-1", endingTimestamp=at_ms))
        assert 2 in since
        assert sorted(since + before) == list(range(6))

    @pytest.mark.mechanism("Y1")
    def test_partitions_are_split_and_columns_left_out(self, spark: SparkSession, queue: Queue) -> None:
        queue.create("split")
        queue.send("split", range(10))
        assert read_mq(spark, queue, "split", minPartitions=5).rdd.getNumPartitions() == 5
        assert read_mq(spark, queue, "split", maxRecordsPerPartition=2).rdd.getNumPartitions() == 6
        assert bodies(read_mq(spark, queue, "split", minPartitions=5)) == list(range(10))
        assert "properties" not in read_mq(spark, queue, "split", includeProperties="false").columns
        where = {"namesrvAddr": queue.address, "subscribe": "split"}
        few = spark.read.format("mq").schema("queueOffset bigint, body binary").options(**where).load()
        assert sorted(row.queueOffset for row in few.collect()) == sorted([*range(5), *range(5)])

    def test_an_empty_topic_is_an_empty_table(self, spark: SparkSession, queue: Queue) -> None:
        queue.create("empty")
        assert read_mq(spark, queue, "empty").count() == 0

    @pytest.mark.mechanism("Y4")
    def test_filters_are_taken_over_and_change_no_result(self, spark: SparkSession, queue: Queue) -> None:
        queue.create("filters")
        queue.send("filters", range(0, 10), tag="Aa")
        queue.send("filters", range(10, 20), tag="BB")  # the same hash
        queue.send("filters", range(20, 30))

        def pushing() -> DataFrame:
            return read_mq(spark, queue, "filters", filterPushdown="true")

        by_tag = pushing().where("tag = 'Aa'")
        assert bodies(by_tag) == list(range(10))
        assert "Filter (" not in plan_of(by_tag)
        by_key = pushing().where("key in ('k3', 'k14') and queueOffset < 3 and topic = 'filters'")
        assert bodies(by_key) == [3]
        assert "Filter (" not in plan_of(by_key)
        one_queue = pushing().where("queueId = 1 and storeTimestamp > '2020-01-01'")
        assert bodies(one_queue) == list(range(1, 30, 2))
        assert one_queue.rdd.getNumPartitions() == 1
        assert "Filter (storeTimestamp" in plan_of(one_queue)
        assert bodies(pushing().where("tag is null or tag = 'BB'")) == list(range(10, 30))
        assert bodies(pushing().where("tag = 'none'")) == []
        assert bodies(read_mq(spark, queue, "filters", tags="Aa || x")) == list(range(10))
        assert bodies(read_mq(spark, queue, "filters", sql="n > 27")) == [28, 29]

    @pytest.mark.mechanism("Y4")
    def test_several_queries_of_one_load_are_each_right(self, spark: SparkSession, queue: Queue) -> None:
        """Where Spark 4.3 gives one query the reader that another one's filters have narrowed, nothing is pushed."""
        queue.create("queries")
        queue.send("queries", range(0, 4), tag="a")
        queue.send("queries", range(4, 8), tag="b")
        frame = read_mq(spark, queue, "queries")
        a, b = frame.where("tag = 'a'"), frame.where("tag = 'b'")
        assert bodies(a.union(b)) == list(range(8))
        assert (bodies(b), bodies(a), bodies(frame)) == ([4, 5, 6, 7], [0, 1, 2, 3], list(range(8)))

    def test_what_is_wrong_is_said_before_anything_runs(self, spark: SparkSession, queue: Queue) -> None:
        with pytest.raises((PythonException, AnalysisException), match="no registered broker has the topic 'nowhere'"):
            read_mq(spark, queue, "nowhere").count()
        with pytest.raises((PythonException, AnalysisException), match="has no option 'startingoffset' for reading"):
            read_mq(spark, queue, "nowhere", startingOffset="earliest").count()


def plan_of(frame: DataFrame) -> str:
    """As `explain` shows it."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


class TestStream:
    @pytest.mark.mechanism("Y2")
    def test_what_is_available_is_read_once_in_batches_within_the_limit(
        self, spark: SparkSession, queue: Queue, tmp_path: Path
    ) -> None:
        queue.create("stream")
        queue.send("stream", range(30))
        stream = Stream(spark, queue, tmp_path, "stream")
        assert stream.run(maxOffsetsPerTrigger=12, group="shown") == [12, 12, 6]
        assert stream.end_offset == {"stream": {"broker-a": {"0": 15, "1": 15}}}
        lag = queue.admin.consume_stats("shown").queues
        assert [(one.queue.queue_id, one.consumer_offset, one.broker_offset) for one in lag] == [
            (0, 15, 15),
            (1, 15, 15),
        ]
        queue.send("stream", range(30, 34))
        queue.admin.update_topic("stream", read_queue_count=3, write_queue_count=3)  # queue 2 is new
        queue.send("stream", [35, 38], queues=3)
        assert sum(stream.run(minPartitions=3)) == 6
        assert stream.run() == []
        assert stream.bodies == [*range(34), 35, 38]
        assert stream.end_offset["stream"]["broker-a"] == {"0": 17, "1": 17, "2": 2}
