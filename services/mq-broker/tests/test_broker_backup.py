"""A copy of a running broker's store: one moment, all of it, and a broker that opens it goes on from there."""

from __future__ import annotations

import asyncio
import errno
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from mq_broker.core.consumer_offsets import Progress, version_of
from mq_broker.core.limits import RejectedError
from mq_broker.core.members import LockedQueue
from mq_broker.core.transactions import Phase
from mq_broker.processor.backup import BackupEnd, BackupFile, BackupPart
from mq_broker.processor.broker import Broker
from mq_broker.store.errors import StoreFencedError
from mq_broker.testing import (
    COMMIT,
    ENTRIES,
    IN_FILE,
    RecordingSession,
    clean,
    client,
    copied,
    end,
    fill,
    half,
    incoming,
    numbers,
    options,
    produce,
    quiet_broker,
    read_all,
    restored,
    running_broker,
    store_options,
    timed,
    visible,
)
from mq_broker.tools.findings import Finding
from mq_broker.tools.state_check import read_small_state
from mq_broker.tools.verify import verify
from osenv import SimClock, SimDisk, SyncError

OPTIONS = options()  # small files
LAYOUT = OPTIONS.layout
Q0 = LockedQueue("t", 0)


@asynccontextmanager
async def small_broker(disk: SimDisk, clock: SimClock) -> AsyncIterator[Broker]:
    """A broker with small files that does everything by itself."""
    async with running_broker(disk, clock, store=OPTIONS) as broker:
        yield broker


def differences(disk: SimDisk) -> list[str]:
    found = list[Finding]()
    verify(disk, LAYOUT, read_small_state(disk, LAYOUT), found.append, index_slots=LAYOUT.index_size.slots)
    return [str(one) for one in found if one.kind == "difference"]


