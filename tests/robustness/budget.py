"""Figure G13: hostile clients beside a well-behaved one, on real processes.

While generated hostile clients (`budget_attacks.py`) are at work, the broker and the name server stay within the memory
that docs/guides/guarantees.md says they need, a producer that sends 100 bytes every 10 ms waits at most `P99_MS` for
99 of 100 acknowledgements, or `SLOWER` times what it waited before on this machine, and nothing acknowledged is
lost. The same holds for orders and payments under hostile HTTP clients (`budget_http.py`), with a buyer who orders
every 10 ms.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
from kills import QUEUES, TIMEOUT_S, TOPIC, read_queues
from numbered_load import Book, Sent, problems
from sweep import Outcome

from hourglass_local.cluster import SYNC_FLUSH, Cluster
from hourglass_local.http_client import ShopError
from hourglass_local.process import ManagedProcess
from hourglass_local.shop import Product, Shop
from mqclient import Admin, Message, MQClientError, Producer

MIB = 1024 * 1024
RESPONSE_MEMORY_BYTES = 64 * MIB
# Beside the responses: the process itself (90 MiB), open polls (90), filters (40), the tail of the log and what was
# just read of it (32), requests that arrive on the attackers' streams (100).
BROKER_BYTES_MAX = RESPONSE_MEMORY_BYTES + 352 * MIB
NAME_SERVER_BYTES_MAX = 256 * MIB
P99_MS, SLOWER = 250.0, 5.0
# A buyer places 80 to 200 orders during an attack: p99 is that of one or two, which a disk alone can delay by seconds.
# An attack that delays others does so twice.
ATTACKS_MAX = 2
SERVICE_BYTES_MAX = 384 * MIB  # the process itself (160 MiB), 2,000 connections with a head and a body (160), answers
SHOP_P99_MS = 1_000.0  # an order is a transaction on disk, a half message, and its end
SHOP_EVERY = 4  # of so many seeds one has the shop
BUYER, PRODUCT, PRODUCT_UNITS = "buyer-1", "seat", 1_000_000
CONTROL_SENDS = 200
HOSTILE_CLIENTS = 50  # of one seed
INTERVAL_S = 0.01
BODY = bytes(100)


class Probe:
    """The well-behaved client: how long each of its requests took, measured also when it fails."""

    def __init__(self) -> None:
        self.sent = self.failed = 0
        self._took_ms: list[float] = []

    async def ask(self) -> None:
        """One request. Raises the error of its kind when it fails."""
        raise NotImplementedError

    async def send(self) -> None:
        began = time.monotonic()
        self.sent += 1
        try:
            await self.ask()
        except (MQClientError, ShopError):
            self.failed += 1
        self._took_ms.append((time.monotonic() - began) * 1_000)
        await asyncio.sleep(INTERVAL_S)

    def p99_ms(self) -> float:
        """Of all since the last call."""
        took, self._took_ms = sorted(self._took_ms), []
        return took[len(took) * 99 // 100]


class ProducerProbe(Probe):
    """Sends messages that have numbers."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self.book = Book()
        self._producer = producer

    async def ask(self) -> None:
        body = f"0:{self.sent}:".encode() + BODY
        sent = self.book.tried[body] = Sent(0, self.sent, body)
        result = await self._producer.send(Message(TOPIC, body), timeout=TIMEOUT_S)
        queue = result.message_queue
        self.book.acknowledge((queue.queue_id, result.queue_offset), sent)


