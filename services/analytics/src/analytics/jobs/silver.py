"""The silver tables: what happened to each order, each payment and each timer."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics.events import (
    CLOSED,
    COMPLETED,
    CREATED,
    LINES,
    ORDER_EVENTS_TOPIC,
    ORDER_TIMEOUTS_TOPIC,
    PAID,
    PAYMENT_EVENTS_TOPIC,
    REFUND_REQUESTED,
    REFUNDED,
    SHIPPED,
    SUCCEEDED,
)
from analytics.jobs.bronze import PLACE, elapsed_ms, utc_day

# Events -> one row per order: each state's time, the amounts, the payments and the refunds (mechanism Y6).
#
# Invariants: the row depends on which events were told, not on their order in the queue, on how late they were stored
# or how often they were told. Of an event that was told in several wordings the newest version counts, and of those the
# earliest time. A capture is known by its payment_id, a refund by its refund_id, a refund request by its payment_id.
#
# Status: an order moves only forward, and the kinds of its events say how far it came, in this order: closed,
# completed, shipped, paid, created. That is its status in the database of orders, once all its events are there. An
# order of which only payments or refund requests are known has no status.
#
# One pass: the events are grouped by order once, and no join is made.

CAPTURE = StructType(
    [
        StructField("payment_id", StringType()),
        StructField("amount_minor", LongType()),
        StructField("currency", StringType()),
        StructField("captured_at", TimestampType()),
    ]
)

REFUND = StructType(
    [
        StructField("refund_id", StringType()),
        StructField("payment_id", StringType()),
        StructField("amount_minor", LongType()),
        StructField("currency", StringType()),
        StructField("reason", StringType()),
        StructField("refunded_at", TimestampType()),
    ]
)

REFUND_REQUEST = StructType(
    [
        StructField("payment_id", StringType()),
        StructField("amount_minor", LongType()),
        StructField("currency", StringType()),
        StructField("reason", StringType()),
    ]
)

ORDERS = StructType(
    [
        StructField("order_id", StringType()),
        StructField("buyer_id", StringType()),
        StructField("currency", StringType()),
        StructField("total_minor", LongType()),
        StructField("lines", LINES),
        StructField("status", StringType()),
        StructField("created_at", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("paid_at", TimestampType()),
        StructField("shipped_at", TimestampType()),
        StructField("completed_at", TimestampType()),
        StructField("closed_at", TimestampType()),
        StructField("close_reason", StringType()),
        StructField("complete_reason", StringType()),
        StructField("payment_id", StringType()),
        StructField("captures", ArrayType(CAPTURE)),
        StructField("captured_minor", LongType()),
        StructField("refunds", ArrayType(REFUND)),
        StructField("refunded_minor", LongType()),
        StructField("refund_requests", ArrayType(REFUND_REQUEST)),
        StructField("disputed", ArrayType(StringType())),
        StructField("events", IntegerType()),
        StructField("last_stored_at", TimestampType()),
        StructField("day", DateType()),
    ]
)

PENDING_PAYMENT = "PENDING_PAYMENT"
AWAITING_SHIPMENT = "AWAITING_SHIPMENT"
SHIPPED_STATUS = "SHIPPED"
COMPLETED_STATUS = "COMPLETED"
CLOSED_STATUS = "CLOSED"

# Kind of event -> the status that it leads to; the last that was told decides.
STATUS_OF = {
    CREATED: PENDING_PAYMENT,
    PAID: AWAITING_SHIPMENT,
    SHIPPED: SHIPPED_STATUS,
    COMPLETED: COMPLETED_STATUS,
    CLOSED: CLOSED_STATUS,
}
# Kind of event -> the column of facts that it adds to. The first member of a fact is its key.
_FACTS = {
    SUCCEEDED: ("captures", CAPTURE),
    REFUNDED: ("refunds", REFUND),
    REFUND_REQUESTED: ("refund_requests", REFUND_REQUEST),
}
_RENAMED = {"captured_at": "paid_at"}  # a member of a fact that the event calls otherwise
_TERMS = ("buyer_id", "currency", "total_minor", "expires_at")  # in the body of each state, as they were agreed
_TIMES = ("created_at", "paid_at", "shipped_at", "completed_at", "closed_at", "refunded_at")


def orders(events: DataFrame) -> DataFrame:
    """ORDERS of all that EVENTS say; timers are not looked at."""
    told = events.where(F.col("topic").isin(ORDER_EVENTS_TOPIC, PAYMENT_EVENTS_TOPIC))
    grouped = told.groupBy("order_id").agg(
        *(_state(kind) for kind in STATUS_OF),
        *(_collected(kind, column, fact_type) for kind, (column, fact_type) in _FACTS.items()),
        F.collect_set(F.when(F.col("kind").isin(*STATUS_OF), F.struct("version", *_TERMS))).alias("terms"),
        F.max("stored_at").alias("last_stored_at"),
        F.min(F.coalesce(*_TIMES, "stored_at")).alias("first_at"),
    )
    # Each step is a projection of its own: what it makes is made once and then looked at several times.
    sorted_facts = grouped.withColumns({column: F.sort_array(column) for column, _ in _FACTS.values()})
    judged = sorted_facts.withColumn("disputed", _disputed())
    known = judged.withColumns({column: _known(column, fact_type) for column, fact_type in _FACTS.values()})
    return _rows(known).select(*ORDERS.names)


def _state(kind: str) -> Column:
    """What the event of this kind says: of the newest version, then the earliest; null if it was not told."""
    at = f"{kind}_at"
    members = ["lines"] if kind == CREATED else ["payment_id", "reason"]
    said = F.struct("version", (-F.unix_millis(at)).alias("earliest"), F.col(at).alias("at"), *_TERMS, *members)
    return F.max(F.when(F.col("kind") == kind, said)).alias(kind)


def _collected(kind: str, column: str, fact_type: StructType) -> Column:
    """The facts of the order, each wording once; sorted, the newest version of a key comes first, then the earliest."""
    key, *others = fact_type.names
    others.sort(key=lambda name: not name.endswith("_at"))
    fact = F.struct(
        F.col(_RENAMED.get(key, key)).alias(key),
        (-F.col("version")).alias("older"),
        *(F.col(_RENAMED.get(name, name)).alias(name) for name in others),
    )
    return F.collect_set(F.when(F.col("kind") == kind, fact)).alias(column)


def _known(column: str, fact_type: StructType) -> Column:
    """The sorted facts without the second wording of any key."""
    names = fact_type.names
    key = names[0]
    told = F.col(column)
    first = F.filter(told, lambda fact, at: (at == 0) | (fact[key] != F.get(told, at - 1)[key]))
    distinct = F.when(F.size(told) < 2, told).otherwise(first)  # as for nearly all orders
    return F.transform(distinct, lambda fact: F.struct(*(fact[name].alias(name) for name in names)))


def _disputed() -> Column:
    """About what two events of one version disagree: names of terms, and ids of captures, refunds and requests."""
    nothing = F.array().cast("array<string>")
    newest = F.array_max(F.transform("terms", lambda said: said["version"]))

    def differs(term: str) -> Column:
        said = F.transform(F.filter("terms", lambda said: said["version"] == newest), lambda said: said[term])
        return F.size(F.array_distinct(F.array_compact(said))) > 1

    terms = F.array_compact(F.array(*(F.when(differs(term), F.lit(term)) for term in _TERMS)))
    parts = [F.when(F.size("terms") < 2, nothing).otherwise(terms)]  # as of nearly all orders
    for column, fact_type in _FACTS.values():
        key, told = fact_type.names[0], F.col(column)
        others = _other_amounts(told, key, [name for name in ("amount_minor", "payment_id") if name in fact_type.names])
        ids = F.array_distinct(_each(others, key))
        parts.append(F.when(F.size(told) < 2, nothing).otherwise(ids))
    return F.concat(*parts)


def _each(facts: Column, member: str) -> Column:
    return F.transform(facts, lambda fact: fact[member])


def _other_amounts(told: Column, key: str, members: list[str]) -> Column:
    """The sorted facts that say something else than the one before, of the same key and version."""

    def is_other(fact: Column, at: Column) -> Column:
        before = F.get(told, at - 1)
        is_same = (before[key] == fact[key]) & (before["older"] == fact["older"])
        return (at > 0) & is_same & reduce(Column.__or__, (before[name] != fact[name] for name in members))

    return F.filter(told, is_other)


def _rows(known: DataFrame) -> DataFrame:
    payment_id = F.coalesce(*(f"{kind}.payment_id" for kind in (PAID, SHIPPED, COMPLETED, CLOSED)))
    # An event `paid` that is not there: its time is the one at which that payment's money was taken.
    captured = F.get(F.filter("captures", lambda fact: fact["payment_id"] == payment_id), 0)["captured_at"]
    currency = F.coalesce(*(f"{kind}.currency" for kind in STATUS_OF))
    told = (F.col(kind).isNotNull().cast("int") for kind in STATUS_OF)
    facts = (F.size(column) for column, _ in _FACTS.values())
    return known.select(
        "order_id",
        *(F.coalesce(*(f"{kind}.{term}" for kind in STATUS_OF)).alias(term) for term in _TERMS),
        F.col("created.lines").alias("lines"),
        _status().alias("status"),
        F.col("created.at").alias("created_at"),
        F.coalesce(F.col("paid.at"), captured).alias("paid_at"),
        F.col("shipped.at").alias("shipped_at"),
        F.col("completed.at").alias("completed_at"),
        F.col("closed.at").alias("closed_at"),
        F.col("closed.reason").alias("close_reason"),
        F.col("completed.reason").alias("complete_reason"),
        payment_id.alias("payment_id"),
        "captures",
        sum_minor("captures", currency).alias("captured_minor"),
        "refunds",
        sum_minor("refunds", currency).alias("refunded_minor"),
        "refund_requests",
        "disputed",
        reduce(Column.__add__, [*told, *facts]).alias("events"),
        "last_stored_at",
        utc_day(F.coalesce("created.at", "first_at")).alias("day"),
    )


def _status() -> Column:
    last_first = reversed(STATUS_OF.items())
    return F.coalesce(*(F.when(F.col(kind).isNotNull(), F.lit(status)) for kind, status in last_first))


def sum_minor(facts: str, currency: Column) -> Column:
    """What the facts of a column amount to in one currency, the first fact's if this is null; 0 without any.

    A fact that does not say its currency is of this one. Amounts in others are not added.
    """
    own = F.coalesce(currency, F.get(facts, F.lit(0))["currency"])

    def added(total: Column, fact: Column) -> Column:
        is_own = F.coalesce(fact["currency"], own).eqNullSafe(own)
        return total + F.when(is_own, fact["amount_minor"]).otherwise(F.lit(0))

    return F.aggregate(facts, F.lit(0).cast("long"), added)


def is_known_to_orders() -> Column:
    """Whether orders itself has told of an order's state; else only its payments or refund requests are known."""
    return F.col("status").isNotNull()


