"""Transactions with real processes: a name server, a broker, a client with a SQLite file, and a proxy between them.

The crash is kill -9 of client, broker or both while a transaction stands in a gap. The client stops by itself inside
its own code; the proxy stops requests and answers on their way. Between write and sync a broker cannot be stopped from
outside: in these two gaps the request has left for the broker, and the broker dies while it is at it, or just after.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kills import read_queues
from sqlalchemy import create_engine
from transaction_client import TOPIC
from transaction_database import METADATA, TRANSACTIONS
from transaction_gaps import Crash, Gap
from transaction_model import Ending
from transaction_proxy import TransactionProxy

from hourglass_local.cluster import SYNC_FLUSH, Cluster
from hourglass_local.waiting import eventually
from mqclient import Admin
from mqclient.sqlalchemy.transactions import COMMITTED

KILLS = (Crash.CLIENT, Crash.BROKER_KILLED, Crash.BOTH_KILLED)
KILLS = (Crash.CLIENT, Crash.BROKER_KILLED, Crash.BOTH_KILLED)
SHOPPER = Path(__file__).with_name("transaction_shopper.py")
SETTINGS = {"transactionCheckInterval": "200", "transactionTimeOut": "400", "transactionCheckMax": "1000"}
IN_CLIENT = frozenset({Gap.HALF_ANSWERED, Gap.INSIDE, Gap.LOCAL_OVER, Gap.CHECK_ASKED, Gap.CHECK_KNOWN})
# Frames of one stream come one after the other, and the database has one writer.
FOR_ONE = frozenset({Gap.BEFORE_HALF, Gap.HALF_WRITTEN, Gap.HALF_STORED, Gap.INSIDE})
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class _Stop:
    """The gaps in which a task stands, in this process or in the client's."""

    reached: Callable[[], bool]
    release: Callable[[], None]


