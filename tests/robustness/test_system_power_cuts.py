"""Real power cuts and real write errors, on an ext4 file system in a file (figure G2; failed fsync)."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ext4_image import IMAGE_BYTES, JOURNAL_BYTES, MIB, PAGE_BYTES, Ext4Image
from kills import QUEUES, TIMEOUT_S, TOPIC, read_queues
from numbered_load import Book, Sender, problems
from power_cuts import EXIT_DISK_FAILED, IN_FLIGHT, Moment, broker_on, run_power_cuts

from hourglass_local.waiting import eventually
from mqclient import Producer
from osenv import SeededRng

pytestmark = [pytest.mark.needs("loop device"), pytest.mark.processes, pytest.mark.timeout(300)]

SEED, ROUNDS = 1, 20
ACKNOWLEDGED_MIN = 1_000
ROOM_BYTES = JOURNAL_BYTES + 16 * MIB


def test_what_was_synced_is_there_after_a_cut_and_the_rest_is_gone(tmp_path: Path) -> None:
    with Ext4Image(tmp_path / "image") as image:
        descriptor = os.open(image.root / "file", os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, 2 * PAGE_BYTES)
            os.pwrite(descriptor, b"a" * PAGE_BYTES, 0)
            os.fsync(descriptor)
            os.pwrite(descriptor, b"b" * PAGE_BYTES, PAGE_BYTES)
            image.cut_power()
            with pytest.raises(OSError) as caught:
                os.fdatasync(descriptor)
            assert caught.value.errno == errno.EIO
        finally:
            os.close(descriptor)
        image.unmount()
        image.mount()
        assert (image.root / "file").read_bytes() == b"a" * PAGE_BYTES + bytes(PAGE_BYTES)
    assert not (tmp_path / "image" / "machine").is_mount()


def test_another_process_that_copies_all_mounts_does_not_keep_the_failed_file_system(tmp_path: Path) -> None:
    copy = 'read line; exec unshare --mount sh -c "echo copied; exec cat"'
    with subprocess.Popen(["sh", "-c", copy], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        with Ext4Image(tmp_path / "image") as image:
            (image.root / "file").write_bytes(b"a")
            os.sync()
            print("now", file=other.stdin, flush=True)
            assert other.stdout.readline() == "copied\n"
            image.cut_power()
            image.unmount()
            image.mount()
            assert (image.root / "file").read_bytes() == b"a"
        shutil.rmtree(tmp_path / "image")
        other.stdin.close()
    assert other.returncode == 0


def test_of_what_was_not_synced_any_pages_may_be_there_after_a_cut(tmp_path: Path) -> None:
    pages = 32
    with Ext4Image(tmp_path / "image") as image:
        path = image.root / "file"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, pages * PAGE_BYTES)
            os.fsync(descriptor)
            os.pwrite(descriptor, b"b" * pages * PAGE_BYTES, 0)
        finally:
            os.close(descriptor)
        image.write_back_some([path], SeededRng(1))
        image.commit_journal()
        image.cut_power()
        image.unmount()
        image.mount()
        content = path.read_bytes()
    found = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    assert set(found) == {b"b" * PAGE_BYTES, bytes(PAGE_BYTES)}
    assert sorted(found) != found
    assert sorted(found, reverse=True) != found


def test_what_was_synced_before_there_was_no_room_is_there(tmp_path: Path) -> None:
    """The kernel has to say so of every write for which there is none; a long one may have room for its beginning."""
    write_bytes = 25 * PAGE_BYTES
    with Ext4Image(tmp_path / "image", room_bytes=ROOM_BYTES) as image:
        path, written, synced = image.root / "file", hashlib.sha256(), 0
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, 2 * ROOM_BYTES)
            os.fsync(descriptor)
            while synced < ROOM_BYTES:
                data = bytes([1 + synced // write_bytes % 255]) * write_bytes
                os.pwrite(descriptor, data, synced)
                os.fdatasync(descriptor)
                written.update(data)
                synced += write_bytes
        except OSError as error:
            assert error.errno in {errno.EIO, errno.ENOSPC}  # noqa: PT017 - it may be any of these calls
        finally:
            os.close(descriptor)
        image.unmount()
        image.give_room(2 * IMAGE_BYTES)
        image.mount()
        assert 0 < synced < ROOM_BYTES
        assert hashlib.sha256(path.read_bytes()[:synced]).digest() == written.digest()


async def test_nothing_acknowledged_is_lost_by_20_power_cuts(tmp_path: Path) -> None:
    report = await run_power_cuts(tmp_path, SEED, ROUNDS)
    assert report.violations == ()
    assert report.rounds == ROUNDS
    assert report.acknowledged > ACKNOWLEDGED_MIN
    assert all(report.counts[moment.value] for moment in Moment)


async def test_a_broker_whose_writes_do_not_reach_the_disk_ends_with_code_3_and_has_lost_nothing(
    tmp_path: Path,
) -> None:
    book = Book()
    with Ext4Image(tmp_path / "image", room_bytes=ROOM_BYTES) as image:
        async with broker_on(image, tmp_path / "cluster") as cluster:
            (broker,) = cluster.brokers
            stop = asyncio.Event()
            async with Producer("numbers", cluster.url) as producer, asyncio.TaskGroup() as tasks:
                for number, in_flight in enumerate(IN_FLIGHT):
                    sender = Sender(number, TOPIC, number % QUEUES, in_flight, book, SEED)
                    tasks.create_task(sender.run(producer, stop))
                await eventually(lambda: not broker.running, TIMEOUT_S, "the broker has noticed and ended")
                stop.set()
            assert broker.exit_code == EXIT_DISK_FAILED, broker.tail()
            await broker.kill()
            image.unmount()
            image.give_room(2 * IMAGE_BYTES)
            image.mount()
            await broker.start()
            assert len(book.acknowledged) > ACKNOWLEDGED_MIN
            assert problems(book, await read_queues(cluster.broker_addresses[0])) == []
