"""Half messages that nobody could answer for, kept for an operator, and what operators have decided (MISSION T10).

A parked half stands in TRANS_CHECK_MAX_TIME_TOPIC as it stood in the half topic. A decision is a mark behind it, in the
same queue: a small message that names the transaction and says by the broker's own property TRANSACTION_STATE how it
has ended; no client can set that property, so none can make a mark. The tag of the same name lets whoever reads the
topic leave the marks out, and the body is a sentence for people.

Invariants: reading the topic tells what is undecided; a mark is written together with what it decides; what is parked
keeps its age, its checks and the place of its half, through every copy.
"""

from __future__ import annotations

from mq_broker.core.batches import Batch
from mq_broker.core.half_columns import Half
from mq_broker.core.halves import half_of, state_batch
from mq_broker.core.rewrite import rewrite, single_record_batch, tag_code
from mq_broker.core.transactions import Phase
from mqproto.names import CHECK_MAX_TIMES_TOPIC
from mqproto.properties import TRANSACTION_CHECK_TIMES, TRANSACTION_STATE, decode_properties
from mqproto.record import Record

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
