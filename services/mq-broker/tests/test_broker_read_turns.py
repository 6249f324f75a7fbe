"""What clients have read from the disk holds up neither syncs nor the reads of other clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from mq_broker.core.limits import (
    COLD_READS_AT_ONCE_MAX,
    EXPRESSION_CHARACTERS_MAX,
    KEPT_EXPRESSION_CHARACTERS_MAX,
    SEARCH_STEP_ENTRIES_MAX,
    RejectedError,
)
from mq_broker.core.pulling import MessageFilters, PullQuery
from mq_broker.processor import querying, recalling
from mq_broker.processor.broker import Broker
from mq_broker.processor.recalling import NewTime
from mq_broker.store.log_scan import ColdReads
from mq_broker.testing import (
    delivering_broker,
    in_ten_seconds,
    incoming,
    keyed,
    outcomes,
    produce,
    running_broker,
    store_options,
)
from mq_broker.testing_closely import ThreadedDisk
from mqproto.codes import ExpressionType, RecallOutcome, ResponseCode
from osenv import Lane, RealDisk, SimClock, SimDisk
from osenv.sim_clock import settle

WITHIN_S = 20.0  # what is waited for comes at once, or never
T = TypeVar("T")


class GatedReads(SimDisk):
    """A disk whose reads for clients wait for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.reads = asyncio.Event(), 0
        self.gate.set()

    async def offload_in(self, lane: Lane, call: Callable[[], T]) -> T:
        if lane is Lane.READ:
            self.reads += 1
            await self.gate.wait()
        return await super().offload_in(lane, call)


async def test_syncs_and_checkpoints_wait_for_no_reads(tmp_path: Path) -> None:
    disk, go_on = RealDisk(), threading.Event()
    async with running_broker(disk, SimClock(), store=store_options(root=tmp_path)) as broker:
        reads = [asyncio.create_task(broker.store.cold_reads.read(go_on.wait)) for _ in range(20)]
        try:
            await asyncio.sleep(0)
            stored = await asyncio.wait_for(produce(broker, incoming("t", [b"x"])), WITHIN_S)
            assert stored[0].code is ResponseCode.SUCCESS
            await asyncio.wait_for(broker.store.checkpoint(), WITHIN_S)
            assert broker.store.checkpointed_end == broker.store.log_end
        finally:
            go_on.set()
            await asyncio.gather(*reads)
    disk.close()


async def test_syncs_wait_for_no_checkpoint(tmp_path: Path) -> None:
    disk, go_on = RealDisk(), threading.Event()
    async with running_broker(disk, SimClock(), store=store_options(root=tmp_path)) as broker:
        work = [asyncio.create_task(disk.offload(go_on.wait)) for _ in range(20)]
        try:
            await asyncio.sleep(0)
            stored = await asyncio.wait_for(produce(broker, incoming("t", [b"x"])), WITHIN_S)
            assert stored[0].code is ResponseCode.SUCCESS
        finally:
            go_on.set()
            await asyncio.gather(*work)
    disk.close()


async def test_clients_take_turns_at_the_disk() -> None:
    disk, done = ThreadedDisk(), list[str]()
    reads = ColdReads(disk)

    async def read(client: str) -> None:
        await reads.read(lambda: done.append(client), client)

    many = [asyncio.create_task(read("many")) for _ in range(50)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(read(client)) for client in ("one", "two", "one")]
    await asyncio.gather(*many, *few)
    assert done.index("one") <= COLD_READS_AT_ONCE_MAX + 2
    assert done.index("two") <= COLD_READS_AT_ONCE_MAX + 2
    assert reads.running == 0


async def test_a_read_that_is_given_up_gives_its_turn_away() -> None:
    disk = GatedReads()
    reads = ColdReads(disk)
    disk.gate.clear()
    begun = [asyncio.create_task(reads.read(lambda: None, "a")) for _ in range(COLD_READS_AT_ONCE_MAX + 5)]
    await settle()
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    disk.gate.set()
    assert await reads.read(lambda: 7, "b") == 7
    assert reads.running == 0


