"""G13: hostile clients beside a well-behaved one, on real processes.

While generated hostile clients (`budget_attacks.py`) are at work, the broker and the name server stay within the memory
that docs/guarantees.md says they need, a producer that sends 100 bytes every 10 ms waits at most `P99_MS` for 99 of 100
acknowledgements, or `SLOWER` times what it waited before on this machine, and nothing acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from kills import QUEUES, TIMEOUT_S, TOPIC, read_queues
from numbered_load import Book, Sent, problems
from sweep import Outcome

from hourglass_local.cluster import SYNC_FLUSH, Cluster
from hourglass_local.process import ManagedProcess
from mqclient import Admin, Message, MQClientError, Producer

MIB = 1024 * 1024
RESPONSE_MEMORY_BYTES = 64 * MIB
# Beside the responses: the process itself (90 MiB), open polls (90), filters (40), the tail of the log and what was
# just read of it (32), requests that arrive on the attackers' streams (100).
BROKER_BYTES_MAX = RESPONSE_MEMORY_BYTES + 352 * MIB
NAME_SERVER_BYTES_MAX = 256 * MIB
P99_MS, SLOWER = 250.0, 5.0
CONTROL_SENDS = 200
HOSTILE_CLIENTS = 50  # of one seed
INTERVAL_S = 0.01
BODY = bytes(100)


@dataclass
class Probe:
    """The well-behaved client: what it sent, and how long each acknowledgement took."""

    producer: Producer
    book: Book = field(default_factory=Book)
    took_ms: list[float] = field(default_factory=list)
    failed: int = 0

    async def send(self) -> None:
        """One message; measured, also when it fails."""
        number = len(self.book.tried) + 1
        body = f"0:{number}:".encode() + BODY
        sent = self.book.tried[body] = Sent(0, number, body)
        began = time.monotonic()
        try:
            result = await self.producer.send(Message(TOPIC, body), timeout=TIMEOUT_S)
        except MQClientError:
            self.failed += 1
        else:
            queue = result.message_queue
            self.book.acknowledge((queue.queue_id, result.queue_offset), sent)
        self.took_ms.append((time.monotonic() - began) * 1_000)
        await asyncio.sleep(INTERVAL_S)

    def p99_ms(self) -> float:
        """Of all since the last call."""
        took, self.took_ms = sorted(self.took_ms), []
        return took[len(took) * 99 // 100]


async def run_budget(folder: Path, seed: int, hostile_clients: int) -> Outcome:
    """One broker and one name server under this many hostile clients."""
    settings = {"responseMemoryBytesMax": str(RESPONSE_MEMORY_BYTES)}
    async with Cluster(folder, orders=False, flush=SYNC_FLUSH, broker_settings=settings) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        async with Producer("numbers", cluster.url) as producer:
            probe = Probe(producer)
            for _ in range(CONTROL_SENDS):
                await probe.send()
            control_ms = probe.p99_ms()
            found = await _under_attack(cluster, probe, seed, hostile_clients)
            p99_ms = probe.p99_ms()
        allowed_ms = max(P99_MS, SLOWER * control_ms)
        if p99_ms > allowed_ms:
            found.append(f"p99 {p99_ms:.0f} ms under attack, {control_ms:.0f} before; at most {allowed_ms:.0f}")
        if probe.failed:
            found.append(f"{probe.failed} sends of the well-behaved client failed")
        found += problems(probe.book, await read_queues(cluster.broker_addresses[0]))
        counts = {"sends": len(probe.book.tried), "p99 ms": int(p99_ms), "control p99 ms": int(control_ms)}
        for process, bytes_max in _limits(cluster):
            process.sample()
            counts[f"{process.name} MiB"] = peak = process.usage.rss_peak_bytes // MIB
            if peak > bytes_max // MIB:
                found.append(f"{process.name} took {peak} MiB; at most {bytes_max // MIB} are documented")
    return Outcome(hostile_clients, tuple(found), counts)


async def _under_attack(cluster: Cluster, probe: Probe, seed: int, hostile_clients: int) -> list[str]:
    attackers = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("budget_attacks.py")),
        cluster.broker_addresses[0],
        cluster.name_server_addresses[0],
        str(seed),
        str(hostile_clients),
        stderr=asyncio.subprocess.DEVNULL,
    )
    ended = asyncio.create_task(attackers.wait())
    try:
        while not ended.done():
            await probe.send()
            for process, _ in _limits(cluster):
                process.sample()
        return [] if ended.result() == 0 else [f"the attackers ended with code {ended.result()}"]
    finally:
        ended.cancel()
        if attackers.returncode is None:
            psutil.Process(attackers.pid).kill()
            await attackers.wait()


def _limits(cluster: Cluster) -> list[tuple[ManagedProcess, int]]:
    return [(cluster.brokers[0], BROKER_BYTES_MAX), (cluster.name_servers[0], NAME_SERVER_BYTES_MAX)]


class BudgetSweep:
    """The hostile clients of `make robustness`; a seed is `HOSTILE_CLIENTS` of them on one broker."""

    name, figure, unit, goal, share = "budget", "G13", "hostile clients", 10_000, 15

    def run(self, seed: int, deadline: float) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="hourglass-budget-") as folder:
            return asyncio.run(run_budget(Path(folder), seed, HOSTILE_CLIENTS))
