"""The relay: publishes what units of work committed to the outbox.

Invariants: a row is marked published only after the queue said that it has the message; so a crash between the two
publishes again (at least once), and never loses one. Messages with one key go out in the order of their rows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import structlog

from orders.domain.errors import PublishError, StorageUnavailableError
from orders.service.message import MessagePublisher
from orders.service.unit_of_work import OutboxRow, Units
from osenv import Clock

BATCH_ROWS = 64
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0

log = structlog.get_logger(__name__)


class OutboxWake:
    """Rings when a commit has left something in the outbox."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def reset(self) -> None:
        self._event.clear()

    async def wait(self) -> None:
        await self._event.wait()


class OutboxRelay:
    """A loop that is woken by every commit, empties the outbox, and backs off while the queue does not answer."""

    def __init__(self, units: Units, publisher: MessagePublisher, clock: Clock, wake: OutboxWake) -> None:
        self._units = units
        self._publisher = publisher
        self._clock = clock
        self._wake = wake
        self._stopping = False
        self.is_publishing = True

    async def run(self) -> None:
        """Until `stop`. What earlier runs of the process left behind goes first."""
        backoff_s = BACKOFF_FIRST_S
        while not self._stopping:
            self._wake.reset()  # before reading: a commit after the read rings again
            try:
                published = await self.publish_batch()
            except (PublishError, StorageUnavailableError) as error:
                if self.is_publishing:
                    log.warning("the outbox cannot be published; trying again until it can", error=str(error))
                self.is_publishing = False
                await self._clock.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
                continue
            if not self.is_publishing:
                log.info("the outbox is being published again")
            self.is_publishing = True
            backoff_s = BACKOFF_FIRST_S
            if published == 0 and not self._stopping:
                await self._wake.wait()

    def stop(self) -> None:
        """Let `run` return after the batch in hand; a relay that backs off is cancelled by its owner."""
        self._stopping = True
        self._wake.ring()

    async def publish_batch(self) -> int:
        """Publish the oldest rows at once; returns how many went out.

        Raises PublishError after marking the rows that did go out, and StorageUnavailableError.
        """
        async with self._units.reading() as unit:
            rows = await unit.outbox.unpublished(BATCH_ROWS)
        if not rows:
            return 0
        by_key: dict[str, list[OutboxRow]] = defaultdict(list)
        for row in rows:
            by_key[row.message.key].append(row)
        published: list[int] = []
        results = await asyncio.gather(
            *(self._publish_in_order(group, published) for group in by_key.values()), return_exceptions=True
        )
        if published:
            async with self._units.writing() as unit:
                await unit.outbox.mark_published(published, self._clock.wall_ms())
                await unit.commit()
        for result in results:
            if result is not None:
                raise result
        return len(published)

    async def _publish_in_order(self, rows: list[OutboxRow], published: list[int]) -> None:
        for row in rows:
            await self._publisher.publish(row.message)
            published.append(row.row_id)
