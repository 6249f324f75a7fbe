"""Records of a transaction: the half message, the operation message, and the delivered message.

Mechanisms T2-T4, T10.
"""

from __future__ import annotations

from mq_broker.core.batches import Batch
from mq_broker.core.rewrite import promised_queue, rewrite, single_record_batch, tag_code, timed_due_ms
from mq_broker.core.transactions import Half, Phase
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mqproto.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    DELAY_MS_MAX,
    HALF_TIMESTAMP,
    PGROUP,
    PRODUCER_SEQUENCE,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_STATE,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
    java_string_hash,
)
from mqproto.record import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK, Record, decode_record, encode_record

# Invariants: what a committed transaction delivers is the message that was prepared, byte for byte in its body and user
# properties; an op message names its half by queue offset, as in RocketMQ, and by transaction id.

OP_TAG = "d"  # RocketMQ's TransactionalMessageUtil.REMOVE_TAG
IMMUNITY_S_MAX = DELAY_MS_MAX // 1_000
CHECK_TIMES_MAX = 1_000_000  # more than any broker counts; a record of another program may hold any number


class HalfError(ValueError):
    """A half message that cannot be prepared; the message says why."""


def transaction_id(record: Record) -> str:
    """The id of the transaction that a half or op record belongs to."""
    return decode_properties(record.properties).get(UNIQ_KEY, "")


def half_batch(batch: Batch, store_ms: int) -> Batch:
    """A half message as a producer sent it, under the half topic. Raises HalfError, and BatchError for a long delay."""
    if batch.count != 1:
        raise HalfError(f"a half message travels in a batch of its own, not with {batch.count - 1} others")
    record = decode_record(bytes(batch.buffer))
    properties = decode_properties(record.properties)
    if properties.get(TRAN_MSG) != "true":
        raise HalfError(f"a half message has the property {TRAN_MSG}=true")
    for name in (UNIQ_KEY, PGROUP):
        if not properties.get(name):
            raise HalfError(f"a half message has the property {name}")
    _check_immunity(properties)
    if batch.timed:
        timed_due_ms(0, properties, store_ms, store_ms)
    own = {REAL_TOPIC: batch.topic, REAL_QID: str(batch.queue_id), HALF_TIMESTAMP: str(store_ms)}
    return _half(record, properties | own)


def recheck_batch(record: Record, check_times: int) -> Batch:
    """The half message once more, with its checks counted: it goes to the log's end before it is checked.

    Mechanism T11.
    """
    return _half(record, decode_properties(record.properties) | {TRANSACTION_CHECK_TIMES: str(check_times)})


def half_of(record: Record, queue_offset: int) -> Half:
    """What the table keeps of a half record, whose half stands at `queue_offset` of the half queue.

    Raises ValueError when the record names no transaction. A number that is none, as a record of RocketMQ's may have
    it, is taken for one that is not there.
    """
    properties = decode_properties(record.properties)
    id_ = properties.get(UNIQ_KEY)
    if not id_:
        raise ValueError(f"the half message at offset {record.log_offset} of the log names no transaction")
    return Half(
        transaction_id=id_,
        producer_group=properties.get(PGROUP, ""),
        log_offset=record.log_offset,
        queue_offset=queue_offset,
        first_store_ms=_number(properties, HALF_TIMESTAMP, 1 << 62) or record.store_timestamp_ms,
        check_times=_number(properties, TRANSACTION_CHECK_TIMES, CHECK_TIMES_MAX) or 0,
        immunity_s=_number(properties, CHECK_IMMUNITY_TIME_IN_SECONDS, IMMUNITY_S_MAX),
    )


def committed_batch(record: Record, half_offset: int) -> Batch:
    """The message that the half message at `half_offset` of the half queue becomes, under its own topic.

    One that asks for a delay waits from now on: its batch is `delayed`. Raises HalfError for a record that does not
    say where it is going.
    """
    promised = promised_queue(record)
    if promised is None:
        raise HalfError(f"the half message at offset {record.log_offset} of the log does not say where it is going")
    topic, queue_id = promised
    properties = decode_properties(record.properties)
    for name in (
        REAL_TOPIC,
        REAL_QID,
        TRAN_MSG,
        HALF_TIMESTAMP,
        TRANSACTION_CHECK_TIMES,
        CHECK_IMMUNITY_TIME_IN_SECONDS,
        PRODUCER_SEQUENCE,
    ):
        properties.pop(name, None)
    data = rewrite(
        record,
        topic,
        queue_id,
        properties,
        record.reconsume_times,
        sys_flag=record.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT,
        prepared_transaction_offset=half_offset,
    )
    return single_record_batch(
        topic,
        queue_id,
        data,
        tag_code(properties),
        _number(properties, DELAY, 999) or 0,
        timed=TIMER_DELAY_MS in properties or TIMER_DELIVER_MS in properties,
    )


