"""Two stores on disk, compared when both brokers have stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mq_broker.store.layout import StoreLayout
from mq_broker.tools.findings import DIFFERENCE, Finding
from mq_broker.tools.state_check import read_small_state
from mq_broker.tools.stored_files import StoredFiles, Tail, read_log
from mq_broker.tools.verify import verify
from osenv import RealDisk

BLOCK_BYTES = 1 << 20
FINDINGS_SAID = 3


def differences(one: Path, other: Path) -> list[str]:
    """What is not the same in the two commit logs, and what dump_log finds wrong in either store."""
    return [*_unlike_logs(one, other), *_damage(one), *_damage(other)]


def _unlike_logs(one: Path, other: Path) -> Iterator[str]:
    disk = RealDisk()
    try:
        logs = [_open(disk, store) for store in (one, other)]
        try:
            ends = [_end(disk, store, files) for store, files in zip((one, other), logs, strict=True)]
            begin = max(files.begin for files in logs)
            if ends[0] != ends[1]:
                yield f"the log in {one} ends at {ends[0]}, the one in {other} at {ends[1]}"
            for at in range(begin, min(ends), BLOCK_BYTES):
                length = min(BLOCK_BYTES, min(ends) - at)
                if logs[0].read(length, at) != logs[1].read(length, at):
                    yield f"the logs in {one} and {other} differ between {at} and {at + length}"
                    return
        finally:
            for files in logs:
                files.close()
    finally:
        disk.close()


def _open(disk: RealDisk, store: Path) -> StoredFiles:
    layout = StoreLayout(store)
    return StoredFiles(disk, layout.commit_log, layout.commit_log_file_bytes)


def _end(disk: RealDisk, store: Path, files: StoredFiles) -> int:
    durable_end = read_small_state(disk, StoreLayout(store)).durable_end
    tails = [found for found in read_log(files, files.begin, durable_end) if isinstance(found, Tail)]
    return tails[0].log_offset


def _damage(store: Path) -> list[str]:
    disk, findings = RealDisk(), list[Finding]()
    try:
        layout = StoreLayout(store)
        verdict = verify(disk, layout, read_small_state(disk, layout), findings.append)
    finally:
        disk.close()
    if not verdict.differences:
        return []
    wrong = [str(finding) for finding in findings if finding.kind == DIFFERENCE]
    return [f"dump_log finds {verdict.differences} differences in {store}: {'; '.join(wrong[:FINDINGS_SAID])}"]