def is_paid() -> Column:
    """Whether an order was ever paid, also if its seller cancelled it then; shipping and completing imply it."""
    return F.coalesce("paid_at", "shipped_at", "completed_at").isNotNull() | F.col("payment_id").isNotNull()


def is_closed() -> Column:
    """Whether an order is over without having been completed."""
    return F.coalesce(F.col("status") == CLOSED_STATUS, F.lit(False))


# Orders -> one row per payment: what was captured, and how much of it went back (mechanism Y6).
#
# Invariants: status, amounts and captured_at are those of the payment in the database of payments once all its events
# are there. A payment of which only refunds or refund requests were told has no status and no amount.

PAYMENTS = StructType(
    [
        StructField("payment_id", StringType()),
        StructField("order_id", StringType()),
        StructField("status", StringType()),
        StructField("amount_minor", LongType()),
        StructField("currency", StringType()),
        StructField("captured_at", TimestampType()),
        StructField("pays_order", BooleanType()),
        StructField("refund_request_reason", StringType()),
        StructField("refunds", IntegerType()),
        StructField("refunded_minor", LongType()),
        StructField("last_refunded_at", TimestampType()),
        StructField("day", DateType()),
    ]
)


def payments(orders: DataFrame) -> DataFrame:
    """PAYMENTS of what ORDERS say; no shuffle."""
    ids = F.concat("captures.payment_id", "refunds.payment_id", "refund_requests.payment_id")
    named = orders.withColumnRenamed("payment_id", "paid_by").withColumn("payment_id", F.explode(F.array_distinct(ids)))
    own = named.select(
        "payment_id",
        "order_id",
        "paid_by",
        F.get(_own("captures"), 0).alias("capture"),
        _own("refunds").alias("of_refunds"),
        F.get(_own("refund_requests"), 0)["reason"].alias("refund_request_reason"),
        F.col("day").alias("order_day"),
    )
    return (
        own.withColumn("refunded_minor", sum_minor("of_refunds", F.col("capture.currency")))
        .select(
            "*",
            "capture.amount_minor",
            "capture.currency",
            "capture.captured_at",
            F.coalesce(F.col("payment_id") == F.col("paid_by"), F.lit(False)).alias("pays_order"),
            F.size("of_refunds").alias("refunds"),
            F.array_max("of_refunds.refunded_at").alias("last_refunded_at"),
            F.coalesce(utc_day("capture.captured_at"), "order_day").alias("day"),
        )
        .withColumn("status", _payment_status())
        .select(*PAYMENTS.names)
    )


