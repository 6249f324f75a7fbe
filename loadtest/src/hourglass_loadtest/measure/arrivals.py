"""What has arrived, and when."""

from __future__ import annotations

import asyncio
import time

from hourglass_loadtest.measure.errors import MeasureError
from mqclient import ConsumeStatus, MessageExt

NUMBER_BYTES = 8


def numbered_body(number: int, padding: bytes) -> bytes:
    """A body that says which message it is."""
    return number.to_bytes(NUMBER_BYTES, "big") + padding


class Arrivals:
    """A listener that notes when each of `count` messages came first (`at`, on perf_counter), and keeps it."""

    def __init__(self, count: int) -> None:
        self.at = [0.0] * count
        self.messages: list[MessageExt | None] = [None] * count
        self._left = count
        self._again = 0
        self._done = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        now = time.perf_counter()
        for message in messages:
            number = int.from_bytes(message.body[:NUMBER_BYTES], "big")
            if self.at[number]:
                self._again += 1
                continue
            self.at[number], self.messages[number] = now, message
            self._left -= 1
        if not self._left:
            self._done.set()
        return ConsumeStatus.CONSUME_SUCCESS

    async def wait(self, deadline: float) -> None:
        """Return when all are there. Raises MeasureError at `deadline`, and when one has come twice."""
        try:
            async with asyncio.timeout(deadline - time.perf_counter()):
                await self._done.wait()
        except TimeoutError:
            raise MeasureError(f"{self._left:,} of {len(self.at):,} messages did not arrive") from None
        if self._again:
            raise MeasureError(f"{self._again:,} messages arrived twice although nothing failed")
