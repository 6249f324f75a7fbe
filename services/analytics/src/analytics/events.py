"""The events that the shop tells, and bronze -> events: the JSON of the bodies as typed columns (mechanism Y6).

What orders and payments write is in their modules service/events.py; a test holds that both agree. A body without
`version` is of version 1. A version only grows: members are added, none changes its meaning. So members that came later
are missing in old bodies and are null here, those of a later version than VERSION_KNOWN are not looked at, and only
what an event is about, its `needs`, has to be there.

Invariants: each bronze row of a topic of the shop becomes one event or one reject, never both, never neither. An event
has its order_id and the members that its kind needs; its times are of the years 1970 to 9999 and its amounts small
enough to be added up, so that no later job can fail on one body.

    read = read_bodies(bronze)        # both in one; keep it if both are wanted
    events(read), rejects(read)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics.jobs.bronze import utc_day

VERSION_KNOWN = 1
VERSION_WITHOUT = 1  # of a body that does not say
ORDER_EVENTS_TOPIC = "order-events"
PAYMENT_EVENTS_TOPIC = "payment-events"
ORDER_TIMEOUTS_TOPIC = "order-timeouts"
ORDER_COMPLETIONS_TOPIC = "order-completions"
CREATED = "created"
PAID = "paid"
SHIPPED = "shipped"
COMPLETED = "completed"
CLOSED = "closed"
REFUND_REQUESTED = "refund-requested"
SUCCEEDED = "succeeded"
REFUNDED = "refunded"
EXPIRE = "expire"
COMPLETE = "complete"
TEXTS = ("order_id", "buyer_id", "currency", "payment_id", "refund_id", "reason")
AMOUNTS = ("total_minor", "amount_minor", "refunded_minor")
TIMES = ("created_at", "expires_at", "paid_at", "shipped_at", "completed_at", "closed_at", "refunded_at")
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the last that Python and Parquet's readers agree on
# Of one event, its lines together included: nine million of them still fit a bigint.
AMOUNT_MINOR_MAX = 10**12
UNITS_MAX = 10**9
_UNREADABLE = "_unreadable"  # where Spark puts a body that is not JSON, or of which a member has another type


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event: its topic, its tag, and the members of its body that must be there, beside order_id."""

    topic: str
    kind: str
    needs: tuple[str, ...] = ()


