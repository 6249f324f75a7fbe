"""Apache RocketMQ's own store library reads what Hourglass wrote, Hourglass reads what RocketMQ wrote, and they can
take turns on one store. Compared is everything: bounds of the queues, entries, fields of the messages, keys.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hourglass_store import find_keys, open_broker, read_store, store_keyed_at_once, store_some_of_everything
from rocketmq_store import RocketMQ, WantedMessage, copy_of
from store_content import KeyName, StoreContent, StoredMessage, StoreSizes

from hourglass_local.waiting import eventually
from mq_broker.core.halves import OP_TAG
from mq_broker.core.transactions import TransactionState
from mq_broker.store.errors import StoreDamagedError
from mq_broker.testing import read_all
from mqproto.codes import ResponseCode
from mqproto.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from mqproto.properties import DELAY, KEYS, PGROUP, REAL_QID, REAL_TOPIC, TAGS, TRAN_MSG, UNIQ_KEY, java_string_hash
from osenv import SeededRng

pytestmark = [pytest.mark.needs("maven"), pytest.mark.processes, pytest.mark.timeout(300)]

SIZES = StoreSizes()
MESSAGES = 300
LOG_FILES_MIN = 5
UNKNOWN_KEY: KeyName = ("keyed", "no-message-has-this-key")
TEN_SECONDS_LEVEL, TEN_SECONDS_MS = 3, 10_000


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> RocketMQ:
    return RocketMQ.build(tmp_path_factory.mktemp("rocketmq"))


async def written_by_hourglass(store: Path, *, seed: int = 1, clean_stop: bool = True) -> StoreContent:
    async with open_broker(store, SIZES, clean_stop=clean_stop) as (broker, clock):
        await store_some_of_everything(broker, clock, seed)
        return await read_store(broker, store)


def rocketmq_reads(rocketmq: RocketMQ, store: Path, wrote: StoreContent) -> None:
    """RocketMQ finds all of it on a copy, keys included, and has cut nothing away."""
    copy = copy_of(store, store.with_name(f"{store.name}-copy"))
    read, found = rocketmq.read(copy, [*wrote.places_by_key, UNKNOWN_KEY])
    assert read == wrote
    assert found == wrote.places_by_key | {UNKNOWN_KEY: []}
    assert log_bytes(copy, wrote.log_end) == log_bytes(store, wrote.log_end)
    shutil.rmtree(copy)


def log_bytes(store: Path, end: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))[:end]


def queue_bytes(store: Path) -> dict[str, bytes]:
    """The content of each consume queue, without the entries that were never written."""
    queues: dict[str, bytes] = {}
    for path in sorted((store / "consumequeue").glob("*/*/*")):
        name = str(path.parent.relative_to(store))
        queues[name] = queues.get(name, b"") + path.read_bytes()
    return {name: content.rstrip(b"\0") for name, content in queues.items()}


@pytest.mark.parametrize("clean_stop", [True, False], ids=["stopped", "killed"])
async def test_rocketmq_reads_every_message_queue_and_key_that_hourglass_wrote(
    rocketmq: RocketMQ, tmp_path: Path, clean_stop: bool
) -> None:
    store = tmp_path / "store"
    wrote = await written_by_hourglass(store, clean_stop=clean_stop)
    assert (store / "abort").exists() is not clean_stop
    assert wrote.log_end > LOG_FILES_MIN * SIZES.commit_log_file_bytes
    assert max(end for _, end in wrote.queues.values()) > SIZES.consume_queue_file_entries
    rocketmq_reads(rocketmq, store, wrote)


async def test_rocketmq_finds_the_keys_of_messages_that_were_stored_right_before_hourglass_stopped(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    async with open_broker(store, SIZES) as (broker, _):
        store_keyed_at_once(broker, MESSAGES, 8)
    read, _ = rocketmq.read(copy_of(store, tmp_path / "first-copy"))
    assert len(read.messages) == MESSAGES
    rocketmq_reads(rocketmq, store, read)


async def test_rocketmq_makes_the_same_consume_queues_byte_for_byte_from_hourglasss_log(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    store, log_alone = tmp_path / "store", tmp_path / "log-alone"
    wrote = await written_by_hourglass(store)
    shutil.copytree(store / "commitlog", log_alone / "commitlog")
    (log_alone / "abort").touch()  # so that it reads the log from its beginning
    read, found = rocketmq.read(log_alone, wrote.places_by_key)
    assert read == wrote
    assert found == wrote.places_by_key
    assert queue_bytes(log_alone) == queue_bytes(store)


def wanted_messages(seed: int) -> list[WantedMessage]:
    """What a producer could give to a broker: with and without tags and keys, over several files."""
    rng, wanted = SeededRng(seed), []
    for number in range(MESSAGES):
        properties = {
            UNIQ_KEY: f"7F000001{seed:04X}{number:020X}",
            KEYS: f"order-{seed}-{number} buyer-{number % 40}",
            TAGS: rng.choice(["red", "grün", "AaBB"]),
            "note": "aé€😀",
        }
        for name in (KEYS, TAGS, UNIQ_KEY, "note"):
            if rng.randrange(4) == 0:
                del properties[name]
        wanted.append(
            WantedMessage(
                topic=rng.choice(["rocket-a", "rocket-b", "keyed"]),
                queue_id=rng.randrange(2),
                body=rng.randbytes(rng.randrange(1, 3_000)),
                properties=properties,
                flag=rng.randrange(1 << 31),
                born_timestamp_ms=1_700_000_000_000 + number,
                reconsume_times=rng.randrange(3),
            )
        )
    return wanted


def written_by_rocketmq(
    rocketmq: RocketMQ, store: Path, wanted: list[WantedMessage], *, die: bool
) -> list[StoredMessage]:
    places = rocketmq.write(store, wanted, die=die)
    return [one.stored(place, entry_code(one, place)) for one, place in zip(wanted, places, strict=True)]


def entry_code(wanted: WantedMessage, place: dict[str, int]) -> int:
    if wanted.topic == SCHEDULE_TOPIC:
        return place["storeTimestamp"] + TEN_SECONDS_MS
    return java_string_hash(wanted.properties.get(TAGS, ""))


def log_end(messages: list[StoredMessage]) -> int:
    return max(message.log_offset + message.size for message in messages)


@pytest.mark.parametrize("die", [False, True], ids=["stopped", "killed"])
async def test_hourglass_reads_everything_that_rocketmq_wrote_and_goes_on_and_rocketmq_reads_it_again(
    rocketmq: RocketMQ, tmp_path: Path, die: bool
) -> None:
    store = tmp_path / "store"
    wrote = written_by_rocketmq(rocketmq, store, wanted_messages(2), die=die)
    assert log_end(wrote) > LOG_FILES_MIN * SIZES.commit_log_file_bytes
    async with open_broker(store, SIZES) as (broker, clock):
        read = await read_store(broker, store)
        assert list(read.messages) == wrote
        assert read.log_end == log_end(wrote)
        assert await find_keys(broker, read.places_by_key) == read.places_by_key
        await store_some_of_everything(broker, clock, 3)
        both = await read_store(broker, store)
    assert list(both.messages[: len(wrote)]) == wrote
    rocketmq_reads(rocketmq, store, both)


async def test_they_take_turns_on_one_store_and_nothing_is_lost(rocketmq: RocketMQ, tmp_path: Path) -> None:
    store = tmp_path / "store"
    content = await written_by_hourglass(store, seed=4)
    for turn, die in enumerate((True, False)):
        wrote = written_by_rocketmq(rocketmq, store, wanted_messages(5 + turn), die=die)
        before = content
        async with open_broker(store, SIZES, clean_stop=die) as (broker, clock):
            await store_some_of_everything(broker, clock, 10 + turn)
            content = await read_store(broker, store)
            assert await find_keys(broker, content.places_by_key) == content.places_by_key
        assert list(content.messages[: len(before.messages) + len(wrote)]) == [*before.messages, *wrote]
    rocketmq_reads(rocketmq, store, content)


async def test_hourglass_delivers_the_delayed_messages_of_rocketmq_when_they_are_due(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    properties = {DELAY: str(TEN_SECONDS_LEVEL), REAL_TOPIC: "late", REAL_QID: "1", TAGS: "red"}
    delayed = WantedMessage(SCHEDULE_TOPIC, TEN_SECONDS_LEVEL - 1, b"ten seconds later", properties)
    (wrote,) = written_by_rocketmq(rocketmq, store, [delayed], die=True)
    async with open_broker(store, SIZES) as (broker, clock):
        assert (await read_store(broker, store)).messages == (wrote,)
        await clock.advance((wrote.entry[2] - clock.wall_ms()) / 1_000 - 1)
        assert broker.store.queue_bounds("late", 1) == (0, 0)
        await clock.advance(1)
        await eventually(lambda: broker.store.queue_bounds("late", 1) == (0, 1), 5, "the message is delivered")


async def test_hourglass_goes_on_with_the_transactions_of_rocketmq(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ's op message names the half by its queue offset only, and does not say how the transaction has ended."""
    store = tmp_path / "store"
    halves = [WantedMessage(HALF_TOPIC, 0, id_.encode(), half_properties(id_)) for id_ in ("ended", "open")]
    op = WantedMessage(OP_HALF_TOPIC, 0, b"0,", {TAGS: OP_TAG})
    written_by_rocketmq(rocketmq, store, [*halves, op], die=True)
    async with open_broker(store, SIZES) as (broker, _):
        assert broker.transaction_table.open_half("ended") is None
        ended = await broker.transactions.end("shop", "open", TransactionState.COMMIT_MESSAGE, from_check=False)
        assert ended.code is ResponseCode.SUCCESS
        assert [record.body for record in await read_all(broker, "sold")] == [b"open"]


def half_properties(transaction_id: str) -> dict[str, str]:
    return {TRAN_MSG: "true", PGROUP: "shop", REAL_TOPIC: "sold", REAL_QID: "0", UNIQ_KEY: transaction_id}


async def test_a_store_whose_records_have_no_crc_is_rejected_and_left_as_it_is(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    places = rocketmq.write_unsealed(store, wanted_messages(7))
    end = max(place["commitLogOffset"] + place["storeSize"] for place in places)
    before = log_bytes(store, end), queue_bytes(store)
    with pytest.raises(StoreDamagedError):
        async with open_broker(store, SIZES):
            pass
    assert (log_bytes(store, end), queue_bytes(store)) == before
