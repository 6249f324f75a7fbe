"""Records written anew under another topic: into the delay levels, out of them, and back for a retry.

Invariants: what a delayed record delivers is the message that was sent, byte for byte in its body and user properties,
with its born time and host and its reconsume times kept (MISSION D5); a delayed record says itself when it is due and
where it belongs, so that the log alone rebuilds everything around it.
"""

from __future__ import annotations

from mq_broker.core.batches import Batch
from mq_broker.core.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from mqproto.java_hash import java_string_hash
from mqproto.names import CARRIED_TOPIC, SCHEDULE_TOPIC, dlq_topic, retry_topic
from mqproto.properties import (
    DELAY,
    DUE_TIMESTAMP,
    ORIGIN_MESSAGE_ID,
    PRODUCER_SEQUENCE,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    SCHEDULE_POSITION,
    TAGS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    property_start,
)
from mqproto.record import Record, encode_record, iter_records, pack_ip

_REAL_TOPIC = property_start(REAL_TOPIC)
_DEFAULT_LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
RETRY_LEVEL_BASE = 3  # the first retry waits level 3, 10 s (MISSION R1)


def rewrite(
    record: Record,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    reconsume_times: int,
    *,
    sys_flag: int | None = None,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """The same message as a new record. Raises RecordError when the properties do not fit any more."""
    return encode_record(
        topic=topic.encode(),
        body=record.body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        born_timestamp_ms=record.born_timestamp_ms,
        born_ip=pack_ip(record.born_host[0]),
        born_port=record.born_host[1],
        flag=record.flag,
        sys_flag=record.sys_flag if sys_flag is None else sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def schedule_batch(batch: Batch, levels: DelayLevels, store_ms: int) -> Batch:
    """A batch that asks for a delay, as it goes into its level's queue (MISSION D2): the tag hash is the due time."""
    level = levels.effective(batch.delay_level)
    due_ms = store_ms + levels.delay_ms(level)
    own = {REAL_TOPIC: batch.topic, REAL_QID: str(batch.queue_id), DUE_TIMESTAMP: str(due_ms)}
    records = [
        rewrite(record, SCHEDULE_TOPIC, level - 1, decode_properties(record.properties) | own, record.reconsume_times)
        for record in iter_records(bytes(batch.buffer))
    ]
    sizes = [len(data) for data in records]
    return Batch(SCHEDULE_TOPIC, level - 1, bytearray().join(records), sizes, [due_ms] * batch.count)


def carried_record(record: Record, level: int, due_ms: int) -> Batch:
    """A delayed record once more, because the file it stands in has to go: due when it was, under the carried topic."""
    properties = decode_properties(record.properties)
    properties |= {DUE_TIMESTAMP: str(due_ms), SCHEDULE_POSITION: f"{level}:{record.queue_offset}"}
    data = rewrite(record, CARRIED_TOPIC, 0, properties, record.reconsume_times)
    return single_record_batch(CARRIED_TOPIC, 0, data, due_ms)


def due_then_ms(record: Record) -> int | None:
    """When a delayed record was due by the table of the time when it was stored; None when it does not say."""
    value = decode_properties(record.properties).get(DUE_TIMESTAMP)
    return None if value is None else int(value)


def deliver_record(record: Record, level: int) -> Batch:
    """What a delayed record has waited for: the message under its own topic and queue again (MISSION D5)."""
    properties = decode_properties(record.properties)
    topic, queue_id = properties.pop(REAL_TOPIC), int(properties.pop(REAL_QID))
    for name in (DELAY, DUE_TIMESTAMP, PRODUCER_SEQUENCE):
        properties.pop(name, None)
    properties |= {WAIT: "false", SCHEDULE_POSITION: f"{level}:{record.queue_offset}"}
    data = rewrite(record, topic, queue_id, properties, record.reconsume_times)
    return single_record_batch(topic, queue_id, data, tag_code(properties))


def retry_batch(
    record: Record, group: str, *, delay_level: int, reconsume_times_max: int, retry_queue_id: int = 0
) -> Batch:
    """A message that a group could not consume, on its way to come again, or to the dead letters (MISSION R1, R2)."""
    properties = decode_properties(record.properties)
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, properties.get(UNIQ_KEY, ""))
    for name in (SCHEDULE_POSITION, PRODUCER_SEQUENCE):
        properties.pop(name, None)
    times = record.reconsume_times
    dead = delay_level < 0 or times >= reconsume_times_max
    if dead:
        level, topic, queue_id = 0, dlq_topic(group), 0
    else:
        level, topic, queue_id = delay_level or RETRY_LEVEL_BASE + times, retry_topic(group), retry_queue_id
        properties[DELAY] = str(level)
    data = rewrite(record, topic, queue_id, properties, times + 1)
    return single_record_batch(topic, queue_id, data, tag_code(properties), level)


def single_record_batch(topic: str, queue_id: int, data: bytes, tags_code: int, delay_level: int = 0) -> Batch:
    """A batch of one record of the broker's own making."""
    return Batch(topic, queue_id, bytearray(data), [len(data)], [tags_code], delay_level)


def tag_code(properties: dict[str, str]) -> int:
    """The consume queue's hash of the message's tag; 0 without one."""
    return java_string_hash(properties.get(TAGS, ""))


def entry_tags_code(record: Record) -> int:
    """What the third field of this record's consume-queue entry is: the due time, or the hash of its tag."""
    properties = decode_properties(record.properties)
    if record.topic in {SCHEDULE_TOPIC, CARRIED_TOPIC}:
        if DUE_TIMESTAMP in properties:
            return int(properties[DUE_TIMESTAMP])
        if DELAY in properties:  # RocketMQ's; with another table than the default it would itself compute another time
            level = _DEFAULT_LEVELS.effective(int(properties[DELAY]))
            return record.store_timestamp_ms + _DEFAULT_LEVELS.delay_ms(level)
    return tag_code(properties)


def schedule_position(record: Record) -> tuple[int, int] | None:
    """(level, queue offset in that level's queue) of the delayed record that this one delivered, if it did."""
    value = decode_properties(record.properties).get(SCHEDULE_POSITION)
    if value is None:
        return None
    level, _, offset = value.partition(":")
    return int(level), int(offset)


def promised_queue(record: Record) -> tuple[str, int] | None:
    """(topic, queue id) that a delayed record or a half message is going to, else None."""
    if _REAL_TOPIC not in record.properties:  # nearly all records: no need to take them apart
        return None
    properties = decode_properties(record.properties)
    if REAL_TOPIC not in properties or not properties.get(REAL_QID, "").isdecimal():
        return None
    return properties[REAL_TOPIC], int(properties[REAL_QID])
