"""Behind a proxy: whose X-Forwarded-For and X-Forwarded-Proto are believed, over real sockets."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from servicekit.config import DEFAULT_TRUSTED_PROXIES
from servicekit.http.server import HttpServer

PROXIES = ("127.0.0.2/32", "10.0.0.0/8", "2001:db8::/32")


async def seen_from(address: str, *headers: tuple[str, str], trusted: tuple[str, ...] = PROXIES) -> str:
    """What the service takes for the client and the scheme of a request that comes from this address."""

    async def tell(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.client.host if request.client else None} {request.url.scheme}")

    stop = asyncio.Event()
    with HttpServer("127.0.0.1", 0, trusted_proxies=trusted) as server:
        serving = asyncio.create_task(server.serve(Starlette(routes=[Route("/", tell)]), stop))
        try:
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address=address)) as http:
                return (await http.get(f"http://127.0.0.1:{server.port}/", headers=list(headers))).text
        finally:
            stop.set()
            await serving


FOR, PROTO = "X-Forwarded-For", "X-Forwarded-Proto"


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ([], "127.0.0.2 http"),
        ([(FOR, "203.0.113.7"), (PROTO, "https")], "203.0.113.7 https"),
        ([(FOR, "192.0.2.1, 203.0.113.7")], "203.0.113.7 http"),  # the first was said by the client itself
        ([(FOR, "192.0.2.1, 203.0.113.7, 10.1.2.3")], "203.0.113.7 http"),  # two proxies, one after the other
        ([(FOR, "192.0.2.1"), (FOR, "203.0.113.7, 10.1.2.3")], "203.0.113.7 http"),
        ([(FOR, "203.0.113.7:5123")], "203.0.113.7 http"),
        ([(FOR, "[2001:db9::7]:5123, 2001:db8::1")], "2001:db9::7 http"),
        ([(FOR, "")], "127.0.0.2 http"),
        ([(PROTO, "gopher")], "127.0.0.2 http"),
    ],
)
async def test_the_last_address_that_is_no_trusted_proxy_is_the_clients(
    headers: list[tuple[str, str]], seen: str
) -> None:
    assert await seen_from("127.0.0.2", *headers) == seen


@pytest.mark.parametrize("trusted", [PROXIES, ()])
async def test_nothing_is_believed_of_other_peers(trusted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's own variable
    headers = [(FOR, "203.0.113.7"), (PROTO, "https")]
    assert await seen_from("127.0.0.3", *headers, trusted=trusted) == "127.0.0.3 http"


async def test_a_proxy_on_the_same_machine_is_trusted_unless_told() -> None:
    assert await seen_from("127.0.0.1", (FOR, "203.0.113.7"), trusted=DEFAULT_TRUSTED_PROXIES) == "203.0.113.7 http"
