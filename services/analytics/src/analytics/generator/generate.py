"""`python -m analytics generate`: order histories of any size as bronze, and the truth about what is wrong in them.

A story leaves messages in the queue, its timers among them. Beside bronze lies the table `bronze/truth`: which order
has which planted fault.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from analytics import events as kinds
from analytics.generator.generation import FIRST_DAY, Chance, Generation, broker_of, queue_of, with_offsets
from analytics.generator.stories import FAULTS, Second, baskets, is_told, moments, told
from analytics.jobs.bronze import BRONZE, utc_day
from analytics.jobs.reconciliation_kinds import Kind
from analytics.warehouse import HadoopFiles, Warehouse, WarehouseError

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]


_UNPLACED = (
    "number", "part", "copy", "topic", "broker", "queueId", "tag", "order_id", "born_ms", "stored_ms", "text",
    "message_id", "own_properties",
)  # fmt: skip

OPERATORS_REASON = "an item was missing"
REPEATED_WITHIN_MS = 60_000
_TERMS = ("order_id", "buyer_id", "total_minor", "currency", "expires_at_ms")
LEVEL = 16  # of 30 minutes
NAME = "generate"
ORDERS = 10_000

TRUTH = StructType([StructField(name, StringType()) for name in ("kind", "order_id", "payment_id", "story")])

_ORDER_KINDS = (  # findings without a payment
    Kind.NEVER_CLOSED, Kind.CLOSED_EARLY, Kind.LINES_DO_NOT_ADD_UP, Kind.TERMS_MISSING, Kind.TOLD_DIFFERENTLY,
    Kind.PAID_WITHOUT_PAYMENT, Kind.PAID_AFTER_EXPIRY, Kind.CLOSED_LATE, Kind.CLOSED_AFTER_SHIPPING,
)  # fmt: skip


def add_generate_parser(commands: Parsers) -> argparse.ArgumentParser:
    """The command and its own options; the caller adds those of the session and the warehouse."""
    command = commands.add_parser(NAME, help="make order histories with planted faults, as bronze: for scale tests")
    command.add_argument("--orders", type=int, default=ORDERS, metavar="N", help="default: %(default)s")
    command.add_argument("--days", type=int, default=7, metavar="N", help="over which they come; default: %(default)s")
    command.add_argument(
        "--start", type=_day, default=FIRST_DAY, metavar="DAY", help=f"the first of them; {FIRST_DAY:%Y-%m-%d}"
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="the same makes the same; %(default)s")
    command.add_argument("--brokers", type=int, default=1, metavar="N", help="default: %(default)s")
    command.add_argument("--queues", type=int, default=4, metavar="N", help="of each topic; default: %(default)s")
    command.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="KIND=N",
        help=f"so many orders with it; may be repeated; KIND is all, or one of {', '.join(FAULTS)}",
    )
    return command


def generation_of(options: argparse.Namespace) -> Generation:
    """Raises ValueError for what does not go together."""
    faults: dict[Kind, int] = {}
    for chosen, count in options.fault:
        faults |= dict.fromkeys(chosen, count)
    return Generation(
        orders=options.orders,
        seed=options.seed,
        start=options.start,
        days=options.days,
        faults=faults,
        brokers=options.brokers,
        queues=options.queues,
        read_twice_share=0.0,  # the table that the streaming job writes has each message once
    )


def run_generate(spark: SparkSession, wanted: Generation, warehouse: Warehouse) -> DataFrame:
    """Write bronze and the truth in place of what was generated before; returns the truth as it was written.

    Raises WarehouseError for a warehouse that has read a queue: made-up messages do not belong among real ones.
    """
    if HadoopFiles(spark).exists(warehouse.bronze_checkpoint):
        raise WarehouseError(f"{warehouse.root} holds messages of a queue; name another folder for generated ones")
    made = generate(spark, wanted)
    warehouse.replace(warehouse.events, made.bronze, ("day",))
    warehouse.replace(truth_path(warehouse), made.truth)
    return warehouse.read(spark, truth_path(warehouse), TRUTH)


def truth_path(warehouse: Warehouse) -> str:
    """Where the truth lies."""
    return f"{warehouse.root}/bronze/truth"


def _day(text: str) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(tzinfo=UTC))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day such as 2026-11-02") from None


def _fault(text: str) -> tuple[tuple[Kind, ...], int]:
    kind, _, count = text.partition("=")
    if kind not in {"all", *FAULTS} or not (count.isascii() and count.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no fault such as {FAULTS[0]}=7; allowed is all=7 too")
    return (FAULTS if kind == "all" else (Kind(kind),)), int(count)


@dataclass(frozen=True, slots=True)
class Generated:
    """`bronze`: BRONZE. `truth`: TRUTH, a row for each planted fault."""

    bronze: DataFrame
    truth: DataFrame


def generate(spark: SparkSession, wanted: Generation, partitions: int | None = None) -> Generated:
    """Both tables, not computed yet. `partitions` is only about speed; None: as many as Spark thinks right."""
    numbers = spark.range(0, wanted.orders, 1, partitions).withColumnRenamed("id", "number")
    orders = moments(baskets(numbers, wanted), wanted)
    return Generated(_bronze(orders, wanted), _truth(orders))


def _bronze(orders: DataFrame, wanted: Generation) -> DataFrame:
    chance = Chance(wanted.seed, ("number", "part", "copy"))
    # What is stored twice stands in another queue or on another broker, as after a broker that did not answer.
    told = messages(orders, wanted).withColumns(
        {
            "broker": broker_of(wanted, chance),
            "queueId": queue_of(wanted, chance),
            "own_properties": F.create_map().cast("map<string,string>"),
        }
    )
    # The waiting records are counted once more, and get the same offsets.
    rows = with_offsets(told.select(*_UNPLACED).unionByName(timers(orders, wanted).select(*_UNPLACED)))
    if wanted.until is not None:
        rows = rows.where(F.col("stored_ms") <= int(wanted.until.timestamp() * 1000))
    read = Chance(wanted.seed, ("topic", "broker", "queueId", "queueOffset"))
    is_twice = read.happens("read twice", wanted.read_twice_share)
    times = F.when(is_twice, F.expr("array(0, 1)")).otherwise(F.expr("array(0)"))
    return rows.withColumn("time", F.explode(times)).select(*(_column(name).alias(name) for name in BRONZE.names))


def _column(name: str) -> Column:
    """The column of BRONZE, out of those of the messages."""
    made = {
        "key": F.col("order_id"),
        "keys": F.array("order_id"),
        "body": F.col("text").cast("binary"),
        "bornTimestamp": F.timestamp_millis("born_ms"),
        "storeTimestamp": F.timestamp_millis("stored_ms"),
        "msgId": F.col("message_id"),
        "properties": F.map_concat(
            F.create_map(F.lit("UNIQ_KEY"), "message_id", F.lit("TAGS"), "tag", F.lit("KEYS"), "order_id"),
            "own_properties",
        ),
        "day": utc_day(F.timestamp_millis("stored_ms")),
    }
    return made.get(name, F.col(name))


def _truth(orders: DataFrame) -> DataFrame:
    is_second = is_told(lambda one: one.second is Second.KEPT)
    has_payment = ~F.col("fault").isin([kind.value for kind in _ORDER_KINDS])
    payment_id = F.when(is_second, F.col("second_payment_id")).when(has_payment, F.col("payment_id"))
    return orders.where(F.col("fault").isNotNull()).select(
        F.col("fault").alias("kind"), "order_id", payment_id.alias("payment_id"), "story"
    )


# The messages of an order's story, with the bodies that orders and payments write (their modules service/events.py).
#
# Invariants: a body has the members of its kind in the order in which the service writes them, with null for a member
# that has no value; the key is the order's id.

REFUNDS_MAX = 2


def messages(orders: DataFrame, wanted: Generation) -> DataFrame:
    """One row per message of the rows of stories.py, some of them twice.

    Columns: number, part (which of its order's messages), copy, order_id, topic, tag, born_ms, stored_ms, text (the
    body), message_id.
    """
    first = orders.select("*", F.explode(F.array_compact(F.array(*_told_by(orders)))).alias("message"))
    rows = first.select("*", "message.part", "message.topic", "message.tag", "message.told_ms")
    chance = Chance(wanted.seed, ("number", "part", "copy"))
    is_twice = Chance(wanted.seed, ("number", "part")).happens("repeated", wanted.repeated_share)
    copies = rows.withColumn("copy", F.explode(F.when(is_twice, F.expr("array(0, 1)")).otherwise(F.expr("array(0)"))))
    late_ms = F.when(chance.happens("late", wanted.late_share), chance.between("late by", 0, wanted.late_ms_max + 1))
    again_ms = F.col("copy") * (1 + chance.between("again", 0, REPEATED_WITHIN_MS))
    # Half of those that are stored twice were sent twice, each time with an id of its own.
    is_own_id = (F.col("copy") == 1) & chance.happens("sent again", 0.5)
    message_id = Chance(wanted.seed, ("number", "part")).hex_id("message")
    return copies.select(
        "number",
        "part",
        "copy",
        "order_id",
        "topic",
        "tag",
        F.col("told_ms").alias("born_ms"),
        (F.col("told_ms") + 1 + chance.soon("store", 3, 60) + F.coalesce(late_ms, F.lit(0)) + again_ms).alias(
            "stored_ms"
        ),
        _text().alias("text"),
        F.upper(F.when(is_own_id, chance.hex_id("message")).otherwise(message_id)).alias("message_id"),
    )


def _told_by(orders: DataFrame) -> list[Column]:
    """Each message that an order may have, null where its story does not have it; `part` tells them apart."""
    orders_, payments = kinds.ORDER_EVENTS_TOPIC, kinds.PAYMENT_EVENTS_TOPIC
    is_created = is_told(lambda one: one.is_created)
    first = {"payment_id": F.col("payment_id"), "amount_minor": F.col("captured_minor")}
    first["currency"] = F.col("captured_currency")
    second = {"payment_id": F.col("second_payment_id"), "amount_minor": F.col("total_minor")}
    rejected = second | {"reason": F.lit("already-paid")}
    second_refund = {"refund_id": _refund_id("second"), "refunded_minor": second["amount_minor"]}
    told_ = [
        (orders_, kinds.CREATED, F.when(is_created, F.col("created_ms")), {}),
        (payments, kinds.SUCCEEDED, F.col("captured_ms"), first),
        (orders_, kinds.PAID, F.col("paid_ms"), {}),
        (orders_, kinds.SHIPPED, F.col("shipped_ms"), {}),
        (orders_, kinds.COMPLETED, F.when(F.col("shipped_ms").isNotNull(), F.col("completed_ms")), {}),
        (orders_, kinds.CLOSED, F.col("closed_ms"), {"reason": F.col("close_reason")}),
        (orders_, kinds.REFUND_REQUESTED, F.col("requested_ms"), first | {"reason": F.col("request_reason")}),
        *((payments, kinds.REFUNDED, *_refund(index, first)) for index in range(REFUNDS_MAX)),
        (payments, kinds.SUCCEEDED, F.col("second_captured_ms"), second),
        (orders_, kinds.REFUND_REQUESTED, F.col("second_requested_ms"), rejected),
        (payments, kinds.REFUNDED, F.col("second_returned_ms"), rejected | second_refund),
    ]
    return [_message(part, *message) for part, message in enumerate(told_)]


def _refund(index: int, payment: dict[str, Column]) -> tuple[Column, dict[str, Column]]:
    """When, and of what, the refund with this number of its story is; what goes back in all is rounded once."""
    before = told(lambda one: sum(one.refunds[:index]) if len(one.refunds) > index else None)
    upto = told(lambda one: sum(one.refunds[: index + 1]) if len(one.refunds) > index else None)
    captured_minor = payment["amount_minor"]
    refunded_minor = F.floor(captured_minor * upto)
    members = {
        "amount_minor": refunded_minor - F.floor(captured_minor * before),
        "refunded_minor": refunded_minor,
        "reason": F.coalesce(F.col("request_reason"), F.lit(OPERATORS_REASON)),
        "refund_id": _refund_id(str(index)),
    }
    at_ms = F.when(upto.isNotNull(), F.col("returned_ms") + index * 90_000)
    return at_ms, payment | members


def _refund_id(name: str) -> Column:
    return F.concat(F.lit("refund-"), F.md5(F.concat_ws("/", F.lit(name), "payment_id")))


def _message(part: int, topic: str, tag: str, told_ms: Column, members: dict[str, Column]) -> Column:
    """What tells this message from the others of its order; null if it is not told."""
    no_text = F.lit(None).cast("string")
    own = {"payment_id": no_text, "amount_minor": F.lit(None), "currency": F.col("currency"), "reason": no_text}
    own |= {"refund_id": no_text, "refunded_minor": F.lit(None)} | members
    columns = {"part": F.lit(part), "topic": F.lit(topic), "tag": F.lit(tag), "told_ms": told_ms} | own
    types = {"amount_minor": "bigint", "refunded_minor": "bigint", "told_ms": "bigint"}
    return F.when(
        told_ms.isNotNull(),
        F.struct(
            *(
                column.cast(types.get(name, "string" if name != "part" else "int")).alias(name)
                for name, column in columns.items()
            )
        ),
    )


def _text() -> Column:
    """The body of the row's message."""
    of_order = {
        "version": F.lit(kinds.VERSION_KNOWN),
        "order_id": F.col("order_id"),
        "buyer_id": F.col("buyer_id"),
        "total_minor": F.col("total_minor"),
        "currency": F.col("currency"),
        "expires_at_ms": F.when(~is_told(lambda one: one.has_no_expiry), F.col("expires_ms")),
    }
    is_paid = F.col("paid_ms").isNotNull() & ~is_told(lambda one: one.has_no_payment)
    paid_by = {"payment_id": F.when(is_paid, F.col("payment_id"))}
    retold = {"total_minor": F.col("total_minor") + is_told(lambda one: one.is_retold).cast("int")}
    of_money = {name: F.col(f"message.{name}") for name in ("amount_minor", "currency")}
    reason, at_ms = {"reason": F.col("message.reason")}, F.col("told_ms")
    payment_id = {"payment_id": F.col("message.payment_id")}
    order_id = {"order_id": F.col("order_id")}
    version = {"version": F.lit(kinds.VERSION_KNOWN)}
    of_payment = version | payment_id | order_id | of_money
    refund_id, refunded_minor = ({name: F.col(f"message.{name}")} for name in ("refund_id", "refunded_minor"))
    bodies = {
        kinds.CREATED: of_order | {"created_at_ms": at_ms, "items": F.col("lines")},
        kinds.PAID: of_order | retold | paid_by | {"paid_at_ms": F.col("pay_ms")},
        kinds.SHIPPED: of_order | paid_by | {"shipped_at_ms": at_ms},
        kinds.COMPLETED: of_order | paid_by | {"completed_at_ms": at_ms} | {"reason": F.col("complete_reason")},
        kinds.CLOSED: of_order | {"closed_at_ms": at_ms} | reason | paid_by,
        kinds.REFUND_REQUESTED: version | order_id | payment_id | of_money | reason,
        kinds.SUCCEEDED: of_payment | {"paid_at_ms": at_ms},
        kinds.REFUNDED: of_payment | refund_id | reason | {"refunded_at_ms": at_ms} | refunded_minor,
    }
    chosen = F.when(F.lit(False), F.lit(""))
    for tag, members in bodies.items():
        chosen = chosen.when(F.col("tag") == tag, json_text(members))
    return chosen


