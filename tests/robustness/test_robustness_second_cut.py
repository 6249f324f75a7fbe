"""A power cut during the recovery from a power cut: files were deleted, and the watermark is as old as it can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_broker.processor.broker import Broker
from mq_broker.store.message_store import StoreOptions
from mq_broker.testing import incoming, produce, read_all, running_broker, store_options
from osenv import SeededRng, SimClock, SimDisk

MESSAGES = 20
NEARLY_FULL, ROOMY = 0.87, 0.1


def nothing_survives(disk: SimDisk) -> SimDisk:
    return next(disk.lost_states(SeededRng(1), exhaustive_units_max=0, samples=2))


async def bodies(broker: Broker) -> list[bytes]:
    return [record.body[:3] for record in await read_all(broker, "t")]


async def cut_after_deletion(options: StoreOptions) -> tuple[SimDisk, list[bytes]]:
    """A disk after a power cut, and what was readable: the first file of the log had been deleted."""
    disk, clock = SimDisk(), SimClock()

    def one_file(call: str, path: Path) -> None:
        if call == "unlink" and path.parent == options.layout.commit_log:
            disk.used_share = ROOMY

    async with running_broker(disk, clock, store=options, clean_stop=False) as broker:
        for number in range(MESSAGES):
            await produce(broker, incoming("t", [b"%03d" % number + bytes(500)]))
        await clock.advance(11)
        disk.used_share, disk.before = NEARLY_FULL, one_file
        await clock.advance(12)
        assert broker.store.log_begin == options.layout.commit_log_file_bytes
        left = await bodies(broker)
    return nothing_survives(disk), left


@pytest.mark.parametrize("lost", ["consumequeue/t/0", "config/topics.json", "checkpoint", ""])
async def test_a_second_power_cut_in_the_rebuilding_after_the_first_loses_nothing(lost: str) -> None:
    options = store_options(log_file_bytes=4_096)
    disk, left = await cut_after_deletion(options)
    assert 5 < len(left) < MESSAGES
    if lost:
        disk.remove_tree(options.layout.root / lost)
        disk.remove_tree(options.layout.root / f"{lost}.bak")
    moments: list[SimDisk] = []
    disk.before = lambda call, path: moments.append(nothing_survives(disk))
    async with running_broker(disk, SimClock(), store=options, clean_stop=False):
        disk.before = lambda call, path: None
    different = {moment.fingerprint(): moment for moment in moments}
    assert len(different) > 3
    for number, moment in enumerate(different.values()):
        async with running_broker(moment, SimClock(), store=options, clean_stop=False) as broker:
            assert await bodies(broker) == left, f"moment {number} of {len(different)}"
