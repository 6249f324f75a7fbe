"""A copy of a broker's store in a folder: whole, or without backup.json."""

from __future__ import annotations

import asyncio
import errno
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.embedded import EmbeddedBroker
from mq_broker.processor.backup import BackupEnd, BackupFile, BackupPart
from mqclient import (
    Admin,
    ConnectionLostError,
    IllegalArgumentError,
    Message,
    NoRouteError,
    Producer,
    RequestTimeoutError,
)
from mqclient.admin import BackupDescription
from mqclient.admin.backups import DESCRIPTION_NAME, PART_TIMEOUT_S, BackedUpFile
from mqproto.codes import check_path
from osenv import SeededRng, SimDisk
from osenv.sim_clock import settle

FOLDER = Path("/backups/one")
VERSION = BackupFile("version", 3, 3)


@asynccontextmanager
async def asked(name: str, messages: int = 3) -> AsyncIterator[tuple[EmbeddedBroker, Admin]]:
    """A broker with some messages, and an admin of it."""
    async with EmbeddedBroker(name) as broker, Admin(broker.url) as admin:
        async with Producer("g", broker.url) as producer:
            for number in range(messages):
                await producer.send(Message("orders", b"%d" % number))
        yield broker, admin


def give(broker: EmbeddedBroker, parts: Sequence[BackupPart | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the broker sends this; None: it falls silent."""

    async def given() -> AsyncGenerator[BackupPart, None]:
        for part in parts:
            if part is None:
                await asyncio.Event().wait()
            else:
                yield part

    monkeypatch.setattr(broker.broker.backup, "parts", given)


def ended(files: int, *contents: bytes) -> BackupEnd:
    content = b"".join(contents)
    return BackupEnd("broker-a", 1, 0, 0, files, len(content), zlib.crc32(content))


class TestCopying:
    async def test_the_folder_holds_what_the_description_says(self) -> None:
        disk = SimDisk()
        async with asked("copied") as (broker, admin):
            found = await admin.backup_store("broker-a", FOLDER, disk=disk)
            assert (found.broker_name, found.log_min_offset) == ("broker-a", 0)
            assert found.log_max_offset == broker.broker.store.log_end
        files = {path.relative_to(FOLDER).as_posix(): content for path, content in disk.contents().items()}
        assert BackupDescription.decode(files.pop(DESCRIPTION_NAME)) == found
        assert {file.path: (file.size, file.crc32) for file in found.files} == {
            path: (len(content), zlib.crc32(content)) for path, content in files.items()
        }
        (log,) = [file for file in found.files if file.path.startswith("commitlog/")]
        assert (log.size, log.full_size) == (found.log_max_offset, 8 * 1024 * 1024)

    async def test_a_power_cut_right_behind_the_call_takes_nothing(self) -> None:
        disk = SimDisk()
        async with asked("durable") as (_, admin):
            await admin.backup_store("127.0.0.1:10911", FOLDER, disk=disk)
        for left in disk.lost_states(SeededRng(1)):
            assert left.contents() == disk.contents()

    async def test_whatever_a_power_cut_leaves_with_a_description_is_whole(self) -> None:
        disk, whole = SimDisk(), list[SimDisk]()

        def look(_call: str, _path: Path) -> None:
            whole.extend(
                left for left in disk.lost_states(SeededRng(1), samples=20) if left.exists(FOLDER / DESCRIPTION_NAME)
            )

        disk.before = look
        async with asked("cut") as (_, admin):
            await admin.backup_store("broker-a", FOLDER, disk=disk)
        disk.before = lambda _call, _path: None
        assert whole
        for left in whole:
            assert (
                left.contents().items()
                >= {path: content for path, content in disk.contents().items() if path.suffix != ".tmp"}.items()
            )

    async def test_a_real_folder(self, tmp_path: Path) -> None:
        async with asked("real") as (_, admin):
            found = await admin.backup_store("broker-a", tmp_path / "new" / "folder")
        assert (tmp_path / "new" / "folder" / DESCRIPTION_NAME).read_bytes() == found.encode()


class TestRejected:
    @pytest.mark.parametrize(
        ("name", "rest"),
        [(DESCRIPTION_NAME, ""), ("version", "; if it is a copy that has not come to its end, remove it")],
    )
    async def test_a_folder_that_is_not_empty(self, name: str, rest: str) -> None:
        disk = SimDisk()
        disk.make_dirs(FOLDER)
        disk.open(FOLDER / name, create=True)
        async with asked("occupied") as (_, admin):
            with pytest.raises(IllegalArgumentError) as raised:
                await admin.backup_store("broker-a", FOLDER, disk=disk)
        assert str(raised.value) == f"{FOLDER} is not empty: a copy begins in an empty folder{rest}"
        assert disk.list_dir(FOLDER) == [name]

    async def test_an_unknown_broker_is_an_error(self) -> None:
        async with asked("known") as (_, admin):
            with pytest.raises(NoRouteError, match="no master is registered as 'stranger'"):
                await admin.backup_store("stranger", FOLDER, disk=SimDisk())


class TestInterrupted:
    async def test_a_broker_that_dies_leaves_no_description(self, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = SimDisk()
        async with asked("dies") as (broker, admin):
            give(broker, [VERSION, b"abc", None], monkeypatch)
            copying = asyncio.create_task(admin.backup_store("broker-a", FOLDER, disk=disk))
            await settle()
            assert disk.exists(FOLDER / "version")
            broker.break_connections()
            with pytest.raises(ConnectionLostError):
                await copying
        assert disk.list_dir(FOLDER) == ["version"]

    async def test_a_broker_that_falls_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with asked("silent") as (broker, admin):
            give(broker, [VERSION, None], monkeypatch)
            copying = asyncio.create_task(admin.backup_store("broker-a", FOLDER, disk=SimDisk()))
            await broker.clock.advance(PART_TIMEOUT_S + 1)
            with pytest.raises(RequestTimeoutError, match="broker-a has sent nothing of its store for 60 s"):
                await copying

    @pytest.mark.parametrize(
        ("parts", "sentence"),
        [
            ([VERSION, b"abc"], "it has ended in the middle"),
            ([VERSION, b"ab", ended(1, b"ab")], "of version 2 bytes came, and 3 were announced"),
            ([VERSION, b"abcd"], "there is more of a file than was announced"),
            ([b"abc"], "there is more of a file than was announced"),
            ([VERSION, b"abc", ended(1, b"abx")], "here are 1 of 3 with 352441c2"),
            ([VERSION, b"abc", ended(2, b"abc")], "the broker has sent 2 files of 3 bytes"),
            ([VERSION, b"abc", VERSION, b"abc", ended(2, b"abcabc")], "a file of it is named twice"),
            ([BackupFile("x", 0, 0), ended(1)], "it has no file 'version'"),
            ([BackupFile("../x", 0, 0)], "'../x' is no path of a file below the root of a store"),
        ],
    )
    async def test_what_is_no_copy_is_rejected(
        self, parts: list[BackupPart], sentence: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = SimDisk()
        async with asked("wrong") as (broker, admin):
            give(broker, parts, monkeypatch)
            with pytest.raises(ConnectionLostError) as raised:
                await admin.backup_store("broker-a", FOLDER, disk=disk)
        assert str(raised.value).startswith("what came of the store of broker-a is no copy of it: ")
        assert sentence in str(raised.value)
        assert not disk.exists(FOLDER / DESCRIPTION_NAME)
        assert all(FOLDER in path.parents for path in disk.contents())

    @pytest.mark.parametrize("call", ["open", "pwrite", "sync_data", "sync_dir", "replace"])
    async def test_a_disk_of_this_machine_that_rejects_says_where(self, call: str) -> None:
        disk = SimDisk()

        def full(done: str, _path: Path) -> None:
            if done == call:
                raise OSError(errno.ENOSPC, "no space left on device")

        disk.before = full
        async with asked("full") as (_, admin):
            with pytest.raises(OSError, match=r"no space left on device: '/"):
                await admin.backup_store("broker-a", FOLDER, disk=disk)
            disk.before = lambda _call, _path: None
            assert not disk.exists(FOLDER / DESCRIPTION_NAME)
            again = FOLDER.with_name("again")
            await admin.backup_store("broker-a", again, disk=disk)

    async def test_the_broker_s_disk_that_rejects_says_so(self) -> None:
        async with asked("broken") as (broker, admin):

            def broken(call: str, path: Path) -> None:
                if call == "pread" and path.parent.name == "commitlog":
                    raise OSError(errno.EIO, "the medium is broken")

            broker.disk.before = broken
            with pytest.raises(ConnectionLostError, match=r"the broker's disk has rejected: .*the medium is broken"):
                await admin.backup_store("broker-a", FOLDER, disk=SimDisk())
            broker.disk.before = lambda _call, _path: None


class TestDescription:
    WHOLE = BackupDescription("b", 1, 2, 3, (BackedUpFile("version", 1, 1, 7), BackedUpFile("a/b", 2, 9, 8)))

    def test_it_comes_back(self) -> None:
        assert BackupDescription.decode(self.WHOLE.encode()) == self.WHOLE
        assert json.loads(self.WHOLE.encode())["files"][1] == {
            "path": "a/b", "size": 2, "fullSize": 9, "crc32": "00000008",
        }  # fmt: skip

    def test_every_changed_byte_is_noticed(self) -> None:
        content = self.WHOLE.encode()
        for at in range(len(content)):
            with pytest.raises(ValueError, match=r"\S"):
                BackupDescription.decode(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])

    def test_a_file_that_is_longer_than_in_the_store_is_none(self) -> None:
        wrong = replace(self.WHOLE, files=(*self.WHOLE.files, BackedUpFile("c", 2, 1, 0)))
        with pytest.raises(ValueError, match="longer than in the store"):
            BackupDescription.decode(wrong.encode())

    @pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "..", "a/../b", ".", "a\\b", "C:/a", "a\0"])
    def test_a_path_that_leads_elsewhere_is_rejected(self, path: str) -> None:
        with pytest.raises(ValueError, match="is no path of a file below the root of a store"):
            check_path(path)
