"""The runs of the index of due times: those that are read, those that should become one, those that nobody needs.

Invariants: a number is given once; a file is deleted only after a manifest without it is durable, or with all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from mq_broker.schedule.timer_manifest import MANIFEST_NAME, Manifest, RunEntry
from mq_broker.schedule.timer_reader import RunReader
from mq_broker.store.durability import uninterrupted
from mq_broker.store.key_run import BLOCK_KEYS, KeyRun, run_name, run_number
from osenv import Disk

log = logging.getLogger(__name__)

FAN_IN = 8  # runs that become one


class TimerRuns:
    """The files below one folder, each with the place where it is being read."""

    def __init__(self, disk: Disk, folder: Path, run_keys: int) -> None:
        """`run_keys` is how many keys a run has that was not merged."""
        self._disk, self._folder = disk, folder
        self._first_tier_blocks = max(1, run_keys // BLOCK_KEYS)
        self._last_number = 0
        self._retired: list[KeyRun] = []
        self.readers: list[RunReader] = []

    def open(self, manifest: Manifest) -> None:
        """Take over these runs; may block. Raises DamagedRunError, OSError."""
        for entry in manifest.runs:
            run = KeyRun(self._disk, self._folder, entry.number, entry.blocks)
            try:
                self.readers.append(RunReader.open(run, entry.from_block))
            except BaseException:
                run.close()
                raise

    def clear(self) -> None:
        """Give all files back."""
        for run in [*(reader.run for reader in self.readers), *self._retired]:
            run.close()
        self.readers, self._retired = [], []

    def delete_unnamed(self, manifest: Manifest | None) -> None:
        """Remove what the manifest does not name, without one everything of ours; may block. Raises OSError."""
        kept = {run_name(entry.number) for entry in manifest.runs} | {MANIFEST_NAME} if manifest else set()
        for name in self._disk.list_dir(self._folder):
            number = run_number(name)
            self._last_number = max(self._last_number, number or 0)
            if name not in kept and (number is not None or name.startswith(MANIFEST_NAME)):
                self._disk.unlink(self._folder / name)

    def next_number(self) -> int:
        """For a new run."""
        self._last_number += 1
        return self._last_number

    def entries(self) -> tuple[RunEntry, ...]:
        """What a manifest says of them; runs that were read to their end are left out."""
        return tuple(
            RunEntry(reader.run.number, reader.run.blocks, reader.block)
            for reader in self.readers
            if reader.head is not None
        )

    def to_merge(self) -> list[RunReader]:
        """Runs of about the same size of which there are enough to make one of them; empty when there are none."""
        tiers: dict[int, list[RunReader]] = {}
        for reader in self.readers:
            tiers.setdefault(self._tier(reader), []).append(reader)
        return next((tiers[tier][:FAN_IN] for tier in sorted(tiers) if len(tiers[tier]) >= FAN_IN), [])

    def replace(self, readers: Collection[RunReader], by: RunReader | None) -> None:
        """From now on `by` is read in the place of these, which retire."""
        self._retired += [reader.run for reader in readers]
        self.readers = [reader for reader in self.readers if reader not in readers]
        if by is not None:
            self.readers.append(by)

    def retire_spent(self, keep: Collection[RunReader]) -> None:
        """Runs that were read to their end retire, but for those in `keep`, which a merge still reads."""
        self.replace([reader for reader in self.readers if reader.head is None and reader not in keep], None)

    def retire(self, run: KeyRun) -> None:
        """Nobody reads this run."""
        self._retired.append(run)

    async def fetch(self, readers: Sequence[RunReader]) -> None:
        """Have a block in these readers, which are dry. Raises DamagedRunError, OSError."""

        def fetch_all() -> list[list[bytes]]:
            return [reader.fetch() for reader in readers]

        blocks = await uninterrupted(self._disk.offload(fetch_all))
        for reader, keys in zip(readers, blocks, strict=True):
            reader.give(keys)

    @property
    def retired(self) -> list[KeyRun]:
        """Runs that are not read any more; `delete` may have them once a manifest without them is durable."""
        return self._retired[:]

    async def delete(self, runs: Sequence[KeyRun]) -> None:
        """Give these files back and remove them."""
        self._retired = [run for run in self._retired if run not in runs]
        for run in runs:
            run.close()

        def unlink_all() -> None:
            for run in runs:
                try:
                    self._disk.unlink(run.path)
                except OSError as error:
                    log.warning("%s could not be deleted, the next start will try again: %s", run.path, error)

        if runs:
            await uninterrupted(self._disk.offload(unlink_all))

    def _tier(self, reader: RunReader) -> int:
        blocks = reader.run.blocks - reader.block
        # Half of what it could be: a run that was merged has risen, though what was done was left out.
        tier, limit = 0, self._first_tier_blocks * FAN_IN // 2
        while blocks >= limit:
            tier, limit = tier + 1, limit * FAN_IN
        return tier
