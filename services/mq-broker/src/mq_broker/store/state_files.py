"""The broker's small state and its files: which is newer, and what has to be written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mq_broker.store.json_state import encode_document, read_document, write_document
from osenv import Disk

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as it was at one moment."""

    name: str
    version: int
    content: bytes


class StateFiles:
    """States by file name. A state is written when its data version has moved since the last time."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        states: Mapping[str, State],
        log_end: Callable[[], int],
        *,
        told_by_log: frozenset[str],
        dispensable: frozenset[str],
    ) -> None:
        self._disk, self._folder, self._states, self._log_end = disk, folder, dict(states), log_end
        self._told_by_log, self._dispensable = told_by_log, dispensable
        self._written: dict[str, int] = {}
        self._writing = {name: asyncio.Lock() for name in self._states}

    def load(self) -> list[str]:
        """Read every state; returns the names of those that the log has to complete.

        These are the ones without a readable file, and of those that the log can tell the ones whose file is damaged
        or lost, so that its previous version had to do. A dispensable one is not worth the reading. Raises OSError.
        """
        incomplete = [name for name, state in self._states.items() if not self._load(name, state)]
        return [name for name in incomplete if name not in self._dispensable]

    def _load(self, name: str, state: State) -> bool:
        """Whether the state is complete."""
        path = self._folder / name
        for candidate in (path, path.with_name(name + ".bak")):
            document = read_document(self._disk, candidate)
            if document is None:
                continue
            try:
                state.load_json(document)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                log.error("%s is not of the form it should have: %r", candidate, error)  # noqa: TRY400
                continue
            return candidate == path or name not in self._told_by_log
        return False

    def snapshot(self) -> list[Snapshot]:
        """What all the states that have changed say at this moment."""
        return [
            self._snapshot(name)
            for name, state in self._states.items()
            if state.data_version != self._written.get(name)
        ]

    async def write(self, snapshots: Sequence[Snapshot]) -> None:
        """Have the snapshots on disk, on return; one that is older than what is there already is left out."""
        for snapshot in snapshots:
            async with self._writing[snapshot.name]:
                if snapshot.version > self._written.get(snapshot.name, -1):
                    path = self._folder / snapshot.name
                    await self._disk.offload(write_document, self._disk, path, snapshot.content)
                    self._written[snapshot.name] = snapshot.version

    async def persist(self, name: str) -> None:
        """Have what one state says now on disk, on return."""
        await self.write([self._snapshot(name)])

    def _snapshot(self, name: str) -> Snapshot:
        state = self._states[name]
        return Snapshot(name, state.data_version, encode_document(state.to_json(), self._log_end()))
