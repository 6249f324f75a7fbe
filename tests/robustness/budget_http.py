"""Hostile HTTP clients, as a table of behaviours: `python budget_http.py ORDERS PAYMENTS TOKEN SEED COUNT`.

As budget_attacks.py, for the addresses (host:port) of orders and payments; TOKEN is that of a buyer, which some of them
have. They write HTTP by hand: a client library would not send what they send.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from osenv import SeededRng

AT_ONCE = 4  # behaviours
HOLD_S = 0.5  # how long a behaviour stands still
WITHIN_S = 15.0
REJECTIONS = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError)
PATHS = ("/products", "/orders", "/payments", "/health/ready", "/openapi.json", "/docs", "/shop", "/webhooks/gateway")
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW", "")


@dataclass
class HttpAttack:
    """What a behaviour has to work with."""

    addresses: tuple[str, str]  # of orders and payments
    token: str
    rng: SeededRng
    open: AsyncExitStack  # what it has opened is closed when it has ended

    async def connect(self, address: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own, to either service if none is named."""
        host, _, port = (address or self.rng.choice(self.addresses)).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.open.callback(writer.close)
        return reader, writer

    def count(self, least: int, most: int) -> int:
        """A random number of something."""
        return self.rng.randrange(least, most + 1)

    def head(self, method: str, path: str, *lines: str, token: bool = False) -> bytes:
        """The head of a request."""
        bearer = [f"Authorization: Bearer {self.token}"] if token else []
        return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: shop", *bearer, *lines, "", ""]).encode()

    def post(self, path: str, body: bytes, *lines: str, token: bool = True) -> bytes:
        """A whole request."""
        told = (f"Content-Length: {len(body)}", "Content-Type: application/json", *lines)
        return self.head("POST", path, *told, token=token) + body


async def half_heads(attack: HttpAttack) -> None:
    """Connections on which nothing comes, or the beginning of a request."""
    for _ in range(attack.count(10, 300)):
        _, writer = await attack.connect()
        head = attack.head("GET", attack.rng.choice(PATHS))
        writer.write(head[: attack.count(0, len(head) - 1)])
    await asyncio.sleep(HOLD_S)


async def slow_heads(attack: HttpAttack) -> None:
    """Heads that come line by line, and never end."""
    writers = [(await attack.connect())[1] for _ in range(attack.count(1, 50))]
    for number in range(attack.count(5, 40)):
        for writer in writers:
            writer.write(b"GET /products HTTP/1.1\r\n" if not number else f"X-{number}: y\r\n".encode())
            await writer.drain()
        await asyncio.sleep(HOLD_S / 40)


async def huge_heads(attack: HttpAttack) -> None:
    """Long paths, long headers, and many of them."""
    for _ in range(attack.count(1, 20)):
        reader, writer = await attack.connect()
        lines = [f"X-{number}: {'v' * attack.count(0, 2_000)}" for number in range(attack.count(0, 2_000))]
        writer.write(attack.head("GET", "/products/" + "p" * attack.count(0, 100_000), *lines))
        with suppress(*REJECTIONS):
            await reader.read(65_536)


async def slow_bodies(attack: HttpAttack) -> None:
    """Orders whose bodies come byte by byte, with a token and without."""
    writers = [(await attack.connect(attack.addresses[0]))[1] for _ in range(attack.count(5, 200))]
    for writer in writers:
        body = attack.post("/orders", b" " * 60_000, "Idempotency-Key: slow", token=attack.count(0, 1) > 0)
        writer.write(body[:-50_000])
    for _ in range(5):
        await asyncio.sleep(HOLD_S / 5)
        for writer in writers:
            writer.write(b" ")


async def huge_bodies(attack: HttpAttack) -> None:
    """Bodies that are longer than any may be, told before, in chunks, and told wrongly."""
    for _ in range(attack.count(1, 20)):
        reader, writer = await attack.connect()
        path, size = attack.rng.choice(PATHS), attack.count(64_000, 4_000_000)
        kind = attack.count(0, 2)
        if kind == 0:
            writer.write(attack.post(path, bytes(size)))
        elif kind == 1:
            writer.write(attack.head("POST", path, "Transfer-Encoding: chunked", token=True))
            writer.write(f"{size:x}\r\n".encode() + bytes(size))
        else:
            writer.write(
                attack.head("POST", path, f"Content-Length: {attack.count(0, 1 << 70)}", token=True) + bytes(size)
            )
        with suppress(*REJECTIONS):
            await writer.drain()
            await reader.read(65_536)


async def malformed_heads(attack: HttpAttack) -> None:
    """What is no HTTP, or nearly."""
    for _ in range(attack.count(5, 100)):
        reader, writer = await attack.connect()
        lines = attack.rng.choice(
            [
                ("Content-Length: -1",),
                ("Content-Length: 1", "Content-Length: 2"),
                ("Transfer-Encoding: gzip",),
                ("a b: c",),
            ]
        )
        whole = attack.head(
            attack.rng.choice(METHODS), attack.rng.choice(("", "*", "//", "/%", "/\x00", "/a b")), *lines
        )
        writer.write(
            attack.rng.choice([whole, attack.rng.randbytes(500) + b"\r\n\r\n", whole.replace(b"HTTP/1.1", b"HTTP/9")])
        )
        with suppress(*REJECTIONS):
            await reader.read(65_536)


