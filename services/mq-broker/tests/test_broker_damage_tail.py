"""The end of the log after an accident: cut where nothing was promised, kept where something was."""

from __future__ import annotations

import pytest

from mq_broker.processor.broker import Broker
from mq_broker.store.durability import SLOT_BYTES, Watermark, decode_watermark, encode_slot, read_watermark
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import STORE_ROOT, incoming, produce, read_all, running_broker, store_options
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

FILE_BYTES = 4_096
LAYOUT = StoreLayout(STORE_ROOT)
OPTIONS = store_options(log_file_bytes=FILE_BYTES)
LAZY = store_options(flush=FlushDiskType.ASYNC_FLUSH, log_file_bytes=FILE_BYTES)
COUNT = 12


async def live(disk: SimDisk) -> list[int]:
    """Twelve messages, acknowledged, and a kill; where each begins, and where the last one ends."""
    async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=False) as broker:
        places = []
        for number in range(COUNT):
            (outcome,) = await produce(broker, incoming("t", [b"%06d" % number + bytes(300)]))
            places.append(outcome.base_log_offset)
        places.append(broker.store.log_end)
    disk.kill()
    return places


def overwrite(disk: SimDisk, at: int, data: bytes) -> None:
    file = disk.open(LAYOUT.commit_log / f"{at // FILE_BYTES * FILE_BYTES:020d}")
    file.pwrite(data, at % FILE_BYTES)
    file.sync_data()


def set_watermark(disk: SimDisk, first: bytes, second: bytes = b"") -> None:
    """Both slots; nothing else knows what was durable."""
    file = disk.open(LAYOUT.watermark)
    file.pwrite(first.ljust(SLOT_BYTES, b"\0") + second.ljust(SLOT_BYTES, b"\0"), 0)
    file.sync_data()
    disk.remove_tree(LAYOUT.checkpoint)


async def numbers(broker: Broker) -> list[int]:
    return [int(record.body[:6]) for record in await read_all(broker, "t")]


async def found(disk: SimDisk) -> tuple[list[int], list[str]]:
    """What is read after a start and after one more, and what was put aside."""
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        first = await numbers(broker)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert await numbers(broker) == first
    return first, disk.list_dir(LAYOUT.quarantine)


class TestTornTail:
    @pytest.mark.parametrize("torn", [COUNT - 1, COUNT - 2, 5, 0])
    async def test_above_the_watermark_the_log_ends_at_the_torn_message(self, torn: int) -> None:
        disk = SimDisk()
        places = await live(disk)
        set_watermark(disk, encode_slot(places[torn]))
        overwrite(disk, places[torn] + 50, b"\xff" * 8)
        numbers_left, _ = await found(disk)
        assert numbers_left == list(range(torn))

    @pytest.mark.parametrize("torn", [COUNT - 2, 5, 0])
    async def test_whole_messages_behind_a_torn_one_are_kept_aside(self, torn: int) -> None:
        disk = SimDisk()
        places = await live(disk)
        set_watermark(disk, encode_slot(places[torn]))
        overwrite(disk, places[torn] + 50, b"\xff" * 8)
        end = places[-1]
        wanted = b"".join(read_file(disk, LAYOUT.commit_log / name) for name in disk.list_dir(LAYOUT.commit_log))
        _, aside = await found(disk)
        (name,) = aside
        assert name == f"{places[torn]:020d}-{end - places[torn]}.tail"
        assert read_file(disk, LAYOUT.quarantine / name) == wanted[places[torn] : end]
        async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
            assert len(broker.store.quarantine) == 0  # that is no damage

    async def test_a_torn_tail_with_nothing_behind_it_leaves_nothing_aside(self) -> None:
        disk = SimDisk()
        places = await live(disk)
        set_watermark(disk, encode_slot(places[-2]))
        overwrite(disk, places[-2] + 50, b"\xff" * 8)
        assert (await found(disk))[1] == []

    @pytest.mark.parametrize("torn", [COUNT - 2, 5, 1])
    async def test_below_the_watermark_nothing_is_cut(self, torn: int) -> None:
        disk = SimDisk()
        places = await live(disk)
        set_watermark(disk, encode_slot(places[-1]))
        overwrite(disk, places[torn] + 50, b"\xff" * 8)
        numbers_left, aside = await found(disk)
        assert numbers_left == [number for number in range(COUNT) if number != torn]
        assert aside == [f"{places[torn]:020d}-{size_of(places, torn)}"]

    async def test_what_was_cut_never_comes_back(self) -> None:
        disk = SimDisk()
        places = await live(disk)
        set_watermark(disk, encode_slot(places[5]))
        overwrite(disk, places[5] + 50, b"\xff" * 8)
        async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=False) as broker:
            assert await numbers(broker) == [0, 1, 2, 3, 4]
            (outcome,) = await produce(broker, incoming("t", [b"000005" + bytes(300)]))
            assert (outcome.base_queue_offset, outcome.base_log_offset) == (5, places[5])
        disk.crash(SeededRng(1))
        assert (await found(disk))[0] == [0, 1, 2, 3, 4, 5]

    async def test_async_flush_loses_only_what_came_after_the_last_sync(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=LAZY, clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"%06d" % number for number in range(5)]))
            await clock.advance(0.2)
            synced = broker.store.log_end
            await produce(broker, incoming("t", [b"%06d" % number for number in range(5, 9)]))
        disk.crash(SeededRng(0))
        assert (read_watermark(disk, LAYOUT) or 0) <= synced
        numbers_left, _ = await found(disk)
        assert numbers_left[:5] == [0, 1, 2, 3, 4]
        assert numbers_left == list(range(len(numbers_left)))


