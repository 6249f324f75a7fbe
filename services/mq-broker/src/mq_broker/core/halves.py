"""Records of a transaction: the half message, the op message, and what is delivered in the end (MISSION T2-T4, T11).

Invariants: what a committed transaction delivers is the message that was prepared, byte for byte in its body and user
properties; an op message names its half by queue offset, as in RocketMQ, and by transaction id.
"""

from __future__ import annotations

from mq_broker.core.batches import Batch
from mq_broker.core.rewrite import rewrite, single_record_batch, tag_code
from mq_broker.core.transactions import OpenHalf, Phase
from mqproto.java_hash import java_string_hash
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mqproto.properties import (
    DELAY,
    HALF_TIMESTAMP,
    PGROUP,
    PRODUCER_SEQUENCE,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_STATE,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from mqproto.record import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK, Record, decode_record, encode_record

OP_TAG = "d"  # RocketMQ's TransactionalMessageUtil.REMOVE_TAG


class HalfError(ValueError):
    """A half message that cannot be prepared; the message says why."""


def transaction_id(record: Record) -> str:
    """The id of the transaction that a half or op record belongs to."""
    return decode_properties(record.properties).get(UNIQ_KEY, "")


def half_batch(batch: Batch, store_ms: int) -> Batch:
    """A half message as a producer sent it, under the half topic. Raises HalfError."""
    if batch.count != 1:
        raise HalfError(f"a half message travels in a batch of its own, not with {batch.count - 1} others")
    record = decode_record(bytes(batch.buffer))
    properties = decode_properties(record.properties)
    if properties.get(TRAN_MSG) != "true":
        raise HalfError(f"a half message has the property {TRAN_MSG}=true")
    for name in (UNIQ_KEY, PGROUP):
        if not properties.get(name):
            raise HalfError(f"a half message has the property {name}")
    if DELAY in properties:
        raise HalfError("a transactional message with a delay level is not supported")
    own = {REAL_TOPIC: batch.topic, REAL_QID: str(batch.queue_id), HALF_TIMESTAMP: str(store_ms)}
    return _half(record, properties | own)


def recheck_batch(record: Record, check_times: int) -> Batch:
    """The half message once more, with its checks counted: it goes to the log's end before it is checked (T11)."""
    return _half(record, decode_properties(record.properties) | {TRANSACTION_CHECK_TIMES: str(check_times)})


def open_half(record: Record, op_offset: int) -> OpenHalf:
    """What the table keeps of a half record."""
    properties = decode_properties(record.properties)
    return OpenHalf(
        transaction_id=properties[UNIQ_KEY],
        producer_group=properties[PGROUP],
        log_offset=record.log_offset,
        queue_offset=record.queue_offset,
        op_offset=op_offset,
        first_store_ms=int(properties.get(HALF_TIMESTAMP, record.store_timestamp_ms)),
        check_times=int(properties.get(TRANSACTION_CHECK_TIMES, "0")),
    )


def committed_batch(record: Record) -> Batch:
    """What the half message has promised: the message under its own topic."""
    properties = decode_properties(record.properties)
    topic, queue_id = properties.pop(REAL_TOPIC), int(properties.pop(REAL_QID))
    for name in (TRAN_MSG, HALF_TIMESTAMP, TRANSACTION_CHECK_TIMES, PRODUCER_SEQUENCE):
        properties.pop(name, None)
    data = rewrite(
        record,
        topic,
        queue_id,
        properties,
        record.reconsume_times,
        sys_flag=record.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT,
        prepared_transaction_offset=record.queue_offset,
    )
    return single_record_batch(topic, queue_id, data, tag_code(properties))


def parked_batch(record: Record) -> Batch:
    """A half message that nobody could answer for, kept for an operator (MISSION T10)."""
    properties = decode_properties(record.properties)
    data = rewrite(record, CHECK_MAX_TIMES_TOPIC, 0, properties, record.reconsume_times)
    return single_record_batch(CHECK_MAX_TIMES_TOPIC, 0, data, tag_code(properties))


def op_batch(half: OpenHalf, phase: Phase, *, store_ms: int, born_ip: int) -> Batch:
    """The op message that closes a transaction (MISSION T3)."""
    data = encode_record(
        topic=OP_HALF_TOPIC.encode(),
        body=str(half.queue_offset).encode(),
        properties=encode_properties({TAGS: OP_TAG, UNIQ_KEY: half.transaction_id, TRANSACTION_STATE: phase.name}),
        queue_id=0,
        born_timestamp_ms=store_ms,
        born_ip=born_ip,
    )
    return single_record_batch(OP_HALF_TOPIC, 0, data, java_string_hash(OP_TAG))


def op_phase(record: Record) -> Phase | None:
    """How the transaction of this op record has ended; None in RocketMQ's, which do not say."""
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
