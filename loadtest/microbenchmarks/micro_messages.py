"""The messages that are measured: as the project's producer encodes them, 64 to a batch."""

from __future__ import annotations

from mq_broker.core.batches import Batch, check_batch, patch_batch
from mqproto.properties import TAGS, UNIQ_KEY, encode_properties
from mqproto.record import BODY_BYTES_MAX, encode_record, pack_ip

TOPIC = "bench"
BATCH_MESSAGES = 64
BODY_BYTES = 1_024
BORN_IP = pack_ip("127.0.0.1")


def message(number: int, *, body_bytes: int = BODY_BYTES, queue_id: int = 0) -> bytes:
    """One record with a unique key of 32 characters and a tag."""
    return encode_record(
        topic=TOPIC.encode(),
        body=bytes(body_bytes),
        properties=encode_properties({UNIQ_KEY: f"{number:032X}", TAGS: "created"}),
        queue_id=queue_id,
        born_timestamp_ms=1_700_000_000_000,
        born_ip=BORN_IP,
    )


def wire_batch(
    first: int = 0, *, count: int = BATCH_MESSAGES, body_bytes: int = BODY_BYTES, queue_id: int = 0
) -> bytes:
    """Messages end to end, as a produce frame carries them."""
    return b"".join(message(number, body_bytes=body_bytes, queue_id=queue_id) for number in range(first, first + count))


def checked_batch(records: bytes, *, count: int = BATCH_MESSAGES, queue_id: int = 0) -> Batch:
    """The batch as the store takes it."""
    return check_batch(TOPIC, queue_id, count, records, BODY_BYTES_MAX)


def sealed_batch(*, count: int = BATCH_MESSAGES) -> bytes:
    """Messages end to end, as a broker gives them to a consumer: from queue offset 0 on."""
    batch = checked_batch(wire_batch(count=count), count=count)
    patch_batch(batch, queue_offset=0, log_offset=0, store_ms=1_700_000_000_000, store_ip=BORN_IP, store_port=10_911)
    return bytes(batch.buffer)