async def malformed_bodies(attack: HttpAttack) -> None:
    """JSON that is deep, wide, of the wrong types, or none."""
    bodies = (
        b"[" * attack.count(1, 30_000),
        b'{"items":' * attack.count(1, 5_000) + b"1" + b"}" * 5_000,
        json.dumps({"items": [{"product_id": "p" * 50, "quantity": 1}] * attack.count(1, 900)}).encode(),
        json.dumps({"items": [{"product_id": None, "quantity": "1e999"}], "x": "\ud800"}).encode(),
        b'{"items":[{"product_id":"a","quantity":' + b"9" * attack.count(1, 5_000) + b"}]}",
        attack.rng.randbytes(attack.count(0, 60_000)),
    )
    for number in range(attack.count(5, 60)):
        reader, writer = await attack.connect()
        path = attack.rng.choice(("/orders", "/payments", "/refunds", "/products"))
        writer.write(attack.post(path, attack.rng.choice(bodies), f"Idempotency-Key: malformed-{number}"))
        with suppress(*REJECTIONS):
            await reader.read(65_536)


async def forged_tokens(attack: HttpAttack) -> None:
    """Tokens that are long, cut, changed, or of another kind."""
    for _ in range(attack.count(5, 100)):
        reader, writer = await attack.connect()
        token = attack.rng.choice(
            [attack.token[:-3], "x" * attack.count(0, 12_000), "a.b.c", "." * attack.count(0, 3_000), attack.token * 3]
        )
        writer.write(attack.head("GET", "/orders", f"Authorization: Bearer {token}"))
        with suppress(*REJECTIONS):
            await reader.read(65_536)


async def forged_webhooks(attack: HttpAttack) -> None:
    """What a gateway tells, with signatures that are wrong, old, many or long."""
    for _ in range(attack.count(5, 100)):
        reader, writer = await attack.connect(attack.addresses[1])
        signature = f"t={attack.count(0, 1 << 60)}," + ",".join(
            f"v1={'f' * attack.count(0, 128)}" for _ in range(attack.count(0, 80))
        )
        body = json.dumps({"id": "e" * attack.count(0, 60_000), "type": "payment.captured"}).encode()
        writer.write(attack.post("/webhooks/gateway", body, f"Gateway-Signature: {signature}", token=False))
        with suppress(*REJECTIONS):
            await reader.read(65_536)


async def unread_answers(attack: HttpAttack) -> None:
    """Many requests on each connection, one behind the other, and no answer is read."""
    for _ in range(attack.count(1, 50)):
        _, writer = await attack.connect()
        request = attack.head("GET", attack.rng.choice(("/products?limit=200", "/openapi.json", "/docs")))
        with suppress(asyncio.TimeoutError, OSError):
            async with asyncio.timeout(HOLD_S / 5):
                for _ in range(attack.count(1, 200)):
                    writer.write(request)
                    await writer.drain()
    await asyncio.sleep(HOLD_S)


async def many_requests(attack: HttpAttack) -> None:
    """Requests without a token as fast as they go, on many connections, that are read."""

    async def ask(path: str, times: int) -> None:
        reader, writer = await attack.connect()
        for _ in range(times):
            writer.write(attack.head("GET", path))
            with suppress(*REJECTIONS):
                await reader.readuntil(b"\r\n\r\n")

    asks = (ask(attack.rng.choice(PATHS), attack.count(1, 10)) for _ in range(attack.count(5, 30)))
    await asyncio.gather(*asks, return_exceptions=True)


async def held_event_streams(attack: HttpAttack) -> None:
    """Streams of the events of orders that there are not, or that are another's, which are never read."""
    for _ in range(attack.count(10, 200)):
        _, writer = await attack.connect(attack.addresses[0])
        order_id = attack.rng.choice(["01" + "A" * 24, "unknown", "%2e%2e"])
        writer.write(attack.head("GET", f"/orders/{order_id}/events", "Accept: text/event-stream", token=True))
    await asyncio.sleep(HOLD_S)


Behaviour = Callable[[HttpAttack], Awaitable[None]]
BEHAVIOURS: tuple[Behaviour, ...] = (
    half_heads, slow_heads, huge_heads, slow_bodies, huge_bodies, malformed_heads, malformed_bodies, forged_tokens,
    forged_webhooks, unread_answers, many_requests, held_event_streams,
)  # fmt: skip


async def run(orders: str, payments: str, token: str, seed: int, count: int) -> None:
    """`count` behaviours, some at a time; which and how is the seed's."""
    rng, waiting = SeededRng(seed), list(range(count))

    async def work() -> None:
        while waiting:
            waiting.pop()
            behaviour, own = rng.choice(BEHAVIOURS), SeededRng(rng.randrange(0, 1 << 32))
            async with AsyncExitStack() as opened:
                with suppress(*REJECTIONS):
                    await asyncio.wait_for(behaviour(HttpAttack((orders, payments), token, own, opened)), WITHIN_S)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
