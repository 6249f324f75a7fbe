"""The offsets of a broadcasting consumer on its own machine: crashes, damage, two processes (mechanism C2)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqclient import IllegalArgumentError, IllegalStateError, MessageQueue, RetryableError
from mqclient.consumer.broadcast_offsets import LocalFileOffsetStore, decode_offsets, encode_offsets
from osenv import RealDisk, SeededRng, SimDisk

QUEUES = [MessageQueue("prices", "broker-a", number) for number in range(3)]
OLD = {QUEUES[0]: 17, QUEUES[1]: 0}
NEW = {QUEUES[0]: 18, QUEUES[1]: 2, QUEUES[2]: 1 << 40}
HOME = Path("/home/app")
FOLDER = HOME / ".rocketmq_offsets/10.0.0.1@DEFAULT/screens"
FILE, BACKUP = FOLDER / "offsets.json", FOLDER / "offsets.json.bak"


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs(HOME)
    made.sync_dir(HOME.parent)
    made.sync_dir(HOME.parent.parent)
    return made


def store_on(disk: SimDisk, instance_name: str = "DEFAULT", group: str = "screens") -> LocalFileOffsetStore:
    return LocalFileOffsetStore(group, instance_name, "10.0.0.1", HOME / ".rocketmq_offsets", disk=disk)


async def saved(disk: SimDisk, *versions: dict[MessageQueue, int]) -> None:
    """What a consumer leaves behind that has saved these, one after the other."""
    store = store_on(disk)
    await store.load()
    for offsets in versions:
        await store.save(offsets)
    await store.close()


async def found(disk: SimDisk) -> dict[MessageQueue, int]:
    store = store_on(disk)
    try:
        return await store.load()
    finally:
        await store.close()


def overwrite(disk: SimDisk, path: Path, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


class TestLife:
    @pytest.mark.mechanism("C2")
    async def test_a_restart_goes_on_where_it_was(self, disk: SimDisk) -> None:
        assert await found(disk) == {}
        await saved(disk, OLD, NEW)
        assert await found(disk) == NEW
        assert decode_offsets(disk.contents()[BACKUP]) == OLD

    async def test_groups_and_instances_have_files_of_their_own(self, disk: SimDisk) -> None:
        stores = [store_on(disk), store_on(disk, "second"), store_on(disk, group="tickers")]
        for number, store in enumerate(stores):
            await store.load()
            await store.save({QUEUES[0]: number})
        assert [await found_again(store) for store in stores] == [{QUEUES[0]: number} for number in range(3)]

    async def test_a_second_consumer_is_told_what_to_change(self, disk: SimDisk) -> None:
        first, second = store_on(disk), store_on(disk)
        await first.load()
        for _ in range(2):
            with pytest.raises(IllegalStateError, match=r"another consumer .* offsets of screens .*instance_name"):
                await second.load()
        await first.save(OLD)
        await first.close()
        assert await second.load() == OLD
        await first.close()
        with pytest.raises(IllegalStateError, match="another consumer"):
            await first.load()

    async def test_saving_needs_an_open_file(self, disk: SimDisk) -> None:
        store = store_on(disk)
        with pytest.raises(IllegalStateError, match="are not open"):
            await store.save(OLD)
        await store.load()
        await store.close()
        with pytest.raises(IllegalStateError, match="are not open"):
            await store.save(OLD)

    @pytest.mark.parametrize("name", ["../../etc", "a/b", "a\\b", "a\0b"])
    def test_an_instance_name_that_is_no_folder_s_is_rejected(self, disk: SimDisk, name: str) -> None:
        with pytest.raises(IllegalArgumentError, match="instance_name"):
            store_on(disk, name)

    def test_without_a_directory_it_is_rocketmq_s(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        store = LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1")
        assert store.path == tmp_path / ".rocketmq_offsets/10.0.0.1@DEFAULT/screens/offsets.json"

    def test_a_system_without_a_home_is_told_what_to_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
        with pytest.raises(IllegalArgumentError, match="set local_offset_store_dir"):
            LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1")


async def found_again(store: LocalFileOffsetStore) -> dict[MessageQueue, int]:
    await store.close()
    return await store.load()


class TestCrashes:
    @pytest.mark.parametrize("seed", range(20))
    async def test_what_was_saved_outlives_the_power(self, disk: SimDisk, seed: int) -> None:
        await saved(disk, OLD)
        disk.crash(SeededRng(seed))
        assert await found(disk) == OLD

    @pytest.mark.parametrize("state", ["sound", "damaged"])
    async def test_a_crash_in_any_call_leaves_the_old_offsets_or_the_new_ones(self, state: str) -> None:
        """Of `load` and `save` alike; damaged: the .bak has to be used, and must not be lost in doing so."""
        calls = 0
        while True:
            disk = SimDisk()
            disk.make_dirs(HOME)
            await saved(disk, OLD, OLD)
            if state == "damaged":
                overwrite(disk, FILE, b"no offsets")
            for folder in (FOLDER, *FOLDER.parents):
                disk.sync_dir(folder)
            left = [calls]

            def stop(call: str, path: Path, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise PowerCutError

            disk.before = stop
            try:
                await saved(disk, NEW)
            except PowerCutError:
                disk.before = lambda _call, _path: None
            else:
                break
            for lost in disk.lost_states(SeededRng(calls), exhaustive_units_max=6, samples=30):
                assert await found(lost) in (OLD, NEW)
            calls += 1
        assert calls > 20

    async def test_a_disk_that_takes_nothing_is_an_error_and_the_next_save_tries_again(self, disk: SimDisk) -> None:
        store = store_on(disk)
        await store.load()
        await store.save(OLD)

        def full(call: str, path: Path) -> None:
            if call == "pwrite":
                raise OSError(28, "no space left on device")

        disk.before = full
        with pytest.raises(RetryableError, match=r"offsets of screens were not saved .* no space left"):
            await store.save(NEW)
        disk.before = lambda _call, _path: None
        assert decode_offsets(disk.contents()[FILE]) == OLD
        await store.save(NEW)
        assert decode_offsets(disk.contents()[FILE]) == NEW

    async def test_a_folder_that_cannot_be_made_is_said_so(self, disk: SimDisk) -> None:
        overwrite(disk, HOME / ".rocketmq_offsets", b"a file")
        with pytest.raises(IllegalStateError, match="offsets of screens cannot be kept in"):
            await found(disk)
        assert disk.locks == set()


class PowerCutError(Exception):
    """The machine is off."""


class TestDamage:
    async def test_the_previous_version_is_used_and_reported_once(
        self, disk: SimDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        await saved(disk, OLD, NEW)
        overwrite(disk, FILE, encode_offsets(NEW).replace(b":18", b":81"))
        with caplog.at_level(logging.ERROR, "mqclient.broadcast_offsets"):
            assert await found(disk) == OLD
            assert await found(disk) == OLD
        (record,) = caplog.records
        assert "offsets.json: the CRC does not match" in record.getMessage()
        assert "offsets.json.bak is used" in record.getMessage()

    async def test_a_lost_file_is_not_taken_for_a_first_start(
        self, disk: SimDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        await saved(disk, OLD, NEW)
        disk.unlink(FILE)
        assert await found(disk) == OLD
        assert "is lost or damaged" in caplog.text

    @pytest.mark.parametrize("backup", [None, b"", b"{}"])
    async def test_without_a_sound_version_it_does_not_begin_anew_by_itself(
        self, disk: SimDisk, backup: bytes | None
    ) -> None:
        await saved(disk, OLD)
        overwrite(disk, FILE, b"")
        if backup is not None:
            overwrite(disk, BACKUP, backup)
        for _ in range(2):
            with pytest.raises(IllegalStateError, match=r"are damaged \(offsets.json: .*or remove it to begin anew"):
                await found(disk)
        assert disk.locks == set()


HOLDER = """
import asyncio, sys
from pathlib import Path
from mqclient.consumer.broadcast_offsets import LocalFileOffsetStore
async def main():
    await LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1", Path(sys.argv[1])).load()
    print("loaded", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the file."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loaded\n"
        yield process
        process.kill()


class TestRealFiles:
    async def test_another_process_has_the_file_until_it_dies(
        self, tmp_path: Path, holder: subprocess.Popen[bytes]
    ) -> None:
        store = LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1", tmp_path)
        with pytest.raises(IllegalStateError, match="another consumer on this machine"):
            await store.load()
        holder.kill()
        holder.wait()
        assert await store.load() == {}
        await store.save(OLD)
        await store.close()
        assert decode_offsets((tmp_path / "10.0.0.1@DEFAULT/screens/offsets.json").read_bytes()) == OLD
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("disk")] == []

    async def test_files_are_written_beside_the_event_loop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads = set()
        replace = RealDisk.replace

        def note(self: RealDisk, *arguments: Any) -> None:
            threads.add(threading.current_thread())
            replace(self, *arguments)

        monkeypatch.setattr(RealDisk, "replace", note)
        store = LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1", tmp_path)
        await store.load()
        await store.save(OLD)
        await store.close()
        assert threads
        assert threading.main_thread() not in threads

    async def test_a_save_that_is_cancelled_is_finished_before_another_process_gets_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun, go_on = threading.Event(), threading.Event()
        fdatasync = os.fdatasync

        def slow(descriptor: int) -> None:
            begun.set()
            go_on.wait(10)
            fdatasync(descriptor)

        monkeypatch.setattr(os, "fdatasync", slow)
        store = LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1", tmp_path)
        await store.load()
        saving = asyncio.create_task(store.save(OLD))
        await asyncio.to_thread(begun.wait, 10)
        saving.cancel()
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await saving
        await closing
        other = LocalFileOffsetStore("screens", "DEFAULT", "10.0.0.1", tmp_path)
        assert await other.load() == OLD
        await other.close()
