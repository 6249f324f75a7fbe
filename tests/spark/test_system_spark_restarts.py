"""Killed anywhere, the streaming jobs have every message once (mechanisms Y2, Y5, Y6).

The job is a process of its own. Killed are: the driver, between the commit of the sink and the note of it in the
checkpoint, and at points that a seed chooses; the Python workers while they read; the broker. Then it runs again.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from job_process import JobProcess

from analytics.events import ORDER_EVENTS_TOPIC, PAYMENT_EVENTS_TOPIC
from hourglass_local.cluster import Cluster
from mqclient import Admin, Message, MessageQueue, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("java"), pytest.mark.processes, pytest.mark.timeout(900)]

MESSAGES = 6_000  # in each of two topics
PER_BATCH = 1_000  # 12 batches
SEND_BATCH = 100
QUEUES = 4
TARGET = "copies"
KILLS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster with messages, and a folder for the job."""

    cluster: Cluster
    folder: Path

    @property
    def servers(self) -> str:
        return ";".join(self.cluster.name_server_addresses)

    @property
    def events(self) -> Path:
        return self.folder / "bronze/events"

    def bronze(self, **more: Any) -> JobProcess:
        settings = {"servers": self.servers, "folder": str(self.folder), "offsets_per_batch": PER_BATCH} | more
        return JobProcess("bronze", self.folder / "bronze.log", **settings)

    def copy(self, **more: Any) -> JobProcess:
        settings = {"servers": self.servers, "folder": str(self.folder), "offsets_per_batch": PER_BATCH} | more
        settings |= {"source": ORDER_EVENTS_TOPIC, "target": TARGET}
        return JobProcess("copy", self.folder / "copy.log", **settings)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    folder = tmp_path / "job"
    folder.mkdir()
    async with Cluster(tmp_path / "cluster", orders=False, flush="ASYNC_FLUSH") as cluster:
        async with Admin(cluster.url) as admin:
            for topic in (ORDER_EVENTS_TOPIC, PAYMENT_EVENTS_TOPIC, TARGET):
                await admin.update_topic(topic, read_queue_count=QUEUES, write_queue_count=QUEUES)
        async with Producer("restarts", cluster.url) as producer:
            for topic in (ORDER_EVENTS_TOPIC, PAYMENT_EVENTS_TOPIC):
                for first in range(0, MESSAGES, SEND_BATCH):
                    rows = range(first, first + SEND_BATCH)
                    await producer.send_batch([Message(topic, b"%d" % row, keys=f"{topic}-{row}") for row in rows])
        yield Place(cluster, folder)


async def queue_ends(place: Place, topic: str) -> dict[tuple[str, int], int]:
    async with Admin(place.cluster.url) as admin:
        return {(one.queue.topic, one.queue.queue_id): one.max_offset for one in await admin.topic_stats(topic)}


async def assert_every_offset_once(spark: SparkSession, place: Place) -> None:
    ends = await queue_ends(place, ORDER_EVENTS_TOPIC) | await queue_ends(place, PAYMENT_EVENTS_TOPIC)
    assert sum(ends.values()) == 2 * MESSAGES
    found = spark.read.parquet(str(place.events)).groupBy("topic", "queueId")
    counted = found.agg({"queueOffset": "max", "*": "count"}).collect()
    different = spark.read.parquet(str(place.events)).select("topic", "queueId", "queueOffset").distinct().count()
    assert different == 2 * MESSAGES
    assert {(row["topic"], row["queueId"]): row["count(1)"] for row in counted} == ends
    assert {(row["topic"], row["queueId"]): row["max(queueOffset)"] + 1 for row in counted} == ends


async def assert_each_row_copied_once(place: Place) -> None:
    found = []
    async with Admin(place.cluster.url) as admin:
        for topic, queue_id in await queue_ends(place, TARGET):
            queue, offset = MessageQueue(topic, "broker-a", queue_id), 0
            while messages := (await admin.pull(queue, offset, max_messages=1_000)).messages:
                found += [int(message.body) for message in messages]
                offset = messages[-1].queue_offset + 1
    assert sorted(found) == list(range(MESSAGES))


