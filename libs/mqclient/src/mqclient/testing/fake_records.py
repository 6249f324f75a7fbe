"""Records as a fake broker makes and reads them."""

from __future__ import annotations

from collections.abc import Collection

from mqproto.properties import KEYS, TIMER_DELAY_MS, TIMER_DELIVER_MS, UNIQ_KEY, decode_properties, encode_properties
from mqproto.record import Record, encode_record, pack_ip


def new_record(topic: str, queue_id: int, body: bytes, properties: dict[str, str], reconsume_times: int = 0) -> bytes:
    return encode_record(
        topic=topic.encode(),
        body=body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        born_timestamp_ms=0,
        born_ip=pack_ip("127.0.0.1"),
        reconsume_times=reconsume_times,
    )


def rewritten(record: Record, *, without: Collection[str], sys_flag: int | None = None) -> bytes:
    """The same message as a new record, without some of its properties."""
    kept = {name: value for name, value in decode_properties(record.properties).items() if name not in without}
    return encode_record(
        topic=record.topic.encode(),
        body=record.body,
        properties=encode_properties(kept),
        queue_id=record.queue_id,
        born_timestamp_ms=record.born_timestamp_ms,
        born_ip=pack_ip(record.born_host[0]),
        flag=record.flag,
        sys_flag=record.sys_flag if sys_flag is None else sys_flag,
    )


def is_timed(record: Record) -> bool:
    """Whether it waits for a time of its own."""
    return not {TIMER_DELAY_MS, TIMER_DELIVER_MS}.isdisjoint(decode_properties(record.properties))


def keys_of(record: Record) -> set[str]:
    """By what it is found: its keys and its unique id."""
    properties = decode_properties(record.properties)
    return {*properties.get(KEYS, "").split(), properties.get(UNIQ_KEY, "")}