KINDS = (
    EventKind(ORDER_EVENTS_TOPIC, CREATED, ("created_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, PAID, ("paid_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, SHIPPED, ("shipped_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, COMPLETED, ("completed_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, CLOSED, ("closed_at_ms",)),
    EventKind(ORDER_EVENTS_TOPIC, REFUND_REQUESTED, ("payment_id", "amount_minor")),
    EventKind(PAYMENT_EVENTS_TOPIC, SUCCEEDED, ("payment_id", "amount_minor", "paid_at_ms")),
    EventKind(PAYMENT_EVENTS_TOPIC, REFUNDED, ("payment_id", "refund_id", "amount_minor", "refunded_at_ms")),
    EventKind(ORDER_TIMEOUTS_TOPIC, EXPIRE, ("expires_at_ms",)),
    EventKind(ORDER_COMPLETIONS_TOPIC, COMPLETE, ("shipped_at_ms",)),
)

TOPICS = tuple(sorted({kind.topic for kind in KINDS}))

LINES = ArrayType(
    StructType(
        [
            StructField("product_id", StringType()),
            StructField("quantity", LongType()),
            StructField("unit_price_minor", LongType()),
        ]
    )
)

_WHERE_IT_STOOD = [
    StructField("topic", StringType()),
    StructField("broker", StringType()),
    StructField("queue_id", IntegerType()),
    StructField("queue_offset", LongType()),
    StructField("msg_id", StringType()),
    StructField("stored_at", TimestampType()),
    StructField("kind", StringType()),
]

EVENTS = StructType(
    [
        *_WHERE_IT_STOOD,
        StructField("version", IntegerType()),
        StructField("order_id", StringType()),
        StructField("buyer_id", StringType()),
        StructField("currency", StringType()),
        StructField("total_minor", LongType()),
        StructField("amount_minor", LongType()),
        StructField("refunded_minor", LongType()),
        StructField("payment_id", StringType()),
        StructField("refund_id", StringType()),
        StructField("reason", StringType()),
        StructField("created_at", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("paid_at", TimestampType()),
        StructField("shipped_at", TimestampType()),
        StructField("completed_at", TimestampType()),
        StructField("closed_at", TimestampType()),
        StructField("refunded_at", TimestampType()),
        StructField("lines", LINES),
    ]
)

REJECTS = StructType(
    [
        *_WHERE_IT_STOOD,
        StructField("body", BinaryType()),
        StructField("problem", StringType()),
        StructField("day", DateType()),
    ]
)

MEMBERS = StructType(
    [
        StructField("version", IntegerType()),
        *(StructField(name, StringType()) for name in TEXTS),
        *(StructField(name, LongType()) for name in AMOUNTS),
        *(StructField(f"{name}_ms", LongType()) for name in TIMES),
        StructField("items", ArrayType(LINES.elementType)),
        StructField(_UNREADABLE, StringType()),
    ]
)


def read_bodies(bronze: DataFrame) -> DataFrame:
    """The columns of EVENTS, `body`, and `problem`: why the row is no event, null for those that are one.

    Rows of other topics are left out.
    """
    known = bronze.where(F.col("topic").isin(*TOPICS))
    text = F.col("body").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREADABLE}
    # A generator, of one row each: Spark would push a filter on `problem` through a projection, and read the JSON again
    # for each check in it.
    read = known.select("*", F.inline(F.array(F.from_json(text, MEMBERS, options))))
    return read.select(
        "topic",
        "broker",
        F.col("queueId").alias("queue_id"),
        F.col("queueOffset").alias("queue_offset"),
        F.col("msgId").alias("msg_id"),
        F.col("storeTimestamp").alias("stored_at"),
        F.col("tag").alias("kind"),
        F.coalesce("version", F.lit(VERSION_WITHOUT)).alias("version"),
        *TEXTS,
        *AMOUNTS,
        *(_time(name) for name in TIMES),
        F.col("items").alias("lines"),
        "body",
        _problem(text).alias("problem"),
    )


def events(read: DataFrame) -> DataFrame:
    """EVENTS of what `read_bodies` has read."""
    return read.where(F.col("problem").isNull()).select(*EVENTS.names)


def rejects(read: DataFrame) -> DataFrame:
    """REJECTS: what `read_bodies` could not read, with its body as it was told and the problem in words."""
    return read.where(F.col("problem").isNotNull()).withColumn("day", utc_day("stored_at")).select(*REJECTS.names)


def _time(name: str) -> Column:
    at_ms = F.col(f"{name}_ms")
    return F.when(at_ms.between(0, TIME_MS_MAX), F.timestamp_millis(at_ms)).alias(name)


def _problem(text: Column) -> Column:
    """The first thing that is wrong, in words; null if nothing is."""
    first, *others = _checks(text)
    return reduce(lambda chain, check: chain.when(*check), others, F.when(*first))


def _checks(text: Column) -> Iterator[tuple[Column, Column]]:
    """(is it wrong, the words), in the order in which they are asked.

    Every event goes through all of these, so they are few and small enough for Java to compile; words are for rejects.
    """
    in_topic = (
        (F.col("topic") == topic) & F.col("tag").isin(*(one.kind for one in KINDS if one.topic == topic))
        for topic in TOPICS
    )
    tag = F.coalesce(F.concat(F.lit("'"), F.col("tag"), F.lit("'")), F.lit("no tag"))
    yield (
        _is_false(reduce(Column.__or__, in_topic)),
        F.concat_ws("", F.lit("topic "), F.col("topic"), F.lit(" has no events of "), tag),
    )
    is_object = F.startswith(F.ltrim(text, F.lit(" \t\r\n")), F.lit("{"))
    yield _is_false(is_object), F.lit("the body is not a JSON object")
    yield (
        F.col(_UNREADABLE).isNotNull() | ~F.is_valid_utf8(text) | _has_other_texts(text) | _goes_on(text),
        F.lit("the body is not JSON, or a member is not of its type: texts, whole numbers, items as a list"),
    )
    yield F.coalesce(F.col("version") < 1, F.lit(False)), F.lit("version is less than 1")
    yield _is_missing("order_id"), F.lit("the body needs order_id")
    yield (
        _lacks_its_needs(),
        F.concat_ws("", F.lit("a body of "), F.col("tag"), F.lit(" needs "), F.concat_ws(", ", *_needs())),
    )
    for names, most, what in (
        ([f"{name}_ms" for name in TIMES], TIME_MS_MAX, "a time"),
        (AMOUNTS, AMOUNT_MINOR_MAX, "an amount"),
    ):
        wrong = (F.when(~F.col(name).between(0, most), F.lit(name)) for name in names)
        yield (
            _is_false(F.coalesce((F.least(*names) >= 0) & (F.greatest(*names) <= most), F.lit(True))),
            F.concat_ws("", F.concat_ws(", ", *wrong), F.lit(f" is not {what}: 0 to {most} are allowed")),
        )
    yield (
        F.coalesce(F.exists("items", _is_no_line), F.lit(False)),
        F.lit(
            f"an item needs product_id, a quantity of 1 to {UNITS_MAX}, and a price of 0 to {AMOUNT_MINOR_MAX} in all"
        ),
    )
    yield (
        _items_are_too_many(),
        F.lit(f"the items are of {UNITS_MAX} units, and of a price of {AMOUNT_MINOR_MAX}, together at most"),
    )


def _has_other_texts(text: Column) -> Column:
    """Whether a member that is a text has another type: Spark's reader makes a text of numbers and objects as well.

    Only a body with a name that no quote follows is read once more; that name may stand in an object within.
    """
    read = F.try_parse_json(text)
    kinds = (F.schema_of_variant(F.try_variant_get(read, f"$.{name}", "variant")) for name in TEXTS)
    return text.rlike(rf'"({"|".join(TEXTS)})"\s*:\s*[^"\sn]') & reduce(
        Column.__or__, (F.coalesce(~kind.isin("STRING", "VOID"), F.lit(False)) for kind in kinds)
    )


def _goes_on(text: Column) -> Column:
    """Whether something follows the object, which Spark's reader does not look at.

    Behind a brace of JSON there is only another closing bracket, a comma, or the end; texts are left out for that.
    """
    ends = F.endswith(F.rtrim(text, F.lit(" \t\r\n")), F.lit("}"))
    no_texts = F.regexp_replace(text, r'"([^"\\]|\\.)*+"', '""')
    return ~ends | (text.rlike(r"\}\s*[^\s,\]}]") & no_texts.rlike(r"\}\s*[^\s,\]}]"))


def _lacks_its_needs() -> Column:
    """Whether a member is missing that this kind of event, which is known by its tag, cannot do without."""
    lacking = [(F.col("tag") == one.kind, reduce(Column.__or__, map(_is_missing, one.needs))) for one in KINDS]
    return reduce(lambda chain, check: chain.when(*check), lacking[1:], F.when(*lacking[0])).otherwise(F.lit(False))


def _needs() -> list[Column]:
    """For each member that some kind needs: its name if this one does and has not got it, else null."""
    names = dict.fromkeys(name for one in KINDS for name in one.needs)
    needing = {name: [one.kind for one in KINDS if name in one.needs] for name in names}
    return [F.when(F.col("tag").isin(*needing[name]) & _is_missing(name), F.lit(name)) for name in names]


def _is_missing(name: str) -> Column:
    column = F.col(name)
    return column.isNull() | (column == "") if name in TEXTS else column.isNull()


def _is_false(condition: Column) -> Column:
    """Also where it is null."""
    return ~F.coalesce(condition, F.lit(False))


def _items_are_too_many() -> Column:
    """Of items that are lines each, of which a body has too few for these sums to overflow."""
    zero = F.lit(0).cast("bigint")
    units = F.aggregate("items", zero, lambda sum_, item: F.try_add(sum_, item["quantity"]))
    price = F.aggregate("items", zero, lambda sum_, item: F.try_add(sum_, _price(item)))
    return F.coalesce((units > UNITS_MAX) | (price > AMOUNT_MINOR_MAX), F.lit(False))


def _price(item: Column) -> Column:
    return F.try_multiply(item["quantity"], item["unit_price_minor"])


def _is_no_line(item: Column) -> Column:
    is_line = (
        (item["product_id"] != "") & item["quantity"].between(1, UNITS_MAX) & _price(item).between(0, AMOUNT_MINOR_MAX)
    )
    return ~F.coalesce(is_line, F.lit(False))
