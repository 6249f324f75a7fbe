"""A process that dies between any two opcodes of the store's code (docs/reference/faults.md#store, kill -9 anywhere).

Invariant: after its death a process reaches the disk no more, whatever its clean-up code tries.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from crash_checks import verify
from crash_history import History
from crash_life import Life, small_store
from crash_states import START_MS
from quiet import quiet

import mq_broker.store
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing_closely import OpcodeTrace
from osenv import SeededRng, SimClock, SimDisk

STORE_CODE = str(Path(mq_broker.store.__file__).parent)
OPERATIONS = 8


class KilledError(KeyboardInterrupt):
    """SIGKILL. Of this family, because an event loop ends with it and no task keeps it to itself."""


@dataclass
class Death:
    """The process dies where it is; `where` says where that was."""

    disk: SimDisk
    where: str = ""

    def __call__(self, frame: FrameType) -> None:
        self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        self.disk.before = _dead
        raise KilledError


def _dead(call: str, path: Path) -> None:
    raise KilledError


def count_opcodes(seed: int) -> int:
    """How many opcodes of the store a life of this seed executes."""
    return _live(seed, 0)[0]


def kill_at(seed: int, number: int) -> str:
    """Live until the n-th opcode, die, recover; returns where it died. Raises WrongError when something is missing."""
    _, where, life = _live(seed, number)
    disk = life.disk
    disk.before = lambda call, path: None
    disk.kill()
    promise = life.promise()
    with quiet():
        asyncio.run(verify(disk, life.options, promise, START_MS))
    return where


def _live(seed: int, number: int) -> tuple[int, str, Life]:
    """How many opcodes have run, and where the life has ended if it has died before the n-th."""
    rng = SeededRng(seed)
    life = Life(
        SimDisk(),
        small_store(rng, FlushDiskType.SYNC_FLUSH),
        History(),
        SeededRng(seed),
        SimClock(START_MS),
    )
    death = Death(life.disk)
    trace = OpcodeTrace(STORE_CODE, death, number)
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle would run the finalizers of something else, and shift the count
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that are not awaited any more
        try:
            with trace.running():
                asyncio.run(life.run(OPERATIONS))
        except KilledError:
            if not number:
                raise
        finally:
            if collecting:
                gc.enable()
    return trace.count, death.where, life
