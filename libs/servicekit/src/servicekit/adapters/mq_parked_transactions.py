"""Parked transactions of a producer group, over mqclient's Admin."""

from __future__ import annotations

from mqclient import TransactionPhase
from osenv import Clock
from servicekit.adapters.mq_admin import asking_queue
from servicekit.parked_transactions import ParkedTransaction


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
