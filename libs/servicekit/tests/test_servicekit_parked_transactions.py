"""What the queue has parked is decided by the table of transactions, on a broker with a real store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mq_broker.core.transactions import TransactionOptions
from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin
from mqclient.admin import TransactionPhase
from osenv import SimClock
from servicekit.errors import QueueUnreachableError, StorageUnavailableError
from servicekit.message import OutgoingMessage
from servicekit.process.queue import MqParkedTransactions, MqPublisher
from servicekit.process.reconciler import DECIDED_UNTIL_MS, ParkedTransactionsCheck, Reconciler
from servicekit.sql.units import LocalOutcome

GROUP, TOPIC = "payments", "payment-events"
CHECKS = TransactionOptions(check_interval_ms=1_000, immunity_ms=0, check_times_max=2)


async def unknown(_transaction_id: str) -> LocalOutcome:
    return LocalOutcome.UNKNOWN


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(request.node.name, transactions=CHECKS) as running:
        async with Admin(running.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=1, write_queue_count=1)
        yield running


async def park(broker: EmbeddedBroker, count: int, group: str = GROUP) -> list[str]:
    """Half messages without a known outcome, until the broker has parked them."""
    publisher = MqPublisher(broker.url, group, broker.clock)
    begun: list[str] = []

    async def local(transaction_id: str) -> LocalOutcome:
        begun.append(transaction_id)
        return LocalOutcome.UNKNOWN

    await publisher.start(unknown)
    for number in range(count):
        await publisher.send_in_transaction(OutgoingMessage(TOPIC, "succeeded", f"order-{number}", b"{}"), local)
    parked = MqParkedTransactions(broker.url, group, broker.clock)
    while len(await parked.oldest(100)) < count:
        await broker.clock.advance(1)
    await publisher.shutdown()
    return begun


async def phase_of(broker: EmbeddedBroker, transaction_id: str) -> TransactionPhase:
    async with Admin(broker.url) as admin:
        return (await admin.transaction(transaction_id)).info.phase


async def test_the_row_of_a_transaction_decides_it_and_no_other_groups(broker: EmbeddedBroker) -> None:
    committed, rolled_back, unanswered = await park(broker, 3)
    (others,) = await park(broker, 1, "orders")
    parked = MqParkedTransactions(broker.url, GROUP, broker.clock)

    async def check(transaction_id: str) -> LocalOutcome:
        if transaction_id == unanswered:
            raise StorageUnavailableError("the database does not answer")
        return LocalOutcome.COMMITTED if transaction_id == committed else LocalOutcome.ROLLED_BACK

    reconciler = Reconciler(
        [ParkedTransactionsCheck(parked, check, broker.clock)], broker.clock, interval_s=1, rows_max=10
    )
    seen = await reconciler.reconcile(is_dry_run=True)
    assert len(seen.found) == 3
    assert f"transaction {committed} (payment-events, order-0) is parked: its row decides" in seen.found
    assert await phase_of(broker, committed) is TransactionPhase.PARKED

    reconciler = Reconciler(
        [ParkedTransactionsCheck(parked, check, broker.clock)], broker.clock, interval_s=1, rows_max=10
    )
    done = await reconciler.reconcile(is_dry_run=False)
    assert len(done.errors) == 1
    assert "the database does not answer" in done.errors[0]
    assert [one.transaction_id for one in await parked.oldest(10)] == [unanswered]
    assert await phase_of(broker, others) is TransactionPhase.PARKED
    await parked.decide(committed, commit=False)  # a second word changes nothing
    assert await phase_of(broker, committed) is TransactionPhase.COMMITTED
    assert await phase_of(broker, rolled_back) is TransactionPhase.ROLLED_BACK


async def test_a_transaction_that_is_older_than_the_rows_is_left_to_a_person(broker: EmbeddedBroker) -> None:
    await park(broker, 1)
    parked = MqParkedTransactions(broker.url, GROUP, broker.clock)
    (one,) = await parked.oldest(10)
    clock = SimClock(one.since_ms + DECIDED_UNTIL_MS - 1)
    check = ParkedTransactionsCheck(parked, unknown, clock)
    (finding,) = await check.find(10)
    assert not await finding.repair()  # its row does not say yet, and the next round asks again
    await clock.advance(0.001)
    assert await check.find(10) == []


async def test_a_queue_that_is_away_is_said_to_be() -> None:
    with pytest.raises(QueueUnreachableError):
        await MqParkedTransactions("memory://missing", GROUP, SimClock()).oldest(1)
