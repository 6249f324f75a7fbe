"""Spark reads brokers that change, go away, lose messages, and have replicas (mechanisms Y1, Y2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from hourglass_local.cluster import ASYNC_FLUSH, SYNC_MASTER, Cluster
from hourglass_local.waiting import eventually
from mqclient.sync import SyncAdmin
from mqproto.codes import Permission
from pyspark_mq.testing.reads import PATIENCE_S, QUEUES, Queue, Stream, bodies, places, read_mq

pytestmark = [pytest.mark.needs("java"), pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master with a replica."""
    running = Cluster(tmp_path_factory.mktemp("mq"), orders=False, flush=ASYNC_FLUSH, replicas_of=SYNC_MASTER)
    asyncio.run(running.start())
    try:
        yield running
    finally:
        asyncio.run(running.stop())


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> Iterator[Queue]:
    with SyncAdmin(cluster.url) as admin:
        yield Queue(cluster.name_server_addresses[0], admin)


def wait(check: Callable[[], Any], what: str) -> None:
    asyncio.run(eventually(check, PATIENCE_S, what))


def rows_of(query: Any) -> int:
    return sum(one.numInputRows for one in query.recentProgress)


class TestStream:
    @pytest.mark.mechanism("Y2")
    def test_a_running_query_reads_what_comes_and_says_how_far_it_is(
        self, spark: SparkSession, queue: Queue, tmp_path: Path
    ) -> None:
        queue.create("running")
        queue.send("running", range(3))
        query = Stream(spark, queue, tmp_path, "running").start(available_now=False, startingOffsets="latest")
        try:
            wait(lambda: query.lastProgress, "the query has begun")
            queue.send("running", range(3, 9))
            wait(lambda: rows_of(query) == 6, "all of it is read")
            (source,) = query.lastProgress.sources
            assert json.loads(source.latestOffset) == {"running": {"broker-a": {"0": 5, "1": 4}}}
        finally:
            query.stop()

    def test_topics_that_match_a_pattern_join_a_running_query_with_their_first_message(
        self, spark: SparkSession, queue: Queue, tmp_path: Path
    ) -> None:
        queue.create("pattern-1")
        queue.send("pattern-1", range(2))
        stream = Stream(spark, queue, tmp_path, "pattern-1")
        stream.where = {"namesrvAddr": queue.address, "subscribePattern": "pattern-.", "startingOffsets": "earliest"}
        query = stream.start(available_now=False)
        try:
            wait(lambda: rows_of(query) == 2, "the first topic is read")
            queue.create("pattern-2")
            queue.send("pattern-2", range(2, 6))
            wait(lambda: rows_of(query) == 6, "the second topic is read")
        finally:
            query.stop()
        assert stream.bodies == list(range(6))

    def test_a_broker_that_is_away_for_a_moment_is_waited_for(
        self, spark: SparkSession, queue: Queue, cluster: Cluster, tmp_path: Path
    ) -> None:
        queue.create("away")
        queue.send("away", range(4))
        stream = Stream(spark, queue, tmp_path, "away")
        options = {"fetchOffset.numRetries": "100", "fetchOffset.retryIntervalMs": "200"}
        query = stream.start(available_now=False, **options)
        try:
            wait(lambda: rows_of(query) == 4, "the first messages are read")
            for process in (*cluster.replicas, *cluster.brokers):
                asyncio.run(process.kill())
            for process in (*cluster.brokers, *cluster.replicas):
                process.launch()
            for process in (*cluster.brokers, *cluster.replicas):
                asyncio.run(process.wait_ready())
            asyncio.run(cluster.wait_in_sync())
            queue.send("away", range(4, 8))
            wait(lambda: rows_of(query) == 8, "the others are read")
            assert query.isActive
        finally:
            query.stop()
        assert stream.bodies == list(range(8))

    def test_brokers_that_stay_away_end_the_query(
        self, spark: SparkSession, queue: Queue, cluster: Cluster, tmp_path: Path
    ) -> None:
        queue.create("gone")
        queue.send("gone", range(4))
        stream = Stream(spark, queue, tmp_path, "gone")
        assert sum(stream.run()) == 4
        for process in (*cluster.replicas, *cluster.brokers):
            asyncio.run(process.terminate())
        try:
            options = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "10"}
            with pytest.raises(StreamingQueryException, match="no broker is registered at a name server"):
                stream.run(**options)
            left = "broker broker-a, which has queues of topic 'gone', has left all name servers within the last 10"
            with pytest.raises((PythonException, AnalysisException), match=left):
                read_mq(spark, queue, "gone", **options).count()
        finally:
            for process in (*cluster.brokers, *cluster.replicas):
                process.launch()
            for process in (*cluster.brokers, *cluster.replicas):
                asyncio.run(process.wait_ready())
            asyncio.run(cluster.wait_in_sync())

    @pytest.mark.mechanism("Y2")
    def test_a_topic_that_was_deleted_and_made_anew_is_a_loss_that_is_named(
        self, spark: SparkSession, queue: Queue, tmp_path: Path
    ) -> None:
        queue.create("deleted")
        queue.send("deleted", range(4))
        stream = Stream(spark, queue, tmp_path, "deleted")
        assert sum(stream.run()) == 4
        queue.send("deleted", range(4, 8))
        queue.delete("deleted")
        queue.create("deleted")
        queue.send("deleted", range(8, 10))
        with pytest.raises(
            StreamingQueryException, match="the offsets 2 to 3 of topic 'deleted', broker 'broker-a', queue"
        ):
            stream.run()
        assert stream.run(failOnDataLoss="false") == [2]
        assert stream.bodies == [0, 1, 2, 3, 8, 9]

    def test_without_failing_a_query_reads_no_message_twice_and_survives_a_deleted_topic(
        self, spark: SparkSession, queue: Queue, tmp_path: Path
    ) -> None:
        for topic, numbers in (("closing", range(6)), ("ending", range(6, 8))):
            queue.create(topic)
            queue.send(topic, numbers)
        stream = Stream(spark, queue, tmp_path, "closing,ending")
        stream.where["failOnDataLoss"] = "false"
        assert sum(stream.run()) == 8
        queue.admin.update_topic("closing", read_queue_count=QUEUES, write_queue_count=QUEUES, perm=Permission.WRITE)
        queue.delete("ending")
        assert stream.run() == []
        queue.create("closing")
        queue.send("closing", range(8, 10))
        assert sum(stream.run()) == 2
        assert stream.bodies == list(range(10))


