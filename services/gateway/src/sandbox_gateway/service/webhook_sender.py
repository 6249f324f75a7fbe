"""Sends what was decided until it was taken: at least once, and after kill -9 too, because what is unsent is a row.

Invariants: each attempt has `ATTEMPT_MAX_S`; an event that is not taken is sent again, later and later, up to
`BACKOFF_MAX_S` apart, without end; it holds up later events of its own charge and no others.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

import telemetry
from osenv import Clock, Rng
from osenv.clock import timeout
from sandbox_gateway.domain.errors import DeliveryError
from sandbox_gateway.service.unit_of_work import Attempt, Units, WaitingWebhook

BATCH_MAX = 32
ATTEMPT_MAX_S = 5.0
BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 10.0
SEND_WEBHOOK = "send webhook"  # the name of a span, one for each attempt

log = structlog.get_logger(__name__)


class WebhookReceiver(Protocol):
    """Whoever is told."""

    async def deliver(self, body: bytes) -> None:
        """Return when the receiver answered with 2xx. Raises DeliveryError."""


class WebhookSender:
    """Sends batches; those of one batch go at once."""

    def __init__(self, units: Units, receiver: WebhookReceiver, clock: Clock, rng: Rng) -> None:
        self._units = units
        self._receiver = receiver
        self._clock = clock
        self._rng = rng
        self._is_receiver_away = False

    async def send_due(self) -> int | None:
        """Send some of what is due; returns when the next is. Raises StorageUnavailableError."""
        async with self._units.reading() as unit:
            waiting = await unit.webhooks.next_due(BATCH_MAX)
        now_ms = self._clock.wall_ms()
        due = [webhook for webhook in waiting if webhook.next_attempt_at_ms <= now_ms]
        if not due:
            return waiting[0].next_attempt_at_ms if waiting else None
        attempts = await asyncio.gather(*(self._send(webhook) for webhook in due))
        self._say([attempt.error for attempt in attempts if attempt.error is not None])
        # Whoever dies before this commit sends them again: that is what "at least once" says.
        async with self._units.writing() as unit:
            await unit.webhooks.record(attempts)
            await unit.commit()
        return now_ms  # there may be more, and those that waited for these

    async def _send(self, webhook: WaitingWebhook) -> Attempt:
        error = None
        try:
            with telemetry.joined_span(SEND_WEBHOOK, webhook.traceparent):
                async with timeout(self._clock, ATTEMPT_MAX_S):
                    await self._receiver.deliver(webhook.body.encode())
        except DeliveryError as refused:
            error = str(refused)
        except TimeoutError:
            error = f"no answer within {ATTEMPT_MAX_S:.0f} s"
        backoff_ms = 0 if error is None else self._backoff_ms(webhook.attempts)
        return Attempt(webhook.webhook_id, self._clock.wall_ms() + backoff_ms, error)

    def _backoff_ms(self, earlier_attempts: int) -> int:
        """Doubled each time, and shortened by chance, to half of it at most, so that not all come back at once."""
        longest_s = min(BACKOFF_FIRST_S * 2 ** min(earlier_attempts, 16), BACKOFF_MAX_S)
        return int(longest_s * (500 + 500 * self._rng.random()))

    def _say(self, errors: list[str]) -> None:
        if errors and not self._is_receiver_away:
            log.warning("webhooks are not taken; sending them again until they are", count=len(errors), error=errors[0])
        if self._is_receiver_away and not errors:
            log.info("webhooks are taken again")
        self._is_receiver_away = bool(errors)
