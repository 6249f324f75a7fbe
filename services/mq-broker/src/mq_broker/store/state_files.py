"""The broker's small state as files (mechanism S5): each with its previous version beside it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from osenv import Disk, replace_file
from osenv.disk import read_file

log = logging.getLogger(__name__)


class State(Protocol):
    """Something that is kept as one JSON document."""

    @property
    def data_version(self) -> int:
        """Grows with every change."""

    def to_json(self) -> dict[str, Any]:
        """The document."""

    def load_json(self, document: dict[str, Any]) -> None:
        """Take over a document; raises KeyError, TypeError or ValueError when it is not of this form."""


@runtime_checkable
class LargeState(State, Protocol):
    """One whose document takes long to make."""

    def frozen(self) -> Callable[[], dict[str, Any]]:
        """What makes the document of this moment, as `to_json` would now; later, once, and in another thread."""


class Journal(Protocol):
    """What has changed of a state since its document was written; see `ProgressJournal`."""

    def replay(self, covered: int | None) -> None:
        """Bring the state up to date that a document of data version `covered` has told; None: it is not ours."""

    async def flush(self) -> bool:
        """Have everything that has changed on disk, on return; False when the disk has could not write it.

        Raises SyncError.
        """

    async def documented(self, covered: int) -> None:
        """A document has been written, and the one before it has everything up to `covered`."""

    def close(self) -> None:
        """Give the files back."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as it was at one moment."""

    name: str
    version: int
    encode: Callable[[], bytes]  # takes as long as the state is large; in any thread


class StateFiles:
    """States by file name. A state is written when its data version has moved since the last time.

    Invariant: a document that was found damaged never takes the place of the one before it.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        states: Mapping[str, State],
        log_end: Callable[[], int],
        *,
        rebuilt_from_log: frozenset[str],
        optional: frozenset[str],
    ) -> None:
        self._disk, self._folder, self._states, self._log_end = disk, folder, dict(states), log_end
        self._told_by_log, self._dispensable = rebuilt_from_log, optional
        self.not_current: frozenset[str] = frozenset()  # after `load`: those of which the newest file could not be read
        # After `load`: up to which log offset the documents that were read have everything; RocketMQ's do not say it,
        # and are taken as they are.
        self.covered: dict[str, int] = {}
        self._journals: dict[str, Journal] = {}
        self._written: dict[str, int] = {}
        self._newest: dict[str, int] = {}  # data version of the newest document that can be read
        self._damaged: set[str] = set()  # of these the newest file cannot be read
        self._writing = {name: asyncio.Lock() for name in self._states}

    def keep_journal(self, name: str, journal: Journal) -> None:
        """From the start on the state called `name` has a journal."""
        self._journals[name] = journal

    def remove(self, names: Iterable[str]) -> None:
        """Before `load`: these begin anew, durably, and the log has to tell them. Raises OSError."""
        for name in names:
            for path in (self._folder / name, self._folder / f"{name}.bak"):
                if self._disk.exists(path):
                    self._disk.unlink(path)
        self._disk.sync_dir(self._folder)

    def cover_at_most(self, log_offset: int) -> None:
        """Before `load`: the log is about to end there, so no document says that it covers more, durably on return.

        Otherwise one that is read later, because the newest is damaged, would leave out changes that other records at
        the same offsets make. Raises OSError.
        """
        for name in self._states:
            for path in (self._folder / name, self._folder / f"{name}.bak"):
                document = read_document(self._disk, path)
                if document is not None and int(document.get(LOG_OFFSET, 0)) > log_offset:
                    write_document(self._disk, path, encode_document(document, log_offset), keep_previous=False)

    def load(self) -> list[str]:
        """Read every state; returns the names of those that the log has to complete.

        These are the ones without a readable file, and of those that the log can tell the ones whose file is damaged
        or lost, so that its previous version had to do. A optional one is not worth the reading. Raises OSError.
        """
        paths = {name: self._load(name, state) for name, state in self._states.items()}
        self.not_current = frozenset(name for name, path in paths.items() if path != self._folder / name)
        self._damaged = set(self.not_current)
        incomplete = [
            name for name, path in paths.items() if path is None or name in self.not_current & self._told_by_log
        ]
        return [name for name in incomplete if name not in self._dispensable]

    def _load(self, name: str, state: State) -> Path | None:
        """The file that the state was read from, None when there is none. Its journal has brought it up to date."""
        path = self._folder / name
        covered: int | None = -1
        found = None
        for candidate in (path, path.with_name(name + ".bak")):
            document = self._load_document(candidate, state)
            if document is not None:
                found = candidate
                self._newest[name] = state.data_version
                covered = state.data_version if FORMAT_VERSION in document else None
                self.covered[name] = int(document.get(LOG_OFFSET, sys.maxsize))
                break
        if name in self._journals:
            self._journals[name].replay(covered)
        return found

    def _load_document(self, path: Path, state: State) -> dict[str, Any] | None:
        """The document that the state has taken over; None when it could not."""
        document = read_document(self._disk, path)
        if document is not None:
            try:
                state.load_json(document)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                log.error("%s is not of the form it should have: %r", path, error)  # noqa: TRY400
                return None
        return document

    def snapshot(self) -> list[Snapshot]:
        """What all the states that have changed say at this moment."""
        return [
            self._snapshot(name)
            for name, state in self._states.items()
            if state.data_version != self._written.get(name)
        ]

    def current(self) -> dict[str, bytes]:
        """What each state says at this moment, as its document, by name."""
        return {name: self._snapshot(name).encode() for name in self._states}

    async def write(self, snapshots: Sequence[Snapshot]) -> None:
        """Have the snapshots on disk, on return; one that is older than what is there already is left out."""
        for snapshot in snapshots:
            async with self._writing[snapshot.name]:
                if snapshot.version > self._written.get(snapshot.name, -1):
                    await self._write(snapshot)

    async def rewrite(self, name: str) -> None:
        """Have what one state says now on disk as its document, on return."""
        await self.write([self._snapshot(name)])

    async def persist(self, name: str) -> None:
        """Have what one state says now on disk, on return: in its journal, if it has one that takes it."""
        if name not in self._journals or not await self._journals[name].flush():
            await self.rewrite(name)

    def close(self) -> None:
        """Give the journals' files back."""
        for journal in self._journals.values():
            journal.close()

    async def _write(self, snapshot: Snapshot) -> None:
        name, journal = snapshot.name, self._journals.get(snapshot.name)
        if journal is not None:
            await journal.flush()
        keep_previous = name not in self._damaged
        await self._disk.offload(self._write_file, snapshot, keep_previous)
        self._written[name] = snapshot.version
        self._damaged.discard(name)
        if journal is not None:
            await journal.documented(self._newest.get(name, -1))
        self._newest[name] = snapshot.version

    def _write_file(self, snapshot: Snapshot, keep_previous: bool) -> None:
        content = snapshot.encode()
        write_document(self._disk, self._folder / snapshot.name, content, keep_previous=keep_previous)

    def _snapshot(self, name: str) -> Snapshot:
        state, log_end = self._states[name], self._log_end()
        if isinstance(state, LargeState):
            document = state.frozen()
            return Snapshot(name, state.data_version, lambda: encode_document(document(), log_end))
        content = state.to_json()
        return Snapshot(name, state.data_version, lambda: encode_document(content, log_end))


