"""A broker with `messages` stored; what the bench then does with it is measured there (restarts.py)."""

from __future__ import annotations

import time

from hourglass_loadtest.measure.broker_meter import BrokerMeter
from hourglass_loadtest.measure.sending import GROUP, make_topic, send_all
from hourglass_loadtest.workload import Workload
from mqclient import Producer

TOPIC = "bench"


async def measure(url: str, workload: Workload, broker: BrokerMeter) -> dict[str, float]:
    """Messages a second into a broker whose slave is away."""
    await make_topic(url, TOPIC, workload)
    async with Producer(GROUP, url) as producer:
        begin = time.perf_counter()
        await send_all(producer, TOPIC, workload.messages, workload)
        return {"fill_msg_per_s": workload.messages / (time.perf_counter() - begin)}
