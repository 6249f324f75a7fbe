"""Records written anew under another topic: into the delay levels, out of them, and back for a retry.

Invariants: what a delayed record delivers is the message that was sent, byte for byte in its body and user properties,
with its born time and host and its reconsume times kept (mechanism D5); a delayed record says itself when it is due and
where it belongs, so that the log alone rebuilds everything around it. Every stored record can be written again: what a
producer may send leaves room for it (`mqproto.record`); only records of earlier versions may lose properties.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mq_broker.core.batches import Batch, BatchError
from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.topics import TopicTable
from mqproto.names import RECALLED_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, WAITING_TOPICS, dlq_topic, retry_topic
from mqproto.properties import (
    DELAY,
    DELAY_MS_MAX,
    DUE_TIMESTAMP,
    FAILED_MEMBER,
    FAILURE,
    HALF_TIMESTAMP,
    KEYS,
    ORIGIN_MESSAGE_ID,
    PRODUCER_SEQUENCE,
    PROPERTIES_BYTES_MAX,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    SCHEDULE_POSITION,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
    java_string_hash,
    property_start,
)
from mqproto.record import CRC_BYTES, SHORT_PROPERTIES_BYTES_MAX, Record, encode_record, iter_records, pack_ip

log = logging.getLogger(__name__)

Position = tuple[int, int]  # of a waiting record: its level (core/delays.py), and its offset in that queue

_REAL_TOPIC = property_start(REAL_TOPIC)
_TIMER_DELIVER_MS = property_start(TIMER_DELIVER_MS)
_SCHEDULE_POSITION = property_start(SCHEDULE_POSITION)
RECALLED_BODY = b"recalled"  # a record has a body
NAME_SHOWN_MAX = 100  # characters of the name of a property in a line of the log
_DEFAULT_LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
_SEPARATORS = str.maketrans("\x01\x02", "??")
FAILED_MEMBER_CHARACTERS_MAX = 128  # ASCII in practice: address, process and what makes it unique
# The names of both properties with their separators, the member at four bytes a character, the CRC property behind all.
FAILURE_OVERHEAD_BYTES = len(f"{FAILURE}{FAILED_MEMBER}") + 4 + 4 * FAILED_MEMBER_CHARACTERS_MAX + CRC_BYTES
RETRY_LEVEL_BASE = 3  # the first retry waits level 3, 10 s (mechanism R1)
RECONSUME_TIMES_MAX = (1 << 31) - 1  # the field's; a record of another program may hold any number
# What a copy cannot do without, whatever else it has to leave out. All of it is short.
_KEPT = frozenset(
    {
        REAL_TOPIC, REAL_QID, DUE_TIMESTAMP, SCHEDULE_POSITION, DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS,
        HALF_TIMESTAMP, TRANSACTION_CHECK_TIMES, TRAN_MSG,
    }
)  # fmt: skip


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
    """The same message as a new record.

    Earlier versions took properties that fill a record. When they do not fit any more with what the broker adds, the
    longest ones are left out until they do, and the log says which.
    """
    encoded = encode_properties(properties)
    if len(encoded) > PROPERTIES_BYTES_MAX - CRC_BYTES:
        encoded = _shortened(record, properties)
    return encode_record(
        topic=topic.encode(),
        body=record.body,
        properties=encoded,
        queue_id=queue_id,
        born_timestamp_ms=record.born_timestamp_ms,
        born_ip=pack_ip(record.born_host[0]),
        born_port=record.born_host[1],
        flag=record.flag,
        sys_flag=record.sys_flag if sys_flag is None else sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def _shortened(record: Record, properties: dict[str, str]) -> bytes:
    """As many of the properties as a record can hold, in their order; the longest ones go first."""
    sizes = {name: len(encode_properties({name: value})) for name, value in properties.items()}
    left, left_out = sum(sizes.values()), set[str]()
    for name in sorted(properties.keys() - _KEPT, key=lambda name: sizes[name], reverse=True):
        if left <= PROPERTIES_BYTES_MAX - CRC_BYTES:
            break
        left_out.add(name)
        left -= sizes[name]
    log.warning(
        "the record at offset %d of the log has no room for what the broker adds to its copy, which is without the "
        "properties %s", record.log_offset, ", ".join(sorted(name[:NAME_SHOWN_MAX] for name in left_out)),
    )  # fmt: skip
    return encode_properties({name: value for name, value in properties.items() if name not in left_out})


def _moved(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> bytes:
    """A message on its way into a wait, or out of it: of a transaction it still says where its half stood."""
    return rewrite(
        record,
        topic,
        queue_id,
        properties,
        record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def arriving_batch(batch: Batch, topics: TopicTable) -> Batch:
    """The batch as its topic takes it now: the topic is made if need be, and a removed queue gives way to another."""
    queue_id = topics.ensure_for_arrival(batch.topic, batch.queue_id)
    return batch if queue_id == batch.queue_id else batch.for_queue(queue_id)


def schedule_batch(batch: Batch, levels: DelayLevels, store_ms: int, ahead_of_wall_ms: int = 0) -> Batch:
    """A delayed batch as it goes where it waits: the tag hash of each record is its due time (mechanism D2).

    `store_ms` is broker time, which is so much ahead of the wall clock; a time of the calendar is the wall clock's.
    Raises BatchError when a record is to wait for too long.
    """
    if batch.timed:
        topic, queue_id = TIMER_TOPIC, 0
    else:
        level = levels.effective(batch.delay_level)
        topic, queue_id = SCHEDULE_TOPIC, level - 1
    records, dues = [], []
    for number, record in enumerate(iter_records(bytes(batch.buffer))):
        properties = decode_properties(record.properties)
        if batch.timed:
            due_ms = timed_due_ms(number, properties, store_ms, store_ms - ahead_of_wall_ms)
        else:
            due_ms = store_ms + levels.delay_ms(level)
        properties |= {REAL_TOPIC: batch.topic, REAL_QID: str(batch.queue_id), DUE_TIMESTAMP: str(due_ms)}
        records.append(_moved(record, topic, queue_id, properties))
        dues.append(due_ms)
    return Batch(topic, queue_id, bytearray().join(records), [len(data) for data in records], dues, waits=batch.waits)


def timed_due_ms(number: int, properties: dict[str, str], store_ms: int, wall_ms: int) -> int:
    """When a timed record that is stored now is due: in broker time if it has a delay, else by the wall clock.

    Raises BatchError when that is too far away.
    """
    if TIMER_DELAY_MS in properties:
        due_ms = store_ms + (wait_ms := int(properties[TIMER_DELAY_MS]))
    else:
        due_ms = max(wall_ms, int(properties[TIMER_DELIVER_MS]))
        wait_ms = due_ms - wall_ms
    if wait_ms > DELAY_MS_MAX:
        raise BatchError(f"record {number} is due in {wait_ms:,} ms; at most {DELAY_MS_MAX:,} (40 days) are allowed")
    return due_ms


def follows_wall_clock(record: Record) -> bool:
    """Whether a waiting record is due at a time of the calendar, and not after a delay."""
    if _TIMER_DELIVER_MS not in record.properties:  # most records: no need to take them apart
        return False
    properties = decode_properties(record.properties)
    return TIMER_DELIVER_MS in properties and TIMER_DELAY_MS not in properties


def waiting_copy(record: Record, position: Position, due_ms: int, *, by_wall_clock: bool | None = None) -> Batch:
    """A waiting record once more, in place of the one at `position`: its file has to go, or its due time is another.

    With another due time `by_wall_clock` says whether that is a time of the calendar.
    """
    properties = decode_properties(record.properties)
    if by_wall_clock is not None:
        properties = {
            name: value for name, value in properties.items() if name not in (TIMER_DELAY_MS, TIMER_DELIVER_MS)
        }
    if by_wall_clock:
        properties[TIMER_DELIVER_MS] = str(due_ms)
    properties |= {DUE_TIMESTAMP: str(due_ms), SCHEDULE_POSITION: position_text(position)}
    data = _moved(record, TIMER_TOPIC, 0, properties)
    return single_record_batch(TIMER_TOPIC, 0, data, due_ms)


def recalled_batch(record: Record, position: Position) -> Batch:
    """The note that the waiting record at `position` was taken back: found under its message's keys."""
    kept = decode_properties(record.properties)
    properties = {name: kept[name] for name in (UNIQ_KEY, KEYS, REAL_TOPIC) if name in kept}
    properties[SCHEDULE_POSITION] = position_text(position)
    data = encode_record(
        topic=RECALLED_TOPIC.encode(),
        body=RECALLED_BODY,
        properties=encode_properties(properties),
        queue_id=0,
        born_timestamp_ms=record.born_timestamp_ms,
        born_ip=pack_ip(record.born_host[0]),
        born_port=record.born_host[1],
    )
    return single_record_batch(RECALLED_TOPIC, 0, data, 0)


