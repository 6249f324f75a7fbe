"""Disks on which a broker's life begins: new, left by a crash with some damage, missing what can be rebuilt, or with a
log whose end has to be cut off because the master does not have it.

Invariant: a scenario is prepared once in a process and copied for each run, so that every run finds the same bytes.
"""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from fault_journal import Journal, ReadRejectedError, read_queue
from fault_life import (
    DOOMED,
    LAYOUT,
    LEVEL_1M,
    LEVEL_1S,
    OPTIONS,
    QUEUES,
    BrokerLife,
    FaultyCalls,
    batch_of,
    commit_offsets,
    goes_on,
    whole_life,
)
from simulation import run_simulation

from mq_broker.core.replica_state import BrokerRole, Cut
from mq_broker.processor.broker import Broker
from mq_broker.replication.node import ReplicaFile
from mq_broker.testing import broker_options
from osenv import SeededRng, SimClock, SimDisk

START_MS = 1_700_000_000_000
STRAY_INDEX = "99991231235959999"
Steps = Callable[[BrokerLife], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Scenario:
    """A disk, what was promised on it, and how the broker lives on it."""

    name: str
    disk: SimDisk
    journal: Journal
    steps: Steps
    start_ms: int
    serial: int

    def life(self, calls: FaultyCalls) -> BrokerLife:
        """A life that has not begun."""
        return BrokerLife(
            self.disk.fork(), copy.deepcopy(self.journal), calls, SimClock(self.start_ms), serial=self.serial
        )


BROKER_SCENARIOS = ("new", "crashed", "rebuilt", "cut")


@cache
def scenario(name: str) -> Scenario:
    """The scenario of this name; with a coroutine at work already it has to be prepared before."""
    if name == "new":
        return Scenario(name, SimDisk(), Journal(), whole_life, START_MS, 0)
    if name == "cut":
        return _cut_scenario()
    life = BrokerLife(SimDisk(), Journal(), FaultyCalls(), SimClock(START_MS))
    run_simulation(life.run(_life_before))
    assert not life.wrong, life.wrong
    life.disk.kill()
    _damage_log(life)
    (_damage_files if name == "crashed" else _remove_what_the_log_tells)(life.disk)
    # Everything reaches the disk: an older watermark would make the damage look like a torn tail.
    *_, disk = islice(life.disk.lost_states(SeededRng(0), exhaustive_units_max=0, samples=2), 2)
    return Scenario(name, disk, life.journal, _later_life, life.clock.wall_ms() + 5_000, life.serial)


def _cut_scenario() -> Scenario:
    """The end of the log has to go; a start before this one has put it aside, and came no further."""
    life = BrokerLife(SimDisk(), Journal(), FaultyCalls(), SimClock(START_MS))
    ends: list[int] = []
    run_simulation(life.run(partial(_life_that_diverges, ends)))
    assert not life.wrong, life.wrong
    disk, cut = life.disk, Cut(*ends)
    disk.kill()
    disk.make_dirs(LAYOUT.timer)
    disk.open(LAYOUT.timer_manifest, create=True).close()
    disk.before = _no_watermark
    with suppress(OSError):
        Broker(disk, life.clock, broker_options(), OPTIONS, SeededRng(1)).store.open(lambda record: None, cut)
    disk.before = lambda call, path: None
    disk.kill()
    disk.open(LAYOUT.quarantine / f"{cut.end:020d}-100", create=True).close()
    replica = ReplicaFile(disk, LAYOUT, SeededRng(1), BrokerRole.ASYNC_MASTER, 0)
    run_simulation(replica.change(lambda state: replace(state, cut=cut)))
    *_, disk = islice(disk.lost_states(SeededRng(0), exhaustive_units_max=0, samples=2), 2)
    return Scenario("cut", disk, life.journal, _life_after_the_cut, life.clock.wall_ms() + 5_000, life.serial)


async def _life_that_diverges(ends: list[int], life: BrokerLife) -> None:
    """What comes behind the cut was acknowledged, and must not be seen afterwards."""
    for key in QUEUES:
        await life.produce(key, 500, 40)
    await life.pass_time(11)
    ends.append(life.broker.store.log_end)
    promised, known = copy.deepcopy(life.journal.promised), set(life.journal.known)
    await life.produce(("t", 0), 30, delay_level=LEVEL_1S)
    for size in (700, 900):
        for key in QUEUES:
            await life.produce(key, size, 40)
    await life.halt()
    journal = life.journal
    journal.promised, journal.rejected = promised, journal.known - known
    journal.delayed.clear()


def _no_watermark(call: str, path: Path) -> None:
    if path.name == "watermark.tmp":
        raise OSError(errno.EIO, "the crash comes here")


async def _life_after_the_cut(life: BrokerLife) -> None:
    await life.read()
    await life.pass_time(2)
    await goes_on(life)
    await life.close()


async def _life_before(life: BrokerLife) -> None:
    await life.produce(DOOMED, 100)
    for size in (500, 900):
        for key in QUEUES:
            await life.produce(key, size, 40)
    await life.produce(("later", 0), 30, delay_level=LEVEL_1M)
    await life.transaction("old", None)
    await life.pass_time(11)
    await life.ask("commit offsets", commit_offsets(life, 1))
    await life.produce(DOOMED, 100)
    for key in QUEUES:
        await life.produce(key, 300, 300)
    del life.journal.promised[DOOMED]
    life.serial += 3
    await life.halt()
    life.disk.before = _no_checkpoint
    await life.broker.store.checkpoint()  # it ends when queues and index are saved, as a crash would end it
    # The last batch is neither flushed nor acknowledged; its first record will be torn.
    life.broker.producing.put([batch_of(("t", 0), [b"torn", b"behind it", b"and behind that"])])
    life.journal.known.update([b"behind it", b"and behind that", b"torn"])
    life.journal.rejected.update([b"torn"])


def _no_checkpoint(call: str, path: Path) -> None:
    if path.name == "checkpoint.tmp":
        raise OSError(errno.EIO, "the crash comes here")


async def _later_life(life: BrokerLife) -> None:
    """Old messages come from disk, some of them damaged; then everything else."""
    await life.read()
    await life.ask("read what is damaged", _read_doomed(life))
    await whole_life(life)


async def _read_doomed(life: BrokerLife) -> None:
    try:
        await read_queue(life.broker, *DOOMED)
    except ReadRejectedError as error:
        raise OSError(str(error)) from error


def _damage_log(life: BrokerLife) -> None:
    """One message before the checkpoint, one behind it, and the first one behind the watermark."""
    store = life.broker.store
    places = [store.queue(*DOOMED).entry(number)[0] for number in (0, 1)]  # type: ignore[union-attr]
    queue = store.queue("t", 0)
    assert queue is not None
    places.append(queue.entry(queue.max_offset - 3)[0])
    for place in places:
        _flip(life.disk, LAYOUT.commit_log / f"{place // 4_096 * 4_096:020d}", place % 4_096 + 90)


def _damage_files(disk: SimDisk) -> None:
    """What a power cut can leave besides: a wrong entry, strays, a file without its length."""
    _flip(disk, LAYOUT.consume_queue("t", 0) / ("0" * 20), 20 + 3)
    for folder, step in ((LAYOUT.commit_log, 4_096), (LAYOUT.consume_queue("orders", 0), 160)):
        last = int(disk.list_dir(folder)[-1])
        disk.open(folder / f"{last + 2 * step:020d}", create=True).truncate(step)
    disk.open(LAYOUT.commit_log / disk.list_dir(LAYOUT.commit_log)[-2]).truncate(4_000)
    disk.open(LAYOUT.index / STRAY_INDEX, create=True).truncate(100)


def _remove_what_the_log_tells(disk: SimDisk) -> None:
    for name in ("config/topics.json", "config/topics.json.bak", "consumequeue/t/1"):
        disk.remove_tree(LAYOUT.root / name)
    disk.open(LAYOUT.index / disk.list_dir(LAYOUT.index)[0]).truncate(100)


def _flip(disk: SimDisk, path: Path, at: int) -> None:
    file = disk.open(path)
    byte = file.pread(1, at)[0]
    file.pwrite(bytes([byte ^ 0xFF]), at)
    file.sync_data()