# Small state as JSON files under config/, each with its previous version beside it (mechanism S5).
#
# Each document carries its own CRC, so that a damaged digit is noticed. Documents without one come from RocketMQ.


LOG_OFFSET = "logOffset"  # every document names the log offset that it covers
FORMAT_VERSION = "formatVersion"
FORMAT = 1
_BARE_NUMBER = re.compile(rb"([{,]\s*)(\d+)\s*:")
CRC32 = "crc32"  # the last field: eight hexadecimal digits over the whole file, taken while they are zeros
_CRC_HEAD, _CRC_DIGITS, _CRC_TAIL = f'"{CRC32}": "'.encode(), 8, b'"\n}\n'


class NewerFormatError(ValueError):
    """The document is whole, and of a version that this program does not know."""

    def __init__(self, version: int, known: int) -> None:
        super().__init__(f"format version {version}; this broker reads version {known}")
        self.version, self.known = version, known


def encode_document(document: dict[str, Any], log_offset: int) -> bytes:
    """The file's bytes."""
    fields = {**document, LOG_OFFSET: log_offset, FORMAT_VERSION: FORMAT, CRC32: "0" * _CRC_DIGITS}
    lines = ",\n".join(f" {json.dumps(name)}: {_json(value)}" for name, value in fields.items())
    data = f"{{\n{lines}\n}}\n".encode()
    digits_at = len(data) - len(_CRC_TAIL) - _CRC_DIGITS
    return data[:digits_at] + b"%08x" % zlib.crc32(data) + _CRC_TAIL


def _json(value: Any) -> str:
    """As json.dumps, an entry of a table at a time: one call of it lets no other thread run until it is over."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{" + ", ".join([f"{json.dumps(str(name))}: {json.dumps(entry)}" for name, entry in value.items()]) + "}"


def decode_document(data: bytes) -> dict[str, Any]:
    """The inverse. Raises NewerFormatError, and ValueError when the bytes are damaged."""
    if CRC32.encode() not in data:
        data = _BARE_NUMBER.sub(rb'\1"\2":', data)  # RocketMQ's JSON library writes {0:7} for {"0":7}
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind of error for every kind of damage
    if FORMAT_VERSION not in document and CRC32 not in document:
        return document  # RocketMQ's
    digits_at = len(data) - len(_CRC_TAIL) - _CRC_DIGITS
    head_at = digits_at - len(_CRC_HEAD)
    zeroed = data[:digits_at] + b"0" * _CRC_DIGITS + _CRC_TAIL
    if (
        data[head_at:digits_at] != _CRC_HEAD
        or not data.endswith(_CRC_TAIL)
        or document.get(CRC32) != f"{zlib.crc32(zeroed):08x}"
    ):
        raise ValueError("the CRC does not match")
    version = document.get(FORMAT_VERSION)
    if type(version) is not int or version < 1:
        raise ValueError(f"the format version is {version!r}")
    if version > FORMAT:
        raise NewerFormatError(version, FORMAT)
    return document


def write_document(disk: Disk, path: Path, content: bytes, *, keep_previous: bool = True) -> None:
    """Durable on return, the previous content kept as .bak."""
    disk.make_dirs(path.parent)
    replace_file(disk, path, content, keep_previous=keep_previous)


def read_document(disk: Disk, path: Path) -> dict[str, Any] | None:
    """The document, or None when it is missing or damaged; damage is reported in the log.

    Raises NewerFormatError, OSError.
    """
    try:
        return decode_document(read_file(disk, path))
    except FileNotFoundError:
        return None
    except NewerFormatError:
        raise
    except ValueError as error:
        log.error("%s is damaged: %s", path, error)  # noqa: TRY400 - the sentence says it all
        return None
