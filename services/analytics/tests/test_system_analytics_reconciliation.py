"""Reconciliation over 20,000 generated orders: every planted fault is found, and nothing else, at any moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from analytics.generator.generation import Generation

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(900)]

ORDERS = 20_000
MEMBERS = ("kind", "order_id", "payment_id")


def twenty_thousand(faults_of_each: int, **others: float) -> Generation:
    from analytics.generator.generation import Generation
    from analytics.generator.stories import FAULTS

    return replace(Generation(ORDERS, faults=dict.fromkeys(FAULTS, faults_of_each), brokers=2), **others)  # type: ignore[arg-type]


def silver(bronze: DataFrame) -> DataFrame:
    from analytics.events import events, read_bodies
    from analytics.jobs.silver import orders

    return orders(events(read_bodies(bronze)))


def difference(one: DataFrame, other: DataFrame) -> list[tuple[str, ...]]:
    """What only one of them has, with how often."""
    both = [one.select(*MEMBERS), other.select(*MEMBERS)]
    rows = both[0].exceptAll(both[1]).unionByName(both[1].exceptAll(both[0]))
    return [tuple(row) for row in rows.collect()]


@pytest.mark.mechanism("Y7")
@pytest.mark.parametrize("faults_of_each", [0, 1, 7, 1000])
def test_every_planted_fault_is_found_and_nothing_else(spark: SparkSession, faults_of_each: int) -> None:
    from analytics.generator.generate import generate
    from analytics.jobs.reconciliation import reconcile

    wanted = twenty_thousand(faults_of_each)
    made = generate(spark, wanted)
    findings = reconcile(silver(made.bronze), as_of=wanted.rest_at).cache()
    assert findings.count() == sum(wanted.faults.values()) == 19 * faults_of_each
    assert difference(findings, made.truth) == []
    findings.unpersist()


def test_late_and_repeated_messages_change_no_finding(spark: SparkSession) -> None:
    from analytics.generator.generate import generate
    from analytics.jobs.reconciliation import reconcile

    shares = {"late_share": 0.5, "repeated_share": 0.5, "read_twice_share": 0.3}
    made = generate(spark, twenty_thousand(7, seed=5, **shares))
    findings = reconcile(silver(made.bronze), as_of=twenty_thousand(7).rest_at)
    assert difference(findings, made.truth) == []


@pytest.mark.parametrize("hours", [3, 20.5, 47.9, 24 * 8, 24 * 14])
def test_a_shop_at_work_has_no_finding_at_any_moment(spark: SparkSession, hours: float) -> None:
    from analytics.generator.generate import generate
    from analytics.jobs.reconciliation import reconcile
    from analytics.jobs.reconciliation_kinds import Grace

    wanted = twenty_thousand(0, late_share=0.05)
    at = wanted.start + timedelta(hours=hours)
    late = timedelta(milliseconds=wanted.late_ms_max)
    grace = Grace(answer=late + timedelta(minutes=5), refund=late + timedelta(minutes=5), closing=late)
    bronze = generate(spark, replace(wanted, until=at)).bronze
    orders = silver(bronze).cache()
    assert not orders.isEmpty()
    assert reconcile(orders, as_of=at, grace=grace).collect() == []
    orders.unpersist()


@pytest.mark.parametrize("hours", [30, 24 * 5])
def test_a_queue_whose_first_days_are_gone_leaves_only_what_can_be_decided(spark: SparkSession, hours: float) -> None:
    from pyspark.sql import functions as F

    from analytics.generator.generate import generate
    from analytics.jobs.reconciliation import reconcile

    wanted = twenty_thousand(20, late_share=0.0)
    since = wanted.start + timedelta(hours=hours)
    made = generate(spark, wanted)
    findings = reconcile(
        silver(made.bronze.where(F.col("storeTimestamp") >= since)), as_of=wanted.rest_at, since=since
    ).cache()
    assert findings.select(*MEMBERS).exceptAll(made.truth.select(*MEMBERS)).collect() == []
    assert 0 < findings.count() < made.truth.count()
    findings.unpersist()


def test_the_same_seed_makes_the_same_rows_in_any_number_of_partitions(spark: SparkSession, tmp_path: Path) -> None:
    from analytics.generator.generate import generate
    from analytics.generator.generation import Generation

    wanted = Generation(2_000, brokers=2)
    whole = [generate(spark, wanted, partitions).bronze.drop("properties") for partitions in (1, 5)]
    whole[0].write.parquet(str(tmp_path / "bronze"))
    rows = spark.read.parquet(str(tmp_path / "bronze"))
    assert rows.exceptAll(whole[1]).isEmpty()
    assert whole[1].exceptAll(rows).isEmpty()
    other = generate(spark, replace(wanted, seed=2)).bronze.select("msgId").distinct()
    assert other.join(rows, "msgId").isEmpty()
