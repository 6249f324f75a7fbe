"""A process that dies between any two opcodes of the store's code (RELIABILITY.md (a), kill -9 anywhere).

Invariant: after its death a process reaches the disk no more, whatever its clean-up code tries.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from crash_checks import verify
from crash_history import History
from crash_life import Life, small_store
from crash_states import START_MS
from quiet import quiet

import mq_broker.store
from mq_broker.store.message_store import FlushDiskType
from osenv import SeededRng, SimClock, SimDisk

STORE_CODE = str(Path(mq_broker.store.__file__).parent)
OPERATIONS = 8


class KilledError(KeyboardInterrupt):
    """SIGKILL. Of this family, because an event loop ends with it and no task keeps it to itself."""


@dataclass
class OpcodeCounter:
    """A trace function that counts the opcodes of the store, and kills at one of them. The first has number 1."""

    disk: SimDisk
    kill_at: int = 0
    count: int = 0
    where: str = ""

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(STORE_CODE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and not self.where:
            self.count += 1
            if self.count == self.kill_at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                self.disk.before = _dead
                raise KilledError
        return self._opcode


def _dead(call: str, path: Path) -> None:
    raise KilledError


def count_opcodes(seed: int) -> int:
    """How many opcodes of the store a life of this seed executes."""
    return _live(seed, 0)[0].count


def kill_at(seed: int, number: int) -> str:
    """Live until the n-th opcode, die, recover; returns where it died. Raises WrongError when something is missing."""
    counter, life = _live(seed, number)
    disk = life.disk
    disk.before = lambda call, path: None
    disk.kill()
    promise = life.promise()
    with quiet():
        asyncio.run(verify(disk, life.options, promise, START_MS))
    return counter.where


def _live(seed: int, number: int) -> tuple[OpcodeCounter, Life]:
    rng = SeededRng(seed)
    life = Life(
        SimDisk(),
        small_store(rng, FlushDiskType.SYNC_FLUSH),
        History(),
        SeededRng(seed),
        SimClock(START_MS),
    )
    counter = OpcodeCounter(life.disk, number)
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle would run the finalizers of something else, and shift the count
    before = sys.gettrace()
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that nobody awaits any more
        sys.settrace(counter.trace)
        try:
            asyncio.run(life.run(OPERATIONS))
        except KilledError:
            if not number:
                raise
        finally:
            sys.settrace(before)
            if collecting:
                gc.enable()
    return counter, life
