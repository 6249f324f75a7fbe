"""The broker dies, or its disk rejects, while messages are carried over: each is delivered exactly once."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mq_broker.core.limits import RetentionOptions
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    STORE_ROOT,
    clean,
    fill,
    flush_and_deliver,
    half,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

FILE_BYTES = 4_096
STARTS_AFTER_S = 3  # from the death to the next start
DUE_S = {14: 600, 16: 1_800}
LEVELS = (5, 9, 14, 16, 18)
LAYOUT = StoreLayout(STORE_ROOT)
WANTED = [b"%s %d" % (word, level) for level in DUE_S for word in (b"first", b"second", b"third")]

Accident = Callable[[SimDisk], None]
ACCIDENTS: dict[str, Accident] = {
    "kill": SimDisk.kill,
    "power cut that takes all": lambda disk: disk.crash(_Nothing(0)),
    "power cut": lambda disk: disk.crash(SeededRng(1)),
    "another power cut": lambda disk: disk.crash(SeededRng(2)),
}


class _Nothing(SeededRng):
    """Nothing that was not synced survives."""

    def randrange(self, start: int, stop: int) -> int:  # type: ignore[override]
        return start


@asynccontextmanager
async def quiet_broker(disk: SimDisk, clock: SimClock, *, clean_stop: bool = False) -> AsyncIterator[Broker]:
    """A broker that flushes and delivers, and cleans only when the test says so."""
    store = store_options(log_file_bytes=FILE_BYTES)
    async with running_broker(disk, clock, store=store, clean_stop=clean_stop, work=flush_and_deliver) as broker:
        await settle()
        yield broker


async def prepare(broker: Broker, clock: SimClock) -> None:
    """Six delayed messages and an open half, with more than a file behind them."""
    for word in (b"first", b"second", b"third"):
        await clock.advance(0.001)
        for level in DUE_S:
            record = incoming("t", [b"%s %d" % (word, level)], delay_level=level)
            assert (await produce(broker, record))[0].code is ResponseCode.SUCCESS
    await produce(broker, half("order", b"order", "tx"))
    await broker.store.persist("topics.json")
    await fill(broker, 12, "other")


async def assert_exactly_once(disk: SimDisk, clock: SimClock, began: float) -> None:
    """What comes after the accident: nothing early, nothing twice, nothing missing, nothing late by more than it took.

    `clock` is that of the life before; the next one begins three seconds later.
    """
    lived_s = clock.monotonic() - began
    clock = SimClock(clock.wall_ms() + 1_000 * STARTS_AFTER_S)
    async with quiet_broker(disk, clock) as broker:
        assert [one.transaction_id for one in broker.transaction_table.all_open()] == ["tx"]
        due: list[bytes] = []
        for level, due_s in DUE_S.items():
            rest_s = due_s - lived_s - STARTS_AFTER_S - clock.monotonic()
            await clock.advance(rest_s - 0.001)
            assert await bodies(broker) == due
            due += [body for body in WANTED if body.endswith(b" %d" % level)]
            await clock.advance(0.005)
            assert await bodies(broker) == due
        ended = await broker.transactions.end("shop", "tx", TransactionState.COMMIT_MESSAGE, from_check=False)
        assert ended.outcome is TransactionState.COMMIT_MESSAGE
        await clock.advance(3_600)
        assert (await bodies(broker), await bodies(broker, "order")) == (WANTED, [b"order"])


async def bodies(broker: Broker, topic: str = "t") -> list[bytes]:
    return [record.body for record in await read_all(broker, topic)]


async def lives(*, rounds: int) -> tuple[list[tuple[SimDisk, SimClock]], float]:
    """Disk and clock at each call that changes something while files are deleted, and when the messages were sent."""
    disk, clock, moments = SimDisk(), SimClock(), list[tuple[SimDisk, SimClock]]()

    def keep(call: str, path: Path) -> None:
        if call in {"pwrite", "sync_data", "sync_dir", "truncate", "replace", "unlink"}:
            stopped = SimClock(clock.wall_ms())
            stopped._now_ns, stopped._wall_offset_ms = clock._now_ns, clock._wall_offset_ms
            moments.append((disk.fork(), stopped))

    async with quiet_broker(disk, clock) as broker:
        began = clock.monotonic()
        await prepare(broker, clock)
        for number in range(rounds):
            if number == rounds - 1:
                disk.before = disk.after = keep
            await clean(broker, clock, disk)
            await fill(broker, 8, "other")
        await broker.store.checkpoint()
        disk.before = disk.after = lambda call, path: None
        assert broker.retention.carried == 7 * rounds
    return moments, began


@pytest.mark.parametrize("rounds", [1, 2], ids=["carried once", "carried twice"])
@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_death_at_any_call_of_a_round_delivers_exactly_once(accident: str, rounds: int) -> None:
    moments, began = await lives(rounds=rounds)
    assert len(moments) > 40
    for disk, clock in moments[list(ACCIDENTS).index(accident) :: 2 * len(ACCIDENTS)]:
        ACCIDENTS[accident](disk)
        await assert_exactly_once(disk, clock, began)


@pytest.mark.parametrize("accident", ["clean stop", *ACCIDENTS])
async def test_death_between_deletion_and_delivery_delivers_exactly_once(accident: str) -> None:
    disk, clock = SimDisk(), SimClock()
    async with quiet_broker(disk, clock, clean_stop=accident == "clean stop") as broker:
        await prepare(broker, clock)
        await clean(broker, clock, disk)
        assert broker.store.log_begin > 0
        await clock.advance(300)
    if accident != "clean stop":
        ACCIDENTS[accident](disk)
    await assert_exactly_once(disk, clock, 0.0)


@pytest.mark.parametrize("accident", ["clean stop", *ACCIDENTS])
async def test_death_between_carrying_and_deletion_delivers_exactly_once(accident: str) -> None:
    disk, clock = SimDisk(), SimClock()
    async with quiet_broker(disk, clock, clean_stop=accident == "clean stop") as broker:
        await prepare(broker, clock)
        await broker.delay.carry_over(FILE_BYTES)
        await broker.transactions.copies.carry_over(FILE_BYTES)
        if accident != "clean stop":
            ACCIDENTS[accident](disk)
    await assert_exactly_once(disk, clock, 0.0)


@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_death_at_any_call_of_a_delivery_delivers_exactly_once(accident: str) -> None:
    disk, clock, forks = SimDisk(), SimClock(), list[SimDisk]()

    def keep(call: str, path: Path) -> None:
        if call in {"pwrite", "sync_data", "sync_dir"}:
            forks.append(disk.fork())

    async with quiet_broker(disk, clock) as broker:
        await prepare(broker, clock)
        await clean(broker, clock, disk)
        await clock.advance(599)
        disk.before = disk.after = keep
        await clock.advance(2)
        await broker.store.checkpoint()
        disk.before = disk.after = lambda call, path: None
        assert len(await bodies(broker)) == 3
    assert len(forks) > 10
    for fork in forks:
        ACCIDENTS[accident](fork)
        later = SimClock(clock.wall_ms() + 1_000)
        async with quiet_broker(fork, later) as broker:
            await later.advance(10)
            assert await bodies(broker) == WANTED[:3]
            await later.advance(1_800)
            assert await bodies(broker) == WANTED


class TestRejectingDisk:
    def reject(self, disk: SimDisk) -> None:
        """Full: the log takes nothing more, and nothing else either."""

        def fail(call: str, path: Path) -> None:
            if call in {"pwrite", "allocate"}:
                raise OSError(errno.ENOSPC, "No space left on device")

        disk.before = fail

    async def test_when_carrying_fails_nothing_goes_and_writes_are_rejected_until_it_works(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, incoming("t", [b"late"], delay_level=16), half("t", b"order", "tx"))
            await fill(broker, 20, "other")
            self.reject(disk)
            for _ in range(2):
                await clean(broker, clock, disk)
                assert disk.exists(LAYOUT.commit_log / ("0" * 20))
            disk.before = lambda call, path: None
            (outcome,) = await produce(broker, incoming("other", [b"x"]))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            assert "the oldest file of the log has to go, but what waits in it cannot be kept" in outcome.remark
            assert "No space left on device" in outcome.remark
            assert len(await bodies(broker, "other")) == 20
            await clean(broker, clock, disk)
            assert not disk.exists(LAYOUT.commit_log / ("0" * 20))
            (outcome,) = await produce(broker, incoming("other", [b"x"]))
            assert outcome.code is ResponseCode.SUCCESS
            await broker.transactions.end("shop", "tx", TransactionState.COMMIT_MESSAGE, from_check=False)
            await clock.advance(1_800)
            assert await bodies(broker) == [b"order", b"late"]

    async def test_carrying_that_fails_half_way_delivers_nothing_twice(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            for level in LEVELS:
                for number in range(8):
                    await produce(broker, incoming("t", [b"%d of %d" % (number, level)], delay_level=level))
            end, writes = broker.store.log_end, 0

            def fail(call: str, path: Path) -> None:
                nonlocal writes
                if call == "pwrite" and path.parent == LAYOUT.commit_log:
                    writes += 1
                    if writes % 3 == 2:
                        raise OSError(errno.ENOSPC, "No space left on device")

            disk.before = fail
            broker.store.gate.options = RetentionOptions(reserved_hours=0, delete_hours=frozenset(range(24)))
            for _ in range(20):
                if broker.store.log_begin < end:
                    await clean(broker, clock, disk, 0.0)
            disk.before = lambda call, path: None
            assert broker.store.log_begin >= end
            assert writes > 10
            await clean(broker, clock, disk, 0.5)  # deliveries are writes, too
            await clock.advance(7_200)
            assert await bodies(broker) == [b"%d of %d" % (number, level) for level in LEVELS for number in range(8)]

    async def test_writes_for_the_disk_s_sake_are_taken_when_others_are_rejected(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await produce(broker, incoming("t", [b"late"], delay_level=16), half("t", b"order", "tx"))
            await fill(broker, 8, "other")
            await clean(broker, clock, disk, 0.99)
            assert broker.store.log_begin > 0
            (outcome,) = await produce(broker, incoming("other", [b"x"]))
            assert outcome.code is ResponseCode.SYSTEM_ERROR
            assert "99% full" in outcome.remark
