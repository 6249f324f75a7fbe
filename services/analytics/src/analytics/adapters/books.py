"""The databases of orders and payments, as far as the pipeline compares them with what the messages say.

Read as tools/invariants reads them: read-only, each as of one moment, SQLite or PostgreSQL. The rows pass through this
process, tens of MiB for a hundred thousand orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from hourglass_invariants import WANTED, Columns, InvariantsError, Rows, read_sources

ORDERS, PAYMENTS = "orders", "payments"
PRODUCTS = "products"
# Consequences before causes: what orders has heard of payments is in what is read of payments afterwards.
_WANTED: Mapping[str, Mapping[str, Columns]] = {
    ORDERS: {name: WANTED[ORDERS][name] for name in (ORDERS, PRODUCTS)},
    PAYMENTS: {PAYMENTS: WANTED[PAYMENTS][PAYMENTS]},
}
_NUMBERS = ("version", "available", "reserved", "sold")


class BooksError(RuntimeError):
    """A database cannot be read; the message says which and why."""


@dataclass(frozen=True, slots=True)
class BooksUrls:
    """URLs in the form of ORDERS_DATABASE_URL."""

    orders: str
    payments: str


@dataclass(frozen=True, slots=True)
class Books:
    """The rows of the tables `orders` and `products` of orders, and `payments` of payments."""

    orders: DataFrame
    products: DataFrame
    payments: DataFrame


def read_books(spark: SparkSession, urls: BooksUrls) -> Books:
    """Raises BooksError."""
    try:
        rows = asyncio.run(read_sources({ORDERS: urls.orders, PAYMENTS: urls.payments}, _WANTED))
    except InvariantsError as error:
        raise BooksError(str(error)) from error
    return Books(
        orders=_frame(spark, _WANTED[ORDERS][ORDERS], rows[ORDERS][ORDERS]),
        products=_frame(spark, _WANTED[ORDERS][PRODUCTS], rows[ORDERS][PRODUCTS]),
        payments=_frame(spark, _WANTED[PAYMENTS][PAYMENTS], rows[PAYMENTS][PAYMENTS]),
    )


def _frame(spark: SparkSession, columns: Columns, rows: Rows) -> DataFrame:
    schema = pa.schema([(name, pa.int64() if _is_number(name) else pa.string()) for name in columns])
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    arrays = [pa.array(column, type=field.type) for column, field in zip(values, schema, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def _is_number(column: str) -> bool:
    return column.endswith(("_ms", "_minor")) or column in _NUMBERS
