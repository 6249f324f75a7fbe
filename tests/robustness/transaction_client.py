"""One process of the application: a production TransactionProducer over the production listener and a real database.

What it does stops where the gaps are armed. Everything runs in tasks of its own, so that it can die without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from client_tasks import ClientTasks, context_of
from sqlalchemy.ext.asyncio import AsyncConnection
from transaction_broker import GapBroker
from transaction_database import ORDERS, TRANSACTIONS, ShopDatabase
from transaction_gaps import Gap, Gaps
from transaction_model import LONG_IMMUNITY_S, Attempt, Ending, Heard

from mqclient import (
    CheckUnansweredError,
    ClientConfig,
    LocalTransactionRolledBackError,
    LocalTransactionState,
    Message,
    MessageExt,
    MQClientError,
    TransactionProducer,
    TransactionTombstonedError,
)
from mqclient.sqlalchemy import SqlTransactionListener
from osenv import Clock

GROUP, TOPIC = "shop", "orders"

Asked = Callable[[MessageExt], None]


class RejectedError(Exception):
    """The business says no."""


class LostAnswerError(Exception):
    """The database has committed, and its answer did not arrive."""


class PlaceOrder:
    """The business part of the local transaction of one attempt."""

    def __init__(self, attempt: Attempt, gaps: Gaps, client: str) -> None:
        self.attempt = attempt
        self._gaps, self._client = gaps, client

    async def __call__(self, connection: AsyncConnection, transaction_id: str) -> None:
        row = {"order_id": self.attempt.order_id, "body": self.attempt.body, "transaction_id": transaction_id}
        await connection.execute(ORDERS.insert().values(row))
        await self._gaps.reach(Gap.INSIDE, self._client)
        if not self.attempt.plan.ending.commits:
            raise RejectedError(f"{self.attempt.body} is rejected")


class GapListener:
    """The production listener, with stops around it. `asked` hears of every check."""

    def __init__(self, inner: SqlTransactionListener, clock: Clock, gaps: Gaps, client: str, asked: Asked) -> None:
        self._inner, self._clock, self._gaps, self._client, self._asked = inner, clock, gaps, client, asked

    async def execute_local_transaction(
        self, message: Message, transaction_id: str, arg: PlaceOrder
    ) -> LocalTransactionState:
        ending = arg.attempt.plan.ending
        arg.attempt.transaction_id = transaction_id
        await self._gaps.reach(Gap.HALF_ANSWERED, self._client)
        try:
            state = await self._inner.execute_local_transaction(message, transaction_id, arg)
        except LocalTransactionRolledBackError:
            await self._over(arg.attempt)
            if not ending.tells:
                return LocalTransactionState.UNKNOW
            raise
        await self._over(arg.attempt)
        if ending is Ending.COMMITS_AND_RAISES:
            raise LostAnswerError
        return LocalTransactionState.UNKNOW if ending is Ending.COMMITS_AND_SAYS_UNKNOW else state

    async def _over(self, attempt: Attempt) -> None:
        attempt.over_ms = self._clock.wall_ms()
        await self._gaps.reach(Gap.LOCAL_OVER, self._client)

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        self._asked(message)
        await self._gaps.reach(Gap.CHECK_ASKED, self._client)
        try:
            return await self._inner.check_local_transaction(message)
        except CheckUnansweredError:
            if not self._gaps.unanswered_is_unknown:
                raise
            return LocalTransactionState.UNKNOW
        finally:
            await self._gaps.reach(Gap.CHECK_KNOWN, self._client)


class Client:
    """Create, `start`, `send`; then `leave` or `die`."""

    def __init__(
        self, name: str, broker: GapBroker, tasks: ClientTasks, database: ShopDatabase, gaps: Gaps, asked: Asked
    ) -> None:
        self.name = name
        self._broker, self._tasks, self._gaps = broker, tasks, gaps
        self._context = context_of(name)
        inner = SqlTransactionListener(TRANSACTIONS, database.begin, broker.clock)
        listener = GapListener(inner, broker.clock, gaps, name, asked)
        self._producer = TransactionProducer(
            GROUP, broker.url, transaction_listener=listener, client_config=ClientConfig(instance_name=name)
        )

    def start(self) -> asyncio.Task[None]:
        return self._run(self._producer.start())

    def leave(self) -> asyncio.Task[None]:
        """In order, as far as what runs comes to an end."""
        return self._run(self._producer.shutdown(timeout_s=2.0))

    def die(self, *, silently: bool = False) -> None:
        """As by SIGKILL; silently: with its machine, so that its connections stay open at the other end."""
        self._broker.client_died(self.name, silently=silently)
        self._tasks.kill(self.name)

    def send(self, attempt: Attempt) -> asyncio.Task[None]:
        """Have the attempt made, and note what its sender hears."""
        return self._run(self._send(attempt))

    async def _send(self, attempt: Attempt) -> None:
        attempt.heard = await sent(self._producer, attempt, self._gaps, self.name)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine, context=self._context)


async def sent(producer: TransactionProducer, attempt: Attempt, gaps: Gaps, client: str) -> Heard:
    """Make the attempt; returns what its sender hears."""
    wait = attempt.plan.wait
    message = Message(
        TOPIC, attempt.body.encode(), keys=attempt.order_id, delay_level=wait.delay_level, delay_ms=wait.delay_ms
    )
    immunity_s = LONG_IMMUNITY_S if attempt.plan.long_immunity else None
    work = PlaceOrder(attempt, gaps, client)
    try:
        result = await producer.send_message_in_transaction(message, work, check_immunity_s=immunity_s)
    except TransactionTombstonedError:
        return Heard.TOMBSTONED
    except MQClientError:
        return Heard.NOT_BEGUN
    except LostAnswerError:
        return Heard.UNKNOWN
    except Exception:  # rejected, another attempt has placed the order, or the database is locked
        return Heard.ROLLED_BACK
    committed = result.local_transaction_state is LocalTransactionState.COMMIT_MESSAGE
    return Heard.COMMITTED if committed else Heard.UNKNOWN