def due_then_ms(record: Record) -> int | None:
    """When a delayed record was due by the table of the time when it was stored; None when it does not say."""
    value = decode_properties(record.properties).get(DUE_TIMESTAMP)
    return None if value is None else int(value)


def deliver_record(record: Record, position: Position) -> Batch:
    """What a waiting record has waited for: the message under its own topic and queue again (mechanism D5).

    Raises ValueError for a record of another program that does not say where it is going.
    """
    if (promised := promised_queue(record)) is None:
        raise ValueError(f"the record at offset {record.log_offset} of the log does not say to which queue it is going")
    (topic, queue_id), properties = promised, decode_properties(record.properties)
    for name in (REAL_TOPIC, REAL_QID, DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS, DUE_TIMESTAMP, PRODUCER_SEQUENCE):
        properties.pop(name, None)
    properties |= {WAIT: "false", SCHEDULE_POSITION: position_text(position)}
    data = _moved(record, topic, queue_id, properties)
    return single_record_batch(topic, queue_id, data, tag_code(properties))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a group could not consume a message: a sentence for people, and the member's client id. Both may be empty."""

    sentence: str = ""
    client_id: str = ""

    def added_to(self, properties: dict[str, str]) -> dict[str, str]:
        """Those of a dead letter, with as much of the sentence as they have room for."""
        room = SHORT_PROPERTIES_BYTES_MAX - FAILURE_OVERHEAD_BYTES - len(encode_properties(properties))
        sentence = self.sentence.translate(_SEPARATORS).encode()[: max(0, room)].decode(errors="ignore")
        told = {FAILURE: sentence, FAILED_MEMBER: self.client_id.translate(_SEPARATORS)[:FAILED_MEMBER_CHARACTERS_MAX]}
        return {**properties, **told} if sentence else properties


