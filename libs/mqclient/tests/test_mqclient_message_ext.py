"""A message is the same, whether its record was decoded before or on access."""

from __future__ import annotations

import zlib

import pytest

from mqclient import MessageExt
from mqproto.properties import encode_properties
from mqproto.record import (
    FLAG_COMPRESSED,
    OFFSETS,
    OFFSETS_AT,
    SealedRecord,
    decode_record,
    encode_record,
    iter_sealed_records,
    pack_ip,
    seal,
)

PUBLIC = [
    "body", "born_timestamp_ms", "broker_name", "flag", "keys", "log_offset", "message_id", "message_queue",
    "offset_message_id", "properties", "queue_id", "queue_offset", "reconsume_times", "size", "store_timestamp_ms",
    "tag", "topic", "transaction_id", "user_properties", "wait_store_msg_ok",
]  # fmt: skip


def stored(body: bytes, sys_flag: int = 0) -> bytes:
    """A record of a retry topic, with every property that a message shows, and numbers that are not zero."""
    properties = {"TAGS": "paid", "KEYS": "a b", "UNIQ_KEY": "01", "PGROUP": "shop", "RETRY_TOPIC": "orders"}
    data = bytearray(
        encode_record(
            topic=b"%RETRY%closers",
            body=body,
            properties=encode_properties({**properties, "WAIT": "false"}),
            queue_id=2,
            born_timestamp_ms=5,
            born_ip=pack_ip("127.0.0.1"),
            flag=9,
            sys_flag=sys_flag,
            reconsume_times=3,
        )
    )
    OFFSETS.pack_into(data, OFFSETS_AT, 41, 4_100)
    seal(data, 0, len(data))
    return bytes(data)


def both(data: bytes) -> tuple[MessageExt, MessageExt]:
    (sealed,) = iter_sealed_records(data)
    return MessageExt(decode_record(data), "broker-a"), MessageExt(sealed, "broker-a")


@pytest.mark.parametrize(
    ("on_the_way", "sys_flag"), [(b"body", 0), (zlib.compress(b"body"), FLAG_COMPRESSED)], ids=["plain", "compressed"]
)
@pytest.mark.parametrize("name", PUBLIC)
def test_every_part_is_the_same_in_both_forms(name: str, on_the_way: bytes, sys_flag: int) -> None:
    decoded, sealed = both(stored(on_the_way, sys_flag))
    assert getattr(sealed, name) == getattr(decoded, name)
    assert sealed.body == decoded.body == b"body"


def test_every_public_part_is_compared_here() -> None:
    decoded, _ = both(stored(b"body"))
    assert sorted(name for name in dir(decoded) if not name.startswith("_")) == PUBLIC


def test_consuming_a_body_decodes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    _, message = both(stored(b"body"))
    monkeypatch.setattr(SealedRecord, "decode", lambda _: pytest.fail("the record was decoded"))
    assert (message.body, message.queue_offset, message.reconsume_times) == (b"body", 41, 3)
    assert message.size == len(stored(b"body"))
