"""How the index of due times gets to disk: what is in memory becomes a run, runs become one run, a manifest names them.

Invariants:
- A manifest is written only after everything that it relies on is durable: its runs, the messages below `covered`, and
  whatever made those offsets done whose keys its runs lack. So a power cut never takes a message back that the index
  knows, and never makes one wait again that the index has forgotten.
- What a manifest says was true at one moment, with everything of that moment that was only in memory: the keys there,
  and those that had been taken and were not done.
- Keys can be taken all the while. A run takes the place of what it was made from in one step, and is read from where
  that was being read; a key that is read once more by that is done or was added back, and comes out once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mq_broker.schedule.timer_keys import TimerKeys
from mq_broker.schedule.timer_manifest import Manifest, RunEntry, write_manifest
from mq_broker.schedule.timer_memory import Stretch
from mq_broker.schedule.timer_merge import KeyMerge
from mq_broker.schedule.timer_reader import RunReader
from mq_broker.store.key_run import KeyRun
from mq_broker.store.key_run_writer import RunWriter
from mq_broker.store.uninterrupted import uninterrupted
from osenv import Disk
from osenv.disk import make_durable_dirs

STRETCHES_MAX = 64  # that become one run; more have piled up only while the disk refused to write

_Between = Callable[[], Awaitable[bool]]


class TimerWriter:
    """Writes one thing at a time; the caller sees to that. Raises OSError, SyncError, DamagedRunError."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        keys: TimerKeys,
        is_done: Callable[[int], bool],
        log_durable: Callable[[], Awaitable[int]],
    ) -> None:
        self._disk, self._folder, self._keys = disk, folder, keys
        self._is_done, self._log_durable = is_done, log_durable
        self._has_folder = False
        self.moved = False  # see Manifest

    async def commit(self, covered: int, merging: Sequence[RunReader] = ()) -> Manifest:
        """Have everything on disk that is known at this moment, on return. `merging` are runs that a merge reads."""
        runs, moved = self._keys.runs, self.moved
        runs.retire_spent(merging)
        retired, entries = runs.retired, runs.entries()
        stretches = [Stretch(self._keys.in_hand()), *self._keys.memory.settle()]
        groups = [stretches[at : at + STRETCHES_MAX] for at in range(0, len(stretches), STRETCHES_MAX)]
        merges = [KeyMerge(self._disk, group) for group in groups]
        # The moment ends here: what is taken or added from now on is told by the next manifest.
        await uninterrupted(self._disk.offload(self._make_folder))
        for group, merge in zip(groups, merges, strict=True):
            _, run = await self._write(merge, _go_on)
            await self._install(run, group)
            await _free(group)
            if run is not None:
                entries += (RunEntry(run.number, run.blocks, 0),)
        manifest = Manifest(covered, entries, moved)
        await uninterrupted(self._disk.offload(self._disk.sync_dir, self._folder))
        log_offset = await self._log_durable()
        await uninterrupted(self._disk.offload(write_manifest, self._disk, self._folder, manifest, log_offset))
        await runs.delete(retired)
        return manifest

    async def merge(self, readers: Sequence[RunReader], between: _Between) -> bool:
        """Make one run of these; `between` is called between two slices, and may end it all. Whether it was done."""
        is_whole, run = await self._write(KeyMerge(self._disk, readers, self._is_done), between)
        if is_whole:
            await self._install(run, readers)
        return is_whole

    async def _write(self, merge: KeyMerge, between: _Between) -> tuple[bool, KeyRun | None]:
        """A run of what the merge gives, None when that is nothing; and whether it came to its end."""
        writer = RunWriter(self._disk, self._folder, self._keys.runs.next_number())
        try:
            while (keys := await merge.next_slice()) is not None:
                await writer.write(keys)
                await asyncio.sleep(0)
                if not await between():
                    await writer.discard()
                    return False, None
            return True, await writer.finish()
        except BaseException:
            await writer.discard()
            raise

    async def _install(self, run: KeyRun | None, sources: Sequence[Stretch | RunReader]) -> None:
        """Have the run read in the place of its sources, from where they are; a run that nobody has to read retires."""
        first = min((head for source in sources if (head := source.head) is not None), default=None)
        reader = None
        try:
            if run is not None and first is not None:
                reader = await uninterrupted(self._disk.offload(RunReader.seek, run, first))
            await self._keys.exchange(sources, reader)
        except BaseException:
            reader = None
            raise
        finally:
            if run is not None and reader is None:
                self._keys.runs.retire(run)

    def _make_folder(self) -> None:
        if not self._has_folder:
            make_durable_dirs(self._disk, self._folder)
            self._has_folder = True


async def _go_on() -> bool:
    return True


async def _free(stretches: Sequence[Stretch]) -> None:
    """Give the memory of keys back, bit by bit: for ten thousands of them it takes milliseconds."""
    for stretch in stretches:
        stretch.keys.clear()
        await asyncio.sleep(0)
