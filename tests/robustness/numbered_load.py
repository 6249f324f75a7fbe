"""Load whose every message is known: who sent it, under which number, and what was answered.

Invariants: a body is handed to the producer once and never again, whatever its outcome; a sender's numbers rise in the
order of its sends; `bursts` of a sender do not overlap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mqclient import Message, MQClientError, Producer, SendStatus
from osenv import SeededRng

SEND_TIMEOUT_S = 5.0
BODY_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Sent:
    """One message: the burst says which messages were under way together, and have no order among themselves."""

    sender: int
    burst: int
    body: bytes


@dataclass
class Book:
    """What was tried, and what was acknowledged where, as (queue id, queue offset)."""

    tried: dict[bytes, Sent] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], Sent] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)  # two messages that were told the same place
    uncertain_until: float = 0.0  # by the monotonic clock; what is acknowledged before this counts as tried only

    def acknowledge(self, place: tuple[int, int], sent: Sent) -> None:
        if time.monotonic() < self.uncertain_until:
            return
        before = self.acknowledged.setdefault(place, sent)
        if before is not sent:
            self.doubled.append(f"{name(before.body)} and {name(sent.body)} were both told queue and offset {place}")


class Sender:
    """Sends to one queue, `in_flight` messages at a time; the next ones when all of these have their outcome."""

    def __init__(self, number: int, topic: str, queue_id: int, in_flight: int, book: Book, seed: int) -> None:
        self._number, self._topic, self._queue_id, self._in_flight, self._book = (
            number, topic, queue_id, in_flight, book,
        )  # fmt: skip
        self._rng = SeededRng(seed * 1_000 + number)
        self._bursts = self._count = 0

    async def run(self, producer: Producer, stop: asyncio.Event) -> None:
        """Send until `stop`; a message that was not acknowledged is not sent again."""
        while not stop.is_set():
            self._bursts += 1
            burst = [self._make() for _ in range(self._in_flight)]
            await asyncio.gather(*(self._send(producer, sent, stop) for sent in burst))

    def _make(self) -> Sent:
        self._count += 1
        body = f"{self._number}:{self._count}:".encode() + self._rng.randbytes(self._rng.randrange(0, BODY_BYTES_MAX))
        sent = self._book.tried[body] = Sent(self._number, self._bursts, body)
        return sent

    async def _send(self, producer: Producer, sent: Sent, stop: asyncio.Event) -> None:
        try:
            result = await producer.send(
                Message(self._topic, sent.body, keys=name(sent.body)),
                selector=lambda queues, _, queue_id: next(one for one in queues if one.queue_id == queue_id),
                selector_argument=self._queue_id,
                timeout=SEND_TIMEOUT_S,
            )
        except MQClientError:
            await asyncio.wait_for(stop.wait(), SEND_TIMEOUT_S)  # the broker is dead; nothing more is sent to it
            return
        if result.send_status is SendStatus.SEND_OK:
            self._book.acknowledge((result.message_queue.queue_id, result.queue_offset), sent)


def name(body: bytes) -> str:
    """`3:17` for message 17 of sender 3."""
    return ":".join(body[:40].decode(errors="replace").split(":")[:2])


def problems(book: Book, stored: Mapping[int, Sequence[tuple[int, bytes]]]) -> list[str]:
    """What is wrong with `stored`, which is (queue offset, body) of every message by queue id."""
    found = list(book.doubled)
    places: dict[tuple[int, int], bytes] = {}
    for queue_id, messages in stored.items():
        offsets = [offset for offset, _ in messages]
        if offsets != list(range(len(offsets))):
            found.append(f"queue {queue_id}: the offsets are {_gaps(offsets)}, not 0 to {len(offsets) - 1}")
        places.update({(queue_id, offset): body for offset, body in messages})
        found += _strangers(book, queue_id, messages)
        found += _disorder(book, queue_id, messages)
    for place, sent in book.acknowledged.items():
        if places.get(place) != sent.body:
            there = f"there is {name(places[place])}" if place in places else "nothing is there"
            found.append(f"{name(sent.body)} was acknowledged at queue and offset {place}, and {there}")
    return found


def _gaps(offsets: Iterable[int]) -> str:
    wrong = [offset for number, offset in enumerate(offsets) if offset != number]
    return f"from {wrong[0]} on out of step"


def _strangers(book: Book, queue_id: int, messages: Sequence[tuple[int, bytes]]) -> list[str]:
    """Bodies that were never sent, or that stand there twice."""
    found, seen = [], set[bytes]()
    for offset, body in messages:
        if body not in book.tried:
            found.append(f"queue {queue_id}, offset {offset}: never sent {name(body)!r} with {len(body)} bytes")
        elif body in seen:
            found.append(f"queue {queue_id}, offset {offset}: {name(body)} stands there for the second time")
        seen.add(body)
    return found


def _disorder(book: Book, queue_id: int, messages: Sequence[tuple[int, bytes]]) -> list[str]:
    """A message that stands behind one that was sent after its outcome was known."""
    latest: dict[int, Sent] = {}
    found = []
    for offset, body in messages:
        sent = book.tried.get(body)
        if sent is None:
            continue
        before = latest.setdefault(sent.sender, sent)
        if sent.burst < before.burst:
            found.append(f"queue {queue_id}, offset {offset}: {name(body)} stands behind {name(before.body)}")
        latest[sent.sender] = max(before, sent, key=lambda one: one.burst)
    return found
