"""Ready-made parts for tests: the order of due times beside the truth, and what runs between two opcodes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from mq_broker.schedule.timer_index import TimerIndex
from osenv import Rng, SimClock, SimDisk

P = ParamSpec("P")
T = TypeVar("T")

FOLDER = Path("/store/timer")
FOREVER_MS = 1 << 50


class ThreadedDisk(SimDisk):
    """A simulated disk whose offloaded calls take a while, so that others come in between."""

    @classmethod
    def of(cls, disk: SimDisk) -> ThreadedDisk:
        """The same disk; the one that is given is not to be used any more."""
        threaded = cls()
        vars(threaded).update(vars(disk))
        return threaded

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        result = call(*args, **kwargs)
        await asyncio.sleep(0)
        return result


class Waiting:
    """What an owner knows of its waiting messages, without the index: due times by queue offset, and which are done."""

    def __init__(self, disk: SimDisk | None = None, *, keys_in_memory: int = 16) -> None:
        self.disk, self.clock, self.keys_in_memory = disk or SimDisk(), SimClock(), keys_in_memory
        self.dues: list[int] = []
        self.done: set[int] = set()
        self.durable_end, self.durable_done = 0, set[int]()
        self.before_sync: Callable[[], Awaitable[None]] | None = None
        self.index = self._make()

    def _make(self) -> TimerIndex:
        return TimerIndex(
            self.disk,
            self.clock,
            FOLDER,
            lambda offset: offset in self.done,
            self.log_durable,
            keys_in_memory=self.keys_in_memory,
        )

    async def log_durable(self) -> int:
        """A sync of the log, with `before_sync` before it."""
        if self.before_sync is not None:
            await self.before_sync()
        end, done = len(self.dues), set(self.done)
        await asyncio.sleep(0)
        self.durable_end, self.durable_done = max(self.durable_end, end), self.durable_done | done
        return end

    def add(self, *dues_ms: int) -> None:
        """New messages."""
        for due_ms in dues_ms:
            self.dues.append(due_ms)
            self.index.add(due_ms, len(self.dues) - 1)

    def add_again(self, first: int) -> None:
        """What an owner does after `open` and `reset`: everything from `first` on that is not done."""
        for offset in range(first, len(self.dues)):
            if offset not in self.done:
                self.index.add(self.dues[offset], offset)
        self.index.cover(len(self.dues))

    def due(self, now_ms: int = FOREVER_MS) -> list[tuple[int, int]]:
        """What has to come out, in order."""
        return sorted((due, at) for at, due in enumerate(self.dues) if due <= now_ms and at not in self.done)

    def finish(self, taken: Iterable[tuple[int, int]]) -> None:
        """These need nothing any more."""
        self.done.update(offset for _, offset in taken)

    async def drain(self, count: int = 7, now_ms: int = FOREVER_MS) -> list[tuple[int, int]]:
        """Take everything that is due, and finish it."""
        found = []
        while taken := await self.index.take_due(now_ms, count):
            found += taken
            self.finish(taken)
        return found

    def open(self) -> int:
        """A new start on the disk as it is; everything is added again that has to be. Returns from where on."""
        self.index = self._make()
        first = self.index.open(len(self.dues))
        self.add_again(first)
        return first

    def kill(self) -> None:
        """The process dies; what it wrote is there. The index is not to be used any more."""
        self.disk = ThreadedDisk.of(self.disk.fork())
        self.disk.kill()

    def crash(self, rng: Rng) -> None:
        """The power goes: of what is not durable, of the files and of the truth, some may be lost."""
        self.disk = ThreadedDisk.of(self.disk.fork())
        self.disk.crash(rng)
        self._lose(rng)

    def after_crash(self, disk: SimDisk, rng: Rng) -> Waiting:
        """The same on a disk that one of the possible power cuts has left; this one stays as it is."""
        after = Waiting(disk, keys_in_memory=self.keys_in_memory)
        after.dues, after.done = self.dues[:], set(self.done)
        after.durable_end, after.durable_done = self.durable_end, set(self.durable_done)
        after._lose(rng)
        return after

    def _lose(self, rng: Rng) -> None:
        del self.dues[rng.randrange(self.durable_end, len(self.dues) + 1) :]
        lost = {offset for offset in self.done - self.durable_done if rng.random() < 0.5}
        self.done = {offset for offset in self.done - lost if offset < len(self.dues)}
        self.durable_end, self.durable_done = len(self.dues), set(self.done)


@dataclass
class OpcodeTrace:
    """Counts the opcodes that run in the file `path`, or below this folder, and acts before number `at` (0: never).

    The first has number 1. What comes after the act is neither counted nor acted upon.
    """

    path: str
    act: Callable[[FrameType], None]
    at: int
    count: int = 0

    @property
    def has_acted(self) -> bool:
        """Whether there were so many."""
        return self.count == self.at > 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace this thread."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self.path):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and self.count != (self.at or -1):
            self.count += 1
            if self.count == self.at:
                self.act(frame)
        return self._opcode