def json_text(members: dict[str, Column]) -> Column:
    """The members as JSON, also those that are null."""
    return F.to_json(F.struct(*(column.alias(name) for name, column in members.items())), {"ignoreNullFields": "false"})


# The timer of every order: the record that waits in the broker, and the message that it delivers.
#
# Invariant: the delivered message names, in `__SCHEDULE_POSITION`, the offset at which its waiting record stands in the
# queue of its level on the same broker, and the waiting record in `__DUE_TIMESTAMP` when it is due.

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def timers(orders: DataFrame, wanted: Generation) -> DataFrame:
    """Both messages of every order that was created, with the columns of messages.py, and their places."""
    chance = Chance(wanted.seed)
    waiting = orders.where(is_told(lambda one: one.is_created)).select(
        "number",
        F.lit(0).alias("part"),
        F.lit(0).alias("copy"),
        "order_id",
        F.lit(SCHEDULE_TOPIC).alias("topic"),
        F.lit(kinds.EXPIRE).alias("tag"),
        broker_of(wanted, chance).alias("broker"),
        F.lit(LEVEL - 1).alias("queueId"),
        queue_of(wanted, chance).alias("real_queue_id"),
        (F.col("waiting_ms") - 1).alias("born_ms"),
        F.col("waiting_ms").alias("stored_ms"),
        "due_ms",
        "delivered_ms",
        _timer_text().alias("text"),
        F.upper(chance.hex_id("timer")).alias("message_id"),
    )
    both = with_offsets(waiting).withColumn("both", F.explode(F.array(_waiting(), _delivered())))
    return both.drop("topic", "queueId", "stored_ms").select("*", "both.*")


