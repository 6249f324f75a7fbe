"""What the index of due times consists of: `runs.json`, which is replaced as a whole (FORMAT.md, "Timer").

Invariant: every waiting message below `covered` that is not done has its key in one of these runs, in `from_block` or
behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mq_broker.store.state_files import encode_document, read_document, write_document
from osenv import Disk

MANIFEST_NAME = "runs.json"


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run: its number, its length in blocks, and the first block that is still needed."""

    number: int
    blocks: int
    from_block: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The runs, and the queue offset behind what they tell of."""

    covered: int = 0
    runs: tuple[RunEntry, ...] = ()
    moved: bool = (
        False  # some keys are later than the due times, because two clocks differed; no later start can use it
    )


def encode_manifest(manifest: Manifest, log_offset: int) -> bytes:
    """The file's bytes; the log was durable up to `log_offset` before this was written."""
    runs = [{"number": run.number, "blocks": run.blocks, "fromBlock": run.from_block} for run in manifest.runs]
    moved = {"moved": True} if manifest.moved else {}
    return encode_document({"queueOffset": manifest.covered, "runs": runs, **moved}, log_offset)


def decode_manifest(document: dict[str, Any]) -> Manifest:
    """The inverse. Raises ValueError when the document is not of this form."""
    try:
        covered = document["queueOffset"]
        runs = tuple(RunEntry(run["number"], run["blocks"], run["fromBlock"]) for run in document["runs"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not of the form it should have: {error!r}") from error
    numbers = [covered, *(number for run in runs for number in (run.number, run.blocks, run.from_block))]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("holds something else where a number of 0 or more belongs")
    if any(run.from_block >= run.blocks for run in runs) or len({run.number for run in runs}) != len(runs):
        raise ValueError("names a run twice, or a block behind the last one")
    return Manifest(covered, runs, document.get("moved", False) is True)


def read_manifest(disk: Disk, folder: Path) -> Manifest | None:
    """None when it is missing or damaged. Raises ValueError when it is not of the form it should have, OSError."""
    document = read_document(disk, folder / MANIFEST_NAME)
    return None if document is None else decode_manifest(document)


def write_manifest(disk: Disk, folder: Path, manifest: Manifest, log_offset: int) -> None:
    """Durable on return. There is no version before it: what that named is deleted. Raises OSError, SyncError."""
    write_document(disk, folder / MANIFEST_NAME, encode_manifest(manifest, log_offset), keep_previous=False)