class TestWhatIsSent:
    async def test_the_end_says_what_it_was(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await fill(broker, 3 * IN_FILE)
            *parts, end = await copied(broker)
            files = [part for part in parts if isinstance(part, BackupFile)]
            content = b"".join(part for part in parts if isinstance(part, bytes))
            assert end == BackupEnd(
                "broker-a", broker.time.now_ms(), 0, broker.store.log_end, len(files), len(content), zlib.crc32(content)
            )
            assert sum(file.size for file in files) == len(content)

    async def test_consume_queues_index_timer_and_checkpoint_stay_behind(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await fill(broker, 3 * IN_FILE)
            await produce(broker, timed("t", b"w", delay_ms=60_000))
            await clock.advance(11)
            files = [part for part in await copied(broker) if isinstance(part, BackupFile)]
        names = [file.path for file in files if not file.path.startswith("config/")]
        assert names == ["version", "abort", "watermark", *(f"commitlog/{n * 4_096:020d}" for n in range(4))]
        assert [file.full_size for file in files if file.path.startswith("commitlog/")] == [4_096] * 4
        assert not [file.path for file in files if "journal" in file.path or file.path.endswith((".bak", ".tmp"))]

    async def test_parts_are_a_mebibyte_at_most(self) -> None:
        large = store_options(log_file_bytes=8 << 20)
        async with running_broker(SimDisk(), SimClock(), store=large) as broker:
            for _ in range(5):
                await produce(broker, incoming("t", [bytes(700_000)]))
            sizes = [len(part) for part in await copied(broker) if isinstance(part, bytes)]
            assert max(sizes) == 1 << 20
            assert sum(size == 1 << 20 for size in sizes) == broker.store.log_end >> 20

    async def test_one_at_a_time(self) -> None:
        async with small_broker(SimDisk(), SimClock()) as broker:
            async with aclosing(broker.backup.parts()) as parts:
                await anext(parts)
                with pytest.raises(RejectedError, match="another backup is being made; one at a time"):
                    await copied(broker)
            assert isinstance((await copied(broker))[-1], BackupEnd), "one that was given up does not block the next"


class TestRestored:
    async def test_everything_that_was_acknowledged_before_is_there_in_order(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await fill(broker, 3 * IN_FILE + 2)
            await fill(broker, 5, "other")
            messages = await read_all(broker, "t")
            parts = await copied(broker)
        disk = restored(parts)
        assert differences(disk) == []
        async with small_broker(disk, SimClock(clock.wall_ms())) as broker:
            assert await read_all(broker, "t") == messages
            assert await numbers(broker, "other") == [*range(5)]
            assert await fill(broker, 1) == [len(messages)]
        assert differences(disk) == []

    async def test_what_comes_while_it_is_read_is_not_in_it(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await fill(broker, 2 * IN_FILE)
            parts = list[BackupPart]()
            async with aclosing(broker.backup.parts()) as stream:
                async for part in stream:
                    parts.append(part)
                    await fill(broker, 1, "later")
                    await broker.topic_administration.delete("later")
        disk = restored(parts)
        async with small_broker(disk, SimClock(clock.wall_ms())) as broker:
            assert await numbers(broker) == [*range(2 * IN_FILE)]
            assert broker.topics.get("later") is None
            assert broker.store.queue("later", 0) is None

    async def test_what_is_not_synced_yet_is_in_it_because_states_may_know_of_it(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            broker.producing.put([incoming("t", [b"x"])])
            assert broker.store.flusher.durable_end == 0
            parts = await copied(broker)
        async with small_broker(restored(parts), SimClock(clock.wall_ms())) as broker:
            assert await visible(broker) == [b"x"]

    async def test_files_that_are_deleted_while_they_are_read_are_in_it(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 3 * IN_FILE)
            async with aclosing(broker.backup.parts()) as stream:
                parts: list[BackupPart] = [await anext(stream)]
                for _ in range(3):
                    await clean(broker, clock, disk)
                await clock.advance(200)
                await clean(broker, clock, disk, 0.1)
                assert broker.store.log_begin >= 2 * 4_096
                parts += [part async for part in stream]
        copy = restored(parts)
        assert differences(copy) == []
        async with small_broker(copy, SimClock(clock.wall_ms())) as broker:
            assert await numbers(broker) == [*range(3 * IN_FILE)]

    async def test_what_waits_comes_at_its_time_and_once(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await produce(broker, incoming("t", [b"30 s"], delay_level=4), incoming("t", [b"1 s"], delay_level=1))
            await produce(broker, timed("t", b"100 s", delay_ms=100_000), timed("t", b"2 s", delay_ms=2_000))
            await clock.advance(5)
            parts = await copied(broker)
            assert [record.body for record in await read_all(broker, "t")] == [b"1 s", b"2 s"]
        clock = SimClock(clock.wall_ms())
        async with small_broker(restored(parts), clock) as broker:
            seen = []
            for seconds in (24.9, 0.2, 69.8, 0.2, 3_600):
                await clock.advance(seconds)
                seen.append([record.body for record in await read_all(broker, "t")][2:])
            assert seen == [[], [b"30 s"], [b"30 s"], [b"30 s", b"100 s"], [b"30 s", b"100 s"]]

    async def test_what_ends_behind_its_moment_has_not_ended_in_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """States that were taken later than the log would know of ends that the copy does not have."""
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await produce(broker, incoming("t", [b"level"], delay_level=1), half("t", b"half", "tx"))
            await produce(broker, timed("t", b"timed", delay_ms=1_000))
            flush = broker.store.flusher.flush

            async def flush_late() -> None:
                monkeypatch.undo()
                await end(broker, "tx", COMMIT)
                await clock.advance(15)  # deliveries, and a checkpoint
                assert sorted(await visible(broker)) == [b"half", b"level", b"timed"]
                await flush()

            monkeypatch.setattr(broker.store.flusher, "flush", flush_late)
            parts = await copied(broker)
        clock = SimClock(clock.wall_ms())
        async with small_broker(restored(parts), clock) as broker:
            assert await visible(broker) == []
            await end(broker, "tx", COMMIT)
            await clock.advance(5)
            assert sorted(await visible(broker)) == [b"half", b"level", b"timed"]

    async def test_an_open_half_can_be_committed_and_an_ended_one_stays_ended(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            for id_ in ("done", "open"):
                await produce(broker, half("t", id_.encode(), id_))
            await end(broker, "done", COMMIT)
            await clock.advance(11)
            parts = await copied(broker)
        async with small_broker(restored(parts), SimClock(clock.wall_ms())) as broker:
            assert broker.transaction_table.phase("open") is Phase.PREPARED
            await end(broker, "done", COMMIT)
            await end(broker, "open", COMMIT)
            assert await visible(broker) == [b"done", b"open"]

    async def test_locks_and_progress_survive_and_what_members_knew_of_later_numbers_does_not_count(self) -> None:
        clock = SimClock()
        async with small_broker(SimDisk(), clock) as broker:
            await fill(broker, 10)
            broker.offsets.commit("g", [("t", 0, Progress(3, ((5, 7),)))])
            broker.sessions.heartbeat(RecordingSession(), client("a", "g", topics={"t": "*"}))
            assert await broker.queue_locking.lock("g", "a", [Q0]) == [Q0]
            parts = await copied(broker)
            await fill(broker, 5)
            broker.offsets.commit("g", [("t", 0, Progress(15))])
            assert broker.offsets.query("g", "t", 0) == Progress(15), "the original does not notice"
        async with small_broker(restored(parts), SimClock(clock.wall_ms())) as broker:
            known = broker.offsets.query("g", "t", 0)
            assert known is not None
            assert known == Progress(3, ((5, 7),), version_of(known.renewals, 0))
            assert known.renewals > 0
            await fill(broker, 5)  # others than those of the same numbers that the member has seen
            assert "left out" in broker.offsets.commit("g", [("t", 0, Progress(15))])
            assert broker.offsets.query("g", "t", 0) == known
            for member in "ab":
                broker.sessions.heartbeat(RecordingSession(), client(member, "g", topics={"t": "*"}))
            assert await broker.queue_locking.lock("g", "b", [Q0]) == []

    async def test_a_copy_of_a_store_that_holds_nothing_is_one(self) -> None:
        async with small_broker(SimDisk(), SimClock()) as broker:
            parts = await copied(broker)
        async with small_broker(restored(parts), SimClock()) as broker:
            assert await fill(broker, 2) == [0, 1]


class TestDeletedBeginning:
    """The first files of the log are gone, and consume queues, which know the numbers, are not in the copy."""

    @pytest.mark.parametrize("gone", [1, 3, ENTRIES - 1, ENTRIES, ENTRIES + 1, 2 * ENTRIES])
    async def test_a_queue_without_any_message_left_goes_on_counting(self, gone: int) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, gone, "old")
            while broker.store.queue_bounds("old", 0)[0] < gone:
                await fill(broker, 1)
                await clean(broker, clock, disk)
            left = await numbers(broker)
            parts = await copied(broker)
            begin = broker.store.log_begin
        assert begin > 0
        assert min(left) > 0
        copy = restored(parts)
        for clean_stop in (True, False, True):
            async with quiet_broker(copy, SimClock(clock.wall_ms()), clean_stop=clean_stop) as broker:
                assert broker.store.log_begin == begin
                assert broker.store.queue_bounds("old", 0) == (gone, gone)
                assert await numbers(broker) == left
                await broker.store.checkpoint()
                assert not copy.exists(LAYOUT.queue_numbers), "the new consume queues know it themselves"
            copy.kill()
        async with quiet_broker(copy, SimClock(clock.wall_ms())) as broker:
            assert await fill(broker, 1, "old") == [gone]
        assert differences(copy) == []

    async def test_a_copy_of_a_copy_is_the_same(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, ENTRIES, "old")
            while broker.store.queue_bounds("old", 0)[0] < ENTRIES:
                await fill(broker, 1)
                await clean(broker, clock, disk)
            first = await copied(broker)
        async with quiet_broker(restored(first), SimClock(clock.wall_ms())) as broker:
            second = await copied(broker)
            left = await numbers(broker)
        async with quiet_broker(restored(second), SimClock(clock.wall_ms())) as broker:
            assert await numbers(broker) == left
            assert broker.store.queue_bounds("old", 0) == (ENTRIES, ENTRIES)

    async def test_a_log_that_begins_with_its_newest_file(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with quiet_broker(disk, clock) as broker:
            await fill(broker, 2 * IN_FILE + 1)
            for _ in range(3):
                await clean(broker, clock, disk)
            parts = await copied(broker)
            assert broker.store.log_begin == 2 * 4_096
        async with quiet_broker(restored(parts), SimClock(clock.wall_ms())) as broker:
            assert await numbers(broker) == [2 * IN_FILE]


class TestUnderLoad:
    async def test_it_holds_every_message_that_was_acknowledged_before_the_call(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with small_broker(disk, clock) as broker:
            acknowledged, going, stored = 0, True, asyncio.Condition()

            async def load() -> None:
                nonlocal acknowledged
                while going:
                    await fill(broker, 1)
                    async with stored:
                        acknowledged += 1
                        stored.notify_all()

            loading = asyncio.create_task(load())
            for _ in range(5):
                async with stored:
                    await stored.wait_for(lambda: acknowledged % 11 == 0)
                before = acknowledged
                parts = await copied(broker)
                copy = restored(parts)
                async with small_broker(copy, SimClock(clock.wall_ms())) as other:
                    found = await numbers(other)
                    assert found == [*range(len(found))]
                    assert before <= len(found) <= acknowledged + 1
                await asyncio.sleep(0)
            going = False
            await loading
        assert acknowledged > before


class TestFailures:
    async def test_a_disk_that_cannot_read_ends_it_with_its_error(self) -> None:
        disk = SimDisk()
        async with small_broker(disk, SimClock()) as broker:
            await fill(broker, IN_FILE)

            def broken(call: str, path: Path) -> None:
                if call == "pread" and path.parent == LAYOUT.commit_log:
                    raise OSError(errno.EIO, "the medium is broken", str(path))

            disk.before = broken
            with pytest.raises(OSError, match="the medium is broken"):
                await copied(broker)
            disk.before = lambda _call, _path: None
            assert isinstance((await copied(broker))[-1], BackupEnd)

    async def test_a_store_whose_sync_fails_gives_nothing_away(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=False) as broker:
            await fill(broker, 2)
            broker.store.fence(SyncError(errno.EIO, "the disk is gone"))
            with pytest.raises(StoreFencedError, match=r"the disk has failed: .*the disk is gone"):
                await copied(broker)

    async def test_damage_is_copied_as_it_is_and_known_in_the_copy(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with small_broker(disk, clock) as broker:
            await fill(broker, 2 * IN_FILE)
        file = disk.open(LAYOUT.commit_log / f"{0:020d}")
        file.pwrite(b"\xff" * 8, 1_000)
        disk.unlink(LAYOUT.checkpoint)
        async with small_broker(disk, SimClock(clock.wall_ms())) as broker:
            left, stretches = await numbers(broker), list(broker.store.quarantine)
            parts = await copied(broker)
        assert len(stretches) == 1
        async with small_broker(restored(parts), SimClock(clock.wall_ms())) as broker:
            assert await numbers(broker) == left
            assert list(broker.store.quarantine) == stretches


async def test_what_members_finish_after_one_restore_does_not_count_after_another_one() -> None:
    disk, clock = SimDisk(), SimClock()
    async with small_broker(disk, clock) as broker:
        await fill(broker, 2)
        broker.consumer_offsets.begin("g", "t", 0, 0)
        parts = await copied(broker)
    reports: list[Progress] = []
    for _ in range(2):  # the first one was on a bad disk, say
        async with small_broker(restored(parts), SimClock(clock.wall_ms())) as broker:
            known = broker.offsets.query("g", "t", 0)
            assert known is not None
            for report in reports:
                broker.offsets.commit("g", [("t", 0, report)])
            assert broker.offsets.query("g", "t", 0) == known
            await fill(broker, 1)
            reports.append(Progress(3, (), known.version))
            broker.offsets.commit("g", [("t", 0, reports[-1])])
            assert broker.offsets.query("g", "t", 0) == reports[-1]
