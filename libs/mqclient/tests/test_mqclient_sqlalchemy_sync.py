"""The transaction table and the inbox with plain connections and sessions, beside mqclient.sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, create_engine, func, select
from sqlalchemy.orm import sessionmaker

from mq_broker.embedded import SyncEmbeddedBroker
from mqclient import LocalTransactionState, Message
from mqclient.errors import IllegalGroupError, TransactionTombstonedError
from mqclient.sqlalchemy import InboxTable, SyncConnection, SyncSqlTransactionListener, TransactionTable
from mqclient.sync import SyncPullConsumer, SyncTransactionProducer
from osenv import RealClock

COMMIT, ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE


@dataclass(frozen=True, slots=True)
class Shop:
    begin: Callable[[], AbstractContextManager[SyncConnection]]
    orders: Table
    transactions: TransactionTable
    inbox: InboxTable

    def insert(self, connection: SyncConnection, _transaction_id: str) -> None:
        connection.execute(self.orders.insert().values(id="17"))

    def count(self, table: Table) -> Any:
        with self.begin() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()


@pytest.fixture(params=["connection", "session"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    metadata = MetaData()
    orders = Table("orders", metadata, Column("id", String, primary_key=True))
    transactions, inbox = TransactionTable(metadata), InboxTable(metadata)
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    metadata.create_all(engine)
    begin: Any = engine.begin if request.param == "connection" else sessionmaker(engine)
    yield Shop(begin, orders, transactions, inbox)
    engine.dispose()


def bodies(broker: SyncEmbeddedBroker) -> list[bytes]:
    with SyncPullConsumer("readers", broker.url) as consumer:
        queues = consumer.fetch_subscribe_message_queues("orders")
        return [message.body for queue in queues for message in consumer.pull(queue, 0).messages]


def test_a_message_goes_out_if_and_only_if_the_transaction_commits(sync_broker: SyncEmbeddedBroker, shop: Shop) -> None:
    def fail(connection: SyncConnection, transaction_id: str) -> None:
        shop.insert(connection, transaction_id)
        raise KeyError("sold out")

    listener = SyncSqlTransactionListener(shop.transactions, shop.begin, RealClock())
    with SyncTransactionProducer("shop", sync_broker.url, transaction_listener=listener) as producer:
        with pytest.raises(KeyError, match="sold out"):
            producer.send_message_in_transaction(Message("orders", b"not this one"), fail)
        producer.send_message_in_transaction(Message("orders", b"17"), shop.insert)
        sync_broker.idle()
    assert bodies(sync_broker) == [b"17"]
    assert (shop.count(shop.orders), shop.count(shop.transactions.table)) == (1, 1)


def test_a_check_finds_the_row_or_buries_the_attempt_for_good(shop: Shop) -> None:
    with shop.begin() as connection:
        shop.transactions.record_sync(connection, "committed", 1)
        connection.commit()
    for id_, expected in (("committed", COMMIT), ("lost", ROLLBACK), ("lost", ROLLBACK)):
        with shop.begin() as connection:
            assert shop.transactions.answer_check_sync(connection, id_, 2) is expected
    with pytest.raises(TransactionTombstonedError, match="lost has ended already"), shop.begin() as connection:
        shop.transactions.record_sync(connection, "lost", 3)
    with shop.begin() as connection:
        assert shop.transactions.purge_sync(connection, 2) == 1
        connection.commit()
    assert shop.count(shop.transactions.table) == 1


def test_a_key_is_consumed_once_with_the_business_rows_or_not_at_all(shop: Shop) -> None:
    for commits, expected in ((False, True), (True, True), (True, False)):
        with shop.begin() as connection:
            assert shop.inbox.once_sync(connection, "accounts", "ORDERID_17", 1) is expected
            if commits:
                connection.commit()
            else:
                connection.rollback()
    with shop.begin() as connection, pytest.raises(IllegalGroupError):
        shop.inbox.once_sync(connection, "no such group!", "ORDERID_17", 1)
    with shop.begin() as connection:
        assert shop.inbox.purge_sync(connection, 2) == 1
