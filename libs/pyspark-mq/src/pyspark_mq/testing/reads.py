"""A broker to read from, reads of it, and streams whose output a test looks at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mqclient import ClientConfig, Message
from mqclient.sync import SyncAdmin, SyncProducer

QUEUES = 2
PATIENCE_S = 60.0


class Queue:
    """A cluster whose name server listens at `name_server`, with a broker named broker-a."""

    def __init__(self, name_server: str, admin: SyncAdmin) -> None:
        self.address = name_server
        self.url = f"mq://{name_server}"
        self.admin = admin

    def create(self, topic: str, queues: int = QUEUES) -> None:
        self.admin.update_topic(topic, read_queue_count=queues, write_queue_count=queues)

    def send(self, topic: str, numbers: Sequence[int], tag: str = "", queues: int = QUEUES) -> None:
        """Message n goes to queue n modulo `queues`, with key k<n>."""
        # A client of its own knows the topic's queues as they are now.
        config = ClientConfig(instance_name=f"{topic}-{numbers[0]}")
        with SyncProducer("senders", self.url, client_config=config) as producer:
            self._send(producer, topic, numbers, tag, queues)

    def _send(self, producer: SyncProducer, topic: str, numbers: Sequence[int], tag: str, queues: int) -> None:
        for number in numbers:
            message = Message(topic, b"%d" % number, tag=tag or None, keys=f"k{number}", properties={"n": str(number)})
            producer.send(message, selector=lambda known, _, n: known[n % queues], selector_argument=number)

    def delete(self, topic: str) -> None:
        self.admin.delete_topic(topic)


def read_mq(spark: SparkSession, queue: Queue, topic: str, **options: Any) -> DataFrame:
    """What a batch read gives."""
    where = {"namesrvAddr": queue.address, "subscribe": topic} | options
    return spark.read.format("mq").options(**where).load()


def bodies(frame: DataFrame) -> list[int]:
    """Sorted; each is a number."""
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def places(topic: str, **offsets: int) -> str:
    """JSON of q0=..., q1=..."""
    return json.dumps({topic: {"broker-a": {name[1:]: offset for name, offset in offsets.items()}}})


class Stream:
    """A query that keeps what it reads in files, started again as often as a test likes."""

    def __init__(self, spark: SparkSession, queue: Queue, folder: Path, topic: str) -> None:
        self._spark = spark
        self.where = {"namesrvAddr": queue.address, "subscribe": topic, "startingOffsets": "earliest"}
        self._out, self._checkpoint = str(folder / "out"), str(folder / "checkpoint")
        self.end_offset: Any = None  # of the last run

    def start(self, *, available_now: bool = True, **options: Any) -> Any:
        """The query, which ends by itself when it has read what is there, or never."""
        frame = self._spark.readStream.format("mq").options(**self.where | options).load()
        writer = frame.writeStream.format("parquet").option("path", self._out)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()

    def run(self, **options: Any) -> list[int]:
        """Read what is there; how many rows each batch had."""
        query = self.start(**options)
        if not query.awaitTermination(PATIENCE_S):
            query.stop()
            raise TimeoutError(f"the query has not ended within {PATIENCE_S:g} s")
        self.end_offset = json.loads(query.lastProgress.sources[0].endOffset)
        return [one.numInputRows for one in query.recentProgress if one.numInputRows]

    @property
    def bodies(self) -> list[int]:
        """Of everything that was ever read."""
        return bodies(self._spark.read.parquet(self._out))
