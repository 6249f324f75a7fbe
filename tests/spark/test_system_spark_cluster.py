"""The pipeline by spark-submit on a cluster of two workers makes the tables that one process makes (mechanism Y8)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet
from standalone_cluster import WORKERS, StandaloneCluster

from analytics.events import TOPICS
from analytics.generator.generate import generate
from analytics.generator.generation import Generation
from analytics.jobs.reconciliation_kinds import Kind
from hourglass_local.cluster import Cluster
from mqclient import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("java"), pytest.mark.processes, pytest.mark.timeout(1_500)]

PROGRAM = Path(__file__).with_name("analytics_program.py")
ORDERS = 2_000
FAULTS = {Kind.REFUND_MISSING: 3, Kind.DOUBLE_CAPTURE: 2}
QUEUES = 4
RUN_TIMEOUT_S = 600
AS_OF = "2100-01-01T00:00Z"  # everything was stored long ago, whenever this runs
FOUND = 1  # the exit code when reconciliation has found something


@pytest.fixture
async def queue(tmp_path: Path, spark: SparkSession) -> AsyncIterator[str]:
    """The name server's address of a queue that has told of orders, and of what is wrong with five of them."""
    async with Cluster(tmp_path / "queue", orders=False, flush="ASYNC_FLUSH") as cluster:
        (address,) = cluster.name_server_addresses
        async with Admin(cluster.url) as admin:
            for topic in TOPICS:
                await admin.update_topic(topic, read_queue_count=QUEUES, write_queue_count=QUEUES)
        made = generate(spark, Generation(orders=ORDERS, faults=FAULTS, read_twice_share=0.0)).bronze
        told = made.where(made.topic.isin(*TOPICS)).select("topic", "tag", "key", "body", "properties")
        told.write.format("mq").option("namesrvAddr", address).mode("append").save()
        yield address


@pytest.mark.mechanism("Y8")
async def test_a_cluster_of_two_workers_makes_the_same_tables_as_one_process(tmp_path: Path, queue: str) -> None:
    def arguments(warehouse: Path) -> list[str]:
        return ["run", "--namesrv-addr", queue, "--warehouse", str(warehouse), "--as-of", AS_OF]

    local, spread = tmp_path / "local", tmp_path / "spread"
    assert run_here([*arguments(local), "--master", "local[2]", "--memory", "1g"], tmp_path / "local.log") == FOUND
    with StandaloneCluster(tmp_path / "spark") as cluster:
        assert cluster.submit(PROGRAM, arguments(spread)) == FOUND, (tmp_path / "spark/submit.log").read_text()[-4_000:]
        for number in range(WORKERS):
            assert list(cluster.work_folder(number).glob("app-*")), f"worker {number} has done nothing"
    names = tables(local)
    assert names == tables(spread)
    assert {"bronze/events", "silver/orders", "silver/payments", "gold/funnel", "gold/reconciliation"} <= set(names)
    for name in names:
        one, other = parquet.read_table(local / name), parquet.read_table(spread / name)
        assert one.schema == other.schema, name
        assert rows(one) == rows(other), name
    assert parquet.read_table(spread / "silver/orders").num_rows == ORDERS
    found = Counter(parquet.read_table(spread / "gold/reconciliation")["kind"].to_pylist())
    assert found == {str(kind): count for kind, count in FAULTS.items()}


def run_here(arguments: list[str], log_path: Path) -> int:
    """`python -m analytics` in one process on this machine; its exit code."""
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log_path.open("ab") as log:
        return subprocess.run(
            [sys.executable, "-m", "analytics", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=RUN_TIMEOUT_S,
            check=False,
        ).returncode


def tables(warehouse: Path) -> list[str]:
    """Every table of the warehouse, by its place in it."""
    found = [warehouse / "bronze/events", *warehouse.glob("silver/*"), *warehouse.glob("gold/*")]
    return sorted(str(path.relative_to(warehouse)) for path in found if path.is_dir())


def rows(table: pa.Table) -> list[str]:
    """All rows, in an order that depends on nothing but them."""
    return sorted(str(row) for row in table.to_pylist())
