"""A number that a queue has given is never given again, whatever has become of the message and of the queue's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.store.commit_log import CommitLog, SegmentFiles
from mq_broker.store.consume_queue import QueueNumbers
from mq_broker.testing import FILE_BYTES, LAYOUT, STORE_ROOT, clean, fill, numbers, quiet_broker
from osenv import PooledFiles, SeededRng, SimClock, SimDisk

CHANGES = {"make_dirs", "replace", "unlink", "sync_dir", "pwrite", "sync_data", "allocate", "truncate"}


def lose(*names: str) -> Callable[[SimDisk], None]:
    def lose_them(disk: SimDisk) -> None:
        for name in names:
            disk.remove_tree(STORE_ROOT / name)
            disk.remove_tree(STORE_ROOT / f"{name}.bak")

    return lose_them


ENDS: dict[str, tuple[bool, Callable[[SimDisk], None]]] = {
    "clean stop": (True, lose()),
    "kill": (False, SimDisk.kill),
    "power cut": (False, lambda disk: disk.crash(SeededRng(3))),
    "no checkpoint": (True, lose("checkpoint")),
    "no watermark": (True, lose("watermark")),
    "no topics": (True, lose("config/topics.json")),
    "no state": (True, lose("config")),
    "no queues": (True, lose("consumequeue")),
    "only the log": (True, lose("checkpoint", "watermark", "config", "consumequeue", "index", "abort")),
}


@pytest.mark.parametrize("end", ENDS)
async def test_after_any_start_a_queue_begins_where_it_began_and_goes_on_with_its_next_number(end: str) -> None:
    disk, clock, (clean_stop, accident) = SimDisk(), SimClock(), ENDS[end]
    async with quiet_broker(disk, clock, clean_stop=clean_stop) as broker:
        await fill(broker, 40)
        await clean(broker, clock, disk)
        assert broker.store.queue_bounds("t", 0) == (35, 40)
    accident(disk)
    async with quiet_broker(disk, clock) as broker:
        assert broker.store.queue_bounds("t", 0) == (35, 40)
        assert await numbers(broker) == [35, 36, 37, 38, 39]
        assert await fill(broker, 1) == [40]


@pytest.mark.parametrize("count", [7, 10, 27, 30])
@pytest.mark.parametrize("end", [end for end in ENDS if end not in {"no queues", "only the log"}])
async def test_a_queue_that_lost_every_message_goes_on_with_its_next_number(end: str, count: int) -> None:
    disk, clock, (clean_stop, accident) = SimDisk(), SimClock(), ENDS[end]
    async with quiet_broker(disk, clock, clean_stop=clean_stop) as broker:
        await fill(broker, count)
        await fill(broker, 15, "u")
        await clean(broker, clock, disk)
        assert broker.store.queue_bounds("t", 0) == (count, count)
        assert await numbers(broker) == []
        if end == "power cut":
            await fill(broker, 1, "u")
    accident(disk)
    async with quiet_broker(disk, clock) as broker:
        assert broker.store.queue_bounds("t", 0) == (count, count)
        assert await fill(broker, 3) == [count, count + 1, count + 2]
        assert await numbers(broker) == [count, count + 1, count + 2]
    async with quiet_broker(disk, clock) as broker:
        assert await numbers(broker) == [count, count + 1, count + 2]


async def test_the_next_number_survives_two_rebuilds_in_a_row() -> None:
    disk, clock, (_, accident) = SimDisk(), SimClock(), ENDS["no checkpoint"]
    async with quiet_broker(disk, clock) as broker:
        await fill(broker, 7)
        await fill(broker, 15, "u")
        await clean(broker, clock, disk)
    for _ in range(2):
        accident(disk)
        async with quiet_broker(disk, clock) as broker:
            assert broker.store.queue_bounds("t", 0) == (7, 7)


class _KilledError(Exception):
    """The process ends here."""


async def killed_at(disk: SimDisk, clock: SimClock, call_number: int) -> bool:
    """Start a broker that is killed before the change of the disk with this number; False when it started before."""
    calls = 0

    def count(call: str, path: Path) -> None:
        nonlocal calls
        calls += call in CHANGES
        if calls > call_number:
            raise _KilledError

    disk.before = count
    try:
        async with quiet_broker(disk, clock, clean_stop=False):
            return False
    except _KilledError:
        return True
    finally:
        disk.before = lambda call, path: None
        disk.kill()


async def test_a_kill_at_any_call_of_a_rebuild_takes_no_number_back() -> None:
    """The queue's own file is the only one that knows, and the rebuild removes it."""
    disk, clock = SimDisk(), SimClock()
    async with quiet_broker(disk, clock) as broker:
        await fill(broker, 7)
        await fill(broker, 15, "u")
        await clean(broker, clock, disk)
        assert broker.store.queue_bounds("t", 0) == (7, 7)
    lose("checkpoint")(disk)
    call_number = 0
    while True:
        one = disk.fork()
        was_killed = await killed_at(one, clock, call_number)
        async with quiet_broker(one, clock) as broker:
            assert broker.store.queue_bounds("t", 0) == (7, 7), call_number
            assert not one.exists(LAYOUT.queue_numbers)
        if not was_killed:
            break
        call_number += 1
    assert call_number > 20


def test_a_note_that_cannot_be_read_is_no_note() -> None:
    disk = SimDisk()
    noted = QueueNumbers(disk, LAYOUT)
    noted.note({("t", 0): (7, 100), ("%RETRY%g", 0): (3, -1), ("empty", 1): (0, -1)})
    assert QueueNumbers(disk, LAYOUT).read() == {("t", 0): (7, 100), ("%RETRY%g", 0): (3, -1)}
    disk.open(LAYOUT.queue_numbers).pwrite(b"9", 30)
    assert QueueNumbers(disk, LAYOUT).read() == {}


def test_a_log_that_is_empty_keeps_the_file_that_says_where_it_begins() -> None:
    disk = SimDisk()
    disk.make_dirs(LAYOUT.commit_log)
    disk.open(LAYOUT.commit_log / f"{FILE_BYTES:020d}", create=True).pwrite(b"torn", 0)
    unlinked: list[Path] = []
    disk.after = lambda call, path: unlinked.append(path) if call == "unlink" else None
    log = CommitLog(SegmentFiles(PooledFiles(disk, 1), STORE_ROOT, LAYOUT.commit_log, FILE_BYTES), FILE_BYTES)
    log.recovered(FILE_BYTES, durable_end=FILE_BYTES)
    assert (log.begin, log.end, log.files.starts, unlinked) == (FILE_BYTES, FILE_BYTES, [FILE_BYTES], [])
    assert log.files.read(FILE_BYTES, FILE_BYTES) == bytes(FILE_BYTES)
