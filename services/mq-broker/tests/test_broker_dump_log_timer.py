"""`dump_log` and the order of due times."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mq_broker.schedule.timer_runs import (
    BLOCK_KEYS,
    KEY,
    MANIFEST_NAME,
    Manifest,
    RunEntry,
    encode_blocks,
    encode_manifest,
)
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import STORE_ROOT, produce, running_broker, timed
from mq_broker.tools.dump_log import EXIT_DIFFERENT, EXIT_SAME, DumpOptions, dump
from osenv import SimClock, SimDisk
from osenv.disk import replace_file

TIMER = StoreLayout(STORE_ROOT).timer
RUN = TIMER / "0000000001"
COUNT = 20


async def lived(*, clean_stop: bool = True) -> SimDisk:
    """Twenty messages wait, the later ones for less time; the first that are due are delivered."""
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, clean_stop=clean_stop) as broker:
        for number in range(COUNT):
            await produce(broker, timed("t", b"%d" % number, delay_ms=100_000 - 1_000 * number, unique_id=f"m{number}"))
        await clock.advance(85)
    disk.kill()
    return disk


def look(disk: SimDisk, *, files: bool = False, as_json: bool = False) -> tuple[int, list[str]]:
    lines: list[str] = []
    options = DumpOptions(STORE_ROOT, verify=not files, files=files, as_json=as_json, index_slots=64)
    return dump(disk, options, lines.append), lines


def put(disk: SimDisk, manifest: Manifest, **runs: bytes) -> None:
    """Runs by their number, and a manifest."""
    for name, data in runs.items():
        replace_file(disk, TIMER / name.removeprefix("_").rjust(10, "0"), data, keep_previous=False)
    replace_file(disk, TIMER / MANIFEST_NAME, encode_manifest(manifest, 0), keep_previous=False)


def keys(offsets: range) -> list[bytes]:
    return [KEY.pack(5, offset) for offset in offsets]


ONE = Manifest(COUNT, (RunEntry(1, 1, 0),))


async def test_files_shows_how_much_there_is() -> None:
    disk = await lived()
    views = [json.loads(line) for line in look(disk, files=True, as_json=True)[1]]
    expected = {"kind": "timer", "covered": COUNT, "runs": 1, "blocks": 1, "fault": ""}
    assert [view for view in views if view["kind"] == "timer"] == [expected]
    file = disk.open(TIMER / MANIFEST_NAME)
    file.pwrite(b"3", 18)
    assert "timer: fault=the CRC does not match" in look(disk, files=True)[1]


@pytest.mark.parametrize("clean_stop", [True, False])
async def test_a_whole_one_is_no_difference(*, clean_stop: bool) -> None:
    code, lines = look(await lived(clean_stop=clean_stop))
    assert (code, [line for line in lines if "timer" in line]) == (EXIT_SAME, [])


DAMAGES: dict[str, Callable[[SimDisk], object]] = {
    "0000000001, block 0: the CRC does not match": lambda disk: disk.open(RUN).pwrite(b"\xff", 50),
    "0000000001: the file is missing": lambda disk: disk.unlink(RUN),
    "runs.json: the CRC does not match": lambda disk: disk.open(TIMER / MANIFEST_NAME).pwrite(b"3", 18),
    "0000000009 is a file that runs.json does not name": lambda disk: disk.open(TIMER / "0000000009", create=True),
    "tells of 21 messages; the queue ends at 20": lambda disk: put(
        disk, Manifest(21, ONE.runs), _1=encode_blocks(1, 0, keys(range(COUNT)))
    ),
    "0000000001: 2 keys are out of order, or of messages from 20 on": lambda disk: put(
        disk, ONE, _1=encode_blocks(1, 0, [*keys(range(COUNT)), KEY.pack(5, 3), KEY.pack(5, COUNT)])
    ),
    "3 messages wait and are in no run, the first is number 2 of the queue": lambda disk: put(
        disk, ONE, _1=encode_blocks(1, 0, [*keys(range(2)), *keys(range(5, COUNT))])
    ),
    "10 messages wait and are in no run, the first is number 0 of the queue": lambda disk: put(
        disk,
        Manifest(COUNT, (RunEntry(1, 2, 1),)),
        _1=encode_blocks(1, 0, [*[KEY.pack(4, at % COUNT) for at in range(BLOCK_KEYS)], *keys(range(10, COUNT))]),
    ),
}


@pytest.mark.parametrize("sentence", DAMAGES)
async def test_what_is_not_so_is_a_difference(sentence: str) -> None:
    disk = await lived()
    DAMAGES[sentence](disk)
    code, lines = look(disk)
    assert code == EXIT_DIFFERENT
    assert [line for line in lines if line.startswith("difference: timer: ") and sentence in line], lines


async def test_files_of_a_write_that_did_not_end_are_a_note() -> None:
    disk = await lived(clean_stop=False)
    disk.make_dirs(TIMER)
    disk.open(TIMER / "0000000009", create=True)
    code, lines = look(disk)
    assert code == EXIT_SAME
    assert "note: timer: 0000000009 is a file that runs.json does not name" in lines


async def test_a_strangers_file_is_a_note() -> None:
    disk = await lived()
    disk.open(TIMER / "notes.txt", create=True)
    assert "note: timer: notes.txt is a file that runs.json does not name" in look(disk)[1]