def size_of(places: list[int], number: int) -> int:
    """How much of the log is broken when this message is; a blank behind it is whole."""
    begin, end = places[number], places[number + 1]
    return end - begin if end // FILE_BYTES == begin // FILE_BYTES else places[1] - places[0]


class TestWatermark:
    def test_the_larger_whole_slot_counts(self) -> None:
        a, b = encode_slot(100).ljust(SLOT_BYTES, b"\0"), encode_slot(200).ljust(SLOT_BYTES, b"\0")
        torn = b[:5] + b"\xff" + b[6:]
        assert decode_watermark(a + b) == decode_watermark(b + a) == 200
        assert decode_watermark(a + torn) == decode_watermark(torn + a) == 100
        assert decode_watermark(a) == decode_watermark(a + b[:7]) == 100
        assert decode_watermark(torn + torn) is decode_watermark(b"") is decode_watermark(bytes(1_024)) is None

    @pytest.mark.parametrize("at", range(12))
    def test_every_byte_of_a_slot_is_covered(self, at: int) -> None:
        slot = bytearray(encode_slot(1 << 40))
        slot[at] ^= 0x10
        assert decode_watermark(bytes(slot).ljust(SLOT_BYTES, b"\0")) is None

    def test_a_torn_write_leaves_the_value_before(self) -> None:
        disk = SimDisk()
        disk.make_dirs(STORE_ROOT)
        written = [0]
        for life in range(3):
            watermark = Watermark(disk, LAYOUT, read_watermark(disk, LAYOUT), is_new=life == 0)
            for value in (100 * life + 10, 100 * life + 20, 100 * life + 30):
                before = read_file(disk, LAYOUT.watermark)
                watermark.write(value)
                after = read_file(disk, LAYOUT.watermark)
                changed = next(at for at in range(len(after)) if after[at] != before[at])
                torn = after[:changed] + bytes([after[changed] ^ 0x80]) + after[changed + 1 :]
                assert decode_watermark(after) == value
                assert decode_watermark(torn) == written[-1]
                written.append(value)
            watermark.close()

    @pytest.mark.parametrize("slots", [(b"", b""), (b"\xff" * 12, b"\xff" * 12)], ids=["zeros", "noise"])
    async def test_without_a_whole_slot_nothing_is_cut_that_has_whole_messages_behind_it(
        self, slots: tuple[bytes, bytes]
    ) -> None:
        disk = SimDisk()
        places = await live(disk)
        set_watermark(disk, *slots)
        overwrite(disk, places[5] + 50, b"\xff" * 8)
        numbers_left, aside = await found(disk)
        assert numbers_left == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert aside == [f"{places[5]:020d}-{size_of(places, 5)}"]

    async def test_a_watermark_that_the_disk_rejects_costs_no_message(self) -> None:
        disk = SimDisk()

        def fail(call: str, path: object) -> None:
            if call == "pwrite" and path == LAYOUT.watermark:
                raise OSError(28, "No space left on device")

        async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=False) as broker:
            disk.before = fail
            (outcome,) = await produce(broker, incoming("t", [b"000000"]))
            assert outcome.code is ResponseCode.SUCCESS
        disk.before = lambda call, path: None
        disk.crash(SeededRng(1))
        assert (await found(disk))[0] == [0]

    async def test_log_files_that_were_durable_and_are_gone_stop_the_start_with_a_sentence(self) -> None:
        disk = SimDisk()
        await live(disk)
        disk.remove_tree(LAYOUT.commit_log / f"{FILE_BYTES:020d}")
        disk.remove_tree(LAYOUT.commit_log / f"{2 * FILE_BYTES:020d}")
        with pytest.raises(StoreDamagedError, match="the last ones are missing; put them back"):
            await found(disk)

    @pytest.mark.parametrize("lost", [("watermark", "checkpoint"), ("watermark", "checkpoint", "config", "abort")])
    async def test_a_crash_while_a_log_without_its_watermark_is_taken_up_loses_nothing(self, lost: tuple[str]) -> None:
        """Restored from a copy of the log, which begins above 0 because old files were deleted, and is damaged."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, store=OPTIONS) as broker:
            for number in range(40):
                await produce(broker, incoming("t", [b"%06d" % number + bytes(300)]))
            disk.used_share = 0.85
            await clock.advance(11)
            disk.used_share = 0.0
            await produce(broker, *[incoming("t", [b"%06d" % number + bytes(300)]) for number in range(40, 52)])
            kept = await read_all(broker, "t")
            assert kept[0].log_offset == broker.store.log_begin > 0
        for name in lost:
            disk.remove_tree(STORE_ROOT / name)
        overwrite(disk, kept[4].log_offset + 50, b"\xff" * 8)
        forks: list[SimDisk] = []
        disk.before = disk.after = lambda call, path: forks.append(disk.fork()) if call in CHANGES else None
        await found(disk)
        disk.before = disk.after = lambda call, path: None
        wanted = [int(record.body[:6]) for record in kept[:4] + kept[5:]]
        for number, fork in enumerate(forks[::2]):
            fork.crash(SeededRng(number)) if number % 2 else fork.kill()
            assert (await found(fork))[0] == wanted


CHANGES = {"pwrite", "sync_data", "sync_dir", "unlink", "replace", "truncate"}
