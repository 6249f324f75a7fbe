"""The two ids of a message: the client's unique one and the broker's by position (MISSION M8, M9)."""

from __future__ import annotations

import itertools
import os
import re
from datetime import UTC, datetime

from mqclient.errors import IllegalArgumentError
from mqproto.record import RecordError, pack_ip, unpack_ip
from osenv import Rng

PORT_MAX = 65_535
UNIQUE_ID_CHARACTERS = 32


class UniqueIdMaker:
    """Makes UNIQ_KEY values as RocketMQ does: 16 bytes in upper-case hex.

    IPv4 address (4), process id (2), a number per maker (4; RocketMQ takes the class loader's hash), milliseconds since
    the start of the month (4), counter (2). Unique as long as one maker makes fewer than 65,536 ids a millisecond.
    """

    def __init__(self, rng: Rng, local_ip: str) -> None:
        fixed = pack_ip(local_ip).to_bytes(4, "big", signed=True) + (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (fixed + rng.randbytes(4)).hex().upper()
        self._counter = itertools.count(rng.randrange(0, 0x1_0000))
        self._month_start_ms = self._month_end_ms = 0
        self._now_ms = -1
        self._start = ""  # of all ids of this millisecond

    def next(self, now_ms: int) -> str:
        """The next id, made at `now_ms` of the wall clock."""
        if now_ms != self._now_ms:
            if not self._month_start_ms <= now_ms < self._month_end_ms:
                self._set_month(now_ms)
            self._now_ms = now_ms
            self._start = f"{self._prefix}{now_ms - self._month_start_ms:08X}"
        return f"{self._start}{next(self._counter) & 0xFFFF:04X}"

    def _set_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)


def offset_message_id(host: str, port: int, log_offset: int) -> str:
    """The id by position: IPv4 address (4), port (4) and log offset (8) in upper-case hex.

    Empty when `host` is a name and not an address: only the broker knows then what its records carry.
    """
    try:
        packed = pack_ip(host)
    except RecordError:
        return ""
    return f"{packed & 0xFFFFFFFF:08X}{port & 0xFFFFFFFF:08X}{log_offset & 0xFFFFFFFFFFFFFFFF:016X}"


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(host, port, log offset) of an id by position. Raises IllegalArgumentError when it is none."""
    if not re.fullmatch(r"[0-9A-Fa-f]{32}", message_id):
        raise IllegalArgumentError(f"{message_id!r} is no message id by position: that is 32 hexadecimal digits")
    ip, port, log_offset = (int(message_id[a:b], 16) for a, b in ((0, 8), (8, 16), (16, 32)))
    if not 0 < port <= PORT_MAX or log_offset >= 1 << 63:
        raise IllegalArgumentError(
            f"{message_id!r} names port {port} and log offset {log_offset}: a unique id, perhaps?"
        )
    return unpack_ip(ip - (1 << 32) if ip >> 31 else ip), port, log_offset
