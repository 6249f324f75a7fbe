"""Stores that earlier commits have written open, and nothing is missing (tests/fixtures/stores/README.md)."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.members import LockedQueue
from mq_broker.core.transactions import Phase, TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import STORE_VERSION, decode_version
from mq_broker.testing import (
    STORE_ROOT,
    RecordingSession,
    client,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mq_broker.tools.findings import Finding
from mq_broker.tools.state_check import read_small_state
from mq_broker.tools.verify import verify
from osenv import SimClock, SimDisk
from osenv.disk import read_file

STORES = Path(__file__).parents[3] / "tests/fixtures/stores"
ARCHIVES = sorted(STORES.glob("*/*.tar.xz"))
LAYOUT = store_options().layout
GROUP, MEMBER, LOCKED = "readers", "reader-1", LockedQueue("orders", 1)

each_store = pytest.mark.parametrize(
    "archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}"
)


def unpacked(archive: Path) -> SimDisk:
    disk = SimDisk()
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member)
            assert content is not None
            path = STORE_ROOT / member.name
            disk.make_dirs(path.parent)
            disk.open(path, create=True).pwrite(content.read(), 0)
    return disk


def expected(archive: Path) -> Any:
    return json.loads(archive.with_name("expected.json").read_text(encoding="utf-8"))


@asynccontextmanager
async def opened(archive: Path, disk: SimDisk | None = None) -> AsyncIterator[tuple[Broker, SimClock, Any]]:
    """Today's broker on the store, at the moment when it was written."""
    told = expected(archive)
    clock = SimClock(told["wallMs"])
    async with running_broker(disk or unpacked(archive), clock) as broker:
        yield broker, clock, told


async def bodies(broker: Broker, queue_id: int) -> list[bytes]:
    return [record.body for record in await read_all(broker, "orders", queue_id)]


def test_there_are_stores_of_both_kinds() -> None:
    assert {archive.name for archive in ARCHIVES} == {"clean.tar.xz", "killed.tar.xz"}


@each_store
async def test_every_message_is_there_and_numbers_go_on(archive: Path) -> None:
    async with opened(archive) as (broker, _, told):
        for name, messages in told["messages"].items():
            topic, queue_id = name.split(":")
            found = await read_all(broker, topic, int(queue_id))
            assert [[record.queue_offset, zlib.crc32(record.body)] for record in found] == messages
            if not topic.startswith("%"):
                (outcome,) = await produce(broker, incoming(topic, [b"next"], queue_id=int(queue_id)))
                assert outcome.base_queue_offset == messages[-1][0] + 1


@each_store
async def test_what_waits_comes_once_and_at_its_time(archive: Path) -> None:
    async with opened(archive) as (broker, clock, told):
        there = await bodies(broker, 1)
        for body, due_ms in sorted(told["waiting"].items(), key=lambda item: item[1]):
            await clock.advance((due_ms - 1 - clock.wall_ms()) / 1_000)
            assert body.encode() not in await bodies(broker, 1)
            await clock.advance(0.001)
            assert body.encode() in await bodies(broker, 1)
        await clock.advance(8_000)
        assert sorted((await bodies(broker, 1))[len(there) :]) == sorted(body.encode() for body in told["waiting"])


@each_store
async def test_progress_and_locks_are_those_of_before(archive: Path) -> None:
    async with opened(archive) as (broker, _, told):
        said = told["progress"]
        ranges = tuple((begin, end) for begin, end in said["ranges"])
        assert broker.offsets.query(GROUP, "orders", 0) == Progress(said["offset"], ranges, said["version"])
        for member in (MEMBER, "reader-2"):
            broker.sessions.heartbeat(RecordingSession(), client(member, GROUP, topics={"orders": "*"}))
        assert await broker.queue_locking.lock(GROUP, "reader-2", [LOCKED]) == []
        assert await broker.queue_locking.lock(GROUP, MEMBER, [LOCKED]) == [LOCKED]


@each_store
async def test_the_open_transaction_can_be_committed_and_the_parked_one_decided(archive: Path) -> None:
    async with opened(archive) as (broker, _, _):
        assert broker.transaction_table.phase("tx-open") is Phase.PREPARED
        await broker.transactions.end("shop", "tx-open", TransactionState.COMMIT_MESSAGE, from_check=False)
        found, record, remark = await broker.transaction_administration.get("tx-parked")
        assert (found.phase, remark, b"parked" in record) == (Phase.PARKED, "", True)
        await broker.transaction_administration.decide("tx-parked", TransactionState.COMMIT_MESSAGE)
        assert (await bodies(broker, 0))[-2:] == [b"open", b"parked"]


@each_store
async def test_the_deleted_topic_stays_deleted_and_goes_on_counting(archive: Path) -> None:
    async with opened(archive) as (broker, _, _):
        assert broker.topics.get("gone") is None
        (outcome,) = await produce(broker, incoming("gone", [b"again"]))
        assert outcome.base_queue_offset == 3
        assert [record.body for record in await read_all(broker, "gone")] == [b"again"]


@each_store
async def test_it_is_a_whole_store_of_today_afterwards(archive: Path) -> None:
    disk, found = unpacked(archive), list[Finding]()
    async with opened(archive, disk):
        pass
    assert decode_version(read_file(disk, LAYOUT.version)) == STORE_VERSION
    verdict = verify(disk, LAYOUT, read_small_state(disk, LAYOUT), found.append, index_slots=LAYOUT.index_size.slots)
    assert verdict.differences == 0, found
