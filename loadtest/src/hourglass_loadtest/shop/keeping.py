"""What a load leaves in its folder, for `make pipeline FROM=load`: the broker's store, and the services' SQLite files.

Invariant: no more than `KEEP_MIB` (or --keep) stays, and only of the last load. A store that has grown larger goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hourglass_local.cluster import Cluster
from hourglass_local.left import LEFT_FILE, Left, LevelLateness, measured_lateness
from hourglass_local.process import MIB

SHOP_FOLDER = "shop"  # in the folder of the report
KEEP_MIB = 4096


async def remembered_lateness(cluster: Cluster) -> dict[str, LevelLateness]:
    """What the brokers say, as long as they run; nothing of one that was started anew, which has forgotten the rest.

    Raises MQClientError.
    """
    if any(len(broker.pids) > 1 for broker in cluster.brokers):
        return {}
    return await measured_lateness(cluster)


def leave(cluster: Cluster, lateness: Mapping[str, LevelLateness], keep_mib: int) -> str:
    """Once everything has ended; returns a sentence that says what stays. Raises OSError."""
    if not all(cluster.store_folder(broker).is_dir() for broker in (*cluster.brokers, *cluster.slaves)):
        return f"Nothing is left in {cluster.folder}: the brokers have not started."
    for slave in cluster.slaves:
        shutil.rmtree(cluster.store_folder(slave))  # the same messages once more
    used_mib = _used_bytes(cluster.folder) / MIB
    if used_mib <= keep_mib:
        replace(Left.of(cluster), lateness_ms_by_level=lateness).write(cluster.folder)
        return f"Left in {cluster.folder}: {used_mib:.0f} MiB, for `make pipeline FROM=load`."
    for broker in cluster.brokers:
        shutil.rmtree(cluster.store_folder(broker))
    (cluster.folder / LEFT_FILE).unlink(missing_ok=True)
    return f"The broker's messages were not kept: {used_mib:.0f} MiB are more than the {keep_mib} MiB of --keep."


def _used_bytes(folder: Path) -> int:
    """On the disk: files of a store are as long as they may grow, and mostly holes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
