"""Master and replica of one name: are their logs the same?

Two witnesses: the status of both brokers, while there are no writes, and their files, once they have ended.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hourglass_local.process import ProcessError, replica_status
from hourglass_local.waiting import NotInTimeError, eventually

SETTLE_TIMEOUT_S = 10.0
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PairLogs:
    """Bytes of the log at one moment, and the master's epoch; `confirm_offset` and `in_sync` as the replica has heard
    them from its master.
    """

    epoch: str
    master_end: int
    replica_end: int
    replica_durable_end: int
    confirm_offset: int
    in_sync: bool

    @property
    def are_the_same(self) -> bool:
        """Whether the replica has everything on disk, and consumers may see all of it there."""
        ends = {self.master_end, self.replica_end, self.replica_durable_end, self.confirm_offset}
        return self.in_sync and len(ends) == 1


async def pair_logs(master: str, replica: str) -> PairLogs | None:
    """What the brokers at host:port say; None when one does not answer.

    The replica is asked first: of a log that grows meanwhile it never seems to have all.
    """
    following, leading = await replica_status(replica), await replica_status(master)
    if following is None or leading is None:
        return None
    return PairLogs(
        epoch=f"{leading.epoch.term}.{leading.epoch.start}",
        master_end=leading.log_end,
        replica_end=following.log_end,
        replica_durable_end=following.durable_end,
        confirm_offset=following.confirm_offset,
        in_sync=following.connected and following.in_sync,
    )


async def settled_logs(master: str, replica: str, timeout_s: float = SETTLE_TIMEOUT_S) -> PairLogs:
    """As soon as they are the same, or as they are when the time is over. Raises ProcessError without an answer."""
    seen: list[PairLogs] = []

    async def same() -> bool:
        if (logs := await pair_logs(master, replica)) is not None:
            seen.append(logs)
        return logs is not None and logs.are_the_same

    with suppress(NotInTimeError):
        await eventually(same, timeout_s, "the same log at master and replica")
    if not seen:
        raise ProcessError(f"the master at {master} or its replica at {replica} does not answer")
    return seen[-1]


def first_difference(one: Path, other: Path, end: int) -> int | None:
    """The first byte below `end` at which the logs of two stores are not the same; None when there is none.

    They are compared from where the younger of them begins. Raises FileNotFoundError where a file is missing.
    """
    position = max(_log_begin(one), _log_begin(other))
    while position < end:
        bytes_max = min(CHUNK_BYTES, end - position)
        ours, theirs = (_read(store, position, bytes_max) for store in (one, other))
        common = min(len(ours), len(theirs))
        if not common:
            raise FileNotFoundError(f"the logs in {one} and {other} do not both reach to {end:,}")
        if ours[:common] != theirs[:common]:
            return position + next(index for index in range(common) if ours[index] != theirs[index])
        position += common
    return None


def _log_begin(store: Path) -> int:
    return min(_file_begins(store))


def _file_begins(store: Path) -> list[int]:
    """The offsets at which the files of the log begin; each is the file's name."""
    return [int(path.name) for path in (store / "commitlog").iterdir() if path.name.isdigit()]


def _read(store: Path, position: int, bytes_max: int) -> bytes:
    """From the file that holds this position, as far as it reaches."""
    begin = max((begin for begin in _file_begins(store) if begin <= position), default=None)
    if begin is None:
        return b""
    with (store / "commitlog" / f"{begin:020}").open("rb") as file:
        file.seek(position - begin)
        return file.read(bytes_max)