def _own(facts: str) -> Column:
    return F.filter(facts, lambda fact: fact["payment_id"] == F.col("payment_id"))


def _payment_status() -> Column:
    captured = F.col("captured_at").isNotNull()
    return (
        F.when(captured & (F.col("refunded_minor") == 0), "CAPTURED")
        .when(captured & (F.col("refunded_minor") < F.col("amount_minor")), "PARTIALLY_REFUNDED")
        .when(captured, "REFUNDED")
    )


# Bronze -> one row per delivered timeout: when it was due, and how late the broker delivered it (mechanism Y6).
#
# Invariants: a timeout that waited names the waiting record that it was, and that one says when it was due, so the
# broker's own lateness is read and not guessed. A timeout that did not wait (its order was due when it was sent), and
# one whose waiting record is not in bronze, have no due time and no lateness.
#
# Bronze must hold the broker's queues of waiting records, WAITING_TOPICS, beside the topic of the timeouts.

TIMERS = StructType(
    [
        StructField("order_id", StringType()),
        StructField("msg_id", StringType()),
        StructField("delivered_at", TimestampType()),
        StructField("due_at", TimestampType()),
        StructField("lateness_ms", LongType()),
        StructField("level", IntegerType()),
    ]
)

# The broker's names (mqproto), kept here as the shop's topics are: a test holds that both agree.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # queue n holds what waits by level n + 1
TIMER_TOPIC = "rmq_sys_wheel_timer"  # what waits by a due time of its own; "level" -1
CARRIED_TOPIC = "SCHEDULE_TOPIC_CARRIED"  # the same, as earlier versions kept it; "level" 0
WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, CARRIED_TOPIC)
SCHEDULE_POSITION = "__SCHEDULE_POSITION"  # of a delivered record: level:queue offset
DUE_TIMESTAMP = "__DUE_TIMESTAMP"  # of a waiting record, in ms

