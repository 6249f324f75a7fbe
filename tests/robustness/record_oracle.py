"""What a record is, written down a second time: from FORMAT.md, ADR 88 and ADR 89, with nothing of the tested code.

Only `judge_batch` is for others: what has to become of a batch that a client sends.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import dataclass

RECORD_BYTES_MIN = 111
PROPERTIES_BYTES_MAX = 32_079
TAG_BYTES_MAX = UNIQ_KEY_BYTES_MAX = 255
KEYS_MAX = 128
NO_CRC = b"__CRC32#\x010000000000\x02"
ONCE = frozenset(
    {
        "KEYS", "TAGS", "DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "CHECK_IMMUNITY_TIME_IN_SECONDS", "WAIT",
        "UNIQ_KEY", "PGROUP", "TRAN_MSG", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "MAX_RECONSUME_TIMES", "PSEQ",
        "__DEAD_LETTER_MARK", "__DEAD_LETTER_EDIT",
    }
)  # fmt: skip
OF_BROKERS = frozenset(
    {
        "REAL_TOPIC", "REAL_QID", "__SCHEDULE_POSITION", "__DUE_TIMESTAMP", "__TRANSACTION_STATE",
        "TRANSACTION_CHECK_TIMES", "__HALF_TIMESTAMP", "__CRC32#",
    }
)  # fmt: skip
DELAYS = {"DELAY": r"[0-9]{1,3}", "TIMER_DELAY_MS": r"[0-9]{1,10}", "TIMER_DELIVER_MS": r"[0-9]{1,15}"}
PREPARED = 0x4


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a record says that has to be accepted. `wait` is 0, a delay level, or "timed"."""

    size: int
    body: bytes
    properties: dict[str, str]
    prepared: bool
    wait: int | str

    @property
    def tag(self) -> str:
        return self.properties.get("TAGS", "")

    @property
    def keys(self) -> list[str]:
        """In the order of the index."""
        return keys_of(self.properties)


def keys_of(properties: dict[str, str]) -> list[str]:
    """The unique key, and the user's, as the index has them."""
    return [key for key in [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")] if key]


def judge_batch(data: bytes, topic: str, queue_id: int, count: int, body_bytes_max: int) -> list[Accepted] | None:
    """The records of a batch, or None when all of it has to be rejected."""
    records: list[Accepted] = []
    while data:
        record = _judge(data, topic.encode(), queue_id, body_bytes_max)
        if record is None:
            return None
        records.append(record)
        data = data[record.size :]
    return records if 0 < len(records) == count and len({record.wait for record in records}) == 1 else None


def _judge(data: bytes, topic: bytes, queue_id: int, body_bytes_max: int) -> Accepted | None:
    if len(data) < RECORD_BYTES_MIN:
        return None

    def number(at: int) -> int:
        return int.from_bytes(data[at : at + 4], "big", signed=True)

    size, body_size, flags = number(0), number(84), number(36)
    properties_at = 88 + body_size + 1 + len(topic) + 2
    if number(4) & 0xFFFF_FFFF != 0xDAA320A7 or not 1 <= body_size <= body_bytes_max or size > len(data):
        return None
    if properties_at + len(NO_CRC) > size or number(12) != queue_id:
        return None
    body, text = data[88 : 88 + body_size], data[properties_at:size]
    between = bytes((len(topic),)) + topic + len(text).to_bytes(4, "big")[2:]
    if data[88 + body_size : properties_at] != between or len(text) > PROPERTIES_BYTES_MAX:
        return None
    if zlib.crc32(body) & 0x7FFF_FFFF != number(8) or flags & 0x30 or flags & 0xC not in {0, PREPARED}:
        return None
    properties = _properties(text)
    if properties is None or ("TRAN_MSG" in properties and not flags & PREPARED):
        return None
    asked = [name for name in DELAYS if name in properties]
    if len(asked) > 1 or any(not re.fullmatch(DELAYS[name], properties[name]) for name in asked):
        return None
    wait = "timed" if asked and asked != ["DELAY"] else int(properties.get("DELAY", "0"))
    return Accepted(size, body, properties, bool(flags & PREPARED), wait)


def _properties(text: bytes) -> dict[str, str] | None:
    """By name; None when a record may not have them."""
    if not text.endswith(NO_CRC):
        return None
    try:
        own = text[: -len(NO_CRC)].decode()
    except UnicodeDecodeError:
        return None
    if own and not own.endswith("\x02"):
        return None
    pairs = [item.split("\x01") for item in own.split("\x02") if item]
    if any(len(pair) != 2 or not pair[0] for pair in pairs):
        return None
    times = Counter(name for name, _ in pairs)
    if any(times[name] > 1 for name in ONCE) or times.keys() & OF_BROKERS:
        return None
    properties = {name: value for name, value in pairs}  # noqa: C416 - of one name the last
    if len(properties.get("TAGS", "").encode()) > TAG_BYTES_MAX:
        return None
    if len(properties.get("UNIQ_KEY", "").encode()) > UNIQ_KEY_BYTES_MAX:
        return None
    if len([key for key in properties.get("KEYS", "").split(" ") if key]) > KEYS_MAX:
        return None
    return properties
