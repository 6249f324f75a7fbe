"""The composition root: the lottery on its database, its group and a real clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from gift_lottery.adapters.database import open_database
from gift_lottery.config import Config
from gift_lottery.consumer import build_consumer
from gift_lottery.lottery import Lottery
from gift_lottery.tables import inbox
from mqclient.sqlalchemy import Retention, TableCleaner
from osenv import RealClock

INBOX_KEEP_DAYS = 14  # longer than a message can come again: see Retention

log = structlog.get_logger(__name__)


async def serve(config: Config, stop: asyncio.Event) -> None:
    """Consume until `stop` is set. Raises MQClientError, and what the database raises."""
    async with _open(config) as engine:
        cleaner = TableCleaner(engine.begin, RealClock(), [Retention(inbox, INBOX_KEEP_DAYS)])
        async with asyncio.TaskGroup() as tasks, build_consumer(config.mq_url, _lottery(engine, config)):
            tasks.create_task(cleaner.run())
            log.info("the gift lottery is open", mq_url=config.mq_url, database=config.database)
            await stop.wait()
            cleaner.stop()
    log.info("the gift lottery has closed")


async def show_winners(config: Config) -> str:
    """A line for each gift that has a buyer, and one for what is left."""
    async with _open(config) as engine:
        lottery = _lottery(engine, config)
        winners, standing = await lottery.winners(), await lottery.standing()
    lines = [f"{order_id} {buyer_id} {status}" for order_id, buyer_id, status in winners]
    return "\n".join([*lines, f"{sum(standing.tickets.values())} tickets, {standing.gifts_left} gifts left"])


@asynccontextmanager
async def _open(config: Config) -> AsyncIterator[AsyncEngine]:
    engine = await open_database(config.database, config.gifts)
    try:
        yield engine
    finally:
        await engine.dispose()


def _lottery(engine: AsyncEngine, config: Config) -> Lottery:
    return Lottery(engine, RealClock(), config.secret.encode(), config.one_in)
