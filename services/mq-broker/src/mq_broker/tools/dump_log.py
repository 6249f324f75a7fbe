"""Shows a store on disk: `python -m mq_broker.tools.dump_log STORE [--verify] [--files] [--json] ...`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mq_broker.core.halves import is_committed
from mq_broker.store.consume_queue import ENTRY_SIZE_MAX
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import Blank, Damage
from mq_broker.tools.findings import Finding
from mq_broker.tools.state_check import HELD, SmallState, read_small_state
from mq_broker.tools.stored_files import (
    IndexLengthError,
    IndexReader,
    QueueReader,
    StoredFiles,
    Tail,
    first_from,
    index_names,
    names_in,
    read_log,
)
from mq_broker.tools.verify import read_timer, verify
from mqproto.names import CHANGES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, RECALLED_TOPIC, SCHEDULE_TOPIC, WAITING_TOPICS
from mqproto.properties import (
    DUE_TIMESTAMP,
    KEYS,
    REAL_QID,
    REAL_TOPIC,
    SCHEDULE_POSITION,
    TAGS,
    TRANSACTION_STATE,
    UNIQ_KEY,
    PropertiesError,
    decode_properties,
)
from mqproto.record import Record
from osenv import Disk, RealDisk

PROGRAM = "dump_log"
EXIT_SAME, EXIT_DIFFERENT, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The selection to show. `start` is a log offset; `count` and `topic` are None for all.

    Reads, and writes nothing: a broker may run beside it, and then what is seen may move. Exit codes: 0 shown, or
    verified without a difference; 1 a difference, or a disk that cannot be read; 2 a bad command line, or no store
    there.
    """

    store: Path
    verify: bool = False
    files: bool = False
    as_json: bool = False
    start: int = 0
    count: int | None = None
    topic: str | None = None
    index_slots: int | None = None


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = _parse(arguments)
    disk = RealDisk()
    try:
        return dump(disk, options, print)
    except OSError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_DIFFERENT
    finally:
        disk.close()


def dump(disk: Disk, options: DumpOptions, write: Callable[[str], None]) -> int:
    """Show what `options` ask for, line by line; returns the exit code. Raises OSError."""
    layout = StoreLayout(options.store)
    if not any(disk.exists(path) for path in (layout.commit_log, layout.config, layout.checkpoint)):
        print(f"{PROGRAM}: there is no store in {options.store}", file=sys.stderr)
        return EXIT_USAGE
    state = read_small_state(disk, layout)
    show = _Output(write, as_json=options.as_json)
    show.store(options.store, state)
    if options.files:
        for view in describe_files(disk, layout, state, index_slots=options.index_slots):
            show.line(view, text_of(view))
    if options.verify:
        verdict = verify(disk, layout, state, show.finding, index_slots=options.index_slots)
        show.line({"kind": "verdict", **asdict(verdict)}, str(verdict))
        return EXIT_DIFFERENT if verdict.differences else EXIT_SAME
    if not options.files:
        _dump_log(StoredFiles(disk, layout.commit_log, layout.commit_log_file_bytes), options, state, show)
    return EXIT_SAME


def _dump_log(files: StoredFiles, options: DumpOptions, state: SmallState, show: _Output) -> None:
    try:
        start = files.begin
        if options.start:
            wanted = max(options.start, files.begin)
            first = first_from(files, wanted) if wanted < files.data_end else None
            if first is None:
                show.note(f"nothing begins at {options.start} or behind it")
                return
            if first != options.start:
                show.note(f"nothing begins at {options.start}; going on at {first}")
            start = first
        for found in _limited(files, start, options, state):
            if isinstance(found, Record):
                view = RecordView.of(found)
                show.line({"kind": "record", **view.to_dict()}, str(view))
            else:
                show.line({"kind": type(found).__name__.lower(), **asdict(found)}, _text(found))
    finally:
        files.close()


def _limited(
    files: StoredFiles, start: int, options: DumpOptions, state: SmallState
) -> Iterator[Record | Blank | Damage | Tail]:
    left = options.count
    for found in read_log(files, start, state.durable_end):
        if isinstance(found, Record):
            if options.topic not in (None, found.topic):
                continue
            if left is not None:
                if left == 0:
                    return
                left -= 1
        yield found


def _text(found: Blank | Damage | Tail) -> str:
    """A line of the log that is no record."""
    if isinstance(found, Blank):
        return f"{found.log_offset:>12}  {found.size:>6} B  blank: the rest of the file"
    if isinstance(found, Damage):
        return f"{found.log_offset:>12}  {found.size:>6} B  DAMAGED up to {found.end - 1}: {found.reason}"
    torn = f", TORN: {found.written} B that are no record ({found.reason})" if found.written else ""
    return f"{found.log_offset:>12}  end of the log{torn}"


