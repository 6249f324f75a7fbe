"""The processes of a shop that are killed and paused, and that come back on the same files and ports.

Invariant: all processes run when `strike` returns.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from shop_plan import BROKER, POSTGRESQL, REPLICA, Blow, Deed
from shop_truth import Truth

from hourglass_local.books import Books
from hourglass_local.cluster import Cluster
from hourglass_local.process import ManagedProcess
from hourglass_local.shop import CLOSED
from hourglass_local.waiting import eventually
from servicekit.testing.postgresql import PostgresServer

PAID_MAX_S = 60.0
HANG_S = 1.0  # who dies for long answers nothing before, so that much is under way when it is killed
# A standby that is not there: whatever is committed stays committed, and its client gets no answer.
COMMITS_HANG = ("ALTER SYSTEM SET synchronous_standby_names = 'missing'", "SELECT pg_reload_conf()")
COMMITS_RETURN = ("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


@dataclass(frozen=True, slots=True)
class Victim:
    """What can be done to one of them. Who hangs may be killed next, and not resumed."""

    kill: Callable[[], Awaitable[None]]
    start: Callable[[], Awaitable[None]]
    pause: Callable[[], None]
    resume: Callable[[], None]
    hang: Callable[[], Awaitable[None]]


def victims_of(cluster: Cluster) -> dict[str, Victim]:
    """By name: the broker, every process of orders and payments, the gateway, and if there is one the broker's replica
    and PostgreSQL.
    """
    queue = zip((BROKER, REPLICA), (*cluster.brokers, *cluster.replicas), strict=False)
    found = {name: _process(one) for name, one in queue} | {
        name: _process(one) for name, one in cluster.shop.processes.items()
    }
    if cluster.shop.postgresql is not None:
        found[POSTGRESQL] = _server(cluster.shop.postgresql)
    return found


@dataclass(frozen=True, slots=True)
class Away:
    """Who was killed or paused for long: `from_ms` to `to_ms`, and `turn_ms` is when its turn began. Wall clock."""

    name: str
    turn_ms: float
    from_ms: float
    to_ms: float

    def met(self, books: Books) -> dict[str, int]:
        """How many orders were half done when it began, or came to an end meanwhile."""
        captures = [payment.captured_at_ms for payment in books.payments.values() if payment.captured_at_ms is not None]
        expiries = [order.expires_at_ms for order in books.orders.values() if order.status == CLOSED]
        return {
            f"captured before {self.name} went": sum(self.turn_ms <= at_ms < self.from_ms for at_ms in captures),
            f"captured without {self.name}": sum(self.from_ms <= at_ms < self.to_ms for at_ms in captures),
            f"expired and closed without {self.name}": sum(self.from_ms <= at_ms < self.to_ms for at_ms in expiries),
        }


class Faults:
    """`counts` says how many blows have been dealt, and `away` which of them were long."""

    def __init__(self, victims: Mapping[str, Victim], truth: Truth) -> None:
        self.counts: Counter[str] = Counter()
        self.away: list[Away] = []
        self._victims = victims
        self._truth = truth

    async def strike(self, blows: Sequence[Blow], begun: Sequence[asyncio.Event]) -> None:
        """Every blow in its turn; `begun` are told when. Raises NotInTimeError if no payment is possible before a long
        one."""
        for blow, has_begun in zip(blows, begun, strict=True):
            turn_ms = time.time() * 1000
            has_begun.set()
            await asyncio.sleep(blow.after_s)
            if blow.is_long:
                await self._paid_since(turn_ms)
            from_ms = time.time() * 1000
            await self._deal(blow)
            for name in blow.victims:
                self.counts[f"{'long ' if blow.is_long else ''}{blow.deed.value} of {name}"] += 1
                if blow.is_long:
                    self.away.append(Away(name, turn_ms, from_ms, from_ms + blow.for_s * 1000))

    async def _paid_since(self, turn_ms: float) -> None:
        async def paid() -> bool:
            return any((payment.captured_at_ms or 0) >= turn_ms for payment in self._truth.paid.values())

        await eventually(paid, PAID_MAX_S, "an order is paid before a long outage")

    async def _deal(self, blow: Blow) -> None:
        chosen = [self._victims[name] for name in blow.victims]
        if blow.deed is Deed.PAUSE:
            await _pause(chosen, blow.for_s)
            return
        if blow.is_long:
            await asyncio.gather(*(victim.hang() for victim in chosen))
            await asyncio.sleep(HANG_S)
        await asyncio.gather(*(victim.kill() for victim in chosen))
        await asyncio.sleep(blow.for_s)
        await asyncio.gather(*(victim.start() for victim in chosen))


async def _pause(chosen: Sequence[Victim], for_s: float) -> None:
    for victim in chosen:
        victim.pause()
    try:
        await asyncio.sleep(for_s)
    finally:
        for victim in chosen:
            victim.resume()


def _process(process: ManagedProcess) -> Victim:
    async def hang() -> None:
        process.pause()

    return Victim(process.kill, process.start, process.pause, process.resume, hang)


def _server(server: PostgresServer) -> Victim:
    async def kill() -> None:
        await asyncio.to_thread(server.kill)

    async def start() -> None:
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(server.run_sql, "postgres", *COMMITS_RETURN)

    async def hang() -> None:
        await asyncio.to_thread(server.run_sql, "postgres", *COMMITS_HANG)

    return Victim(kill, start, server.pause, server.resume, hang)
