"""A store that a newer program has written is rejected and left as it is; one without a version is an old one."""

from __future__ import annotations

import errno
import re
import zlib
from pathlib import Path

import pytest

from mq_broker.processor.broker import Broker
from mq_broker.store.errors import StoreDamagedError, StoreVersionError
from mq_broker.store.layout import LINE_BYTES, STORE_VERSION, StoreLayout, decode_version, encode_version
from mq_broker.store.state_files import NewerFormatError, decode_document, encode_document
from mq_broker.testing import (
    STORE_ROOT,
    broker_options,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
    timed,
)
from mq_broker.tools.findings import Finding
from mq_broker.tools.state_check import read_small_state
from mq_broker.tools.verify import verify
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

LAYOUT = store_options().layout
NEWER = STORE_VERSION + 1
DOCUMENTS = ["topics.json", "consumerOffset.json", "consumerOffset.json.bak", "queueNumbers.json"]


def put(disk: SimDisk, path: Path, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync_data()
    disk.sync_dir(path.parent)


def newer(data: bytes) -> bytes:
    """The same document in a format of the future, whole."""
    changed = data.replace(b'"formatVersion": 1', b'"formatVersion": 2')
    at = changed.rindex(b'"crc32": "') + len(b'"crc32": "')
    crc = zlib.crc32(changed[:at] + b"0" * 8 + changed[at + 8 :])
    return changed[:at] + b"%08x" % crc + changed[at + 8 :]


def full(_call: str, path: Path) -> None:
    """A disk without room for the file of the version."""
    if path.name.startswith(LAYOUT.version.name):
        raise OSError(errno.ENOSPC, "no space left")


async def used_store() -> SimDisk:
    """Ten messages, and one that waits."""
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"%d" % number for number in range(10)]), timed("t", b"w", delay_ms=3_000))
        await clock.advance(1)
    async with running_broker(disk, SimClock(clock.wall_ms())):  # a second document of each state
        pass
    return disk


async def bodies(disk: SimDisk) -> list[bytes]:
    """What the store holds, after a start."""
    clock = SimClock()
    async with running_broker(disk, clock) as broker:
        await clock.advance(10)
        return [record.body for record in await read_all(broker, "t")]


def rejected(disk: SimDisk, kind: type[Exception]) -> str:
    """The sentence with which a start is rejected, which changes nothing."""
    before = disk.contents()
    with pytest.raises(kind) as raised:
        Broker(disk, SimClock(), broker_options(), store_options())
    assert disk.contents() == before
    return str(raised.value)


class TestTheFile:
    def test_it_is_what_the_document_says(self) -> None:
        text = b"Hourglass store, version 1"
        line = text + b", crc32 %08x" % zlib.crc32(text)
        assert encode_version(1) == (line + b" " * (511 - len(line)) + b"\n") * 2

    @pytest.mark.parametrize("version", [1, 2, 10, 4_711])
    def test_one_whole_line_is_enough(self, version: int) -> None:
        data = encode_version(version)
        for at in range(len(data)):
            assert decode_version(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) == version

    @pytest.mark.parametrize("data", [b"", b"\0" * 1_024, encode_version(1)[: LINE_BYTES - 1], b"\xff" * 512])
    def test_no_whole_line_is_no_version(self, data: bytes) -> None:
        with pytest.raises(ValueError, match="no line of it is whole"):
            decode_version(data)

    def test_the_larger_one_counts(self) -> None:
        assert decode_version(encode_version(1)[:LINE_BYTES] + encode_version(3)[:LINE_BYTES]) == 3


