"""The processes of a shop that are killed and paused, and that come back on the same files and ports.

Invariant: everybody runs when `suffer` returns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shop_plan import BROKER, POSTGRESQL, Blow, Deed

from hourglass_local.cluster import Cluster
from hourglass_local.process import ManagedProcess
from servicekit.testing.postgresql import PostgresServer


@dataclass(frozen=True, slots=True)
class Victim:
    """What can be done to one of them."""

    kill: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]
    pause: Callable[[], None]
    resume: Callable[[], None]


def victims_of(cluster: Cluster) -> dict[str, Victim]:
    """By name: the broker, orders (every process of it), payments, the gateway, and PostgreSQL if there is one."""
    (broker,) = cluster.brokers
    found = {BROKER: _process(broker)} | {name: _process(one) for name, one in cluster.shop.processes.items()}
    if cluster.shop.postgresql is not None:
        found[POSTGRESQL] = _server(cluster.shop.postgresql)
    return found


async def suffer(
    victims: dict[str, Victim], blows: Sequence[Blow], begun: Sequence[asyncio.Event], counts: Counter[str]
) -> None:
    """Every blow in its turn; `begun` are told when, and `counts` says how many have been dealt."""
    for blow, has_begun in zip(blows, begun, strict=True):
        has_begun.set()
        await asyncio.sleep(blow.after_s)
        chosen = [victims[name] for name in blow.victims]
        if blow.deed is Deed.PAUSE:
            await _pause(chosen, blow.for_s)
        else:
            await asyncio.gather(*(victim.kill() for victim in chosen))
            await asyncio.sleep(blow.for_s)
            await asyncio.gather(*(victim.start() for victim in chosen))
        for name in blow.victims:
            counts[f"{blow.deed.value} of {name}"] += 1


async def _pause(chosen: Sequence[Victim], for_s: float) -> None:
    for victim in chosen:
        victim.pause()
    try:
        await asyncio.sleep(for_s)
    finally:
        for victim in chosen:
            victim.resume()


def _process(process: ManagedProcess) -> Victim:
    return Victim(process.kill, process.start, process.pause, process.resume)


def _server(server: PostgresServer) -> Victim:
    async def kill() -> None:
        await asyncio.to_thread(server.kill)

    async def start() -> None:
        await asyncio.to_thread(server.start)

    return Victim(kill, start, server.pause, server.resume)
