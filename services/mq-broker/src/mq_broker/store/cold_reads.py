"""Reads that go to the disk, away from the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from osenv import Disk

R = TypeVar("R")


@dataclass
class ColdReads:
    """Runs them, and knows how many there are: as long as there is one, no deleted file is closed (MISSION E3)."""

    disk: Disk
    running: int = 0

    async def read(self, call: Callable[[], R]) -> R:
        """What the reading `call` returns. Raises what it raises."""
        self.running += 1
        try:
            return await self.disk.offload(call)
        finally:
            self.running -= 1
