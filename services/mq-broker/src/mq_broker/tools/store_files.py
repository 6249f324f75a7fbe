"""The files of a store in short: what is there, from where to where it goes, and what the small ones say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mq_broker.store.consume_queue import ENTRY_SIZE_MAX
from mq_broker.store.layout import StoreLayout
from mq_broker.tools.index_reader import IndexLengthError, IndexReader, index_names
from mq_broker.tools.queue_reader import QueueReader
from mq_broker.tools.small_state import SmallState
from mq_broker.tools.stored_files import StoredFiles, names_in
from mq_broker.tools.timer_check import read_timer
from osenv import Disk

View = dict[str, Any]


def describe_files(
    disk: Disk, layout: StoreLayout, state: SmallState, *, index_slots: int | None = None
) -> Iterator[View]:
    """One view for each part; `kind` says of which. Raises OSError."""
    log = StoredFiles(disk, layout.commit_log, layout.commit_log_file_bytes)
    yield {
        "kind": "commit_log", "files": log.file_count, "file_bytes": log.file_bytes,
        "begin": log.begin, "capacity_end": log.capacity_end, "faults": [*log.faults, *log.short],
    }  # fmt: skip
    yield {"kind": "version", "version": state.version, "fault": state.version_fault}
    yield {"kind": "checkpoint", **_checkpoint_fields(state), "fault": state.checkpoint_fault}
    yield {"kind": "watermark", "log_offsets": state.watermarks, "faults": state.watermark_faults}
    for document in state.documents:
        yield {"kind": "config", **document.to_dict()}
    for file in state.journal:
        yield {"kind": "journal", **file.to_dict()}
    yield from _queues(disk, layout.consume_queues)
    yield from _indexes(disk, layout.index, index_slots)
    yield from _timer(disk, layout)
    for name in state.put_aside:
        yield {"kind": "quarantine", "name": name}


def _checkpoint_fields(state: SmallState) -> View:
    if state.checkpoint is None:
        return {}
    fields = asdict(state.checkpoint)
    index = fields.pop("index")
    return fields | {f"index_{name}": value for name, value in index.items()}


def _queues(disk: Disk, folder: Path) -> Iterator[View]:
    for topic in disk.list_dir(folder):
        for queue_id in names_in(disk, folder / topic) or []:
            reader = QueueReader(disk, folder / topic / queue_id)
            end = _first_where(reader, lambda size: size == 0)
            begin = _first_where(reader, lambda size: size != ENTRY_SIZE_MAX)
            yield {
                "kind": "consume_queue", "topic": topic, "queue_id": queue_id,
                "first_entry": min(begin, end), "next_entry": end, "faults": [*reader.faults, *reader.short],
            }  # fmt: skip


def _first_where(reader: QueueReader, wanted: Callable[[int], bool]) -> int:
    """The first entry whose size is wanted; those that are not come before all that are."""
    low, high = reader.first, reader.capacity
    while low < high:
        middle = (low + high) // 2
        if wanted(reader.entry(middle)[1]):
            high = middle
        else:
            low = middle + 1
    return low


def _indexes(disk: Disk, folder: Path, slots: int | None) -> Iterator[View]:
    for name in index_names(disk, folder):
        view: View = {"kind": "index", "name": name}
        try:
            reader = IndexReader(disk, folder / name, slots=slots)
        except IndexLengthError as error:
            yield view | {"fault": str(error)}
        else:
            reader.close()
            yield view | asdict(reader.head) | {"slots": reader.size.slots, "entries": reader.size.entries}


def _timer(disk: Disk, layout: StoreLayout) -> Iterator[View]:
    manifest, fault = read_timer(disk, layout)
    if manifest is not None:
        blocks = sum(run.blocks for run in manifest.runs)
        yield {"kind": "timer", "covered": manifest.covered, "runs": len(manifest.runs), "blocks": blocks, "fault": ""}
    elif fault:
        yield {"kind": "timer", "fault": fault}


def text_of(view: View) -> str:
    """A view as one line for people."""
    fields = [f"{name}={value}" for name, value in view.items() if name != "kind" and value not in ("", [], None)]
    return f"{view['kind'].replace('_', ' ')}: {' '.join(fields)}"
