"""Which waiting messages are due next, in order, for ten million of them: the newest keys in memory, the rest in
runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from mq_broker.schedule.timer_keys import HEAP_KEYS, KeyMerge, Stretch, TimerKeys, TimerMemory
from mq_broker.schedule.timer_runs import (
    KEY,
    MANIFEST_NAME,
    DamagedRunError,
    KeyRun,
    Manifest,
    RunEntry,
    RunReader,
    RunWriter,
    TimerRuns,
    read_manifest,
    write_manifest,
)
from mq_broker.store.durability import finish_despite_cancellation
from osenv import Clock, Disk, SyncError
from osenv.disk import make_durable_dirs

log = logging.getLogger(__name__)

KEYS_IN_MEMORY = 32_768  # about 2.5 MB
CHANGES_MAX = 65_536  # keys added or taken since the last manifest: a start after a crash reads so much again
RUNS_MAX = 64  # a loader waits for the merges when there are more
RETRY_AFTER_ERROR_S = 10


class TimerIndex:
    """One broker's index, on one event loop.

    `is_done` tells whether a queue offset needs nothing any more, and never takes that back. `log_durable` returns,
    with the log offset, when every message that was added and whatever made an offset done are on disk; what it raises
    comes out of `run`, `maintain`, `flush` and `close`.

    It is a cache. The messages stand in the log, their due times in the consume queue, and what is done in a set of
    queue offsets; whatever happens to the files here, the owner adds everything again that is not done.

    The parts: `TimerKeys` takes keys in order, from `TimerMemory` and from `TimerRuns`, each of which a `RunReader`
    reads; `TimerWriter` writes runs and manifests, with a `KeyMerge`.

    Invariants: `covered` never goes back but in `reset`; memory holds about `keys_in_memory` keys and one block of each
    run, unless the disk cannot write.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        folder: Path,
        is_done: Callable[[int], bool],
        log_durable: Callable[[], Awaitable[int]],
        *,
        keys_in_memory: int = KEYS_IN_MEMORY,
    ) -> None:
        self._disk, self._clock, self._folder = disk, clock, folder
        self._keys_in_memory = keys_in_memory
        self._memory = TimerMemory(max(1, min(HEAP_KEYS, keys_in_memory // 2)))
        self._runs = TimerRuns(disk, folder, keys_in_memory)
        self._keys = TimerKeys(self._memory, self._runs, is_done)
        self._writer = TimerWriter(disk, folder, self._keys, is_done, log_durable)
        self._durable = Manifest()
        self._changes = 0  # since the last manifest
        self._wake, self._progress = asyncio.Event(), asyncio.Event()
        self._changing = asyncio.Lock()  # one changes the runs at a time
        self._is_running = self._is_rejected = self._is_resetting = False
        self.covered = 0

    # ------------------------------------------------------------------------------------------------ life

    def open(self, queue_end: int) -> int:
        """Take over what is on disk; may block. Returns the queue offset from which everything has to be added again.

        That is 0 when the files are lost or damaged, or know messages behind `queue_end`, the end of the queue; then
        they are deleted. Raises OSError.
        """
        try:
            manifest = self._take_over(queue_end)
        except (DamagedRunError, ValueError) as error:
            log.warning("the order of due times is built anew: %s", error)
            self._runs.clear()
            manifest = None
        self._runs.delete_unnamed(manifest)
        self._durable = manifest or Manifest()
        self.covered = self._durable.covered
        self._keys.look_ahead()
        return self.covered

    def _take_over(self, queue_end: int) -> Manifest | None:
        manifest = read_manifest(self._disk, self._folder)
        if manifest is not None:
            if manifest.covered > queue_end:
                path = self._folder / MANIFEST_NAME
                raise ValueError(f"{path} tells of {manifest.covered} waiting messages; {queue_end} were stored")
            if manifest.moved:
                raise ValueError("the clocks differed when it was made")
            self._runs.open(manifest)
        return manifest

    async def flush(self) -> bool:
        """Have everything on disk, on return; False when the disk has rejected that. Raises as `run` does."""
        return await self._keeping(self._write_rest)

    async def close(self) -> None:
        """Write everything, so that the next start reads nothing again, and give the files back. Raises likewise."""
        try:
            await self.flush()
        finally:
            self.release()

    def release(self) -> None:
        """Give the files back as they are."""
        self._runs.clear()

    async def reset(self) -> None:
        """Forget everything and delete the files; the owner adds everything again. Raises OSError."""
        self._is_resetting = True
        try:
            async with self._changing:
                await self._keys.clear()
                self._durable, self._changes, self.covered = Manifest(), 0, 0
                await finish_despite_cancellation(self._disk.offload(self._runs.delete_unnamed, None))
        finally:
            self._is_resetting = False
            self._progress.set()

    # ------------------------------------------------------------------------------------------------- use

    def add(self, due_ms: int, offset: int) -> None:
        """The message at `offset` waits until `due_ms`, 0 or more. New ones come in order; others were put back."""
        if offset >= self.covered:  # else it is put back, and was counted when it was taken
            self.covered = offset + 1
            self._changes += 1
        if self._keys.add(KEY.pack(due_ms, offset)) and self._is_due:
            self._wake.set()

    def keys_move(self, *, moved: bool) -> None:
        """Whether keys are put back later than their messages are due; then a later start builds the index anew."""
        self._writer.moved = moved

    def cover(self, end: int) -> None:
        """Everything below `end` of the queue was added, or needs no key."""
        self.covered = max(self.covered, end)

    @property
    def next_due_ms(self) -> int | None:
        """When the next message is due, None when none waits; perhaps earlier than true, never later."""
        key = self._keys.next_key
        return None if key is None else int(KEY.unpack(key)[0])

    async def take_due(self, now_ms: int, count: int) -> list[tuple[int, int]]:
        """Up to `count` messages that are due and not done, as (due ms, queue offset), ascending; fewer: that was all.

        Before the next call the owner has marked them as done, or added them again. Raises DamagedRunError, after which
        `reset` is needed, and OSError; then nothing was taken.
        """
        taken = await self._keys.take(KEY.pack(now_ms + 1, 0), count)
        self._changes += len(taken)
        if self._is_due:
            self._wake.set()
        return [KEY.unpack(key) for key in taken]

    @property
    def keys_in_memory(self) -> int:
        """How many keys take memory now, one block of each run not counted."""
        return len(self._memory)

    async def wait_room(self) -> None:
        """Return when memory has room for more keys; soon in any case when `run` does not, or the disk rejects them."""
        if self._is_crowded:
            await asyncio.sleep(0)
        while self._is_crowded and self._is_running and not self._is_rejected:
            self._progress.clear()
            self._wake.set()
            await self._progress.wait()

    # ---------------------------------------------------------------------------------------------- upkeep

    async def run(self) -> None:
        """Write and merge runs for ever; what the disk rejects is tried again.

        Raises SyncError, and DamagedRunError, after which `reset` is needed.
        """
        self._is_running = True
        self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._is_rejected = not await self.maintain()
                self._progress.set()
                if self._is_rejected:
                    await self._clock.sleep(RETRY_AFTER_ERROR_S)
                    self._wake.set()
        finally:
            self._is_running = False
            self._progress.set()

    async def maintain(self) -> bool:
        """Write and merge what is due to be; False when the disk has rejected it. Raises as `run` does."""
        return await self._keeping(self._write_due)

    @property
    def _is_due(self) -> bool:
        return self._changes >= CHANGES_MAX or len(self._memory) > self._keys_in_memory

    @property
    def _is_crowded(self) -> bool:
        return len(self._memory) > 2 * self._keys_in_memory or len(self._runs.readers) > RUNS_MAX

    async def _keeping(self, work: Callable[[], Awaitable[None]]) -> bool:
        async with self._changing:
            try:
                await work()
            except SyncError:
                raise
            except OSError as error:
                log.warning("the order of due times could not be written, it stays in memory: %s", error)
                return False
            return True

    async def _write_due(self) -> None:
        while not self._is_resetting:
            if self._is_due:
                await self._commit()
            elif readers := self._runs.to_merge():
                await self._merge(readers)
            else:
                break

    async def _write_rest(self) -> None:
        if self._changes or self.covered != self._durable.covered:
            await self._commit()

    async def _commit(self, merging: Sequence[RunReader] = ()) -> None:
        changes = self._changes
        self._durable = await self._writer.commit(self.covered, merging)
        self._changes -= changes
        self._progress.set()

    async def _merge(self, readers: Sequence[RunReader]) -> None:
        async def between() -> bool:
            if self._is_due:
                await self._commit(readers)
            return not self._is_resetting

        if await self._writer.merge(readers, between):
            await self._commit()


STRETCHES_MAX = 64  # that become one run; more have piled up only while the disk could not write

_Between = Callable[[], Awaitable[bool]]


class TimerWriter:
    """How the index of due times gets to disk: what is in memory becomes a run, runs become one run, a manifest names
    them.

    Writes one thing at a time; the caller sees to that. Raises OSError, SyncError, DamagedRunError.

    Invariants:
    - A manifest is written only after everything that it relies on is durable: its runs, the messages below `covered`,
      and whatever made those offsets done whose keys its runs lack. So a power cut never takes a message back that the
      index knows, and never makes one wait again that the index has forgotten.
    - What a manifest says was true at one moment, with everything of that moment that was only in memory: the keys
      there, and those that had been taken and were not done.
    - Keys can be taken all the while. A run takes the place of what it was made from in one step, and is read from
      where that was being read; a key that is read once more by that is done or was added back, and comes out once.
    """

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
        await finish_despite_cancellation(self._disk.offload(self._make_folder))
        for group, merge in zip(groups, merges, strict=True):
            _, run = await self._write(merge, _go_on)
            await self._install(run, group)
            await _free(group)
            if run is not None:
                entries += (RunEntry(run.number, run.blocks, 0),)
        manifest = Manifest(covered, entries, moved)
        await finish_despite_cancellation(self._disk.offload(self._disk.sync_dir, self._folder))
        log_offset = await self._log_durable()
        await finish_despite_cancellation(
            self._disk.offload(write_manifest, self._disk, self._folder, manifest, log_offset)
        )
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
        """Have the run read in the place of its sources, from where they are; a run without unread keys retires."""
        first = min((head for source in sources if (head := source.head) is not None), default=None)
        reader = None
        try:
            if run is not None and first is not None:
                reader = await finish_despite_cancellation(self._disk.offload(RunReader.seek, run, first))
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
