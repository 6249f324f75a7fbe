"""A look into a store on disk: `python -m mq_broker.tools.dump_log STORE [--verify] [--files] [--json] ...`.

Reads, and writes nothing: a broker may run beside it, and then what is seen may move. Exit codes: 0 shown, or verified
without a difference; 1 a difference, or a disk that cannot be read; 2 a bad command line, or no store there.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import Blank, Damage
from mq_broker.tools.findings import Finding
from mq_broker.tools.log_reader import Tail, first_from, read_log
from mq_broker.tools.record_view import RecordView
from mq_broker.tools.small_state import HELD, SmallState, read_small_state
from mq_broker.tools.store_files import describe_files, text_of
from mq_broker.tools.stored_files import StoredFiles
from mq_broker.tools.verify import verify
from mqproto.record import Record
from osenv import Disk, RealDisk

PROGRAM = "dump_log"
EXIT_SAME, EXIT_DIFFERENT, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is to be shown. `start` is a log offset; `count` and `topic` are None for all."""

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


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, as every tool that prints lines
    sys.exit(main())
