"""What operators ask of the queue: a client, and parked transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mqclient import Admin, TransactionPhase
from mqclient.errors import MQClientError
from osenv import Clock
from osenv.clock import timeout
from servicekit.errors import QueueUnreachableError
from servicekit.parked_transactions import ParkedTransaction

# ----------------------------------------------------------------------------------------------------------------------
# An operator's questions to the queue. Each connects anew: they come seldom, and then want the present answer.


ANSWER_MAX_S = 5.0


@asynccontextmanager
async def asking_queue(url: str, clock: Clock) -> AsyncIterator[Admin]:
    """An admin for ANSWER_MAX_S at most. Raises QueueUnreachableError."""
    try:
        async with timeout(clock, ANSWER_MAX_S), Admin(url) as admin:
            yield admin
    except MQClientError as error:
        raise QueueUnreachableError(f"the queue does not answer: {error}") from error
    except TimeoutError as error:
        raise QueueUnreachableError(f"no answer from the queue in {ANSWER_MAX_S:g} s") from error


# ----------------------------------------------------------------------------------------------------------------------
# Parked transactions of a producer group, over mqclient's Admin.


class MqParkedTransactions:
    """Implements `ParkedTransactions`."""

    def __init__(self, url: str, group: str, clock: Clock) -> None:
        self._url = url
        self._group = group
        self._clock = clock

    async def oldest(self, limit: int) -> list[ParkedTransaction]:
        async with asking_queue(self._url, self._clock) as admin:
            found = await admin.list_transactions(
                phase=TransactionPhase.PARKED, producer_group=self._group, max_transactions=limit
            )
        return [
            ParkedTransaction(one.transaction_id, one.topic, one.keys, one.store_timestamp_ms)
            for one in found.transactions
        ]

    async def decide(self, transaction_id: str, *, commit: bool) -> None:
        async with asking_queue(self._url, self._clock) as admin:
            await admin.decide_transaction(transaction_id, commit=commit)