class _Output:
    """Lines for people, or one JSON object a line."""

    def __init__(self, write: Callable[[str], None], *, as_json: bool) -> None:
        self._write, self._as_json = write, as_json

    def line(self, view: dict[str, Any], text: str) -> None:
        self._write(json.dumps(view) if self._as_json else text)

    def store(self, root: Path, state: SmallState) -> None:
        marks = [f"lock {state.lock}"]
        if state.lock == HELD:
            marks.append("a broker is at work, what is seen may move")
        elif state.was_open:
            marks.append("the last stop was not clean")
        view = {"kind": "store", "root": str(root), "lock": state.lock, "was_open": state.was_open}
        self.line(view | {"durable_end": state.durable_end}, f"store: {root}, {'; '.join(marks)}")

    def note(self, text: str) -> None:
        self.line({"kind": "note", "text": text}, f"note: {text}")

    def finding(self, finding: Finding) -> None:
        self.line(finding.to_dict(), str(finding))


def _parse(arguments: list[str] | None) -> DumpOptions:
    parser = argparse.ArgumentParser(prog=f"python -m mq_broker.tools.{PROGRAM}", description="A look into a store.")
    parser.add_argument("store", type=Path, help="the folder of storePathRootDir")
    parser.add_argument("--verify", action="store_true", help="compare everything with the log; 1 when it differs")
    parser.add_argument("--files", action="store_true", help="what files there are and what the small ones say")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object a line")
    parser.add_argument("--from", type=_whole_number, default=0, dest="start", metavar="OFFSET", help="a log offset")
    parser.add_argument("--count", type=_whole_number, metavar="N", help="so many records at the most")
    parser.add_argument("--topic", metavar="T", help="records of this topic only")
    parser.add_argument(
        "--index-slots", type=_whole_number, metavar="N", help="of index files without four entries a slot"
    )
    options = parser.parse_args(arguments)
    options.store = options.store.absolute()
    return DumpOptions(**vars(options))


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


PREVIEW_BYTES = 32


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record of the log as a person wants to see it, in names and plain values.

    Times are milliseconds since 1970; sizes are bytes; `state` is empty for an ordinary message.

    Invariant: whatever a client has put into a record, the text made of it is one line without control characters.
    """

    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    tag: str
    keys: str
    unique_key: str
    reconsume_times: int
    body_bytes: int
    body_preview: str
    state: str

    @classmethod
    def of(cls, record: Record) -> RecordView:
        """The view of a record, also of one whose properties cannot be read."""
        try:
            properties = decode_properties(record.properties)
            state = _state(record, properties)
        except PropertiesError as error:
            properties, state = {}, f"properties cannot be read: {error}"
        return cls(
            record.log_offset,
            record.size,
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.store_timestamp_ms,
            properties.get(TAGS, ""),
            properties.get(KEYS, ""),
            properties.get(UNIQ_KEY, ""),
            record.reconsume_times,
            len(record.body),
            preview(record.body),
            state,
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{self.log_offset:>12}  {self.size:>6} B  {self.topic}/{self.queue_id} #{self.queue_offset}",
            time_text(self.store_timestamp_ms),
            *(f"{name}={value}" for name, value in self._names() if value),
            f"body {self.body_bytes} B '{self.body_preview}'",
        ]
        return one_line("  ".join([*parts, f"[{self.state}]"] if self.state else parts))

    def _names(self) -> list[tuple[str, str]]:
        times = str(self.reconsume_times) if self.reconsume_times else ""
        return [("tag", self.tag), ("keys", self.keys), ("unique", self.unique_key), ("reconsumed", times)]


def _state(record: Record, properties: dict[str, str]) -> str:
    """What the queue itself means by this record, if anything."""
    target = f"{properties.get(REAL_TOPIC, '?')}/{properties.get(REAL_QID, '?')}"
    if record.topic == HALF_TOPIC:
        return f"half message for {target}"
    if record.topic == OP_HALF_TOPIC:
        return f"op: half #{record.body.decode(errors='replace')} ended {properties.get(TRANSACTION_STATE, '?')}"
    if record.topic in WAITING_TOPICS:
        due = properties.get(DUE_TIMESTAMP, "")
        text = time_text(int(due)) if due.isascii() and due.isdigit() else "?"
        by = f"by level {record.queue_id + 1}" if record.topic == SCHEDULE_TOPIC else "by the timer"
        instead = f", in place of {properties[SCHEDULE_POSITION]}" if SCHEDULE_POSITION in properties else ""
        return f"delayed {by} until {text} for {target}{instead}"
    if record.topic == RECALLED_TOPIC:
        return f"taken back, was delayed at {properties.get(SCHEDULE_POSITION, '?')}"
    if record.topic == CHANGES_TOPIC:
        return "changed by an operator"
    if SCHEDULE_POSITION in properties:
        return f"delivered, was delayed at {properties[SCHEDULE_POSITION]}"
    if is_committed(record):
        return f"committed, was half #{record.prepared_transaction_offset}"
    return ""


def preview(body: bytes) -> str:
    """The beginning of a body as text."""
    text = body[:PREVIEW_BYTES].decode(errors="replace")
    return one_line(text) + ("..." if len(body) > PREVIEW_BYTES else "")


def one_line(text: str) -> str:
    """The text with a dot for each character that a terminal would not print."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "." for char in text)


def time_text(timestamp_ms: int) -> str:
    """The time in UTC, or the bare number when no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


# The files of a store in short: what is there, from where to where it goes, and what the small ones say.

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


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, as every tool that prints lines
    sys.exit(main())
