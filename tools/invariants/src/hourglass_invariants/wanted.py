"""What the checks read of each database: tables and columns, under the names that the services give them.

A test holds that every one of them is in the tables.py of its service; at run time a database that lacks one is
rejected by name, because a check that reads nothing would find nothing. What prevents a check:

InvariantsError
├── SourceUnavailableError   a database is not there or does not answer: start it, or name another
└── SchemaMismatchError      a database was made by another version, or is another one: name the right one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias


class InvariantsError(Exception):
    """The checks have not run; nothing is known about the shop."""


class SourceUnavailableError(InvariantsError):
    """A database cannot be read."""


class SchemaMismatchError(InvariantsError):
    """A database lacks what the checks read."""


Columns: TypeAlias = tuple[str, ...]
Rows: TypeAlias = Sequence[tuple[object, ...]]


def _columns(text: str) -> Columns:
    return tuple(text.split())


_ORDERS = {
    "products": _columns("product_id available reserved sold"),
    "orders": _columns(
        "order_id buyer_id status version total_minor currency created_at_ms expires_at_ms closed_at_ms payment_id"
        " paid_at_ms shipped_at_ms completed_at_ms hold_until_ms"
    ),
    "order_lines": _columns("order_id product_id quantity unit_price_minor"),
    "order_history": _columns("change_id order_id old_status new_status reason at_ms"),
    "refund_requests": _columns("payment_id order_id amount_minor currency reason requested_at_ms"),
    "counters": _columns("name value"),
}
_PAYMENTS = {
    "payable_orders": _columns("order_id status"),
    "payments": _columns(
        "payment_id order_id amount_minor currency status created_at_ms captured_at_ms refunded_at_ms"
        " refund_requested_minor refunded_minor"
    ),
    "payment_history": _columns("change_id payment_id old_status new_status at_ms"),
    "refunds": _columns("refund_id payment_id amount_minor currency status requested_at_ms refunded_at_ms"),
    "ledger_entries": _columns("entry_id posting_id account amount_minor currency at_ms payment_id refund_id"),
    "gateway_events": _columns("event_id kind payment_id status reason received_at_ms"),
    "outbox": _columns("row_id topic tag message_key created_at_ms"),
    "counters": _columns("name value"),
}
_GATEWAY = {
    "charges": _columns("charge_id order_id amount_minor currency status decided_at_ms"),
    "refunds": _columns("refund_id charge_id amount_minor currency status refunded_at_ms"),
}

# Schema -> table -> columns, in the order in which the databases are read (see sources).
WANTED: Mapping[str, Mapping[str, Columns]] = MappingProxyType(
    {"orders": _ORDERS, "payments": _PAYMENTS, "gateway": _GATEWAY}
)


def require_columns(name: str, where: str, wanted: Mapping[str, Columns], found: Mapping[str, Iterable[str]]) -> None:
    """Reject a database that lacks a table or a column. Raises SchemaMismatchError, naming everything that is missing.

    `found` has an entry for each wanted table; one without columns is not there.
    """
    missing = []
    for table, columns in wanted.items():
        there = set(found[table])
        if not there:
            missing.append(f"table {table}")
            continue
        missing += [f"column {table}.{column}" for column in columns if column not in there]
    if missing:
        raise SchemaMismatchError(
            f"the database of {name} at {where} lacks {', '.join(missing)}: it is another database, or one of another"
            " version; a service brings its own up to date when it starts"
        )
