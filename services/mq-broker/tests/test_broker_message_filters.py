"""Pulls that choose by properties (mechanism F2): what they bring, how far they look, and what is rejected (F3 too)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mq_broker.core.limits import RetentionOptions
from mq_broker.core.pulling import (
    EVERYTHING,
    PULL_BYTES_MAX,
    SCAN_RECORDS_MAX,
    MessageFilters,
    PullQuery,
    PullResult,
    fulfils,
    parse_tag_expression,
)
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    STORE_ROOT,
    RecordingSession,
    broker_options,
    client,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqfilter import parse
from mqproto.codes import ExpressionType, PullStatus, ResponseCode
from mqproto.properties import encode_properties
from mqproto.record import BODY_AT, encode_record, iter_records, pack_ip
from osenv import SimClock, SimDisk

TOPIC = "orders"
LOG_FILE_BYTES = 2 * PULL_BYTES_MAX
ON = replace(broker_options(), property_filter_enabled=True)


def order(amount: int | str, *, body_bytes: int = 10) -> bytes:
    properties = {"TAGS": "created", "amount": str(amount), "region": "east" if str(amount)[-1] in "02468" else "west"}
    return encode_record(
        topic=TOPIC.encode(), body=bytes(body_bytes), properties=encode_properties(properties), queue_id=0,
        born_timestamp_ms=0, born_ip=pack_ip("127.0.0.1"),
    )  # fmt: skip


async def store(broker: Broker, *records: bytes) -> None:
    (outcome,) = await produce(broker, IncomingBatch(TOPIC, 0, len(records), b"".join(records)))
    assert outcome.code is ResponseCode.SUCCESS


def query(expression: str, offset: int = 0, *, messages: int = 32, size: int = PULL_BYTES_MAX) -> PullQuery:
    return PullQuery("readers", TOPIC, 0, offset, messages, size, expression, ExpressionType.SQL92)


def offsets(result: PullResult) -> list[int]:
    return [record.queue_offset for record in iter_records(result.records)]


@asynccontextmanager
async def broker_with(
    *records: bytes,
    cold: bool = False,
    disk: SimDisk | None = None,
) -> AsyncIterator[Broker]:
    """A broker that filters by properties and has these records: just written, or on disk only."""
    disk, clock, options = disk or SimDisk(), SimClock(), store_options(log_file_bytes=LOG_FILE_BYTES)
    async with running_broker(disk, clock, options=ON, store=options) as broker:
        await store(broker, *records)
        if not cold:
            yield broker
    if cold:
        async with running_broker(disk, clock, options=ON, store=options) as broker:
            yield broker


async def pull(broker: Broker, asked: PullQuery, *, cold: bool) -> PullResult:
    hot = broker.pulling.pull_hot(asked)
    assert (hot is None) is cold
    return await broker.pulling.pull(asked) if hot is None else hot


@pytest.mark.mechanism("F2")
@pytest.mark.parametrize("cold", [False, True])
async def test_exactly_the_messages_that_fulfil_the_condition_are_brought(cold: bool) -> None:
    async with broker_with(*map(order, range(10)), cold=cold) as broker:
        found = await pull(broker, query("amount > 3 AND region = 'east'"), cold=cold)
        assert (found.status, offsets(found), found.next_begin_offset) == (PullStatus.FOUND, [4, 6, 8], 10)
        assert found.count == 3
        assert broker.pulling.messages_got == 3
        none = await pull(broker, query("amount > 100"), cold=cold)
        assert (none.status, none.records, none.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, b"", 10)


@pytest.mark.parametrize("cold", [False, True])
async def test_what_does_not_fit_the_answer_comes_with_the_next_pull(cold: bool) -> None:
    async with broker_with(*map(order, range(10)), cold=cold) as broker:
        for limits in ({"messages": 2}, {"size": 2 * len(order(0))}):
            first = await pull(broker, query("region = 'east'", **limits), cold=cold)
            assert (offsets(first), first.next_begin_offset) == ([0, 2], 4)
            second = await pull(broker, query("region = 'east'", 4, **limits), cold=cold)
            assert (offsets(second), second.next_begin_offset) == ([4, 6], 8)
            third = await pull(broker, query("region = 'east'", 8, **limits), cold=cold)
            assert (offsets(third), third.next_begin_offset) == ([8], 10)
        assert offsets(await pull(broker, query("amount = 3", size=1), cold=cold)) == [3]


async def test_one_pull_looks_at_so_many_records_and_no_more() -> None:
    async with broker_with(*[order(1)] * SCAN_RECORDS_MAX, order(2)) as broker:
        for messages in (1, 31, 32, 1_000):
            first = await pull(broker, query("amount = 2", messages=messages), cold=False)
            assert (first.status, first.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, SCAN_RECORDS_MAX)
        assert offsets(await pull(broker, query("amount = 2", SCAN_RECORDS_MAX), cold=False)) == [SCAN_RECORDS_MAX]


async def test_one_pull_reads_so_many_bytes_and_no_more() -> None:
    async with broker_with(*[order(1, body_bytes=PULL_BYTES_MAX // 3)] * 3, order(2)) as broker:
        first = await pull(broker, query("amount = 2"), cold=False)
        assert (first.status, first.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 3)


async def test_a_lost_message_in_between_shifts_nothing() -> None:
    disk = SimDisk()
    async with broker_with(*map(order, range(6)), cold=True, disk=disk) as broker:
        disk.open(StoreLayout(STORE_ROOT).commit_log / ("0" * 20)).pwrite(b"damaged", len(order(0)) + BODY_AT)
        found = await pull(broker, query("region = 'east'", messages=2), cold=True)
        assert (offsets(found), found.next_begin_offset) == ([0, 2], 4)
        rest = await pull(broker, query("region = 'west'"), cold=True)
        assert (offsets(rest), rest.next_begin_offset) == ([3, 5], 6)


async def test_what_is_not_readable_yet_is_not_looked_at() -> None:
    async with broker_with(*map(order, range(4))) as broker:
        broker.store.reader.readable_end = lambda: 2 * len(order(0))
        found = await pull(broker, query("region = 'east'"), cold=False)
        assert (offsets(found), found.next_begin_offset) == ([0], 2)
        nothing = await pull(broker, query("region = 'east'", 2), cold=False)
        assert (nothing.status, nothing.next_begin_offset) == (PullStatus.NO_NEW_MSG, 2)


async def test_a_held_poll_is_woken_by_each_new_message_and_looks_at_that_one_only() -> None:
    answers: asyncio.Queue[PullResult] = asyncio.Queue()
    async with broker_with(*map(order, range(3))) as broker:
        broker.long_polling.poll(query("amount = 7", 3), 15_000, answers.put_nowait)
        assert broker.long_polling.held == 1
        await store(broker, order(6))
        passed = await answers.get()
        assert (passed.status, passed.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 4)
        broker.long_polling.poll(query("amount = 7", 4), 15_000, answers.put_nowait)
        await store(broker, order(7))
        found = await answers.get()
        assert (found.status, offsets(found), found.next_begin_offset) == (PullStatus.FOUND, [4], 5)


async def test_a_condition_that_cannot_be_parsed_is_rejected_with_the_place() -> None:
    async with broker_with(order(1)) as broker:
        rejected = await pull(broker, query("amount > 5 AND region >"), cold=False)
        assert rejected.code is ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert rejected.remark == (
            "the SQL92 expression is wrong at character 24: expected a value after '>', found the end"
        )
        joining = client("a", "readers", topics={TOPIC: "*"})
        (consumer,) = joining.consumers
        (subscription,) = consumer.subscriptions
        wrong = replace(subscription, expression="amount >", expression_type="SQL92")
        said = replace(joining, consumers=(replace(consumer, subscriptions=(wrong,)),))
        code, remark = broker.sessions.heartbeat(RecordingSession(), said)
        assert code is ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "wrong at character 9: expected a value after '>', found the end" in remark


@pytest.mark.mechanism("F2")
async def test_sql92_is_rejected_where_it_is_not_enabled_and_tags_are_not() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await store(broker, order(1))
        rejected = await pull(broker, query("amount = 1"), cold=False)
        assert rejected.code is ResponseCode.SYSTEM_ERROR
        assert "set enablePropertyFilter=true in its configuration and restart it" in rejected.remark
        assert len(await read_all(broker, TOPIC, expression="created")) == 1
        broker.reconfigure(ON, RetentionOptions())  # takes a restart
        assert (await pull(broker, query("amount = 1"), cold=False)).code is ResponseCode.SYSTEM_ERROR
        assert not broker.options.property_filter_enabled


@pytest.mark.mechanism("F3")
@pytest.mark.parametrize("expression_type", ["CLASS", "classFilterMode", "sql92", "org.example.MyFilter"])
async def test_there_are_no_class_filters_and_no_other_types(expression_type: str) -> None:
    async with broker_with(order(1)) as broker:
        asked = replace(query("amount = 1"), expression_type=expression_type)
        rejected = await pull(broker, asked, cold=False)
        assert rejected.code is ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert rejected.remark == f"expression type {expression_type!r}; allowed are TAG and SQL92"


@pytest.mark.mechanism("F1")
def test_an_expression_without_a_type_is_one_of_tags() -> None:
    filters = MessageFilters(property_filter_enabled=True)
    for expression_type in ("", "TAG"):
        wanted = filters.parse(expression_type, "a || b")
        assert (wanted.tags, wanted.condition) == (parse_tag_expression("a || b"), None)
    assert filters.parse("SQL92", "a = 1") is filters.parse("SQL92", "a = 1")  # parsed once
    assert filters.parse("SQL92", "a = 1").tags is EVERYTHING


def test_properties_that_cannot_be_read_are_the_consumers_to_judge() -> None:
    condition = parse("a = 1 AND b = 2")
    assert fulfils(condition, b"a\x011\x02b\x012\x02")
    assert not fulfils(condition, b"a\x011\x02b\x013\x02")
    assert not fulfils(condition, b"a\x011\x02")  # b is missing: unknown
    assert fulfils(condition, b"a\x011\x02b\x01\xff\x02")
    assert not fulfils(condition, b"a\x012\x02b\x01\xff\x02")  # b does not matter