def _timer_text() -> Column:
    members = {"order_id": F.col("order_id"), "expires_at_ms": F.col("expires_ms")}
    return json_text({"version": F.lit(kinds.VERSION_KNOWN)} | members)


def _waiting() -> Column:
    return _place(
        F.lit(SCHEDULE_TOPIC),
        F.col("queueId"),
        F.col("stored_ms"),
        {
            "DELAY": F.lit(str(LEVEL)),
            "REAL_TOPIC": F.lit(kinds.ORDER_TIMEOUTS_TOPIC),
            "REAL_QID": F.col("real_queue_id").cast("string"),
            "__DUE_TIMESTAMP": F.col("due_ms").cast("string"),
        },
    )


def _delivered() -> Column:
    return _place(
        F.lit(kinds.ORDER_TIMEOUTS_TOPIC),
        F.col("real_queue_id"),
        F.col("delivered_ms"),
        {"WAIT": F.lit("false"), "__SCHEDULE_POSITION": F.format_string(f"{LEVEL}:%s", "queueOffset")},
    )


def _place(topic: Column, queue_id: Column, stored_ms: Column, properties: dict[str, Column]) -> Column:
    pairs = [part for name, value in properties.items() for part in (F.lit(name), value)]
    return F.struct(
        topic.alias("topic"),
        queue_id.alias("queueId"),
        stored_ms.alias("stored_ms"),
        F.create_map(*pairs).alias("own_properties"),
    )