_POSITION = r"^-?\d{1,4}:\d{1,18}$"


def timers(bronze: DataFrame) -> DataFrame:
    """TIMERS of the timeouts in BRONZE, each place of the queue once."""
    delivered = _delivered(bronze)
    waiting = _waiting(bronze)
    joined = delivered.join(waiting, ["broker", "topic", "queueId", "queueOffset"], "left")
    return joined.withColumn("lateness_ms", elapsed_ms("due_at", "delivered_at")).select(*TIMERS.names)


def _delivered(bronze: DataFrame) -> DataFrame:
    """The delivered timeouts, with the place of the waiting record that each was."""
    position = F.col("properties")[SCHEDULE_POSITION]
    told = F.when(position.rlike(_POSITION), F.split(position, ":"))
    level = F.get(told, 0).cast("int")
    return (
        bronze.where(F.col("topic") == ORDER_TIMEOUTS_TOPIC)
        .dropDuplicates(list(PLACE))
        .select(
            F.get("keys", 0).alias("order_id"),
            F.col("msgId").alias("msg_id"),
            F.col("storeTimestamp").alias("delivered_at"),
            level.alias("level"),
            "broker",
            _waiting_topic(level).alias("topic"),
            F.when(level > 0, level - 1).otherwise(F.when(level.isNotNull(), 0)).alias("queueId"),
            F.get(told, 1).cast("long").alias("queueOffset"),
        )
    )


def _waiting(bronze: DataFrame) -> DataFrame:
    """The waiting records' places and due times."""
    due_ms = F.col("properties")[DUE_TIMESTAMP].try_cast("long")
    return (
        bronze.where(F.col("topic").isin(*WAITING_TOPICS))
        .select(*PLACE, F.timestamp_millis(due_ms).alias("due_at"))
        .dropDuplicates(list(PLACE))
    )


def _waiting_topic(level: Column) -> Column:
    return (
        F.when(level > 0, F.lit(SCHEDULE_TOPIC))
        .when(level == 0, F.lit(CARRIED_TOPIC))
        .when(level.isNotNull(), F.lit(TIMER_TOPIC))
    )