def is_committed(record: Record) -> bool:
    """Whether only the commit of a transaction can have made this record."""
    return record.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_COMMIT


def op_batch(half: Half, phase: Phase, *, store_ms: int, born_ip: int) -> Batch:
    """The op message that closes or parks a transaction (mechanism T3)."""
    body = str(half.queue_offset)
    return state_batch(half, phase, topic=OP_HALF_TOPIC, tag=OP_TAG, body=body, store_ms=store_ms, born_ip=born_ip)


def state_batch(half: Half, phase: Phase, *, topic: str, tag: str, body: str, store_ms: int, born_ip: int) -> Batch:
    """An op message or a mark: a small record, born in the broker, that says how a transaction stands."""
    data = encode_record(
        topic=topic.encode(),
        body=body.encode(),
        properties=encode_properties({TAGS: tag, UNIQ_KEY: half.transaction_id, TRANSACTION_STATE: phase.name}),
        queue_id=0,
        born_timestamp_ms=store_ms,
        born_ip=born_ip,
    )
    return single_record_batch(topic, 0, data, java_string_hash(tag))


def state_phase(record: Record) -> Phase | None:
    """What an op record or a mark says of its transaction.

    None for a parked half, and for RocketMQ's op records, which do not say.
    """
    state = decode_properties(record.properties).get(TRANSACTION_STATE)
    return None if state is None else Phase[state]


def op_half_offsets(record: Record) -> list[int]:
    """Queue offsets of the halves that this op record closes: one of ours, several of RocketMQ's, with commas."""
    return [int(offset) for offset in record.body.decode().split(",") if offset]


def _half(record: Record, properties: dict[str, str]) -> Batch:
    data = rewrite(
        record,
        HALF_TOPIC,
        0,
        properties,
        record.reconsume_times,
        sys_flag=record.sys_flag & ~FLAG_TRANSACTION_MASK,  # as in RocketMQ: in its queue a half is like any message
    )
    batch = single_record_batch(HALF_TOPIC, 0, data, tag_code(properties))
    batch.prepared = True
    return batch


def _check_immunity(properties: dict[str, str]) -> None:
    """Raises HalfError."""
    value = properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS)
    if value is not None and _number(properties, CHECK_IMMUNITY_TIME_IN_SECONDS, IMMUNITY_S_MAX) is None:
        raise HalfError(
            f"{CHECK_IMMUNITY_TIME_IN_SECONDS} is {value!r}; allowed are whole seconds from 0 to {IMMUNITY_S_MAX:,}"
        )


def _number(properties: dict[str, str], name: str, at_most: int) -> int | None:
    """The property as a whole number from 0 to `at_most`; None when it is none."""
    value = properties.get(name, "")
    if not value.isascii() or not value.isdigit() or len(value) > len(str(at_most)):
        return None
    return number if (number := int(value)) <= at_most else None


# Parked half messages, whose checks got no answer, and the decisions of operators about them (mechanism T10).
#
# A parked half stands in TRANS_CHECK_MAX_TIME_TOPIC as it stood in the half topic. A decision is a mark behind it, in
# the same queue: a small message that names the transaction and says by the broker's own property TRANSACTION_STATE how
# it has ended; no client can set that property, so none can make a mark. The tag of the same name lets readers of the
# topic leave the marks out, and the body is a sentence for people.
#
# Invariants: reading the topic tells what is undecided; a mark is written together with what it decides; what is parked
# keeps its age, its checks and the place of its half, through every copy.

MARK_TAG = TRANSACTION_STATE


def parked_batch(record: Record, half_offset: int, check_times: int) -> Batch:
    """The half message as it is parked; `half_offset` is its offset in the half queue."""
    properties = decode_properties(record.properties) | {TRANSACTION_CHECK_TIMES: str(check_times)}
    data = rewrite(
        record,
        CHECK_MAX_TIMES_TOPIC,
        0,
        properties,
        record.reconsume_times,
        prepared_transaction_offset=half_offset,
    )
    return single_record_batch(CHECK_MAX_TIMES_TOPIC, 0, data, tag_code(properties))


def parked_half(record: Record) -> Half:
    """What the table keeps of a parked half. Raises ValueError when the record names no transaction."""
    return half_of(record, record.prepared_transaction_offset)


def mark_batch(half: Half, phase: Phase, *, store_ms: int, born_ip: int) -> Batch:
    """The mark that says how an operator has ended a parked transaction."""
    return state_batch(
        half,
        phase,
        topic=CHECK_MAX_TIMES_TOPIC,
        tag=MARK_TAG,
        body=f"{phase.value} by an operator",
        store_ms=store_ms,
        born_ip=born_ip,
    )
