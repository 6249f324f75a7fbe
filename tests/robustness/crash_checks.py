"""Recover a store from a disk as it was found, with the production code, and hold it to what was promised.

Invariant: every check compares with the history of the workload, never with what the store says about itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crash_history import History, QueueHistory, QueueKey, Sent, WrongError

from mq_broker.core.batches import Batch, check_batch
from mq_broker.core.pulling import parse_tag_expression
from mq_broker.store.message_store import MessageStore, StoreOptions
from mq_broker.store.recovery import RecoveryReport
from mq_broker.testing import producer_record
from mqproto.record import BODY_BYTES_MAX
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

EVERYTHING = parse_tag_expression("*")
MANY_MESSAGES, MANY_BYTES = 100_000, 1 << 30
LAST_BODY = b"one more"
TALLIES = ("tally.json", "other.json")
# What a second recovery may write anew: these say how far the log is durable, or are built of it and looked at apart.
DERIVED = frozenset(
    {"watermark", "checkpoint", "checkpoint.bak", "checkpoint.tmp", "checkpoint.bak.tmp", "index"}
    | {"queueNumbers.json", "queueNumbers.json.tmp", "queueEnds.json", "queueEnds.json.tmp"}
)


@dataclass
class Tally:
    """A small state of the store that only counts."""

    data_version: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"count": self.data_version}

    def load_json(self, document: dict[str, Any]) -> None:
        self.data_version = int(document["count"])


@dataclass(slots=True)
class Opened:
    """A store after its recovery."""

    store: MessageStore
    report: RecoveryReport
    tallies: dict[str, Tally]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery has found: so many records of the history, those below `log_begin` deleted."""

    count: int
    log_begin: int


@dataclass(frozen=True, slots=True)
class Promise:
    """What must be found after a failure at one moment: records of `history` from `floor` to `ceiling` in number."""

    history: History
    floor: int
    ceiling: int
    log_begins: tuple[int, int] = (0, 0)  # where the log may begin: from here to there
    tally_floors: dict[str, int] = field(default_factory=dict)

    def allows(self, found: Recovered) -> bool:
        """Whether so much may be there, no less and no more."""
        low, high = self.log_begins
        return self.floor <= found.count <= self.ceiling and low <= found.log_begin <= high


async def open_store(disk: SimDisk, clock: SimClock, options: StoreOptions) -> Opened:
    """Recover as the broker does: afterwards everything that was found is durable and readable."""
    tallies = {name: Tally() for name in TALLIES}
    store = MessageStore(disk, clock, options, tallies)
    report = store.open(lambda record: None)
    await store.flusher.flush()
    if store.failure is not None:
        raise WrongError(f"the store has failed on a disk that works: {store.failure}")
    return Opened(store, report, tallies)


@dataclass(frozen=True, slots=True)
class Extras:
    """What is looked at besides what is there."""

    lasting: bool = False  # the power goes after a recovery and one more message: both must be there again
    again: bool = False  # a second recovery must change nothing
    keys: bool = False  # the index follows the log to its end, and every message is found by its key


EVERYTHING_EXTRA = Extras(lasting=True, again=True, keys=True)


async def verify(
    disk: SimDisk, options: StoreOptions, promise: Promise, wall_ms: int, extras: Extras = EVERYTHING_EXTRA
) -> Recovered:
    """Recover `disk`; returns what is there. Raises WrongError, or whatever recovery raises."""
    lasting = disk.fork() if extras.lasting else None
    opened = await open_store(disk, SimClock(wall_ms), options)
    count = await check(opened, promise)
    check_rest(disk, opened.store)
    if lasting is not None:
        await check_lasting(lasting, options, promise, wall_ms, count)
    if extras.keys:
        await check_keys(opened.store, promise.history, count)
    disk.kill()
    if extras.again:
        await check_again(disk, options, opened, wall_ms)
    return Recovered(count, opened.store.log_begin)


async def check_again(disk: SimDisk, options: StoreOptions, opened: Opened, wall_ms: int) -> None:
    """A second recovery after the first one changes nothing. Raises WrongError."""
    before = disk.fingerprint(without=DERIVED)
    again = await open_store(disk, SimClock(wall_ms), options)
    if bounds(again.store) != bounds(opened.store):
        raise WrongError(f"a second recovery makes {bounds(again.store)} of {bounds(opened.store)}")
    if (after := disk.fingerprint(without=DERIVED)) != before:
        raise WrongError(f"a second recovery has changed files: {differences(before, after)}")
    disk.kill()


async def check_lasting(disk: SimDisk, options: StoreOptions, promise: Promise, wall_ms: int, count: int) -> None:
    """Recover, store one more message, lose the power and with it everything that was not synced."""
    disk.kill()
    history = promise.history.cut(count)
    store = (await open_store(disk, SimClock(wall_ms), options)).store
    sent, batch = one_batch("t", 0, [LAST_BODY], [""], "")
    (result,) = store.put([batch], wall_ms)
    history.add(sent, batch, result, options.layout.commit_log_file_bytes)
    await store.flusher.flush()
    rest = next(disk.lost_states(SeededRng(0), exhaustive_units_max=0, samples=2))  # nothing survives
    again = await open_store(rest, SimClock(wall_ms), options)
    await check(again, replace(promise, history=history, floor=count + 1, ceiling=count + 1))


