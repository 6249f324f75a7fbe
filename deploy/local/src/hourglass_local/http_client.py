"""An HTTP client as a buyer's program would have it, with a token for each caller: without an answer it asks again.

Invariant: a request is repeated as it is, with the key and the token of its first try, so that it is carried out once.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from osenv import RealClock
from servicekit.auth import ROLES, Keys, Tokens
from servicekit.http.client import PooledConnections

REQUEST_TIMEOUT_S = 5.0
GIVE_UP_AFTER_S = 30.0
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.05, 0.5
PAGE_SIZE = 200
CONNECTIONS_MAX = 64
IDEMPOTENCY_KEY, REPLAYED = "Idempotency-Key", "Idempotency-Replayed"
PROBLEM_PREFIX = "urn:hourglass:problem:"
SELLER_ID, OPERATOR_ID = "seller-1", "operator-1"
LIFETIME_S = 24 * 3600


class AccessTokens:
    """Issued when they are asked for the first time, and used until the end. Raises ValueError for unusable keys."""

    def __init__(self, keys: Keys) -> None:
        self._tokens = Tokens(keys, RealClock())
        self._issued: dict[tuple[str, str], str] = {}

    def buyer(self, buyer_id: str) -> str:
        return self._badge(buyer_id, "buyer")

    @property
    def seller(self) -> str:
        return self._badge(SELLER_ID, "seller")

    @property
    def operator(self) -> str:
        return self._badge(OPERATOR_ID, "operator")

    def _badge(self, subject: str, role: str) -> str:
        known = (subject, role)
        if known not in self._issued:
            self._issued[known] = self._tokens.issue(subject, ROLES[role], LIFETIME_S)
        return self._issued[known]


class ShopError(RuntimeError):
    """A service rejected, or gave no usable answer for too long; the message says what it said."""


class RejectedError(ShopError):
    """The service rejected, and would reject again; `problem` is the kind of problem, "" if there is none, and
    `members` are those of its document. `replayed` says that it is the answer to an earlier request with the same key.
    """

    def __init__(self, complaint: str, problem: str, members: Mapping[str, Any], *, replayed: bool = False) -> None:
        super().__init__(complaint)
        self.problem = problem
        self.members = members
        self.replayed = replayed


class HttpClient:
    """An async context manager around one connection pool; callers are told apart by their tokens (`badges`)."""

    def __init__(
        self,
        urls: str | Sequence[str],
        badges: AccessTokens,
        *,
        give_up_after_s: float = GIVE_UP_AFTER_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Of several `urls`, all of the same service, each try takes the next. `transport` is for tests; without it
        requests go over the network.
        """
        self.badges = badges
        self._urls = itertools.cycle([urls] if isinstance(urls, str) else urls)
        self.give_up_after_s = give_up_after_s
        # A request that gives up its wait for a connection would begin again at the end of the pool's queue.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, pool=give_up_after_s),
            transport=transport or PooledConnections(CONNECTIONS_MAX),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, token: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """The answer's members. Raises RejectedError, ShopError."""
        return dict((await self._ask("GET", path, headers=_bearer(token), params=parameters or {})).json())

    async def post(
        self, path: str, token: str, body: Mapping[str, Any] | None = None, key: str | None = None
    ) -> httpx.Response:
        """The answer when it is the last word; `key` is the idempotency key. Raises RejectedError, ShopError."""
        headers = _bearer(token) | ({} if key is None else {IDEMPOTENCY_KEY: key})
        return await self._ask("POST", path, headers=headers, **({} if body is None else {"json": body}))

    async def patch(self, path: str, token: str, body: Mapping[str, Any]) -> httpx.Response:
        """The answer when it is the last word. Raises RejectedError, ShopError."""
        return await self._ask("PATCH", path, headers=_bearer(token), json=body)

    async def all_pages(self, path: str, token: str) -> list[dict[str, Any]]:
        """Everything in a list. Raises RejectedError, ShopError."""
        items: list[dict[str, Any]] = []
        parameters: dict[str, str | int] = {"limit": PAGE_SIZE}
        while True:
            page = await self.get(path, token, parameters)
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            parameters = {"limit": PAGE_SIZE, "cursor": page["next_cursor"]}

    async def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        deadline = time.monotonic() + self.give_up_after_s
        pause_s = BACKOFF_FIRST_S
        while True:
            try:
                response = await self._client.request(method, next(self._urls) + path, **request)
                complaint = f"{method} {path} was answered {response.status_code}: {response.text[:500]}"
                if not _may_help_to_ask_again(response):
                    if response.is_success:
                        return response
                    raise _rejected(complaint, response)
            except httpx.TransportError as error:
                complaint = f"{method} {path} failed: {error!r}"
            if time.monotonic() + pause_s > deadline:
                raise ShopError(f"{complaint}; given up after {self.give_up_after_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)


def is_replayed(response: httpx.Response) -> bool:
    """Whether it is the answer to an earlier request with the same key."""
    return bool(response.headers.get(REPLAYED) == "true")


def _may_help_to_ask_again(response: httpx.Response) -> bool:
    """The services say so: what is not known yet, or too much at once, comes with Retry-After."""
    return response.is_server_error or (response.is_client_error and "Retry-After" in response.headers)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _rejected(complaint: str, response: httpx.Response) -> RejectedError:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return RejectedError(complaint, "", {})
    members = response.json()
    problem = str(members.get("type", "")).removeprefix(PROBLEM_PREFIX)
    return RejectedError(complaint, problem, members, replayed=is_replayed(response))