class Shopper:
    """The test's side of transaction_shopper.py."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.reached: Counter[Gap] = Counter()
        self.heard: dict[str, str] = {}
        self.ready = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(), name="shopper")

    @classmethod
    async def launch(cls, url: str, database: Path) -> Shopper:
        """Start it; `ready` says when it has joined its group."""
        arguments = (str(SHOPPER), url, str(database))
        return cls(await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE))

    def tell(self, **line: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def kill(self) -> None:
        """SIGKILL, by its own process id."""
        self._process.kill()
        await self._ended()

    async def stop(self) -> int:
        """Let it end; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._ended()

    async def _ended(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            await self._listening
            return await self._process.wait()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while text := await self._process.stdout.readline():
            line = json.loads(text)
            if "ready" in line:
                self.ready.set()
            elif "reached" in line:
                self.reached[Gap[line["reached"]]] += 1
            else:
                self.heard[line["heard"]] = line["what"]


@dataclass
class Shop:
    """The processes, and what became of the orders."""

    cluster: Cluster
    proxy: TransactionProxy
    database: Path
    shopper: Shopper
    admin: Admin
    counts: Counter[str] = field(default_factory=Counter)
    _orders: int = 0

    async def survive(self, gap: Gap, crash: Crash) -> str:
        """Cross the gap; what was seen, for people. Raises AssertionError with what is wrong."""
        before = self.counts.copy()
        problems = await self._cross(gap, crash)
        if problems:
            raise AssertionError("; ".join(problems))
        seen = ", ".join(f"{count} {name}" for name, count in sorted((self.counts - before).items()))
        return f"{gap.value}, {crash.value}: {seen}"

    async def _cross(self, gap: Gap, crash: Crash) -> list[str]:
        """A transaction that commits, and one that does not: a process dies when they are in the gap.

        Where only one can be in it, the other one is on its way there. Returns what is wrong in the end.
        """
        told = not gap.in_check
        orders = {
            self._order(): Ending.COMMITS if told else Ending.COMMITS_AND_SAYS_UNKNOW,
            self._order(): Ending.ROLLS_BACK if told else Ending.ROLLS_BACK_AND_SAYS_UNKNOW,
        }
        stops: list[_Stop] = []
        for order, ending in orders.items():
            stop = self._arm(gap) if not stops or gap not in FOR_ONE else None
            self.shopper.tell(send=order, ending=ending.name)
            if stop is not None:
                stops.append(stop)
                await eventually(stop.reached, TIMEOUT_S, gap.value, interval_s=0.002)
        await self._die(crash)
        for stop in stops:
            stop.release()
        await self._return(crash)
        return await self._problems(orders, senders_died=crash.of_client)

    def _arm(self, gap: Gap) -> _Stop:
        if gap not in IN_CLIENT:
            stop = self.proxy.gaps.arm(gap)
            return _Stop(lambda: stop.reached, stop.release)
        shopper, before = self.shopper, self.shopper.reached[gap]
        shopper.tell(arm=gap.name)
        return _Stop(lambda: shopper.reached[gap] > before, lambda: shopper.tell(go=gap.name))

    async def _die(self, crash: Crash) -> None:
        (broker,) = self.cluster.brokers
        dying = [self.shopper.kill()] if crash.of_client else []
        await asyncio.gather(*dying, *([broker.kill()] if crash.of_broker else []))

    async def _return(self, crash: Crash) -> None:
        (broker,) = self.cluster.brokers
        if crash.of_client:
            self.shopper = await Shopper.launch(f"mq://{self.proxy.address}", self.database)
        if crash.of_broker:
            await broker.start(TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            await self.shopper.ready.wait()

    async def _problems(self, orders: dict[str, Ending], *, senders_died: bool) -> list[str]:
        if not senders_died:
            await eventually(lambda: orders.keys() <= self.shopper.heard.keys(), TIMEOUT_S, "an end of the attempts")
        await eventually(self._all_has_ended, TIMEOUT_S, "an end of all transactions")
        visible = Counter([body for _, body in (await self._stored())])
        committed = self._committed()
        found = []
        for order, ending in orders.items():
            count, is_committed = visible[order.encode()], order in committed
            self.counts["committed" if is_committed else "not committed"] += 1
            if count != is_committed:
                found.append(f"{order}, which {ending.value}: committed {is_committed}, and visible {count} times")
            if is_committed and not ending.commits:
                found.append(f"{order} is committed, and it {ending.value}")
            if not senders_died and (self.shopper.heard[order] == "COMMITTED") > is_committed:
                found.append(f"the sender of {order} heard that it is committed")
        return found

    async def _all_has_ended(self) -> bool:
        """No transaction is open, and all that the broker has written is on disk: before that it cannot be read."""
        (address,) = self.cluster.broker_addresses
        if (await self.admin.list_transactions()).transactions:
            return False
        status = await self.admin.broker_status(address)
        return status.store.confirm_offset == status.log_max_offset

    async def _stored(self) -> list[tuple[int, bytes]]:
        (address,) = self.cluster.broker_addresses
        return (await read_queues(address, TOPIC, 1))[0]

    def _committed(self) -> set[str]:
        """Orders whose business row and transaction row are in the file."""
        recorded = f"SELECT transaction_id FROM {TRANSACTIONS.table.name} WHERE outcome = ?"
        statement = f"SELECT order_id FROM orders WHERE transaction_id IN ({recorded})"
        with closing(sqlite3.connect(self.database, timeout=TIMEOUT_S)) as connection:
            return {order for (order,) in connection.execute(statement, (COMMITTED,))}

    def _order(self) -> str:
        self._orders += 1
        return f"order-{self._orders}"


@asynccontextmanager
async def open_shop(folder: Path) -> AsyncIterator[Shop]:
    """Everything started; everything ended on leaving."""
    database = folder / "shop.db"
    engine = create_engine(f"sqlite:///{database}")
    METADATA.create_all(engine)
    engine.dispose()
    cluster = Cluster(folder / "cluster", orders=False, flush=SYNC_FLUSH, broker_settings=SETTINGS)
    proxy = TransactionProxy(cluster.name_server_addresses[0], cluster.broker_addresses[0])
    async with cluster, proxy.running(), Admin(cluster.url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=1, write_queue_count=1)
        shop = Shop(cluster, proxy, database, await Shopper.launch(f"mq://{proxy.address}", database), admin)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await shop.shopper.ready.wait()
            yield shop
            exit_code = await shop.shopper.stop()
            stopped = await cluster.stop()
            assert (exit_code, stopped.killed, stopped.failed, stopped.leftover) == (0, (), (), ())
        finally:
            await shop.shopper.stop()
