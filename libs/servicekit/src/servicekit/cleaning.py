"""What a service forgets, and when: the rows that are there for repetitions, once nothing can repeat them any more."""

from __future__ import annotations

from mqclient.sqlalchemy import InboxTable, Retention, TableCleaner, TransactionTable
from osenv import Clock
from servicekit.adapters.database import Database
from servicekit.adapters.sql_idempotency_keys import IdempotencyKeysTable
from servicekit.runner import Background
from servicekit.transactions import TRANSACTIONS_KEEP_DAYS

INBOX_KEEP_DAYS = 14  # mqclient.sqlalchemy.Retention reasons about it
# A client that repeats its request does so within minutes, or the day after; a key that is gone makes a second result.
IDEMPOTENCY_KEYS_KEEP_DAYS = 30


def cleaning(
    database: Database,
    clock: Clock,
    *,
    inbox: InboxTable,
    transactions: TransactionTable,
    idempotency_keys: IdempotencyKeysTable,
) -> Background:
    """Deletes old rows of a service's tables, in the background."""
    retentions = (
        Retention(inbox, INBOX_KEEP_DAYS),
        Retention(transactions, TRANSACTIONS_KEEP_DAYS),
        Retention(idempotency_keys.expiry, IDEMPOTENCY_KEYS_KEEP_DAYS),
    )
    cleaner = TableCleaner(database.writing, clock, retentions)
    return Background("cleaning", cleaner.run, cleaner.stop)