class TestBatch:
    @pytest.mark.mechanism("Y1")
    def test_offsets_that_are_not_there_any_more_are_named_or_passed_over(
        self, spark: SparkSession, queue: Queue
    ) -> None:
        queue.create("lost")
        queue.send("lost", range(4))
        queue.delete("lost")
        queue.create("lost")
        queue.send("lost", range(4, 6))
        options = {"startingOffsets": places("lost", q0=1, q1=2)}
        lost = (
            "the offsets 1 to 1 of topic 'lost', broker 'broker-a', queue 0, are lost: the queue begins at offset 2 now"
        )
        with pytest.raises((PythonException, AnalysisException), match=lost):
            read_mq(spark, queue, "lost", **options).count()
        assert bodies(read_mq(spark, queue, "lost", **options, failOnDataLoss="false")) == [4, 5]
        ends = places("lost", q0=9, q1=3)
        with pytest.raises((PythonException, AnalysisException), match="the offsets 3 to 8 of topic 'lost'"):
            read_mq(spark, queue, "lost", endingOffsets=ends).count()

    def test_a_replica_serves_who_wants_it_and_its_master_is_left_alone(
        self, spark: SparkSession, queue: Queue, cluster: Cluster
    ) -> None:
        queue.create("replica")
        queue.send("replica", range(50))
        asyncio.run(cluster.wait_in_sync())

        def given() -> tuple[int, int]:
            statuses = [
                queue.admin.broker_status(address)
                for address in (*cluster.broker_addresses, *cluster.replica_addresses)
            ]
            return statuses[0].messages_got, statuses[1].messages_got

        before = given()
        assert bodies(read_mq(spark, queue, "replica", readFromSlave="true")) == list(range(50))
        after = given()
        assert (after[0] - before[0], after[1] - before[1]) == (0, 50)

    def test_a_replica_alone_is_read_from_while_its_master_is_away(
        self, spark: SparkSession, queue: Queue, cluster: Cluster
    ) -> None:
        queue.create("alone")
        queue.send("alone", range(20))
        asyncio.run(cluster.wait_in_sync())
        (master,) = cluster.brokers
        asyncio.run(master.terminate())
        try:
            assert bodies(read_mq(spark, queue, "alone")) == list(range(20))
        finally:
            master.launch()
            asyncio.run(master.wait_ready())