def one_batch(topic: str, queue_id: int, bodies: Sequence[bytes], keys: Sequence[str], tag: str) -> tuple[Sent, Batch]:
    """A batch as a client sends it, checked as the broker does."""
    records = [
        producer_record(topic, body, queue_id=queue_id, tag=tag, key=key)
        for body, key in zip(bodies, keys, strict=True)
    ]
    batch = check_batch(topic, queue_id, len(records), b"".join(records), BODY_BYTES_MAX)
    return Sent(topic, queue_id, tuple(bodies), tag, tuple(keys)), batch


async def check(opened: Opened, promise: Promise) -> int:
    """Everything but the index; returns how many records are there. Raises WrongError."""
    store, history = opened.store, promise.history
    if opened.report.damaged_stretches or len(store.quarantine):
        raise WrongError(f"recovery took {list(store.quarantine)} for damage; a power cut damages nothing durable")
    count = history.below(store.log_end)
    end = history.ends[count - 1] if count else 0
    file_bytes = options_file_bytes(store)
    if store.log_end not in {end, -(-end // file_bytes) * file_bytes}:
        raise WrongError(f"the log ends at {store.log_end}; record {count} of {len(history)} ends at {end}")
    if not promise.floor <= count <= promise.ceiling:
        raise WrongError(
            f"{count} records are there, and not {promise.floor} (promised) to {promise.ceiling} (written)"
        )
    low, high = promise.log_begins
    if not low <= store.log_begin <= high or store.log_begin % file_bytes:
        raise WrongError(f"the log begins at {store.log_begin}, not from {low} to {high}")
    if store.readable_end < store.log_end:
        raise WrongError(f"only {store.readable_end} of {store.log_end} bytes are readable after a recovery")
    found = 0
    for key, queue in history.queues.items():
        found += await check_queue(store, key, queue, history.expected_of(queue, count, store.log_begin))
    if store.messages_stored != found:
        raise WrongError(f"all queues have {store.messages_stored} entries, not {found}")
    for name, floor in promise.tally_floors.items():
        if opened.tallies[name].data_version < floor:
            raise WrongError(f"{name} says {opened.tallies[name].data_version}, but {floor} was persisted")
    return count


def check_rest(disk: SimDisk, store: MessageStore) -> None:
    """Behind the log's end nothing is left that could be taken for a record one day. Raises WrongError."""
    layout = store.options.layout
    for name in disk.list_dir(layout.commit_log):
        rest = read_file(disk, layout.commit_log / name)[max(0, store.log_end - int(name)) :]
        if rest.count(0) != len(rest):
            raise WrongError(f"the log ends at {store.log_end}, and something is left behind that in the file {name}")


async def check_queue(store: MessageStore, key: QueueKey, queue: QueueHistory, expected: tuple[int, int]) -> int:
    """One queue, byte for byte; returns its end. Raises WrongError."""
    first, last = expected
    found = store.queue(*key)
    if found is None:
        if last:
            raise WrongError(f"queue {key} is missing, {last} messages were there")
        return 0
    if (found.max_offset, min(found.min_offset, last)) != (last, first):
        raise WrongError(f"queue {key} has {found.min_offset} to {found.max_offset}, not {first} to {last}")
    if last == first:
        return last
    entries = found.read(first, last - first)
    if entries != queue.entries_between(first, last):
        raise WrongError(f"the entries of queue {key} from {first} on are not what the log tells")
    chosen, data = await store.reader.select_cold(
        found, first, EVERYTHING, max_messages=MANY_MESSAGES, max_bytes=MANY_BYTES
    )
    if chosen.count != last - first or data != queue.data_between(first, last):
        raise WrongError(
            f"queue {key}: {chosen.count} records from {first} on are not the {last - first} that were put"
        )
    return last


async def check_keys(store: MessageStore, history: History, count: int) -> None:
    """Let the index follow the log to its end, and find every record by its key once. Raises WrongError."""
    index = store.index
    running = asyncio.ensure_future(index.run())
    for _ in range(10_000):
        if index.indexed_end >= store.log_end:
            break
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if index.indexed_end != store.log_end:
        raise WrongError(f"the index stays at {index.indexed_end}; the log ends at {store.log_end}")
    for (topic, _), queue in history.queues.items():
        for number, place, key in zip(queue.numbers, queue.log_offsets, queue.keys, strict=True):
            if number < count and place >= store.log_begin and key:
                found = [at for at in index.find(topic, key, 0, 1 << 60) if at is not None]
                if found.count(place) != 1:
                    raise WrongError(f"the index has {key!r} of {topic} {found.count(place)} times at {place}")


def bounds(store: MessageStore) -> dict[QueueKey | str, tuple[int, int]]:
    """Where the log and every queue begin and end."""
    found: dict[QueueKey | str, tuple[int, int]] = {"log": (store.log_begin, store.log_end)}
    found.update({(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in store.queues})
    return found


def differences(before: tuple[object, ...], after: tuple[object, ...]) -> str:
    """Which names and contents of two fingerprints are not in both."""

    def only(here: tuple[object, ...], there: tuple[object, ...]) -> list[object]:
        return [f"{len(part)} bytes" if isinstance(part, bytes) else part for part in here if part not in there]

    return f"{only(before, after)} -> {only(after, before)}"


def options_file_bytes(store: MessageStore) -> int:
    """The length of a log file."""
    return store.options.layout.commit_log_file_bytes
