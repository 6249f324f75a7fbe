"""How much a producer may put into a record's properties: clients check it before they send, brokers before they store.

Readers accept more. Whatever the length fields of a record can say is readable (`record.decode_record`), because
earlier versions stored longer properties, and because a broker adds properties of its own when it writes a record
again: for a delay, a transaction, a retry. `BROKER_PROPERTIES_BYTES_MAX` is kept free for those, so that a record that
was accepted can always be written again within `SHORT_PROPERTIES_BYTES_MAX`, which RocketMQ can read, too.
"""

from __future__ import annotations

from mqproto.properties import (
    DELAY,
    DUE_TIMESTAMP,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    SCHEDULE_POSITION,
    WAIT,
)
from mqproto.record import TOPIC_BYTES_MAX

SHORT_PROPERTIES_BYTES_MAX = 32_767  # RocketMQ reads the length as a signed short
UNIQ_KEY_BYTES_MAX = 255  # a client's are 32 bytes; a retry says the key twice
TAG_BYTES_MAX = 255  # as long as the longest name of a group
KEYS_MAX = 128  # of one record: each is an entry of the index, which takes 20 bytes

_INT32_DIGITS_MAX, _INT64_DIGITS_MAX = 10, 19
# The properties that a broker has added at the same time at the most, and how long their values become: those of a
# retry that waits and was carried over. A half message has fewer.
_ADDED_BY_BROKER = {
    RETRY_TOPIC: TOPIC_BYTES_MAX,
    ORIGIN_MESSAGE_ID: UNIQ_KEY_BYTES_MAX,
    DELAY: _INT32_DIGITS_MAX,
    WAIT: len("false"),
    REAL_TOPIC: TOPIC_BYTES_MAX,
    REAL_QID: _INT32_DIGITS_MAX,
    DUE_TIMESTAMP: _INT64_DIGITS_MAX,
    SCHEDULE_POSITION: _INT32_DIGITS_MAX + len(":") + _INT64_DIGITS_MAX,
}
BROKER_PROPERTIES_BYTES_MAX = sum(len(f"{name}\x01\x02") + length for name, length in _ADDED_BY_BROKER.items())
PRODUCER_PROPERTIES_BYTES_MAX = SHORT_PROPERTIES_BYTES_MAX - BROKER_PROPERTIES_BYTES_MAX  # with the CRC property
