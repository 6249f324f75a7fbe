"""Adapters outside Spark: the shop's databases, the brokers' own account of lateness, and signals.

The databases are read as far as the pipeline compares them with what the messages say, as tools/invariants reads them:
read-only, each as of one moment, SQLite or PostgreSQL. The rows pass through this process, tens of MiB for a hundred
thousand orders.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from hourglass_invariants import WANTED, Columns, InvariantsError, Rows, read_sources

ORDERS, PAYMENTS = "orders", "payments"
PRODUCTS = "products"
_NUMBERS = ("version", "available", "reserved", "sold")
MEMBER = "lateness_ms_by_level"
FIGURES = ("delivered", "p50", "p99", "max")

# Consequences before causes: what orders has heard of payments is in what is read of payments afterwards.
_WANTED: Mapping[str, Mapping[str, Columns]] = {
    ORDERS: {name: WANTED[ORDERS][name] for name in (ORDERS, PRODUCTS)},
    PAYMENTS: {PAYMENTS: WANTED[PAYMENTS][PAYMENTS]},
}


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


class LatenessFileError(ValueError):
    """The file cannot be used; the message says why."""


def read_broker_lateness(path: Path) -> Mapping[str, Mapping[str, int]]:
    """By delay level as text: delivered, p50, p99 and max, in milliseconds. Raises LatenessFileError."""
    try:
        levels = json.loads(path.read_text(encoding="utf-8"))[MEMBER]
        return {level: {name: int(figures[name]) for name in FIGURES} for level, figures in levels.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LatenessFileError(
            f"{path} does not tell how late brokers were: {type(error).__name__}: {error}"
        ) from error


class StoppedError(BaseException):
    """The program was asked to stop; no Exception, so that no handler of errors catches it."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT raise StoppedError where the main thread is. Spark's own handler is set aside."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StoppedError(signal.Signals(number).name)

    with _handled(stop):
        yield


@contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, for loops that check whether to go on."""
    asked = threading.Event()
    with _handled(lambda *_: asked.set()):
        yield asked


@contextmanager
def _handled(handler) -> Iterator[None]:  # type: ignore[no-untyped-def]
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
