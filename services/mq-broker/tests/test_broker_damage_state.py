"""The small state as JSON: damage is noticed, the version before is used, and nothing is silently read as empty."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import StoreLayout
from mq_broker.store.state_files import FORMAT, decode_document, encode_document, read_document, write_document
from mq_broker.testing import STORE_ROOT, incoming, produce, read_all, running_broker
from osenv import SimClock, SimDisk
from osenv.disk import read_file

LAYOUT = StoreLayout(STORE_ROOT)
OFFSETS = LAYOUT.config / "consumerOffset.json"
TOPICS = LAYOUT.config / "topics.json"
BACKUP = OFFSETS.with_name("consumerOffset.json.bak")

# As Apache RocketMQ 5 writes them: tabs, no CRC, and numbers as names without quotes.
ROCKETMQ_TOPICS = b"""{
	"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
	"topicConfigTable":{
		"theirs":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"theirs",
		"topicSysFlag":0,"writeQueueNums":8}
	}
}"""
ROCKETMQ_OFFSETS = b"""{
	"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1700000000000},
	"offsetTable":{
		"t@g":{0:2,1:0
		}
	}
}"""
ROCKETMQ_DELAYS = b"""{
	"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},
	"offsetTable":{3:1,16:2
	}
}"""


def change(disk: SimDisk, path: Path, before: bytes, after: bytes) -> None:
    data = read_file(disk, path)
    assert data.count(before) == 1
    put(disk, path, data.replace(before, after))


def put(disk: SimDisk, path: Path, data: bytes) -> None:
    disk.make_dirs(path.parent)
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync_data()
    disk.sync_dir(path.parent)


async def live(disk: SimDisk) -> None:
    """Offsets of a group: 3 in the version before, 7 in the last one."""
    clock = SimClock()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"%d" % number for number in range(10)]))
        broker.offsets.commit("g", [("t", 0, Progress(3))])
        await clock.advance(5)
        broker.offsets.commit("g", [("t", 0, Progress(7))])
    assert b'"0": 3' in read_file(disk, BACKUP)
    assert b'"0": 7' in read_file(disk, OFFSETS)


async def offset_after_start(disk: SimDisk) -> int | None:
    async with running_broker(disk, SimClock()) as broker:
        assert [record.body for record in await read_all(broker, "t")] == [b"%d" % number for number in range(10)]
        return broker.consumer_offsets.query("g", "t", 0)


ANY_SENTENCE = r"\S"
DOCUMENT: dict[str, Any] = {"offsetTable": {"t@g": {"0": 7}}, "dataVersion": {"counter": 3}}


class TestDocuments:
    def test_what_is_written_comes_back(self) -> None:
        data = encode_document(DOCUMENT, 1 << 40)
        found = decode_document(data)
        assert DOCUMENT.items() <= found.items()
        assert (found["logOffset"], found["formatVersion"]) == (1 << 40, FORMAT)
        assert json.loads(data) == found  # any reader of JSON can read it

    @pytest.mark.parametrize("bit", [0x01, 0x04, 0x20, 0x80])
    def test_every_changed_byte_is_noticed(self, bit: int) -> None:
        data = encode_document(DOCUMENT, 12)
        for at in range(len(data)):
            with pytest.raises(ValueError, match=ANY_SENTENCE):
                decode_document(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])

    def test_every_shorter_or_longer_file_is_noticed(self) -> None:
        data = encode_document(DOCUMENT, 12)
        for size in range(len(data)):
            with pytest.raises(ValueError, match=ANY_SENTENCE):
                decode_document(data[:size])
        for more in (b"\n", b" ", b"\0", data):
            with pytest.raises(ValueError, match=ANY_SENTENCE):
                decode_document(data + more)

    @pytest.mark.parametrize("data", [b"", b"null", b"[]", b"7", b'"x"', b"\xff\xfe", b"{", b"\0" * 100])
    def test_what_is_no_object_is_damage(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=ANY_SENTENCE):
            decode_document(data)

    @pytest.mark.parametrize(
        "data", [ROCKETMQ_TOPICS, ROCKETMQ_OFFSETS, ROCKETMQ_DELAYS], ids=["topics", "offsets", "delays"]
    )
    def test_rocketmq_s_documents_without_a_crc_are_accepted(self, data: bytes) -> None:
        assert decode_document(data)["dataVersion"]["stateVersion"] == 0

    def test_without_any_version_there_is_no_document(self) -> None:
        assert read_document(SimDisk(), OFFSETS) is None

    def test_a_damaged_file_is_reported_and_not_read(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = SimDisk()
        for counter in (1, 2):
            write_document(disk, OFFSETS, encode_document({"counter": counter}, 0))
        found = [read_document(disk, path) for path in (OFFSETS, BACKUP)]
        assert [document and document["counter"] for document in found] == [2, 1]
        assert caplog.text == ""
        change(disk, OFFSETS, b'"counter": 2', b'"counter": 9')
        assert read_document(disk, OFFSETS) is None
        assert "consumerOffset.json is damaged: the CRC does not match" in caplog.text


class TestStart:
    async def test_a_changed_digit_is_noticed_and_the_version_before_is_used_with_the_journal(self) -> None:
        disk = SimDisk()
        await live(disk)
        change(disk, OFFSETS, b'"0": 7', b'"0": 9')
        assert await offset_after_start(disk) == 7, "the journal knows the rest"

    async def test_a_changed_digit_in_the_version_before_does_no_harm(self) -> None:
        disk = SimDisk()
        await live(disk)
        change(disk, BACKUP, b'"0": 3', b'"0": 9')
        assert await offset_after_start(disk) == 7

    @pytest.mark.mechanism("S5")
    @pytest.mark.parametrize(
        "name", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset", "transactionOffset"]
    )
    @pytest.mark.parametrize(
        "damage", [b"", b"\0" * 50, b"{}", b"[]", b"\xff"], ids=["empty", "zeros", "{}", "[]", "0xff"]
    )
    async def test_damage_of_any_state_file_stops_no_start(self, name: str, damage: bytes) -> None:
        disk = SimDisk()
        await live(disk)
        path = LAYOUT.config / f"{name}.json"
        put(disk, path, damage)
        assert await offset_after_start(disk) == 7
        put(disk, path, damage)
        put(disk, path.with_name(f"{name}.json.bak"), damage)
        async with running_broker(disk, SimClock()) as broker:
            assert len(await read_all(broker, "t")) == 10

    @pytest.mark.parametrize("lost", [["delayOffset.json"], ["delayOffset.json", "delayOffset.json.bak"]])
    async def test_delayed_messages_are_not_delivered_again_when_the_progress_is_damaged(self, lost: list[str]) -> None:
        """The version before is older than the checkpoint: the log has to be read from where that version stops."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock) as broker:
            for number in range(4):
                await produce(broker, incoming("t", [b"%d" % number], delay_level=1))
                await clock.advance(11)  # a delivery and a checkpoint
        for name in lost:
            put(disk, LAYOUT.config / name, b"\0" * 50)
        clock = SimClock(clock.wall_ms())
        async with running_broker(disk, clock) as broker:
            await produce(broker, incoming("t", [b"4"], delay_level=1))
            await clock.advance(60)
            assert [record.body for record in await read_all(broker, "t")] == [b"0", b"1", b"2", b"3", b"4"]

    async def test_offsets_that_are_lost_with_their_journal_are_reported_and_not_read_as_zero(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk = SimDisk()
        await live(disk)
        for name in disk.list_dir(LAYOUT.config):
            if name.startswith("consumerOffset."):
                disk.remove_tree(LAYOUT.config / name)
        assert await offset_after_start(disk) is None
        assert re.search(r"consumerOffset\.json: .*lost", caplog.text)

    async def test_rocketmq_s_files_are_taken_over(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", [b"%d" % number for number in range(10)]))
        for path, data in ((TOPICS, ROCKETMQ_TOPICS), (OFFSETS, ROCKETMQ_OFFSETS)):
            put(disk, path, data)
        async with running_broker(disk, SimClock()) as broker:
            config = broker.topics.get("theirs")
            assert config is not None
            assert (config.read_queue_count, config.write_queue_count) == (8, 8)
            assert self.offsets(broker) == [2, 0]
        async with running_broker(disk, SimClock()) as broker:  # ours by now
            assert self.offsets(broker) == [2, 0]

    def offsets(self, broker: Broker) -> list[int | None]:
        return [broker.consumer_offsets.query("g", "t", queue_id) for queue_id in (0, 1)]
