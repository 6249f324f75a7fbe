"""What goes to stdout: tables for people, one JSON document for programs; times as an operator writes and reads them.

Invariants: on a terminal, a table that does not fit its width becomes a block of lines for each row, and NO_COLOR turns
every escape sequence off; anywhere else every row is one line, without colours. Field names and shapes of the documents
stand in docs/reference/mqadmin.md. The text of strangers is made fit for a terminal and for JSON. Inside, times are
milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

HEX, UTF_8 = "hex", "utf-8"
UNBOUNDED = 1_000_000  # columns
ALLOWED = "now, milliseconds since 1970, yyyy-MM-dd#HH:mm:ss:SSS, or ISO 8601 such as 2026-01-31T12:00:00Z"

Cell = str | int | bool | None
Document = Mapping[str, Any]

_EPOCH = datetime.fromtimestamp(0, UTC)
_ROCKETMQ = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")


@dataclass
class Table:
    """Numbers stand to the right; None is `-`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    footer: Sequence[str] = ()


def show(document: Document, *tables: Table, as_json: bool) -> None:
    """The document, or the tables that tell the same."""
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for number, table in enumerate(tables):
        if number:
            typer.echo()
        show_table(table)


def show_table(table: Table, *, err: bool = False) -> None:
    """One table on stdout, or on stderr."""
    console = Console(stderr=err)
    if table.title:
        typer.echo(printable(table.title), err=err)
    if console.is_terminal:
        head = "" if console.no_color else "bold"
        made = _rich(table, box.SIMPLE_HEAD, head)
        unbounded = console.options.update(max_width=UNBOUNDED)
        if Measurement.get(console, unbounded, made).maximum <= console.width:
            console.print(made)
        else:
            for row in table.rows:
                console.print(
                    _rich(Table(("", ""), list(zip(table.columns, row, strict=True))), None, head, heads=False)
                )
                console.print()
    else:
        plain = Console(file=io.StringIO(), width=UNBOUNDED, color_system=None, force_terminal=False)
        with plain.capture() as capture:
            plain.print(_rich(table, None))
        typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()), err=err)
    for line in table.footer:
        typer.echo(printable(line), err=err)


def _rich(table: Table, edges: box.Box | None, head: str = "", *, heads: bool = True) -> RichTable:
    made = RichTable(
        box=edges,
        pad_edge=False,
        header_style=head,
        padding=(0, 2, 0, 0) if edges is None else (0, 1),
        show_header=heads,
    )
    for index, name in enumerate(table.columns):
        numbers = bool(table.rows) and all(_is_number(row[index]) for row in table.rows)
        made.add_column(
            name,
            style="" if heads or index else head,
            justify="right" if numbers else "left",
            overflow="fold",
            no_wrap=edges is None and heads,
        )
    for row in table.rows:
        made.add_row(*(Text(_cell(value)) for value in row))
    return made


def _is_number(value: Cell) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _cell(value: Cell) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == "" else printable(str(value))


def offset_or_none(offset: int) -> int | None:
    """None for -1: a group that has never committed one."""
    return None if offset < 0 else offset


class JsonStream:
    """One JSON document with a list that is written as it grows: `{"name": [...]}`. A context manager."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def add(self, item: Document) -> None:
        """The next element of the list."""
        typer.echo(f"{',' if self._count else ''}\n{json.dumps(item, ensure_ascii=False)}", nl=False)
        self._count += 1

    def __enter__(self) -> Self:
        typer.echo(f"{{{json.dumps(self._name)}: [", nl=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        typer.echo("\n]}")  # also after an error: the exit code tells of it


def lines(text: str, indent: str) -> Iterable[str]:
    """A text of several lines, each indented and fit for a terminal."""
    return (indent + printable(line, keep="\t") for line in text.removesuffix("\n").split("\n"))


def body_text(body: bytes, charset: str = UTF_8) -> tuple[str, str]:
    """The body as text and what that is: the charset, or `hex` digits for a body that is no text of it."""
    try:
        return body.decode(charset), charset
    except UnicodeError:
        return body.hex(), HEX


def printable(text: str, keep: str = "") -> str:
    """The text with everything escaped that a terminal could take for a command, but for the characters of `keep`."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970. A time without a zone is of this machine's, as in RocketMQ. Raises BadParameter."""
    text = text.strip()
    if text == "now":
        return now_ms
    if text.isascii() and text.isdigit():
        return int(text)
    match = _ROCKETMQ.fullmatch(text)
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2]}.{match[3]}" if match else text)
        return round((moment if moment.tzinfo else moment.astimezone()).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"{text!r} is no time; write {ALLOWED}") from None


def parse_moment(text: str, now_ms: int) -> datetime:
    """As `parse_time`, for calls that take a datetime. Raises BadParameter."""
    try:
        return _EPOCH + timedelta(milliseconds=parse_time(text, now_ms))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is no time; write {ALLOWED}") from None


def iso_time(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_text(ms: int, *, beside_ms: int | None = None) -> str:
    """For people, and for `parse_time`; the date is left out beside a time of the same day. `-` for 0."""
    if not ms:
        return "-"
    date, _, time = iso_time(ms).partition("T")
    if beside_ms is not None and iso_time(beside_ms).startswith(date):
        return time
    return f"{date} {time}"


def time_fields(name: str, ms: int) -> dict[str, str | int | None]:
    """A time in a JSON document: `name` as ISO 8601 and `name_ms` as a number; null for 0, which is no time."""
    return {name: iso_time(ms) if ms else None, f"{name}_ms": ms or None}


def duration_text(ms: int) -> str:
    """A length of time for people, in the unit that fits: `14 ms`, `2.5 s`, `30 min`, `2 h`."""
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.3g} {unit}"
    return f"{ms} ms"
