"""Instances: a process of the queue is the same one in Prometheus after it has been killed and started again."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest

from hourglass_local.ports import free_ports
from hourglass_local.process import ManagedProcess
from hourglass_local.queue_processes import broker, name_server, stopped_at_the_end

pytestmark = pytest.mark.processes


async def instance_of(process: ManagedProcess, page_port: int) -> str:
    """Of a process that is started, asked once and killed."""
    async with stopped_at_the_end(process):
        await process.start()
        with await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{page_port}/metrics") as answer:
            page = answer.read().decode()
        await process.kill()
    (instance,) = re.findall(r'^target_info\{.*service_instance_id="([^"]+)"', page, re.MULTILINE)
    return str(instance)


@pytest.mark.parametrize("module", ["mq_namesrv", "mq_broker"])
async def test_a_process_of_the_queue_keeps_its_id_over_a_kill(module: str, tmp_path: Path) -> None:
    port, page_port = free_ports(2)
    environment = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(page_port)}
    process = (
        name_server(tmp_path, port, environment=environment)
        if module == "mq_namesrv"
        else broker(tmp_path, "broker-a", port, environment=environment)
    )
    first = await instance_of(process, page_port)
    assert first.endswith(f":{port}")
    assert await instance_of(process, page_port) == first
