"""Batches as any program could send them: nearly all is right, and now and then something is just over a limit.

Invariant: what comes out depends on the random numbers alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from mutations import mutate

from osenv import SeededRng

BODY_BYTES_MAX = 2_000  # of the broker that is asked
QUEUES = [("t", 0), ("orders", 1), ("x" * 127, 0), ("%RETRY%g", 3)]
MUTATED_SHARE, LONG_SHARE, ODD_SHARE = 0.06, 0.012, 0.04  # of the batches; of the records; of their fields
USUAL_BYTES_MAX = 200
PROPERTIES_BYTES = (32_078, 32_079, 32_079, 32_079, 32_080, 32_767, 32_768, 65_535)
NO_CRC = b"__CRC32#\x010000000000\x02"
ODD_FLAGS = (0x1, 0x2, 0x8, 0xC, 0x10, 0x20, 0x30, 0x100, 0x104, -1, -(1 << 31), (1 << 31) - 1)
ODD_NUMBERS = (0, 1, -1, (1 << 31) - 1, -(1 << 31))
VALUES = ("", "a", "b c", "größe", "键", "\U0001f600", "a||b", "TAGS", "x" * 60)
TAGS = ("", "a", "created", "größe", " ", "*", "t" * 255, "ü" * 127)
KEYS = ("", "k", "k k", " a  b ", "ключ 键", " ".join(["k"] * 128), " ".join(map(str, range(128))), " " * 300)
NAMES = ("own", "ключ", "xTAGS", "TAGSx", "KEY", "UNIQ_KEY_", "TRA", "REAL", "WAITS", "_", "__own", "own")
OF_THE_QUEUE = (
    ("UNIQ_KEY", ("", "id", "u" * 32, "u" * 255)),
    ("TAGS", TAGS),
    ("KEYS", KEYS),
    ("PSEQ", ("", "00aabbccddeeff00:1:17", "x")),
    ("WAIT", ("false", "true", "")),
    ("PGROUP", ("shop", "")),
    ("RETRY_TOPIC", ("t", "")),
    ("ORIGIN_MESSAGE_ID", ("id", "")),
    ("MAX_RECONSUME_TIMES", ("3",)),
    ("CHECK_IMMUNITY_TIME_IN_SECONDS", ("7", "")),
)
ODD = (
    ("UNIQ_KEY", ("u" * 256, "ü" * 128)),
    ("TAGS", ("t" * 256, "ü" * 128, "t" * 32_000)),
    ("KEYS", (" ".join(["k"] * 129), " ".join(map(str, range(16_000))))),
    ("DELAY", ("-1", "", "1000", "x", "٣")),
    ("TIMER_DELAY_MS", ("12345678901", "-5", "1.5")),
    ("TRAN_MSG", ("true", "false")),
    ("REAL_TOPIC", ("t",)),
    ("REAL_QID", ("0",)),
    ("__SCHEDULE_POSITION", ("1:1",)),
    ("__DUE_TIMESTAMP", ("1",)),
    ("__CRC32#", ("0000000000",)),
    ("__DEAD_LETTER_MARK", ("replayed:1",)),
    ("", ("a",)),
    ("a\x01b", ("c",)),
    ("a", ("b\x02c",)),
)
WAITS = (
    ("DELAY", ("0", "1", "3", "18", "99", "999")),
    ("TIMER_DELAY_MS", ("0", "1", "3456000000", "3456000001")),
    ("TIMER_DELIVER_MS", ("0", "1700000060000", "999999999999999")),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A batch on the wire."""

    topic: str
    queue_id: int
    count: int
    records: bytes


def sample(rng: SeededRng) -> Sample:
    """One batch."""
    topic, queue_id = rng.choice(QUEUES)
    count = rng.choice((1, 1, 1, 2, 3))
    prepared = rng.random() < 0.1
    wait = rng.choice(WAITS) if rng.random() < 0.15 else None
    data = b"".join(_record(rng, topic, queue_id, wait, prepared=prepared) for _ in range(count))
    if rng.random() < MUTATED_SHARE:
        data = mutate(rng, [data])
    if rng.random() < ODD_SHARE / 2:
        count = rng.choice((0, count - 1, count + 1))
    return Sample(topic, queue_id, count, data)


def _record(
    rng: SeededRng, topic: str, queue_id: int, wait: tuple[str, tuple[str, ...]] | None, *, prepared: bool
) -> bytes:
    pairs = [_pair(rng, one) for one in OF_THE_QUEUE if rng.random() < 0.3]
    pairs += [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.randrange(0, 4))]
    if wait:
        pairs.append(_pair(rng, wait))
    if prepared:
        pairs += [("TRAN_MSG", "true")] + [("PGROUP", "shop"), ("UNIQ_KEY", "tx")] * (rng.random() < 0.5)
    if rng.random() < ODD_SHARE:
        pairs.append(_pair(rng, rng.choice(ODD)))
    if pairs and rng.random() < ODD_SHARE:
        pairs.append((rng.choice(pairs)[0], rng.choice(VALUES)))
    names = {name for name, _ in pairs}
    if len(names) < len(pairs) and rng.random() < 0.7:  # what is there twice by chance is mostly not meant so
        pairs = list(dict(pairs).items())
    pairs.sort(key=lambda _: rng.random())
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    if rng.random() < LONG_SHARE:
        text += b"long\x01%s\x02" % (b"v" * (rng.choice(PROPERTIES_BYTES) - len(text) - len(NO_CRC) - 6))
    if rng.random() < ODD_SHARE / 4:
        text = rng.choice((text[:-1], text + b"\x02", b"\x02" + text, text + b"\xff\x01a\x02", text + b"a\x02"))
    body = rng.randbytes(_body_bytes(rng))
    return _encoded(rng, topic.encode(), queue_id, body, text + NO_CRC, prepared=prepared)


def _encoded(rng: SeededRng, topic: bytes, queue_id: int, body: bytes, text: bytes, *, prepared: bool) -> bytes:
    """The record, by hand from FORMAT.md."""

    def number(value: int, size: int = 4) -> bytes:
        return value.to_bytes(size, "big", signed=True)

    flags = rng.choice(ODD_FLAGS) if rng.random() < ODD_SHARE else 0x4 if prepared else 0
    tries = rng.choice(ODD_NUMBERS) if rng.random() < 0.2 else 0
    queue_id += rng.random() < ODD_SHARE / 8
    tail = bytes((len(topic),)) + topic + (len(text) & 0xFFFF).to_bytes(2, "big") + text
    head = b"".join(
        (
            number(88 + len(body) + len(tail)), 0xDAA320A7.to_bytes(4, "big"),
            number(zlib.crc32(body) & 0x7FFF_FFFF), number(queue_id), number(rng.choice(ODD_NUMBERS)), bytes(16),
            number(flags), number(rng.choice(ODD_NUMBERS), 8), rng.randbytes(4), number(rng.choice(ODD_NUMBERS)),
            bytes(16), number(tries), bytes(8), number(len(body)),
        )
    )  # fmt: skip
    return head + body + tail


def _pair(rng: SeededRng, one: tuple[str, tuple[str, ...]]) -> tuple[str, str]:
    return one[0], rng.choice(one[1])


def _body_bytes(rng: SeededRng) -> int:
    if rng.random() < ODD_SHARE:
        return rng.choice((0, 1, BODY_BYTES_MAX - 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1))
    return rng.randrange(1, USUAL_BYTES_MAX)