class TestWriting:
    async def test_whatever_a_power_cut_leaves_of_a_first_start_has_its_version(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"x"]))
            for left in disk.lost_states(SeededRng(1)):
                assert read_file(left, LAYOUT.version) == encode_version(STORE_VERSION)

    def test_a_new_store_is_not_begun_without_it(self) -> None:
        disk = SimDisk()
        disk.before = full
        with pytest.raises(OSError, match="no space left"):
            Broker(disk, SimClock(), broker_options(), store_options())
        assert disk.list_dir(LAYOUT.commit_log) == []

    async def test_a_store_of_before_gets_it_at_its_first_start(self) -> None:
        disk = await used_store()
        disk.unlink(LAYOUT.version)
        assert len(await bodies(disk)) == 11
        assert read_file(disk, LAYOUT.version) == encode_version(STORE_VERSION)

    async def test_a_full_disk_keeps_what_is_stored_readable(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = await used_store()
        disk.unlink(LAYOUT.version)
        disk.before = lambda call, path: (
            full(call, path) if call in {"open", "pwrite"} and ".tmp" in path.name else None
        )
        assert len(await bodies(disk)) == 11
        assert "/store/version could not be written: [Errno 28] no space left" in caplog.text

    @pytest.mark.parametrize("at", [0, 25, LINE_BYTES - 1, LINE_BYTES + 30])
    async def test_a_damaged_line_is_reported_and_written_anew(self, at: int, caplog: pytest.LogCaptureFixture) -> None:
        disk, whole = await used_store(), encode_version(STORE_VERSION)
        put(disk, LAYOUT.version, whole[:at] + b"\0" + whole[at + 1 :])
        assert len(await bodies(disk)) == 11
        assert "/store/version is damaged, and written anew" in caplog.text
        assert read_file(disk, LAYOUT.version) == whole


class TestRejected:
    async def test_a_newer_store(self) -> None:
        disk = await used_store()
        put(disk, LAYOUT.version, encode_version(NEWER))
        assert rejected(disk, StoreVersionError) == (
            f"/store/version says version {NEWER}, and this program knows versions up to {STORE_VERSION}: a newer one "
            "has written the store; start that one; nothing has been changed"
        )
        put(disk, LAYOUT.version, encode_version(STORE_VERSION))
        assert len(await bodies(disk)) == 11

    async def test_a_newer_store_of_which_one_line_is_damaged(self) -> None:
        disk = await used_store()
        put(disk, LAYOUT.version, b"\0" * LINE_BYTES + encode_version(NEWER)[LINE_BYTES:])
        assert f"says version {NEWER}" in rejected(disk, StoreVersionError)

    async def test_an_unreadable_version_is_an_error(self) -> None:
        disk = await used_store()
        put(disk, LAYOUT.version, b"\0" * 1_024)
        assert re.fullmatch(r"/store/version is damaged, .*remove the file", rejected(disk, StoreDamagedError))
        disk.unlink(LAYOUT.version)
        assert len(await bodies(disk)) == 11

    @pytest.mark.parametrize("name", DOCUMENTS)
    async def test_a_newer_document(self, name: str) -> None:
        disk = await used_store()
        put(disk, LAYOUT.config / name, newer(encode_document({"dataVersion": {"counter": 1}}, 0)))
        assert rejected(disk, StoreVersionError) == (
            f"/store/config/{name} says version 2, and this program knows versions up to 1: a newer one has written "
            "the store; start that one; nothing has been changed"
        )

    async def test_nothing_is_made_in_a_folder_that_holds_a_newer_version_only(self) -> None:
        disk = SimDisk()
        disk.make_dirs(STORE_ROOT)
        put(disk, LAYOUT.version, encode_version(NEWER))
        rejected(disk, StoreVersionError)
        assert disk.list_dir(STORE_ROOT) == ["version"]

    async def test_a_newer_timer_is_built_anew(self) -> None:
        disk = await used_store()
        runs = StoreLayout(STORE_ROOT).timer / "runs.json"
        disk.make_dirs(runs.parent)
        put(disk, runs, newer(encode_document({"queueOffset": 1, "runs": []}, 0)))
        assert (await bodies(disk))[-1] == b"w"

    def test_a_newer_document_is_told_from_a_damaged_one(self) -> None:
        with pytest.raises(NewerFormatError, match="format version 2; this broker reads version 1"):
            decode_document(newer(encode_document({}, 12)))
        with pytest.raises(ValueError, match="the CRC does not match"):
            decode_document(newer(encode_document({}, 12)).replace(b"12", b"13"))


class TestDumpLog:
    @pytest.mark.parametrize(
        ("data", "fault"),
        [
            (encode_version(NEWER), f"version {NEWER}; this program knows versions up to {STORE_VERSION}"),
            (b"\0" + encode_version(1)[1:], "one of its lines is damaged"),
            (b"", "damaged: no line of it is whole"),
        ],
        ids=["newer", "one line", "empty"],
    )
    async def test_it_says_so(self, data: bytes, fault: str) -> None:
        disk, found = await used_store(), list[Finding]()
        put(disk, LAYOUT.version, data)
        verify(disk, LAYOUT, read_small_state(disk, LAYOUT), found.append, index_slots=LAYOUT.index_size.slots)
        assert [str(one) for one in found] == [f"difference: version: {fault}"]

    async def test_a_store_without_it_is_as_it_should_be(self) -> None:
        disk, found = await used_store(), list[Finding]()
        disk.unlink(LAYOUT.version)
        assert (
            verify(
                disk, LAYOUT, read_small_state(disk, LAYOUT), found.append, index_slots=LAYOUT.index_size.slots
            ).differences
            == 0
        )