def newest(folder: Path) -> int:
    """Of files that are named by batch; -1 without any."""
    names = [path.name.removesuffix(".compact") for path in folder.glob("*") if not path.name.startswith(".")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


# -------------------------------------------------------------------------------------------------- queue -> files


@pytest.mark.mechanism("Y2")
async def test_killed_between_the_sink_s_commit_and_the_checkpoint_s_each_offset_is_there_once(
    place: Place, spark: SparkSession
) -> None:
    commits, manifest = place.folder / "checkpoints/bronze/commits", place.events / "_spark_metadata"
    with place.bronze() as job:
        while job.wait_for(lambda: newest(manifest) > newest(commits)):
            job.pause()
            if newest(manifest) > newest(commits):
                break
            job.resume()  # too late for this batch
        between = newest(manifest)
        assert newest(commits) == between - 1, "the job was over before it could be caught"
        job.kill()
    assert newest(commits) == between - 1
    with place.bronze() as job:
        job.wait()
    assert newest(commits) == newest(manifest) > between
    await assert_every_offset_once(spark, place)


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_at_any_points_each_offset_is_there_once(place: Place, spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    checkpoint, manifest = place.folder / "checkpoints/bronze", place.events / "_spark_metadata"
    points: dict[str, Callable[[], int]] = {
        "a batch was planned": lambda: newest(checkpoint / "offsets"),
        "a file was begun": lambda: len(list(place.events.rglob("*.parquet"))),
        "the sink has committed": lambda: newest(manifest),
        "the checkpoint has committed": lambda: newest(checkpoint / "commits"),
    }
    for _ in range(KILLS):
        look = points[chance.choice(sorted(points))]
        wanted = look() + chance.randint(1, 2)
        with place.bronze() as job:
            job.wait_for(lambda: look() >= wanted)  # noqa: B023 - it is called here only
    with place.bronze() as job:
        job.wait()
    await assert_every_offset_once(spark, place)


@pytest.mark.mechanism("Y2")
async def test_with_its_python_workers_killed_while_they_read_each_offset_is_there_once(
    place: Place, spark: SparkSession
) -> None:
    with place.bronze(hang_reading=True) as job:
        assert job.wait_for((place.folder / "hangs").exists)
        assert job.kill_workers() > 0
        job.wait()
    await assert_every_offset_once(spark, place)


@pytest.mark.mechanism("Y2")
async def test_with_the_broker_killed_and_started_again_each_offset_is_there_once(
    place: Place, spark: SparkSession
) -> None:
    (broker,) = place.cluster.brokers
    with place.bronze() as job:
        for batch in (1, 4):
            assert job.wait_for(lambda: newest(place.events / "_spark_metadata") >= batch)  # noqa: B023
            await broker.kill()
            await broker.start()
        job.wait()
    await assert_every_offset_once(spark, place)


# -------------------------------------------------------------------------------------------------- queue -> queue


@pytest.mark.mechanism("Y5")
async def test_a_copy_killed_after_its_batch_was_stored_has_every_row_once(place: Place) -> None:
    commits, hangs = place.folder / "checkpoint/commits", place.folder / "hangs"
    with place.copy(hang_at=2) as job:
        assert job.wait_for(hangs.exists)
        job.kill()
    assert newest(commits) == 1
    assert sum((await queue_ends(place, TARGET)).values()) == 3 * PER_BATCH
    with place.copy() as job:
        job.wait()
    await assert_each_row_copied_once(place)


async def test_a_copy_killed_together_with_the_broker_has_every_row_once(place: Place) -> None:
    (broker,) = place.cluster.brokers
    with place.copy(hang_at=3) as job:
        assert job.wait_for((place.folder / "hangs").exists)
        job.kill()
    await broker.kill()
    await broker.start()
    with place.copy() as job:
        job.wait()
    await assert_each_row_copied_once(place)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_copy_killed_at_any_points_has_every_row_once(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    checkpoint = place.folder / "checkpoint"
    for _ in range(KILLS):
        part, more = chance.choice(["offsets", "commits"]), chance.randint(1, 2)
        wanted = newest(checkpoint / part) + more
        with place.copy() as job:
            job.wait_for(lambda: newest(checkpoint / part) >= wanted)  # noqa: B023 - it is called here only
    with place.copy() as job:
        job.wait()
    await assert_each_row_copied_once(place)


async def test_a_copy_goes_on_while_the_broker_is_killed_and_started_again(place: Place) -> None:
    (broker,) = place.cluster.brokers
    with place.copy() as job:
        for batch in (0, 2):
            assert job.wait_for(lambda: newest(place.folder / "checkpoint/offsets") > batch)  # noqa: B023
            await broker.kill()
            await broker.start()
        job.wait()
    await assert_each_row_copied_once(place)
