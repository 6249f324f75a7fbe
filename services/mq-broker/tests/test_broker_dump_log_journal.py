"""`dump_log` and the journal of consumers' progress."""

from __future__ import annotations

import json

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.store.layout import StoreLayout
from mq_broker.store.progress_journal import Entry, encode_entry
from mq_broker.testing import STORE_ROOT, incoming, produce, running_broker
from mq_broker.tools.dump_log import EXIT_DIFFERENT, EXIT_SAME, DumpOptions, dump
from osenv import SimClock, SimDisk

JOURNAL = StoreLayout(STORE_ROOT).config / "consumerOffset.journal.0000000001"


async def lived(*, clean_stop: bool = False) -> SimDisk:
    """Two entries in the journal; the document has none of it, unless the stop is clean."""
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, clean_stop=clean_stop) as broker:
        await produce(broker, incoming("t", [b"%d" % number for number in range(10)]))
        broker.offsets.commit("g", [("t", 0, Progress(2))])
        await clock.advance(0.1)
        broker.offsets.commit("g", [("t", 0, Progress(2, ((4, 7),)))])
        await clock.advance(0.1)
    disk.kill()
    return disk


def look(disk: SimDisk, *, files: bool = False, as_json: bool = False) -> tuple[int, list[str]]:
    lines: list[str] = []
    options = DumpOptions(STORE_ROOT, verify=not files, files=files, as_json=as_json, index_slots=64)
    return dump(disk, options, lines.append), lines


def append(disk: SimDisk, data: bytes) -> None:
    file = disk.open(JOURNAL)
    file.pwrite(data, file.size())


async def test_files_shows_what_is_in_it() -> None:
    disk = await lived()
    append(disk, b"HPRG")
    views = [json.loads(line) for line in look(disk, files=True, as_json=True)[1]]
    assert [view for view in views if view["kind"] == "journal"] == [
        {
            "kind": "journal", "name": JOURNAL.name, "entries": 2, "first_data_version": 1, "last_data_version": 2,
            "torn_bytes": 4, "faults": [],
        }
    ]  # fmt: skip
    assert not [view for view in views if view["kind"] == "config" and view["fault"]]


@pytest.mark.parametrize("clean_stop", [True, False])
async def test_a_whole_one_is_no_difference(*, clean_stop: bool) -> None:
    assert look(await lived(clean_stop=clean_stop))[0] == EXIT_SAME


async def test_a_torn_tail_is_a_note() -> None:
    disk = await lived()
    append(disk, b"HPRG")
    code, lines = look(disk)
    assert (code, f"note: config: {JOURNAL.name} ends with 4 bytes that are no entry" in lines) == (EXIT_SAME, True)


async def test_damage_before_an_entry_is_a_difference() -> None:
    disk = await lived()
    disk.open(JOURNAL).pwrite(b"\xff", 20)
    code, lines = look(disk)
    assert code == EXIT_DIFFERENT
    assert f"difference: config: {JOURNAL.name}: 54 bytes at 0 are no entry" in lines


async def test_entries_out_of_order_are_a_difference() -> None:
    disk = await lived()
    append(disk, encode_entry(Entry(1, "g", "t", 0, Progress(2))))
    code, lines = look(disk)
    assert code == EXIT_DIFFERENT
    assert f"difference: config: {JOURNAL.name}: its entries are not in the order of their data versions" in lines


@pytest.mark.parametrize(
    ("clean_stop", "data_version", "seen"), [(True, 9, "difference"), (False, 9, "note"), (True, 2, "")]
)
async def test_progress_beyond_the_queue_counts_when_the_document_is_older(
    *, clean_stop: bool, data_version: int, seen: str
) -> None:
    disk = await lived(clean_stop=clean_stop)
    append(disk, encode_entry(Entry(data_version, "g", "t", 0, Progress(2, ((4, 12),)))))
    code, lines = look(disk)
    assert code == (EXIT_DIFFERENT if seen == "difference" else EXIT_SAME)
    text = "config: the journal: group g is at 12 of t/0, which ends at 10"
    assert [line for line in lines if text in line] == ([f"{seen}: {text}"] if seen else [])


async def test_a_finished_range_beyond_the_queue_in_the_document_is_a_difference() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"0", b"1"]))
        broker.consumer_offsets.put("g", "t", 0, Progress(0, ((1, 3),)))
    code, lines = look(disk)
    assert code == EXIT_DIFFERENT
    assert "difference: config: consumerOffset.json: group g is at 3 of t/0, which ends at 2" in lines