def retry_batch(
    record: Record,
    group: str,
    *,
    delay_level: int,
    reconsume_times_max: int,
    retry_queue_id: int = 0,
    failure: Failure | None = None,
) -> Batch:
    """A message that a group could not consume, on its way to come again, or to the dead letters.

    Mechanisms R1, R2.
    """
    properties = decode_properties(record.properties)
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, properties.get(UNIQ_KEY, ""))
    for name in (SCHEDULE_POSITION, PRODUCER_SEQUENCE):
        properties.pop(name, None)
    times = min(max(record.reconsume_times, 0), RECONSUME_TIMES_MAX - 1)
    dead = delay_level < 0 or times >= reconsume_times_max
    if dead:
        level, topic, queue_id = 0, dlq_topic(group), 0
        properties = properties if failure is None else failure.added_to(properties)
    else:
        level, topic, queue_id = delay_level or RETRY_LEVEL_BASE + times, retry_topic(group), retry_queue_id
        properties[DELAY] = str(level)
    data = rewrite(record, topic, queue_id, properties, times + 1)
    return single_record_batch(topic, queue_id, data, tag_code(properties), level)


def single_record_batch(
    topic: str, queue_id: int, data: bytes, tags_code: int, delay_level: int = 0, *, timed: bool = False
) -> Batch:
    """A batch of one record of the broker's own making."""
    return Batch(topic, queue_id, bytearray(data), [len(data)], [tags_code], delay_level, timed=timed)


def tag_code(properties: dict[str, str]) -> int:
    """The consume queue's hash of the message's tag; 0 without one."""
    return java_string_hash(properties.get(TAGS, ""))


def entry_tags_code(record: Record) -> int:
    """What the third field of this record's consume-queue entry is: the due time, or the hash of its tag."""
    properties = decode_properties(record.properties)
    if record.topic in WAITING_TOPICS:
        if DUE_TIMESTAMP in properties:
            return int(properties[DUE_TIMESTAMP])
        if DELAY in properties:  # RocketMQ's; with another table than the default it would itself compute another time
            level = _DEFAULT_LEVELS.effective(int(properties[DELAY]))
            return record.store_timestamp_ms + _DEFAULT_LEVELS.delay_ms(level)
    return tag_code(properties)


def schedule_position(record: Record) -> Position | None:
    """Where the waiting record stood whose waiting this one has ended, if it did."""
    if _SCHEDULE_POSITION not in record.properties:  # nearly all records: no need to take them apart
        return None
    value = decode_properties(record.properties).get(SCHEDULE_POSITION)
    if value is None:
        return None
    level, _, offset = value.partition(":")
    return int(level), int(offset)


def position_text(position: Position) -> str:
    """The value of SCHEDULE_POSITION."""
    return f"{position[0]}:{position[1]}"


def promised_queue(record: Record) -> tuple[str, int] | None:
    """(topic, queue id) that a delayed record or a half message is going to, else None."""
    if _REAL_TOPIC not in record.properties:  # nearly all records: no need to take them apart
        return None
    properties = decode_properties(record.properties)
    if REAL_TOPIC not in properties or not properties.get(REAL_QID, "").isdecimal():
        return None
    return properties[REAL_TOPIC], int(properties[REAL_QID])
