"""Power cuts at every disk call of the small state of consumers' progress: document, journal, rotation, start.

The model is a list for each queue of everything that its progress ever was. What a start finds has to be one of these,
and none that is older than the last one that was said to be on disk: so never fewer finished offsets than that, never
one that was never reported, never an older version. The same holds when the document has been damaged since.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.store.progress_journal import ProgressJournal
from mq_broker.store.state_files import StateFiles, read_document
from osenv import SeededRng, SimClock, SimDisk

CONFIG = Path("/store/config")
NAME = "consumerOffset.json"
CHANGES = {"open", "pwrite", "sync_data", "sync_dir", "truncate", "replace", "unlink"}
PLACES = [(group, topic, queue_id) for group in ("g", "h") for topic in ("t", "u") for queue_id in (0, 1)]
END = 400
LIVES, OPERATIONS, STATES_A_CALL = 4, 14, 3

Place = tuple[str, str, int]
Model = dict[Place, list[Progress | None]]


class Life:
    """The state with its files, from one start to whatever ends it; `seen` is the model."""

    def __init__(self, disk: SimDisk, rng: SeededRng) -> None:
        self.disk, self.rng = disk, rng
        self.offsets = ConsumerOffsets()
        self.journal = ProgressJournal(disk, SimClock(), CONFIG, self.offsets)
        self.files = StateFiles(
            disk, CONFIG, {NAME: self.offsets}, lambda: 0, rebuilt_from_log=frozenset(), optional=frozenset()
        )
        self.files.keep_journal(NAME, self.journal)
        self.files.load()
        self.seen: Model = {place: [self.offsets.progress(*place)] for place in PLACES}
        self.floors = dict.fromkeys(PLACES, 0)
        self.moments: list[tuple[SimDisk, Model]] = []  # the disk around each call, and what may be found on it

    def keep(self, call: str, path: Path) -> None:
        if call in CHANGES:
            self.moments.append((self.disk.fork(), {place: self.seen[place][self.floors[place] :] for place in PLACES}))

    async def operate(self) -> None:
        rng, before = self.rng, {place: len(self.seen[place]) - 1 for place in PLACES}
        match rng.randrange(0, 12):
            case 0:
                await self.files.rewrite(NAME)
                self.floors = before
            case 1:
                await self.files.write(self.files.snapshot())
                self.floors = before
            case 2 | 3 | 4 | 5:
                await self.files.persist(NAME)
                self.floors = before
            case 6:
                self.offsets.forget_group(rng.choice(("g", "h")))
            case 7:
                self.offsets.set(*rng.choice(PLACES), rng.randrange(0, END))
            case 8:
                end = rng.randrange(END // 2, END)
                self.offsets.clamp(lambda topic, queue_id: end)
            case _:
                for _ in range(rng.choice((1, 1, 3, 30))):
                    self.report(rng.choice(PLACES))
        for place in PLACES:
            if (now := self.offsets.progress(*place)) != self.seen[place][-1]:
                self.seen[place].append(now)

    def report(self, place: Place) -> None:
        known = self.offsets.progress(*place) or Progress(0)
        offset = min(END, known.offset + self.rng.randrange(0, 3))
        begins = range(offset + 2, min(END - 2, offset + 2 + self.rng.randrange(0, 40)), 3)
        reported = Progress(offset, tuple((begin, begin + 2) for begin in begins), known.version)
        self.offsets.put(*place, self.offsets.joined(*place, reported))
        if (now := self.offsets.progress(*place)) != self.seen[place][-1]:
            self.seen[place].append(now)


def found_in(disk: SimDisk) -> dict[Place, Progress | None]:
    offsets = Life(disk, SeededRng(0)).offsets
    return {place: offsets.progress(*place) for place in PLACES}


def accidents(disk: SimDisk, rng: SeededRng) -> Iterator[SimDisk]:
    """What may be found after a power cut now, and the same with a damaged document."""
    for state in disk.lost_states(rng, exhaustive_units_max=2, samples=STATES_A_CALL):
        yield state
        if all(read_document(state, CONFIG / name) is not None for name in (NAME, f"{NAME}.bak")):
            damaged = state.fork()
            damaged.open(CONFIG / NAME).pwrite(b"\xff", 20)
            yield damaged


@pytest.mark.mechanism("C21")
@pytest.mark.parametrize("seed", range(12))
async def test_a_power_cut_at_any_call_takes_nothing_that_was_on_disk_and_adds_nothing(seed: int) -> None:
    rng, disk, looked_at = SeededRng(seed), SimDisk(), 0
    disk.make_dirs(CONFIG)
    disk.sync_dir(CONFIG.parent)
    disk.sync_dir(Path("/"))
    for _ in range(LIVES):
        life = Life(disk, rng)
        disk.before = disk.after = life.keep
        await life.files.rewrite(NAME)  # as every start does
        for _ in range(OPERATIONS):
            await life.operate()
        life.keep("open", CONFIG)
        disk.before = disk.after = lambda call, path: None
        for moment, allowed in life.moments:
            for state in accidents(moment, rng):
                looked_at += 1
                for place, progress in found_in(state).items():
                    assert progress in allowed[place], f"{place} is {progress}, and not one of {allowed[place]}"
        disk = rng.choice(life.moments)[0]
        disk.crash(rng)
    assert looked_at > 500
