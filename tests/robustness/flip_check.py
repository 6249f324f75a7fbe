"""What a damaged store must and must not do, and whether this one did.

The production broker opens it, everything is pulled and looked up by key, and it stops cleanly. Then:
1. no record is read that is not exactly the one that was stored at that place;
2. every record is there, but for those of which a byte was hit;
3. the states say what they said, or, where their own file was hit, what the others say without it;
4. the damage is reported, or healed, or found by `dump_log --verify`, unless the byte has no meaning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from types import MappingProxyType
from typing import Any

from flip_faults import SECTOR_BYTES, Fault
from flip_store import LAYOUT, Image, QueueKey, opened

from mq_broker.core.batches import message_keys
from mq_broker.core.documents import CONSUMER_OFFSETS
from mq_broker.core.pulling import PULL_BYTES_MAX, PullQuery
from mq_broker.processor.broker import Broker
from mq_broker.store.progress_journal import journal_number
from mq_broker.store.state_files import State
from mq_broker.testing import incoming, produce
from mq_broker.tools.dump_log import EXIT_SAME, DumpOptions, dump
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC, WAITING_TOPICS
from mqproto.record import Record, decode_record
from osenv import SeededRng, SimClock, SimDisk

READER, PULL_MESSAGES = "flip-reader", 32
KEYS = 2  # looked up beside those that were hit
AFTERWARDS_SHARE = 0.2  # of the stores that were read as a whole are started again
NEW_QUEUE = ("orders", 0)
THOROUGH_SHARE = 0.1  # of the faults of the log is judged with everything read
# States that say how far the broker itself has read a topic.
FOLLOWED_TOPICS = {"delayOffset.json": WAITING_TOPICS, "transactionOffset.json": {HALF_TOPIC, OP_HALF_TOPIC}}
LOGGER = logging.getLogger("mq_broker")
_PLACE = Struct(">i16xq")  # size, queue offset


@dataclass
class Observation:
    """What a broker made of a store; `queues`, if not None, are the only ones that were read."""

    queues: set[QueueKey] | None = None
    bounds: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    records: dict[QueueKey, bytes] = field(default_factory=dict)  # of each queue, end to end
    by_key: dict[str, list[int]] = field(default_factory=dict)  # log offsets
    states: dict[str, Any] = field(default_factory=dict)
    reports: list[str] = field(default_factory=list)
    quarantined: int = 0
    problems: list[str] = field(default_factory=list)
    final: dict[Path, bytes] = field(default_factory=dict)

    def wants(self, key: QueueKey) -> bool:
        return self.queues is None or key in self.queues


class Judge:
    """Compares damaged stores with what the whole one was."""

    def __init__(self, image: Image, reference: Observation, before: dict[Path, tuple[str, Any]]) -> None:
        """`before`: which state a file tells of, and what that says without it."""
        self.image, self.reference, self._before = image, reference, before
        self._stored: dict[QueueKey, dict[int, bytes]] = {
            key: dict(split(data)) for key, data in reference.records.items()
        }
        keys = [(key, record) for record in image.records for key in message_keys(record)]
        times = Counter(key for key, _ in keys)
        self._keys = {key: record for key, record in keys if times[key] == 1}
        self.keys = sorted(self._keys)

    @classmethod
    async def of(cls, image: Image) -> Judge:
        """Observe the whole store first. Raises AssertionError when something is wrong with it already."""
        reference = await observe(image.disk.fork(), image.wall_ms)
        if reference.problems or reference.quarantined or sum(map(len, reference.records.values())) == 0:
            raise AssertionError(f"the undamaged store: {reference.problems}")
        before = {}
        files = {LAYOUT.config / name: name for name in reference.states}
        files |= {path: CONSUMER_OFFSETS for path in image.files if journal_number(path.name) is not None}
        for path, name in files.items():
            disk = image.disk.fork()
            disk.unlink(path)
            before[path] = name, (await observe(disk, image.wall_ms)).states.get(name)
        return cls(image, reference, before)

    async def judge(self, fault: Fault, rng: SeededRng) -> tuple[list[str], str]:
        """(what is wrong, how the damage showed).

        After a fault of the log mostly the queues are read that it concerns, and one more. The others need no reading
        as long as their files, their bounds and the rest of the log are what they are without the fault.
        """
        hit = self.image.hit(fault.path, fault.positions)
        names = [*rng.sample(self.keys, KEYS), *(key for one in hit for key in message_keys(one) if key in self._keys)]
        keys = {name: self._keys[name].topic for name in names}
        if fault.path.parent == LAYOUT.commit_log and rng.random() > THOROUGH_SHARE:
            queues = {*((one.topic, one.queue_id) for one in hit), rng.choice(sorted(self._stored))}
            seen, _ = await self._observe(fault, keys, queues=queues)
            shown = self._shown(seen, fault)
            if shown and self._rest_is_same(seen, fault):
                return self._problems(seen, fault, hit), shown
        seen, disk = await self._observe(fault, keys)
        shown = self._shown(seen, fault)
        problems = self._problems(seen, fault, hit)
        if not shown:
            problems.append(f"{fault.text}: the damage went unnoticed")
        if not problems and rng.random() < AFTERWARDS_SHARE:
            problems += [f"{fault.text}, afterwards: {problem}" for problem in await self._afterwards(disk, seen)]
        return problems, shown

    async def _observe(
        self, fault: Fault, keys: Mapping[str, str], queues: set[QueueKey] | None = None
    ) -> tuple[Observation, SimDisk]:
        disk = self.image.disk.fork()
        fault.apply(disk)
        return await observe(disk, self.image.wall_ms, keys, queues), disk

    async def _afterwards(self, disk: SimDisk, seen: Observation) -> list[str]:
        """The next start finds the same, and what is stored then stands behind it and can be read."""
        topic, queue_id = NEW_QUEUE
        async with opened(disk, SimClock(self.image.wall_ms)) as broker:
            (outcome,) = await produce(broker, incoming(topic, [b"new"], queue_id=queue_id))
            found = {key: await _pull_all(broker, *key) for key in seen.records}
        wrong = [f"{key} reads differently" for key, data in seen.records.items() if not found[key].startswith(data)]
        if outcome.base_queue_offset != seen.bounds[NEW_QUEUE][1]:
            wrong.append(f"a new message got offset {outcome.base_queue_offset}, not {seen.bounds[NEW_QUEUE][1]}")
        added = [decode_record(found[key][len(data) :]) for key, data in seen.records.items() if found[key] != data]
        if [(one.topic, one.queue_id, one.body) for one in added] != [(topic, queue_id, b"new")]:
            wrong.append("the new message is not there, or others are")
        return wrong

    def _problems(self, seen: Observation, fault: Fault, hit: list[Record]) -> list[str]:
        problems = seen.problems or [  # a store that could not be read to its end has nothing to compare
            *self._wrong_records(seen, hit),
            *self._wrong_states(seen, fault, hit),
            *self._wrong_keys(seen, hit, index_hit=fault.path.parent == LAYOUT.index),
        ]
        return [f"{fault.text}: {problem}" for problem in problems]

    def _rest_is_same(self, seen: Observation, fault: Fault) -> bool:
        """Whether what was not read is byte for byte what is read of the undamaged store."""
        if seen.bounds != self.reference.bounds:
            return False
        read = {LAYOUT.consume_queue(*key) for key in seen.records}
        for path, content in self.reference.final.items():
            found = seen.final.get(path)
            if path == fault.path and found is not None:
                end = fault.at + len(fault.content)
                found = found[: fault.at] + content[fault.at : end] + found[end:]
            if found != content and path.parent not in read and path.is_relative_to(LAYOUT.commit_log):
                return False
            if found != content and path.parent not in read and path.is_relative_to(LAYOUT.consume_queues):
                return False
        return True

    def _wrong_records(self, seen: Observation, hit: list[Record]) -> list[str]:
        lost_allowed = {(record.topic, record.queue_id, record.queue_offset) for record in hit}
        found = []
        for key, stored in self._stored.items():
            if seen.records.get(key) == self.reference.records[key] or not seen.wants(key):
                continue
            there = set[int]()
            for queue_offset, data in split(seen.records.get(key, b"")):
                if stored.get(queue_offset) != data:
                    found.append(f"{key} returned a record at {queue_offset} that was not stored there")
                there.add(queue_offset)
            lost = [offset for offset in stored.keys() - there if (*key, offset) not in lost_allowed]
            if lost:
                found.append(f"{key} has lost {sorted(lost)}, of which no byte was hit")
        return found

    def _wrong_states(self, seen: Observation, fault: Fault, hit: list[Record]) -> list[str]:
        """What is not as it was: a state whose file was hit may be the one before, and a message that is lost counts
        as done where it waited for its time or for its transaction's end.
        """
        hit_topics = {record.topic for record in hit}
        return [
            f"{name} says {seen.states.get(name)}, not {state}"
            for name, state in self.reference.states.items()
            if seen.states.get(name) != state
            and not (seen.reports and self._before.get(fault.path) == (name, seen.states.get(name)))
            and not hit_topics & FOLLOWED_TOPICS.get(name, set())
        ]

    def _wrong_keys(self, seen: Observation, hit: list[Record], *, index_hit: bool) -> list[str]:
        """A key may be missed where the index itself was hit, and never finds a stranger."""
        found = []
        for key, offsets in seen.by_key.items():
            record = self._keys[key]
            if any(offset != record.log_offset for offset in offsets):
                found.append(f"key {key} found {offsets}, not {record.log_offset}")
            if not offsets and not index_hit and record not in hit:
                found.append(f"key {key} was not found")
        return found

    def _shown(self, seen: Observation, fault: Fault) -> str:
        """How the damage showed, or that it means nothing; empty when it went unnoticed."""
        if not any(self.image.is_used(fault.path, at) for at in fault.positions):
            return "meaningless"
        whole = fault.path == LAYOUT.watermark or (fault.path == LAYOUT.checkpoint and fault.at < SECTOR_BYTES)
        if len(fault.content) > 1 and whole:
            return "older"  # a whole slot or checkpoint of before, from which recovery does the same with more work
        if seen.quarantined:
            return "quarantined"
        if set(seen.reports) - set(self.reference.reports):
            return "reported"
        if seen.final == self.reference.final:
            return "healed"
        damaged = self.image.disk.fork()
        fault.apply(damaged)
        return "found by dump_log" if verify(damaged) else ""


async def observe(
    disk: SimDisk, wall_ms: int, keys: Mapping[str, str] = MappingProxyType({}), queues: set[QueueKey] | None = None
) -> Observation:
    """Open the store, look up `keys` (each with its topic) and read it.

    All of it, and then it stops cleanly; or only `queues`, and then it is left as by a kill.
    """
    seen = Observation(queues)
    with _reports(seen.reports):
        try:
            async with opened(disk, SimClock(wall_ms), clean_stop=queues is None) as broker:
                await _read(broker, seen, keys)
        except Exception as error:
            seen.problems.append(f"{type(error).__name__}: {error}")
    seen.final = disk.contents()
    return seen


async def _read(broker: Broker, seen: Observation, keys: Mapping[str, str]) -> None:
    for queue in broker.store.queues:
        key = queue.topic, queue.queue_id
        seen.bounds[key] = (queue.min_offset, queue.max_offset)
        if seen.wants(key):
            seen.records[key] = await _pull_all(broker, *key)
    for name in keys:
        seen.by_key[name] = await find(broker, keys[name], name)
    seen.quarantined = len(broker.store.quarantine)
    states: dict[str, State] = {
        "topics.json": broker.topics,
        "subscriptionGroup.json": broker.groups,
        "consumerOffset.json": broker.consumer_offsets,
        "delayOffset.json": broker.delay_progress,
        "transactionOffset.json": broker.transaction_scan,
    }
    for name, state in states.items():
        seen.states[name] = {field: value for field, value in state.to_json().items() if field != "dataVersion"}


async def _pull_all(broker: Broker, topic: str, queue_id: int) -> bytes:
    parts: list[bytes] = []
    offset, _ = broker.store.queue_bounds(topic, queue_id)
    while True:
        query = PullQuery(READER, topic, queue_id, offset, PULL_MESSAGES, PULL_BYTES_MAX, "*")
        result = broker.pulling.pull_hot(query) or await broker.pulling.pull(query)
        if result.code is not ResponseCode.SUCCESS:
            raise AssertionError(f"a pull of {topic}/{queue_id} at {offset} was rejected: {result.remark}")
        if result.next_begin_offset == offset:
            return b"".join(parts)
        parts.append(result.records)
        offset = result.next_begin_offset


def verify(disk: SimDisk) -> bool:
    """Whether `dump_log --verify` finds a difference."""
    options = DumpOptions(LAYOUT.root, verify=True, index_slots=LAYOUT.index_size.slots)
    return dump(disk, options, lambda _line: None) != EXIT_SAME


async def find(broker: Broker, topic: str, key: str) -> list[int]:
    """Log offsets of the messages of the topic with this key."""
    found = await broker.querying.by_key(topic, key, max_messages=0, begin_ms=0, end_ms=0)
    return [decode_record(data).log_offset for data in found.records]


def split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(queue offset, bytes) of each of the records that lie end to end; what is no record is one with offset -1."""
    at = 0
    while at < len(data):
        size, queue_offset = _PLACE.unpack_from(data, at) if len(data) - at >= _PLACE.size else (0, -1)
        if not 0 < size <= len(data) - at:
            yield -1, data[at:]
            return
        yield queue_offset, data[at : at + size]
        at += size


@contextmanager
def _reports(messages: list[str]) -> Iterator[None]:
    """Collect what the broker logs as a warning or worse."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, before = Collector(logging.WARNING), LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = before
