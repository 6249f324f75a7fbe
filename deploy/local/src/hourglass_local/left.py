"""What a demonstration or a load leaves behind in its folder: `left.json` says how its brokers can be started again.

Written as soon as everything runs, so that an interrupted run can be looked at too, and once more at the end, with what
the brokers have measured of their own lateness. Paths in it are relative: the folder may be moved.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from hourglass_local.cluster import Cluster
from hourglass_local.cluster_shop import SQLITE
from hourglass_local.delay_levels import PAYMENT_WINDOW_LEVEL
from hourglass_local.waiting import NotInTimeError, eventually
from mqclient import Admin

LEFT_FILE = "left.json"
DELIVERY_MAX_S = 5.0  # of what is due


class NothingLeftError(RuntimeError):
    """The folder has nothing that could be opened again; the message says why."""


@dataclass(frozen=True, slots=True)
class LevelLateness:
    """Delivered minus due of one delay level in milliseconds, by the broker's own count since it started.

    Quantiles are upper bounds, at most an eighth too high.
    """

    delivered: int
    p50: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class Left:
    """`source` is the name of this queue, which no other has. `brokers` are names of masters, whose stores lie beside
    the file; `settings` are those of all of them. `databases` are SQLite files by service; none where they were on a
    PostgreSQL server, which has gone.
    """

    source: str
    brokers: Sequence[str]
    settings: Mapping[str, str]
    databases: Mapping[str, str] = field(default_factory=dict)
    lateness_ms_by_level: Mapping[str, LevelLateness] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> Left:
        """What this cluster leaves. A store can only be read with the size of its log's files, and the level of a
        waiting message only with the table of levels.
        """
        files = {name: url.removeprefix(SQLITE) for name, url in cluster.shop.database_urls.items()}
        return cls(
            source=uuid.uuid4().hex,
            brokers=[broker.name for broker in cluster.brokers],
            settings={
                "messageDelayLevel": cluster.delay_levels,
                "mapedFileSizeCommitLog": str(cluster.commit_log_file_bytes),
            },
            databases={name: Path(file).name for name, file in files.items() if _is_in(cluster.folder, file)},
        )

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        (folder / LEFT_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def database_url(self, folder: Path, service: str) -> str:
        """Of the service's database; empty when it was not left."""
        return f"{SQLITE}{folder.absolute() / self.databases[service]}" if service in self.databases else ""


def read_left(folder: Path) -> Left:
    """What was left in `folder`. Raises NothingLeftError."""
    path = folder / LEFT_FILE
    if not folder.is_dir():
        raise NothingLeftError(f"{folder} is not there; `make demo` or `make load` leaves one")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        levels = document["lateness_ms_by_level"]
        left = Left(
            source=document["source"],
            brokers=document["brokers"],
            settings=document["settings"],
            databases=document["databases"],
            lateness_ms_by_level={level: LevelLateness(**lateness) for level, lateness in levels.items()},
        )
    except FileNotFoundError:
        raise NothingLeftError(
            f"{folder} has no {LEFT_FILE}: no demonstration or load has got as far as to leave something there"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NothingLeftError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    for broker in left.brokers:
        if not (folder / f"{broker}-store").is_dir():
            raise NothingLeftError(f"{folder} has no {broker}-store any more: the broker's messages are not there")
    return left


async def lateness_by_level(queue_url: str, timeouts_within_s: float) -> dict[str, LevelLateness]:
    """Of each delay level from which something was delivered; "-1" is the timer. Raises MQClientError.

    Asked when no timeout of an order waits any more, those of paid orders included, or after `timeouts_within_s`: what
    is delivered afterwards would be in the messages and not in the count. Of several brokers, those of the one that
    delivered most.
    """
    found: dict[str, LevelLateness] = {}
    async with Admin(queue_url) as admin:
        with suppress(NotInTimeError):
            await eventually(partial(_nothing_waits, admin, PAYMENT_WINDOW_LEVEL), timeouts_within_s)
        for status in await admin.broker_statuses():
            for one in status.delay_levels:
                name, before = str(one.level), found.get(str(one.level))
                if one.delivered > (0 if before is None else before.delivered):
                    found[name] = LevelLateness(
                        one.delivered, one.lateness_p50_ms, one.lateness_p99_ms, one.lateness_max_ms
                    )
    return found


async def measured_lateness(cluster: Cluster) -> dict[str, LevelLateness]:
    """As `lateness_by_level`, of a cluster in which nobody orders any more."""
    return await lateness_by_level(cluster.url, cluster.payment_window_ms / 1000 + DELIVERY_MAX_S)


async def _nothing_waits(admin: Admin, level: int) -> bool:
    return not any(
        one.waiting for status in await admin.broker_statuses() for one in status.delay_levels if one.level == level
    )


def _is_in(folder: Path, file: str) -> bool:
    return Path(file).parent == folder