class BuyerProbe(Probe):
    """Orders a seat, again and again."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self.orders: set[str] = set()
        self._shop = shop

    async def ask(self) -> None:
        self.orders.add((await self._shop.place_order(BUYER, {PRODUCT: 1}, f"order-{self.sent}")).order_id)

    async def lost(self) -> list[str]:
        """What is wrong with the orders that were answered."""
        gone = self.orders - (await self._shop.orders()).keys()
        return [f"{len(gone)} orders that were answered are gone: {min(gone)}"] if gone else []


async def run_budget(folder: Path, seed: int, hostile_clients: int) -> Outcome:
    """One broker and one name server under this many hostile clients."""
    settings = {"responseMemoryBytesMax": str(RESPONSE_MEMORY_BYTES)}
    async with Cluster(folder, orders=False, flush=SYNC_FLUSH, broker_settings=settings) as cluster:
        limits = {cluster.brokers[0]: BROKER_BYTES_MAX, cluster.name_servers[0]: NAME_SERVER_BYTES_MAX}
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        async with Producer("numbers", cluster.url) as producer:
            probe = ProducerProbe(producer)
            attackers = ["budget_attacks.py", cluster.broker_addresses[0], cluster.name_server_addresses[0]]
            found, counts = await _measured(probe, attackers, seed, hostile_clients, limits, P99_MS)
        found += problems(probe.book, await read_queues(cluster.broker_addresses[0]))
    return Outcome(hostile_clients, tuple(found), counts)


async def run_shop_budget(folder: Path, seed: int, hostile_clients: int) -> Outcome:
    """Orders and payments, on SQLite, under this many hostile clients."""
    async with Cluster(folder) as cluster, Shop(cluster.orders_url, cluster.badges) as shop:
        limits = dict.fromkeys((cluster.orders, cluster.payments), SERVICE_BYTES_MAX)
        await shop.add_product(Product(PRODUCT, PRODUCT, 100, "CNY", PRODUCT_UNITS))
        probe = BuyerProbe(shop)
        addresses = [url.removeprefix("http://") for url in (cluster.orders_url, cluster.payments_url)]
        attackers = ["budget_http.py", *addresses, cluster.badges.buyer("hostile")]
        found, counts = await _measured(probe, attackers, seed, hostile_clients, limits, SHOP_P99_MS)
        found += await probe.lost()
    return Outcome(hostile_clients, tuple(found), counts)


async def _measured(
    probe: Probe,
    attackers: Sequence[str],
    seed: int,
    hostile_clients: int,
    limits: Mapping[ManagedProcess, int],
    p99_max_ms: float,
) -> tuple[list[str], dict[str, int]]:
    """What was wrong under attack, and figures; `limits` are bytes."""
    for _ in range(CONTROL_SENDS):
        await probe.send()
    control_ms = probe.p99_ms()
    allowed_ms = max(p99_max_ms, SLOWER * control_ms)
    p99s_ms: list[float] = []
    found: list[str] = []
    while len(p99s_ms) < ATTACKS_MAX and not found and (not p99s_ms or p99s_ms[-1] > allowed_ms):
        found = await _under_attack([*attackers, str(seed), str(hostile_clients)], probe, limits)
        p99s_ms.append(probe.p99_ms())
    p99_ms = min(p99s_ms)
    if p99_ms > allowed_ms:
        found.append(f"p99 {p99_ms:.0f} ms under attack, {control_ms:.0f} before; at most {allowed_ms:.0f}")
    if probe.failed:
        found.append(f"{probe.failed} requests of the well-behaved client failed")
    counts = {"sends": probe.sent, "p99 ms": int(p99_ms), "control p99 ms": int(control_ms)}
    for process, bytes_max in limits.items():
        process.sample()
        counts[f"{process.name} MiB"] = peak = process.usage.rss_peak_bytes // MIB
        if peak > bytes_max // MIB:
            found.append(f"{process.name} took {peak} MiB; at most {bytes_max // MIB} are documented")
    return found, counts


async def _under_attack(command: Sequence[str], probe: Probe, processes: Iterable[ManagedProcess]) -> list[str]:
    script, *arguments = command
    attackers = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name(script)), *arguments, stderr=asyncio.subprocess.DEVNULL
    )
    ended = asyncio.create_task(attackers.wait())
    try:
        while not ended.done():
            await probe.send()
            for process in processes:
                process.sample()
        return [] if ended.result() == 0 else [f"the attackers ended with code {ended.result()}"]
    finally:
        ended.cancel()
        if attackers.returncode is None:
            psutil.Process(attackers.pid).kill()
            await attackers.wait()


class BudgetSweep:
    """The hostile clients of `make robustness`; a seed is `HOSTILE_CLIENTS` of them on one broker, or on one shop."""

    name, figure, unit, goal, share = "budget", "G13", "hostile clients", 10_000, 15

    def run(self, seed: int, deadline: float) -> Outcome:
        world = run_budget if seed % SHOP_EVERY else run_shop_budget
        with tempfile.TemporaryDirectory(prefix="hourglass-budget-") as folder:
            return asyncio.run(world(Path(folder), seed, HOSTILE_CLIENTS))
