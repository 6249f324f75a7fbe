"""An HTTP client as a buyer's program would have it: whoever gets no answer asks again.

Invariant: a request is repeated as it is, with the key of its first try, so that it is carried out once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

REQUEST_TIMEOUT_S = 5.0
GIVE_UP_AFTER_S = 30.0
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 0.5
PAGE_SIZE = 200
CONNECTIONS_MAX = 64

IDEMPOTENCY_KEY, REPLAYED = "Idempotency-Key", "Idempotency-Replayed"
PROBLEM_PREFIX = "urn:hourglass:problem:"


class ShopError(RuntimeError):
    """A service refused, or gave no usable answer for too long; the message says what it said."""


class RefusedError(ShopError):
    """The service refused, and would refuse again; `problem` is the kind of problem, "" if there is none."""

    def __init__(self, complaint: str, problem: str) -> None:
        super().__init__(complaint)
        self.problem = problem


class HttpClient:
    """An async context manager around one connection pool."""

    def __init__(
        self,
        url: str,
        *,
        give_up_after_s: float = GIVE_UP_AFTER_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` is for tests; without it requests go over the network."""
        self._give_up_after_s = give_up_after_s
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=REQUEST_TIMEOUT_S,
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """The answer's members. Raises RefusedError, ShopError."""
        return dict((await self._ask("GET", path, params=parameters or {})).json())

    async def post(self, path: str, body: Mapping[str, Any], key: str | None = None) -> httpx.Response:
        """The answer when it is the last word; `key` is the idempotency key. Raises RefusedError, ShopError."""
        return await self._ask("POST", path, json=body, headers={} if key is None else {IDEMPOTENCY_KEY: key})

    async def all_pages(self, path: str) -> list[dict[str, Any]]:
        """Everything in a list. Raises RefusedError, ShopError."""
        items: list[dict[str, Any]] = []
        parameters: dict[str, str | int] = {"limit": PAGE_SIZE}
        while True:
            page = await self.get(path, parameters)
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            parameters = {"limit": PAGE_SIZE, "cursor": page["next_cursor"]}

    async def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        deadline = time.monotonic() + self._give_up_after_s
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                response = await self._client.request(method, path, **request)
                complaint = f"{method} {path} was answered {response.status_code}: {response.text[:500]}"
                if not _may_help_to_ask_again(response):
                    if response.is_success:
                        return response
                    raise RefusedError(complaint, _problem(response))
            except httpx.TransportError as error:
                complaint = f"{method} {path} failed: {error!r}"
            if time.monotonic() + pause_s > deadline:
                raise ShopError(f"{complaint}; given up after {self._give_up_after_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)


def _may_help_to_ask_again(response: httpx.Response) -> bool:
    """The services say so: what is in progress, or not known yet, comes with Retry-After."""
    return response.is_server_error or "Retry-After" in response.headers


def _problem(response: httpx.Response) -> str:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return ""
    return str(response.json().get("type", "")).removeprefix(PROBLEM_PREFIX)
