"""Webhooks: when they are due, and how they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import httpx
import structlog

import telemetry
from osenv import Clock, Rng
from osenv.clock import timeout
from sandbox_gateway.domain import SIGNATURE_HEADER, Attempt, DeliveryError, WaitingWebhook, signature
from sandbox_gateway.sql import Units
from servicekit.background import WakeUp
from servicekit.errors import StorageUnavailableError
from servicekit.http.client import http_client

CONNECT_MAX_S = 2.0
CONNECTIONS_MAX = 32
ANSWER_SHOWN_MAX_CHARACTERS = 200


class HttpWebhooks:
    """Implements `WebhookReceiver`; its owner closes it. The sender bounds the time for an answer.

    The receiver of webhooks over HTTP: signed, connections reused, and no redirect followed with a signature.
    """

    def __init__(
        self, url: str, secrets: Sequence[str], clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` is for tests; without it requests go over the network."""
        self._url = url
        self._secrets = tuple(secrets)
        self._clock = clock
        self._client = http_client(
            timeout=httpx.Timeout(None, connect=CONNECT_MAX_S), connections_max=CONNECTIONS_MAX, transport=transport
        )

    async def deliver(self, body: bytes) -> None:
        headers = {
            "Content-Type": "application/json",
            SIGNATURE_HEADER: signature(self._secrets, body, self._clock.wall_ms() // 1000),
        }
        telemetry.inject(headers)
        try:
            answer = await self._client.post(self._url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise DeliveryError(f"{self._url} does not answer: {type(error).__name__} {error}") from error
        if not answer.is_success:
            said = answer.text[:ANSWER_SHOWN_MAX_CHARACTERS]
            raise DeliveryError(f"{self._url} answered {answer.status_code}: {said}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


BATCH_MAX = 32
ATTEMPT_MAX_S = 5.0
BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 10.0
SEND_WEBHOOK = "send webhook"  # the name of a span, one for each attempt

log = structlog.get_logger(__name__)


class WebhookReceiver(Protocol):
    """The receiver of webhooks."""

    async def deliver(self, body: bytes) -> None:
        """Return when the receiver answered with 2xx. Raises DeliveryError."""


class WebhookSender:
    """Sends batches; those of one batch go at once.

    Invariants: each attempt has `ATTEMPT_MAX_S`; an event that is not taken is sent again, later and later, up to
    `BACKOFF_MAX_S` apart, without end; it holds up later events of its own charge and no others.
    """

    def __init__(self, units: Units, receiver: WebhookReceiver, clock: Clock, rng: Rng) -> None:
        self._units = units
        self._receiver = receiver
        self._clock = clock
        self._rng = rng
        self._is_receiver_away = False

    async def send_due(self) -> int | None:
        """Send some of what is due; returns when the next is. Raises StorageUnavailableError."""
        async with self._units.snapshot() as unit:
            waiting = await unit.webhooks.next_due(BATCH_MAX)
        now_ms = self._clock.wall_ms()
        due = [webhook for webhook in waiting if webhook.next_attempt_at_ms <= now_ms]
        if not due:
            return waiting[0].next_attempt_at_ms if waiting else None
        attempts = await asyncio.gather(*(self._send(webhook) for webhook in due))
        self._say([attempt.error for attempt in attempts if attempt.error is not None])
        # A process that dies before this commit sends them again: that is what "at least once" says.
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
        except DeliveryError as rejected:
            error = str(rejected)
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


STORAGE_RETRY_MS = 500
# The wall clock may be set forward while the loop sleeps by the monotonic one.
SLEEP_MAX_S = 5.0


class DueWork:
    """`work` does some of what is due and returns the wall-clock moment when it wants to be called next, or None.

    Work that comes due: a loop that works, and then sleeps until the next of it is due, or until it is woken.

    Invariants: what is due is read from the database each time, so that nothing has to survive in memory; a database
    that does not answer ends nothing.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[int | None]], clock: Clock) -> None:
        self.name = name
        self._work = work
        self._clock = clock
        self._wake = WakeUp()
        self._stopping = False
        self._is_storage_away = False

    def wake(self) -> None:
        """Something new may be due."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run` return after the work in hand."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopping:
            self._wake.reset()  # before reading: what is written after the read wakes again
            await self._sleep_until(await self._next_moment_ms())

    async def _next_moment_ms(self) -> int | None:
        try:
            moment_ms = await self._work()
        except StorageUnavailableError as error:
            if not self._is_storage_away:
                log.warning(
                    "the database does not answer; trying again until it does", work=self.name, error=str(error)
                )
            self._is_storage_away = True
            return self._clock.wall_ms() + STORAGE_RETRY_MS
        if self._is_storage_away:
            log.info("the database answers again", work=self.name)
        self._is_storage_away = False
        return moment_ms

    async def _sleep_until(self, moment_ms: int | None) -> None:
        if self._stopping:
            return
        rest_s = SLEEP_MAX_S if moment_ms is None else (moment_ms - self._clock.wall_ms()) / 1000
        await self._wake.wait(self._clock, min(max(rest_s, 0.0), SLEEP_MAX_S))
