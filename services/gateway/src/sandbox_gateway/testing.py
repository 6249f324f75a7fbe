"""The gateway as tests want it: composed as in production, with a clock and a receiver that the test holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from osenv import SeededRng, SimClock
from sandbox_gateway.app import MIGRATIONS, Application, bootstrap
from sandbox_gateway.domain import DeliveryError
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.webhooks import WebhookReceiver
from servicekit.sql.database import Database
from servicekit.testing.migrations import migrate

API_KEY = "api-key-for-tests-and-nothing-else"
URL = "http://gateway"


@dataclass(slots=True)
class RecordingReceiver:
    """Implements `WebhookReceiver`: keeps every body that it took, and rejects while `is_away`."""

    taken: list[bytes] = field(default_factory=list)
    is_away: bool = False
    rejected: int = 0

    async def deliver(self, body: bytes) -> None:
        if self.is_away:
            self.rejected += 1
            raise DeliveryError("the receiver is away")
        self.taken.append(body)


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """The gateway, composed. Its background work does nothing by itself, unless that was asked for."""

    application: Application
    database: Database
    clock: SimClock
    http: httpx.AsyncClient
    transport: httpx.ASGITransport

    async def charge(self, charge_id: str, **changes: Any) -> httpx.Response:
        """POST /v1/charges; `changes` replace members."""
        payload = {"order_id": f"order-of-{charge_id}", "amount_minor": 15800, "currency": "CNY", "method": "card"}
        return await self.http.post("/v1/charges", json={"charge_id": charge_id} | payload | changes)

    async def refund(self, refund_id: str, charge_id: str, **changes: Any) -> httpx.Response:
        """POST /v1/refunds for the whole amount; `changes` replace members."""
        payload = {"charge_id": charge_id, "amount_minor": 15800, "currency": "CNY"}
        return await self.http.post("/v1/refunds", json={"refund_id": refund_id} | payload | changes)

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass, with everything that comes due in it, in its order."""
        end_ms = self.clock.wall_ms() + round(seconds * 1000)
        while True:
            moments_ms = [await self.application.decisions.decide_due(), await self.application.sender.send_due()]
            next_ms = min((moment_ms for moment_ms in moments_ms if moment_ms is not None), default=end_ms)
            now_ms = self.clock.wall_ms()
            if next_ms >= end_ms and now_ms == end_ms:
                return
            await self.clock.advance(max(min(next_ms, end_ms) - now_ms, 0) / 1000)


@asynccontextmanager
async def running_gateway(
    database_url: str,
    *,
    behaviour: Behaviour | None = None,
    receiver: WebhookReceiver | None = None,
    clock: SimClock | None = None,
    runs_background: bool = False,
) -> AsyncIterator[RunningGateway]:
    """The gateway on this database, which is migrated first. A second one on it is the process after its restart."""
    clock = clock or SimClock()
    database = Database(database_url)
    try:
        await migrate(database, database_url, MIGRATIONS)
        application = bootstrap(
            database,
            receiver or RecordingReceiver(),
            behaviour or Behaviour(),
            clock,
            SeededRng(1),
            api_key=API_KEY,
        )
        transport = httpx.ASGITransport(application.api, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as http:
            works = application.background if runs_background else ()
            tasks = [asyncio.create_task(work.run()) for work in works]
            try:
                yield RunningGateway(application, database, clock, http, transport)
            finally:
                await _end(tasks)
    finally:
        await database.dispose()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """As abruptly as a process dies; a task that failed by itself says so."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
