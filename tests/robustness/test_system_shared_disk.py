"""A cluster of local processes works on a disk that is rather full of other things."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from ext4_image import Ext4Image

from hourglass_local.cluster import Cluster
from hourglass_local.waiting import eventually
from mqclient import Admin, Message, Producer

FULL = 0.93  # a broker that has its disk for itself rejects messages from 0.90 on


@pytest.mark.needs("loop device")
async def test_a_local_broker_takes_messages_on_a_machine_whose_disk_is_nearly_full(tmp_path: Path) -> None:
    with Ext4Image(tmp_path) as disk:
        _, used, free = shutil.disk_usage(disk.root)
        with (disk.root / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, int(FULL * (used + free)) - used)
        folder = disk.root / "cluster"
        async with (
            Cluster(folder, orders=False, commit_log_file_bytes=1024 * 1024) as cluster,
            Admin(cluster.url) as admin,
            Producer("shop", cluster.url) as producer,
        ):

            async def has_measured() -> bool:
                (status,) = await admin.broker_statuses()
                return status.store.disk_used_share >= FULL

            await eventually(has_measured, timeout_s=60)
            sent = await producer.send(Message("orders", b"an order"))
        assert sent.queue_offset == 0