async def many_of_one_key(broker: Broker, count: int) -> None:
    for number in range(count):
        await produce(broker, keyed("t", unique_id=f"m{number}"))
    await settle()


async def test_a_search_by_key_goes_in_steps_between_which_others_read() -> None:
    disk, ended = ThreadedDisk(), list[str]()
    async with running_broker(disk, SimClock()) as broker:
        await many_of_one_key(broker, count := 2 * SEARCH_STEP_ENTRIES_MAX + 1)

        async def search() -> None:
            found = await broker.querying.by_key("t", "k", max_messages=2_000, begin_ms=0, end_ms=0, client="a")
            assert len(found.records) == count
            ended.append("search")

        async def read() -> None:
            await broker.store.cold_reads.read(lambda: None, "b")
            ended.append("read")

        searches = [asyncio.create_task(search()) for _ in range(2 * COLD_READS_AT_ONCE_MAX)]
        await asyncio.sleep(0)
        await asyncio.gather(read(), *searches)
        assert ended[0] == "read"


async def test_a_query_by_key_says_when_it_has_not_visited_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await many_of_one_key(broker, 30)
        monkeypatch.setattr(querying, "SEARCH_ENTRIES_MAX", 20)
        found = await broker.querying.by_key("t", "k", max_messages=0, begin_ms=0, end_ms=0)
        assert found.truncated
        assert 0 < len(found.records) <= 20  # an entry of another key may stand between


async def test_recalls_of_different_keys_do_not_wait_for_each_other() -> None:
    disk = GatedReads()
    async with delivering_broker(disk, SimClock(1_700_000_000_000)) as broker:
        await produce(broker, in_ten_seconds("timer"))
        disk.gate.clear()
        first = asyncio.create_task(broker.recalling.recall("t", "k"))
        await settle()
        before = disk.reads
        second = asyncio.create_task(broker.recalling.recall("t", "m"))
        await settle()
        assert disk.reads > before
        disk.gate.set()
        assert [outcomes(one) for one in await asyncio.gather(first, second)] == [{"m": RecallOutcome.REMOVED}] * 2


async def test_a_recall_of_a_key_that_too_many_messages_have_had_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recalling, "RECALL_ENTRIES_MAX", 5)
    async with delivering_broker(SimDisk(), SimClock(1_700_000_000_000)) as broker:
        for number in range(6):
            await produce(broker, in_ten_seconds("timer", f"m{number}"))
        with pytest.raises(RejectedError, match="more than 5 messages have had the key"):
            await broker.recalling.recall("t", "k", NewTime(delay_ms=1))
        assert outcomes(await broker.recalling.recall("t", "m3")) == {"m3": RecallOutcome.REMOVED}


async def test_an_expression_that_is_too_long_is_rejected_with_the_limit() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, incoming("t", [b"x"]))
        for expression_type in ("", ExpressionType.TAG):
            expression = "x" * (EXPRESSION_CHARACTERS_MAX + 1)
            query = PullQuery("g", "t", 0, 0, 1, 100, expression, expression_type)
            answer = broker.pulling.pull_hot(query)
            assert answer is not None
            assert answer.code is ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "16,385 characters; at most 16,384 are allowed" in answer.remark


def test_kept_filters_are_bounded_by_their_length_and_the_least_recent_go() -> None:
    filters = MessageFilters(property_filter_enabled=True)
    kept = filters.parse("SQL92", "a = 1")
    for number in range(2 * KEPT_EXPRESSION_CHARACTERS_MAX // EXPRESSION_CHARACTERS_MAX):
        filters.parse("", f"{number}".ljust(EXPRESSION_CHARACTERS_MAX, "x"))
        assert filters.parse("SQL92", "a = 1") is kept
    assert filters.kept_characters <= KEPT_EXPRESSION_CHARACTERS_MAX
