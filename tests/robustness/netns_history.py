"""What was sent to a pair, what was answered, consumed and done to it: plain values, and their lines in a file.

Times are seconds of the monotonic clock, which all processes of a machine share. A message is named by its sender and
its number; its body follows from the two and the round's seed, so that its content can be checked.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from osenv import SeededRng

BODY_BYTES_MAX = 2_048
SEND_OK = "SEND_OK"
STORED = frozenset({SEND_OK, "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT", "FLUSH_DISK_TIMEOUT"})


class Name(NamedTuple):
    """Message `number` of this sender; numbers count from 1."""

    sender: int
    number: int

    def __str__(self) -> str:
        return f"{self.sender}:{self.number}"


class Place(NamedTuple):
    """A message's place in its topic."""

    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"queue {self.queue_id}, offset {self.queue_offset}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message whose outcome its sender knows: a SendStatus, or the name of an error.

    Messages of one burst were under way together. Without an answer offsets are -1 and the broker is "".
    """

    sender: int
    number: int
    burst: int
    sent_at: float
    answered_at: float
    outcome: str
    queue_id: int
    queue_offset: int = -1
    log_offset: int = -1
    broker: str = ""

    @property
    def name(self) -> Name:
        return Name(self.sender, self.number)

    @property
    def place(self) -> Place:
        return Place(self.queue_id, self.queue_offset)


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that a listener got, before it said that it has consumed it."""

    at: float
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    crc32: int
    text: str  # the body's beginning

    @property
    def name(self) -> Name | None:
        return name_of(self.text.encode())

    @property
    def place(self) -> Place:
        return Place(self.queue_id, self.queue_offset)


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the log has it in the end; `writer` is the broker that wrote it, as host:port."""

    place: Place
    log_offset: int
    writer: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Promotion:
    """A replica was made master although the old one could not be asked; `over_at`: the old one is a replica.

    `keeps_tail`: the old one has its disk still, and has to keep whatever of its log is cut off.
    """

    at: float
    over_at: float
    keeps_tail: bool = True


@dataclass(frozen=True, slots=True)
class Together:
    """At this time, at the latest, both brokers had on disk whatever lies below `log_offset`."""

    at: float
    log_offset: int


@dataclass(frozen=True, slots=True)
class Reign:
    """A store that was seen as a writable master, its epoch, and where it was reached."""

    epoch: tuple[int, int]
    replica_id: str
    broker: str


@dataclass(slots=True)
class History:
    """A round. `stored` and `progress` are of the end, when all is well again; `kept` is what quarantines have.

    `synchronous`: minInSyncReplicas is 2, and what only one broker has is never visible. `epochs` are (epoch, log
    offset from which on it was written), ascending; `progress` is by queue.
    """

    seed: int
    synchronous: bool
    sent: list[Sent] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)
    reigns: set[Reign] = field(default_factory=set)
    epochs: list[tuple[tuple[int, int], int]] = field(default_factory=list)
    progress: dict[int, int] = field(default_factory=dict)
    kept: bytes = b""


def body_of(seed: int, name: Name) -> bytes:
    """The one body that this message can have in a round of this seed."""
    rng = SeededRng(zlib.crc32(f"{seed}:{name}".encode()))
    return f"{name}:".encode() + rng.randbytes(rng.randrange(0, BODY_BYTES_MAX))


def name_of(body: bytes) -> Name | None:
    """The message that this body belongs to; None for a body that was never sent."""
    sender, _, rest = body[:40].partition(b":")
    number, colon, _ = rest.partition(b":")
    return Name(int(sender), int(number)) if colon and sender.isdigit() and number.isdigit() else None


LineT = TypeVar("LineT", Sent, Seen)


def to_line(entry: Sent | Seen) -> bytes:
    """One line of a file."""
    return json.dumps(dataclasses.asdict(entry)).encode() + b"\n"


def read_lines(path: Path, kind: type[LineT]) -> Iterator[LineT]:
    """What a process has written; a last line without its end is still being written. Nothing without the file."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield kind(**json.loads(line))
