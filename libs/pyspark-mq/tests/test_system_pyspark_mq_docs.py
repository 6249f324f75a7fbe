"""The examples of docs/guides/spark.md do what the page says, against a broker of their own (mechanisms Y1-Y5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hourglass_local.cluster import Cluster
from mqclient import Admin
from pyspark_mq.sink.options import ReplayDiffersError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("java"), pytest.mark.processes, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[3] / "docs/guides/spark.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]
TOPICS = ("orders", "payments", "copies", "mirror", "closed", "paid")
QUEUES = 4


def examples(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


class Page:
    """What the examples have made so far, by name, as in one long session."""

    def __init__(self, namesrv_addr: str, folder: Path) -> None:
        self._namesrv_addr = namesrv_addr
        self._folder = folder
        self.names: dict[str, Any] = {}

    def run_all(self) -> None:
        for section in SECTIONS:
            for text in examples(section):
                self._run(text, section.splitlines()[0])

    def read(self, topic: str) -> Any:
        return self.names["reader"]().option("subscribe", topic).load()

    def again(self, section_word: str, example_word: str) -> None:
        """Run the one example once more."""
        (section,) = [one for one in SECTIONS if one.startswith(section_word)]
        (text,) = [one for one in examples(section) if example_word in one]
        self._run(text, section_word)

    def _run(self, text: str, heading: str) -> None:
        text = text.replace("127.0.0.1:9876", self._namesrv_addr).replace('"/data/', f'"{self._folder}/')
        exec(compile(text, f"docs/guides/spark.md, {heading}", "exec"), self.names)


@pytest.fixture(scope="module")
def page(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    cluster = Cluster(folder / "cluster", orders=False, broker_settings={"enablePropertyFilter": "true"})

    async def start() -> None:
        await cluster.start()
        async with Admin(cluster.url) as admin:
            for topic in TOPICS:
                await admin.update_topic(topic, read_queue_count=QUEUES, write_queue_count=QUEUES)

    with asyncio.Runner() as runner:
        runner.run(start())
        try:
            told = Page(cluster.name_server_addresses[0], folder / "data")
            told.run_all()
            yield told
        finally:
            runner.run(cluster.stop())


def test_the_quick_start_reads_what_it_has_written(page: Page) -> None:
    counts = {row["tag"]: row["count"] for row in page.names["messages"].groupBy("tag").count().collect()}
    assert counts == {"closed": 100, "paid": 900}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bodies", 1000),
        ("two_topics", 1010),
        ("by_pattern", 1010),
        ("everything", 1000),
        ("last_hour", 1000),
        ("last_hour_by_queue", 1000),
        ("split", 1000),
        ("closed", 100),
        ("also_closed", 100),
        ("one_order", 1),
        ("lean", 1000),
        ("patient", 1000),
        ("what_is_left", 1000),
    ],
)
def test_a_read_of_the_page_gives_the_rows_that_it_says(page: Page, name: str, count: int) -> None:
    if name not in ("two_topics", "by_pattern"):
        assert page.names[name].count() == count
        return
    before, found, after = _both(page), page.names[name].count(), _both(page)  # ten come when their level is due
    assert before <= found <= after <= count


def _both(page: Page) -> int:
    return int(page.read("orders").count() + page.read("payments").count())


def test_offsets_by_queue_are_kept(page: Page) -> None:
    found = page.names["from_the_end_of_queue_0"]
    bounds = {
        row["queueId"]: (row["first"], row["last"])
        for row in found.groupBy("queueId").agg({"queueOffset": "min"}).withColumnRenamed("min(queueOffset)", "first")
        .join(
            found.groupBy("queueId").agg({"queueOffset": "max"}).withColumnRenamed("max(queueOffset)", "last"),
            "queueId",
        )
        .collect()
    }  # fmt: skip
    assert bounds[0][0] == 17
    assert bounds[1] == (0, 39)


def test_a_read_is_split_as_the_page_says(page: Page) -> None:
    assert page.names["split"].rdd.getNumPartitions() >= 8
    assert page.names["one_queue"].rdd.getNumPartitions() == 1


def test_the_columns_are_those_of_the_page(page: Page) -> None:
    assert page.names["bodies"].columns == ["body", "queueOffset"]
    assert "properties" not in page.names["lean"].columns


def test_a_stream_to_files_has_every_offset_once(page: Page, spark: SparkSession) -> None:
    bronze = spark.read.parquet(f"{page._folder}/bronze")
    assert bronze.count() == bronze.select("queueId", "queueOffset").distinct().count() == 1000
    assert page.names["bronze"].lastProgress["numInputRows"] <= 400


def test_a_write_with_a_write_id_stores_nothing_the_second_time(page: Page) -> None:
    for _ in range(2):
        copies = page.read("copies")
        assert copies.count() == copies.select("key").distinct().count() == 1000
        page.again("Writing", "writeId")


def test_copies_by_a_stream_and_by_foreach_batch_have_every_row_once(page: Page) -> None:
    mirror = page.read("mirror")
    assert mirror.count() == mirror.select("key").distinct().count() == 1000
    assert page.read("closed").select("key").distinct().count() == page.read("closed").count() == 100
    assert page.read("paid").select("key").distinct().count() == page.read("paid").count() == 900


def test_other_rows_under_the_same_write_id_are_an_error_that_says_so(page: Page, spark: SparkSession) -> None:
    page.names["orders"] = page.names["orders"].where("id % 7 > 0")
    with pytest.raises(Exception, match=ReplayDiffersError.__name__):
        page.again("Writing", "writeId")
    page.names["orders"] = spark.range(0)


def test_what_cannot_be_written_is_said(page: Page, spark: SparkSession) -> None:
    def write(table: Any) -> None:
        options = {"namesrvAddr": page._namesrv_addr, "topic": "copies"}
        table.write.format("mq").options(**options).mode("append").save()

    with pytest.raises(Exception, match="the column 'id' is none of a message's; allowed are body, topic"):
        write(spark.range(3).selectExpr("id", "'x' body"))
    with pytest.raises(Exception, match=r"row 2.*the delay level is 44; allowed are 0"):
        write(spark.range(3, numPartitions=1).selectExpr("'x' body", "int(if(id = 2, 44, 0)) delayLevel"))
    assert page.read("copies").count() == 1000
