"""The receiver of webhooks over HTTP: signed, connections reused, and no redirect followed with a signature."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

import telemetry
from osenv import Clock
from sandbox_gateway.domain.errors import DeliveryError
from sandbox_gateway.domain.webhook import SIGNATURE_HEADER, signature
from servicekit.adapters.instrumentation import trace_requests

CONNECT_MAX_S = 2.0
CONNECTIONS_MAX = 32
# Below uvicorn's 5 s: a connection that the other side is about to close is not used again.
KEEP_ALIVE_S = 3.0
ANSWER_SHOWN_MAX_CHARACTERS = 200


class HttpWebhooks:
    """Implements `WebhookReceiver`; its owner closes it. How long an answer may take is for the sender to say."""

    def __init__(
        self, url: str, secrets: Sequence[str], clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """`transport` is for tests; without it requests go over the network."""
        self._url = url
        self._secrets = tuple(secrets)
        self._clock = clock
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(None, connect=CONNECT_MAX_S),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=KEEP_ALIVE_S),
            trust_env=False,  # the environment's proxies are not part of the configuration
        )
        trace_requests(self._client)

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
