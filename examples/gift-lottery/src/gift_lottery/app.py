"""The composition root: the configuration (GIFT_LOTTERY_*), the group on `order-events`, the database and a real clock.

The consumer is all that connects the lottery with the shop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from gift_lottery.database import inbox, open_database
from gift_lottery.lottery import GROUP, TAGS, Lottery, MalformedEventError, read_event
from mqclient import ClientConfig, ConsumeFromWhere, ConsumeStatus, MessageExt, PushConsumer
from mqclient.sqlalchemy import Retention, TableCleaner
from osenv import RealClock

PREFIX = "GIFT_LOTTERY_"
SECRET_LENGTH_MIN = 16
TOPIC = "order-events"
INBOX_KEEP_DAYS = 14  # longer than a message can come again: see Retention

log = structlog.get_logger(__name__)


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the variable and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set. Raises ConfigError when a value is not allowed."""

    secret: str  # it reveals the winners
    mq_url: str = "mq://127.0.0.1:9876"
    database: str = "gift-lottery.db"  # the path of an SQLite file
    one_in: int = 10
    gifts: int = 100  # for a database that is made; one that is there keeps its pot
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if len(self.secret) < SECRET_LENGTH_MIN:
            raise ConfigError(
                f"{PREFIX}SECRET has {len(self.secret)} characters; at least {SECRET_LENGTH_MIN} are needed, such as"
                " those of: python -c 'import secrets; print(secrets.token_hex(16))'"
            )
        if self.one_in < 1 or self.gifts < 0:
            raise ConfigError(f"{PREFIX}ONE_IN={self.one_in}, {PREFIX}GIFTS={self.gifts}: at least 1 and 0 are allowed")


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that the GIFT_LOTTERY_* variables make; others are not looked at. Raises ConfigError."""
    known = {PREFIX + field.name.upper(): field.name for field in fields(Config)}
    values: dict[str, str | int] = {"secret": ""}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        if name not in known:
            raise ConfigError(f"unknown configuration key {name}; known are {', '.join(known)}")
        is_number = known[name] in {"one_in", "gifts"}
        if is_number and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{name}={text!r} is not a whole number")
        values[known[name]] = int(text) if is_number else text
    return Config(**values)  # type: ignore[arg-type]


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


def build_consumer(url: str, lottery: Lottery, client_config: ClientConfig | None = None) -> PushConsumer:
    """A member of the group that is not started yet; the events that the queue still has take part, too."""
    consumer = PushConsumer(
        GROUP, url, client_config=client_config, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    consumer.subscribe(TOPIC, " || ".join(TAGS))

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        for message in messages:
            try:
                await lottery.handle(read_event(message.tag, message.body))
            except MalformedEventError as error:
                # It ends as a dead letter, where an operator finds it; success would hide it.
                log.warning("an event cannot be understood", error=str(error), message_id=message.message_id)
                return ConsumeStatus.RECONSUME_LATER
        return ConsumeStatus.CONSUME_SUCCESS

    consumer.register_message_listener(listener)
    return consumer
